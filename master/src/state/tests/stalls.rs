//! Edges on which nothing moves, or bytes are lost.

use super::harness::{Rig, aborted};
use super::pairs::ask;
use super::ring::block;
use pccl_protocol::*;

fn beat_with_stall(rig: &mut Rig, from: u64, to: u64, stalled_ms: u64) {
    let edge = rig.edge(from, to);
    let (to, generation) = (edge.to, edge.generation);
    beat_about(rig, from, StalledEdge { to, generation, stalled_ms, idle_ms: 20_000, segment_bytes: 0 });
}

/// A beat of a peer in an operation, of which nothing else is said.
fn in_operation() -> Beat {
    Beat { sequence: 1, call: CallKind::Collective(CollectiveKind::AllReduce), ..Beat::default() }
}

fn beat_about(rig: &mut Rig, from: u64, stalled: StalledEdge) {
    rig.send(from, C2m::Beat(Beat { stalled: vec![stalled], ..in_operation() }));
}

/// Client 1 says that its edge to 2 stands still, until it is built anew; `beating` give signs of life meanwhile.
fn stall(rig: &mut Rig, seconds: u64, beating: &[u64]) {
    let generation = rig.edge(1, 2).generation;
    for second in 1..=seconds {
        if rig.edge(1, 2).generation == generation {
            beat_with_stall(rig, 1, 2, second * 1000);
        }
        rig.pass(1000, beating);
    }
}

#[test]
fn an_edge_that_stands_still_is_broken_and_the_verdict_names_it_to_all() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 7, 0);
    for n in 1..=3 {
        rig.initiate(n, op);
    }
    let generation = rig.edge(1, 2).generation;
    rig.mail.clear();
    stall(&mut rig, 3, &[2, 3]);
    assert_eq!(rig.edge(1, 2).generation, generation, "not yet");
    stall(&mut rig, 6, &[2, 3]);
    let verdicts: Vec<Verdict> = (1..=3)
        .map(|n| match rig.answer(n) {
            M2c::Outcome(OpOutcome { outcome: Outcome::Aborted(verdict), .. }) => verdict,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]));
    assert_eq!(verdicts[0].cause, Cause::EdgeBroken);
    assert!(verdicts[0].silent_ms >= 4000);
    assert!(verdicts[0].detail.as_str().contains("idle for 20 s before; does a firewall"), "{}", verdicts[0]);
    let named: Vec<PeerId> = verdicts[0].culprits.iter().map(|culprit| culprit.peer).collect();
    assert_eq!(named, [rig.peers[&1], rig.peers[&2]]);
    assert!(rig.edge(1, 2).generation > generation, "rebuilt");
    assert_eq!(rig.accepted(), [1, 2, 3], "nobody is dropped for an edge");
}

/// Clients 1 and 2 beat with what they have counted on the edge between them, for some seconds or until it is built
/// anew.
fn count(rig: &mut Rig, seconds: u64, counts: impl Fn(u64) -> (u64, u64), two_beats: impl Fn(u64) -> bool) {
    let edge = rig.edge(1, 2);
    let generation = edge.generation;
    for second in 0..seconds {
        if rig.edge(1, 2).generation != generation {
            return;
        }
        let (sent, received) = counts(second);
        let sent = EdgeBytes { peer: edge.to, generation, bytes: sent };
        let received = EdgeBytes { peer: edge.from, generation, bytes: received };
        if two_beats(second) {
            rig.send(2, C2m::Beat(Beat { received: vec![received], ..in_operation() }));
        }
        rig.send(1, C2m::Beat(Beat { sent: vec![sent], ..in_operation() }));
        rig.pass(1000, &[3]);
    }
}

#[test]
fn bytes_that_left_one_end_and_never_reach_the_other_break_the_edge() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 7, 0);
    (1..=3).for_each(|n| rig.initiate(n, op));
    let generation = rig.edge(1, 2).generation;
    rig.mail.clear();
    count(&mut rig, 4, |_| (1000, 900), |_| true);
    assert_eq!(rig.edge(1, 2).generation, generation, "not yet");
    count(&mut rig, 3, |_| (1000, 900), |_| true);
    assert!(rig.edge(1, 2).generation > generation, "rebuilt");
    let verdicts: Vec<Verdict> = (1..=3).map(|n| aborted(rig.answer(n))).collect();
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]));
    assert_eq!(verdicts[0].cause, Cause::EdgeBroken);
    assert!(verdicts[0].detail.as_str().contains("100 bytes"), "{}", verdicts[0]);
    assert_eq!(rig.accepted(), [1, 2, 3], "nobody is dropped for an edge");
}

