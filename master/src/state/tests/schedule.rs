//! The choice of a schedule for large operations.

use super::harness::Rig;
use pccl_protocol::*;

const RATE: u64 = 100_000;

/// Two pairs of clients that are close to each other: no ring is without an edge of [`RATE`], and interfaces carry
/// more.
fn pairs(from: u64, to: u64) -> u64 {
    if from.div_ceil(2) == to.div_ceil(2) { 3 * RATE } else { RATE }
}

fn alike(_: u64, _: u64) -> u64 {
    RATE
}

trait By {
    /// Whether large operations go by pairwise exchange.
    fn is_pairwise(&self) -> bool;
}

impl By for OptimizeDone {
    fn is_pairwise(&self) -> bool {
        self.schedule == Algorithm::Pairwise
    }
}

impl Rig {
    /// All optimise; what one of them learns.
    fn optimize(&mut self, rate: &dyn Fn(u64, u64) -> u64) -> OptimizeDone {
        let all = self.accepted();
        self.mail.clear();
        self.vote_optimize(&all);
        self.rounds(rate);
        self.plan();
        self.confirm_all();
        let done: Vec<OptimizeDone> = all.into_iter().map(|n| self.optimized(n)).collect();
        assert!(
            done.windows(2).all(|two| OptimizeDone { request: two[0].request, ..two[1].clone() } == two[0])
        );
        done[0].clone()
    }

    fn is_pairwise(&self) -> bool {
        let told: Vec<bool> = self.accepted().iter().map(|n| self.plans[n].paths.pairwise).collect();
        assert!(told.windows(2).all(|two| two[0] == two[1]), "{told:?}");
        told[0]
    }

    /// By client; nothing if they are equal.
    fn shares(&self) -> Vec<(u64, u16)> {
        let told: Vec<Vec<(u64, u16)>> = self.accepted().iter().map(|n| self.shares_told(*n)).collect();
        assert!(told.windows(2).all(|two| two[0] == two[1]), "{told:?}");
        if told[0].iter().all(|(_, share)| *share == 0) { Vec::new() } else { told[0].clone() }
    }

    fn shares_told(&self, n: u64) -> Vec<(u64, u16)> {
        let plan = &self.plans[&n];
        let share = |n: &u64| Some((*n, plan.members.get(plan.rank_of(self.peers[n])?)?.share));
        self.accepted().iter().filter_map(share).collect()
    }

    fn all_meshed(&mut self) {
        for n in self.accepted() {
            self.up(n, Purpose::Mesh);
        }
        self.confirm_all();
    }
}

#[test]
fn pairwise_exchange_is_taken_where_it_is_faster() {
    let mut rig = Rig::world(4);
    let before = rig.plans[&1].clone();
    assert!(!before.paths.pairwise);
    let done = rig.optimize(&pairs);
    // 3 edges of 0.5 tensors through an interface of 300 Mbit/s, against 1.5 tensors over an edge of 100.
    assert_eq!((done.changed, done.is_pairwise(), done.pairwise_pct), (false, true, 300));
    // The same ring, and nothing of it is built anew.
    let after = rig.plans[&1].clone();
    assert!(after.epoch > before.epoch && rig.is_pairwise());
    let order = |plan: &GroupPlan| -> Vec<PeerId> { plan.members.iter().map(|member| member.peer).collect() };
    assert_eq!((order(&after), after.edges), (order(&before), before.edges));
    rig.all_meshed();
    let op = rig.op(1, 7, 0);
    for n in 1..=4 {
        rig.send(
            n,
            C2m::Initiate(Initiate { op, descriptor: super::harness::descriptor(1 << 20), has_begun: false }),
        );
    }
    assert_eq!(rig.answer(1), M2c::Commence(Commence { op, algorithm: Algorithm::Pairwise }));
    (1..=4).for_each(|n| rig.complete(n, op, None));
    // Once more, with nothing new.
    let epoch = rig.epoch(1);
    assert!(rig.optimize(&pairs).is_pairwise());
    assert_eq!(rig.epoch(1), epoch);
}

