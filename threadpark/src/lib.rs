//! Park one thread and wake it from others.
//!
//! **Purpose.** A thread that waits for "something happened" (a frame arrived, a queue got room, a request was
//! answered) and has its own place to look up what happened. It owns a [`Parker`]; a thread that makes something happen
//! first publishes it, then calls [`Unparker::unpark`]. A wake that comes before the park is kept as a token, so no
//! wake is lost whatever the interleaving; several wakes before one park are a single token, so the waker never blocks
//! and nothing is counted. Waking a thread that is not parked costs one atomic swap and no system call.
//!
//! **Limits.** A parker carries no data and no count: after a wake, look at the state that you wait for, and park again
//! if it is not there yet. It is not a condition variable for many waiters: exactly one thread parks on a parker. It
//! does not spin before it sleeps; callers who want that know best for how long.
//!
//! **Visibility after a wake.** All that happened before an `unpark` is visible after the `park` which consumes its
//! token; the module [`parker`] says which atomic operations make that so.
//!
//! On 64-bit Linux the sleeping is done by the futex system call; every other target takes the portable
//! [`Fallback`](futex::Fallback) over a mutex and a condition variable. Only Linux on x86-64 is built and tested.
//!
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//! let done = AtomicBool::new(false);
//! let parker = threadpark::Parker::new();
//! let unparker = parker.unparker();
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         done.store(true, Ordering::Relaxed);
//!         unparker.unpark();
//!     });
//!     while !done.load(Ordering::Relaxed) {
//!         parker.park();
//!     }
//! });
//! ```
//!
//! Modules from top to bottom, each of which uses only those below it: `parker`, `futex`, `primitive`.

#![deny(unsafe_code)]

pub mod futex;
pub mod parker;
pub mod primitive;

pub use parker::{Parker, Unparker};