#[test]
fn more_bytes_into_an_edge_that_swallows_them_do_not_save_it() {
    let mut rig = Rig::world(3);
    let generation = rig.edge(1, 2).generation;
    count(&mut rig, 4, |second| (1000 + second, 900), |_| true);
    assert_eq!(rig.edge(1, 2).generation, generation, "not yet");
    count(&mut rig, 3, |second| (1004 + second, 900), |_| true);
    assert!(rig.edge(1, 2).generation > generation, "rebuilt");
    // Missing for a moment only, however much is sent.
    let mut rig = Rig::world(3);
    let generation = rig.edge(1, 2).generation;
    count(&mut rig, 30, |second| (1000 * (second + 1), 1000 * second), |_| true);
    assert_eq!(rig.edge(1, 2).generation, generation);
}

#[test]
fn an_edge_on_which_anything_arrives_or_nothing_is_missing_is_whole() {
    type Case<'a> = (&'a str, fn(u64) -> (u64, u64));
    let cases: [Case<'_>; 4] = [
        ("idle", |_| (1000, 1000)),
        ("slow", |second| (1000, second)),
        ("a beat of the receiver is newer", |_| (1000, 1100)),
        ("steps, each shorter than the time-out", |second| (100_000, second / 4)),
    ];
    for (name, counts) in cases {
        let mut rig = Rig::world(3);
        let generation = rig.edge(1, 2).generation;
        count(&mut rig, 30, counts, |_| true);
        assert_eq!(rig.edge(1, 2).generation, generation, "{name}");
    }
}

#[test]
fn bytes_that_wait_for_a_receiver_that_was_stopped_are_not_missing() {
    let mut rig = Rig::world(3);
    let generation = rig.edge(1, 2).generation;
    // 2 is stopped for 6 s, again and again; after each stop it takes a second to catch up.
    count(&mut rig, 40, |second| (1000 + second / 8, 900 + (second + 1) / 8), |second| second % 8 >= 6);
    assert_eq!(rig.edge(1, 2).generation, generation);
    assert_eq!(rig.accepted(), [1, 2, 3]);
}

#[test]
fn bytes_do_not_go_missing_while_both_ends_stand_still() {
    let mut rig = Rig::world(3);
    let generation = rig.edge(1, 2).generation;
    count(&mut rig, 2, |_| (1000, 900), |_| true);
    // The machine on which both run was suspended. The receiver is the first to beat again.
    rig.pass(7000, &[3]);
    count(&mut rig, 2, |_| (1000, 900), |_| true);
    count(&mut rig, 20, |_| (1000, 1000), |_| true);
    assert_eq!(rig.edge(1, 2).generation, generation);
}

#[test]
fn a_stalled_edge_that_cannot_be_rebuilt_is_planned_around() {
    let mut rig = Rig::world(4);
    stall(&mut rig, 6, &[2, 3, 4]);
    assert_eq!(rig.ring(0), [1, 2, 3, 4]);
    block(&mut rig, &[(1, 2)], &[1, 2, 3, 4]);
    let ring = rig.ring(0);
    let at = ring.iter().position(|n| *n == 1).expect("1 is a member");
    assert_ne!(ring[(at + 1) % 4], 2);
    assert_eq!(rig.accepted(), [1, 2, 3, 4]);
}

#[test]
fn a_stall_that_the_silence_of_the_receiver_explains_is_no_fault_of_the_edge() {
    let mut rig = Rig::world(3);
    let generation = rig.edge(1, 2).generation;
    // 2 is stopped, and comes back before the peer time-out.
    stall(&mut rig, 7, &[3]);
    assert_eq!(rig.edge(1, 2).generation, generation);
    rig.beat(2, 0);
    rig.pass(2000, &[1, 2, 3]);
    assert_eq!(rig.edge(1, 2).generation, generation);
    assert_eq!(rig.accepted(), [1, 2, 3]);
}

