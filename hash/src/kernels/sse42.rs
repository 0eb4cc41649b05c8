//! SSE4.2: leaves and blocks of XXH3, simplehash blocks.

use std::arch::x86_64::{
    __m128i, _mm_add_epi64, _mm_loadu_si128, _mm_mul_epu32, _mm_set1_epi64x, _mm_shuffle_epi32,
    _mm_slli_epi64, _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128,
};
use std::array;

use crate::simplehash_block::{self, VECTOR_BYTES};
use crate::xxh3_leaf::{
    BLOCK_BYTES, INITIAL_BYTES, LAST_STRIPE_SECRET, LEAF_BYTES, PRIME32_1, SCRAMBLE_SECRET, SCRAMBLED_BLOCKS,
    STRIPE_BYTES, STRIPES_PER_BLOCK, key, merge,
};

/// The eight accumulators of XXH3.
type Accumulators = [__m128i; 4];

/// XXH3-128 (seed 0) of each leaf; stops at the shorter of the two.
#[target_feature(enable = "sse4.2")]
pub(super) fn full_leaves(leaves: &[[u8; LEAF_BYTES]], out: &mut [[u8; 16]]) {
    for (leaf, digest) in leaves.iter().zip(out) {
        *digest = full_leaf(leaf);
    }
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn full_leaf(leaf: &[u8; LEAF_BYTES]) -> [u8; 16] {
    let (blocks, _) = leaf.as_chunks::<BLOCK_BYTES>();
    let mut acc = load(&INITIAL_BYTES);
    for block in &blocks[..SCRAMBLED_BLOCKS] {
        acc = take(acc, block);
    }
    let (stripes, _) = blocks[SCRAMBLED_BLOCKS].as_chunks::<STRIPE_BYTES>();
    for (i, stripe) in stripes[..STRIPES_PER_BLOCK - 1].iter().enumerate() {
        acc = accumulate(acc, stripe, key(8 * i));
    }
    acc = accumulate(acc, &stripes[STRIPES_PER_BLOCK - 1], key(LAST_STRIPE_SECRET));
    merge(&store(acc))
}

/// Takes whole blocks into the accumulators, each with its scramble.
#[target_feature(enable = "sse4.2")]
pub(super) fn blocks(acc: &mut [u64; 8], blocks: &[[u8; BLOCK_BYTES]]) {
    let mut bytes = [0; STRIPE_BYTES];
    bytes.as_chunks_mut().0.iter_mut().zip(&*acc).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    *acc = store(blocks.iter().fold(load(&bytes), |acc, block| take(acc, block)));
}

/// One block, with its scramble.
#[inline]
#[target_feature(enable = "sse4.2")]
fn take(mut acc: Accumulators, block: &[u8; BLOCK_BYTES]) -> Accumulators {
    for (i, stripe) in block.as_chunks::<STRIPE_BYTES>().0.iter().enumerate() {
        acc = accumulate(acc, stripe, key(8 * i));
    }
    scramble(acc)
}

/// Loads 64 bytes at any alignment.
#[inline]
#[target_feature(enable = "sse4.2")]
fn load(bytes: &[u8; STRIPE_BYTES]) -> [__m128i; 4] {
    let start = bytes.as_ptr().cast::<__m128i>();
    // SAFETY: the array is 64 readable bytes, of which each load takes one quarter; loadu needs no alignment.
    array::from_fn(|i| unsafe { _mm_loadu_si128(start.add(i)) })
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn store(acc: Accumulators) -> [u64; 8] {
    let mut words = [0u64; 8];
    let start = words.as_mut_ptr().cast::<__m128i>();
    for (i, part) in acc.into_iter().enumerate() {
        // SAFETY: the array is 64 writable bytes, of which each store fills one quarter; storeu needs no alignment.
        unsafe { _mm_storeu_si128(start.add(i), part) };
    }
    words
}

/// Each lane takes the product of the two halves of its keyed word, and its neighbour's word.
#[inline]
#[target_feature(enable = "sse4.2")]
fn accumulate(acc: Accumulators, stripe: &[u8; STRIPE_BYTES], key: &[u8; STRIPE_BYTES]) -> Accumulators {
    let data = load(stripe);
    let key = load(key);
    let step = |i: usize| {
        let keyed = _mm_xor_si128(data[i], key[i]);
        let product = _mm_mul_epu32(keyed, _mm_srli_epi64::<32>(keyed));
        let swapped = _mm_shuffle_epi32::<0b01_00_11_10>(data[i]);
        _mm_add_epi64(acc[i], _mm_add_epi64(product, swapped))
    };
    array::from_fn(step)
}

/// acc = (acc ^ acc >> 47 ^ key) * PRIME32_1, modulo 2^64.
#[inline]
#[target_feature(enable = "sse4.2")]
fn scramble(acc: Accumulators) -> Accumulators {
    let key = load(key(SCRAMBLE_SECRET));
    let prime = _mm_set1_epi64x(PRIME32_1 as i64);
    let step = |i: usize| {
        let mixed = _mm_xor_si128(_mm_xor_si128(acc[i], _mm_srli_epi64::<47>(acc[i])), key[i]);
        let low = _mm_mul_epu32(mixed, prime);
        let high = _mm_mul_epu32(_mm_srli_epi64::<32>(mixed), prime);
        _mm_add_epi64(low, _mm_slli_epi64::<32>(high))
    };
    array::from_fn(step)
}

/// The portable code of a block of simplehash, compiled for SSE4.2: its loops over lanes vectorise.
#[target_feature(enable = "sse4.2")]
pub(super) fn simplehash_block(vectors: &[[u8; VECTOR_BYTES]]) -> u32 {
    simplehash_block::hash_block(vectors)
}
