//! Since when a receiving thread has been at work on what has come.
//!
//! Meanwhile it takes nothing off its connection, which looks from the other end like a path on which nothing moves.
//! Only this end can tell the difference.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

thread_local! {
    /// That of the thread of a connection.
    static OWN: RefCell<Option<Arc<Work>>> = const { RefCell::new(None) };
}

/// Says that the work of this thread gets on, if it is one that receives and is at work: what it waits for has moved.
pub fn gets_on() {
    OWN.with_borrow(|own| own.iter().filter(|work| work.lasts().is_some()).for_each(|work| work.begin()));
}

/// The work of one thread.
pub(super) struct Work {
    made: Instant,
    /// When it began or last got on, in microseconds after `made`, and one more; 0: there is none.
    since: AtomicU64,
}

impl Work {
    pub(super) fn new() -> Self {
        Self { made: Instant::now(), since: AtomicU64::new(0) }
    }

    /// Makes it that of this thread.
    pub(super) fn attach(self: &Arc<Self>) {
        OWN.set(Some(Arc::clone(self)));
    }

    /// Does some.
    pub(super) fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        self.begin();
        let done = work();
        self.since.store(0, Ordering::Relaxed);
        done
    }

    fn begin(&self) {
        let now = u64::try_from(self.made.elapsed().as_micros()).unwrap_or(u64::MAX - 1);
        self.since.store(now + 1, Ordering::Relaxed);
    }

    /// For how long it has not got on; `None`: the thread waits for the connection.
    pub(super) fn lasts(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.made.elapsed().saturating_sub(Duration::from_micros(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_lasts_until_it_is_done_and_begins_anew_when_it_gets_on() {
        let work = Arc::new(Work::new());
        assert_eq!(work.lasts(), None);
        work.attach();
        gets_on();
        assert_eq!(work.lasts(), None, "there is none");
        let pass = || {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
        };
        work.during(|| {
            pass();
            let before = work.since.load(Ordering::Relaxed);
            assert!(work.lasts().is_some_and(|lasts| lasts >= Duration::from_millis(1)));
            gets_on();
            assert!(work.since.load(Ordering::Relaxed) > before);
        });
        assert_eq!(work.lasts(), None);
    }
}
