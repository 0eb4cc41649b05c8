//! How far a fetch of shared state is, for the caller and for the log.

use parking_lot::Mutex;
use pccl_protocol::FetchProgress;
use std::time::{Duration, Instant};

/// How far a sync is that fetches shared state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncProgress {
    /// Bytes that have arrived, are verified and in their places.
    pub done_bytes: u64,
    /// Bytes that differ, as far as that is known: it grows while digests are compared.
    pub total_bytes: u64,
    /// Bytes per second, over the last seconds.
    pub rate: u64,
    /// Sources that give at the moment.
    pub sources: usize,
}

impl SyncProgress {
    /// How long the rest takes at this rate; `None` while nothing moves.
    pub fn time_left(&self) -> Option<Duration> {
        self.told().time_left()
    }

    /// As the master is told.
    pub(crate) fn told(&self) -> FetchProgress {
        let Self { done_bytes, total_bytes, rate, sources } = *self;
        FetchProgress { done_bytes, total_bytes, rate, sources: u16::try_from(sources).unwrap_or(u16::MAX) }
    }
}

impl std::fmt::Display for SyncProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.told().fmt(f)
    }
}

/// The fetch that is under way in a session, if there is one, for those who look from another thread than the caller's.
#[derive(Debug, Default)]
pub(crate) struct Underway(Mutex<Option<Tally>>);

#[derive(Debug)]
struct Tally {
    began: Instant,
    /// The rate is that between looks.
    seen: SyncProgress,
    meter: Meter,
}

impl Underway {
    /// So much of a fetch that began at `began` is done.
    pub(super) fn note(&self, began: Instant, (done_bytes, total_bytes): (u64, u64), sources: usize) {
        let seen = SyncProgress { done_bytes, total_bytes, rate: 0, sources };
        let mut tally = self.0.lock();
        match &mut *tally {
            Some(tally) if tally.began == began => tally.seen = seen,
            _ => *tally = Some(Tally { began, seen, meter: Meter::default() }),
        }
    }

    /// Nothing is fetched any more.
    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }

    /// How far it is.
    pub(crate) fn look(&self, now: Instant) -> Option<SyncProgress> {
        let mut tally = self.0.lock();
        let Tally { began, seen, meter } = tally.as_mut()?;
        let rate = meter.rate(now.saturating_duration_since(*began), seen.done_bytes);
        Some(SyncProgress { rate, ..*seen })
    }
}

/// Measures the rate from what has been done at several moments.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Moments and bytes, the oldest first.
    seen: std::collections::VecDeque<(Duration, u64)>,
}

impl Meter {
    /// How many moments are kept; one is taken per second.
    const KEPT: usize = 5;

    /// The rate at `now`, when `done` bytes are there.
    pub(crate) fn rate(&mut self, now: Duration, done: u64) -> u64 {
        let (since, before) = self.seen.front().copied().unwrap_or((Duration::ZERO, 0));
        self.seen.push_back((now, done));
        if self.seen.len() > Self::KEPT {
            self.seen.pop_front();
        }
        let time = now.saturating_sub(since).as_secs_f64();
        if time <= 0.0 { 0 } else { (done.saturating_sub(before) as f64 / time) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let mut meter = Meter::default();
        let second = Duration::from_secs(1);
        assert_eq!(meter.rate(Duration::ZERO, 0), 0);
        assert_eq!(meter.rate(second, 1000), 1000);
        let rates: Vec<u64> = (2..10).map(|i| meter.rate(second * i, 1000 + u64::from(i) * 10)).collect();
        assert!(rates[0] > 500 && rates.is_sorted_by(|a, b| a >= b), "{rates:?}");
        assert_eq!(rates.last(), Some(&10));
    }

    #[test]
    fn a_line_says_what_is_left() {
        let mut progress =
            SyncProgress { done_bytes: 1 << 20, total_bytes: 9 << 20, rate: 2 << 20, sources: 3 };
        assert_eq!(progress.time_left(), Some(Duration::from_secs(4)));
        assert_eq!(progress.to_string(), "1.0 of 9.0 MiB from 3 sources, 2.0 MiB/s, 4 s left");
        progress.rate = 0;
        assert_eq!(progress.to_string(), "1.0 of 9.0 MiB from 3 sources, 0.0 MiB/s, nothing moves");
    }

    #[test]
    fn who_looks_sees_the_fetch_that_is_under_way_and_no_other() {
        let (underway, began) = (Underway::default(), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(underway.look(began), None);
        underway.note(began, (0, 9000), 1);
        underway.note(began, (4000, 9000), 2);
        let seen = SyncProgress { done_bytes: 4000, total_bytes: 9000, rate: 2000, sources: 2 };
        assert_eq!(underway.look(after(2)), Some(seen));
        underway.note(began, (7000, 9000), 2);
        assert_eq!(underway.look(after(3)).map(|seen| (seen.done_bytes, seen.rate)), Some((7000, 3000)));
        underway.end();
        assert_eq!(underway.look(after(4)), None);
        // Another one begins at nothing.
        underway.note(after(5), (50, 100), 1);
        assert_eq!(underway.look(after(6)).map(|seen| seen.rate), Some(50));
    }
}
