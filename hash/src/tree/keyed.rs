//! Which hash the nodes of a tree have: XXH3-128, or BLAKE3 with a key.
//!
//! Both trees have the same form. That with a key has no leaves of its own: a digest of level 1 is the BLAKE3 of the
//! MiB itself. Each node is the first 16 bytes of BLAKE3 in keyed mode of its bytes and the number of its level (u64,
//! little-endian), which for the root is [`ROOT_SEED`]. The number stands behind the bytes, so that no two inputs of
//! different levels are equal.
//!
//! An attacker that has the data and not the key can neither tell a digest nor look for two contents that have the same
//! one. An attacker that has the key needs 2^64 attempts for such a pair, and 2^128 for a second content to a given
//! digest.

use super::{ARITY, FORMAT_TAG, Level1CountError, ROOT_SEED, level_count, level1_count, top_level};
use super::{mebibyte_digest_at, mebibyte_digests};
use crate::{Digest128, SimdLevel, xxh3};
use std::{fmt, sync::Arc};

/// The key of a tree. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct TreeKey(Arc<[u8; 32]>);

impl fmt::Debug for TreeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TreeKey(not shown)")
    }
}

/// A tree of digests. Digests of two trees say nothing about each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tree {
    /// Of XXH3-128, at the speed of memory: the same for everybody, and easy to forge.
    #[default]
    Plain,
    /// Of BLAKE3 with a key: nobody without the key finds two contents with the same digest.
    Keyed(TreeKey),
}

impl Tree {
    /// That with this key.
    pub fn keyed(key: [u8; 32]) -> Self {
        Self::Keyed(TreeKey(Arc::new(key)))
    }

    /// The hash of `data`, with up to `threads` threads as in [`tree_hash_parallel`](super::tree_hash_parallel).
    pub fn hash(&self, data: &[u8], threads: usize) -> Digest128 {
        self.root(self.level1_digests_parallel(data, threads), data.len() as u64)
    }

    /// The digest of level 1 of one MiB of data. `piece` is a whole MiB, or the shorter end of the data; of a longer
    /// piece only the first MiB counts.
    pub fn mebibyte_digest(&self, piece: &[u8]) -> Digest128 {
        match self {
            Self::Plain => mebibyte_digest_at(SimdLevel::best(), piece),
            Self::Keyed(key) => node(key, &piece[..piece.len().min(super::MEBIBYTE)], 1),
        }
    }

    /// The digests of level 1, one per MiB of `data` (the last MiB may be short; empty data has one digest), with up to
    /// `threads` threads.
    pub fn level1_digests_parallel(&self, data: &[u8], threads: usize) -> Vec<Digest128> {
        match self {
            Self::Plain => {
                let level = SimdLevel::best();
                mebibyte_digests(data, threads, |piece| mebibyte_digest_at(level, piece))
            }
            Self::Keyed(_) => mebibyte_digests(data, threads, |piece| self.mebibyte_digest(piece)),
        }
    }

    /// The digest on `level` above `children`, which are all of one node: 1 to [`ARITY`] digests of the level below.
    ///
    /// # Panics
    /// If there are more children than a node has.
    pub fn parent_digest(&self, children: &[Digest128], level: u32) -> Digest128 {
        self.fold(children, level.into())
    }

    /// All digests on `level` above those of the level below.
    pub fn parent_digests(&self, children: &[Digest128], level: u32) -> Vec<Digest128> {
        children.chunks(ARITY).map(|node| self.fold(node, level.into())).collect()
    }

    /// The hash of data of `length_bytes` bytes from its digests on [`top_level`].
    ///
    /// # Errors
    /// When the number of digests does not fit the length.
    pub fn root_from_top(
        &self,
        digests: &[Digest128],
        length_bytes: u64,
    ) -> Result<Digest128, Level1CountError> {
        let level = top_level(length_bytes);
        let expected = level_count(length_bytes, level);
        match digests {
            _ if digests.len() as u64 != expected => {
                Err(Level1CountError { length_bytes, expected, found: digests.len() })
            }
            [only] => Ok(self.finish(*only, length_bytes)),
            several => Ok(self.finish(self.fold(several, u64::from(level) + 1), length_bytes)),
        }
    }

    /// The hash of data of `length_bytes` bytes from its digests of level 1.
    ///
    /// # Errors
    /// When the number of digests does not fit the length.
    pub fn root_from_level1(
        &self,
        digests: &[Digest128],
        length_bytes: u64,
    ) -> Result<Digest128, Level1CountError> {
        let expected = level1_count(length_bytes);
        if digests.len() as u64 != expected {
            return Err(Level1CountError { length_bytes, expected, found: digests.len() });
        }
        Ok(self.root(digests.to_vec(), length_bytes))
    }

    /// Folds at least one digest of level 1 to the root.
    pub(super) fn root(&self, mut digests: Vec<Digest128>, length_bytes: u64) -> Digest128 {
        let mut level = 1;
        while digests.len() > 1 {
            level += 1;
            digests = digests.chunks(ARITY).map(|children| self.fold(children, level)).collect();
        }
        self.finish(digests[0], length_bytes)
    }

    /// The digest of the node above `children` (at most [`ARITY`]), which is on level `level`.
    pub(super) fn fold(&self, children: &[Digest128], level: u64) -> Digest128 {
        let mut bytes = [0u8; ARITY * Digest128::BYTES];
        let used = children.len() * Digest128::BYTES;
        for (slot, child) in bytes.chunks_exact_mut(Digest128::BYTES).zip(children) {
            slot.copy_from_slice(child.as_bytes());
        }
        self.node(&bytes[..used], level)
    }

    pub(super) fn finish(&self, top: Digest128, length_bytes: u64) -> Digest128 {
        let mut bytes = [0u8; 28];
        bytes[..16].copy_from_slice(top.as_bytes());
        bytes[16..24].copy_from_slice(&length_bytes.to_le_bytes());
        bytes[24..].copy_from_slice(&FORMAT_TAG.to_le_bytes());
        self.node(&bytes, ROOT_SEED)
    }

    fn node(&self, bytes: &[u8], level: u64) -> Digest128 {
        match self {
            Self::Plain => xxh3::node(bytes, level),
            Self::Keyed(key) => node(key, bytes, level),
        }
    }
}

/// A node of the tree with a key.
fn node(key: &TreeKey, bytes: &[u8], level: u64) -> Digest128 {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(bytes);
    hasher.update(&level.to_le_bytes());
    let whole = *hasher.finalize().as_bytes();
    let mut short = [0; Digest128::BYTES];
    short.copy_from_slice(&whole[..Digest128::BYTES]);
    Digest128(short)
}
