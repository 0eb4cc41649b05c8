//! The 128-bit digest type.

use std::fmt;

/// A 128-bit digest.
///
/// The bytes are the little-endian form of the 128-bit number that XXH3 defines; they are compared, ordered and
/// printed in that order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Digest128(pub [u8; 16]);

impl Digest128 {
    /// Size of a digest in bytes.
    pub const BYTES: usize = 16;

    /// The digest whose little-endian value is `value`.
    pub const fn from_u128(value: u128) -> Self {
        Self(value.to_le_bytes())
    }

    /// The digest as a number (little-endian).
    pub const fn to_u128(self) -> u128 {
        u128::from_le_bytes(self.0)
    }

    /// The bytes in wire order.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl From<[u8; 16]> for Digest128 {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl From<Digest128> for [u8; 16] {
    fn from(digest: Digest128) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest128({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::Digest128;

    #[test]
    fn prints_in_wire_order() {
        let digest = Digest128::from_u128(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
        assert_eq!(digest.to_string(), "000102030405060708090a0b0c0d0e0f");
        assert_eq!(format!("{digest:?}"), "Digest128(000102030405060708090a0b0c0d0e0f)");
        assert_eq!(Digest128::from(*digest.as_bytes()).to_u128(), digest.to_u128());
    }

    #[test]
    fn order_is_that_of_the_bytes() {
        // Byte 0 counts most, although it is the lowest of the number.
        assert!(Digest128::from_u128(1) > Digest128::from_u128(1 << 64));
    }
}
