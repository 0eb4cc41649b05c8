//! Optimisation: probes, plans, adoption, and deaths at each of them.

use super::harness::Rig;
use crate::state::{Input, PlanKey};
use pccl_protocol::*;

pub(super) const RATE: u64 = 100_000;

impl Rig {
    pub(super) fn vote_optimize(&mut self, list: &[u64]) {
        for n in list {
            self.send(*n, C2m::VoteOptimize(RequestId(500 + n)));
        }
    }

    /// Probes that a client was told to make since the last call, with the number of the target.
    pub(super) fn probes(&mut self, n: u64) -> Vec<(u64, ProbePlan)> {
        let plans = self.take(n).into_iter().filter_map(|packet| match packet {
            M2c::ProbePlan(plan) => Some(plan),
            _ => None,
        });
        let plans: Vec<ProbePlan> = plans.collect();
        let number = |peer: PeerId| *self.peers.iter().find(|(_, id)| **id == peer).expect("known").0;
        plans.into_iter().map(|plan| (number(plan.to), plan)).collect()
    }

    fn report(&mut self, n: u64, plan: &ProbePlan, result: ProbeResult) {
        self.send(n, C2m::ProbeReport(ProbeReport { round: plan.round, to: plan.to, result }));
    }

    /// Plays one round of probes; `rate` is in kbit/s, 0 fails. Returns the edges. None are left in the round in which
    /// all send to all, which finds that one edge alone fills an interface.
    fn round(&mut self, rate: &dyn Fn(u64, u64) -> u64) -> Vec<(u64, u64)> {
        let edges = self.told_probes();
        let others = self.accepted().len() as u64 - 1;
        self.report_all(&edges, &|from, to| rate(from, to) / if edges[0].2.crowded { others } else { 1 });
        let alone = edges.into_iter().filter(|(_, _, plan)| !plan.crowded);
        alone.map(|(from, to, _)| (from, to)).collect()
    }

    /// The probes that clients were told to make since the last call.
    pub(super) fn told_probes(&mut self) -> Vec<(u64, u64, ProbePlan)> {
        let mut edges = Vec::new();
        for n in self.accepted() {
            edges.extend(self.probes(n).into_iter().map(|(to, plan)| (n, to, plan)));
        }
        edges
    }

    pub(super) fn report_all(&mut self, edges: &[(u64, u64, ProbePlan)], rate: &dyn Fn(u64, u64) -> u64) {
        for (from, to, plan) in edges {
            let result = match rate(*from, *to) {
                0 => ProbeResult::Failed(Text::new("connection refused")),
                kbit_s => ProbeResult::Measured(ProbeRate { kbit_s, latency_us: 100, connections: 1 }),
            };
            self.report(*from, plan, result);
        }
    }

    pub(super) fn rounds(&mut self, rate: &dyn Fn(u64, u64) -> u64) -> Vec<Vec<(u64, u64)>> {
        std::iter::from_fn(|| Some(self.round(rate)).filter(|edges| !edges.is_empty())).collect()
    }

    /// Runs what is to be planned.
    pub(super) fn plan(&mut self) {
        while let Some((plan, (job, _))) = self.jobs.pop_first() {
            let result = job.run(&mut || std::time::Duration::from_secs(1));
            self.input(Input::Planned { plan, result });
        }
    }

    pub(super) fn optimized(&mut self, n: u64) -> OptimizeDone {
        match self.answer(n) {
            M2c::OptimizeDone(done) => done,
            other => panic!("client {n}: {other:?}"),
        }
    }
}

/// The edge 1 -> 2 of the first ring is slow.
fn one_slow(from: u64, to: u64) -> u64 {
    if (from, to) == (1, 2) { RATE / 10 } else { RATE }
}

#[test]
fn alone_it_is_over_at_once() {
    let mut rig = Rig::world(1);
    rig.vote_optimize(&[1]);
    let done = rig.optimized(1);
    assert_eq!((done.request, done.changed, done.sizes.global), (RequestId(501), false, 1));
    assert_eq!(done.note.as_str(), "there is only one ring");
}

