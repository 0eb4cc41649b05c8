//! Every interleaving of a commit, of the loans before and after it, of a newcomer that fetches ahead, of two calls of
//! the members that may let it in, and of the end of one of the three. The checker says what must hold.

use super::{Counter, choices::Choices, is_wide, register};
use crate::checker::Checker;
use crate::swarm::MS;
use pccl_hash::Digest128;
use pccl_master::state::{Action, ClientKey, Input, MasterState, Options, Timestamp};
use pccl_protocol::*;
use pccl_quant::DataType;
use std::collections::{BTreeMap, VecDeque};

/// Both are members; the first one lends.
const SERVER: u64 = 1;
const OTHER: u64 = 2;
const NEWCOMER: u64 = 3;
/// The time for which loans that begin together are waited for.
const GRACE: u64 = 200 * MS;
/// A newcomer that does not get on is let in after this time.
const PATIENCE: u64 = 60_000 * MS;

/// The fate of what the newcomer fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Holds,
    Fails,
}

/// A case that is tried in every order.
#[derive(Debug, Clone, Copy)]
struct Case {
    fate: Fate,
    /// The peer that dies at some time.
    victim: Option<u64>,
    /// The members ask whether somebody waits before they let it in.
    asks: bool,
}

#[derive(Debug, Default)]
struct Peer {
    id: PeerId,
    queue: VecDeque<C2m>,
    plan: Option<GroupPlan>,
    /// The sync that it takes part in, and what it has committed last.
    sync: SyncId,
    revision: u64,
    admitted: bool,
    /// Calls that have not returned.
    open: u32,
    beats: u64,
}

struct Run {
    master: MasterState,
    checker: Checker,
    peers: BTreeMap<u64, Peer>,
    case: Case,
    now: u64,
}

impl Run {
    /// Two members that have committed a state together, and a newcomer that has registered.
    fn new(case: Case) -> Self {
        let master = MasterState::new(Options::new(RunId(1)), Box::new(Counter(0)));
        let (checker, peers) = (Checker::new(1), BTreeMap::new());
        let mut run = Self { master, checker, peers, case, now: 1_000 * MS };
        for key in [SERVER, OTHER] {
            run.join(key);
        }
        run.drain();
        run.call(SERVER, let_in());
        run.drain();
        assert!(run.peers.values().all(|peer| peer.admitted));
        for key in [SERVER, OTHER] {
            let vote = run.sync_vote(key);
            run.call(key, vote);
        }
        run.drain();
        assert!(run.peers.values().all(|peer| (peer.revision, peer.open) == (1, 0)));
        run.join(NEWCOMER);
        for (key, peer) in &mut run.peers {
            let sync = peer.sync;
            if *key == NEWCOMER {
                peer.queue.push_back(C2m::Ahead(AheadStep::Wanted(Nothing {})));
            } else if *key == SERVER {
                peer.queue.push_back(C2m::Loan(Loan { sync, stands: true }));
            }
        }
        for key in [SERVER, OTHER] {
            let vote = run.sync_vote(key);
            run.call(key, vote);
        }
        run
    }

    fn join(&mut self, key: u64) {
        self.peers.insert(key, Peer::default());
        let address = core::net::IpAddr::from([10, 0, 0, key as u8]);
        self.input(Input::Connected { client: ClientKey(key), remote: address, local: address });
        self.input(Input::Packet { client: ClientKey(key), packet: C2m::Register(register()) });
    }

    /// A vote for the revision after the one that it holds. All hold the same.
    fn sync_vote(&self, key: u64) -> C2m {
        let peer = &self.peers[&key];
        let revision = peer.revision + 1;
        C2m::SyncInitiate(SyncInitiate {
            request: RequestId(100 + revision),
            epoch: peer.plan.as_ref().expect("a plan").epoch,
            revision: Revision(revision),
            offered: None,
            strategy: SyncStrategy::EnforcePopular,
            entries: vec![StateEntry {
                key: Key::new("w"),
                count: 1,
                data_type: DataType::Float32,
                allow_inequality: false,
                digest: Digest128::from_u128(revision.into()),
            }],
        })
    }

