//! Every interleaving of one vote of three peers and the end of one of them.
//!
//! What the master sends is read at once; what a peer sends waits in its own queue, and every order in which the queues
//! can be emptied is tried, with the death of one peer at every place. So a packet that was sent before its sender
//! could know of the death arrives after it in some of the orders.

use pccl_hash::Digest128;
use pccl_master::state::{Action, ClientKey, IdSource, Input, MasterState, Options, Timestamp};
use pccl_protocol::*;
use pccl_quant::{DataType, ReduceOp};
use std::collections::{BTreeMap, VecDeque};

/// Enumerates all sequences of choices, whatever their lengths: each run follows a prefix and takes first choices after
/// it; then the last choice that has an alternative is changed.
#[derive(Debug, Default)]
struct Choices {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn pick(&mut self, count: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, count));
        }
        let (choice, known) = self.taken[self.at];
        assert_eq!(known, count, "a run is not a function of its choices");
        self.at += 1;
        choice
    }

    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, count)) = self.taken.pop() {
            if choice + 1 < count {
                self.taken.push((choice + 1, count));
                return true;
            }
        }
        false
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vote {
    Initiate,
    Complete,
    Sync,
    Topology,
    Pending,
}

#[derive(Debug, Default)]
struct Peer {
    id: PeerId,
    queue: VecDeque<C2m>,
    epoch: GroupEpoch,
    attempts: u32,
    answer: Option<M2c>,
    admitted: bool,
    dead: bool,
}

struct Counter(u128);

impl IdSource for Counter {
    fn peer_id(&mut self) -> PeerId {
        self.0 += 1;
        PeerId(self.0 << 96)
    }
}

struct Table {
    master: MasterState,
    peers: BTreeMap<u64, Peer>,
    vote: Vote,
    /// Reports of rings are sent, votes are not yet.
    setup: bool,
}

