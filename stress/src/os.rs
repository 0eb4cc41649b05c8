//! Services that only the operating system has: signals, the shared clock, and the end of a child with its parent. The
//! only unsafe code of the program; each call is to the C library with plain numbers or memory of this stack frame.

use std::{io, mem::MaybeUninit};

/// Microseconds on the monotonic clock, which all processes of a machine share.
pub(crate) fn monotonic_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live, initialised memory that the call may write to. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Has the kernel kill this process when the thread that started it ends, also if this process is stopped then.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: this option takes one number and touches no memory of this process.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

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

    /// Waits for one of them.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut signal = 0;
        // SAFETY: both pointers are to live, initialised memory.
        let error = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }
}
