//! State hashes: tree XXH3-128, with a key tree BLAKE3, simplehash; checksums: XXH3-64 and CRC-32C.
//!
//! * [`tree`] is the default: 128 bits, bound to order and length, at the speed of memory, the same value for
//!   every thread count, CPU level and alignment. Its first level gives one digest per MiB, so that two holders of
//!   almost equal data find out cheaply which MiBs differ.
//! * [`mod@simplehash`] is the 32-bit hash of PCCL v1, bit-exact, kept for peers that speak that protocol.
//! * [`Checksum`] is for frames of data: 32 bits of XXH3-64, piece by piece.
//! * [`mod@crc32c`] is CRC-32C (Castagnoli), for headers and records.
//!
//! None of them resists a peer that forges data on purpose: they detect faults, not attacks. [`Tree::Keyed`] does: the
//! same tree of BLAKE3 with a key.
//!
//! Modules from top to bottom, each of which uses only those below it: `kind`, `tree`, `xxh3`, `checksum`,
//! `simplehash`, `kernels`, `crc32c`, `digest`, `level`, `simplehash_block`, `xxh3_leaf`.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "parts that only the x86-64 kernels use"))]

mod checksum;
pub mod crc32c;
mod digest;
mod kernels;
mod kind;
mod level;
pub mod simplehash;
mod simplehash_block;
pub mod tree;
mod xxh3;
mod xxh3_leaf;

pub use checksum::Checksum;
pub use crc32c::{crc32c, crc32c_append};
pub use digest::Digest128;
pub use kind::HashKind;
pub use level::SimdLevel;
pub use simplehash::simplehash;
pub use tree::{
    Tree, TreeHasher, TreeKey, differing_mebibytes, level1_digests, root_from_level1, tree_hash,
    tree_hash_parallel,
};
