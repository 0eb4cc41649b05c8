//! A ceiling for the rate at which a link's connections send, from the rate that the path has shown.
//!
//! BBR ("BBR: Congestion-Based Congestion Control", Cardwell et al., ACM Queue 2016) sends at 2.9 times the rate that
//! it has seen until three round trips in a row, in which it always had enough to send, brought no more. A link of a
//! ring hardly ever has: it sends what comes from the rank before. So its connections stay in that state for their
//! life, and together send bursts that overflow the queue of the path. A packet that is lost then can cost one of them
//! its window for seconds, with half a frame that all ranks wait for. The ceiling takes the bursts away: it is a little
//! above the best rate at which bytes of the whole link were delivered.
//!
//! It never keeps a link from a rate that the path has: as soon as that comes near the ceiling, the ceiling is lifted,
//! and found anew. A path that gets slower is left to the congestion control, as it is without a ceiling. A connection
//! that carried more than an equal part when the link was at its best may carry that.
//!
//! No input or output here.

use std::time::{Duration, Instant};

/// Rates are measured over a round trip, or this, if that is longer.
const WINDOW_MIN: Duration = Duration::from_millis(50);
/// A window in which less was delivered does not count: a rate that low need not be bounded, and a bound that low would
/// hold the first frames of a larger operation for longer than it takes to lift it.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
/// A rate that is higher than the best one by this factor says that the best one has not been found.
const GROWTH: f64 = 1.25;
/// After this number of windows with traffic and no such growth it has. A connection needs up to ten round trips to
/// find the rate of a path, and grows in nearly all of them.
const STEADY_WINDOWS: u32 = 8;
/// The ceiling, in parts of the best rate.
const HEADROOM: f64 = 1.25;
/// From which part of the ceiling on a rate is near it. The best rate itself is `1 / HEADROOM` of it, and so is not.
const NEAR: f64 = 0.9;
/// A ceiling that is higher by less than this factor is not worth a change.
const CHANGE_MIN: f64 = 1.02;

/// Without a ceiling.
pub(super) const NONE: u64 = u64::MAX;

/// See the module's documentation. Rates are bytes per second.
#[derive(Debug, Default)]
pub(super) struct Ceiling {
    /// The window that began last.
    window: Option<Window>,
    /// Of the whole link.
    best: f64,
    /// Of each connection when the link was at its best.
    parts: Vec<f64>,
    /// Windows with traffic since the best rate grew.
    steady: u32,
    /// Of the whole link.
    ceiling: Option<f64>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    length: Duration,
    /// Bytes that each connection had delivered when it began.
    delivered_bytes: Vec<u64>,
}

