//! The inner levels of the tree, for two holders who look for what differs from the top down.

use super::{ARITY, Level1CountError, finish, fold, level1_count};
use crate::Digest128;

/// How many digests data of `length_bytes` bytes has on `level`, which is at least 1.
pub const fn level_count(length_bytes: u64, level: u32) -> u64 {
    let mut count = level1_count(length_bytes);
    let mut above = 1;
    while above < level && count > 1 {
        count = count.div_ceil(ARITY as u64);
        above += 1;
    }
    count
}

/// The lowest level with at most [`ARITY`] digests: the root follows from it in one step.
pub const fn top_level(length_bytes: u64) -> u32 {
    let mut level = 1;
    while level_count(length_bytes, level) > ARITY as u64 {
        level += 1;
    }
    level
}

/// The digest on `level` above `children`, which are all of one node: 1 to [`ARITY`] digests of the level below.
///
/// # Panics
/// If there are more children than a node has.
pub fn parent_digest(children: &[Digest128], level: u32) -> Digest128 {
    fold(children, level.into())
}

/// All digests on `level` above those of the level below.
pub fn parent_digests(children: &[Digest128], level: u32) -> Vec<Digest128> {
    children.chunks(ARITY).map(|node| fold(node, level.into())).collect()
}

/// The hash of data of `length_bytes` bytes from its digests on [`top_level`].
///
/// # Errors
/// When the number of digests does not fit the length.
pub fn root_from_top(digests: &[Digest128], length_bytes: u64) -> Result<Digest128, Level1CountError> {
    let level = top_level(length_bytes);
    let expected = level_count(length_bytes, level);
    match digests {
        _ if digests.len() as u64 != expected => {
            Err(Level1CountError { length_bytes, expected, found: digests.len() })
        }
        [only] => Ok(finish(*only, length_bytes)),
        several => Ok(finish(fold(several, u64::from(level) + 1), length_bytes)),
    }
}
