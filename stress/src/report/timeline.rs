//! The events of a run and their times, in bounded memory: a run of any length has at most a fixed number of slots,
//! which get wider.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Width of a slot in the beginning.
const WIDTH_US: u64 = 500_000;
/// Above this number of slots neighbours are put together.
const SLOTS_MAX: usize = 2_000;

/// A stretch of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// Which part of a run that was made in several.
    pub(crate) part: usize,
    /// Beginning, counted from the beginning of the first part.
    pub(crate) from_us: u64,
    pub(crate) span_us: u64,
    pub(crate) operations: u64,
    /// Operations that there would have been without faults; `None` while that is being found out.
    pub(crate) expected: Option<f64>,
    /// Sum of members times microseconds.
    pub(crate) world_us: u64,
    pub(crate) world_min: usize,
    pub(crate) world_max: usize,
    /// How many faults of each kind.
    pub(crate) faults: BTreeMap<String, u64>,
}

impl Slot {
    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 * 1e6 / self.span_us.max(1) as f64
    }

    /// Operations per second that there would have been without faults.
    pub(crate) fn expected_rate(&self) -> Option<f64> {
        Some(self.expected? * 1e6 / self.span_us.max(1) as f64)
    }

    /// Adds what came right after.
    fn extend(&mut self, next: Self) {
        self.expected = match (self.expected, next.expected) {
            (Some(here), Some(there)) => Some(here + there),
            _ => None,
        };
        self.span_us = (next.from_us + next.span_us).saturating_sub(self.from_us);
        self.operations += next.operations;
        self.world_us += next.world_us;
        self.world_min = self.world_min.min(next.world_min);
        self.world_max = self.world_max.max(next.world_max);
        for (kind, count) in next.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }
}

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timeline {
    width_us: u64,
    pub(crate) slots: Vec<Slot>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { width_us: WIDTH_US, slots: Vec::new() }
    }
}

impl Timeline {
    /// Adds what happened right after the last slot, or in its second half.
    pub(crate) fn push(&mut self, next: Slot) {
        let fits = |last: &Slot| {
            last.part == next.part
                && last.expected.is_some() == next.expected.is_some()
                && last.span_us + next.span_us <= self.width_us + self.width_us / 10
        };
        match self.slots.last_mut() {
            Some(last) if fits(last) => last.extend(next),
            _ => self.slots.push(next),
        }
        self.thin();
    }

    /// A fault was made just now.
    pub(crate) fn fault(&mut self, kind: &str) {
        if let Some(last) = self.slots.last_mut() {
            *last.faults.entry(kind.to_owned()).or_default() += 1;
        }
    }

    /// When the last slot ends.
    pub(crate) fn end_us(&self) -> u64 {
        self.slots.last().map_or(0, |slot| slot.from_us + slot.span_us)
    }

    /// Adds another part of the run.
    pub(crate) fn append(&mut self, part: usize, other: Self) {
        let offset_us = self.end_us();
        self.slots.extend(other.slots.into_iter().map(|slot| Slot {
            part,
            from_us: slot.from_us + offset_us,
            ..slot
        }));
        self.thin();
    }

    /// Makes slots wider until there are few enough. Those of different parts stay apart.
    fn thin(&mut self) {
        let end_us = self.end_us();
        while self.slots.len() > SLOTS_MAX && self.width_us <= end_us {
            // Slots that were added may have been narrower than those that are here.
            for slot in std::mem::take(&mut self.slots) {
                self.push_wide(slot);
            }
            if self.slots.len() > SLOTS_MAX {
                self.width_us *= 2;
            }
        }
    }

    fn push_wide(&mut self, next: Slot) {
        let limit_us = self.width_us + self.width_us / 10;
        match self.slots.last_mut() {
            Some(last) if last.part == next.part && last.span_us + next.span_us <= limit_us => {
                last.extend(next);
            }
            _ => self.slots.push(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(from_us: u64, span_us: u64) -> Slot {
        Slot {
            from_us,
            span_us,
            operations: 3,
            expected: Some(4.0),
            world_us: 2 * span_us,
            world_min: 2,
            world_max: 2,
            ..Slot::default()
        }
    }

    fn hours(hours: u64) -> Timeline {
        let mut timeline = Timeline::default();
        for second in 0..hours * 3600 {
            timeline.push(slot(second * 1_000_000, 1_000_000));
            timeline.fault(if second % 2 == 0 { "kill" } else { "spawn" });
        }
        timeline
    }

    fn sums(timeline: &Timeline) -> (u64, u64, f64, u64, u64) {
        let mut sums = (0, 0, 0.0, 0, 0);
        for slot in &timeline.slots {
            sums.0 += slot.span_us;
            sums.1 += slot.operations;
            sums.2 += slot.expected.unwrap_or(0.0);
            sums.3 += slot.faults.get("kill").copied().unwrap_or(0);
            sums.4 += slot.world_us;
        }
        sums
    }

    #[test]
    fn a_long_run_stays_small_and_loses_nothing() {
        let timeline = hours(8);
        let seconds = 8 * 3600;
        assert!((SLOTS_MAX / 4..=SLOTS_MAX).contains(&timeline.slots.len()), "{}", timeline.slots.len());
        let expected =
            (seconds * 1_000_000, seconds * 3, (seconds * 4) as f64, seconds / 2, seconds * 2_000_000);
        assert_eq!(sums(&timeline), expected);
        assert_eq!(timeline.end_us(), seconds * 1_000_000);
        assert!((timeline.slots[5].rate() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn short_steps_fill_slots() {
        let mut timeline = Timeline::default();
        for step in 0..1_000 {
            timeline.push(slot(step * 10_000, 10_000));
        }
        assert!((18..=21).contains(&timeline.slots.len()), "{}", timeline.slots.len());
    }

    #[test]
    fn what_was_measured_first_stays_apart_from_what_is_compared_with_it() {
        let mut timeline = Timeline::default();
        timeline.push(Slot { expected: None, ..slot(0, 10_000) });
        timeline.push(slot(10_000, 10_000));
        assert_eq!(timeline.slots.len(), 2);
    }

    #[test]
    fn parts_follow_each_other_and_stay_apart() {
        let mut all = Timeline::default();
        for part in 1..=40 {
            all.append(part, hours(1));
        }
        assert!(all.slots.len() <= SLOTS_MAX, "{}", all.slots.len());
        assert_eq!(sums(&all).0, 40 * 3600 * 1_000_000);
        assert_eq!(sums(&all).3, 40 * 1800);
        let per_part = |part| all.slots.iter().filter(|slot| slot.part == part).count();
        assert!(per_part(1) >= per_part(40) / 2 && per_part(1) >= 10, "{} {}", per_part(1), per_part(40));
        assert!(
            all.slots.windows(2).all(|pair| pair[0].from_us + pair[0].span_us == pair[1].from_us),
            "no holes"
        );
    }

    #[test]
    fn more_parts_than_slots_come_to_an_end() {
        let mut all = Timeline::default();
        let mut one = Timeline::default();
        one.push(slot(0, 1_000_000));
        for part in 0..SLOTS_MAX + 10 {
            all.append(part, one.clone());
        }
        assert_eq!(all.slots.len(), SLOTS_MAX + 10);
    }
}
