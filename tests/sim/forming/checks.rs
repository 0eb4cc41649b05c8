//! Rules that must hold of every packet that the master sends.

use super::{World, name_of};
use pccl_protocol::*;

impl World {
    /// Checks the rules that must hold when the master sends it.
    pub(super) fn check(&mut self, key: u64, packet: &M2c) {
        let (seed, peer) = (self.seed, self.peer_of(key));
        match packet {
            M2c::Registered(answer) => {
                self.slots.insert(answer.peer, self.conns[&key].0);
                self.alive.insert(answer.peer);
            }
            M2c::GroupFormed(_) => {
                let snapshot = self.master.snapshot();
                let group = snapshot.groups.iter().find(|group| group.ring.contains(&peer)).expect("a group");
                let uuid = self.voted[&peer];
                let fate = self.fates.get_mut(&uuid).expect("voted for");
                assert!(!fate.failed, "seed {seed}: uuid {uuid} has failed and is formed");
                self.sums.formed += u64::from(!fate.formed);
                fate.formed = true;
                let (fate, slots) = (&self.fates[&uuid], &self.slots);
                let is_it = |(id, member): (&PeerId, &MemberRef)| match member {
                    MemberRef::Peer(listed) => listed == id,
                    MemberRef::Name(name) => *name == name_of(slots[id]),
                };
                for member in &group.ring {
                    let list = fate.votes.get(member).expect("every member has called");
                    assert_eq!(list.len(), group.ring.len(), "seed {seed}: uuid {uuid} has other members");
                    assert!(
                        group.ring.iter().zip(list).all(is_it),
                        "seed {seed}: {list:?} is not {:?}",
                        group.ring
                    );
                    assert!(self.alive.contains(member), "seed {seed}: a member of uuid {uuid} is dead");
                }
            }
            M2c::FormFailed(failed) => self.check_failed(peer, &failed.verdict),
            M2c::Commence(commence) => {
                let snapshot = self.master.snapshot();
                let group = snapshot.groups.iter().find(|group| group.ring.contains(&peer)).expect("a group");
                let takes_part = |member: &&PeerId| commence.op.tag.involves(**member);
                let members: Vec<PeerId> = group.ring.iter().filter(takes_part).copied().collect();
                assert!(members.contains(&peer), "seed {seed}: {} begins for somebody else", commence.op);
                for member in &members {
                    assert!(
                        self.alive.contains(member),
                        "seed {seed}: {} begins without a member",
                        commence.op
                    );
                }
                self.begun.entry((group.group, commence.op)).or_default().extend(members);
            }
            M2c::Outcome(OpOutcome { op, outcome: Outcome::Done(_) }) => {
                let begun =
                    self.begun.iter().find(|((_, begun), members)| begun == op && members.contains(&peer));
                let (_, members) = begun.expect("it has begun");
                // Data that is sent has to have arrived, whoever is still there.
                let has_to = |member: &&PeerId| op.tag.pair.is_some() || self.alive.contains(*member);
                for member in members.iter().filter(has_to) {
                    let completed = self.completed.contains(&(*member, *op));
                    assert!(completed, "seed {seed}: {op} is done before {member} has completed it");
                }
            }
            M2c::Outcome(OpOutcome { outcome: Outcome::Aborted(verdict), .. })
                if verdict.cause == Cause::GroupBroken =>
            {
                self.sums.broken += 1;
                let first = verdict.culprits.first().expect("somebody is missing").peer;
                let is_gone = !self.alive.contains(&first);
                let moved = self.fates.values().filter(|fate| fate.votes.contains_key(&first)).count() > 1;
                let edge = verdict.detail.as_str().contains("cannot be built");
                assert!(is_gone || moved || edge, "seed {seed}: {verdict}, but it is there");
            }
            M2c::Admitted(_) | M2c::TopologyDone(_) | M2c::TooFewPeers(_) | M2c::Kicked(_) => {
                panic!("seed {seed}: {packet:?} in a run of lists")
            }
            _ => {}
        }
    }

    pub(super) fn check_failed(&mut self, peer: PeerId, verdict: &Verdict) {
        let seed = self.seed;
        let Operation::Forming(GroupUuid(uuid)) = verdict.operation else {
            panic!("of no forming: {verdict}")
        };
        let fate = self.fates.entry(uuid).or_default();
        let again = verdict.detail.as_str().contains("already used");
        assert!(again || !fate.formed, "seed {seed}: uuid {uuid} is formed and has failed: {verdict}");
        assert!(fate.votes.contains_key(&peer), "seed {seed}: an answer to no vote");
        if again {
            return;
        }
        if !std::mem::replace(&mut fate.failed, true) {
            let kind = match verdict.cause {
                Cause::PeerDied => 0,
                Cause::MismatchedCall => 1,
                Cause::CallTimeout => 2,
                Cause::EdgeBroken => 3,
                _ => 4,
            };
            self.sums.failed[kind] += 1;
        }
        let named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        match verdict.cause {
            Cause::PeerDied => {
                assert!(!self.alive.contains(&named[0]), "seed {seed}: {verdict}, but it lives")
            }
            Cause::GroupBroken => {
                assert!(!self.alive.contains(&named[0]), "seed {seed}: {verdict}, but it is connected");
            }
            Cause::EdgeBroken => {
                let ends = (self.slots[&named[0]], self.slots[&named[1]]);
                assert!(self.were_blocked.contains(&ends), "seed {seed}: {verdict}, but the edge is fine");
            }
            Cause::CallTimeout => assert!(!named.is_empty(), "seed {seed}: {verdict} names nobody"),
            Cause::MismatchedCall => {}
            cause => panic!("seed {seed}: {cause} ends no forming"),
        }
    }
}
