//! What must hold, judged from the packets alone: a second, much simpler account of who is in the run.

use crate::client::EdgeKey;
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
    /// Edges of which it said that they stand.
    up: BTreeSet<EdgeKey>,
}

/// How attempts are counted that went around the ring because there was no mesh.
pub(crate) const INSTEAD_OF_PAIRWISE: &str = "ring instead of pairwise";

/// A ring: members, generations, connections.
type Ring = Vec<(PeerId, LinkGeneration, u16)>;

/// What is known of a mesh: its edges, and whether one of them failed.
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
type SyncKey = (u64, SyncId);

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
    worlds: u64,
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
                    up: BTreeSet::new(),
                };
                self.clients.insert(*key, fresh);
            }
            Input::Disconnected { client: ClientKey(key), .. } => self.closed(*key),
            Input::Packet { client: ClientKey(key), packet } => self.packet(*key, packet),
            Input::Malformed { .. }
            | Input::SlowReader { .. }
            | Input::Tick
            | Input::LoopGap(_)
            | Input::Kick { .. }
            | Input::AcceptRevision { .. }
            | Input::Planned { .. }
            | Input::Reached { .. }
            | Input::Stop => {}
        }
    }

    fn packet(&mut self, client: u64, packet: &C2m) {
        match packet {
            C2m::Register(register) => {
                self.known.registered(client, register);
                if let Some(seen) = self.clients.get_mut(&client).filter(|seen| seen.peer.is_none()) {
                    seen.group = register.group;
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
                let waits = || self.clients.values().filter(|seen| seen.peer.is_some() && !seen.in_ring);
                // Who was told to wait longer may or may not count by now.
                let must = waits().any(|seen| !seen.told_to_wait);
                assert!(
                    if answer.pending { waits().next().is_some() } else { !must },
                    "the pending query was answered wrongly"
                );
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
            M2c::GroupFormed(_) | M2c::FormFailed(_) => panic!("nobody of this model forms groups"),
            M2c::OptimizeDone(_)
            | M2c::Kicked(_)
            | M2c::ReachPlan(_)
            | M2c::Warning(_)
            | M2c::Sizes(_)
            | M2c::TopologyDone(_)
            | M2c::TopologyProgress(_)
            | M2c::VoteWithdrawn(_)
            | M2c::TooFewPeers(_)
            | M2c::Echo(_)
            | M2c::Goodbye(_)
            | M2c::Rates(_)
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

    fn ring(&mut self, client: u64, plan: &GroupPlan) {
        self.clients.get_mut(&client).expect("a known client").in_ring = true;
        let place = (plan.group, self.life(plan.group));
        let edge = |rank: usize| {
            let mut edges = plan.edges.iter().filter(|edge| edge.purpose == Purpose::Ring);
            edges.find(|edge| (usize::from(edge.from), usize::from(edge.to)) == (rank, plan.next_of(rank)))
        };
        let member = |(rank, member): (usize, &Member)| {
            let edge = edge(rank).map_or((LinkGeneration(0), 0), |edge| (edge.generation, edge.connections));
            assert!(edge.0.0 > 0 || plan.members.len() == 1, "a ring with a hole: {plan:?}");
            (member.peer, edge.0, edge.1)
        };
        let ring: Ring = plan.members.iter().enumerate().map(member).collect();
        let known = self.rings.entry((place.0, place.1, plan.epoch)).or_insert_with(|| ring.clone());
        assert_eq!(*known, ring, "two rings in epoch {}", plan.epoch);
        let counted = self.counted.entry((place.0, place.1, plan.epoch)).or_insert(plan.counted_since);
        assert_eq!(*counted, plan.counted_since, "two ways to count in epoch {}", plan.epoch);
        let latest = self.latest.entry(place).or_insert(plan.epoch);
        assert!(*latest <= plan.epoch, "epochs run backwards");
        *latest = plan.epoch;
        let me = self.clients[&client].peer;
        assert!(plan.members.iter().any(|m| Some(m.peer) == me), "a ring for somebody outside it");
        self.mesh(place, plan);
    }

    /// Ring and mesh together connect everybody with everybody, without an edge that has failed; or there is no mesh.
    fn mesh(&mut self, place: (GroupId, u64), plan: &GroupPlan) {
        let edges: BTreeSet<EdgeKey> =
            plan.edges_for(Purpose::Mesh).map(|e| (e.from, e.to, e.generation)).collect();
        if let Some(known) = self.meshes.get(&place).filter(|mesh| mesh.epoch == plan.epoch) {
            let told = (&edges, plan.paths, &plan.shares());
            let known = (&known.edges, known.paths, &known.shares);
            assert_eq!(known, told, "two meshes in epoch {}", plan.epoch);
            return;
        }
        let n = plan.members.len();
        let next = (0..n).map(|rank| (plan.members[rank].peer, plan.members[plan.next_of(rank)].peer));
        let pairs: BTreeSet<_> = edges.iter().map(|edge| (edge.0, edge.1)).chain(next).collect();
        assert!(edges.is_empty() || pairs.len() == n * (n - 1), "a mesh with holes: {plan:?}");
        assert!(edges.len() <= n * n.saturating_sub(2), "a mesh with edges of the ring: {plan:?}");
        // A plan that continues the one before has the ring and the mesh of the one before, an edge that failed
        // included; then it is not used.
        let ring_of = |epoch| self.rings.get(&(place.0, place.1, GroupEpoch(epoch)));
        let is_same_ring = ring_of(plan.epoch.0 - 1) == ring_of(plan.epoch.0);
        let continued = self.meshes.get(&place).filter(|mesh| is_same_ring && mesh.edges == edges);
        let has_failed = continued.is_some_and(|mesh| mesh.failed);
        let failed = self.failed.get(&place).filter(|_| !has_failed);
        assert!(failed.is_none_or(|failed| failed.is_disjoint(&edges)), "an edge that failed: {plan:?}");
        let (epoch, paths) = (plan.epoch, plan.paths);
        if paths.mesh {
            assert!(!edges.is_empty() && !has_failed, "a mesh that does not stand: {plan:?}");
            let told = self.members(place.0).all(|(_, seen)| {
                let mine = |edge: &&EdgeKey| seen.peer == Some(edge.0) || seen.peer == Some(edge.1);
                edges.iter().filter(mine).all(|edge| seen.up.contains(edge))
            });
            assert!(told, "not all have said that the mesh stands: {plan:?}");
        }
        let before = self.meshes.get(&place).is_some_and(|mesh| mesh.failed || mesh.edges.is_empty());
        let is_same =
            |before: &Ring| before.iter().map(|one| one.0).eq(plan.members.iter().map(|one| one.peer));
        let last = self.rings.get(&(place.0, place.1, GroupEpoch(plan.epoch.0 - 1)));
        self.renewed_meshes +=
            u64::from(before && !has_failed && !edges.is_empty() && last.is_some_and(is_same));
        let shares = plan.shares();
        assert!(shares.is_empty() || !edges.is_empty(), "shares of a tensor that nobody exchanges: {plan:?}");
        self.shared_plans += u64::from(paths.pairwise && !shares.is_empty());
        self.meshes.insert(place, Mesh { epoch, edges, failed: has_failed, paths, shares });
    }

    fn mesh_failed(&mut self, group: GroupId, edge: EdgeKey) {
        let place = (group, self.life(group));
        if let Some(mesh) = self.meshes.get_mut(&place).filter(|mesh| mesh.edges.contains(&edge)) {
            mesh.failed = true;
            self.failed.entry(place).or_default().insert(edge);
        }
    }

    fn commence(&mut self, client: u64, commence: &Commence) {
        let op = commence.op;
        let key = self.key(client, op).expect("a known client");
        if let Some(members) = self.begun.get(&key) {
            assert!(members.contains(&client), "{op} began for somebody who is no participant");
            assert_eq!(self.named.get(&key), Some(&commence.algorithm), "{op} began in two ways");
            return;
        }
        assert_eq!(self.latest[&(key.0, key.1)], op.epoch, "{op} began in an old epoch");
        let ring: BTreeSet<PeerId> =
            self.rings[&(key.0, key.1, op.epoch)].iter().map(|member| member.0).collect();
        let votes = &self.votes[&key];
        // A vote by somebody who has gone since counts for nothing.
        let first = self.members(key.0).find_map(|(number, _)| votes.get(number));
        let mut members = BTreeSet::new();
        for (number, seen) in self.members(key.0) {
            assert!(seen.accepted, "{op} began although a newcomer is in the ring");
            assert!(votes.contains_key(number), "{op} began without the vote of c{number}");
            assert_eq!(votes.get(number), first, "{op} began with different arguments");
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
        self.algorithm(&key, commence.algorithm, &vote, ring.len());
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

    /// What is named follows from the plan, and a mesh is used only as long as it has no fault.
    fn algorithm(&mut self, key: &OpKey, named: Algorithm, vote: &Descriptor, ranks: usize) {
        let (mesh, op) = (&self.meshes[&(key.0, key.1)], key.2);
        assert_eq!(named, vote.algorithm_for(ranks, mesh.paths), "{op} does not go as its plan says");
        assert!(!named.uses_mesh() || !mesh.failed, "{op} uses a mesh that does not stand");
        let wished = vote.algorithm_for(ranks, Paths { mesh: true, ..mesh.paths });
        let is_instead = (wished, named) == (Algorithm::Pairwise, Algorithm::Ring);
        let name = if is_instead { INSTEAD_OF_PAIRWISE.to_owned() } else { named.to_string() };
        *self.begun_by.entry(name).or_insert(0) += 1;
        self.named.insert(*key, named);
    }

    fn outcome(&mut self, client: u64, packet: &OpOutcome) {
        let key = self.key(client, packet.op).expect("a known client");
        if let Some(known) = self.outcomes.get(&key) {
            assert_eq!(*known, packet.outcome, "two outcomes of {}", packet.op);
            return;
        }
        // Who votes for it in a later epoch that counts on is told what it came to.
        let counted = self.counted[&(key.0, key.1, packet.op.epoch)];
        let decided = (key.0, key.1, OpId { epoch: counted, ..packet.op });
        if let Some(known) = self.decided.get(&decided) {
            assert_eq!(*known, packet.outcome, "two outcomes of {}", packet.op);
            return;
        }
        self.decided.insert(decided, packet.outcome.clone());
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
        let next = self.attempts.entry((key.0, key.1, counted, packet.op.tag)).or_insert(0);
        assert_eq!(*next, packet.op.attempt, "an attempt of {} was skipped", packet.op);
        *next += 1;
        self.outcomes.insert(key, packet.outcome.clone());
    }

    fn sync_outcome(&mut self, client: u64, packet: &SyncOutcomeFor) {
        let planned = self.syncs.get(&(client, packet.request)).copied();
        let sync = match &packet.outcome {
            SyncOutcome::Committed(_) => planned.expect("committed without a plan"),
            SyncOutcome::Failed(Verdict { operation: Operation::Sync(sync), .. }) => (self.worlds, *sync),
            SyncOutcome::Failed(verdict) => panic!("a sync failed as {}", verdict.operation),
        };
        assert!(planned.is_none_or(|planned| planned == sync), "the outcome of another sync");
        if let (SyncOutcome::Committed(revision), None) = (&packet.outcome, self.sync_outcomes.get(&sync)) {
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

    /// An operator has chosen the revision from which a group goes on.
    pub(crate) fn chosen(&mut self, group: GroupId, revision: Revision) {
        self.known.chosen(group, revision);
        self.committed.remove(&(group, self.life(group)));
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
        if snapshot.peers.is_empty() {
            self.worlds += 1;
            self.known.emptied();
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

    /// Whether nobody has been told of the end of this sync.
    pub(crate) fn first_of_sync(&self, verdict: &Verdict) -> bool {
        let Operation::Sync(sync) = verdict.operation else { return false };
        !self.sync_outcomes.contains_key(&(self.worlds, sync))
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

    /// Members of the latest ring of a client's group.
    pub(crate) fn ring_of(&self, client: u64) -> Vec<PeerId> {
        let place = self.clients.get(&client).map(|seen| (seen.group, self.life(seen.group)));
        let epoch = place.and_then(|place| Some((place, *self.latest.get(&place)?)));
        let ring = epoch.and_then(|((group, life), epoch)| self.rings.get(&(group, life, epoch)));
        ring.into_iter().flatten().map(|member| member.0).collect()
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

    /// Who is dropped for its tensors has others than somebody in its group, and of those who hold the committed state
    /// only who has others than another one of them.
    pub(crate) fn judge_shape(&self, client: u64, peer: PeerId) -> Result<(), String> {
        let shape = |peer: PeerId| {
            let entries = &self.sync_votes.get(&peer)?.entries;
            let of = |e: &StateEntry| (e.key.clone(), e.count, e.data_type, e.allow_inequality);
            Some(entries.iter().map(of).collect::<Vec<_>>())
        };
        let group = self.clients[&client].group;
        let holders = self.holders.get(&(group, self.life(group)));
        let holds = |client: &u64| holders.is_some_and(|(_, holders)| holders.contains(client));
        let any = self.members(group).any(|(number, _)| holds(number));
        let other = self.members(group).any(|(number, seen)| {
            (!any || holds(number)) && seen.peer.is_some_and(|other| shape(other) != shape(peer))
        });
        if other { Ok(()) } else { Err("its tensors are those of the others".into()) }
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

    /// What was called for other members must have been: by all, in that ring.
    fn judge_members(&self, verdict: &Verdict, named: &[PeerId]) -> Result<(), String> {
        let Operation::Collective(CollectiveId { op, .. }) = verdict.operation else {
            return Err("of no collective".into());
        };
        let misfit = self.votes.iter().filter(|((.., id), _)| *id == op).any(|((group, life, _), votes)| {
            let ring = self.rings.get(&(*group, *life, op.epoch)).into_iter().flatten();
            let ring: Vec<PeerId> = ring.map(|member| member.0).collect();
            // A group that has been empty counts anew: votes of those who were there before are of no account.
            let is_member = |client: &u64| {
                self.clients.get(client).and_then(|seen| seen.peer).is_some_and(|peer| ring.contains(&peer))
            };
            let votes = votes.iter().filter(|(client, _)| is_member(client));
            let mut misfits = votes.map(|(_, vote)| vote.collective.misfit(&ring));
            misfits.all(|misfit| misfit.is_some_and(|misfit| misfit.missing == named))
        });
        if misfit { Ok(()) } else { Err("it was called for the members that there are".into()) }
    }

    /// A mismatch must be one: the two that are named voted differently.
    pub(crate) fn judge_votes(&self, verdict: &Verdict) -> Result<(), String> {
        let named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        match verdict.cause {
            Cause::MismatchedCall => {}
            Cause::WorldChanged => return self.judge_members(verdict, &named),
            _ => return Ok(()),
        }
        let differ = match (verdict.operation, &named[..]) {
            (Operation::Collective(CollectiveId { op, .. }), [a, b]) => {
                let vote = |peer: PeerId| {
                    let (client, seen) = self.client_of(peer)?;
                    self.votes.get(&(seen.group, self.life(seen.group), op))?.get(&client)
                };
                vote(*a).zip(vote(*b)).is_some_and(|(x, y)| x != y)
            }
            (Operation::Sync(_), [a, b]) => {
                let votes = self.sync_votes.get(a).zip(self.sync_votes.get(b));
                let receives = |vote: &SyncInitiate| vote.strategy == SyncStrategy::ReceiveOnly;
                votes.is_some_and(|(x, y)| {
                    let same = (&x.entries, x.strategy, x.revision) == (&y.entries, y.strategy, y.revision);
                    !same || receives(x)
                })
            }
            (Operation::Sync(_), [a]) => {
                self.sync_votes.get(a).is_some_and(|vote| vote.strategy == SyncStrategy::ReceiveOnly)
            }
            _ => false,
        };
        if differ { Ok(()) } else { Err("the two did not call it differently".into()) }
    }
}
