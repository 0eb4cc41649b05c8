//! The peers whose fault it is that shared state cannot be fetched: a pure function of who asked whom in vain.

use pccl_protocol::{PeerId, SourceFault};
use std::collections::{BTreeMap, BTreeSet};

/// The facts that the fetches of a group have shown about its members.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Fetches {
    /// How often somebody asked a source in vain since somebody last got something there.
    in_vain: BTreeMap<PeerId, u32>,
    /// Members whose fetch in the last sync failed, which may have been the fault of either end.
    doubtful: BTreeSet<PeerId>,
}

impl Fetches {
    /// Somebody got everything that was missing from `source`.
    pub(crate) fn succeeded(&mut self, source: PeerId) {
        self.in_vain.remove(&source);
    }

    /// Somebody asked `source` in vain.
    pub(crate) fn failed(&mut self, source: PeerId) {
        *self.in_vain.entry(source).or_insert(0) += 1;
    }

    /// A fetch of `by` failed, and nobody was dropped for it.
    pub(crate) fn doubt(&mut self, by: PeerId) {
        self.doubtful.insert(by);
    }

    /// A sync was committed: everybody has the state.
    pub(crate) fn settled(&mut self) {
        self.doubtful.clear();
    }

    /// How often `source` was asked in vain since somebody last got something there.
    pub(crate) fn in_vain(&self, source: PeerId) -> u32 {
        self.in_vain.get(&source).copied().unwrap_or(0)
    }

    /// Whether the fetch of this peer failed in the last sync, too.
    pub(crate) fn is_doubtful(&self, by: PeerId) -> bool {
        self.doubtful.contains(&by)
    }

    /// A member is gone.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.in_vain.remove(&peer);
        self.doubtful.remove(&peer);
    }
}

/// Fetches that failed in one sync: for each receiver the sources that it asked in vain.
pub(crate) type Failures = BTreeMap<PeerId, Vec<(PeerId, SourceFault)>>;

/// The peers that have to go so that the others can sync.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Culprits {
    pub(crate) receivers: BTreeSet<PeerId>,
    pub(crate) sources: BTreeSet<PeerId>,
    /// Sources that fewer drops would have been enough for, but that hold the only copy.
    pub(crate) spared: BTreeSet<PeerId>,
}

/// Judges the failures of one sync, in which the sources in `gave` served somebody.
///
/// A receiver that did not reach a source that gave to another one is at fault. For the rest the smaller side goes:
/// sources, if fewer of them failed more receivers; receivers otherwise. Sources that were reached and refused go
/// first. `may_go` says whether the run can do without these sources. One receiver and one source show nothing: nobody
/// goes for that unless the fetch of that receiver failed before (`is_doubtful`).
pub(crate) fn judge(
    failures: &Failures,
    gave: &BTreeSet<PeerId>,
    is_doubtful: impl Fn(PeerId) -> bool,
    may_go: impl Fn(&BTreeSet<PeerId>) -> bool,
) -> Culprits {
    let mut culprits = Culprits::default();
    let unreached = |tried: &[(PeerId, SourceFault)]| tried.iter().any(|one| one.1 == SourceFault::Unreached);
    let alone = |tried: &[(PeerId, SourceFault)]| {
        tried.iter().any(|(source, fault)| *fault == SourceFault::Unreached && gave.contains(source))
    };
    // Something else than its sources stopped it.
    let odd = failures.iter().filter(|(receiver, tried)| tried.is_empty() && is_doubtful(**receiver));
    culprits.receivers.extend(odd.map(|(receiver, _)| *receiver));
    for fault in [SourceFault::Unreached, SourceFault::Refused] {
        let is_such = |tried: &[(PeerId, SourceFault)]| unreached(tried) == (fault == SourceFault::Unreached);
        let such: Vec<_> = failures.iter().filter(|(_, tried)| !tried.is_empty() && is_such(tried)).collect();
        let (sure, open): (Vec<_>, Vec<_>) = such.into_iter().partition(|(_, tried)| alone(tried));
        culprits.receivers.extend(sure.into_iter().map(|(receiver, _)| *receiver));
        let receivers: BTreeSet<PeerId> = open.iter().map(|(receiver, _)| **receiver).collect();
        let tried = open.iter().flat_map(|(_, tried)| tried.iter());
        let sources: BTreeSet<PeerId> =
            tried.map(|(source, _)| *source).filter(|source| !gave.contains(source)).collect();
        let shown = receivers.len() + sources.len() > 2;
        if receivers.is_empty() || !shown && !receivers.iter().all(|one| is_doubtful(*one)) {
            continue;
        }
        let even = usize::from(fault == SourceFault::Refused);
        let fewer = !sources.is_empty() && sources.len() < receivers.len() + even;
        if fewer && may_go(&sources) {
            culprits.sources.extend(sources);
        } else {
            culprits.receivers.extend(receivers);
            culprits.spared.extend(sources.into_iter().filter(|_| fewer));
        }
    }
    culprits
}

