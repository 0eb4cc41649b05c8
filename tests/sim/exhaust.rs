//! Every interleaving of one vote of three peers and the end of one of them, or of an edge of their mesh.
//!
//! Packets of the master are read at once; those of a peer wait in its own queue. Every order in which the queues can
//! be emptied is tried, with the death of one peer, or the break of one edge, at every place. So a packet that was sent
//! before its sender could know of the death arrives after it in some of the orders.

mod ahead;
mod choices;

use choices::Choices;
use pccl_hash::Digest128;
use pccl_master::state::{Action, ClientKey, IdSource, Input, MasterState, Options, Timestamp};
use pccl_protocol::*;
use pccl_quant::{DataType, ReduceOp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vote {
    Initiate,
    Complete,
    /// Both, by peers that begin early: their contributions are out before either vote.
    Early,
    /// Initiate, while the mesh is being connected, by callers that choose pairwise exchange.
    Pairwise,
    Sync,
    Topology,
    Pending,
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Death(u64),
    /// An edge of the mesh breaks, by its number.
    Break(usize),
}

/// A virtual time after the grace within which a broken edge waits for a better explanation.
const AFTER_GRACE_MS: u64 = 1_500;

#[derive(Debug, Default)]
struct Peer {
    id: PeerId,
    queue: VecDeque<C2m>,
    epoch: GroupEpoch,
    attempts: u32,
    answer: Option<M2c>,
    plan: Option<GroupPlan>,
    /// The edge that it has lost, and how its last attempt goes.
    lost: Option<(OpFaultKind, EdgeName)>,
    named: Option<Algorithm>,
    admitted: bool,
    dead: bool,
}

/// How all of them register.
fn register() -> Register {
    Register {
        group: GroupId(0),
        advertised_host: None,
        addresses: Vec::new(),
        p2p_port: 1,
        state_port: 1,
        pool_connections: 1,
        name: Name::default(),
        previous: None,
        formed: false,
        alone: false,
        resume: None,
        outbound_only: Some(false),
        site: Name::default(),
    }
}

struct Counter(u128);

impl IdSource for Counter {
    fn peer_id(&mut self, _nth: u64) -> PeerId {
        self.0 += 1;
        PeerId(self.0 << 96)
    }
}

struct Table {
    master: MasterState,
    peers: BTreeMap<u64, Peer>,
    vote: Vote,
    now_ms: u64,
    /// Which edges of the mesh both ends have told the master to stand, and whether somebody has told it of the break.
    up: BTreeSet<(u64, EdgeName)>,
    told_of_break: bool,
    /// Reports of rings are sent, votes are not yet.
    setup: bool,
}

impl Peer {
    /// The report that all of its edges for these purposes stand.
    fn all_up(&self, purposes: &[Purpose]) -> C2m {
        C2m::EdgeReport(EdgeReport::all_up(self.plan.as_ref().expect("a plan"), self.id, purposes))
    }

    /// Its report of the end of an attempt, with a fault if that goes over the mesh and it has lost an edge of the
    /// mesh.
    fn with_fault(&self, mut complete: Complete) -> Complete {
        if let Some((kind, edge)) = self.lost.filter(|_| self.named.is_some_and(Algorithm::uses_mesh)) {
            let other = if self.id == edge.from { edge.to } else { edge.from };
            let (peer, generation, text) = (Some(other), edge.generation, Text::default());
            complete.fault = Some(OpFault { kind, peer, generation, text });
        }
        complete
    }
}

impl Table {
    /// Three accepted peers; for a topology vote a fourth one waits.
    fn new(vote: Vote) -> Self {
        let master = MasterState::new(Options::new(RunId(1)), Box::new(Counter(0)));
        let mut table = Self {
            master,
            peers: BTreeMap::new(),
            vote,
            now_ms: 1000,
            up: BTreeSet::new(),
            told_of_break: false,
            setup: true,
        };
        for key in 1..=3 {
            table.join(key);
        }
        table.drain();
        table.send(1, C2m::VoteTopology(VoteTopology { request: RequestId(0), wait_for_world: 0 }));
        table.drain();
        assert!(table.peers.values().all(|peer| peer.admitted));
        if vote == Vote::Topology {
            table.join(4);
            table.drain();
        }
        if vote == Vote::Complete {
            for key in 1..=3 {
                let initiate = table.initiate(key);
                table.send(key, initiate);
            }
        }
        table.setup = false;
        for key in 1..=3 {
            table.peers.get_mut(&key).expect("a peer").answer = None;
            let report = table.peers[&key].all_up(&[Purpose::Mesh]);
            let vote = table.first(key);
            let packets = match (table.vote, key) {
                // Its mesh stands later than it votes.
                (Vote::Pairwise, 1) => vec![vote, report],
                (Vote::Early, _) => vec![vote, table.complete(key)],
                // The meshes of the others stand. One of them has voted, unless there is time for all orders.
                (Vote::Pairwise, _) => {
                    table.send(key, report);
                    if key == 2 || is_wide() {
                        vec![vote]
                    } else {
                        table.send(key, vote);
                        vec![]
                    }
                }
                _ => vec![vote],
            };
            table.peers.get_mut(&key).expect("a peer").queue.extend(packets);
        }
        table
    }

    fn join(&mut self, key: u64) {
        self.peers.insert(key, Peer::default());
        let address = core::net::IpAddr::from([10, 0, 0, key as u8]);
        self.input(Input::Connected { client: ClientKey(key), remote: address, local: address });
        self.send(key, C2m::Register(register()));
    }

    fn drain(&mut self) {
        while let Some(key) = self.ready().first().copied() {
            self.step(key);
        }
    }

    fn ready(&self) -> Vec<u64> {
        self.peers
            .iter()
            .filter(|(_, peer)| !peer.dead && !peer.queue.is_empty())
            .map(|(key, _)| *key)
            .collect()
    }

    fn step(&mut self, key: u64) {
        if let Some(packet) = self.peers.get_mut(&key).and_then(|peer| peer.queue.pop_front()) {
            self.send(key, packet);
        }
    }

    fn send(&mut self, key: u64, packet: C2m) {
        if let C2m::EdgeReport(report) = &packet {
            self.up.extend(report.up.iter().map(|name| (key, *name)));
            self.told_of_break |= !report.broken.is_empty();
        }
        self.input(Input::Packet { client: ClientKey(key), packet });
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.master.handle(Timestamp::from_millis(self.now_ms), input, &mut out);
        self.master.check_invariants();
        for action in out.into_iter().flat_map(Action::split) {
            match action {
                Action::Send { client: ClientKey(key), packet } => self.receive(key, packet),
                Action::Close { client } => panic!("{client} was dropped"),
                Action::Reach { .. } => {}
                Action::Plan { .. } | Action::DropPlan { .. } => panic!("nobody optimises"),
                Action::SendAll { .. } | Action::Log { .. } => {}
            }
        }
    }

    fn op(&self, key: u64) -> OpId {
        let peer = &self.peers[&key];
        OpId { epoch: peer.epoch, tag: 7.into(), attempt: peer.attempts }
    }

    fn initiate(&self, key: u64) -> C2m {
        C2m::Initiate(Initiate {
            op: self.op(key),
            descriptor: self.descriptor(),
            has_begun: self.vote == Vote::Early,
        })
    }

    fn complete(&self, key: u64) -> C2m {
        C2m::Complete(Complete { op: self.op(key), fault: None, moved_bytes: 0 })
    }

    fn descriptor(&self) -> Descriptor {
        let (count, algorithm) = match self.vote {
            Vote::Pairwise => (1_000_000, Algorithm::Pairwise),
            _ => (8, Algorithm::Automatic),
        };
        Descriptor::all_reduce(vec![PartDescriptor::new(count, DataType::Float32, ReduceOp::Sum)], algorithm)
    }

    /// All are told what follows from their plan; the mesh is used exactly if all have said that it stands.
    fn commence(&mut self, key: u64, commence: &Commence) {
        let (op, named) = (commence.op, commence.algorithm);
        assert_ne!(self.vote, Vote::Early, "{key} is told to begin, and has begun");
        let plan = self.peers[&key].plan.as_ref().expect("a plan");
        let ranks = plan.members.len();
        assert_eq!(named, self.descriptor().algorithm_for(ranks, plan.paths));
        if self.vote == Vote::Pairwise {
            let told = self.peers.iter().all(|(key, peer)| {
                let mut mesh = plan.edges_of(peer.id).filter(|(purpose, _)| *purpose == Purpose::Mesh);
                mesh.all(|(_, name)| self.up.contains(&(*key, name)))
            });
            let stands = told && !self.told_of_break && ranks == 3;
            assert_eq!(named.uses_mesh(), stands, "{op} goes by {named}");
        }
        let peer = self.peers.get_mut(&key).expect("a peer");
        peer.named = Some(named);
        let complete = Complete { op, fault: None, moved_bytes: 0 };
        peer.queue.push_back(C2m::Complete(peer.with_fault(complete)));
    }

    /// The vote that a peer casts, and casts again when it was stale.
    fn first(&self, key: u64) -> C2m {
        let request = RequestId(1);
        match self.vote {
            Vote::Initiate | Vote::Early | Vote::Pairwise => self.initiate(key),
            Vote::Complete => self.complete(key),
            Vote::Sync => C2m::SyncInitiate(SyncInitiate {
                request,
                epoch: self.peers[&key].epoch,
                revision: Revision(3),
                offered: None,
                strategy: SyncStrategy::EnforcePopular,
                entries: vec![StateEntry {
                    key: Key::new("w"),
                    count: 1,
                    data_type: DataType::Float32,
                    allow_inequality: false,
                    digest: Digest128::from_u128(u128::from(key)),
                }],
            }),
            Vote::Topology => C2m::VoteTopology(VoteTopology { request, wait_for_world: 0 }),
            Vote::Pending => C2m::VotePending(request),
        }
    }

    fn receive(&mut self, key: u64, packet: M2c) {
        let setup = self.setup;
        let Some(peer) = self.peers.get_mut(&key) else { return };
        assert!(!peer.dead, "sent to the dead: {packet:?}");
        match packet {
            M2c::Registered(answer) => peer.id = answer.peer,
            M2c::GroupPlan(plan) => {
                assert!(peer.epoch < plan.epoch);
                (peer.epoch, peer.attempts) = (plan.epoch, 0);
                // A report about an edge is not made again.
                let before = peer.plan.replace(plan);
                if before.is_none_or(|before| {
                    Some(before.edges) != peer.plan.as_ref().map(|plan| plan.edges.clone())
                }) {
                    let report = peer.all_up(&[Purpose::Ring]);
                    peer.queue.push_back(report);
                }
            }
            M2c::Admitted(_) => peer.admitted = true,
            M2c::Stale(stale) => {
                assert_eq!(stale.epoch, peer.epoch, "stale came before its ring");
                let again = [self.first(key), self.complete(key)];
                let votes = if self.vote == Vote::Early { 2 } else { 1 };
                self.peers.get_mut(&key).expect("a peer").queue.extend(again.into_iter().take(votes));
            }
            M2c::Commence(commence) if !setup => self.commence(key, &commence),
            M2c::SyncPlan(plan) => {
                let report = SyncReport::Ready(Nothing {});
                peer.queue.push_back(C2m::SyncComplete(SyncComplete {
                    sync: plan.plan.sync,
                    report,
                    failures: vec![],
                    gave: vec![],
                }));
            }
            M2c::Outcome(_) | M2c::SyncOutcome(_) | M2c::TopologyDone(_) | M2c::PendingAnswer(_) => {
                assert_eq!(peer.answer.replace(packet), None, "answered twice");
            }
            M2c::TooFewPeers(_) => panic!("there are enough peers"),
            M2c::StateAhead(_) => panic!("nobody fetches ahead"),
            M2c::GroupFormed(_) | M2c::FormFailed(_) => panic!("nobody forms groups"),
            M2c::Keys(_) | M2c::Tickets(_) => panic!("the state knows no keys"),
            M2c::Call(_) => panic!("nobody asks to be dialed"),
            M2c::Kicked(reason) => panic!("client {key} was kicked: {reason}"),
            M2c::Sizes(_)
            | M2c::Commence(_)
            | M2c::TopologyProgress(_)
            | M2c::VoteWithdrawn(_)
            | M2c::Rates(_)
            | M2c::Examined(_)
            | M2c::Returned(_)
            | M2c::Received(_)
            | M2c::Append(_)
            | M2c::Copies(_)
            | M2c::StandsBy(_)
            | M2c::Claim(_)
            | M2c::ProbePlan(_)
            | M2c::ReachPlan(_)
            | M2c::Warning(_)
            | M2c::OptimizeDone(_)
            | M2c::Echo(_)
            | M2c::Status(_)
            | M2c::Goodbye(_) => {}
        }
    }

    fn kill(&mut self, key: u64) {
        self.peers.get_mut(&key).expect("a peer").dead = true;
        self.input(Input::Disconnected { client: ClientKey(key), text: "reset".into() });
    }

    /// Both ends of an edge of the mesh see it break, and one of them says so, or both.
    fn break_edge(&mut self, number: usize) {
        let mesh = |peer: &Peer| -> Vec<EdgeName> {
            peer.plan.iter().flat_map(|plan| plan.edges_for(Purpose::Mesh)).collect()
        };
        let Some(edge) = self.peers.values().find_map(|peer| mesh(peer).get(number).copied()) else { return };
        let EdgeName { from, to, generation } = edge;
        for peer in self.peers.values_mut().filter(|peer| peer.id == from || peer.id == to) {
            let kind = if peer.id == from { OpFaultKind::OutboundLost } else { OpFaultKind::InboundLost };
            peer.lost = Some((kind, edge));
            let mut queue = std::mem::take(&mut peer.queue);
            for packet in &mut queue {
                if let C2m::Complete(complete) = packet {
                    *complete = peer.with_fault(complete.clone());
                }
            }
            if (peer.id == from) == number.is_multiple_of(2) || is_wide() {
                let fault = EdgeFault { from, to, generation, forgotten: false, text: Text::new("reset") };
                let (epoch, up, broken) = (peer.epoch, Vec::new(), vec![fault]);
                queue.push_back(C2m::EdgeReport(EdgeReport { epoch, up, broken }));
            }
            peer.queue = queue;
        }
    }

    /// Faults that the master holds back for better news of a broken edge come out.
    fn wait_for_grace(&mut self) {
        self.now_ms = AFTER_GRACE_MS;
        self.input(Input::Tick);
        self.drain();
    }

    /// The end of an attempt one edge of which broke at some time: for that reason, if at all, and only over the mesh.
    fn check_break(&self, answer: &M2c) {
        let M2c::Outcome(OpOutcome { outcome: Outcome::Aborted(verdict), .. }) = answer else { return };
        let edge = self.peers.values().find_map(|peer| peer.lost).expect("an edge broke").1;
        let named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        assert_eq!((verdict.cause, named), (Cause::EdgeBroken, vec![edge.from, edge.to]), "{verdict:?}");
        let by_mesh = |peer: &Peer| peer.named.is_some_and(Algorithm::uses_mesh);
        assert!(self.peers.values().all(by_mesh), "nothing went over that edge: {verdict:?}");
    }

    fn check_end(&self, harm: Option<Harm>) {
        let alive: Vec<&Peer> = self.peers.values().filter(|peer| !peer.dead).collect();
        let answers: Vec<&M2c> = alive.iter().filter_map(|peer| peer.answer.as_ref()).collect();
        let newcomers = usize::from(self.peers.get(&4).is_some_and(|peer| !peer.dead));
        let waiting = self.master.blocked_on();
        assert_eq!(answers.len() + newcomers, alive.len(), "{:?} {harm:?}: {waiting:?}", self.vote);
        assert!(alive.iter().all(|peer| peer.admitted), "a newcomer was left outside");
        assert!(waiting.is_empty(), "{waiting:?}");
        match self.vote {
            Vote::Initiate | Vote::Complete | Vote::Early | Vote::Pairwise => {
                assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "different outcomes: {answers:?}");
                let done = answers.iter().all(|answer| {
                    matches!(answer, M2c::Outcome(OpOutcome { outcome: Outcome::Done(_), .. }))
                });
                assert!(done || harm.is_some(), "aborted without a reason");
                if let (Some(Harm::Break(_)), Some(answer)) = (harm, answers.first()) {
                    self.check_break(answer);
                }
            }
            Vote::Sync => {
                let third = SyncOutcome::Committed(Revision(3));
                let committed = |answer: &&M2c| matches!(answer, M2c::SyncOutcome(o) if o.outcome == third);
                assert!(answers.iter().all(committed), "{answers:?}");
            }
            Vote::Topology | Vote::Pending => {}
        }
    }
}

