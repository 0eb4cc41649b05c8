//! Threads of this crate: named, with small stacks.

use std::{io, thread};

/// Stack of a socket thread. Nothing here recurses or keeps buffers on the stack.
pub(crate) const STACK_BYTES: usize = 256 * 1024;

/// Starts a thread; its `name` is what tools show (Linux cuts it to 15 bytes).
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    // A thread name may not contain a zero byte.
    let name = name.replace('\0', "?");
    thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(body)
}
