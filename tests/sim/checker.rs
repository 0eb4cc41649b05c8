//! Rules that must hold, judged from the packets alone: a second, much simpler account of who is in the run.

mod attempts;
mod judge;
mod rings;
mod syncs;

pub(crate) use judge::is_crossing;

use crate::client::EdgeKey;
use crate::loans::Loans;
use crate::revisions::Known;
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
    /// It was dropped for its ports before, and has to wait.
    told_to_wait: bool,
    /// It is known that others can dial it.
    surely_dialed: bool,
    /// Edges of which it said that they stand.
    up: BTreeSet<EdgeKey>,
}

/// How attempts are counted that went around the ring because there was no mesh.
pub(crate) const INSTEAD_OF_PAIRWISE: &str = "ring instead of pairwise";

/// A ring: members, generations, connections.
type Ring = Vec<(PeerId, LinkGeneration, u16)>;

/// Knowledge of a mesh: its edges, and whether one of them failed.
#[derive(Debug, Default)]
struct Mesh {
    epoch: GroupEpoch,
    edges: BTreeSet<EdgeKey>,
    failed: bool,
    paths: Paths,
    shares: Vec<u16>,
}

/// An attempt in one life of a group: a group that was empty begins anew.
type OpKey = (GroupId, u64, OpId);

/// A sync in one life of the world.
pub(crate) type SyncKey = (u64, SyncId);

#[derive(Debug, Default)]
pub(crate) struct Checker {
    clients: BTreeMap<u64, Seen>,
    /// How often a group was empty.
    lives: BTreeMap<GroupId, u64>,
    rings: BTreeMap<(GroupId, u64, GroupEpoch), Ring>,
    /// Since when the attempts of an epoch are counted.
    counted: BTreeMap<(GroupId, u64, GroupEpoch), GroupEpoch>,
    latest: BTreeMap<(GroupId, u64), GroupEpoch>,
    /// The mesh of the latest ring of each group, and all edges that ever failed in one.
    meshes: BTreeMap<(GroupId, u64), Mesh>,
    /// How many collectives of each kind have begun.
    pub(crate) begun_kinds: BTreeMap<&'static str, u64>,
    failed: BTreeMap<(GroupId, u64), BTreeSet<EdgeKey>>,
    votes: BTreeMap<OpKey, BTreeMap<u64, Descriptor>>,
    begun: BTreeMap<OpKey, BTreeSet<u64>>,
    named: BTreeMap<OpKey, Algorithm>,
    begun_at: BTreeMap<OpKey, u64>,
    /// Attempts that have to be decided before the present input is over.
    owed: BTreeSet<OpKey>,
    /// The last sync vote of each peer, and the sources that the last plan gave to it.
    sync_votes: BTreeMap<PeerId, SyncInitiate>,
    sources: BTreeMap<PeerId, Vec<PeerId>>,
    now: u64,
    clean: BTreeMap<OpKey, BTreeSet<u64>>,
    outcomes: BTreeMap<OpKey, Outcome>,
    /// The same, with the epoch since which attempts are counted.
    decided: BTreeMap<OpKey, Outcome>,
    attempts: BTreeMap<(GroupId, u64, GroupEpoch, Tag), u32>,
    /// How often the world was empty: numbers of syncs begin anew then.
    pub(crate) worlds: u64,
    pub(crate) loans: Loans,
    min_world: u32,
    syncs: BTreeMap<(u64, RequestId), SyncKey>,
    ready: BTreeSet<(u64, SyncKey)>,
    sync_outcomes: BTreeMap<SyncKey, SyncOutcome>,
    contents: BTreeMap<SyncKey, (Revision, Vec<(String, u128)>)>,
    committed: BTreeMap<(GroupId, u64), Revision>,
    /// The last committed sync of each group, and who took part.
    holders: BTreeMap<(GroupId, u64), (SyncKey, BTreeSet<u64>)>,
    pub(crate) known: Known,
    /// Senders and receivers of each round of probes.
    probes: BTreeMap<(u64, u32), (BTreeSet<u64>, BTreeSet<PeerId>)>,
    pub(crate) done: u64,
    /// Attempts that began for all, without a word to anybody, and were not decided at once.
    pub(crate) begun_unsaid: u64,
    /// Meshes that were planned again for the same ring after a fault.
    pub(crate) renewed_meshes: u64,
    /// Ring plans by which large operations go by pairwise exchange with shares that are not equal.
    pub(crate) shared_plans: u64,
    /// Number of attempts that began, by algorithm.
    pub(crate) begun_by: BTreeMap<String, u64>,
}

