//! Rundown protection: who may still touch a piece of memory, and when is the last one out.
//!
//! One atomic word holds the number of passes and, in its top bit, whether the gate is closed. A pass is taken by a
//! compare-exchange that fails once the bit is set, so the count only falls after that; it reaches zero once, and
//! stays there.
//!
//! # Orderings
//!
//! - Dropping a pass is a `fetch_sub` with release ordering; [`Gate::wait_drained`] loads with acquire ordering. The
//!   decrements form one release sequence, so everything done under *any* pass happens before the return of
//!   `wait_drained`.
//! - A waiter puts its unparker into the list, under the lock, and looks at the word *afterwards*. The thread that
//!   makes the word "closed and empty" takes the list, under the lock, afterwards. One of the two comes second at the
//!   lock and sees what the other did, so no wake is lost.

use std::{fmt, time::Instant};

use threadpark::{Parker, Unparker};

use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};

/// The gate is closed; the bits below count passes.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Admits threads until it is closed, then tells when the last one has left.
///
/// Entering and leaving an open gate is one atomic operation each. A gate cannot be opened again.
pub struct Gate {
    state: AtomicUsize,
    waiters: Mutex<Vec<Unparker>>,
}

/// The right to be inside a [`Gate`]; leaving is dropping it.
#[must_use = "the pass is given back as soon as it is dropped"]
pub struct Pass<'a> {
    gate: &'a Gate,
}

impl Gate {
    /// An open gate with nobody inside.
    #[must_use]
    pub fn new() -> Self {
        Self { state: AtomicUsize::new(0), waiters: Mutex::new(Vec::new()) }
    }

    /// Enters. `None` once the gate is closed. Never blocks.
    pub fn enter(&self) -> Option<Pass<'_>> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & CLOSED != 0 {
                return None;
            }
            // A pass orders nothing at its beginning: what it protects was published together with the gate.
            let entered =
                self.state.compare_exchange_weak(state, state + 1, Ordering::Relaxed, Ordering::Relaxed);
            match entered {
                Ok(_) => return Some(Pass { gate: self }),
                Err(now) => state = now,
            }
        }
    }

    /// Lets nobody in from now on. Does not wait for those inside. Closing twice is harmless.
    pub fn close(&self) {
        if self.state.fetch_or(CLOSED, Ordering::AcqRel) == 0 {
            self.wake_waiters();
        }
    }

    /// Whether the gate is closed.
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Waits until the gate is closed and the last pass is dropped; all that was done under passes is visible then.
    /// Returns `false` if `deadline` came first. It does not close the gate itself, and a thread that holds a pass must
    /// not call it, for it would wait for itself.
    pub fn wait_drained(&self, deadline: Option<Instant>) -> bool {
        if self.is_drained() {
            return true;
        }
        let parker = Parker::new();
        lock(&self.waiters).push(parker.unparker());
        // A waiter that times out leaves its unparker behind; it is harmless, and dropped with the list.
        while !self.is_drained() {
            match deadline {
                None => parker.park(),
                Some(deadline) => {
                    if !parker.park_until(deadline) {
                        return self.is_drained();
                    }
                }
            }
        }
        true
    }

    fn is_drained(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    fn wake_waiters(&self) {
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        for waiter in waiters {
            waiter.unpark();
        }
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.gate.state.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.gate.wake_waiters();
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        f.debug_struct("Gate")
            .field("closed", &(state & CLOSED != 0))
            .field("inside", &(state & !CLOSED))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::{Arc, mpsc},
        thread,
        time::Duration,
    };

    use super::*;

    #[test]
    fn an_open_gate_admits_many_and_a_closed_one_nobody() {
        let gate = Gate::new();
        let first = gate.enter();
        let second = gate.enter();
        assert!(first.is_some() && second.is_some());
        gate.close();
        assert!(gate.enter().is_none() && gate.is_closed());
        drop(first);
        assert!(!gate.wait_drained(Some(Instant::now())), "one is still inside");
        drop(second);
        assert!(gate.wait_drained(Some(Instant::now())));
    }

    #[test]
    fn an_open_and_empty_gate_is_not_drained() {
        let gate = Gate::new();
        assert!(!gate.wait_drained(Some(Instant::now() + Duration::from_millis(1))));
        gate.close();
        gate.close();
        assert!(gate.wait_drained(None));
    }

    #[test]
    fn several_waiters_are_woken_by_the_last_to_leave() {
        let gate = Arc::new(Gate::new());
        let pass = gate.enter().expect("open");
        let (drained, all_drained) = mpsc::channel();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let (gate, drained) = (Arc::clone(&gate), drained.clone());
                thread::spawn(move || drained.send(gate.wait_drained(None)).expect("test listens"))
            })
            .collect();
        gate.close();
        assert!(all_drained.try_recv().is_err(), "nobody returns while a pass is out");
        drop(pass);
        for waiter in waiters {
            waiter.join().expect("no panic");
        }
        assert_eq!(all_drained.try_iter().collect::<Vec<_>>(), [true; 3]);
    }
}
