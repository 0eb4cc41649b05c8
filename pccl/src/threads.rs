//! Threads of this library: named, with small stacks.

use crate::{Error, Reason};
use std::thread::JoinHandle;

/// Stack of our threads.
pub(crate) const STACK_BYTES: usize = 256 << 10;

/// Starts one of our threads.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(run)
        .map_err(|error| Error::System(Reason::system(format_args!("cannot start thread {name}"), error)))
}
