//! What must hold, judged from the packets alone: a second, much simpler account of who is in the run.

use crate::client::{Client, Power};
use pccl_master::state::{ClientKey, Input, MasterState};
use pccl_protocol::*;
use std::collections::{BTreeMap, BTreeSet};

/// A client as its packets show it.
#[derive(Debug, Clone)]
struct Seen {
    peer: Option<PeerId>,
    group: GroupId,
    accepted: bool,
    in_ring: bool,
    confirmed: Option<GroupEpoch>,
}

/// A ring: members, generations, connections.
type Ring = Vec<(PeerId, LinkGeneration, u16)>;

/// An attempt in one life of a group: a group that was empty begins anew.
type OpKey = (GroupId, u64, OpId);

/// A sync in one life of the world.
type SyncKey = (u64, SyncId);

#[derive(Debug, Default)]
pub(crate) struct Checker {
    clients: BTreeMap<u64, Seen>,
    /// How often a group was empty.
    lives: BTreeMap<GroupId, u64>,
    rings: BTreeMap<(GroupId, u64, GroupEpoch), Ring>,
    latest: BTreeMap<(GroupId, u64), GroupEpoch>,
    votes: BTreeMap<OpKey, BTreeMap<u64, Descriptor>>,
    begun: BTreeMap<OpKey, BTreeSet<u64>>,
    clean: BTreeMap<OpKey, BTreeSet<u64>>,
    outcomes: BTreeMap<OpKey, Outcome>,
    attempts: BTreeMap<(GroupId, u64, GroupEpoch, u64), u32>,
    /// How often the world was empty: numbers of syncs begin anew then.
    worlds: u64,
    syncs: BTreeMap<(u64, RequestId), SyncKey>,
    ready: BTreeSet<(u64, SyncKey)>,
    sync_outcomes: BTreeMap<SyncKey, SyncOutcome>,
    contents: BTreeMap<SyncKey, (Revision, Vec<(String, u128)>)>,
    committed: BTreeMap<(GroupId, u64), Revision>,
    pub(crate) done: u64,
}

impl Checker {
    fn life(&self, group: GroupId) -> u64 {
        self.lives.get(&group).copied().unwrap_or(0)
    }

    fn key(&self, client: u64, op: OpId) -> Option<OpKey> {
        let group = self.clients.get(&client)?.group;
        Some((group, self.life(group), op))
    }

    fn members(&self, group: GroupId) -> impl Iterator<Item = (&u64, &Seen)> {
        self.clients.iter().filter(move |(_, seen)| seen.group == group && seen.in_ring)
    }

    pub(crate) fn before(&mut self, input: &Input, _master: &MasterState) {
        match input {
            Input::Connected { client: ClientKey(key), .. } => {
                let group = GroupId(u32::MAX);
                let fresh = Seen { peer: None, group, accepted: false, in_ring: false, confirmed: None };
                self.clients.insert(*key, fresh);
            }
            Input::Disconnected { client: ClientKey(key), .. } => self.closed(*key),
            Input::Packet { client: ClientKey(key), packet } => self.packet(*key, packet),
            Input::Malformed { .. }
            | Input::SlowReader { .. }
            | Input::Tick
            | Input::LoopGap(_)
            | Input::Kick { .. }
            | Input::Stop => {}
        }
    }

    fn packet(&mut self, client: u64, packet: &C2m) {
        match packet {
            C2m::Register(register) => {
                if let Some(seen) = self.clients.get_mut(&client).filter(|seen| seen.peer.is_none()) {
                    seen.group = register.group;
                }
            }
            C2m::RingReport(report) if report.faults.is_empty() => {
                if let Some(seen) = self.clients.get_mut(&client) {
                    seen.confirmed = Some(report.epoch);
                }
            }
            C2m::Initiate(initiate) => {
                if let Some(key) = self.key(client, initiate.op) {
                    self.votes.entry(key).or_default().insert(client, initiate.descriptor.clone());
                }
            }
            C2m::Complete(complete) if complete.fault.is_none() => {
                if let Some(key) = self.key(client, complete.op) {
                    self.clean.entry(key).or_default().insert(client);
                }
            }
            C2m::SyncComplete(SyncComplete { sync, report: SyncReport::Ready(_) }) => {
                self.ready.insert((client, (self.worlds, *sync)));
            }
            _ => {}
        }
    }

    /// A connection has ended, by whichever side.
    pub(crate) fn closed(&mut self, client: u64) {
        let gone = self.clients.remove(&client);
        for members in self.begun.values_mut() {
            members.remove(&client);
        }
        // The group of the last member is forgotten and begins anew.
        if let Some(gone) = gone.filter(|gone| gone.in_ring && self.members(gone.group).next().is_none()) {
            *self.lives.entry(gone.group).or_insert(0) += 1;
        }
    }

    pub(crate) fn sent(&mut self, client: u64, packet: &M2c) {
        match packet {
            M2c::Registered(answer) => {
                let seen = self.clients.get_mut(&client).expect("a known client");
                assert_eq!(seen.peer, None, "registered twice");
                seen.peer = Some(answer.peer);
            }
            M2c::RingPlan(plan) => self.ring(client, plan),
            M2c::Admitted(_) => {
                let seen = self.clients.get_mut(&client).expect("a known client");
                assert!(seen.in_ring && !seen.accepted, "admitted without a ring, or twice");
                seen.accepted = true;
            }
            M2c::Commence(commence) => self.commence(client, commence.op),
            M2c::Outcome(outcome) => self.outcome(client, outcome),
            M2c::Stale(stale) => {
                let group = self.clients[&client].group;
                assert_eq!(self.latest.get(&(group, self.life(group))), Some(&stale.epoch), "not the latest");
            }
            M2c::PendingAnswer(answer) => {
                let waits = self.clients.values().any(|seen| seen.peer.is_some() && !seen.in_ring);
                assert_eq!(answer.pending, waits, "the pending query was answered wrongly");
            }
            M2c::SyncPlan(plan) => {
                self.syncs.insert((client, plan.request), (self.worlds, plan.plan.sync));
            }
            M2c::SyncOutcome(outcome) => self.sync_outcome(client, outcome),
            M2c::Kicked(_)
            | M2c::Sizes(_)
            | M2c::TopologyDone(_)
            | M2c::TopologyProgress(_)
            | M2c::TopologyWithdrawn(_)
            | M2c::TooFewPeers(_)
            | M2c::Echo(_)
            | M2c::Goodbye(_)
            | M2c::Status(_) => {}
        }
    }

