//! Edges beside the ring.

use super::harness::*;
use pccl_protocol::*;
use std::collections::BTreeSet;

/// The edge beside the ring between two clients in the last plan of client `n`.
fn mesh_edge(rig: &Rig, n: u64, from: u64, to: u64) -> Option<EdgeName> {
    let (from, to) = (rig.peers[&from], rig.peers[&to]);
    rig.plans[&n].edges_for(Purpose::Mesh).find(|edge| edge.from == from && edge.to == to)
}

/// A client says that its mesh stands, or which edge of it does not.
fn report(rig: &mut Rig, n: u64, fault: Option<EdgeFault>) {
    match fault {
        Some(fault) => rig.broken(n, fault),
        None => rig.up(n, Purpose::Mesh),
    }
}

/// Whether two plans in a row have the same edges.
fn continues(plan: &GroupPlan, before: &GroupPlan) -> bool {
    plan.members == before.members && plan.edges == before.edges
}

fn all_meshed(rig: &mut Rig) {
    rig.accepted().into_iter().for_each(|n| report(rig, n, None));
    rig.confirm_all();
}

#[test]
fn ring_and_mesh_join_everybody_with_everybody_in_groups_of_three_to_eight() {
    for size in 1..=9 {
        let rig = Rig::world(size);
        let plan = &rig.plans[&1];
        let ring = plan.edges_for(Purpose::Ring).map(|edge| (edge.from, edge.to));
        let mesh = plan.edges_for(Purpose::Mesh).map(|edge| (edge.from, edge.to));
        let n = size as usize;
        if !(3..=8).contains(&n) {
            assert_eq!(mesh.count(), 0);
            continue;
        }
        let all: Vec<_> = ring.chain(mesh).collect();
        assert_eq!(all.len(), n * (n - 1), "none twice");
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert!(all.iter().all(|(from, to)| from != to));
    }
}

#[test]
fn a_small_collective_goes_directly_once_everybody_said_that_the_mesh_stands() {
    let mut rig = Rig::world(4);
    (1..=3).for_each(|n| report(&mut rig, n, None));
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::AllGather);
    report(&mut rig, 4, None);
    let op = rig.op(1, 8, 0);
    rig.commence_by(op, Algorithm::Direct);
}

#[test]
fn whether_the_mesh_stands_is_part_of_the_plan_and_what_runs_goes_on() {
    let mut rig = Rig::world(4);
    let before = rig.plans[&1].clone();
    let around = rig.op(1, 7, 0);
    rig.commence(around);
    let waits = rig.op(1, 8, 0);
    rig.initiate(1, waits);
    all_meshed(&mut rig);
    let with = rig.plans[&1].clone();
    assert!(with.paths.mesh && !before.paths.mesh && continues(&with, &before));
    assert_eq!((with.epoch.0, with.counted_since), (before.epoch.0 + 1, before.counted_since));
    assert_eq!(rig.answer(1), M2c::Stale(Stale { vote: VoteRef::Collective(waits), epoch: with.epoch }));
    (1..=4).for_each(|n| rig.complete(n, around, None));
    assert!(is_done(&rig.answer(1)));
    // Attempts are counted on, so the next one of the tag has the next number.
    let direct = rig.op(1, 7, 1);
    rig.commence_by(direct, Algorithm::Direct);
    let edge = mesh_edge(&rig, 1, 1, 3).expect("planned");
    report(&mut rig, 1, Some(fault_of(edge, "reset")));
    let without = rig.plans[&1].clone();
    assert!(!without.paths.mesh && continues(&without, &with));
    (1..=4).for_each(|n| rig.complete(n, direct, None));
    assert!(is_done(&rig.answer(1)));
    let around = rig.op(1, 7, 2);
    rig.commence_by(around, Algorithm::AllGather);
}

