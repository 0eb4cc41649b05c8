//! How many digests the levels of a tree have, for two holders who look for what differs from the top down.

use super::{ARITY, level1_count};

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
