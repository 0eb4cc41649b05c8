//! Does the run go on? The time between completed operations, and the time that it takes after a kill.

use std::collections::BTreeSet;

/// An operation must have completed so long after the time in which a fault is found out.
pub(crate) const GRACE_US: u64 = 5_000_000;
/// Members without which nobody promises progress.
const NEEDED: usize = 2;

/// How long it took after a fault until every steady member had completed an operation; after a kill, one without the
/// victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Kind of the fault.
    pub(crate) kind: &'static str,
    pub(crate) duration_us: u64,
    /// Nobody was stopped meanwhile, and no connection was slow or cut.
    pub(crate) undisturbed: bool,
}

/// A time in which nothing was completed. The longer one is greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Gap {
    pub(crate) us: u64,
    /// When it began.
    pub(crate) at_us: u64,
}

#[derive(Debug)]
struct Open {
    kind: &'static str,
    /// The peer that does not contribute any more.
    victim: Option<u128>,
    since_us: u64,
    waiting: BTreeSet<usize>,
    last_us: u64,
    undisturbed: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Progress {
    limit_us: u64,
    /// Since when there are enough steady members.
    enough_since_us: Option<u64>,
    last_operation_us: u64,
    last_stop_us: u64,
    slow_until_us: u64,
    stalled: bool,
    stopped: BTreeSet<usize>,
    open: Vec<Open>,
    pub(super) recoveries: Vec<Recovery>,
    pub(super) longest_gap: Gap,
}

impl Progress {
    pub(super) fn new(patience_us: u64) -> Self {
        Self {
            limit_us: patience_us + GRACE_US,
            enough_since_us: None,
            last_operation_us: 0,
            last_stop_us: 0,
            slow_until_us: 0,
            stalled: false,
            stopped: BTreeSet::new(),
            open: Vec::new(),
            recoveries: Vec::new(),
            longest_gap: Gap::default(),
        }
    }

    /// How many members there are that nothing is done to.
    pub(super) fn steady(&mut self, count: usize, now_us: u64) {
        self.enough_since_us =
            if count < NEEDED { None } else { Some(self.enough_since_us.unwrap_or(now_us)) };
    }

    /// A peer completed an operation with these contributors.
    pub(super) fn completed(&mut self, peer: usize, contributors: &[u128], at_us: u64) {
        if at_us > self.last_operation_us {
            if let Some(enough) = self.enough_since_us {
                let begin = self.last_operation_us.max(enough);
                self.longest_gap =
                    self.longest_gap.max(Gap { us: at_us.saturating_sub(begin), at_us: begin });
            }
            self.last_operation_us = at_us;
            self.stalled = false;
        }
        for open in &mut self.open {
            let without_victim = open.victim.is_none_or(|victim| !contributors.contains(&victim));
            if at_us > open.since_us && without_victim && open.waiting.remove(&peer) {
                open.last_us = open.last_us.max(at_us);
            }
        }
        self.close_open();
    }

    /// A fault was made; `survivors` are the members that nothing is done to. A `victim` is gone for good.
    pub(super) fn disturbed(
        &mut self,
        kind: &'static str,
        victim: Option<u128>,
        survivors: BTreeSet<usize>,
        now_us: u64,
    ) {
        if survivors.is_empty() {
            return;
        }
        let undisturbed = self.stopped.is_empty() && self.slow_until_us <= now_us;
        let waiting = survivors;
        self.open.push(Open { kind, victim, since_us: now_us, waiting, last_us: now_us, undisturbed });
    }

    pub(super) fn stopped(&mut self, peer: usize, now_us: u64) {
        self.last_stop_us = now_us;
        self.stopped.insert(peer);
        // The recovery that is measured since this very moment is its own.
        let earlier = self.open.iter_mut().filter(|open| open.since_us < now_us);
        earlier.for_each(|open| open.undisturbed = false);
        self.gone(peer);
    }

    /// Connections are slow or cut until then.
    pub(super) fn slowed(&mut self, until_us: u64) {
        self.slow_until_us = self.slow_until_us.max(until_us);
        self.open.iter_mut().for_each(|open| open.undisturbed = false);
    }

    /// Nothing can be expected for a while: what is expected then counts from now on.
    pub(super) fn excused(&mut self, now_us: u64) {
        self.last_stop_us = now_us;
    }

