//! The part of the account that is about attempts of collectives: what began, on what, and how it ended.

use super::{Checker, INSTEAD_OF_PAIRWISE, OpKey, Seen};
use pccl_master::state::MasterState;
use pccl_protocol::*;
use std::collections::BTreeSet;

impl Checker {
    pub(super) fn commence(&mut self, client: u64, commence: &Commence) {
        let op = commence.op;
        let key = self.key(client, op).expect("a known client");
        if let Some(members) = self.begun.get(&key) {
            assert!(members.contains(&client), "{op} began for somebody who is no participant");
            assert_eq!(self.named.get(&key), Some(&commence.algorithm), "{op} began in two ways");
            return;
        }
        self.began(key, Some(commence.algorithm));
    }

    /// An attempt has begun for all, as the master says: to those that have not begun early, by the algorithm that it
    /// names.
    fn began(&mut self, key: OpKey, named: Option<Algorithm>) {
        let op = key.2;
        // Of what nobody is told, a newer plan may have gone out since, for the same input.
        let is_latest = self.latest[&(key.0, key.1)] == op.epoch;
        assert!(is_latest || named.is_none(), "{op} began in an old epoch");
        let ring: BTreeSet<PeerId> =
            self.rings[&(key.0, key.1, op.epoch)].iter().map(|member| member.0).collect();
        let votes = &self.votes[&key];
        // A vote by somebody who has gone since counts for nothing.
        let first = self.members(key.0).find_map(|(number, _)| votes.get(number));
        let mut members = BTreeSet::new();
        for (number, seen) in self.members(key.0) {
            assert!(seen.accepted, "{op} began although a newcomer is in the ring");
            assert!(votes.contains_key(number), "{op} began without the vote of c{number}");
            let differs =
                votes.get(number).zip(first).is_none_or(|(one, other)| one.difference(other).is_some());
            assert!(!differs, "{op} began with different arguments");
            let is_outdated = votes.get(number).is_some_and(|vote| vote.by_rank && !vote.knew_ring);
            assert!(!is_outdated, "{op} began although c{number} named a rank of another ring");
            assert!(self.stands_at(seen, &key), "{op} began on a ring that c{number} did not confirm");
            assert!(seen.peer.is_some_and(|peer| ring.contains(&peer)));
            members.insert(*number);
        }
        assert_eq!(members.len(), ring.len(), "{op} began with a dead member in its ring");
        let vote = first.expect("votes").clone();
        let order: Vec<PeerId> =
            self.rings[&(key.0, key.1, op.epoch)].iter().map(|member| member.0).collect();
        assert_eq!(vote.collective.misfit(&order), None, "{op} began for other members");
        *self.begun_kinds.entry(vote.kind().text()).or_insert(0) += 1;
        if is_latest {
            self.algorithm(&key, named, &vote, ring.len());
        }
        self.begun.insert(key, members);
        self.begun_at.insert(key, self.now);
    }

    /// Whether a member has said of its edges of the ring of an attempt that they stand.
    fn stands_at(&self, seen: &Seen, key: &OpKey) -> bool {
        let ring = &self.rings[&(key.0, key.1, key.2.epoch)];
        let edges = (0..ring.len()).map(|rank| (ring[rank].0, ring[(rank + 1) % ring.len()].0, ring[rank].1));
        let mut mine = edges.filter(|edge| seen.peer == Some(edge.0) || seen.peer == Some(edge.1));
        ring.len() == 1 || mine.all(|edge| seen.up.contains(&edge))
    }

