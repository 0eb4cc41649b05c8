//! Sleep while a word has a given value, and wake the sleeper: the one thing that [`Parker`](crate::Parker) asks of
//! a platform.

mod fallback;
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(loom)))]
mod linux;

use std::time::Instant;

use crate::primitive::AtomicU32;

pub use fallback::Fallback;
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(loom)))]
pub use linux::Linux;

/// The platform that [`Parker::new`](crate::Parker::new) takes: the Linux futex.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(loom)))]
pub type Native = Linux;
/// The platform that [`Parker::new`](crate::Parker::new) takes: the portable one.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64", not(loom))))]
pub type Native = Fallback;

/// Why [`Futex::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The word differed from the expected value, a wake came, or there was no reason at all (a spurious wake, a
    /// signal). The caller looks at the word again.
    Returned,
    /// The deadline passed. The word may nevertheless have changed in the meantime.
    TimedOut,
}

/// A platform's way to sleep on a word.
///
/// The contract: `wait` compares the word with `expected` and goes to sleep as one atomic step with regard to
/// `wake_one`. Thus, if another thread changes the word and then calls `wake_one`, a waiter either sees the changed
/// word and does not sleep, or it sleeps and that call wakes it. Neither operation orders any other memory access;
/// the caller's atomic operations on the word have to.
///
/// One value of the implementing type serves one word and one waiting thread.
pub trait Futex: Default + Send + Sync + 'static {
    /// Sleeps while `word` is `expected`, until a wake, at most until `deadline` (`None`: without limit). May
    /// return early without a reason.
    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wait;

    /// Wakes the thread that sleeps on `word`, if there is one. The caller has changed the word before.
    fn wake_one(&self, word: &AtomicU32);
}