impl Ceiling {
    /// Whether the window is over.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let is_over = |window: &Window| now.saturating_duration_since(window.since) >= window.length;
        self.window.as_ref().is_none_or(is_over)
    }

    /// Takes in how many bytes each connection has delivered until `now`. Returns the new ceiling of each, in bytes per
    /// second, if that has changed; [`NONE`] if there is none any more.
    pub(super) fn note(
        &mut self,
        now: Instant,
        delivered_bytes: Vec<u64>,
        round_trip: Duration,
    ) -> Option<Vec<u64>> {
        let next = Window { since: now, length: round_trip.max(WINDOW_MIN), delivered_bytes };
        let over = self.window.replace(next)?;
        let elapsed = now.saturating_duration_since(over.since);
        // There was nothing to send for a while, or nothing could be sent: that tells no rate.
        if elapsed > over.length * 2 || elapsed.is_zero() {
            return None;
        }
        let delivered = self.window.iter().flat_map(|window| &window.delivered_bytes);
        let bytes: Vec<u64> =
            delivered.zip(&over.delivered_bytes).map(|(now, before)| now.saturating_sub(*before)).collect();
        if bytes.iter().sum::<u64>() < WINDOW_BYTES_MIN {
            return None;
        }
        self.take(bytes.iter().map(|bytes| *bytes as f64 / elapsed.as_secs_f64()).collect())
    }

    /// Takes in the rates of a window.
    fn take(&mut self, parts: Vec<f64>) -> Option<Vec<u64>> {
        let rate: f64 = parts.iter().sum();
        let connections = parts.len();
        if rate > GROWTH * self.best {
            self.steady = 0;
        } else if rate > self.best / 2.0 {
            self.steady += 1;
        }
        let is_near = self.ceiling.is_some_and(|ceiling| rate >= NEAR * ceiling);
        if rate > self.best || is_near {
            (self.best, self.parts) = (rate, parts);
        }
        if is_near {
            (self.steady, self.ceiling) = (0, None);
            return Some(vec![NONE; connections]);
        }
        let wanted = HEADROOM * self.best;
        let is_new = self.ceiling.is_none_or(|ceiling| wanted > CHANGE_MIN * ceiling);
        if self.steady < STEADY_WINDOWS || !is_new {
            return None;
        }
        self.ceiling = Some(wanted);
        let equal = wanted / connections as f64;
        Some(self.parts.iter().map(|part| equal.max(HEADROOM * part) as u64).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(100);

    /// A link with two connections, and how long it has been there.
    struct Link {
        ceiling: Ceiling,
        now: Instant,
        delivered: [u64; 2],
    }

    impl Link {
        fn new() -> Self {
            let mut link = Self { ceiling: Ceiling::default(), now: Instant::now(), delivered: [0; 2] };
            assert!(link.ceiling.is_due(link.now));
            assert_eq!(link.pass(Duration::ZERO, [0, 0]), None);
            link
        }

        /// This time passes with these bytes.
        fn pass(&mut self, time: Duration, bytes: [u64; 2]) -> Option<Vec<u64>> {
            self.now += time;
            self.delivered = [0, 1].map(|at| self.delivered[at] + bytes[at]);
            self.ceiling.note(self.now, self.delivered.to_vec(), ROUND_TRIP)
        }

        /// One window at this rate of the link, in bytes per second.
        fn window(&mut self, rate: u64) -> Option<Vec<u64>> {
            assert!(!self.ceiling.is_due(self.now));
            assert!(self.ceiling.is_due(self.now + ROUND_TRIP));
            self.pass(ROUND_TRIP, [rate / 20; 2])
        }

        /// This number of windows passes; the last change of the ceiling.
        fn windows(&mut self, count: u32, rate: u64) -> Option<Vec<u64>> {
            (0..count).filter_map(|_| self.window(rate)).last()
        }
    }

    /// This ceiling, in equal parts.
    fn equal(ceiling: u64) -> Option<Vec<u64>> {
        Some(vec![ceiling / 2; 2])
    }

    #[test]
    fn a_rate_that_does_not_grow_gets_a_ceiling_and_one_that_does_gets_none() {
        let mut link = Link::new();
        for doublings in 0..10 {
            assert_eq!(link.window(100_000 << doublings), None, "it grows");
        }
        assert_eq!(link.windows(STEADY_WINDOWS - 1, 60_000_000), None);
        assert_eq!(link.window(60_000_000), equal(75_000_000));
        assert_eq!(link.windows(20, 60_000_000), None, "nothing has changed");
        assert_eq!(link.window(64_000_000), equal(80_000_000));
        assert_eq!(link.windows(20, 20_000_000), None, "a slower path is no matter of the ceiling");
    }

    #[test]
    fn a_path_that_gets_faster_lifts_the_ceiling() {
        let mut link = Link::new();
        assert_eq!(link.windows(20, 16_000_000), equal(20_000_000));
        assert_eq!(link.window(18_000_000), Some(vec![NONE; 2]));
        assert_eq!(link.window(40_000_000), None);
        assert_eq!(link.windows(STEADY_WINDOWS, 80_000_000), None, "the first of these grew");
        assert_eq!(link.window(80_000_000), equal(100_000_000));
    }

    #[test]
    fn a_connection_that_carries_most_keeps_that() {
        let mut link = Link::new();
        let changes = (0..20).filter_map(|_| link.pass(ROUND_TRIP, [7_000_000, 1_000_000]));
        assert_eq!(changes.last(), Some(vec![87_500_000, 50_000_000]));
    }

    #[test]
    fn pauses_and_little_traffic_tell_no_rate() {
        let mut link = Link::new();
        assert_eq!(link.windows(4, 16_000_000), None);
        for _ in 0..50 {
            assert_eq!(link.pass(ROUND_TRIP * 3, [8_000_000; 2]), None, "a window with a pause");
            assert_eq!(link.window(9_000_000), None, "less than a window has to have");
        }
        assert_eq!(link.windows(20, 16_000_000), equal(20_000_000));
    }
}
