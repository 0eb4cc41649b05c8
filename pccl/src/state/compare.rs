//! The differences between a tensor here and the elected one: pure parts of the walk down the tree of digests.
//!
//! A peer that fetches asks for lists of digests from the top down. Each list is checked against the digest above it,
//! the highest against the elected one, so that nothing is believed that does not lead to what was voted for. Where a
//! digest differs from the own one, the walk goes on below it, down to single MiBs.

use pccl_hash::{
    Digest128, Tree,
    tree::{self, ARITY, MEBIBYTE},
};
use pccl_protocol::{DigestList, StatePart};
use std::ops::Range;

/// The digests of a tensor, level by level.
#[derive(Debug)]
pub(crate) struct Levels {
    tree: Tree,
    bytes: u64,
    /// Level 1 first, up to the level from which the root follows.
    levels: Vec<Vec<Digest128>>,
}

impl Levels {
    /// Hashes `content`.
    pub(crate) fn of(tree: &Tree, content: &[u8], threads: usize) -> Self {
        Self::above(tree.clone(), content.len() as u64, tree.level1_digests_parallel(content, threads))
    }

    /// By which tree.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Those of the same tensor after MiBs with these numbers were replaced, which have these digests now.
    pub(crate) fn renewed(&self, mebibytes: impl IntoIterator<Item = (u64, Digest128)>) -> Self {
        let mut lowest = self.mebibytes().to_vec();
        for (number, new) in mebibytes {
            if let Some(digest) = usize::try_from(number).ok().and_then(|at| lowest.get_mut(at)) {
                *digest = new;
            }
        }
        Self::above(self.tree.clone(), self.bytes, lowest)
    }

    /// The MiBs in which two tensors of the same length differ; all of them if their digests are by different trees.
    pub(crate) fn differing(&self, other: &Self) -> Vec<u64> {
        let pairs = (0..).zip(self.mebibytes().iter().zip(other.mebibytes()));
        pairs.filter(|(_, (own, theirs))| own != theirs).map(|(number, _)| number).collect()
    }

    /// All levels above the digests of the MiBs.
    pub(crate) fn above(tree: Tree, bytes: u64, lowest: Vec<Digest128>) -> Self {
        let mut levels = vec![lowest];
        for level in 2..=tree::top_level(bytes) {
            let above = levels.last().map_or(Vec::new(), |below| tree.parent_digests(below, level));
            levels.push(above);
        }
        Self { tree, bytes, levels }
    }

    /// The digest of the whole.
    pub(crate) fn root(&self) -> Digest128 {
        let top = self.levels.last().map_or(&[][..], Vec::as_slice);
        self.tree.root_from_top(top, self.bytes).unwrap_or_default()
    }

    /// The digests of the MiBs, in their order.
    pub(crate) fn mebibytes(&self) -> &[Digest128] {
        self.levels.first().map_or(&[], Vec::as_slice)
    }

    fn children(&self, list: DigestList) -> Option<&[Digest128]> {
        let level = self.levels.get(usize::from(list.level).checked_sub(1)?)?;
        let first = usize::try_from(list.parent).ok()?.checked_mul(ARITY)?;
        level.get(first..level.len().min(first.saturating_add(ARITY))).filter(|list| !list.is_empty())
    }

    /// The digests of a list, one behind the other; `None` if there is no such list.
    pub(crate) fn list(&self, list: DigestList) -> Option<Vec<u8>> {
        self.children(list).map(|digests| digests.iter().flat_map(|digest| *digest.as_bytes()).collect())
    }

    /// Where a MiB lies in the tensor; `None` if there is none with this number.
    pub(crate) fn mebibyte(&self, number: u64) -> Option<Range<usize>> {
        let start = number.checked_mul(MEBIBYTE as u64)?;
        if start >= self.bytes {
            return None;
        }
        let end = self.bytes.min(start + MEBIBYTE as u64);
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}

/// A part that is to be fetched, with the digest that it has to lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) part: StatePart,
    /// Digest of the node; `None` for the root of the tensor.
    above: Option<Digest128>,
}

/// A tensor on its way to the elected content.
#[derive(Debug)]
pub(crate) struct Comparison<'a> {
    own: &'a Levels,
    elected: Digest128,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(own: &'a Levels, elected: Digest128) -> Self {
        Self { own, elected }
    }

    /// The list that is asked for first.
    pub(crate) fn first(&self) -> Option<Wanted> {
        if self.own.root() == self.elected || self.own.bytes == 0 {
            return None;
        }
        let part = match tree::level1_count(self.own.bytes) {
            1 => StatePart::Mebibyte(0),
            _ => {
                let level = u8::try_from(self.own.levels.len()).unwrap_or(u8::MAX);
                StatePart::Digests(DigestList { level, parent: 0 })
            }
        };
        Some(Wanted { part, above: None })
    }

    /// How many bytes a part has.
    pub(crate) fn bytes(&self, part: StatePart) -> Option<usize> {
        match part {
            StatePart::Digests(list) => self.own.children(list).map(|it| it.len() * Digest128::BYTES),
            StatePart::Mebibyte(number) => self.own.mebibyte(number).map(|range| range.len()),
        }
    }

    /// Checks bytes that have arrived. A list of digests gives what has to be fetched below it; a MiB gives nothing.
    ///
    /// # Errors
    /// In words, if they do not lead to what was elected.
    pub(crate) fn check(&self, wanted: &Wanted, bytes: &[u8]) -> Result<Vec<Wanted>, String> {
        if self.bytes(wanted.part) != Some(bytes.len()) {
            return Err(format!("{} bytes for {:?}", bytes.len(), wanted.part));
        }
        match wanted.part {
            StatePart::Mebibyte(number) => {
                let found = self.own.tree.mebibyte_digest(bytes);
                let root = || self.own.tree.root_from_level1(&[found], self.own.bytes).unwrap_or_default();
                let (found, needed) = match wanted.above {
                    Some(needed) => (found, needed),
                    None => (root(), self.elected),
                };
                match found == needed {
                    true => Ok(Vec::new()),
                    false => Err(format!(
                        "MiB {number} arrived with hash {found}, {needed} leads to what was elected"
                    )),
                }
            }
            StatePart::Digests(list) => self.check_list(wanted, list, bytes),
        }
    }

    fn check_list(&self, wanted: &Wanted, list: DigestList, bytes: &[u8]) -> Result<Vec<Wanted>, String> {
        let digests: Vec<Digest128> = bytes.as_chunks().0.iter().copied().map(Digest128).collect();
        let tree = &self.own.tree;
        let leads = match wanted.above {
            Some(above) => tree.parent_digest(&digests, u32::from(list.level) + 1) == above,
            None => tree.root_from_top(&digests, self.own.bytes) == Ok(self.elected),
        };
        if !leads {
            return Err(format!(
                "digests of level {} below node {} do not lead to what was elected",
                list.level, list.parent
            ));
        }
        let own = self.own.children(list).unwrap_or_default();
        let first = list.parent * ARITY as u64;
        let below = |number: u64| match list.level {
            1 => StatePart::Mebibyte(number),
            level => StatePart::Digests(DigestList { level: level - 1, parent: number }),
        };
        let pairs = (first..).zip(digests.iter().zip(own));
        let differing = pairs.filter(|(_, (theirs, own))| theirs != own);
        Ok(differing
            .map(|(number, (theirs, _))| Wanted { part: below(number), above: Some(*theirs) })
            .collect())
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