#[test]
fn a_break_is_not_forgotten_with_the_standstill_before_it() {
    let mut rig = Rig::world(3);
    let edge = rig.edge(1, 2);
    beat_with_stall(&mut rig, 1, 2, 5000);
    rig.broken(2, edge.clone());
    // The sending end has no connection any more, so nothing waits on it.
    rig.beat(1, 0);
    rig.pass(1000, &[1, 2, 3]);
    assert!(rig.edge(1, 2).generation > edge.generation, "rebuilt");
}

#[test]
fn a_stall_that_ends_in_time_is_forgotten() {
    let mut rig = Rig::world(3);
    let generation = rig.edge(1, 2).generation;
    stall(&mut rig, 3, &[2, 3]);
    rig.pass(20_000, &[1, 2, 3]);
    assert_eq!(rig.edge(1, 2).generation, generation);
}

/// The purposes of edges, with the clients at both ends of one in a run of `run_with`.
const EDGES: [(Purpose, u64, u64); 3] = [(Purpose::Ring, 1, 2), (Purpose::Mesh, 1, 3), (Purpose::Pair, 2, 5)];

/// A run with an edge for this purpose.
fn run_with((purpose, from, to): (Purpose, u64, u64)) -> (Rig, EdgeName) {
    let mut rig = Rig::world(if purpose == Purpose::Pair { 10 } else { 4 });
    if purpose == Purpose::Pair {
        ask(&mut rig, from, to);
    }
    let ends = (rig.peers[&from], rig.peers[&to]);
    let edge = rig.plans[&from].edges_for(purpose).find(|name| (name.from, name.to) == ends);
    (rig, edge.expect("planned"))
}

/// Whether the master holds it against an edge that it stood still.
fn is_blamed(rig: &Rig, edge: EdgeName) -> bool {
    let net = &rig.state.groups[&GroupId(0)].net;
    let ends = (edge.from, edge.to);
    net.mesh.has_fault_of(ends) || net.edges.named(ends, edge.generation).is_none()
}

/// All beat for some seconds but for `silent`; `from` says that its edge has stood still for `before` and this time.
fn stand_still(rig: &mut Rig, (edge, from): (EdgeName, u64), before: u64, seconds: u64, silent: &[u64]) {
    let others: Vec<u64> = rig.peers.keys().copied().filter(|n| *n != from && !silent.contains(n)).collect();
    for second in 1..=seconds {
        rig.pass(1000, &others);
        let stalled_ms = (before + second) * 1000;
        beat_about(
            rig,
            from,
            StalledEdge {
                to: edge.to,
                generation: edge.generation,
                stalled_ms,
                idle_ms: 0,
                segment_bytes: 0,
            },
        );
        rig.tick();
    }
}

/// All beat for some seconds; one end of the edge says that it has stood still all the time, the other one that it has
/// been at work on what has come for `busy_ms`, and as long as this lasts.
fn stand_still_at_work(rig: &mut Rig, (edge, from, to): (EdgeName, u64, u64), seconds: u64, busy_ms: u64) {
    for second in 1..=seconds {
        rig.pass(1000, &rig.accepted());
        let busy_ms = busy_ms + second * 1000;
        let busy = vec![BusyEdge { from: edge.from, generation: edge.generation, busy_ms }];
        rig.send(to, C2m::Beat(Beat { busy, ..in_operation() }));
        beat_about(
            rig,
            from,
            StalledEdge {
                to: edge.to,
                generation: edge.generation,
                stalled_ms: 60_000,
                idle_ms: 0,
                segment_bytes: 0,
            },
        );
        rig.tick();
    }
}

#[test]
fn an_end_that_is_at_work_on_what_has_come_is_waited_for_as_long_as_it_may_get_on() {
    for which in EDGES {
        let ((purpose, from, to), (mut rig, edge)) = (which, run_with(which));
        let named = (edge, from, to);
        stand_still_at_work(&mut rig, named, 20, 0);
        assert!(!is_blamed(&rig, edge), "{purpose:?}");
        // It has got on with something meanwhile.
        stand_still_at_work(&mut rig, named, 20, 0);
        assert!(!is_blamed(&rig, edge), "{purpose:?}");
        stand_still_at_work(&mut rig, named, 6, limits::BUSY_PATIENCE_MS);
        assert!(is_blamed(&rig, edge), "{purpose:?}");
    }
}

