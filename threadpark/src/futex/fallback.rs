//! The portable platform: a mutex and a condition variable.

use std::time::Instant;

use super::{Futex, Wait};
use crate::primitive::{self, AtomicU32, Condvar, Mutex, Ordering};

/// A [`Futex`] for every target that has a standard library.
///
/// The mutex makes "compare, then sleep" one step: the waiter compares while it holds the mutex and gives it up only
/// as it falls asleep; the waker passes through the mutex between its change of the word and its notification. So the
/// notification cannot fall into the gap between the waiter's comparison and its sleep.
#[derive(Debug, Default)]
pub struct Fallback {
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Futex for Fallback {
    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wait {
        let guard = primitive::lock(&self.mutex);
        // Relaxed: a waker that we must not miss passed through the mutex after its change, so either the mutex
        // orders that change before this load, or the waker has yet to take the mutex and then finds us asleep.
        if word.load(Ordering::Relaxed) != expected {
            return Wait::Returned;
        }
        match deadline {
            None => drop(primitive::wait(&self.condvar, guard)),
            Some(deadline) => {
                let (guard, timed_out) = primitive::wait_until(&self.condvar, guard, deadline);
                drop(guard);
                if timed_out {
                    return Wait::TimedOut;
                }
            }
        }
        Wait::Returned
    }

    fn wake_one(&self, _word: &AtomicU32) {
        drop(primitive::lock(&self.mutex));
        self.condvar.notify_one();
    }
}