    fn call(&mut self, key: u64, packet: C2m) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.open += 1;
        peer.queue.push_back(packet);
    }

    fn ready(&self) -> Vec<u64> {
        self.peers.iter().filter(|(_, peer)| !peer.queue.is_empty()).map(|(key, _)| *key).collect()
    }

    fn step(&mut self, key: u64) {
        let packet = self.peers.get_mut(&key).and_then(|peer| peer.queue.pop_front());
        if let Some(packet) = packet {
            self.input(Input::Packet { client: ClientKey(key), packet });
        }
    }

    fn drain(&mut self) {
        while let Some(key) = self.ready().first().copied() {
            self.step(key);
        }
    }

    fn pass(&mut self, time: u64) {
        self.now += time;
        self.input(Input::Tick);
    }

    /// Whether time alone may change something soon.
    fn waits_for_grace(&self) -> bool {
        self.master.next_deadline().is_some_and(|at| at.as_micros() <= self.now + GRACE)
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.checker.before(self.now, &input);
        self.master.handle(Timestamp(self.now), input, &mut out);
        self.master.check_invariants();
        for action in out.into_iter().flat_map(Action::split) {
            match action {
                Action::Send { client: ClientKey(key), packet } => {
                    self.checker.sent(key, &packet);
                    self.receive(key, packet);
                }
                Action::Close { client } => panic!("{client} was dropped"),
                Action::Plan { .. } | Action::DropPlan { .. } => panic!("nobody optimises"),
                Action::Reach { .. } | Action::SendAll { .. } | Action::Log { .. } => {}
            }
        }
        self.checker.after(&self.master);
        self.checker.nothing_owed();
    }

    fn receive(&mut self, key: u64, packet: M2c) {
        let Some(peer) = self.peers.get_mut(&key) else { panic!("sent to the dead: {packet:?}") };
        match packet {
            M2c::Registered(answer) => peer.id = answer.peer,
            M2c::Admitted(_) => peer.admitted = true,
            M2c::GroupPlan(plan) => {
                let report = EdgeReport::all_up(&plan, peer.id, &[Purpose::Ring]);
                peer.plan = Some(plan);
                peer.queue.push_back(C2m::EdgeReport(report));
            }
            M2c::Stale(_) => {
                let again = self.sync_vote(key);
                self.peers.get_mut(&key).expect("a peer").queue.push_back(again);
            }
            M2c::SyncPlan(plan) => {
                peer.sync = plan.plan.sync;
                assert!(plan.plan.fetch.is_empty(), "all hold the same");
                let (report, failures, gave) = (SyncReport::Ready(Nothing {}), vec![], vec![]);
                peer.queue.push_back(C2m::SyncComplete(SyncComplete {
                    sync: peer.sync,
                    report,
                    failures,
                    gave,
                }));
            }
            M2c::SyncOutcome(answer) => self.committed(key, &answer),
            M2c::PendingAnswer(_) => {
                peer.open -= 1;
                self.call(key, let_in());
            }
            M2c::TopologyDone(_) => peer.open -= 1,
            M2c::StateAhead(plan) => self.fetch(&plan),
            M2c::Kicked(reason) => panic!("client {key} was kicked: {reason}"),
            M2c::Sizes(_) | M2c::Echo(_) | M2c::Warning(_) | M2c::Rates(_) => {}
            other => panic!("nobody asked for {other:?}"),
        }
    }

    /// A sync is over: the serving peer lends anew, and both ask whether somebody waits, and let it in.
    fn committed(&mut self, key: u64, answer: &SyncOutcomeFor) {
        let SyncOutcome::Committed(revision) = answer.outcome else { panic!("client {key}: {answer:?}") };
        let content = vec![("w".to_owned(), u128::from(revision.0))];
        self.checker.committed(key, answer.request, revision, content);
        let peer = self.peers.get_mut(&key).expect("a peer");
        (peer.revision, peer.open) = (revision.0, peer.open - 1);
        if revision.0 == 1 {
            return;
        }
        if key == SERVER {
            peer.queue.push_back(C2m::Loan(Loan { sync: peer.sync, stands: true }));
        }
        self.call(key, if self.case.asks { C2m::VotePending(RequestId(2)) } else { let_in() });
    }

    /// The newcomer is told of the serving peer.
    fn fetch(&mut self, plan: &SyncPlan) {
        let peer = self.peers.get_mut(&NEWCOMER).expect("a peer");
        let fault = SourceFault::Unreached;
        let failed = |source: &StateSource| SourceFailure { peer: source.peer, fault, text: Text::default() };
        let (sync, failures) = (plan.sync, plan.sources.iter().map(failed).collect());
        peer.queue.push_back(C2m::Ahead(match self.case.fate {
            Fate::Holds => AheadStep::Holds(sync),
            Fate::Fails => AheadStep::Failed(AheadFailure { sync, failures }),
        }));
    }

    fn kill(&mut self, key: u64) {
        self.peers.remove(&key);
        self.input(Input::Disconnected { client: ClientKey(key), text: "reset".into() });
    }

    /// All calls return, and the newcomer is let in: with what it holds, or, if it gets nothing, after its patience.
    fn finish(&mut self) {
        let ends = self.now + PATIENCE + 10_000 * MS;
        self.pass(GRACE);
        loop {
            self.drain();
            let open = self.peers.values().any(|peer| peer.open > 0);
            assert!(!open && self.master.blocked_on().len() <= 1, "{:?}", self.master.blocked_on());
            if self.peers.values().all(|peer| peer.admitted) {
                return;
            }
            assert!(self.now < ends, "the newcomer is left outside: {:?}", self.master.blocked_on());
            self.pass(5_000 * MS);
            for key in self.peers.keys().copied().collect::<Vec<_>>() {
                let peer = self.peers.get_mut(&key).expect("a peer");
                peer.beats += 1;
                let packet = beat(peer.beats);
                self.input(Input::Packet { client: ClientKey(key), packet });
                if key != NEWCOMER {
                    self.call(key, let_in());
                }
            }
        }
    }
}

