//! Every packet, identifier and limit that master and peers share.
#![forbid(unsafe_code)]