impl Table {
    /// Three accepted peers; for a topology vote a fourth one waits.
    fn new(vote: Vote) -> Self {
        let master = MasterState::new(Options::new(RunId(1)), Box::new(Counter(0)));
        let mut table = Self { master, peers: BTreeMap::new(), vote, setup: true };
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
            let packet = table.first(key);
            table.peers.get_mut(&key).expect("a peer").queue.push_back(packet);
        }
        table
    }

    fn join(&mut self, key: u64) {
        self.peers.insert(key, Peer::default());
        let address = core::net::IpAddr::from([10, 0, 0, key as u8]);
        self.input(Input::Connected { client: ClientKey(key), remote: address, local: address });
        let register = Register {
            group: GroupId(0),
            advertised_host: None,
            p2p_port: 1,
            state_port: 1,
            pool_connections: 1,
            previous: None,
        };
        self.send(key, C2m::Register(register));
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
        self.input(Input::Packet { client: ClientKey(key), packet });
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.master.handle(Timestamp::from_millis(1000), input, &mut out);
        self.master.check_invariants();
        for action in out {
            match action {
                Action::Send { client: ClientKey(key), packet } => self.receive(key, packet),
                Action::Close { client } => panic!("{client} was dropped"),
                Action::Plan { .. } | Action::DropPlan { .. } => panic!("nobody optimises"),
                Action::Log { .. } => {}
            }
        }
    }

    fn op(&self, key: u64) -> OpId {
        let peer = &self.peers[&key];
        OpId { epoch: peer.epoch, tag: 7, attempt: peer.attempts }
    }

    fn initiate(&self, key: u64) -> C2m {
        let part = PartDescriptor::new(8, DataType::Float32, ReduceOp::Sum);
        let descriptor = Descriptor { parts: vec![part], algorithm: Algorithm::Automatic };
        C2m::Initiate(Initiate { op: self.op(key), descriptor })
    }

    /// The vote that a peer casts, and casts again when it was stale.
    fn first(&self, key: u64) -> C2m {
        let request = RequestId(1);
        match self.vote {
            Vote::Initiate => self.initiate(key),
            Vote::Complete => C2m::Complete(Complete { op: self.op(key), fault: None, moved_bytes: 0 }),
            Vote::Sync => C2m::SyncInitiate(SyncInitiate {
                request,
                epoch: self.peers[&key].epoch,
                revision: Revision(3),
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
            M2c::RingPlan(plan) => {
                assert!(peer.epoch < plan.epoch);
                (peer.epoch, peer.attempts) = (plan.epoch, 0);
                peer.queue.push_back(C2m::RingReport(RingReport { epoch: plan.epoch, faults: vec![] }));
            }
            M2c::Admitted(_) => peer.admitted = true,
            M2c::Stale(stale) => {
                assert_eq!(stale.epoch, peer.epoch, "stale came before its ring");
                let again = self.first(key);
                self.peers.get_mut(&key).expect("a peer").queue.push_back(again);
            }
            M2c::Commence(commence) if !setup => {
                let complete = Complete { op: commence.op, fault: None, moved_bytes: 0 };
                peer.queue.push_back(C2m::Complete(complete));
            }
            M2c::SyncPlan(plan) => {
                let report = SyncReport::Ready(SyncTraffic::default());
                peer.queue.push_back(C2m::SyncComplete(SyncComplete { sync: plan.plan.sync, report }));
            }
            M2c::Outcome(_) | M2c::SyncOutcome(_) | M2c::TopologyDone(_) | M2c::PendingAnswer(_) => {
                assert_eq!(peer.answer.replace(packet), None, "answered twice");
            }
            M2c::TooFewPeers(_) => panic!("there are enough peers"),
            M2c::Kicked(reason) => panic!("client {key} was kicked: {reason}"),
            M2c::Sizes(_)
            | M2c::Commence(_)
            | M2c::TopologyProgress(_)
            | M2c::TopologyWithdrawn(_)
            | M2c::ProbePlan(_)
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

    fn check_end(&self, victim: Option<u64>) {
        let alive: Vec<&Peer> = self.peers.values().filter(|peer| !peer.dead).collect();
        let answers: Vec<&M2c> = alive.iter().filter_map(|peer| peer.answer.as_ref()).collect();
        let newcomers = usize::from(self.peers.get(&4).is_some_and(|peer| !peer.dead));
        let waiting = self.master.blocked_on();
        assert_eq!(answers.len() + newcomers, alive.len(), "{:?} {victim:?}: {waiting:?}", self.vote);
        assert!(alive.iter().all(|peer| peer.admitted), "a newcomer was left outside");
        assert!(waiting.is_empty(), "{waiting:?}");
        match self.vote {
            Vote::Initiate | Vote::Complete => {
                assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "different outcomes: {answers:?}");
                let done = answers.iter().all(|answer| {
                    matches!(answer, M2c::Outcome(OpOutcome { outcome: Outcome::Done(_), .. }))
                });
                assert!(done || victim.is_some(), "aborted without a reason");
            }
            Vote::Sync => {
                let committed = |answer: &&M2c| matches!(answer, M2c::SyncOutcome(o) if o.outcome == SyncOutcome::Committed(Revision(3)));
                assert!(answers.iter().all(committed), "{answers:?}");
            }
            Vote::Topology | Vote::Pending => {}
        }
    }
}

/// Tries everything; returns how many orders there were.
fn explore(vote: Vote, victim: u64) -> u64 {
    let mut choices = Choices::default();
    let mut orders = 0;
    loop {
        let mut table = Table::new(vote);
        let mut killed = false;
        loop {
            let ready = table.ready();
            // The last choice is the death, as long as it has not happened; at the very end it may as well not happen.
            let options = ready.len() + usize::from(!killed);
            if ready.is_empty() && (killed || choices.pick(2) == 0) {
                break;
            }
            let choice = if ready.is_empty() { 0 } else { choices.pick(options) };
            match ready.get(choice) {
                Some(key) => table.step(*key),
                None => {
                    killed = true;
                    table.kill(victim);
                }
            }
        }
        table.check_end(killed.then_some(victim));
        orders += 1;
        if !choices.next() {
            return orders;
        }
    }
}

#[test]
fn every_order_of_a_vote_and_a_death() {
    for vote in [Vote::Initiate, Vote::Complete, Vote::Sync, Vote::Topology, Vote::Pending] {
        for victim in 1..=3 {
            let orders = explore(vote, victim);
            println!("{vote:?}, death of {victim}: {orders} orders");
            assert!(orders > 20, "{vote:?}: only {orders} orders");
        }
    }
}

#[test]
fn every_order_of_a_topology_vote_and_the_death_of_the_newcomer() {
    assert!(explore(Vote::Topology, 4) > 20);
}
