//! XXH3 of long data, as [`crate::xxh3`] explains: constants, portable code, and what the kernels share.

/// Bytes in a leaf and (256 digests) in a full inner node.
pub(crate) const LEAF_BYTES: usize = 4096;
/// Bytes that one accumulation step takes in.
pub(crate) const STRIPE_BYTES: usize = 64;
/// Stripes between two scrambles, with the default secret.
pub(crate) const STRIPES_PER_BLOCK: usize = 16;
/// Bytes of those.
pub(crate) const BLOCK_BYTES: usize = STRIPES_PER_BLOCK * STRIPE_BYTES;
/// Full blocks of a leaf that are followed by a scramble.
pub(crate) const SCRAMBLED_BLOCKS: usize = 3;
/// Where in the secret the last stripe's key starts.
pub(crate) const LAST_STRIPE_SECRET: usize = 121;
/// Where in the secret the scramble's key starts.
pub(crate) const SCRAMBLE_SECRET: usize = 128;
const MERGE_SECRET_LOW: usize = 11;
const MERGE_SECRET_HIGH: usize = 117;

pub(crate) const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const PRIME_MX1: u64 = 0x1656_6791_9E37_79F9;

/// The accumulators before the first stripe.
pub(crate) const INITIAL_ACCUMULATORS: [u64; 8] =
    [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];

/// [`INITIAL_ACCUMULATORS`] as they lie in the memory of a little-endian machine.
pub(crate) const INITIAL_BYTES: [u8; STRIPE_BYTES] = {
    let mut bytes = [0; STRIPE_BYTES];
    let mut i = 0;
    while i < STRIPE_BYTES {
        bytes[i] = INITIAL_ACCUMULATORS[i / 8].to_le_bytes()[i % 8];
        i += 1;
    }
    bytes
};

/// The default secret of XXH3 ("kSecret").
#[rustfmt::skip]
pub(crate) const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// The digest of a leaf with seed 0.
pub(crate) fn portable_leaf(leaf: &[u8; LEAF_BYTES]) -> [u8; 16] {
    let mut acc = INITIAL_ACCUMULATORS;
    let (blocks, _) = leaf.as_chunks::<BLOCK_BYTES>();
    portable_blocks(&mut acc, &blocks[..SCRAMBLED_BLOCKS]);
    let (stripes, _) = blocks[SCRAMBLED_BLOCKS].as_chunks::<STRIPE_BYTES>();
    last_stripes(&mut acc, &stripes[..STRIPES_PER_BLOCK - 1], &stripes[STRIPES_PER_BLOCK - 1]);
    merge(&acc)
}

/// Takes whole blocks into the accumulators, each with its scramble.
pub(crate) fn portable_blocks(acc: &mut [u64; 8], blocks: &[[u8; BLOCK_BYTES]]) {
    for block in blocks {
        for (i, stripe) in block.as_chunks::<STRIPE_BYTES>().0.iter().enumerate() {
            accumulate(acc, stripe, 8 * i);
        }
        for (lane, value) in acc.iter_mut().enumerate() {
            let keyed = *value ^ (*value >> 47) ^ secret_word(SCRAMBLE_SECRET + 8 * lane);
            *value = keyed.wrapping_mul(PRIME32_1);
        }
    }
}

/// XXH3-64 (seed 0) of long data: all but its last block, which is not empty, is in the accumulators. `last` are the
/// last bytes of all.
pub(crate) fn end_of_data(
    mut acc: [u64; 8],
    block: &[u8],
    last: &[u8; STRIPE_BYTES],
    length_bytes: u64,
) -> u64 {
    let (stripes, _) = block[..block.len() - 1].as_chunks::<STRIPE_BYTES>();
    last_stripes(&mut acc, stripes, last);
    merge_half(&acc, length_bytes.wrapping_mul(PRIME64_1), MERGE_SECRET_LOW)
}

fn last_stripes(acc: &mut [u64; 8], stripes: &[[u8; STRIPE_BYTES]], last: &[u8; STRIPE_BYTES]) {
    for (i, stripe) in stripes.iter().enumerate() {
        accumulate(acc, stripe, 8 * i);
    }
    accumulate(acc, last, LAST_STRIPE_SECRET);
}

#[inline]
fn accumulate(acc: &mut [u64; 8], stripe: &[u8; STRIPE_BYTES], secret_at: usize) {
    let (words, _) = stripe.as_chunks::<8>();
    for lane in 0..8 {
        let value = u64::from_le_bytes(words[lane]);
        let keyed = value ^ secret_word(secret_at + 8 * lane);
        acc[lane ^ 1] = acc[lane ^ 1].wrapping_add(value);
        acc[lane] = acc[lane].wrapping_add((keyed & 0xffff_ffff).wrapping_mul(keyed >> 32));
    }
}

/// The 64 bytes of the secret that start at `at`.
#[inline]
pub(crate) fn key(at: usize) -> &'static [u8; STRIPE_BYTES] {
    SECRET[at..].first_chunk().expect("all callers stay 64 bytes before the end of the secret")
}

#[inline]
fn secret_word(at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&SECRET[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// The end of XXH3-128 for a leaf: both halves of the digest from the accumulators.
#[inline]
pub(crate) fn merge(acc: &[u64; 8]) -> [u8; 16] {
    let length = LEAF_BYTES as u64;
    let low = merge_half(acc, length.wrapping_mul(PRIME64_1), MERGE_SECRET_LOW);
    let high = merge_half(acc, !length.wrapping_mul(PRIME64_2), MERGE_SECRET_HIGH);
    ((u128::from(high) << 64) | u128::from(low)).to_le_bytes()
}

#[inline]
fn merge_half(acc: &[u64; 8], start: u64, secret_at: usize) -> u64 {
    let mut sum = start;
    for i in 0..4 {
        let a = acc[2 * i] ^ secret_word(secret_at + 16 * i);
        let b = acc[2 * i + 1] ^ secret_word(secret_at + 16 * i + 8);
        let product = u128::from(a) * u128::from(b);
        sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    sum ^= sum >> 37;
    sum = sum.wrapping_mul(PRIME_MX1);
    sum ^ (sum >> 32)
}