#[test]
fn an_outcome_is_known_to_who_votes_in_the_next_epoch() {
    let mut rig = Rig::world(4);
    let op = rig.op(1, 7, 0);
    rig.initiate(1, op);
    rig.give_up(1, VoteRef::Collective(op), None);
    let first = rig.answer(1);
    assert!(matches!(first, M2c::Outcome(_)), "{first:?}");
    all_meshed(&mut rig);
    rig.mail.clear();
    let op = rig.op(2, 7, 0);
    rig.initiate(2, op);
    let verdict = aborted(rig.answer(2));
    assert_eq!(verdict, aborted(first));
}

#[test]
fn a_large_collective_goes_around_the_ring() {
    let mut rig = Rig::world(3);
    all_meshed(&mut rig);
    let op = rig.op(1, 7, 0);
    for n in 1..=3 {
        rig.send(n, C2m::Initiate(Initiate { op, descriptor: descriptor(1 << 20), has_begun: false }));
    }
    assert_eq!(rig.answer(1), M2c::Commence(Commence { op, algorithm: Algorithm::Ring }));
}

#[test]
fn a_fault_costs_nobody_its_place_and_takes_the_mesh_away_as_long_as_it_is_remembered() {
    let mut rig = Rig::world(4);
    all_meshed(&mut rig);
    let (before, edge) = (rig.plans[&1].clone(), mesh_edge(&rig, 1, 1, 3).expect("planned"));
    report(&mut rig, 1, Some(fault_of(edge, "reset")));
    rig.pass(3000, &[1, 2, 3, 4]);
    assert_eq!(rig.accepted(), [1, 2, 3, 4]);
    assert!(continues(&rig.plans[&1], &before), "a new ring");
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::AllGather);
    (1..=4).for_each(|n| rig.complete(n, op, None));
    // The next ring has no mesh while both ends are in it.
    rig.join(&[5], 0);
    assert_eq!(rig.plans[&5].edges_for(Purpose::Mesh).count(), 0);
    rig.pass(61_000, &[1, 2, 3, 4, 5]);
    rig.join(&[6], 0);
    assert!(rig.plans[&6].edges_for(Purpose::Mesh).next().is_some());
    all_meshed(&mut rig);
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::Direct);
}

/// Time passes; whoever gets a ring confirms it, but for the mesh.
fn pass(rig: &mut Rig, seconds: u64) {
    for _ in 0..seconds {
        let all = rig.accepted();
        rig.pass(1000, &all);
        rig.confirm_all();
    }
}

#[test]
fn the_same_ring_is_planned_again_with_a_mesh_when_its_faults_are_over() {
    let mut rig = Rig::world(4);
    all_meshed(&mut rig);
    let (ring, edge) = (rig.ring(0), mesh_edge(&rig, 1, 1, 3).expect("planned"));
    report(&mut rig, 1, Some(fault_of(edge, "reset")));
    let epoch = rig.epoch(1);
    pass(&mut rig, 58);
    assert_eq!(rig.epoch(1), epoch);
    pass(&mut rig, 4);
    assert_eq!((rig.epoch(1).0, rig.ring(0)), (epoch.0 + 1, ring));
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::AllGather);
    (1..=4).for_each(|n| rig.complete(n, op, None));
    all_meshed(&mut rig);
    let op = rig.op(1, 8, 0);
    rig.commence_by(op, Algorithm::Direct);
    // That was all.
    (1..=4).for_each(|n| rig.complete(n, op, None));
    let plan = rig.plans[&1].clone();
    pass(&mut rig, 200);
    assert_eq!(rig.plans[&1], plan);
}

#[test]
fn a_mesh_is_not_planned_again_under_an_operation() {
    let mut rig = Rig::world(3);
    let (epoch, edge) = (rig.epoch(1), mesh_edge(&rig, 1, 1, 3).expect("planned"));
    report(&mut rig, 1, Some(fault_of(edge, "refused")));
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::AllGather);
    pass(&mut rig, 100);
    assert_eq!(rig.epoch(1), epoch);
    (1..=3).for_each(|n| rig.complete(n, op, None));
    assert_eq!(rig.epoch(1).0, epoch.0 + 1);
    assert!(is_done(&rig.answer(1)));
}

