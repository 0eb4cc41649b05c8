//! The synchronisation primitives that this crate builds on: those of `std`, or under `--cfg loom` those of the
//! model checker, which runs every interleaving of a test instead of one.

use std::time::Instant;

#[cfg(loom)]
pub use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};
#[cfg(not(loom))]
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};

use std::sync::PoisonError;

/// Waits on `condvar` until a notification, a spurious wake, or `deadline`. Returns the guard, held again, and
/// whether the deadline passed.
#[cfg(not(loom))]
pub(crate) fn wait_until<'a>(
    condvar: &Condvar,
    guard: MutexGuard<'a, ()>,
    deadline: Instant,
) -> (MutexGuard<'a, ()>, bool) {
    let left = deadline.saturating_duration_since(Instant::now());
    let (guard, result) = condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    (guard, result.timed_out())
}

/// Under the model checker there is no time: a wait with a deadline ends at once, as timed out. This is the
/// interleaving worth checking, a wake that races with the end of the wait.
#[cfg(loom)]
pub(crate) fn wait_until<'a>(
    _condvar: &Condvar,
    guard: MutexGuard<'a, ()>,
    _deadline: Instant,
) -> (MutexGuard<'a, ()>, bool) {
    (guard, true)
}

/// Locks `mutex`; a poisoned one too, since it protects no data here.
pub(crate) fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar` until a notification or a spurious wake.
pub(crate) fn wait<'a>(condvar: &Condvar, guard: MutexGuard<'a, ()>) -> MutexGuard<'a, ()> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
