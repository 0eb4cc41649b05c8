//! Is the shared state one? Equal content at each revision, and revisions that neither go back nor skip.

use std::collections::BTreeMap;

/// Reports of different peers come over different pipes; after this time the earlier one has arrived.
const LATE_US: u64 = 5_000_000;
/// Revisions that are remembered behind the newest one. A peer that was stopped may report an old one.
const KEPT: u64 = 100_000;

#[derive(Debug, Clone, Copy)]
struct Committed {
    hash: u64,
    peer: usize,
    first_us: u64,
}

/// A committed sync as a peer reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sync {
    pub(super) peer: usize,
    pub(super) at_us: u64,
    pub(super) revision: u64,
    pub(super) hash: u64,
    pub(super) rx_bytes: u64,
    /// Revision of this peer's sync before, if it has had one since it joined.
    pub(super) previous: Option<u64>,
    pub(super) joined_us: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Revisions {
    known: BTreeMap<u64, Committed>,
    /// Revisions whose predecessor has not been reported yet, and since when.
    orphans: BTreeMap<u64, u64>,
}

impl Revisions {
    /// Takes in a report; returns what is wrong with it.
    pub(super) fn check(&mut self, sync: &Sync) -> Vec<String> {
        let mut wrong = Vec::new();
        let Sync { peer, at_us, revision, hash, .. } = *sync;
        match sync.previous {
            Some(previous) if revision != previous && revision != previous + 1 => {
                wrong.push(format!("went from revision {previous} to revision {revision}"));
            }
            Some(_) if sync.rx_bytes > 0 => wrong.push(format!(
                "had to fetch {} bytes at revision {revision} although it has been a member since the sync before: its \
                 state had drifted",
                sync.rx_bytes
            )),
            None => {
                let before = self.known.iter().rev().find(|(_, committed)| committed.first_us < sync.joined_us);
                if let Some((&newest, _)) = before
                    && revision < newest
                {
                    wrong.push(format!("joined at revision {revision}, but {newest} was committed before"));
                }
            }
            Some(_) => {}
        }
        wrong.extend(self.holds(peer, revision, hash, at_us));
        self.orphans.remove(&(revision + 1));
        if revision > 0 && !self.known.contains_key(&(revision - 1)) && self.known.len() > 1 {
            self.orphans.entry(revision).or_insert(at_us);
        }
        self.forget();
        wrong
    }

    /// A peer holds the state of a revision, whose report by others may still be on its way; returns what is wrong with
    /// that.
    pub(super) fn holds(&mut self, peer: usize, revision: u64, hash: u64, at_us: u64) -> Option<String> {
        let known = self.known.entry(revision).or_insert(Committed { hash, peer, first_us: at_us });
        known.first_us = known.first_us.min(at_us);
        (known.hash != hash).then(|| {
            format!(
                "holds a state with checksum {hash:016x} at revision {revision}, peer {} one with {:016x}",
                known.peer, known.hash
            )
        })
    }

    /// Skipped revisions that cannot be reported any more.
    pub(super) fn skipped(&mut self, now_us: u64) -> Vec<String> {
        let late = |since: u64| now_us.saturating_sub(since) > LATE_US;
        let skipped: Vec<u64> =
            self.orphans.iter().filter(|&(_, &since)| late(since)).map(|(&revision, _)| revision).collect();
        skipped
            .into_iter()
            .map(|revision| {
                self.orphans.remove(&revision);
                format!("revision {revision} was committed, but never revision {}", revision - 1)
            })
            .collect()
    }

    /// The newest revision.
    pub(super) fn newest(&self) -> u64 {
        self.known.keys().next_back().copied().unwrap_or(0)
    }

    fn forget(&mut self) {
        let oldest = self.newest().saturating_sub(KEPT);
        // One below the oldest stays away from the check of predecessors by being kept.
        while self.known.first_key_value().is_some_and(|(&revision, _)| revision < oldest) {
            self.known.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(peer: usize, revision: u64, hash: u64, previous: Option<u64>) -> Sync {
        Sync { peer, at_us: revision * 10, revision, hash, rx_bytes: 0, previous, joined_us: 0 }
    }

    #[test]
    fn equal_states_in_a_row_pass() {
        let mut revisions = Revisions::default();
        for revision in 0..10u64 {
            for peer in 0..3 {
                let previous = revision.checked_sub(1);
                assert_eq!(
                    revisions.check(&sync(peer, revision, revision * 7, previous)),
                    Vec::<String>::new()
                );
            }
        }
        // Again at the same revision, and a newcomer that fetches.
        assert!(revisions.check(&sync(0, 9, 63, Some(9))).is_empty());
        assert!(revisions.check(&Sync { rx_bytes: 5, ..sync(4, 9, 63, None) }).is_empty());
        assert!(revisions.skipped(u64::MAX).is_empty());
        assert_eq!(revisions.newest(), 9);
    }

    #[test]
    fn differing_and_drifted_states_are_found() {
        let mut revisions = Revisions::default();
        assert!(revisions.check(&sync(0, 0, 1, None)).is_empty());
        assert_eq!(revisions.check(&sync(1, 0, 2, None)).len(), 1);
        assert_eq!(revisions.check(&Sync { rx_bytes: 8, ..sync(0, 1, 3, Some(0)) }).len(), 1);
    }

    #[test]
    fn what_was_fetched_ahead_is_compared_whoever_tells_first() {
        let mut revisions = Revisions::default();
        assert!(revisions.check(&sync(0, 3, 1, None)).is_empty());
        assert_eq!(revisions.holds(1, 3, 1, 31), None);
        assert!(revisions.holds(1, 3, 2, 31).is_some());
        assert_eq!(revisions.holds(1, 4, 5, 39), None);
        assert_eq!(revisions.check(&sync(0, 4, 6, Some(3))).len(), 1);
    }

    #[test]
    fn skipped_and_receding_revisions_are_found() {
        let mut revisions = Revisions::default();
        assert!(revisions.check(&sync(0, 4, 1, None)).is_empty());
        assert_eq!(revisions.check(&sync(0, 6, 1, Some(4))).len(), 1, "skips for itself");
        assert_eq!(revisions.check(&sync(0, 5, 1, Some(6))).len(), 1, "goes back");
        // Nobody skips for itself, but as a whole the run does.
        assert!(revisions.check(&sync(1, 9, 1, None)).is_empty());
        assert!(revisions.skipped(90 + LATE_US).is_empty(), "the report may still come");
        assert_eq!(revisions.skipped(91 + LATE_US).len(), 1);
        assert!(revisions.skipped(u64::MAX).is_empty(), "once");
    }

    #[test]
    fn a_late_report_fills_the_gap() {
        let mut revisions = Revisions::default();
        for revision in [0, 2, 1] {
            assert!(revisions.check(&sync(revision as usize, revision, 1, None)).is_empty());
        }
        assert!(revisions.skipped(u64::MAX).is_empty());
    }

    #[test]
    fn newcomers_never_set_the_run_back() {
        let mut revisions = Revisions::default();
        for revision in 0..5u64 {
            assert!(revisions.check(&sync(0, revision, revision, revision.checked_sub(1))).is_empty());
        }
        let late = Sync { joined_us: 1_000, at_us: 1_001, ..sync(7, 0, 0, None) };
        assert_eq!(revisions.check(&late).len(), 1);
        // One that joined early and reports late is no offence.
        assert!(revisions.check(&Sync { joined_us: 15, at_us: 1_001, ..sync(8, 1, 1, None) }).is_empty());
    }
}
