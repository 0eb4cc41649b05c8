//! The undisturbed beginning of a run: peers are started one after the other, and at each world size it is measured how
//! many operations are completed.

use crate::{
    args::PeerRange,
    report::{Baseline, Done},
};
use std::time::Duration;

/// Longest and shortest time for all sizes together, and the shortest for one.
const TOTAL_US: (u64, u64) = (5_000_000, 60_000_000);
const SIZE_US_MIN: u64 = 500_000;
/// The time that is not measured after somebody has come: first steps are slower.
const SETTLE_US: u64 = 500_000;

/// The next task of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    Wait,
    Spawn,
    Done(Baseline),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not all are in yet.
    Growing,
    Settling {
        since_us: u64,
    },
    Measuring {
        since_us: u64,
        operations: u64,
    },
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    target: usize,
    last: usize,
    size_us: u64,
    phase: Phase,
    baseline: Baseline,
}

impl Measurement {
    /// A measurement of all sizes that a run of this length will use.
    pub(crate) fn new(peers: PeerRange, groups: usize, duration: Duration) -> Self {
        let duration_us = duration.as_micros() as u64;
        let total_us = (duration_us / 6).clamp(TOTAL_US.0, TOTAL_US.1).min(duration_us / 2);
        // Between a kill and the replacement there is one less than the smallest number.
        let first = (peers.min - 1).clamp(2, peers.max).max(2 * groups);
        let sizes = (peers.max + 1).saturating_sub(first).max(1) as u64;
        let size_us = (total_us / sizes).saturating_sub(SETTLE_US).max(SIZE_US_MIN);
        Self { target: first, last: peers.max, size_us, phase: Phase::Growing, baseline: Baseline::default() }
    }

    /// Takes in how many peers were started and are members, and how many operations were completed so far.
    pub(crate) fn next(&mut self, now_us: u64, started: usize, world: usize, operations: u64) -> Next {
        if started < self.target {
            return Next::Spawn;
        }
        if world != self.target {
            self.phase = Phase::Growing;
            return Next::Wait;
        }
        match self.phase {
            Phase::Growing => self.phase = Phase::Settling { since_us: now_us },
            Phase::Settling { since_us } if now_us >= since_us + SETTLE_US => {
                self.phase = Phase::Measuring { since_us: now_us, operations };
            }
            Phase::Measuring { since_us, operations: before } if now_us >= since_us + self.size_us => {
                let done = Done { us: now_us - since_us, operations: operations - before };
                self.baseline.sizes.insert(self.target, done);
                if self.target >= self.last {
                    return Next::Done(self.baseline.clone());
                }
                self.target += 1;
                self.phase = Phase::Growing;
            }
            Phase::Settling { .. } | Phase::Measuring { .. } => {}
        }
        Next::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a run in which a peer is a member after `join_us`, and the rate is 600 by world size.
    fn play(peers: PeerRange, seconds: u64, join_us: u64) -> (Baseline, u64) {
        let mut measurement = Measurement::new(peers, 1, Duration::from_secs(seconds));
        let (mut joins, mut operations) = (Vec::new(), 0.0);
        for now in (0..200_000_000).step_by(10_000) {
            let world = joins.iter().filter(|&&at| at <= now).count();
            if world > 1 {
                operations += 6.0 / world as f64;
            }
            match measurement.next(now, joins.len(), world, operations as u64) {
                Next::Wait => {}
                Next::Spawn => joins.push(now + join_us),
                Next::Done(baseline) => return (baseline, now),
            }
        }
        panic!("no end");
    }

    #[test]
    fn every_size_is_measured_in_its_share_of_the_time() {
        let (baseline, took_us) = play(PeerRange { min: 3, max: 6 }, 600, 300_000);
        assert_eq!(baseline.sizes.keys().copied().collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        for (&world, done) in &baseline.sizes {
            assert!((done.rate() - 600.0 / world as f64).abs() < 2.0, "{world}: {done:?}");
            assert!(done.us > 10_000_000);
        }
        assert!((55_000_000..65_000_000).contains(&took_us), "{took_us}");
    }

    #[test]
    fn short_runs_measure_shortly() {
        let (baseline, took_us) = play(PeerRange { min: 6, max: 6 }, 20, 300_000);
        assert_eq!(baseline.sizes.keys().copied().collect::<Vec<_>>(), [5, 6]);
        assert!((5_000_000..7_000_000).contains(&took_us), "{took_us}");
        assert!(play(PeerRange { min: 3, max: 3 }, 2, 100_000).1 < 4_000_000);
        assert_eq!(play(PeerRange { min: 2, max: 2 }, 60, 0).0.sizes.len(), 1);
    }

    #[test]
    fn a_size_that_is_lost_is_measured_anew() {
        let mut measurement = Measurement::new(PeerRange { min: 3, max: 3 }, 1, Duration::from_secs(60));
        measurement.target = 3;
        assert_eq!(measurement.next(0, 3, 3, 0), Next::Wait);
        measurement.next(SETTLE_US, 3, 3, 0);
        assert!(matches!(measurement.phase, Phase::Measuring { .. }));
        measurement.next(SETTLE_US + 1, 3, 2, 0);
        assert_eq!(measurement.phase, Phase::Growing);
    }
}
