//! Does the run recover as fast as usual? A recovery that takes 100 times as long as others of its kind hangs on a
//! time-out; when half of them take as long as 100 operations and more, all do.

use super::progress::{GRACE_US, Recovery};
use std::collections::{BTreeMap, VecDeque};

/// Recoveries of a kind without which nothing is usual yet, and those that are remembered.
const ENOUGH: usize = 12;
const KEPT: usize = 200;
/// That many times as long as usual is too long.
const FACTOR: u64 = 100;
/// Half of the recoveries may always take this long: so long does a busy machine let processes wait.
const TYPICAL_US: u64 = 1_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The time that an operation takes while nothing is wrong.
    operation_us: u64,
    /// The last recoveries of each kind while nothing else was wrong.
    recoveries: BTreeMap<&'static str, VecDeque<u64>>,
    /// It was told already that all are slow.
    told: bool,
}

impl Pace {
    /// Takes in the number of operations a second while nothing is wrong.
    pub(super) fn undisturbed(&mut self, operations_per_s: f64) {
        self.operation_us = (1e6 / operations_per_s) as u64;
    }

    /// Takes in a recovery; returns what is wrong with it.
    pub(super) fn recovered(&mut self, recovery: &Recovery) -> Option<String> {
        let Recovery { kind, duration_us, undisturbed } = *recovery;
        if !undisturbed {
            return None;
        }
        let known = self.recoveries.entry(kind).or_default();
        let usual_us = median(known);
        if known.len() == KEPT {
            known.pop_front();
        }
        known.push_back(duration_us);
        let usual_us = usual_us?;
        if duration_us > (FACTOR * usual_us).max(GRACE_US) {
            return Some(format!(
                "after a {kind} it took {} ms until all went on, usually {} ms",
                duration_us / 1000,
                usual_us / 1000
            ));
        }
        let too_slow = usual_us > (FACTOR * self.operation_us).max(TYPICAL_US);
        (too_slow && !std::mem::replace(&mut self.told, true)).then(|| {
            format!(
                "after a {kind} it usually takes {} ms until all go on, and an operation {} us",
                usual_us / 1000,
                self.operation_us
            )
        })
    }
}

/// The one in the middle, if there are enough.
fn median(durations: &VecDeque<u64>) -> Option<u64> {
    let mut sorted: Vec<u64> = durations.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() >= ENOUGH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;

    fn recovery(ms: u64) -> Recovery {
        Recovery { kind: "kill", duration_us: ms * MS, undisturbed: true }
    }

    fn pace() -> Pace {
        let mut pace = Pace::default();
        pace.undisturbed(500.0);
        pace
    }

    #[test]
    fn one_that_hangs_on_a_time_out_is_found_once_others_are_known() {
        let mut pace = pace();
        assert_eq!(pace.recovered(&recovery(9_000)), None, "nothing is usual yet");
        (0..30).for_each(|_| assert_eq!(pace.recovered(&recovery(20)), None));
        assert_eq!(pace.recovered(&recovery(4_900)), None, "a busy machine");
        assert!(pace.recovered(&recovery(5_001)).expect("slow").contains("5001 ms"));
        let disturbed = Recovery { undisturbed: false, ..recovery(9_000) };
        assert_eq!(pace.recovered(&disturbed), None);
    }

    #[test]
    fn it_is_found_once_that_all_are_slow() {
        let mut pace = pace();
        let told: Vec<String> = (0..60).filter_map(|_| pace.recovered(&recovery(1_500))).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("usually takes 1500 ms"), "{told:?}");
        // Where operations take as long, that is no wonder.
        let mut slow = Pace::default();
        slow.undisturbed(50.0);
        (0..60).for_each(|_| assert_eq!(slow.recovered(&recovery(1_500)), None));
    }
}
