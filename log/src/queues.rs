//! The two queues of this process, and its end.

use crate::{
    queue::Queue,
    system::{self, OfProcess},
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// How long the end of the process waits for its last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The queue of the logger and that of standard output: neither waits for the other.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) records: Queue,
    pub(crate) output: Queue,
}

static QUEUES: OfProcess<Queues> = OfProcess::new();

/// The queues of this process.
pub(crate) fn queues() -> &'static Queues {
    static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);
    let make = || Queues { records: Queue::new("pccl-log"), output: Queue::new("pccl-print") };
    let (queues, is_new) = QUEUES.get_or_make(make);
    // A child has the handlers of its parent.
    if is_new && !HAS_HANDLERS.swap(true, Ordering::Relaxed) {
        system::in_children(in_child);
        system::at_exit(at_exit);
    }
    queues
}

/// The lines that wait are the parent's, and so are the threads that would write it.
extern "C" fn in_child() {
    QUEUES.forget();
}

extern "C" fn at_exit() {
    let Some(queues) = QUEUES.get() else { return };
    let deadline = Instant::now() + LAST_LINES;
    for queue in [&queues.records, &queues.output] {
        queue.close(deadline, LAST_LINES);
    }
}