    /// How long ago the last such excuse, or stop, was.
    pub(super) fn calm_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.last_stop_us)
    }

    /// There is no master: nobody goes on, and who goes on later has lost its place.
    pub(super) fn suspended(&mut self, now_us: u64) {
        self.enough_since_us = None;
        self.open.clear();
        self.excused(now_us);
    }

    pub(super) fn resumed(&mut self, peer: usize) {
        self.stopped.remove(&peer);
    }

    /// Nobody waits for a peer that was killed, stopped or dismissed, or lost its connection.
    pub(super) fn gone(&mut self, peer: usize) {
        for open in &mut self.open {
            open.waiting.remove(&peer);
        }
        self.close_open();
    }

    fn close_open(&mut self) {
        let recoveries = &mut self.recoveries;
        self.open.retain(|open| {
            if open.waiting.is_empty() && open.last_us > open.since_us {
                let duration_us = open.last_us - open.since_us;
                recoveries.push(Recovery { kind: open.kind, duration_us, undisturbed: open.undisturbed });
            }
            !open.waiting.is_empty()
        });
    }

    /// How long nothing has been completed although it should.
    pub(super) fn gap_us(&self, now_us: u64) -> u64 {
        match self.enough_since_us {
            Some(enough) => now_us.saturating_sub(self.last_operation_us.max(enough)),
            None => 0,
        }
    }

    pub(super) fn last_operation_us(&self) -> u64 {
        self.last_operation_us
    }

    /// Says once per stall that the run stands still. A group that is waited for went on at `others_us`.
    pub(super) fn check(&mut self, others_us: u64, now_us: u64) -> Option<String> {
        let enough = self.enough_since_us?;
        // A stopped peer is waited for until the time-out; that time begins anew with each.
        let begin = self.last_operation_us.max(others_us).max(enough).max(self.last_stop_us);
        if self.stalled || now_us.saturating_sub(begin) <= self.limit_us {
            return None;
        }
        self.stalled = true;
        Some(format!(
            "no operation has completed for {} ms, although {NEEDED} untouched peers have been there for {} ms, no \
             group \
             that is waited for has completed any for {} ms and nobody was stopped for {} ms; allowed are {} ms",
            self.gap_us(now_us) / 1000,
            now_us.saturating_sub(enough) / 1000,
            now_us.saturating_sub(others_us.max(self.last_operation_us)) / 1000,
            now_us.saturating_sub(self.last_stop_us) / 1000,
            self.limit_us / 1000
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;
    const KILL: &str = "kill";

    #[test]
    fn a_stall_is_found_once_and_only_with_enough_peers() {
        let mut progress = Progress::new(3 * S);
        progress.steady(1, 0);
        assert_eq!(progress.check(0, 100 * S), None);
        progress.steady(2, 100 * S);
        assert_eq!(progress.check(0, 108 * S), None);
        assert!(progress.check(0, 108 * S + 1).is_some());
        assert_eq!(progress.check(0, 120 * S), None);
        progress.completed(0, &[1, 2], 121 * S);
        assert_eq!(progress.check(0, 129 * S), None);
        assert!(progress.check(0, 130 * S).is_some());
        assert_eq!(progress.longest_gap.us, 21 * S);
    }

    #[test]
    fn who_waits_for_others_has_time_until_they_stand_still() {
        let mut progress = Progress::new(3 * S);
        progress.steady(2, 0);
        progress.completed(0, &[1, 2], S);
        assert_eq!(progress.check(5 * S, 13 * S), None);
        assert!(progress.check(5 * S, 13 * S + 1).is_some());
    }

    #[test]
    fn a_stop_extends_the_limit_and_a_lack_of_peers_suspends_it() {
        let mut progress = Progress::new(3 * S);
        progress.steady(2, 0);
        progress.stopped(5, 5 * S);
        assert_eq!(progress.check(0, 13 * S), None);
        progress.steady(1, 13 * S);
        assert_eq!(progress.check(0, 20 * S), None);
        progress.steady(2, 20 * S);
        assert_eq!(progress.gap_us(22 * S), 2 * S);
        assert!(progress.check(0, 28 * S + 1).is_some());
    }

    #[test]
    fn recovery_ends_with_the_last_survivor_and_counts_operations_without_the_victim() {
        let mut progress = Progress::new(3 * S);
        progress.disturbed(KILL, Some(9), BTreeSet::from([0, 1]), 10);
        progress.completed(0, &[1, 9], 11);
        progress.completed(0, &[1, 2], 15);
        assert!(progress.recoveries.is_empty());
        progress.completed(1, &[1, 2], 12);
        assert_eq!(progress.recoveries, [Recovery { kind: KILL, duration_us: 5, undisturbed: true }]);
    }

    #[test]
    fn recovery_with_a_stopped_survivor_is_marked_and_does_not_wait_for_it() {
        let mut progress = Progress::new(3 * S);
        progress.disturbed(KILL, None, BTreeSet::from([0, 1]), 10);
        progress.completed(0, &[], 20);
        progress.stopped(1, 30);
        assert_eq!(progress.recoveries, [Recovery { kind: KILL, duration_us: 10, undisturbed: false }]);
        progress.disturbed(KILL, None, BTreeSet::from([0]), 40);
        progress.gone(0);
        assert_eq!(progress.recoveries.len(), 1, "nobody was left to recover");
        progress.resumed(1);
        progress.disturbed("stop", None, BTreeSet::from([0]), 50);
        progress.stopped(1, 50);
        progress.completed(0, &[], 60);
        assert!(progress.recoveries[1].undisturbed, "a stop does not disturb itself");
    }
}