#[test]
fn an_edge_that_fails_again_and_again_is_tried_more_and_more_seldom() {
    let mut rig = Rig::world(3);
    let mut tries = Vec::new();
    let mut epoch = GroupEpoch(0);
    for second in (0..20_000).step_by(5) {
        if rig.epoch(1) != epoch {
            epoch = rig.epoch(1);
            tries.push(second);
            let edge = mesh_edge(&rig, 1, 1, 3).expect("planned");
            report(&mut rig, 1, Some(fault_of(edge, "refused")));
        }
        pass(&mut rig, 5);
    }
    let pauses: Vec<u64> = tries.windows(2).map(|pair| (pair[1] - pair[0]) / 60).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
    // After a long time in which the mesh stood it is a fault like any other.
    pass(&mut rig, 3600 * 3);
    all_meshed(&mut rig);
    pass(&mut rig, 3600 * 3);
    let edge = mesh_edge(&rig, 1, 1, 3).expect("planned");
    report(&mut rig, 1, Some(fault_of(edge, "reset")));
    let epoch = rig.epoch(1);
    pass(&mut rig, 62);
    assert_eq!(rig.epoch(1).0, epoch.0 + 1);
}

#[test]
fn an_edge_that_failed_is_built_anew_once_that_is_forgotten() {
    let mut rig = Rig::world(4);
    all_meshed(&mut rig);
    let (failed, kept) =
        (mesh_edge(&rig, 1, 1, 3).expect("planned"), mesh_edge(&rig, 1, 2, 4).expect("planned"));
    report(&mut rig, 1, Some(fault_of(failed, "reset")));
    rig.pass(61_000, &[1, 2, 3, 4]);
    rig.join(&[5], 0);
    let again = mesh_edge(&rig, 1, 1, 3).expect("planned");
    assert!(again.generation > failed.generation);
    assert_eq!(mesh_edge(&rig, 1, 2, 4), Some(kept));
}

#[test]
fn the_end_of_a_peer_is_no_fault_of_the_others_mesh_and_edges_that_stay_are_kept() {
    let mut rig = Rig::world(5);
    all_meshed(&mut rig);
    let kept = mesh_edge(&rig, 1, 3, 2).expect("planned");
    let lost = mesh_edge(&rig, 1, 1, 4).expect("planned");
    let before = rig.epoch(1);
    rig.die(4);
    // This was on its way when the plan without the edge came.
    rig.send(1, broken(before, fault_of(lost, "reset")));
    rig.confirm_all();
    assert_eq!(mesh_edge(&rig, 1, 3, 2), Some(kept));
    // All edges of the new mesh were in the old one, so it stands as soon as the ring does.
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::Direct);
}

/// The purpose of the edge between two clients in the last plan of client 1, and its generation.
fn planned(rig: &Rig, from: u64, to: u64) -> (Purpose, LinkGeneration) {
    let plan = &rig.plans[&1];
    let ends = [from, to].map(|n| plan.rank_of(rig.peers[&n]).expect("a member"));
    let is_it = |edge: &&PlanEdge| [edge.from, edge.to].map(usize::from) == ends;
    plan.edges.iter().find(is_it).map(|edge| (edge.purpose, edge.generation)).expect("an edge")
}

/// Four members whose edges have as many connections as they ask for, and those in the order of the ring.
fn meshed(pool: u16) -> (Rig, [u64; 4]) {
    let mut rig = Rig::new();
    rig.pool = pool;
    rig.join(&[1, 2, 3, 4], 0);
    all_meshed(&mut rig);
    let ring = rig.ring(0).try_into().expect("all four");
    (rig, ring)
}

