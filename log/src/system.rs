//! Things that the standard library has no words for: a value of this process alone, its end, its forks, and a thread
//! that no signal interrupts.

use std::{
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// A value that a forked child does not inherit, made when it is needed first. It is never freed.
#[derive(Debug)]
pub(crate) struct OfProcess<T>(AtomicPtr<T>);

impl<T: Sync> OfProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value, if there is one.
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: it is null or comes from `get_or_make`, where it was leaked: it is valid for ever, and never changed
        // but through shared references, which `T: Sync` allows on all threads.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The value; whether it was made now.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> (&'static T, bool) {
        if let Some(value) = self.get() {
            return (value, false);
        }
        let fresh = Box::leak(Box::new(make()));
        match self.0.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => (fresh, true),
            // Another thread was faster; so small a leak, once, is no harm.
            Err(_) => (self.get().unwrap_or(fresh), false),
        }
    }

    /// In a forked child: there is no value.
    pub(crate) fn forget(&self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Has a function called when the process ends by `exit` or by the return of `main`.
pub(crate) fn at_exit(run: extern "C" fn()) {
    // SAFETY: a function of this library, which is never unloaded: it has threads and handlers. If there is no room for
    // it, the last lines may be lost.
    unsafe { libc::atexit(run) };
}

/// Has a function called in each child of a fork.
pub(crate) fn in_children(run: extern "C" fn()) {
    // SAFETY: as for `at_exit`; the functions that are called need nothing of other threads.
    unsafe { libc::pthread_atfork(None, None, Some(run)) };
}

/// Starts a thread that no signal interrupts, or kills by SIGPIPE: they are for the threads of the program.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    let faults =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set that the others are given; `before` is only written. Faults of the
    // thread itself stay: their handlers want to hear of them.
    let is_blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in faults {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    if is_blocked {
        // SAFETY: the call above succeeded and so wrote the mask of this thread to `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    spawned.is_ok()
}
