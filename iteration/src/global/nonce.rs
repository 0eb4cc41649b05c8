//! Numbers that nobody else uses: 64 random bits of this process, and a counter.

use std::{
    hash::{BuildHasher, RandomState},
    process,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

/// How many numbers one machine may use up.
const STRIDE: u64 = 1 << 20;

static PROCESS: LazyLock<u64> = LazyLock::new(|| {
    // The keys of the standard library's hasher are random; the rest is for machines without a source of chance.
    RandomState::new().hash_one((process::id(), SystemTime::now()))
});
static NEXT: AtomicU64 = AtomicU64::new(STRIDE);

/// The first of many numbers that are used nowhere else.
pub(super) fn next() -> u128 {
    // The child of a fork has the same random bits and the same counter.
    let process = *PROCESS ^ u64::from(process::id()).rotate_right(32);
    u128::from(process) << 64 | u128::from(NEXT.fetch_add(STRIDE, Ordering::Relaxed))
}