#[test]
fn the_ring_stays_where_it_is_as_fast_and_where_a_rate_is_missing() {
    let mut rig = Rig::world(4);
    let epoch = rig.epoch(1);
    let done = rig.optimize(&alike);
    assert_eq!((done.is_pairwise(), done.pairwise_pct, rig.is_pairwise()), (false, 100, false));
    assert_eq!(rig.epoch(1), epoch);
    let mut rig = Rig::world(4);
    let done = rig.optimize(&|from, to| if (from, to) == (1, 3) { 0 } else { pairs(from, to) });
    assert_eq!((done.is_pairwise(), done.pairwise_pct, rig.is_pairwise()), (false, 0, false));
    let mut rig = Rig::world(33);
    let done = rig.optimize(&pairs);
    assert_eq!((done.is_pairwise(), done.pairwise_pct, rig.is_pairwise()), (false, 0, false));
}

#[test]
fn every_ring_goes_by_what_is_known_of_its_members() {
    let mut rig = Rig::world(4);
    rig.optimize(&pairs);
    rig.join(&[5], 0);
    assert!(!rig.is_pairwise(), "nothing is known of the newcomer");
    rig.die(5);
    assert!(rig.is_pairwise());
    rig.confirm_all();
    assert_eq!(rig.shares(), []);
    // Of three, two are close to each other.
    rig.die(4);
    assert_eq!(rig.accepted(), [1, 2, 3]);
    assert!(rig.is_pairwise());
    assert_eq!(rig.shares(), [(1, 485), (2, 485), (3, 30)], "the third has no faster edge");
    rig.confirm_all();
    rig.die(3);
    assert!(!rig.is_pairwise());
}

#[test]
fn a_change_has_to_gain_a_tenth_either_way() {
    let mut rig = Rig::world(4);
    assert!(rig.optimize(&pairs).is_pairwise());
    // The edges beside the ring set the rate of pairwise exchange, as a part of the ring's.
    let beside =
        |part: u64| move |from: u64, to: u64| if to == from % 4 + 1 { RATE } else { RATE * part / 300 };
    for (part, pairwise) in [(95, true), (85, false), (95, false), (100, false)] {
        rig.pass(601_000, &[1, 2, 3, 4]);
        let done = rig.optimize(&beside(part));
        assert_eq!(done.is_pairwise(), pairwise, "{part}");
        assert!((i64::from(done.pairwise_pct) - part as i64).abs() <= 1, "{part}: {done:?}");
        assert_eq!(rig.is_pairwise(), pairwise);
    }
}

#[test]
fn without_a_mesh_there_is_no_pairwise_exchange() {
    let mut rig = Rig::world(4);
    rig.optimize(&pairs);
    rig.all_meshed();
    let edge =
        rig.plans[&1].edges_for(Purpose::Mesh).find(|edge| edge.from == rig.peers[&1]).expect("an edge");
    let fault = EdgeFault {
        from: edge.from,
        to: edge.to,
        generation: edge.generation,
        forgotten: false,
        text: Text::new("reset"),
    };
    rig.broken(1, fault);
    let done = rig.optimize(&pairs);
    assert_eq!((done.is_pairwise(), done.pairwise_pct, rig.is_pairwise()), (false, 300, false));
    // The edge is built anew when its fault is forgotten.
    rig.pass(61_000, &[1, 2, 3, 4]);
    assert!(rig.optimize(&pairs).is_pairwise() && rig.plans[&1].edges_for(Purpose::Mesh).next().is_some());
}

impl Rig {
    /// All begin an operation; `None` if it waits.
    fn begin(&mut self, tag: u64, algorithm: Algorithm) -> Option<Algorithm> {
        let op = self.op(1, tag, 0);
        let all = self.accepted();
        self.mail.clear();
        for n in &all {
            let descriptor = Descriptor { algorithm, ..super::harness::descriptor(1 << 20) };
            self.send(*n, C2m::Initiate(Initiate { op, descriptor, has_begun: false }));
        }
        self.begun(op)
    }