/// Whether the master tells a newcomer that it is not let in for now.
fn is_told_to_wait(text: &str) -> bool {
    text.starts_with("admission waits for ") || text.contains(" offers revision ")
}

impl Checker {
    /// Of a run in which nothing happens in a smaller world than this.
    pub(crate) fn new(min_world: u32) -> Self {
        Self { min_world, ..Self::default() }
    }

    /// The place of a client, and whether it is a newcomer that waits.
    pub(crate) fn newcomer(&self, client: u64) -> ((GroupId, u64), bool) {
        let seen = &self.clients[&client];
        ((seen.group, self.life(seen.group)), seen.peer.is_some() && !seen.in_ring && !seen.accepted)
    }

    /// The content that a sync has committed, once somebody has put it in place.
    pub(crate) fn content_of(&self, sync: SyncKey) -> Option<(Revision, &[(String, u128)])> {
        self.contents.get(&sync).map(|(revision, content)| (*revision, &content[..]))
    }

    pub(crate) fn any_accepted(&self, group: GroupId) -> bool {
        self.members(group).any(|(_, seen)| seen.accepted)
    }

    /// Whether one is left of those who held what a group has committed last.
    pub(crate) fn any_holder(&self, place: (GroupId, u64)) -> bool {
        self.holders
            .get(&place)
            .is_some_and(|(_, held)| held.iter().any(|one| self.clients.contains_key(one)))
    }

    pub(crate) fn is_too_small(&self) -> bool {
        let accepted = self.clients.values().filter(|seen| seen.accepted).count();
        accepted < self.min_world as usize
    }

    /// Whether a newcomer offers what is as new as what its group has committed.
    pub(crate) fn offers_as_new(&self, client: u64, place: (GroupId, u64)) -> bool {
        let committed = self.committed_last(place);
        let offered = self.known.offer_of(client);
        committed.zip(offered).is_some_and(|(committed, offered)| offered >= committed)
    }

    pub(crate) fn place_of(&self, client: u64) -> Option<(GroupId, u64)> {
        self.clients.get(&client).map(|seen| (seen.group, self.life(seen.group)))
    }

    /// The last committed sync of a group, and who took part.
    pub(crate) fn holders_of(&self, place: (GroupId, u64)) -> Option<&(SyncKey, BTreeSet<u64>)> {
        self.holders.get(&place)
    }

    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn life(&self, group: GroupId) -> u64 {
        self.lives.get(&group).copied().unwrap_or(0)
    }

    fn key(&self, client: u64, op: OpId) -> Option<OpKey> {
        let group = self.clients.get(&client)?.group;
        Some((group, self.life(group), op))
    }

    fn members(&self, group: GroupId) -> impl Iterator<Item = (&u64, &Seen)> {
        self.clients.iter().filter(move |(_, seen)| seen.group == group && seen.in_ring)
    }

    pub(crate) fn before(&mut self, now: u64, input: &Input) {
        self.now = now;
        match input {
            Input::Connected { client: ClientKey(key), .. } => {
                let group = GroupId(u32::MAX);
                let fresh = Seen {
                    peer: None,
                    group,
                    accepted: false,
                    in_ring: false,
                    told_to_wait: false,
                    surely_dialed: false,
                    up: BTreeSet::new(),
                };
                self.clients.insert(*key, fresh);
            }
            Input::Disconnected { client: ClientKey(key), .. } => self.closed(*key),
            Input::Packet { client: ClientKey(key), packet } => self.packet(*key, packet),
            Input::Malformed { .. }
            | Input::SlowReader { .. }
            | Input::Unread { .. }
            | Input::Tick
            | Input::LoopGap(_)
            | Input::Kick { .. }
            | Input::AcceptRevision { .. }
            | Input::Planned { .. }
            | Input::Away { .. }
            | Input::Returned { .. }
            | Input::Refused { .. }
            | Input::Stop => {}
            Input::Reached { peer, closed, .. } => {
                let seen = self.clients.values_mut().find(|seen| seen.peer == Some(*peer));
                seen.into_iter().for_each(|seen| seen.surely_dialed |= closed.is_empty());
            }
        }
    }