/// Whether there is time for more orders.
fn is_wide() -> bool {
    std::env::var("PCCL_TEST_FULL").is_ok_and(|value| value == "1")
}

/// Tries everything; returns how many orders there were.
fn explore(vote: Vote, harm: Harm) -> u64 {
    let mut choices = Choices::default();
    let mut orders = 0;
    loop {
        let mut table = Table::new(vote);
        let mut harmed = false;
        loop {
            let ready = table.ready();
            // The last choice is the harm, as long as it has not happened; at the very end it may as well not happen.
            let options = ready.len() + usize::from(!harmed);
            if ready.is_empty() && (harmed || choices.pick(2) == 0) {
                break;
            }
            let choice = if ready.is_empty() { 0 } else { choices.pick(options) };
            match ready.get(choice) {
                Some(key) => table.step(*key),
                None => {
                    harmed = true;
                    match harm {
                        Harm::Death(victim) => table.kill(victim),
                        Harm::Break(number) => table.break_edge(number),
                    }
                }
            }
        }
        if matches!(harm, Harm::Break(_)) {
            table.wait_for_grace();
        }
        table.check_end(harmed.then_some(harm));
        orders += 1;
        if !choices.next() {
            return orders;
        }
    }
}

#[test]
fn every_order_of_a_vote_and_a_death() {
    use Vote::{Complete, Early, Initiate, Pairwise, Pending, Sync, Topology};
    for vote in [Initiate, Complete, Early, Pairwise, Sync, Topology, Pending] {
        for victim in 1..=3 {
            let orders = explore(vote, Harm::Death(victim));
            println!("{vote:?}, death of {victim}: {orders} orders");
            assert!(orders > 20, "{vote:?}: only {orders} orders");
        }
    }
}

#[test]
fn every_order_of_a_topology_vote_and_the_death_of_the_newcomer() {
    assert!(explore(Vote::Topology, Harm::Death(4)) > 20);
}

#[test]
fn every_order_of_a_pairwise_exchange_and_the_break_of_an_edge() {
    for number in 0..3 {
        let orders = explore(Vote::Pairwise, Harm::Break(number));
        println!("break of mesh edge {number}: {orders} orders");
        assert!(orders > 1000, "only {orders} orders");
    }
}
