//! The token: its three states and the orderings between them. No operating system here; sleeping is the business of
//! [`Futex`].
//!
//! # States
//!
//! | state | meaning | `unpark` makes it | `park` makes it |
//! |---|---|---|---|
//! | `EMPTY` | no token, nobody sleeps | `NOTIFIED` | `PARKED`, then sleeps |
//! | `NOTIFIED` | a token lies ready | `NOTIFIED` (still one token) | `EMPTY`, returns |
//! | `PARKED` | no token, the owner sleeps or is about to | `NOTIFIED`, wakes the owner | (it is the one that parks) |
//!
//! # Orderings
//!
//! `unpark` is a `swap` with release ordering. `park` consumes the token by a read-modify-write with acquire ordering
//! (`fetch_sub`, `compare_exchange` or `swap`), which synchronises with the `swap` that it reads from. So what
//! happened before that `unpark` happens before what follows the `park`.
//!
//! Both sides must read and write in one step:
//!
//! - `unpark` may find `NOTIFIED`, put there by another `unpark`. Were it to look first and then leave the word alone,
//!   the park would synchronise with that other `unpark` only, and what this thread had published might stay
//!   invisible to an owner that will not be woken again. The `swap` writes in any case. The park then reads either
//!   from this very `swap`, or from a later one; the later one, itself a read-modify-write, continues the release
//!   sequence of this one, so the park synchronises with both.
//! - `park` may not load `NOTIFIED` and then store `EMPTY`: an `unpark` between the two would be overwritten, and its
//!   swap would have found `NOTIFIED` and woken nobody. A read-modify-write reads the last value in the word's
//!   modification order, so no `unpark` comes between.
//!
//! That no wake is lost while the owner falls asleep is the contract of [`Futex::wait`]: it sleeps only while the word
//! is `PARKED`, and `unpark` changes the word before it wakes.

use std::{
    cell::Cell,
    fmt,
    marker::PhantomData,
    time::{Duration, Instant},
};

use crate::{
    futex::{Futex, Native, Wait},
    primitive::{Arc, AtomicU32, Ordering},
};

const EMPTY: u32 = 0;
const NOTIFIED: u32 = 1;
/// One below `EMPTY`, so that one `fetch_sub` does both "consume the token" and "announce the sleep".
const PARKED: u32 = EMPTY.wrapping_sub(1);

struct Inner<F> {
    state: AtomicU32,
    futex: F,
}

/// The side that sleeps. One thread at a time owns it (it may move to another thread, but cannot be shared).
pub struct Parker<F: Futex = Native> {
    inner: Arc<Inner<F>>,
    /// A parker has one waiter: `Cell` takes `Sync` away and leaves `Send`.
    not_sync: PhantomData<Cell<()>>,
}

/// The side that wakes. Cheap to clone; any thread may use it, also after the parker is gone.
pub struct Unparker<F: Futex = Native> {
    inner: Arc<Inner<F>>,
}

impl Parker {
    /// A parker without a token, on the platform's own way to sleep.
    #[must_use]
    pub fn new() -> Self {
        Self::with_futex(Native::default())
    }
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Futex> Parker<F> {
    /// A parker without a token that sleeps by means of `futex`.
    #[must_use]
    pub fn with_futex(futex: F) -> Self {
        let inner = Arc::new(Inner { state: AtomicU32::new(EMPTY), futex });
        Self { inner, not_sync: PhantomData }
    }

    /// A handle that wakes this parker.
    #[must_use]
    pub fn unparker(&self) -> Unparker<F> {
        Unparker { inner: Arc::clone(&self.inner) }
    }

    /// Sleeps until there is a token, and consumes it. Returns at once if it lies there already.
    pub fn park(&self) {
        let woken = self.inner.park(None);
        debug_assert!(woken, "a wait without a deadline cannot time out");
    }

    /// Sleeps until there is a token, at most until `deadline`. Returns `true` if a token was consumed, `false` if the
    /// deadline passed without one. A token that lies ready is consumed even if the deadline has already passed.
    pub fn park_until(&self, deadline: Instant) -> bool {
        self.inner.park(Some(deadline))
    }

    /// Like [`park_until`](Self::park_until), with the deadline `timeout` from now. A timeout too long for the clock
    /// to name is no limit at all.
    pub fn park_timeout(&self, timeout: Duration) -> bool {
        self.inner.park(Instant::now().checked_add(timeout))
    }
}

impl<F: Futex> Unparker<F> {
    /// Leaves a token, and wakes the owner of the parker if it sleeps. All that this thread did before is visible to
    /// the owner after the park that consumes the token. Never blocks for the owner; without a sleeper it makes no
    /// system call.
    pub fn unpark(&self) {
        self.inner.unpark();
    }
}

impl<F: Futex> Inner<F> {
    /// `true`: consumed a token; `false`: the deadline passed.
    fn park(&self, deadline: Option<Instant>) -> bool {
        // NOTIFIED -> EMPTY, or EMPTY -> PARKED. It cannot be PARKED: only the owner makes it so, and undoes it before
        // it leaves this function. Acquire pairs with the release of the `swap` in `unpark`.
        if self.state.fetch_sub(1, Ordering::Acquire) == NOTIFIED {
            return true;
        }
        loop {
            let wait = self.futex.wait(&self.state, PARKED, deadline);
            if wait == Wait::TimedOut {
                // From PARKED or NOTIFIED to EMPTY in one step: a token that came with the deadline is taken, not lost.
                return self.state.swap(EMPTY, Ordering::Acquire) == NOTIFIED;
            }
            // On failure it is still PARKED: the wake was spurious, nothing was published, nothing is to be acquired.
            let consumed =
                self.state.compare_exchange(NOTIFIED, EMPTY, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if consumed {
                return true;
            }
        }
    }

    fn unpark(&self) {
        // A swap in any case, also over NOTIFIED: see "Orderings" in the module's documentation.
        if self.state.swap(NOTIFIED, Ordering::Release) == PARKED {
            // The owner may be gone by now; `self` is shared with the unparker that calls, hence alive.
            self.futex.wake_one(&self.state);
        }
    }
}

// By hand, because a derive would ask for `F: Clone`.
impl<F: Futex> Clone for Unparker<F> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<F: Futex> fmt::Debug for Parker<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parker").finish_non_exhaustive()
    }
}

impl<F: Futex> fmt::Debug for Unparker<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unparker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parked_is_one_below_empty_and_empty_one_below_notified() {
        assert_eq!(NOTIFIED - 1, EMPTY);
        assert_eq!(EMPTY.wrapping_sub(1), PARKED);
    }

    #[test]
    fn send_and_sync_are_as_documented() {
        fn send<T: Send>() {}
        fn sync<T: Sync>() {}
        send::<Parker>();
        send::<Unparker>();
        sync::<Unparker>();
    }
}