    fn ring(&mut self, client: u64, plan: &RingPlan) {
        self.clients.get_mut(&client).expect("a known client").in_ring = true;
        let place = (plan.group, self.life(plan.group));
        let ring: Ring = plan.ring.iter().map(|m| (m.peer, m.generation, m.connections)).collect();
        let known = self.rings.entry((place.0, place.1, plan.epoch)).or_insert_with(|| ring.clone());
        assert_eq!(*known, ring, "two rings in epoch {}", plan.epoch);
        let latest = self.latest.entry(place).or_insert(plan.epoch);
        assert!(*latest <= plan.epoch, "epochs run backwards");
        *latest = plan.epoch;
        let me = self.clients[&client].peer;
        assert!(plan.ring.iter().any(|m| Some(m.peer) == me), "a ring for somebody outside it");
    }

    fn commence(&mut self, client: u64, op: OpId) {
        let key = self.key(client, op).expect("a known client");
        if let Some(members) = self.begun.get(&key) {
            assert!(members.contains(&client), "{op} began for somebody who is no participant");
            return;
        }
        assert_eq!(self.latest[&(key.0, key.1)], op.epoch, "{op} began in an old epoch");
        let ring: BTreeSet<PeerId> =
            self.rings[&(key.0, key.1, op.epoch)].iter().map(|member| member.0).collect();
        let votes = &self.votes[&key];
        let first = votes.values().next();
        let mut members = BTreeSet::new();
        for (number, seen) in self.members(key.0) {
            assert!(seen.accepted, "{op} began although a newcomer is in the ring");
            assert!(votes.contains_key(number), "{op} began without the vote of c{number}");
            assert_eq!(votes.get(number), first, "{op} began with different arguments");
            assert_eq!(seen.confirmed, Some(op.epoch), "{op} began on a ring that c{number} did not confirm");
            assert!(seen.peer.is_some_and(|peer| ring.contains(&peer)));
            members.insert(*number);
        }
        assert_eq!(members.len(), ring.len(), "{op} began with a dead member in its ring");
        self.begun.insert(key, members);
    }

    fn outcome(&mut self, client: u64, packet: &OpOutcome) {
        let key = self.key(client, packet.op).expect("a known client");
        if let Some(known) = self.outcomes.get(&key) {
            assert_eq!(*known, packet.outcome, "two outcomes of {}", packet.op);
            return;
        }
        if matches!(packet.outcome, Outcome::Done(_)) {
            let members = self.begun.get(&key).expect("only what began can be done");
            let clean = self.clean.get(&key);
            assert!(
                members.iter().all(|member| clean.is_some_and(|clean| clean.contains(member))),
                "{} is done although a participant is not",
                packet.op
            );
        }
        self.done += u64::from(matches!(packet.outcome, Outcome::Done(_)));
        let next = self.attempts.entry((key.0, key.1, packet.op.epoch, packet.op.tag)).or_insert(0);
        assert_eq!(*next, packet.op.attempt, "an attempt of {} was skipped", packet.op);
        *next += 1;
        self.outcomes.insert(key, packet.outcome.clone());
    }

    fn sync_outcome(&mut self, client: u64, packet: &SyncOutcomeFor) {
        // A sync that fails before its plan has no number that the client knows.
        let Some(sync) = self.syncs.get(&(client, packet.request)).copied() else {
            assert!(matches!(packet.outcome, SyncOutcome::Failed(_)), "committed without a plan");
            return;
        };
        let known = self.sync_outcomes.entry(sync).or_insert_with(|| packet.outcome.clone());
        assert_eq!(*known, packet.outcome, "two outcomes of sync {}", sync.1);
        if matches!(packet.outcome, SyncOutcome::Committed(_)) {
            assert!(
                self.ready.contains(&(client, sync)),
                "sync {} committed for somebody who is not ready",
                sync.1
            );
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

    pub(crate) fn after(&mut self, master: &MasterState) {
        let snapshot = master.snapshot();
        for group in &snapshot.groups {
            if let Some(revision) = group.committed {
                let place = (group.group, self.life(group.group));
                if let Some(before) = self.committed.insert(place, revision) {
                    let grows = revision >= before && revision.0 <= before.0 + 1;
                    assert!(grows, "revision {before} was followed by {revision}");
                }
            }
        }
        self.worlds += u64::from(snapshot.peers.is_empty());
    }

    /// Whether a neighbour of `client` cannot be told from a peer with broken connections: it is dead, and the news has
    /// not arrived, or something was done to it.
    pub(crate) fn trouble_near(&self, client: &Client, clients: &[Client]) -> bool {
        client.plan.iter().flat_map(|plan| &plan.ring).any(|member| {
            let other = clients.iter().find(|other| Some(member.peer) == other.peer);
            other.is_none_or(|other| other.disturbed || other.hostile || other.power != Power::Up)
        })
    }
}
