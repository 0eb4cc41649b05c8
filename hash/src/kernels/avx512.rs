//! AVX-512: blocks of XXH3. A stripe is one register, and so is each of the keys of a block.

use std::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_loadu_si512, _mm512_mul_epu32, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_shuffle_epi32, _mm512_slli_epi64, _mm512_srli_epi64, _mm512_storeu_si512, _mm512_xor_si512,
};

use crate::xxh3_leaf::{
    BLOCK_BYTES, PRIME32_1, SCRAMBLE_SECRET, SECRET, STRIPE_BYTES, STRIPES_PER_BLOCK, key,
};

/// The keys of the stripes of a block, each in a cache line of its own: they overlap in the secret, where most loads
/// would be of two lines.
#[repr(align(64))]
struct Keys([[u8; STRIPE_BYTES]; STRIPES_PER_BLOCK]);

static KEYS: Keys = {
    let mut keys = Keys([[0; STRIPE_BYTES]; STRIPES_PER_BLOCK]);
    let mut at = 0;
    while at < STRIPES_PER_BLOCK * STRIPE_BYTES {
        let (stripe, byte) = (at / STRIPE_BYTES, at % STRIPE_BYTES);
        keys.0[stripe][byte] = SECRET[8 * stripe + byte];
        at += 1;
    }
    keys
};

/// Takes whole blocks into the accumulators, each with its scramble.
#[target_feature(enable = "avx512f")]
pub(super) fn blocks(acc: &mut [u64; 8], blocks: &[[u8; BLOCK_BYTES]]) {
    // SAFETY: the array is 64 readable bytes; loadu needs no alignment.
    let mut sum = unsafe { _mm512_loadu_si512(acc.as_ptr().cast()) };
    for block in blocks {
        let (stripes, _) = block.as_chunks::<STRIPE_BYTES>();
        let (pairs, _) = stripes.as_chunks::<2>();
        // Two sums that do not wait for the scramble of the block before.
        let (mut even, mut odd) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for (i, pair) in pairs.iter().enumerate() {
            even = _mm512_add_epi64(even, products(&pair[0], 2 * i));
            odd = _mm512_add_epi64(odd, products(&pair[1], 2 * i + 1));
        }
        sum = scramble(_mm512_add_epi64(sum, _mm512_add_epi64(even, odd)));
    }
    // SAFETY: the array is 64 writable bytes; storeu needs no alignment.
    unsafe { _mm512_storeu_si512(acc.as_mut_ptr().cast(), sum) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; STRIPE_BYTES]) -> __m512i {
    // SAFETY: the array is 64 readable bytes; loadu needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// The contribution of a stripe: for each lane the product of the halves of its keyed word, and its neighbour's word.
#[inline]
#[target_feature(enable = "avx512f")]
fn products(stripe: &[u8; STRIPE_BYTES], number: usize) -> __m512i {
    let data = load(stripe);
    let keyed = _mm512_xor_si512(data, load(&KEYS.0[number]));
    let product = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
    _mm512_add_epi64(product, _mm512_shuffle_epi32::<0b01_00_11_10>(data))
}

/// acc = (acc ^ acc >> 47 ^ key) * PRIME32_1, modulo 2^64.
#[inline]
#[target_feature(enable = "avx512f")]
fn scramble(acc: __m512i) -> __m512i {
    let prime = _mm512_set1_epi64(PRIME32_1 as i64);
    let mixed = _mm512_xor_si512(acc, _mm512_srli_epi64::<47>(acc));
    let mixed = _mm512_xor_si512(mixed, load(key(SCRAMBLE_SECRET)));
    let low = _mm512_mul_epu32(mixed, prime);
    let high = _mm512_mul_epu32(_mm512_srli_epi64::<32>(mixed), prime);
    _mm512_add_epi64(low, _mm512_slli_epi64::<32>(high))
}
