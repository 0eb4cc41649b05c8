//! Ending the calls of other threads.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Ends calls that wait, from any thread: they fail with [`Cancelled`](super::IterationError::Cancelled) within about a
/// turn of [`poll_interval`](super::IterationConfig::poll_interval), and so does every later one. Leaving is still
/// possible.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends them.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether that has happened.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