    fn packet(&mut self, client: u64, packet: &C2m) {
        if self.may_say(client, packet) {
            self.loans.packet(client, self.now, self.worlds, packet);
        }
        match packet {
            C2m::Register(register) => {
                self.known.registered(client, register);
                if let Some(seen) = self.clients.get_mut(&client).filter(|seen| seen.peer.is_none()) {
                    seen.group = register.group;
                    seen.surely_dialed = register.outbound_only == Some(false);
                }
            }
            C2m::Leave(_) => {
                let Some(group) = self.clients.get(&client).map(|seen| seen.group) else { return };
                let holders = self.holders.get(&(group, self.life(group)));
                if holders.is_some_and(|(_, holders)| holders.contains(&client)) {
                    self.known.left(group);
                }
            }
            C2m::EdgeReport(report) => {
                let Some(seen) = self.clients.get_mut(&client) else { return };
                let key = |name: &EdgeName| (name.from, name.to, name.generation);
                seen.up.extend(report.up.iter().map(key));
                let group = seen.group;
                for fault in &report.broken {
                    self.mesh_failed(group, (fault.from, fault.to, fault.generation));
                }
            }
            C2m::Initiate(initiate) => {
                if let Some(key) = self.key(client, initiate.op) {
                    self.votes.entry(key).or_default().insert(client, initiate.descriptor.clone());
                }
            }
            C2m::Complete(complete) => {
                let Some(key) = self.key(client, complete.op) else { return };
                let kind = complete.fault.as_ref().map(|fault| fault.kind);
                let takes_part = self.begun.get(&key).is_some_and(|members| members.contains(&client));
                match kind {
                    None => drop(self.clean.entry(key).or_default().insert(client)),
                    Some(OpFaultKind::InboundLost | OpFaultKind::OutboundLost) => {}
                    Some(_) if takes_part && !self.outcomes.contains_key(&key) => {
                        self.owed.insert(key);
                    }
                    Some(_) => {}
                }
            }
            C2m::GiveUp(GiveUp { vote: VoteRef::Collective(op), .. }) => {
                let Some(key) = self.key(client, *op) else { return };
                let takes_part = self.begun.get(&key).is_some_and(|members| members.contains(&client));
                if takes_part && !self.outcomes.contains_key(&key) {
                    self.owed.insert(key);
                }
            }
            C2m::SyncInitiate(vote) => {
                if let Some(peer) = self.peer_of(client) {
                    self.sync_votes.insert(peer, vote.clone());
                }
            }
            C2m::SyncComplete(SyncComplete { sync, report: SyncReport::Ready(_), .. }) => {
                self.ready.insert((client, (self.worlds, *sync)));
            }
            _ => {}
        }
    }

