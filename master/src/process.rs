//! Settings of the whole process: which signals end it, and how many files it may open. The only unsafe
//! code of the program; each call is to the C library with memory of this stack frame.

use std::{io, mem::MaybeUninit};

/// SIGINT and SIGTERM, blocked in all threads and waited for in one.
pub(crate) struct EndSignals {
    set: libc::sigset_t,
}

impl EndSignals {
    /// Blocks both signals in this thread and in those that it will start.
    pub(crate) fn block() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set before anything reads it; it cannot fail for a valid pointer, and
        // `sigaddset` cannot for signals that exist.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            set.assume_init()
        };
        // SAFETY: `set` is initialised and lives through the call; a null pointer means that the old mask is not
        // wanted.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if error == 0 { Ok(Self { set }) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    /// Waits for one of them; returns its name.
    pub(crate) fn wait(&self) -> io::Result<&'static str> {
        let mut signal = 0;
        // SAFETY: both pointers are to live, initialised memory.
        let error = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
        match (error, signal) {
            (0, libc::SIGINT) => Ok("SIGINT"),
            (0, _) => Ok("SIGTERM"),
            (error, _) => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Raises the number of open files to what the system allows without asking: every client is one, and the usual
/// default of 1024 is less than a full run.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live, initialised memory that the call may write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0
        || limit.rlim_cur >= limit.rlim_max
    {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is live, initialised memory that the call reads.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        log::warn!("cannot raise the number of open files: {}", io::Error::last_os_error());
    }
}
