//! Kernels for instruction sets beyond the build's baseline.
//!
//! Each function here returns "not done" (`false` or `None`) where the asked level has no kernel or the machine
//! lacks it; the caller then runs its portable code. All `unsafe` of this crate is below this module.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod sse42;

use crate::SimdLevel;
use crate::simplehash_block::VECTOR_BYTES;
use crate::xxh3_leaf::{BLOCK_BYTES, LEAF_BYTES};

/// XXH3-128 of each leaf; stops at the shorter of the two.
#[cfg(target_arch = "x86_64")]
pub(crate) fn full_leaves(level: SimdLevel, leaves: &[[u8; LEAF_BYTES]], out: &mut [[u8; 16]]) -> bool {
    match level.clamped() {
        SimdLevel::Portable => return false,
        // SAFETY: clamped() returns this level only where it has seen SSE4.2 on this machine.
        SimdLevel::Sse42 => unsafe { sse42::full_leaves(leaves, out) },
        // Memory is the limit with AVX2 already.
        // SAFETY: clamped() returns these levels only where it has seen AVX2 on this machine.
        SimdLevel::Avx2 | SimdLevel::Avx512 => unsafe { avx2::full_leaves(leaves, out) },
    }
    true
}

/// Takes whole blocks into the accumulators of XXH3, each with its scramble.
#[cfg(target_arch = "x86_64")]
pub(crate) fn blocks(level: SimdLevel, acc: &mut [u64; 8], blocks: &[[u8; BLOCK_BYTES]]) -> bool {
    match level.clamped() {
        SimdLevel::Portable => return false,
        // SAFETY: clamped() returns this level only where it has seen SSE4.2 on this machine.
        SimdLevel::Sse42 => unsafe { sse42::blocks(acc, blocks) },
        // SAFETY: clamped() returns this level only where it has seen AVX2 on this machine.
        SimdLevel::Avx2 => unsafe { avx2::blocks(acc, blocks) },
        // SAFETY: clamped() returns this level only where it has seen AVX-512 on this machine.
        SimdLevel::Avx512 => unsafe { avx512::blocks(acc, blocks) },
    }
    true
}

/// The hash of one block of simplehash.
#[cfg(target_arch = "x86_64")]
pub(crate) fn simplehash_block(level: SimdLevel, vectors: &[[u8; VECTOR_BYTES]]) -> Option<u32> {
    match level.clamped() {
        SimdLevel::Portable => None,
        // SAFETY: clamped() returns this level only where it has seen SSE4.2 on this machine.
        SimdLevel::Sse42 => Some(unsafe { sse42::simplehash_block(vectors) }),
        // SAFETY: clamped() returns these levels only where it has seen AVX2 on this machine.
        SimdLevel::Avx2 | SimdLevel::Avx512 => Some(unsafe { avx2::simplehash_block(vectors) }),
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn full_leaves(_: SimdLevel, _: &[[u8; LEAF_BYTES]], _: &mut [[u8; 16]]) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn simplehash_block(_: SimdLevel, _: &[[u8; VECTOR_BYTES]]) -> Option<u32> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn blocks(_: SimdLevel, _: &mut [u64; 8], _: &[[u8; BLOCK_BYTES]]) -> bool {
    false
}