/// Lets in whoever counts.
fn let_in() -> C2m {
    C2m::VoteTopology(VoteTopology { request: RequestId(1), wait_for_world: 0 })
}

/// A sign of life.
fn beat(sequence: u64) -> C2m {
    C2m::Beat(Beat { sequence, ..Beat::default() })
}

/// A move that can come next.
#[derive(Debug, Clone, Copy)]
enum Move {
    End,
    Step(u64),
    Grace,
    Death(u64),
}

/// How many orders there were, and in how many the newcomer was let in with the state, and without.
#[derive(Debug, Default)]
struct Orders {
    all: u64,
    with: u64,
    without: u64,
}

/// Tries everything.
fn explore(case: Case) -> Orders {
    let mut choices = Choices::default();
    let mut orders = Orders::default();
    loop {
        let mut run = Run::new(case);
        let (mut victim, mut graces) = (case.victim, 1);
        loop {
            let ready = run.ready();
            let mut moves: Vec<Move> = ready.iter().map(|key| Move::Step(*key)).collect();
            moves.extend(ready.is_empty().then_some(Move::End));
            moves.extend(victim.map(Move::Death));
            moves.extend((graces > 0 && run.waits_for_grace()).then_some(Move::Grace));
            let choice = if moves.len() == 1 { 0 } else { choices.pick(moves.len()) };
            match moves[choice] {
                Move::End => break,
                Move::Step(key) => run.step(key),
                Move::Death(key) => {
                    victim = None;
                    run.kill(key);
                }
                Move::Grace => {
                    graces -= 1;
                    run.pass(GRACE);
                }
            }
        }
        run.finish();
        orders.all += 1;
        orders.with += run.checker.loans.with;
        orders.without += run.checker.loans.without;
        if !choices.next() {
            return orders;
        }
    }
}

#[test]
fn every_order_of_a_loan_a_commit_and_a_newcomer_that_fetches_ahead() {
    let few = [(None, true), (Some(SERVER), false)];
    let all = [(None, true), (Some(SERVER), true), (Some(OTHER), true), (Some(NEWCOMER), true)];
    for fate in [Fate::Holds, Fate::Fails] {
        for (victim, asks) in if is_wide() { &all[..] } else { &few[..] }.iter().copied() {
            let case = Case { fate, victim, asks };
            let orders = explore(case);
            println!("{case:?}: {orders:?}");
            assert!(orders.all > 1000, "only {orders:?}");
            let (holds, dies) = (fate == Fate::Holds, victim == Some(NEWCOMER));
            assert!((orders.with > 0) == holds && (dies || holds || orders.without > 0), "{orders:?}");
        }
    }
}