#[test]
fn the_ring_takes_over_an_edge_of_the_mesh_and_one_plan_says_that_both_stand() {
    for pool in [0, 1] {
        let (mut rig, [a, b, c, d]) = meshed(pool);
        let (before, epoch) = (planned(&rig, c, a), rig.epoch(a));
        assert_eq!(before.0, Purpose::Mesh);
        rig.die(d);
        assert_eq!(planned(&rig, c, a), (Purpose::Ring, before.1), "{pool}");
        let plan = &rig.plans[&a];
        assert!(plan.paths.mesh && plan.epoch.0 == epoch.0 + 1, "{pool}");
        // Nobody has anything to report.
        let op = rig.op(a, 7, 0);
        for n in [a, b, c] {
            rig.initiate(n, op);
        }
        assert!(matches!(rig.answer(a), M2c::Commence(commence) if commence.algorithm == Algorithm::Direct));
    }
    // With other numbers of connections the ring builds its own.
    let (mut rig, [a, _, c, d]) = meshed(2);
    rig.die(d);
    assert_eq!(planned(&rig, c, a), (Purpose::Ring, LinkGeneration(rig.epoch(a).0)));
    assert!(!rig.plans[&a].paths.mesh);
}

#[test]
fn an_edge_of_the_mesh_that_has_failed_is_not_taken_over() {
    let (mut rig, [a, _, c, d]) = meshed(0);
    let edge = mesh_edge(&rig, a, c, a).expect("planned");
    report(&mut rig, a, Some(fault_of(edge, "reset")));
    rig.die(d);
    assert_eq!(planned(&rig, c, a), (Purpose::Ring, LinkGeneration(rig.epoch(a).0)));
}

#[test]
fn an_edge_that_was_taken_over_and_breaks_is_built_anew_for_the_ring() {
    let (mut rig, [a, b, c, d]) = meshed(0);
    let op = rig.op(a, 7, 0);
    rig.commence_by(op, Algorithm::Direct);
    rig.die(d);
    [a, b, c].into_iter().for_each(|n| drop(rig.take(n)));
    let (_, generation) = planned(&rig, c, a);
    let (from, to) = (rig.peers[&c], rig.peers[&a]);
    rig.broken(a, fault_of(EdgeName { from, to, generation }, "reset"));
    rig.pass(1000, &[a, b, c]);
    assert_eq!(planned(&rig, c, a), (Purpose::Ring, LinkGeneration(rig.epoch(a).0)));
    assert!(rig.accepted().len() == 3, "it costs nobody the place");
}

fn beat(stalled: Vec<StalledEdge>, sent: Vec<EdgeBytes>, received: Vec<EdgeBytes>) -> C2m {
    let call = CallKind::Collective(CollectiveKind::AllReduce);
    C2m::Beat(Beat { sequence: 1, call, stalled, sent, received, ..Beat::default() })
}

/// Four clients run a direct exchange; those in `silent` give no sign of life, and `beat_of_1` says what 1 tells.
fn stuck(silent: &[u64], seconds: u64, beats: impl Fn(u64, EdgeName) -> (C2m, C2m)) -> (Rig, OpId) {
    let mut rig = Rig::world(4);
    all_meshed(&mut rig);
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::Direct);
    let edge = mesh_edge(&rig, 1, 1, 3).expect("planned");
    for second in 1..=seconds {
        let (of_1, of_3) = beats(second, edge);
        if !silent.contains(&3) {
            rig.send(3, of_3);
        }
        rig.send(1, of_1);
        rig.pass(1000, &[2, 4]);
    }
    (rig, op)
}

fn assert_edge_1_3_broke(mut rig: Rig, op: OpId) {
    for n in 1..=4 {
        let M2c::Outcome(OpOutcome { op: of, outcome: Outcome::Aborted(verdict) }) = rig.answer(n) else {
            panic!("client {n} got no verdict")
        };
        assert_eq!((of, verdict.cause), (op, Cause::EdgeBroken));
        let named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        assert_eq!(named, [rig.peers[&1], rig.peers[&3]]);
    }
    let op = rig.op(1, 7, 1);
    rig.commence_by(op, Algorithm::AllGather);
    assert_eq!(rig.accepted(), [1, 2, 3, 4]);
}