    /// The named algorithm follows from the plan, and a mesh is used only as long as it has no fault.
    fn algorithm(&mut self, key: &OpKey, named: Option<Algorithm>, vote: &Descriptor, ranks: usize) {
        let (mesh, op) = (&self.meshes[&(key.0, key.1)], key.2);
        let planned = vote.algorithm_for(ranks, mesh.paths);
        let named = named.unwrap_or(planned);
        assert_eq!(named, planned, "{op} does not go as its plan says");
        assert!(!named.uses_mesh() || !mesh.failed, "{op} uses a mesh that does not stand");
        let wished = vote.algorithm_for(ranks, Paths { mesh: true, ..mesh.paths });
        let is_instead = (wished, named) == (Algorithm::Pairwise, Algorithm::Ring);
        let name = if is_instead { INSTEAD_OF_PAIRWISE.to_owned() } else { named.to_string() };
        *self.begun_by.entry(name).or_insert(0) += 1;
        self.named.insert(*key, named);
    }

    pub(super) fn outcome(&mut self, client: u64, packet: &OpOutcome) {
        let key = self.key(client, packet.op).expect("a known client");
        if let Some(known) = self.outcomes.get(&key) {
            assert_eq!(*known, packet.outcome, "two outcomes of {}", packet.op);
            return;
        }
        // A peer that votes for it in a later epoch that counts on is told what it came to.
        let counted = self.counted[&(key.0, key.1, packet.op.epoch)];
        let decided = (key.0, key.1, OpId { epoch: counted, ..packet.op });
        if let Some(known) = self.decided.get(&decided) {
            assert_eq!(*known, packet.outcome, "two outcomes of {}", packet.op);
            return;
        }
        self.decided.insert(decided, packet.outcome.clone());
        if matches!(packet.outcome, Outcome::Done(_)) {
            if !self.begun.contains_key(&key) {
                self.began(key, None);
            }
            let members = &self.begun[&key];
            let clean = self.clean.get(&key);
            assert!(
                members.iter().all(|member| clean.is_some_and(|clean| clean.contains(member))),
                "{} is done although a participant is not",
                packet.op
            );
        }
        self.done += u64::from(matches!(packet.outcome, Outcome::Done(_)));
        let next = self.attempts.entry((key.0, key.1, counted, packet.op.tag)).or_insert(0);
        assert_eq!(*next, packet.op.attempt, "an attempt of {} was skipped", packet.op);
        *next += 1;
        self.outcomes.insert(key, packet.outcome.clone());
    }

    /// Attempts for which nobody waited to hear that they began.
    pub(super) fn running(&mut self, master: &MasterState) {
        for group in master.snapshot().groups {
            for op in group.running {
                let key = (group.group, self.life(group.group), op);
                if !self.begun.contains_key(&key) {
                    self.begun_unsaid += 1;
                    self.began(key, None);
                }
            }
        }
    }

    /// Operations that had to be decided by now: somebody in them was lost, or said what only ends in an abort.
    pub(crate) fn nothing_owed(&mut self) {
        for key in std::mem::take(&mut self.owed) {
            let over =
                self.outcomes.contains_key(&key) || self.begun.get(&key).is_none_or(BTreeSet::is_empty);
            assert!(over, "{} of group {} should have been decided", key.2, key.0);
        }
    }

    /// If the attempt has no outcome yet: when it began, if it did.
    pub(crate) fn undecided(&self, client: u64, op: OpId) -> Option<Option<u64>> {
        let key = self.key(client, op)?;
        (!self.outcomes.contains_key(&key)).then(|| self.begun_at.get(&key).copied())
    }

    /// For each vote of a collective that is open: who has not voted.
    pub(crate) fn missing_votes(&self, master: &MasterState) -> Vec<(GroupId, OpId, Vec<PeerId>)> {
        let mut all = Vec::new();
        for group in master.snapshot().groups {
            for op in group.voting {
                let votes = self.votes.get(&(group.group, self.life(group.group), op));
                let voted = |peer: &PeerId| {
                    let client = self.client_of(*peer).map(|(client, _)| client);
                    client.is_some_and(|client| votes.is_some_and(|votes| votes.contains_key(&client)))
                };
                all.push((group.group, op, group.ring.iter().filter(|peer| !voted(peer)).copied().collect()));
            }
        }
        all
    }
}
