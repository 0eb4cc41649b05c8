//! SSE4.2: XXH3-128 leaves, simplehash blocks, CRC-32C.
//!
//! The instruction for CRC-32C takes 8 bytes per cycle but has a latency of 3 cycles, so three streams run at a
//! time and are joined with a table that advances a CRC register over as many zero bytes as a stream is long.
//! Source of the method: Mark Adler's crc32c.c (2013).

use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_add_epi64, _mm_crc32_u8, _mm_crc32_u64, _mm_loadu_si128, _mm_mul_epu32,
    _mm_prefetch, _mm_set1_epi64x, _mm_shuffle_epi32, _mm_slli_epi64, _mm_srli_epi64, _mm_storeu_si128,
    _mm_xor_si128,
};
use std::array;

use crate::crc32c::{ShiftTable, shift, shift_table};
use crate::simplehash::{self, VECTOR_BYTES};
use crate::xxh3::{
    INITIAL_BYTES, LAST_STRIPE_SECRET, LEAF_BYTES, PRIME32_1, SCRAMBLE_SECRET, SCRAMBLED_BLOCKS,
    STRIPE_BYTES, STRIPES_PER_BLOCK, key, merge,
};

const LONG_BYTES: usize = 8192;
const SHORT_BYTES: usize = 256;

static LONG_SHIFT: ShiftTable = shift_table(LONG_BYTES);
static SHORT_SHIFT: ShiftTable = shift_table(SHORT_BYTES);

/// Advances the CRC register over `data`.
#[target_feature(enable = "sse4.2")]
pub(super) fn crc32c_update(register: u32, data: &[u8]) -> u32 {
    let (register, rest) = three_streams::<LONG_BYTES>(register, data, &LONG_SHIFT);
    let (register, rest) = three_streams::<SHORT_BYTES>(register, rest, &SHORT_SHIFT);
    let (words, tail) = rest.as_chunks::<8>();
    let register =
        words.iter().fold(u64::from(register), |r, word| _mm_crc32_u64(r, u64::from_le_bytes(*word)));
    tail.iter().fold(register as u32, |r, byte| _mm_crc32_u8(r, *byte))
}

/// Asks for the cache line that stands in the next triple where `line` stands in this one.
#[inline]
#[target_feature(enable = "sse4.2")]
fn prefetch<const N: usize>(line: &[u8; 64]) {
    let ahead = line.as_ptr().wrapping_add(3 * N);
    #[allow(unused_unsafe, reason = "older compilers count it as unsafe")]
    // SAFETY: a prefetch is a hint that never faults, whatever the address.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
    };
}

/// Takes in as many triples of `N` bytes as there are; returns the register and what is left.
#[inline]
#[target_feature(enable = "sse4.2")]
fn three_streams<'a, const N: usize>(register: u32, data: &'a [u8], table: &ShiftTable) -> (u32, &'a [u8]) {
    let mut register = register;
    let mut triples = data.chunks_exact(3 * N);
    for triple in &mut triples {
        let (first, rest) = triple.split_at(N);
        let (second, third) = rest.split_at(N);
        let mut registers = [u64::from(register), 0, 0];
        let lines =
            first.as_chunks::<64>().0.iter().zip(second.as_chunks::<64>().0).zip(third.as_chunks::<64>().0);
        for ((a, b), c) in lines {
            prefetch::<N>(a);
            prefetch::<N>(b);
            prefetch::<N>(c);
            let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0).zip(c.as_chunks::<8>().0);
            for ((a, b), c) in words {
                registers[0] = _mm_crc32_u64(registers[0], u64::from_le_bytes(*a));
                registers[1] = _mm_crc32_u64(registers[1], u64::from_le_bytes(*b));
                registers[2] = _mm_crc32_u64(registers[2], u64::from_le_bytes(*c));
            }
        }
        let [a, b, c] = registers.map(|r| r as u32);
        register = shift(table, shift(table, a) ^ b) ^ c;
    }
    (register, triples.remainder())
}

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
    let (stripes, _) = leaf.as_chunks::<STRIPE_BYTES>();
    let (blocks, _) = stripes.as_chunks::<STRIPES_PER_BLOCK>();
    let mut acc = load(&INITIAL_BYTES);
    for block in &blocks[..SCRAMBLED_BLOCKS] {
        for (i, stripe) in block.iter().enumerate() {
            acc = accumulate(acc, stripe, key(8 * i));
        }
        acc = scramble(acc);
    }
    for (i, stripe) in blocks[SCRAMBLED_BLOCKS][..STRIPES_PER_BLOCK - 1].iter().enumerate() {
        acc = accumulate(acc, stripe, key(8 * i));
    }
    acc = accumulate(acc, &blocks[SCRAMBLED_BLOCKS][STRIPES_PER_BLOCK - 1], key(LAST_STRIPE_SECRET));
    merge(&store(acc))
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
    simplehash::hash_block(vectors)
}
