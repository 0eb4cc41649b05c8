//! The child after a `fork`: it has no descriptor of ours, and its calls say so.
//!
//! A child has one thread, whatever the parent had, and a copy of each descriptor. As long as it kept those of our
//! connections, nobody would notice the death of the parent.

use crate::{
    child,
    communicator::COMMUNICATORS,
    logging,
    masters::MASTERS,
    members::{ITERATIONS, STORES},
    savings::SAVINGS,
};
use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

/// Whether there were any when the fork began.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Prepares the process for forks, once.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tinysockets::ledger::enable();
        // SAFETY: the handlers are functions of this library, which is never unloaded: it has threads and handlers.
        let result = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(in_child)) };
        if result != 0 {
            log::error!("a forked process will keep the connections of this one: error {result}");
        }
    });
}

extern "C" fn prepare() {
    let members = ITERATIONS.is_empty() && STORES.is_empty();
    let idle = COMMUNICATORS.is_empty() && MASTERS.is_empty() && members && SAVINGS.is_empty();
    IN_USE.store(!idle, Ordering::Relaxed);
    tinysockets::ledger::freeze();
    logging::freeze();
}

extern "C" fn parent() {
    logging::thaw();
    tinysockets::ledger::thaw();
}

extern "C" fn in_child() {
    if IN_USE.load(Ordering::Relaxed) {
        child::begins();
        logging::end_in_child();
        tinysockets::ledger::close_in_child();
    } else {
        logging::thaw();
        tinysockets::ledger::thaw();
    }
}
