//! XXH3-128 of the nodes of the tree.
//!
//! Source: XXH3 by Yann Collet, <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>. Everything but the
//! 4096-byte leaf with seed 0 is done by the twox-hash crate. The leaf is where all the time goes; it has
//! its own code here because its length is a constant: the block structure (3 full blocks of 16 stripes, then 15
//! stripes, then the last stripe) unrolls, and the instruction set is chosen once per run of leaves.

use twox_hash::XxHash3_128;

use crate::xxh3_leaf::{LEAF_BYTES, portable_leaf};
use crate::{Digest128, SimdLevel, kernels};

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

#[cfg(test)]
mod tests {
    use super::{full_leaves, node};
    use crate::{SimdLevel, xxh3_leaf::LEAF_BYTES};

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