    /// A connection has ended, by whichever side.
    pub(crate) fn closed(&mut self, client: u64) {
        let gone = self.clients.remove(&client);
        self.loans.closed(client);
        for (key, members) in &mut self.begun {
            if members.remove(&client) && !self.outcomes.contains_key(key) {
                self.owed.insert(*key);
            }
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
            M2c::GroupPlan(plan) => self.ring(client, plan),
            M2c::Warning(text) if is_told_to_wait(text.as_str()) => {
                self.clients.get_mut(&client).expect("a known client").told_to_wait = true;
            }
            M2c::Admitted(_) => {
                let seen = self.clients.get_mut(&client).expect("a known client");
                assert!(seen.in_ring && !seen.accepted, "admitted without a ring, or twice");
                seen.accepted = true;
            }
            M2c::Commence(commence) => self.commence(client, commence),
            M2c::Outcome(outcome) => self.outcome(client, outcome),
            M2c::Stale(stale) => {
                let group = self.clients[&client].group;
                assert_eq!(self.latest.get(&(group, self.life(group))), Some(&stale.epoch), "not the latest");
            }
            M2c::PendingAnswer(answer) => {
                let waits = || self.clients.iter().filter(|(_, seen)| seen.peer.is_some() && !seen.in_ring);
                // A newcomer that was told to wait longer may or may not count by now, and one that fetches ahead
                // mostly not. For one that cannot be dialed there may be no room, and of others it has to be known.
                let counts = |seen: &Seen| seen.surely_dialed && !seen.told_to_wait;
                let must = waits().any(|(one, seen)| counts(seen) && self.surely_counts(*one));
                let may = waits().any(|(one, _)| self.may_be_let_in(*one).is_some());
                assert!(if answer.pending { may } else { !must }, "the pending query was answered wrongly");
            }
            M2c::SyncPlan(plan) => {
                self.syncs.insert((client, plan.request), (self.worlds, plan.plan.sync));
                if let Some(peer) = self.peer_of(client) {
                    let sources = plan.plan.sources.iter().map(|source| source.peer).collect();
                    self.sources.insert(peer, sources);
                }
            }
            M2c::SyncOutcome(outcome) => self.sync_outcome(client, outcome),
            M2c::ProbePlan(plan) => self.probe(client, plan),
            M2c::StateAhead(plan) => self.told_ahead(client, plan),
            M2c::TopologyDone(_) | M2c::VoteWithdrawn(_) => self.loans.answered_topology(client),
            M2c::GroupFormed(_) | M2c::FormFailed(_) => panic!("nobody of this model forms groups"),
            M2c::Keys(_) | M2c::Tickets(_) => panic!("the state knows no keys"),
            M2c::TooFewPeers(few) => {
                // This answers its vote, which counts no more.
                if let VoteRef::Collective(op) = few.vote
                    && let Some(key) = self.key(client, op)
                    && let Some(votes) = self.votes.get_mut(&key)
                {
                    votes.remove(&client);
                }
            }
            M2c::Call(_) => panic!("nobody asks to be dialed"),
            M2c::OptimizeDone(_)
            | M2c::Kicked(_)
            | M2c::ReachPlan(_)
            | M2c::Warning(_)
            | M2c::Sizes(_)
            | M2c::TopologyProgress(_)
            | M2c::Echo(_)
            | M2c::Goodbye(_)
            | M2c::Rates(_)
            | M2c::Examined(_)
            | M2c::Returned(_)
            | M2c::Received(_)
            | M2c::Append(_)
            | M2c::Copies(_)
            | M2c::StandsBy(_)
            | M2c::Claim(_)
            | M2c::Status(_) => {}
        }
    }

    /// Nobody sends or receives two probes at once, unless all send to all, and none leaves its group.
    fn probe(&mut self, client: u64, plan: &ProbePlan) {
        let seen = &self.clients[&client];
        let target = self.client_of(plan.to).map(|(_, seen)| seen.group);
        assert!(seen.accepted && target == Some(seen.group), "a probe of somebody else");
        let round = (plan.round.optimization, plan.round.round);
        if plan.crowded {
            return;
        }
        let (senders, receivers) = self.probes.entry(round).or_default();
        assert!(senders.insert(client) && receivers.insert(plan.to), "two probes at once in round {round:?}");
    }

    pub(crate) fn after(&mut self, master: &MasterState) {
        self.running(master);
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
        if snapshot.peers.is_empty() {
            self.worlds += 1;
            self.known.emptied();
        }
    }

    pub(crate) fn peer_of(&self, client: u64) -> Option<PeerId> {
        self.clients.get(&client)?.peer
    }

    fn client_of(&self, peer: PeerId) -> Option<(u64, &Seen)> {
        self.clients.iter().find(|(_, seen)| seen.peer == Some(peer)).map(|(client, seen)| (*client, seen))
    }

    /// The connection of a peer.
    pub(crate) fn connection_of(&self, peer: PeerId) -> Option<u64> {
        self.client_of(peer).map(|(client, _)| client)
    }

    /// The last sync vote of a peer, and those of the peers that were to fetch from it.
    pub(crate) fn fetch_of(&self, peer: PeerId) -> (RequestId, Vec<(PeerId, RequestId)>) {
        let vote = |peer: &PeerId| self.sync_votes.get(peer).map_or(RequestId(0), |vote| vote.request);
        let fetch = |(other, sources): (&PeerId, &Vec<PeerId>)| {
            sources.contains(&peer).then(|| (*other, vote(other)))
        };
        (vote(&peer), self.sources.iter().filter_map(fetch).collect())
    }

    /// The sources that a peer was given last.
    pub(crate) fn sources_of(&self, peer: PeerId) -> Vec<PeerId> {
        self.sources.get(&peer).cloned().unwrap_or_default()
    }
}
