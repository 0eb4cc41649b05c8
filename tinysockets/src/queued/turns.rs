//! The turns of reading: the protocol between a reading thread, those that visit, and those that want one of them to
//! look up.
//!
//! There is one reader at a time: the thread that holds the turn. The reading thread reads while nobody visits. A
//! visitor says that it is there, wakes the reading thread from its wait in the kernel, if need be, and takes the turn.
//! The reading thread sees that there is a visitor and sleeps: for [`LINGER`], and if it finds the same visit then,
//! without a limit, until the visitor wakes it on leaving. After a visit nobody reads for [`LINGER`], because where
//! there was one visit the next is often close; a thread that needs it earlier calls [`Turns::recall`].
//!
//! Nothing here reads, sleeps or looks at a clock, so that the model checker can drive it: `tests/link_loom.rs`.
//!
//! # Why no wake is lost
//!
//! - A visitor that leaves asks *afterwards* whether somebody waits for the reading thread. A thread that begins to
//!   wait signs up first and calls [`Turns::recall`] afterwards. Both take the lock of the visits, so one of them comes
//!   second and sees what the other did.
//! - A visitor asks whether it is done after it took the turn, and after every wait in the kernel. A wake that comes
//!   before the wait stays in the waker and ends the wait at once. If it is the reading thread that swallows it, the
//!   visitor has not asked yet.
//! - The reading thread sleeps without a limit only if it has written so under the lock of the visits while the visitor
//!   was there; the visitor reads it under the same lock when it leaves.

use std::time::{Duration, Instant};

use threadpark::Unparker;

use crate::primitive::{Mutex, MutexGuard, lock, try_lock};

/// For how long after a visit the next one is awaited.
pub const LINGER: Duration = Duration::from_millis(5);

/// The means to end a wait in the kernel: the present one, or the next if there is none.
pub trait Wake {
    /// Ends the wait.
    fn wake(&self);
}

/// See the module's documentation. `R` is what reads, `None` after the end of the connection.
pub struct Turns<R, W> {
    turn: Mutex<Option<R>>,
    visits: Mutex<Visits>,
    waker: W,
    thread: Unparker,
}

/// The reader, for the thread that has the turn.
pub type Turn<'a, R> = MutexGuard<'a, Option<R>>;

#[derive(Default)]
struct Visits {
    /// A visitor reads, or is about to.
    present: bool,
    /// Counts visits.
    number: u64,
    /// The reading thread does not read before this.
    aside_until: Option<Instant>,
    /// The reading thread sleeps without a limit: the visitor wakes it when it goes.
    sound_asleep: bool,
}

/// The next step of the reading thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Reads.
    Read,
    /// Sleeps until then, or until somebody wakes it.
    SleepUntil(Instant),
    /// Sleeps until somebody wakes it.
    Sleep,
}

impl<R, W: Wake> Turns<R, W> {
    /// Turns of `reader`. `waker` ends a wait of the thread that reads, `thread` wakes the reading thread when it
    /// sleeps.
    pub fn new(reader: R, waker: W, thread: Unparker) -> Self {
        Self { turn: Mutex::new(Some(reader)), visits: Mutex::new(Visits::default()), waker, thread }
    }

    /// The waker that ends a wait of the present reader.
    pub fn waker(&self) -> &W {
        &self.waker
    }

    /// The next step of the reading thread. `visit_seen` is its memory between two calls: a visit that it finds twice
    /// is a long one.
    pub fn next(&self, visit_seen: &mut Option<u64>, now: Instant) -> Next {
        let mut visits = lock(&self.visits);
        if visits.present {
            visits.sound_asleep = *visit_seen == Some(visits.number);
            *visit_seen = Some(visits.number);
            return if visits.sound_asleep { Next::Sleep } else { Next::SleepUntil(now + LINGER) };
        }
        match visits.aside_until.filter(|until| *until > now) {
            Some(until) => Next::SleepUntil(until),
            None => Next::Read,
        }
    }

    /// The turn of the reading thread, after [`Next::Read`].
    pub fn take(&self) -> Turn<'_, R> {
        lock(&self.turn)
    }

    /// Begins a visit, and takes the turn for it. `None` if another visitor is there.
    pub fn begin_visit(&self) -> Option<Turn<'_, R>> {
        {
            let mut visits = lock(&self.visits);
            if visits.present {
                return None;
            }
            visits.present = true;
            visits.number += 1;
        }
        Some(try_lock(&self.turn).unwrap_or_else(|| {
            self.waker.wake();
            lock(&self.turn)
        }))
    }

    /// Ends a visit. `is_awaited` says whether somebody waits for what the reading thread reads.
    pub fn end_visit(&self, turn: Turn<'_, R>, now: Instant, is_awaited: impl FnOnce() -> bool) {
        drop(turn);
        let mut visits = lock(&self.visits);
        visits.present = false;
        // Asked after the visit is over: a thread that comes later finds that out, and recalls.
        let is_awaited = is_awaited();
        visits.aside_until = (!is_awaited).then(|| now + LINGER);
        if std::mem::take(&mut visits.sound_asleep) || is_awaited {
            self.thread.unpark();
        }
    }

    /// Has a visitor ask again whether it is done.
    pub fn interrupt(&self) {
        if lock(&self.visits).present {
            self.waker.wake();
        }
    }

    /// Has the reading thread read from now on, if there is no visitor.
    pub fn recall(&self) {
        let mut visits = lock(&self.visits);
        if visits.aside_until.take().is_some() && !visits.present {
            self.thread.unpark();
        }
    }

    /// The connection has ended: wakes the thread that reads, and the one that sleeps instead of reading.
    pub fn wake_all(&self) {
        lock(&self.visits).aside_until = None;
        self.thread.unpark();
        self.waker.wake();
    }

    /// Returns when nobody reads any more. Not on a thread that reads.
    pub fn wait_until_over(&self) {
        drop(lock(&self.turn));
    }
}