#[test]
fn all_vote_edges_are_measured_and_all_get_the_better_ring() {
    let mut rig = Rig::world(4);
    assert_eq!(rig.ring(0), [1, 2, 3, 4]);
    rig.vote_optimize(&[1, 2, 3]);
    assert!(rig.round(&one_slow).is_empty(), "not all have voted");
    assert!(rig.state.blocked_on()[0].contains("waits for the vote of"), "{:?}", rig.state.blocked_on());
    rig.vote_optimize(&[4]);
    assert!(rig.state.blocked_on()[0].contains("round 1 of 3 of probes"), "{:?}", rig.state.blocked_on());
    let rounds = rig.rounds(&one_slow);
    assert_eq!(rounds.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4]);
    for n in 1..=4 {
        rig.nothing(n);
    }
    rig.plan();
    let ring = rig.ring(0);
    assert_ne!(ring, [1, 2, 3, 4]);
    let blocked = rig.state.blocked_on().join("; ");
    assert!(blocked.contains("optimize_topology waits for ring"), "{blocked}");
    rig.confirm_all();
    let done: Vec<OptimizeDone> = (1..=4).map(|n| rig.optimized(n)).collect();
    for one in done {
        assert!(one.changed && one.proven && one.unmeasured == 0, "{one:?}");
        assert_eq!((one.slowest.map(|edge| edge.kbit_s), one.bound_kbit_s), (Some(RATE), RATE));
    }
    assert!(rig.state.blocked_on().is_empty(), "{:?}", rig.state.blocked_on());
    // A known edge is not measured again, and an equally good ring is not exchanged.
    rig.vote_optimize(&[1, 2, 3, 4]);
    rig.plan();
    assert_eq!(rig.ring(0), ring);
    assert!((1..=4).all(|n| !rig.optimized(n).changed));
}

#[test]
fn a_newcomer_costs_its_own_edges_and_old_rates_are_measured_again() {
    let mut rig = Rig::world(4);
    rig.vote_optimize(&[1, 2, 3, 4]);
    rig.rounds(&one_slow);
    rig.plan();
    rig.confirm_all();
    rig.join(&[5], 0);
    rig.vote_optimize(&[1, 2, 3, 4, 5]);
    let rounds = rig.rounds(&one_slow);
    assert_eq!((rounds.len(), rounds.concat().len()), (4, 8));
    assert!(rounds.concat().iter().all(|(from, to)| *from == 5 || *to == 5));
    rig.plan();
    rig.confirm_all();
    rig.pass(700_000, &[1, 2, 3, 4, 5]);
    rig.mail.clear();
    rig.vote_optimize(&[1, 2, 3, 4, 5]);
    assert_eq!(rig.rounds(&one_slow).concat().len(), 20);
}

#[test]
fn an_edge_that_cannot_be_measured_is_in_no_ring() {
    let mut rig = Rig::world(4);
    let blocked = |from, to| if (from, to) == (2, 3) { 0 } else { RATE };
    rig.vote_optimize(&[1, 2, 3, 4]);
    rig.rounds(&blocked);
    rig.plan();
    rig.confirm_all();
    let ring = rig.ring(0);
    let at = ring.iter().position(|n| *n == 2).expect("member");
    assert_ne!(ring[(at + 1) % 4], 3, "{ring:?}");
    assert_eq!(rig.optimized(1).unmeasured, 1);
}

#[test]
fn without_a_ring_the_present_one_stays_and_who_is_in_the_way_is_named() {
    let mut rig = Rig::world(3);
    rig.vote_optimize(&[1, 2, 3]);
    rig.rounds(&|_, to| if to == 2 { 0 } else { RATE });
    rig.plan();
    assert_eq!(rig.ring(0), [1, 2, 3]);
    let done = rig.optimized(1);
    assert!(!done.changed && done.slowest.is_none(), "{done:?}");
    assert!(done.note.as_str().contains(&rig.peers[&2].to_string()), "{done:?}");
}

#[test]
fn a_peer_that_does_not_report_holds_nobody_up() {
    let mut rig = Rig::world(3);
    rig.vote_optimize(&[1, 2, 3]);
    let (_, of_one) = rig.probes(1).remove(0);
    rig.pass(4_100, &[1, 2, 3]);
    // The second round runs; a late report of the first is ignored.
    assert!(rig.state.blocked_on()[0].contains("round 2 of 2 of probes"), "{:?}", rig.state.blocked_on());
    rig.report(1, &of_one, ProbeResult::Failed(Text::new("late")));
    rig.pass(4_100, &[1, 2, 3]);
    rig.mail.clear();
    rig.plan();
    for n in 1..=3 {
        let done = rig.optimized(n);
        assert_eq!((done.unmeasured, done.changed), (6, false));
    }
}