fn stalled(second: u64, edge: EdgeName) -> (C2m, C2m) {
    let (to, generation) = (edge.to, edge.generation);
    let stalled = StalledEdge { to, generation, stalled_ms: second * 1000, idle_ms: 0, segment_bytes: 0 };
    (beat(vec![stalled], vec![], vec![]), beat(vec![], vec![], vec![]))
}

#[test]
fn an_edge_of_the_mesh_that_stands_still_ends_what_runs_on_it() {
    let (mut rig, _) = stuck(&[], 3, stalled);
    (1..=4).for_each(|n| rig.nothing(n));
    let (rig, op) = stuck(&[], 5, stalled);
    assert_edge_1_3_broke(rig, op);
}

#[test]
fn a_peer_that_stopped_is_no_fault_of_its_edges() {
    let (mut rig, _) = stuck(&[3], 9, stalled);
    rig.nothing(1);
    rig.pass(4000, &[1, 2, 4]);
    assert_eq!(rig.kick_of(3).code, KickCode::Silent);
    let M2c::Outcome(OpOutcome { outcome: Outcome::Aborted(verdict), .. }) = rig.answer(1) else { panic!() };
    assert_eq!(verdict.cause, Cause::PeerSilent);
}

#[test]
fn bytes_that_vanish_in_the_mesh_end_what_runs_on_it() {
    let lost = |_: u64, edge: EdgeName| {
        let bytes = |peer, bytes| vec![EdgeBytes { peer, generation: edge.generation, bytes }];
        (beat(vec![], bytes(edge.to, 500), vec![]), beat(vec![], vec![], bytes(edge.from, 0)))
    };
    let (rig, op) = stuck(&[], 7, lost);
    assert_edge_1_3_broke(rig, op);
}

#[test]
fn an_edge_that_broke_under_an_attempt_is_named_and_the_next_attempt_goes_around_it() {
    let mut rig = Rig::world(4);
    all_meshed(&mut rig);
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::Direct);
    let edge = mesh_edge(&rig, 1, 1, 3).expect("planned");
    let text = Text::new("reset");
    let fault =
        |kind, peer| OpFault { kind, peer: Some(peer), generation: edge.generation, text: text.clone() };
    report(&mut rig, 1, Some(fault_of(edge, "reset")));
    rig.complete(1, op, Some(fault(OpFaultKind::OutboundLost, edge.to)));
    rig.complete(3, op, Some(fault(OpFaultKind::InboundLost, edge.from)));
    rig.pass(1000, &[1, 2, 3, 4]);
    assert_edge_1_3_broke(rig, op);
}

#[test]
fn an_edge_of_the_mesh_that_was_lost_while_idle_is_built_anew_and_used_again() {
    let mut rig = Rig::world(4);
    all_meshed(&mut rig);
    let edge = mesh_edge(&rig, 1, 1, 3).expect("planned");
    report(&mut rig, 1, Some(EdgeFault { forgotten: true, ..fault_of(edge, "nothing passes any more") }));
    let new = mesh_edge(&rig, 1, 1, 3).expect("planned again at once");
    assert!(new.generation > edge.generation);
    all_meshed(&mut rig);
    let op = rig.op(1, 7, 0);
    rig.commence_by(op, Algorithm::Direct);
}

#[test]
fn only_own_edges_are_reported() {
    let mut rig = Rig::world(4);
    let edge = mesh_edge(&rig, 1, 1, 3).expect("planned");
    report(&mut rig, 2, Some(fault_of(edge, "")));
    assert_eq!(rig.kick_of(2).code, KickCode::Protocol);
    let epoch = GroupEpoch(rig.epoch(1).0 + 7);
    rig.send(1, C2m::EdgeReport(EdgeReport { epoch, up: vec![], broken: vec![] }));
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
}