#[cfg(test)]
mod tests {
    use super::SourceFault::{Refused, Unreached};
    use super::*;

    /// Receiver, its sources, what they did.
    type Case<'a> = &'a [(u128, &'a [u128], SourceFault)];

    fn judged(
        case: Case<'_>,
        gave: &[u128],
        doubtful: &[u128],
        may_go: bool,
    ) -> (Vec<u128>, Vec<u128>, Vec<u128>) {
        let failures = case
            .iter()
            .map(|(who, sources, fault)| {
                (PeerId(*who), sources.iter().map(|s| (PeerId(*s), *fault)).collect())
            })
            .collect();
        let gave = gave.iter().map(|id| PeerId(*id)).collect();
        let culprits = judge(&failures, &gave, |id| doubtful.contains(&id.0), |_| may_go);
        let ids = |set: BTreeSet<PeerId>| set.into_iter().map(|id| id.0).collect();
        (ids(culprits.receivers), ids(culprits.sources), ids(culprits.spared))
    }

    #[test]
    fn one_receiver_is_at_fault_if_several_sources_fail_it() {
        assert_eq!(judged(&[(1, &[5, 6], Unreached)], &[], &[], true), (vec![1], vec![], vec![]));
        assert_eq!(judged(&[(1, &[5, 6], Refused)], &[], &[], true), (vec![1], vec![], vec![]));
        // Or if its only source gave to another one.
        assert_eq!(judged(&[(1, &[5], Unreached)], &[5], &[], true), (vec![1], vec![], vec![]));
    }

    #[test]
    fn one_source_is_at_fault_if_it_fails_several_receivers() {
        let case: Case<'_> = &[(1, &[5], Unreached), (2, &[5], Unreached)];
        assert_eq!(judged(case, &[], &[], true), (vec![], vec![5], vec![]));
        // Not if the state would go with it.
        assert_eq!(judged(case, &[], &[], false), (vec![1, 2], vec![], vec![5]));
        // As many sources as receivers: those who hold the state stay.
        let case: Case<'_> = &[(1, &[5, 6], Unreached), (2, &[6, 5], Unreached)];
        assert_eq!(judged(case, &[], &[], true), (vec![1, 2], vec![], vec![]));
        let case: Case<'_> = &[(1, &[5, 6], Unreached), (2, &[6, 5], Unreached), (3, &[5, 6], Unreached)];
        assert_eq!(judged(case, &[], &[], true), (vec![], vec![5, 6], vec![]));
    }

    #[test]
    fn one_and_one_are_judged_the_second_time() {
        assert_eq!(judged(&[(1, &[5], Unreached)], &[], &[], true), (vec![], vec![], vec![]));
        assert_eq!(judged(&[(1, &[5], Unreached)], &[], &[1], true), (vec![1], vec![], vec![]));
        assert_eq!(judged(&[(1, &[5], Refused)], &[], &[], true), (vec![], vec![], vec![]));
        assert_eq!(judged(&[(1, &[5], Refused)], &[], &[1], true), (vec![], vec![5], vec![]));
        assert_eq!(judged(&[(1, &[5], Refused)], &[], &[1], false), (vec![1], vec![], vec![5]));
        // Something else than its sources stopped it.
        assert_eq!(judged(&[(1, &[], Refused)], &[], &[], true), (vec![], vec![], vec![]));
        assert_eq!(judged(&[(1, &[], Refused)], &[], &[1], true), (vec![1], vec![], vec![]));
    }

    #[test]
    fn refusals_do_not_hide_who_is_not_reached() {
        let case: Case<'_> = &[(1, &[5], Refused), (2, &[5], Refused), (3, &[7], Unreached)];
        assert_eq!(judged(case, &[7], &[], true), (vec![3], vec![5], vec![]));
    }

    #[test]
    fn a_source_is_forgiven_when_it_gives() {
        let mut fetches = Fetches::default();
        let (receiver, source) = (PeerId(1), PeerId(5));
        fetches.failed(source);
        fetches.failed(source);
        fetches.doubt(receiver);
        assert_eq!((fetches.in_vain(source), fetches.is_doubtful(receiver)), (2, true));
        fetches.succeeded(source);
        assert_eq!((fetches.in_vain(source), fetches.is_doubtful(receiver)), (0, true));
        fetches.settled();
        assert!(!fetches.is_doubtful(receiver));
    }
}
