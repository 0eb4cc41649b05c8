//! How much was done in comparison with an undisturbed run: the rate of operations at each world size is measured
//! first, then each stretch of time is held against the rate at its world size.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How far above all that was expected a measurement may lie and still be one.
const NOISE_PCT: f64 = 10.0;
/// The cost of fewer faults cannot be told from noise.
const FAULTS_MIN: u64 = 5;
/// For figures of which only noise is known: the run was too short, or the machine busy while the undisturbed rate was
/// measured.
const NOT_MEASURABLE: &str = "not measurable";

/// Work that was done at one world size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) us: u64,
    pub(crate) operations: u64,
}

impl Done {
    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 * 1e6 / self.us.max(1) as f64
    }
}

/// Undisturbed rates by world size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Baseline {
    pub(crate) sizes: BTreeMap<usize, Done>,
}

impl Baseline {
    /// Operations per second at this world size: nothing for one alone; for a size that was not measured, what the
    /// nearest one had. `None` if nothing was measured.
    pub(crate) fn rate(&self, world: usize) -> Option<f64> {
        let below = self.sizes.range(..=world).next_back();
        let above = self.sizes.range(world..).next();
        let nearest = match (below, above) {
            (Some(low), Some(high)) => Some(if world - low.0 <= high.0 - world { low } else { high }),
            (one, None) | (None, one) => one,
        };
        let (_, done) = nearest?;
        Some(if world < 2 { 0.0 } else { done.rate() })
    }

    /// The lowest rate of all world sizes that were measured, if anything was completed.
    pub(crate) fn lowest_rate(&self) -> Option<f64> {
        self.sizes.values().map(Done::rate).filter(|rate| *rate > 0.0).reduce(f64::min)
    }
}

/// Operations that were completed under faults, and those that would have been without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) operations: u64,
    pub(crate) expected: f64,
}

impl Kept {
    pub(crate) fn merge(&mut self, other: Self) {
        self.operations += other.operations;
        self.expected += other.expected;
    }

    /// In percent; `None` when nothing was expected.
    pub(crate) fn percent(&self) -> Option<f64> {
        (self.expected > 0.0).then(|| self.operations as f64 * 100.0 / self.expected)
    }

    /// For people. A figure above all that was expected says only that too little was measured.
    pub(crate) fn words(&self) -> String {
        match self.percent() {
            None => "not measured".to_owned(),
            Some(percent) if percent > 100.0 + NOISE_PCT => NOT_MEASURABLE.to_owned(),
            Some(percent) => format!("{percent:.1} %"),
        }
    }
}

/// The cost of faults of one kind: the undisturbed time that was missing from such a fault to the next one of any kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    pub(crate) faults: u64,
    pub(crate) lost_us: f64,
}

impl Cost {
    pub(crate) fn merge(&mut self, other: Self) {
        self.faults += other.faults;
        self.lost_us += other.lost_us;
    }

    pub(crate) fn per_fault_ms(&self) -> f64 {
        self.lost_us / 1000.0 / self.faults.max(1) as f64
    }

    /// For people. A cost below nothing, or of few faults, is none that was measured.
    pub(crate) fn words(&self) -> String {
        if self.faults < FAULTS_MIN || self.lost_us < 0.0 {
            return NOT_MEASURABLE.to_owned();
        }
        format!("{:.0} ms", self.per_fault_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_size_stands_in_for_one_that_was_not_measured() {
        let mut baseline = Baseline::default();
        assert_eq!(baseline.rate(3), None);
        baseline.sizes.insert(3, Done { us: 2_000_000, operations: 600 });
        baseline.sizes.insert(6, Done { us: 1_000_000, operations: 100 });
        for (world, rate) in [(0, 0.0), (1, 0.0), (2, 300.0), (3, 300.0), (4, 300.0), (5, 100.0), (9, 100.0)]
        {
            assert_eq!(baseline.rate(world), Some(rate), "{world}");
        }
    }

    #[test]
    fn kept_is_the_share_of_what_was_expected_over_all_stretches() {
        let mut kept = Kept { operations: 90, expected: 100.0 };
        kept.merge(Kept { operations: 150, expected: 200.0 });
        assert_eq!(kept.percent(), Some(80.0));
        assert_eq!(kept.words(), "80.0 %");
        kept.merge(Kept { operations: 500, expected: 200.0 });
        assert_eq!(kept.words(), "not measurable");
        assert_eq!(Kept::default().percent(), None);
    }

    #[test]
    fn costs_are_spread_over_their_faults() {
        let mut cost = Cost { faults: 1, lost_us: 100_000.0 };
        cost.merge(Cost { faults: 3, lost_us: 300_000.0 });
        assert_eq!(cost.per_fault_ms(), 100.0);
        assert_eq!(cost.words(), "not measurable", "four faults are few");
        cost.merge(Cost { faults: 1, lost_us: 100_000.0 });
        assert_eq!(cost.words(), "100 ms");
        cost.merge(Cost { faults: 1, lost_us: -9e9 });
        assert_eq!(cost.words(), "not measurable");
        assert_eq!(Cost::default().per_fault_ms(), 0.0);
    }
}
