//! Records of a run while it lasts: sums, and the course of things. The supervisor tells the time.

use crate::{
    oracle::Recovery,
    report::{Baseline, Slot, Timeline, Totals},
};

/// More often than this, nothing is written down.
const STEP_US: u64 = 5_000;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) totals: Totals,
    pub(crate) timeline: Timeline,
    pub(crate) baseline: Baseline,
    began_us: u64,
    last_us: u64,
    last_operations: u64,
    /// Between the measurement of the undisturbed rates and the end of the faults.
    comparing: bool,
    last_fault: Option<&'static str>,
}

impl Record {
    pub(crate) fn new(began_us: u64) -> Self {
        Self {
            totals: Totals::default(),
            timeline: Timeline::default(),
            baseline: Baseline::default(),
            began_us,
            last_us: began_us,
            last_operations: 0,
            comparing: false,
            last_fault: None,
        }
    }

    /// From now on faults are made, and everything is compared with these rates.
    pub(crate) fn faults_begin(&mut self, baseline: Baseline) {
        self.baseline = baseline;
        self.comparing = true;
    }

    /// No more faults: what comes now is not compared any more.
    pub(crate) fn faults_end(&mut self) {
        self.comparing = false;
    }

    /// A fault is made.
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.totals.faults.entry(kind.to_owned()).or_default() += 1;
        self.timeline.fault(kind);
        if self.comparing {
            self.totals.costs.entry(kind.to_owned()).or_default().faults += 1;
            self.last_fault = Some(kind);
        }
    }

    pub(crate) fn recovered(&mut self, recoveries: &[Recovery]) {
        recoveries.iter().for_each(|recovery| self.totals.recovered(recovery));
    }

    /// There have been `world` members since the last call, and `operations` were completed since the beginning.
    pub(crate) fn tick(&mut self, now_us: u64, world: usize, operations: u64) {
        let span_us = now_us.saturating_sub(self.last_us);
        if span_us < STEP_US {
            return;
        }
        let done = operations - self.last_operations;
        let rate = self.baseline.rate(world).filter(|_| self.comparing);
        self.timeline.push(Slot {
            part: 1,
            from_us: self.last_us - self.began_us,
            span_us,
            operations: done,
            expected: rate.map(|rate| rate * span_us as f64 / 1e6),
            world_us: world as u64 * span_us,
            world_min: world,
            world_max: world,
            ..Slot::default()
        });
        if let Some(rate) = rate {
            self.compare(world, span_us, done, rate);
        }
        self.totals.seconds = (now_us - self.began_us) as f64 / 1e6;
        (self.last_us, self.last_operations) = (now_us, operations);
    }

    fn compare(&mut self, world: usize, span_us: u64, done: u64, rate: f64) {
        let expected = rate * span_us as f64 / 1e6;
        let at_size = self.totals.sizes.entry(world).or_default();
        at_size.us += span_us;
        for kept in [&mut at_size.kept, &mut self.totals.kept] {
            kept.operations += done;
            kept.expected += expected;
        }
        if let Some(kind) = self.last_fault
            && rate > 0.0
        {
            let cost = self.totals.costs.entry(kind.to_owned()).or_default();
            cost.lost_us += span_us as f64 - done as f64 * 1e6 / rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Done;

    const S: u64 = 1_000_000;

    fn baseline() -> Baseline {
        Baseline {
            sizes: [(3, Done { us: 10 * S, operations: 1_000 }), (4, Done { us: 10 * S, operations: 500 })]
                .into(),
        }
    }

    #[test]
    fn only_what_is_done_under_faults_is_compared() {
        let mut record = Record::new(5 * S);
        record.tick(6 * S, 4, 77);
        assert_eq!(record.totals.kept.percent(), None);
        record.faults_begin(baseline());
        // 3 members for 2 s, then 4 for 2 s, in which half of the time nothing is done.
        record.tick(8 * S, 3, 277);
        record.fault("kill");
        record.tick(9 * S, 4, 327);
        record.tick(10 * S, 4, 327);
        record.faults_end();
        record.tick(11 * S, 4, 400);
        let totals = &record.totals;
        assert_eq!(totals.kept.operations, 250);
        assert!((totals.kept.expected - 300.0).abs() < 1e-6);
        assert_eq!(totals.sizes.get(&3).map(|at| (at.us, at.kept.percent())), Some((2 * S, Some(100.0))));
        assert_eq!(totals.sizes.get(&4).map(|at| (at.us, at.kept.percent())), Some((2 * S, Some(50.0))));
        let cost = totals.costs.get("kill").expect("a kill");
        assert_eq!((cost.faults, cost.per_fault_ms()), (1, 1000.0));
        assert_eq!(totals.seconds, 6.0);
        assert_eq!(record.timeline.slots.iter().map(|slot| slot.operations).sum::<u64>(), 400);
        assert_eq!(record.timeline.slots.iter().map(|slot| slot.faults.len()).sum::<usize>(), 1);
    }

    #[test]
    fn calls_in_quick_succession_lose_nothing() {
        let mut record = Record::new(0);
        record.faults_begin(baseline());
        for step in 0..10_000 {
            record.tick(step * 100, 3, step / 100);
        }
        assert_eq!(record.totals.kept.operations, 99);
        assert!((record.totals.kept.percent().expect("known") - 100.0).abs() < 2.0);
    }
}
