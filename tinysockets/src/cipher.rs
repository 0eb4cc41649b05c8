//! The library that has the ciphers, behind one name: `ring`, or with the feature `aws-lc` the one whose kernels use
//! AVX-512. Both speak alike on the wire, and to the modules above.

#[cfg(feature = "aws-lc")]
pub(crate) use aws_lc_rs::{aead, hkdf, hmac, rand};
#[cfg(not(feature = "aws-lc"))]
pub(crate) use ring::{aead, hkdf, hmac, rand};