#[test]
fn many_rounds_of_probes_are_shorter_and_end_in_time() {
    // 39 rounds of at most 2 s fit into 60 s if each takes 1.54 s.
    let mut rig = Rig::world(40);
    let all: Vec<u64> = (1..=40).collect();
    rig.vote_optimize(&all);
    let began = rig.now;
    let (_, plan) = rig.probes(1).remove(0);
    assert_eq!(plan.limit_ms, 1538);
    // One peer reports nothing: every round lasts as long as it may, the grace included, so not all fit.
    let mut rounds = 0;
    while rig.state.blocked_on()[0].contains("of probes") {
        rounds += 1;
        for n in 2..=40 {
            for (_, plan) in rig.probes(n) {
                let rate = ProbeRate { kbit_s: RATE, latency_us: 100, connections: 1 };
                rig.report(n, &plan, ProbeResult::Measured(rate));
            }
        }
        rig.pass(3_600, &all);
        assert!(rounds < 39, "it does not end");
    }
    let took = rig.now.since(began).as_secs();
    assert!((55..70).contains(&took), "{took} s");
    rig.plan();
    rig.confirm_all();
    // An edge that was not measured is left for the next time.
    rig.mail.clear();
    rig.vote_optimize(&all);
    assert!(!rig.probes(2).is_empty());
}

#[test]
fn a_planner_that_does_not_answer_holds_nobody_up() {
    let mut rig = Rig::world(3);
    rig.vote_optimize(&[1, 2, 3]);
    rig.rounds(&one_slow);
    let plan = *rig.jobs.keys().next().expect("a job");
    rig.pass(3_100, &[1, 2, 3]);
    assert!(rig.jobs.is_empty(), "it was dropped");
    assert_eq!(rig.optimized(1).note.as_str(), "no ring was planned in time");
    rig.input(Input::Planned { plan, result: Err("late".into()) });
    rig.input(Input::Planned { plan: PlanKey(77), result: Err("of another".into()) });
}

/// Plays an optimisation of five clients up to each of its phases, in which client 3 dies; the others go on.
#[test]
fn a_death_in_each_phase() {
    for phase in 0..7 {
        let mut rig = Rig::world(5);
        let rest = [1, 2, 4, 5];
        rig.vote_optimize(if phase == 0 { &[1, 2, 3, 4] } else { &[1, 2, 3, 4, 5] });
        match phase {
            // Its vote was there, another's was not.
            0 => {
                rig.die(3);
                rig.vote_optimize(&[5]);
            }
            // While it measures, and is measured.
            1 => rig.die(3),
            2 => {
                rig.round(&one_slow);
                rig.die(3);
            }
            // In the last round.
            3 => {
                (0..3).for_each(|_| drop(rig.round(&one_slow)));
                rig.die(3);
            }
            // While the ring is planned: the plan is dropped and made anew.
            4 => {
                rig.rounds(&one_slow);
                let old = *rig.jobs.keys().next().expect("a job");
                rig.die(3);
                assert!(!rig.jobs.contains_key(&old) && rig.jobs.len() == 1, "{:?}", rig.jobs.keys());
            }
            // While the new ring is connected.
            5 => {
                rig.rounds(&one_slow);
                rig.plan();
                rig.die(3);
            }
            _ => {
                rig.rounds(&one_slow);
                rig.plan();
                rig.confirm(1);
                rig.confirm(2);
                rig.die(3);
            }
        }
        rig.rounds(&one_slow);
        rig.plan();
        rig.confirm_all();
        for n in rest {
            let done = rig.optimized(n);
            assert_eq!(done.sizes.global, 4, "phase {phase}");
            assert_eq!(done.slowest.map(|edge| edge.kbit_s), Some(RATE), "phase {phase}: {:?}", rig.ring(0));
        }
        assert!(rig.state.blocked_on().is_empty(), "phase {phase}: {:?}", rig.state.blocked_on());
        rig.commence(rig.op(1, 0, 0));
    }
}

#[test]
fn all_die_and_the_next_world_is_fresh() {
    let mut rig = Rig::world(3);
    rig.vote_optimize(&[1, 2, 3]);
    rig.rounds(&one_slow);
    (1..=3).for_each(|n| rig.die(n));
    let snapshot = rig.state.snapshot();
    assert_eq!((snapshot.optimizing, snapshot.measured, snapshot.planning), (false, 0, 0));
    assert!(rig.jobs.is_empty());
    rig.join(&[4, 5], 0);
    assert_eq!(rig.ring(0), [4, 5]);
}

#[test]
fn an_edge_of_the_new_ring_that_cannot_be_built_is_avoided() {
    let mut rig = Rig::world(4);
    rig.vote_optimize(&[1, 2, 3, 4]);
    rig.rounds(&one_slow);
    rig.plan();
    for _ in 0..2 {
        let ring = rig.ring(0);
        let fault = rig.edge(ring[0], ring[1]);
        rig.broken(ring[0], fault);
        rig.pass(3_000, &[1, 2, 3, 4]);
    }
    rig.confirm_all();
    assert_eq!(rig.ring(0).len(), 4);
    for n in 1..=4 {
        let last = rig.answers(n).pop();
        assert!(matches!(last, Some(M2c::OptimizeDone(_))), "client {n}: {last:?}");
    }
}

