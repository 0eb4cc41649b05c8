//! CRC-32C (Castagnoli): reflected polynomial 0x82f63b78, register inverted at both ends.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of `data`; 0 for empty data.
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c_append(0, data)
}

/// The CRC-32C of some data followed by `data`, where `crc` is the CRC-32C of the former (0 if that is empty).
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(data);
    // The upper half of a checksum of 32 bits is empty.
    digest.finalize() as u32
}
