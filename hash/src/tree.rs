//! The state hash: an arity-256 tree of XXH3-128.
//!
//! * Level 0: the data in leaves of 4096 bytes; the last leaf may be short, and empty data is one empty leaf.
//!   Digest of a leaf: XXH3-128 with seed 0.
//! * Level k+1: the digests (16 bytes each, little-endian) of up to 256 neighbours of level k, concatenated. Digest:
//!   XXH3-128 with seed k+1. Level 1 is always made; then levels are added until one digest is left.
//! * Root: XXH3-128 with seed [`ROOT_SEED`] of that digest, the data's length in bytes (u64, little-endian) and
//!   [`FORMAT_TAG`] (u32, little-endian).
//!
//! A full node of every level is 4096 bytes, and a digest of level 1 covers exactly 1 MiB of data: that is the unit
//! of work for threads and of repair between two holders. Type and shape of the data do not enter.
//!
//! [`Tree`] chooses between this one and one of the same form with a key.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::xxh3;
use crate::xxh3_leaf::LEAF_BYTES;
use crate::{Digest128, SimdLevel};

mod keyed;
mod levels;
mod stream;

pub use keyed::{Tree, TreeKey};
pub use levels::{level_count, top_level};
pub use stream::TreeHasher;

/// Children of a full node.
pub const ARITY: usize = 256;
/// Bytes of data below one digest of level 1: 1 MiB.
pub const MEBIBYTE: usize = ARITY * LEAF_BYTES;
/// Seed of the root's XXH3-128: no level can have it.
pub const ROOT_SEED: u64 = u64::from_le_bytes(*b"PCCLroot");
/// Version of the tree's format, mixed into the root.
pub const FORMAT_TAG: u32 = 2;

/// Data per thread from which a further thread pays for being started.
const MEBIBYTES_PER_THREAD: usize = 4;

/// The hash of `data`, on the caller's thread.
pub fn tree_hash(data: &[u8]) -> Digest128 {
    tree_hash_at(SimdLevel::best(), data)
}

/// [`tree_hash`] with the kernels of `level`.
pub fn tree_hash_at(level: SimdLevel, data: &[u8]) -> Digest128 {
    let digests = mebibytes(data).map(|piece| mebibyte_digest_at(level, piece)).collect();
    root(digests, data.len() as u64)
}

/// [`tree_hash`] with up to `threads` threads, the caller's among them (0 counts as 1).
///
/// Threads are started for the call and end with it, at least 4 MiB of data for each. Where the system refuses to
/// start one, the others do the work.
pub fn tree_hash_parallel(data: &[u8], threads: usize) -> Digest128 {
    root(level1_digests_parallel(data, threads), data.len() as u64)
}

/// The digests of level 1, one per MiB of `data` (the last MiB may be short; empty data has one digest).
pub fn level1_digests(data: &[u8]) -> Vec<Digest128> {
    let level = SimdLevel::best();
    mebibytes(data).map(|piece| mebibyte_digest_at(level, piece)).collect()
}

/// [`level1_digests`] with up to `threads` threads, as in [`tree_hash_parallel`].
pub fn level1_digests_parallel(data: &[u8], threads: usize) -> Vec<Digest128> {
    Tree::Plain.level1_digests_parallel(data, threads)
}

/// The digest of each MiB of `data` by `hash`, with up to `threads` threads.
fn mebibyte_digests(data: &[u8], threads: usize, hash: impl Fn(&[u8]) -> Digest128 + Sync) -> Vec<Digest128> {
    let pieces: Vec<&[u8]> = mebibytes(data).collect();
    let helpers = threads.min(pieces.len() / MEBIBYTES_PER_THREAD).saturating_sub(1);
    if helpers == 0 {
        return pieces.into_iter().map(hash).collect();
    }
    let next = AtomicUsize::new(0);
    // Each thread takes the next MiB that nobody has taken: a thread that the system holds up delays only its own.
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(index) else { return done };
            done.push((index, hash(piece)));
        }
    };
    let mut digests = vec![Digest128::default(); pieces.len()];
    thread::scope(|scope| {
        let started: Vec<_> = (0..helpers)
            .map_while(|_| thread::Builder::new().name("pccl-hash".into()).spawn_scoped(scope, work).ok())
            .collect();
        let mut place =
            |done: Vec<(usize, Digest128)>| done.into_iter().for_each(|(i, digest)| digests[i] = digest);
        place(work());
        for helper in started {
            place(helper.join().expect("the hash of a slice has no way to panic"));
        }
    });
    digests
}

/// The digest of level 1 of one MiB of data. `piece` is a whole MiB, or the shorter end of the data; of a longer
/// piece only the first MiB counts.
pub fn mebibyte_digest(piece: &[u8]) -> Digest128 {
    mebibyte_digest_at(SimdLevel::best(), piece)
}

fn mebibyte_digest_at(level: SimdLevel, piece: &[u8]) -> Digest128 {
    let (leaves, tail) = piece[..piece.len().min(MEBIBYTE)].as_chunks::<LEAF_BYTES>();
    let mut digests = [[0u8; Digest128::BYTES]; ARITY];
    xxh3::full_leaves(level, leaves, &mut digests);
    let mut count = leaves.len();
    if !tail.is_empty() || leaves.is_empty() {
        digests[count] = xxh3::node(tail, 0).0;
        count += 1;
    }
    xxh3::node(digests[..count].as_flattened(), 1)
}

fn mebibytes(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    // Empty data still is one (empty) MiB.
    data.chunks(MEBIBYTE).chain(data.is_empty().then_some(data))
}

/// How many digests of level 1 belong to data of `length_bytes` bytes.
pub const fn level1_count(length_bytes: u64) -> u64 {
    let count = length_bytes.div_ceil(MEBIBYTE as u64);
    if count == 0 { 1 } else { count }
}

/// The hash of data of `length_bytes` bytes from its digests of level 1.
///
/// # Errors
/// When the number of digests does not fit the length.
pub fn root_from_level1(digests: &[Digest128], length_bytes: u64) -> Result<Digest128, Level1CountError> {
    Tree::Plain.root_from_level1(digests, length_bytes)
}

/// Folds at least one digest of level 1 to the root.
fn root(digests: Vec<Digest128>, length_bytes: u64) -> Digest128 {
    Tree::Plain.root(digests, length_bytes)
}

/// The digest of the node above `children` (at most [`ARITY`]), which is on level `level`.
fn fold(children: &[Digest128], level: u64) -> Digest128 {
    Tree::Plain.fold(children, level)
}

fn finish(top: Digest128, length_bytes: u64) -> Digest128 {
    Tree::Plain.finish(top, length_bytes)
}

/// The indices of the MiBs in which two lists of level 1 digests differ, rising. Where one list is longer, all that
/// the other lacks counts as different.
pub fn differing_mebibytes(a: &[Digest128], b: &[Digest128]) -> Vec<usize> {
    (0..a.len().max(b.len())).filter(|&i| a.get(i) != b.get(i)).collect()
}

/// A list of level 1 digests that cannot belong to data of the given length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level1CountError {
    /// Length of the data in bytes.
    pub length_bytes: u64,
    /// Digests that data of this length has.
    pub expected: u64,
    /// Digests in the list.
    pub found: usize,
}

impl fmt::Display for Level1CountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { length_bytes, expected, found } = self;
        write!(f, "{length_bytes} bytes have {expected} digests of one MiB each, the list has {found}")
    }
}

impl std::error::Error for Level1CountError {}