    fn begun(&mut self, op: OpId) -> Option<Algorithm> {
        let answers: Vec<Option<M2c>> = self.accepted().into_iter().map(|n| self.answers(n).pop()).collect();
        assert!(answers.windows(2).all(|two| two[0] == two[1]), "{answers:?}");
        match answers.into_iter().next()?? {
            M2c::Commence(commence) if commence.op == op => Some(commence.algorithm),
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, tag: u64) {
        let op = self.op(1, tag, 0);
        self.accepted().into_iter().for_each(|n| self.complete(n, op, None));
    }

    fn mesh_report(&mut self, n: u64, fault: Option<EdgeFault>) {
        match fault {
            Some(fault) => self.broken(n, fault),
            None => self.up(n, Purpose::Mesh),
        }
    }

    /// Bytes and rate of every edge after each second of an operation; bytes wait on those that are `busy`.
    fn beat_of_all(&mut self, op: OpId, second: u64, kbit_s: u64, busy: &dyn Fn(u64, u64) -> bool) {
        self.now = self.now + std::time::Duration::from_secs(1);
        let all = self.accepted();
        for n in all.clone() {
            let edge = |from: u64, to: u64| {
                let (plan, ends) = (&self.plans[&n], (self.peers[&from], self.peers[&to]));
                let mut edges = plan.edges.iter().filter_map(|edge| plan.name_of(edge));
                edges.find(|edge| (edge.from, edge.to) == ends).expect("an edge").generation
            };
            let others = || all.iter().copied().filter(|other| *other != n);
            let bytes = |other: u64, generation| EdgeBytes {
                peer: self.peers[&other],
                generation,
                bytes: second * kbit_s * 1000 / 8,
            };
            let beat = Beat {
                sequence: 1,
                call: CallKind::Collective(CollectiveKind::AllReduce),
                call_ms: 1,
                operation: Some(CollectiveId { kind: CollectiveKind::AllReduce, op }),
                moved_bytes: 1,
                sent: others().filter(|to| !busy(n, *to)).map(|to| bytes(to, edge(n, to))).collect(),
                received: others().map(|from| bytes(from, edge(from, n))).collect(),
                ..Beat::default()
            };
            self.send(n, C2m::Beat(beat));
        }
    }
}

#[test]
fn who_asks_for_pairwise_exchange_by_name_waits_for_the_mesh() {
    let mut rig = Rig::world(4);
    assert_eq!(rig.begin(0, Algorithm::Automatic), Some(Algorithm::Ring));
    rig.end(0);
    assert_eq!(rig.begin(1, Algorithm::Pairwise), None);
    (1..=3).for_each(|n| rig.mesh_report(n, None));
    let blocked = rig.state.blocked_on().join("; ");
    let four = rig.peers[&4].to_string();
    assert!(
        blocked.contains("waits to begin for the connections beside the ring of ") && blocked.contains(&four),
        "{blocked}"
    );
    let op = rig.op(1, 1, 0);
    rig.mesh_report(4, None);
    // The plan says so, and all vote for what it means.
    for n in 1..=4 {
        assert_eq!(rig.answer(n), M2c::Stale(Stale { vote: VoteRef::Collective(op), epoch: rig.epoch(n) }));
    }
    assert_eq!(rig.begin(1, Algorithm::Pairwise), Some(Algorithm::Pairwise));
    rig.end(1);
    assert_eq!(rig.begin(2, Algorithm::Pairwise), Some(Algorithm::Pairwise));
}

#[test]
fn the_wait_for_the_mesh_ends() {
    // With the time since the ring stands.
    let mut rig = Rig::world(4);
    rig.pass(1_000, &[1, 2, 3, 4]);
    assert_eq!(rig.begin(1, Algorithm::Pairwise), None);
    rig.pass(900, &[1, 2, 3, 4]);
    assert_eq!(rig.begun(rig.op(1, 1, 0)), None);
    rig.pass(200, &[1, 2, 3, 4]);
    assert_eq!(rig.begun(rig.op(1, 1, 0)), Some(Algorithm::Ring));
    rig.end(1);
    // Later operations on this ring do not wait.
    assert_eq!(rig.begin(2, Algorithm::Pairwise), Some(Algorithm::Ring));
    rig.end(2);
    // With an edge that fails.
    rig.join(&[5], 0);
    assert_eq!(rig.begin(3, Algorithm::Pairwise), None);
    let edge =
        rig.plans[&1].edges_for(Purpose::Mesh).find(|edge| edge.from == rig.peers[&1]).expect("an edge");
    let (from, to, generation) = (edge.from, edge.to, edge.generation);
    rig.mesh_report(
        1,
        Some(EdgeFault { from, to, generation, forgotten: false, text: Text::new("refused") }),
    );
    assert_eq!(rig.begun(rig.op(1, 3, 0)), Some(Algorithm::Ring));
    // Where there is no mesh.
    let mut rig = Rig::world(2);
    assert_eq!(rig.begin(1, Algorithm::Pairwise), Some(Algorithm::Ring));
}

#[test]
fn shares_follow_the_rates_of_edges_and_change_for_a_tenth() {
    let mut rig = Rig::in_sites(&["a", "b", "c", "d"]);
    let epoch = rig.epoch(1);
    // One slow pair, beside the ring or not: its ends own nothing of what the others can own.
    let slow_pair = |slow: u64| move |from: u64, to: u64| if from + to == 4 { slow } else { pairs(from, to) };
    let done = rig.optimize(&slow_pair(RATE / 10));
    assert!(done.is_pairwise() && rig.is_pairwise() && rig.epoch(1) > epoch);
    let shares = rig.shares();
    assert_eq!(shares.iter().map(|(_, share)| share).sum::<u16>(), 1000);
    assert!(shares[0].1 + shares[2].1 < 120 && shares[1].1 > 400 && shares[3].1 > 400, "{shares:?}");
    // Noise changes nothing, nor the epoch.
    let epoch = rig.epoch(1);
    rig.pass(601_000, &[1, 2, 3, 4]);
    assert!(rig.optimize(&slow_pair(RATE / 9)).is_pairwise());
    assert_eq!((rig.epoch(1), rig.shares()), (epoch, shares));
    rig.pass(601_000, &[1, 2, 3, 4]);
    assert!(rig.optimize(&pairs).is_pairwise());
    assert_eq!(rig.shares(), [], "equal ones");
    assert!(rig.epoch(1) > epoch);
}

#[test]
fn the_ends_of_an_edge_that_holds_pairwise_exchange_up_own_less() {
    let mut rig = Rig::in_sites(&["a", "b", "c", "d"]);
    rig.optimize(&pairs);
    rig.all_meshed();
    assert_eq!(rig.begin(1, Algorithm::Automatic), Some(Algorithm::Pairwise));
    let op = rig.op(1, 1, 0);
    // The rate that the exchange needs of each edge is a third of what fast ones have by themselves, and all have bytes
    // waiting.
    (1..=9).for_each(|second| rig.beat_of_all(op, second, RATE, &|_, _| true));
    assert!(rig.jobs.is_empty());
    // Slow, but no edge has bytes waiting all the time.
    (1..=9).for_each(|second| rig.beat_of_all(op, 9 + second, RATE / 5, &|from, _| (from + second) % 3 > 0));
    assert!(rig.jobs.is_empty());
    (1..=9).for_each(|second| rig.beat_of_all(op, 20 + second, RATE / 5, &|from, to| (from, to) == (1, 3)));
    assert_eq!(rig.jobs.len(), 1);
    rig.plan();
    assert_eq!(rig.shares(), [], "the operation is not disturbed");
    rig.end(1);
    let shares = rig.shares();
    assert!(rig.is_pairwise() && shares[0].1 + shares[2].1 < 200, "{shares:?}");
    rig.confirm_all();
    rig.all_meshed();
    assert_eq!(rig.begin(2, Algorithm::Automatic), Some(Algorithm::Pairwise));
    // With these shares that edge needs no more than it has, and the others need more.
    let op = rig.op(1, 2, 0);
    (1..=9).for_each(|second| rig.beat_of_all(op, 30 + second, RATE / 5, &|from, to| (from, to) == (1, 3)));
    assert!(rig.jobs.is_empty());
    (1..=9).for_each(|second| rig.beat_of_all(op, 40 + second, RATE / 5, &|from, to| (from, to) == (2, 4)));
    assert_eq!(rig.jobs.len(), 1);
}

#[test]
fn edges_that_hold_pairwise_exchange_up_bring_the_ring_back() {
    let mut rig = Rig::in_sites(&["a", "b", "c", "d"]);
    rig.optimize(&pairs);
    let order = rig.ring(0);
    let ring = |from: u64, to: u64| (0..4).any(|at| (order[at], order[(at + 1) % 4]) == (from, to));
    rig.all_meshed();
    for tag in 1.. {
        let way = rig.begin(tag, Algorithm::Automatic);
        if way == Some(Algorithm::Ring) {
            break;
        }
        assert!(way == Some(Algorithm::Pairwise) && tag < 20, "all that is slow is beside the ring");
        let op = rig.op(1, tag, 0);
        (1..=9).for_each(|second| rig.beat_of_all(op, second, RATE / 50, &|from, to| !ring(from, to)));
        // The way back of an edge that has become slow is not trusted until it is used.
        (10..=19).for_each(|second| rig.beat_of_all(op, second, RATE, &ring));
        if !rig.jobs.is_empty() {
            rig.plan();
        }
        rig.end(tag);
        rig.confirm_all();
        rig.all_meshed();
    }
    assert_eq!(rig.ring(0), order);
}

impl Rig {
    /// Votes, and plays the rounds in which each sends to one; returns the probes of the one in which all send to all.
    fn crowd(&mut self, rate: &dyn Fn(u64, u64) -> u64) -> Vec<(u64, u64, ProbePlan)> {
        let all = self.accepted();
        self.mail.clear();
        self.vote_optimize(&all);
        loop {
            let edges = self.told_probes();
            if edges.iter().all(|(_, _, plan)| plan.crowded) {
                return edges;
            }
            assert!(edges.iter().all(|(_, _, plan)| !plan.crowded));
            self.report_all(&edges, rate);
        }
    }

