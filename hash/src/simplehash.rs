//! The 32-bit state hash of PCCL v1, bit-exact.
//!
//! Use it only towards peers of that version: it does not bind the length (1 to 3 zero bytes at the end go
//! unseen), collides on sparse data far more often than 32 bits should, and is easy to forge.
//!
//! The data is cut into vectors of four little-endian u32 words and those into at most 960 blocks. In a block
//! vector i belongs to lane i mod 256, and each lane mixes its words in order; trees of mixes join the lanes to a
//! block's hash and the blocks' hashes to one; the words and bytes after the last vector are mixed in at the end.

use crate::simplehash_block::{LANES, VECTOR_BYTES, hash_block, join_lanes, mix};
use crate::{SimdLevel, kernels};

const MAX_BLOCKS: usize = 960;

/// The hash of `data`, which may have any alignment and length; 0 for empty data.
pub fn simplehash(data: &[u8]) -> u32 {
    simplehash_at(SimdLevel::best(), data)
}

/// [`simplehash`] with the kernel of `level`.
pub fn simplehash_at(level: SimdLevel, data: &[u8]) -> u32 {
    let (vectors, tail) = data.as_chunks::<VECTOR_BYTES>();
    let mut hash = hash_vectors(level, vectors);
    let (words, bytes) = tail.as_chunks::<4>();
    for word in words {
        hash = mix(hash, u32::from_le_bytes(*word));
    }
    if !bytes.is_empty() {
        let mut last = [0; 4];
        last[..bytes.len()].copy_from_slice(bytes);
        hash = mix(hash, u32::from_le_bytes(last));
    }
    hash
}

fn hash_vectors(level: SimdLevel, vectors: &[[u8; VECTOR_BYTES]]) -> u32 {
    if vectors.is_empty() {
        return 0;
    }
    let blocks = vectors.len().div_ceil(LANES).min(MAX_BLOCKS);
    let per_block = vectors.len().div_ceil(blocks);
    let mut slots = [0; LANES];
    for block in 0..blocks {
        // Blocks near the end may be short or empty; an empty one still is mixed in.
        let start = (block * per_block).min(vectors.len());
        let end = (start + per_block).min(vectors.len());
        let slot = &mut slots[block % LANES];
        *slot = mix(*slot, hash_block_at(level, &vectors[start..end]));
    }
    join_lanes(&slots)
}

fn hash_block_at(level: SimdLevel, vectors: &[[u8; VECTOR_BYTES]]) -> u32 {
    kernels::simplehash_block(level, vectors).unwrap_or_else(|| hash_block(vectors))
}