#[test]
fn a_report_right_after_a_stop_does_not_blame_the_edge_for_the_stop() {
    for which in EDGES {
        let ((purpose, from, to), (mut rig, edge)) = (which, run_with(which));
        stand_still(&mut rig, (edge, from), 0, 7, &[to]);
        rig.beat(to, 0);
        // This report was on its way before anything could move again.
        stand_still(&mut rig, (edge, from), 7, 1, &[]);
        rig.beat(to, 0);
        rig.pass(900, &[to]);
        assert!(!is_blamed(&rig, edge), "{purpose:?}");
        let everybody: Vec<u64> = rig.peers.keys().copied().collect();
        rig.pass(10_000, &everybody);
        assert!(!is_blamed(&rig, edge), "{purpose:?}: it moves again");
    }
}

#[test]
fn an_edge_that_stands_still_after_a_stop_as_well_is_blamed() {
    for which in EDGES {
        let ((purpose, from, to), (mut rig, edge)) = (which, run_with(which));
        stand_still(&mut rig, (edge, from), 0, 7, &[to]);
        rig.beat(to, 0);
        stand_still(&mut rig, (edge, from), 7, 3, &[]);
        assert!(!is_blamed(&rig, edge), "{purpose:?}: not yet");
        // The last report is judged when its time has come, without another one.
        rig.pass(1500, &[to]);
        rig.pass(500, &[to]);
        assert!(is_blamed(&rig, edge), "{purpose:?}");
    }
}

#[test]
fn a_sender_that_stopped_itself_does_not_blame_its_edges() {
    for which in EDGES {
        let ((purpose, from, _), (mut rig, edge)) = (which, run_with(which));
        let others: Vec<u64> = rig.peers.keys().copied().filter(|n| *n != from).collect();
        rig.pass(7000, &others);
        stand_still(&mut rig, (edge, from), 6, 2, &[]);
        assert!(!is_blamed(&rig, edge), "{purpose:?}");
        stand_still(&mut rig, (edge, from), 8, 4, &[]);
        assert!(is_blamed(&rig, edge), "{purpose:?}: it stood still while all lived");
    }
}

/// The edge from client 1 to 2, as client 1 knows it, in the ring or beside it.
fn planned_between(rig: &Rig, from: u64, to: u64) -> PlanEdge {
    let plan = &rig.plans[&1];
    let rank = |n: u64| plan.rank_of(rig.peers[&n]).expect("a member") as u16;
    let is_it = |edge: &&PlanEdge| (edge.from, edge.to) == (rank(from), rank(to));
    *plan.edges.iter().find(is_it).expect("planned")
}

#[test]
fn the_second_standstill_of_long_segments_makes_them_short_between_the_two() {
    let mut rig = Rig::world(3);
    for time in 1..=2 {
        rig.confirm_all();
        let op = rig.op(1, 7 + time, 0);
        (1..=3).for_each(|n| rig.initiate(n, op));
        rig.mail.clear();
        assert!(!planned_between(&rig, 1, 2).short_segments);
        let EdgeFault { to, generation, .. } = rig.edge(1, 2);
        for second in 1..=8 {
            if rig.edge(1, 2).generation == generation {
                let stalled = StalledEdge {
                    to,
                    generation,
                    stalled_ms: second * 1000,
                    idle_ms: 0,
                    segment_bytes: 1448,
                };
                beat_about(&mut rig, 1, stalled);
            }
            rig.pass(1000, &[2, 3]);
        }
        let detail = aborted(rig.answer(1)).detail;
        assert!(detail.as_str().contains("segments of 1448 bytes"), "{detail}");
        assert_eq!(detail.as_str().contains("MTU"), time == 2, "{detail}");
    }
    let short =
        [(1, 2), (2, 1), (2, 3), (3, 1)].map(|(from, to)| planned_between(&rig, from, to).short_segments);
    assert_eq!(short, [true, true, false, false]);
}