    fn end_of_crowd(&mut self) -> OptimizeDone {
        self.plan();
        self.confirm_all();
        let done: Vec<OptimizeDone> = self.accepted().into_iter().map(|n| self.optimized(n)).collect();
        done[0].clone()
    }
}

#[test]
fn all_send_to_all_to_learn_what_interfaces_carry() {
    let mut rig = Rig::world(4);
    let crowd = rig.crowd(&alike);
    assert_eq!(crowd.len(), 12);
    assert!(crowd.iter().all(|(_, _, plan)| plan.limit_ms == 1500), "{crowd:?}");
    rig.report_all(&crowd, &|_, _| RATE * 9 / 10);
    let done = rig.end_of_crowd();
    assert_eq!((done.is_pairwise(), done.pairwise_pct), (true, 270));
    // Known for as long as the rates of single edges.
    assert_eq!(rig.crowd(&alike), []);
    assert!(rig.end_of_crowd().is_pairwise());
    rig.pass(601_000, &[1, 2, 3, 4]);
    let crowd = rig.crowd(&alike);
    assert_eq!(crowd.len(), 12);
    rig.report_all(&crowd, &|_, _| RATE / 4);
    let done = rig.end_of_crowd();
    assert_eq!(
        (done.is_pairwise(), done.pairwise_pct),
        (true, 100),
        "what is used stays where both are alike"
    );
    // A newcomer costs its own edges, and all at once.
    rig.join(&[5], 0);
    let crowd = rig.crowd(&alike);
    assert_eq!(crowd.len(), 20);
}

#[test]
fn who_does_not_report_on_all_at_once_costs_nobody_an_edge() {
    let mut rig = Rig::world(4);
    let crowd = rig.crowd(&alike);
    let late = |(from, to, _): &&(u64, u64, ProbePlan)| (*from, *to) != (2, 3);
    let some: Vec<_> = crowd.iter().filter(late).cloned().collect();
    rig.report_all(&some, &|_, _| RATE);
    assert!(rig.jobs.is_empty(), "not all have reported");
    rig.pass(4_000, &[1, 2, 3, 4]);
    let done = rig.end_of_crowd();
    // Two edges each are known to go at once from rank 2, and into rank 3.
    assert_eq!((done.unmeasured, done.pairwise_pct), (0, 200));
    // That edge is tried again, with all others, as early as one that could not be measured.
    rig.pass(61_000, &[1, 2, 3, 4]);
    assert_eq!(rig.crowd(&alike).len(), 12);
}

#[test]
fn a_death_while_all_send_to_all() {
    let mut rig = Rig::world(4);
    let crowd = rig.crowd(&alike);
    rig.die(4);
    let some: Vec<_> = crowd.into_iter().filter(|(from, to, _)| *from < 4 && *to < 4).collect();
    rig.report_all(&some, &|_, _| RATE);
    let done = rig.end_of_crowd();
    assert_eq!((done.is_pairwise(), done.pairwise_pct), (true, 200));
}

#[test]
fn peers_in_one_place_and_large_groups_do_not_crowd() {
    let mut rig = Rig::world(33);
    assert_eq!(rig.crowd(&alike), []);
    let mut rig = Rig::world(4);
    assert_eq!(
        rig.crowd(&|from, to| if (from, to) == (1, 2) { 0 } else { RATE }),
        [],
        "one edge is not there"
    );
}
