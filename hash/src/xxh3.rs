//! XXH3-128 of the nodes of the tree.
//!
//! Source: XXH3 by Yann Collet, <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>. Everything but the
//! 4096-byte leaf with seed 0 is done by the twox-hash crate. The leaf is where all the time goes; it has
//! its own code here because its length is a constant: the block structure (3 full blocks of 16 stripes, then 15
//! stripes, then the last stripe) unrolls, and the instruction set is chosen once per run of leaves.

use twox_hash::XxHash3_128;

use crate::{Digest128, SimdLevel, kernels};

/// Bytes in a leaf and (256 digests) in a full inner node.
pub(crate) const LEAF_BYTES: usize = 4096;

/// Bytes that one accumulation step takes in.
pub(crate) const STRIPE_BYTES: usize = 64;
/// Stripes between two scrambles, with the default secret.
pub(crate) const STRIPES_PER_BLOCK: usize = 16;
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
const INITIAL_ACCUMULATORS: [u64; 8] =
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
const SECRET: [u8; 192] = [
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

/// XXH3-128 of `input` with `seed`.
pub(crate) fn node(input: &[u8], seed: u64) -> Digest128 {
    Digest128::from_u128(XxHash3_128::oneshot_with_seed(seed, input))
}

/// Writes XXH3-128 (seed 0) of each leaf to `out`, 16 bytes each. Stops at the shorter of the two.
pub(crate) fn full_leaves(level: SimdLevel, leaves: &[[u8; LEAF_BYTES]], out: &mut [[u8; 16]]) {
    if kernels::full_leaves(level, leaves, out) {
        return;
    }
    for (leaf, digest) in leaves.iter().zip(out) {
        // Where this crate has no kernels twox-hash may have one (NEON).
        *digest = if cfg!(target_arch = "x86_64") { portable_leaf(leaf) } else { node(leaf, 0).0 };
    }
}

fn portable_leaf(leaf: &[u8; LEAF_BYTES]) -> [u8; 16] {
    let mut acc = INITIAL_ACCUMULATORS;
    let (stripes, _) = leaf.as_chunks::<STRIPE_BYTES>();
    for (i, stripe) in stripes[..stripes.len() - 1].iter().enumerate() {
        accumulate(&mut acc, stripe, i % STRIPES_PER_BLOCK * 8);
        if i % STRIPES_PER_BLOCK == STRIPES_PER_BLOCK - 1 {
            for (lane, value) in acc.iter_mut().enumerate() {
                *value = (*value ^ (*value >> 47) ^ secret_word(SCRAMBLE_SECRET + 8 * lane))
                    .wrapping_mul(PRIME32_1);
            }
        }
    }
    accumulate(&mut acc, &stripes[stripes.len() - 1], LAST_STRIPE_SECRET);
    merge(&acc)
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

#[cfg(test)]
mod tests {
    use super::{LEAF_BYTES, full_leaves, node};
    use crate::SimdLevel;

    /// Length of LCG data, digests with seed 0 and 3. From the reference implementation, xxHash 0.8.4.
    #[rustfmt::skip]
    const UPSTREAM: &[(usize, u128, u128)] = &[
        (0, 0x99aa06d3014798d86001c324468d497f, 0xea4dc78b2c6f4269d3433e0549a42266),
        (1, 0xa1c60ca7997b5e676ba4ff892565222e, 0xf000365e931fdc571f243c9f443cc599),
        (3, 0xbc143e96fe57b702fa2dd743a48399b0, 0x974163d38322b9d651698435fc762bfc),
        (16, 0x5bef75c11ea09a84d21284325d403f78, 0x16d7636bab24468a311cca8e343460ca),
        (128, 0x39f2c387e1570e107cff47c2f2baea1b, 0x76ab4e8c88fd01efed6161678f008440),
        (240, 0x7a18f94cd9a18efdb561136f9e210985, 0xfb6010345af9f95397b0d57aca5e7bda),
        (241, 0x2360aaf9d95158b3e68b3e794bfbae00, 0x6bede361072bf4cacf53ed841a07d26d),
        (1024, 0xeb9806512a1e1d6b4067af1bba408a5b, 0xa6bb3020373527e007188a88824bc3bf),
        (4095, 0x3d374dd0c2a1d831acc4f3e1fe2f03b3, 0x1163eece542a03a7b867b47dd3ff17b4),
        (4096, 0xcc77df2fb56f30011dcec57ae2286777, 0xe9516cf9df53df7cc294e7d78e0e3914),
        (4097, 0xf84ffdb5b50abfce3a9f5554fe830138, 0x406e9064c2051efba66473e2d6cf6e08),
    ];

    #[test]
    fn equals_upstream() {
        let mut state = 42u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state as u8
        };
        let data: Vec<u8> = (0..4097).map(|_| next()).collect();
        for &(len, unseeded, seeded) in UPSTREAM {
            assert_eq!(node(&data[..len], 0).to_u128(), unseeded, "{len} bytes");
            assert_eq!(node(&data[..len], 3).to_u128(), seeded, "{len} bytes");
        }
    }

    #[test]
    fn leaf_kernels_equal_the_general_code() {
        let mut state = 7u64;
        let mut bytes = vec![0u8; 9 * LEAF_BYTES];
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
        bytes[3 * LEAF_BYTES..4 * LEAF_BYTES].fill(0);
        bytes[4 * LEAF_BYTES..5 * LEAF_BYTES].fill(0xff);
        let (leaves, _) = bytes.as_chunks::<LEAF_BYTES>();
        let expected: Vec<[u8; 16]> = leaves.iter().map(|leaf| node(leaf, 0).0).collect();
        for level in SimdLevel::ALL {
            let mut digests = vec![[0; 16]; leaves.len()];
            full_leaves(level, leaves, &mut digests);
            assert_eq!(digests, expected, "{level:?}");
        }
    }
}
