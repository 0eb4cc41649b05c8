//! Threads of this library: named, with small stacks.

use std::{fmt, io, thread::JoinHandle};

/// Stack of our threads.
pub(crate) const STACK_BYTES: usize = 256 << 10;

/// The system gave no thread.
#[derive(Debug)]
pub(crate) struct NoThread {
    name: String,
    pub(crate) error: io::Error,
}

impl NoThread {
    /// The action that was tried.
    pub(crate) fn tried(&self) -> String {
        format!("cannot start thread {}", self.name)
    }
}

impl fmt::Display for NoThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tried(), self.error)
    }
}

/// Starts one of our threads.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, NoThread> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    thread.spawn(run).map_err(|error| NoThread { name: name.to_owned(), error })
}