#[test]
fn groups_are_measured_at_the_same_time_and_planned_apart() {
    let mut rig = Rig::world(3);
    rig.join(&[4, 5, 6], 1);
    rig.vote_optimize(&[1, 2, 3, 4, 5, 6]);
    let rounds = rig.rounds(&|from, to| if (from, to) == (4, 5) { RATE / 10 } else { RATE });
    assert_eq!(rounds.iter().map(Vec::len).collect::<Vec<_>>(), [6, 6]);
    assert!(rounds.concat().iter().all(|(from, to)| (*from <= 3) == (*to <= 3)));
    assert_eq!(rig.jobs.len(), 2);
    rig.plan();
    rig.confirm_all();
    assert_eq!((rig.ring(0), rig.ring(1)), (vec![1, 2, 3], vec![4, 6, 5]));
    assert_eq!([1, 4].map(|n| rig.optimized(n).changed), [false, true]);
}

#[test]
fn a_vote_stands_alone_and_newcomers_wait() {
    let mut rig = Rig::world(2);
    rig.vote_optimize(&[1]);
    rig.vote_topology(1, 1, 0);
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
    let mut rig = Rig::world(2);
    rig.vote_optimize(&[1]);
    rig.initiate(1, rig.op(1, 0, 0));
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
    let mut rig = Rig::world(3);
    rig.vote_optimize(&[1, 2, 3]);
    rig.register(4, 0);
    rig.rounds(&one_slow);
    rig.plan();
    rig.confirm_all();
    assert_eq!((rig.accepted(), rig.optimized(1).sizes.global), (vec![1, 2, 3], 3));
    let round = ProbeRound { optimization: 9, round: 1 };
    let result = ProbeResult::Failed(Text::default());
    rig.send(1, C2m::ProbeReport(ProbeReport { round, to: PeerId(1), result }));
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
}

/// A plan that is not proven goes on in the background; what it finds is adopted by the next round of all.
#[test]
fn a_better_ring_of_the_background_waits_for_all() {
    for by_update in [true, false] {
        let mut rig = Rig::world(4);
        rig.vote_optimize(&[1, 2, 3, 4]);
        rig.rounds(&one_slow);
        let (plan, (job, background)) = rig.jobs.pop_first().expect("a job");
        assert!(!background);
        let mut answer = job.run(&mut || std::time::Duration::from_secs(1)).expect("a ring");
        let best = answer.order.clone();
        (answer.order, answer.proven, answer.kept) = (vec![0, 1, 2, 3], false, true);
        rig.input(Input::Planned { plan, result: Ok(answer.clone()) });
        // The same ring, with another schedule around its slow edge.
        rig.confirm_all();
        assert!(!rig.optimized(1).proven);
        let (plan, (_, background)) = rig.jobs.pop_first().expect("another job");
        assert!(background);
        (answer.order, answer.proven, answer.kept) = (best.clone(), true, false);
        rig.input(Input::Planned { plan, result: Ok(answer) });
        assert_eq!(rig.ring(0), [1, 2, 3, 4], "nobody has called");
        rig.mail.clear();
        if by_update {
            (1..=4).for_each(|n| rig.vote_topology(n, 1, 0));
        } else {
            rig.vote_optimize(&[1, 2, 3, 4]);
            rig.plan();
        }
        assert_eq!(rig.ring(0), best.iter().map(|at| *at as u64 + 1).collect::<Vec<_>>());
        rig.nothing(1);
        rig.confirm_all();
        assert_eq!(rig.answers(1).len(), 1);
    }
}

#[test]
fn a_plan_in_the_background_ends_when_the_members_change() {
    let mut rig = Rig::world(4);
    rig.vote_optimize(&[1, 2, 3, 4]);
    rig.rounds(&one_slow);
    let (plan, (job, _)) = rig.jobs.pop_first().expect("a job");
    let mut answer = job.run(&mut || std::time::Duration::from_secs(1)).expect("a ring");
    answer.proven = false;
    rig.input(Input::Planned { plan, result: Ok(answer) });
    rig.confirm_all();
    assert_eq!(rig.jobs.len(), 1);
    rig.die(4);
    assert!(rig.jobs.is_empty());
    assert_eq!(rig.state.snapshot().planning, 0);
}
