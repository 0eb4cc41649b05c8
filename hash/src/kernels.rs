//! Kernels for instruction sets beyond the build's baseline.
//!
//! Each function here returns "not done" (`false` or `None`) where the asked level has no kernel or the machine
//! lacks it; the caller then runs its portable code. All `unsafe` of this crate is below this module.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod sse42;

use crate::SimdLevel;
use crate::simplehash::{Lanes, Row};
use crate::xxh3::LEAF_BYTES;

/// XXH3-128 of each leaf; stops at the shorter of the two.
#[cfg(target_arch = "x86_64")]
pub(crate) fn full_leaves(level: SimdLevel, leaves: &[[u8; LEAF_BYTES]], out: &mut [[u8; 16]]) -> bool {
    if level < SimdLevel::Avx2 || !SimdLevel::Avx2.is_available() {
        return false;
    }
    // SAFETY: is_available() has just seen AVX2 on this machine.
    unsafe { avx2::full_leaves(leaves, out) };
    true
}

/// Mixes rows of 256 vectors into the 256 lanes.
#[cfg(target_arch = "x86_64")]
pub(crate) fn simplehash_rows(level: SimdLevel, rows: &[Row], lanes: &mut Lanes) -> bool {
    if level < SimdLevel::Avx2 || !SimdLevel::Avx2.is_available() {
        return false;
    }
    // SAFETY: is_available() has just seen AVX2 on this machine.
    unsafe { avx2::simplehash_rows(rows, lanes) };
    true
}

/// Advances the CRC register (no inversion at either end) over `data`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn crc32c_update(level: SimdLevel, register: u32, data: &[u8]) -> Option<u32> {
    if level < SimdLevel::Sse42 || !SimdLevel::Sse42.is_available() {
        return None;
    }
    // SAFETY: is_available() has just seen SSE4.2 on this machine.
    Some(unsafe { sse42::crc32c_update(register, data) })
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn full_leaves(_: SimdLevel, _: &[[u8; LEAF_BYTES]], _: &mut [[u8; 16]]) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn simplehash_rows(_: SimdLevel, _: &[Row], _: &mut Lanes) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn crc32c_update(_: SimdLevel, _: u32, _: &[u8]) -> Option<u32> {
    None
}
