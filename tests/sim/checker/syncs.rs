//! The part of the account that is about syncs: outcomes, what was committed, and who holds it.

use super::{Checker, SyncKey};
use pccl_protocol::*;
use std::collections::BTreeSet;

impl Checker {
    pub(super) fn sync_outcome(&mut self, client: u64, packet: &SyncOutcomeFor) {
        let planned = self.syncs.get(&(client, packet.request)).copied();
        let sync = match &packet.outcome {
            SyncOutcome::Committed(_) => planned.expect("committed without a plan"),
            SyncOutcome::Failed(Verdict { operation: Operation::Sync(sync), .. }) => (self.worlds, *sync),
            SyncOutcome::Failed(verdict) => panic!("a sync failed as {}", verdict.operation),
        };
        assert!(planned.is_none_or(|planned| planned == sync), "the outcome of another sync");
        if let (SyncOutcome::Committed(revision), None) = (&packet.outcome, self.sync_outcomes.get(&sync)) {
            let group = self.clients[&client].group;
            self.loans.committed((group, self.life(group)), sync);
            self.revision_committed(client, sync, *revision);
        }
        let known = self.sync_outcomes.entry(sync).or_insert_with(|| packet.outcome.clone());
        assert_eq!(*known, packet.outcome, "two outcomes of sync {}", sync.1);
        if matches!(packet.outcome, SyncOutcome::Committed(_)) {
            let group = self.clients[&client].group;
            let place = (group, self.life(group));
            let holders = self.holders.entry(place).or_insert_with(|| (sync, BTreeSet::new()));
            if holders.0 != sync {
                *holders = (sync, BTreeSet::new());
            }
            holders.1.insert(client);
            assert!(
                self.ready.contains(&(client, sync)),
                "sync {} committed for somebody who is not ready",
                sync.1
            );
        }
    }

    fn revision_committed(&mut self, client: u64, sync: SyncKey, revision: Revision) {
        let group = self.clients[&client].group;
        let held = self.holders.get(&(group, self.life(group))).map(|(_, holders)| holders.clone());
        let voters = self.syncs.iter().filter(|(_, of)| **of == sync).map(|((voter, _), _)| *voter);
        let voters: Vec<u64> = voters.collect();
        let votes: Vec<Revision> = voters
            .iter()
            .filter_map(|voter| Some(self.sync_votes.get(&self.peer_of(*voter)?)?.revision))
            .collect();
        let is_held = held.is_some_and(|held| voters.iter().any(|voter| held.contains(voter)));
        self.known.committed(group, revision, |newest| is_held || votes.iter().any(|vote| *vote >= newest));
    }

    /// The group of a client, and what its members voted for last.
    pub(crate) fn votes_near(&self, client: u64) -> (GroupId, Vec<Revision>) {
        let group = self.clients[&client].group;
        let votes = self.ring_of(client);
        (group, votes.iter().filter_map(|peer| Some(self.sync_votes.get(peer)?.revision)).collect())
    }

    /// An operator has chosen the revision from which a group goes on. If members hold that or a newer one, the choice
    /// turns those away who offer more, and the group stays as it is.
    pub(crate) fn chosen(&mut self, group: GroupId, revision: Revision) {
        let place = (group, self.life(group));
        if self.any_holder(place) && self.committed_last(place).is_some_and(|held| held >= revision) {
            return;
        }
        self.known.chosen(group, revision);
        self.committed.remove(&place);
        self.loans.void(place);
    }

    /// The revision that the last sync of a group has committed.
    pub(super) fn committed_last(&self, place: (GroupId, u64)) -> Option<Revision> {
        match self.sync_outcomes.get(&self.holders.get(&place)?.0)? {
            SyncOutcome::Committed(revision) => Some(*revision),
            SyncOutcome::Failed(_) => None,
        }
    }

    /// A client has put the result of a sync in place. That may be after the master has begun anew.
    pub(crate) fn committed(
        &mut self,
        client: u64,
        request: RequestId,
        revision: Revision,
        content: Vec<(String, u128)>,
    ) {
        let sync = self.syncs[&(client, request)];
        let result = (revision, content);
        let known = self.contents.entry(sync).or_insert_with(|| result.clone());
        assert_eq!(*known, result, "contents differ after sync {}", sync.1);
    }

    /// Whether nobody has been told of the end of this sync.
    pub(crate) fn first_of_sync(&self, verdict: &Verdict) -> bool {
        let Operation::Sync(sync) = verdict.operation else { return false };
        !self.sync_outcomes.contains_key(&(self.worlds, sync))
    }
}
