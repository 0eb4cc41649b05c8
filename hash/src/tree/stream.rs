//! The tree hash of data that arrives in pieces.

use super::{ARITY, LEAF_BYTES, finish, fold};
use crate::{Digest128, SimdLevel, xxh3};

/// Computes [`super::tree_hash`] of data that arrives in pieces of any size, in about 4 KiB of memory plus up to 255
/// digests per level of the tree.
#[derive(Clone)]
pub struct TreeHasher {
    /// The start of a leaf that is not full yet: the first `filled` bytes count.
    leaf: Box<[u8; LEAF_BYTES]>,
    filled: usize,
    /// Per level the digests that have no parent yet, always fewer than [`ARITY`].
    open: Vec<Vec<Digest128>>,
    length_bytes: u64,
    simd: SimdLevel,
}

impl TreeHasher {
    /// A hasher that has seen no data.
    pub fn new() -> Self {
        Self {
            leaf: Box::new([0; LEAF_BYTES]),
            filled: 0,
            open: vec![Vec::new(); 2],
            length_bytes: 0,
            simd: SimdLevel::best(),
        }
    }

    /// Takes in the next bytes.
    pub fn update(&mut self, mut data: &[u8]) {
        self.length_bytes += data.len() as u64;
        if self.filled > 0 {
            let taken = data.len().min(LEAF_BYTES - self.filled);
            self.leaf[self.filled..self.filled + taken].copy_from_slice(&data[..taken]);
            self.filled += taken;
            data = &data[taken..];
            if self.filled < LEAF_BYTES {
                return;
            }
            self.push(0, xxh3::node(&self.leaf[..], 0));
            self.filled = 0;
        }
        let (mut leaves, tail) = data.as_chunks::<LEAF_BYTES>();
        while !leaves.is_empty() {
            // As many as complete the open node of level 1.
            let (now, later) = leaves.split_at(leaves.len().min(ARITY - self.open[0].len()));
            let mut digests = [[0u8; Digest128::BYTES]; ARITY];
            xxh3::full_leaves(self.simd, now, &mut digests);
            for digest in &digests[..now.len()] {
                self.push(0, Digest128(*digest));
            }
            leaves = later;
        }
        self.leaf[..tail.len()].copy_from_slice(tail);
        self.filled = tail.len();
    }

    /// Appends a digest to a level and closes every node that this fills.
    fn push(&mut self, mut level: usize, mut digest: Digest128) {
        loop {
            if self.open.len() == level {
                self.open.push(Vec::new());
            }
            let siblings = &mut self.open[level];
            siblings.push(digest);
            if siblings.len() < ARITY {
                return;
            }
            level += 1;
            digest = fold(siblings, level as u64);
            siblings.clear();
        }
    }

    /// The hash of all bytes so far. The hasher can go on afterwards.
    pub fn finish(&self) -> Digest128 {
        let mut last = self.clone();
        if self.filled > 0 || self.length_bytes == 0 {
            last.push(0, xxh3::node(&self.leaf[..self.filled], 0));
        }
        last.close()
    }

    /// Closes the nodes that are not full, from the bottom up.
    fn close(self) -> Digest128 {
        let mut carried: Option<Digest128> = None;
        let top = self.open.len() - 1;
        for (level, mut siblings) in self.open.into_iter().enumerate() {
            siblings.extend(carried.take());
            let alone_at_top = level == top && level > 0 && siblings.len() == 1;
            carried = match siblings.as_slice() {
                [] => None,
                [only] if alone_at_top => Some(*only),
                siblings => Some(fold(siblings, level as u64 + 1)),
            };
        }
        let root = carried.expect("close() is called with at least one leaf");
        finish(root, self.length_bytes)
    }
}

impl Default for TreeHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for TreeHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeHasher").field("length_bytes", &self.length_bytes).finish_non_exhaustive()
    }
}
