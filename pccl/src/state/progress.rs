//! How far a fetch of shared state is, for the caller and for the log.

use std::time::Duration;

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
        let left = self.total_bytes.saturating_sub(self.done_bytes);
        (self.rate > 0).then(|| Duration::from_millis(left.saturating_mul(1000) / self.rate))
    }
}

impl std::fmt::Display for SyncProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (done, total, rate) = (mib(self.done_bytes), mib(self.total_bytes), mib(self.rate));
        write!(f, "{done:.1} of {total:.1} MiB from {} sources, {rate:.1} MiB/s", self.sources)?;
        match self.time_left() {
            Some(left) => write!(f, ", {:.0} s left", left.as_secs_f64().ceil()),
            None => write!(f, ", nothing moves"),
        }
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
}
