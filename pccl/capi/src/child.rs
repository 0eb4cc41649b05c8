//! Whether this process was forked from one that uses the library: then no call is possible in it.

use std::sync::atomic::{AtomicBool, Ordering};

/// This process was forked from one that had communicators or masters.
static CHILD: AtomicBool = AtomicBool::new(false);

/// Whether no call is possible in this process.
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// From now on no call is possible in this process.
pub(crate) fn begins() {
    CHILD.store(true, Ordering::Relaxed);
}
