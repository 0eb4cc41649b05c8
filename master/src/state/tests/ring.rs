//! Faults of edges, repairs, and who has to go.

use super::harness::{Rig, aborted, broken};
use crate::state::PeerPhase;
use pccl_protocol::*;

fn report(rig: &mut Rig, n: u64, faults: Vec<EdgeFault>) {
    let epoch = rig.epoch(n);
    rig.send(n, C2m::EdgeReport(EdgeReport { epoch, up: Vec::new(), broken: faults }));
}

/// Reports the edge by its sending end, again and again while it is planned, and confirms everything else.
pub(super) fn block(rig: &mut Rig, bad: &[(u64, u64)], beating: &[u64]) {
    rig.missing = Some((bad.iter().copied().collect(), beating.to_vec()));
    for _ in 0..6 {
        for n in rig.plans.keys().copied().collect::<Vec<_>>() {
            let next = rig.plans[&n].rank_of(rig.peers[&n]).map(|rank| {
                let plan = &rig.plans[&n];
                plan.members[plan.next_of(rank)].peer
            });
            let bad = bad.iter().find(|(from, to)| *from == n && Some(rig.peers[to]) == next);
            match bad {
                _ if rig.closed.contains(&n) => {}
                Some((from, to)) => {
                    let fault = rig.edge(*from, *to);
                    report(rig, n, vec![fault]);
                }
                None => rig.confirm(n),
            }
        }
        rig.pass(2_000, beating);
    }
}

#[test]
fn a_death_is_repaired_without_a_vote() {
    let mut rig = Rig::world(4);
    let before = rig.group(0);
    rig.die(2);
    let after = rig.group(0);
    assert_eq!(rig.ring(0), [1, 3, 4]);
    assert_eq!(after.epoch.0, before.epoch.0 + 1);
    // 1 -> 3 is new; 3 -> 4 and 4 -> 1 stay connected.
    assert_eq!(
        after.generations,
        [LinkGeneration(after.epoch.0), before.generations[2], before.generations[3]]
    );
    for n in [1, 3, 4] {
        assert!(matches!(rig.take(n).as_slice(), [M2c::GroupPlan(p)] if p.epoch == after.epoch));
    }
}

#[test]
fn reports_of_old_rings_are_ignored() {
    let mut rig = Rig::world(3);
    let old = EdgeReport::all_up(&rig.plans[&1], rig.peers[&1], &[Purpose::Ring]);
    rig.die(3);
    rig.send(1, C2m::EdgeReport(old));
    rig.confirm(2);
    assert!(!rig.group(0).confirmed);
    rig.confirm(1);
    assert!(rig.group(0).confirmed);
}

#[test]
fn an_edge_with_which_nobody_finds_anything_wrong_is_tried_again() {
    let mut rig = Rig::world(4);
    rig.die(4);
    assert_eq!(rig.ring(0), [1, 2, 3]);
    let fault = rig.edge(3, 1);
    let generation = fault.generation;
    rig.missing = Some((std::collections::BTreeSet::new(), vec![1, 2, 3]));
    rig.confirm(1);
    rig.confirm(2);
    report(&mut rig, 3, vec![fault]);
    rig.pass(300, &[1, 2, 3]);
    // The same ring, a new generation of that edge only.
    assert_eq!(rig.ring(0), [1, 2, 3]);
    assert!(rig.edge(3, 1).generation > generation);
    block(&mut rig, &[(3, 1)], &[1, 2, 3]);
    assert_eq!(rig.ring(0), [1, 3, 2]);
    assert!(rig.group(0).confirmed);
}

/// The accepting end may believe in a connection whose dialing end never got the answer, and report that it broke.
#[test]
fn that_an_edge_cannot_be_built_counts_more_than_that_it_broke() {
    let mut rig = Rig::world(2);
    rig.register(3, 0);
    rig.vote_topology(1, 1, 0);
    rig.vote_topology(2, 2, 0);
    assert_eq!(rig.ring(0), [1, 2, 3]);
    let fault = rig.edge(2, 3);
    rig.confirm(1);
    rig.confirm(3);
    rig.missing = Some(([(2, 3)].into(), vec![1, 2, 3]));
    rig.broken(3, fault.clone());
    report(&mut rig, 2, vec![fault]);
    rig.pass(2_000, &[1, 2, 3]);
    assert_eq!(rig.ring(0), [1, 3, 2]);
}

#[test]
fn a_forbidden_edge_is_tried_again_after_its_mark_expired() {
    let mut rig = Rig::world(4);
    rig.die(4);
    block(&mut rig, &[(3, 1)], &[1, 2, 3]);
    assert_eq!(rig.ring(0), [1, 3, 2]);
    rig.pass(61_000, &[1, 2, 3]);
    rig.register(5, 0);
    for n in 1..=3 {
        rig.vote_topology(n, n, 0);
    }
    assert_eq!(rig.ring(0), [1, 3, 2, 5]);
    rig.confirm_all();
    // In this ring 2 and 5 go, which would leave 3 -> 1.
    rig.die(2);
    rig.die(5);
    assert_eq!(rig.ring(0), [1, 3]);
}

#[test]
fn a_newcomer_that_cannot_be_reached_goes_and_nobody_else() {
    for bad in [&[(1u64, 2u64)][..], &[(2, 1)], &[(1, 2), (2, 1)]] {
        let mut rig = Rig::untested(1);
        rig.register(2, 0);
        rig.vote_topology(1, 1, 0);
        block(&mut rig, bad, &[1, 2]);
        let reason = rig.kick_of(2);
        assert_eq!(reason.code, KickCode::Unreachable);
        assert!(reason.detail.as_str().contains("connection refused"), "{reason}");
        assert!(reason.detail.as_str().contains(&rig.peers[&1].to_string()), "{reason}");
        assert!(matches!(rig.answers(1).last(), Some(M2c::TopologyDone(d)) if d.sizes.global == 1));
    }
}

#[test]
fn a_newcomer_with_one_bad_edge_is_placed_elsewhere() {
    let mut rig = Rig::world(2);
    rig.register(3, 0);
    rig.vote_topology(1, 1, 0);
    rig.vote_topology(2, 2, 0);
    assert_eq!(rig.ring(0), [1, 2, 3]);
    block(&mut rig, &[(2, 3)], &[1, 2, 3]);
    assert_eq!(rig.ring(0), [1, 3, 2]);
    assert_eq!(rig.phase(3), Some(PeerPhase::Accepted));
}

#[test]
fn a_newcomer_that_nobody_reaches_or_that_reaches_nobody_goes() {
    // Nobody reaches 7; or it reaches nobody.
    for to_it in [true, false] {
        let mut rig = Rig::world(6);
        rig.register(7, 0);
        (1..=6).for_each(|n| rig.vote_topology(n, n, 0));
        let bad: Vec<(u64, u64)> = (1..=6).map(|n| if to_it { (n, 7) } else { (7, n) }).collect();
        block(&mut rig, &bad, &[1, 2, 3, 4, 5, 6, 7]);
        let reason = rig.kick_of(7);
        assert_eq!(reason.code, KickCode::Unreachable);
        let said = if to_it { "at 10.0.0.7:1000: open it or set advertised_host" } else { "reaches nobody" };
        assert!(reason.detail.as_str().contains(said), "{reason}");
        assert_eq!(reason.detail.as_str().matches("connection refused").count(), 4, "{reason}");
        let epochs = rig.group(0).epoch.0;
        assert_eq!(rig.accepted(), [1, 2, 3, 4, 5, 6]);
        for n in 1..=6 {
            assert!(matches!(rig.answers(n).last(), Some(M2c::TopologyDone(d)) if d.sizes.global == 6));
        }
        rig.pass(20_000, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(rig.group(0).epoch.0, epochs, "it is over");
    }
}

#[test]
fn a_newcomer_that_two_peers_cannot_reach_gets_another_place() {
    let mut rig = Rig::world(6);
    rig.register(7, 0);
    (1..=6).for_each(|n| rig.vote_topology(n, n, 0));
    block(&mut rig, &[(6, 7), (1, 7)], &[1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(rig.accepted(), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn an_accepted_peer_is_not_dropped_for_any_number_of_edges_while_a_ring_exists() {
    let mut rig = Rig::world(6);
    // Only 8 -> 1 and 1 -> 2 are left of what touches 1.
    let bad: Vec<(u64, u64)> = (2..=5).map(|n| (n, 1)).chain((3..=6).map(|n| (1, n))).collect();
    rig.die(6);
    rig.register(8, 0);
    (1..=5).for_each(|n| rig.vote_topology(n, n, 0));
    block(&mut rig, &bad, &[1, 2, 3, 4, 5, 8]);
    assert!(rig.accepted().contains(&1), "{:?}", rig.accepted());
    assert_eq!(rig.accepted(), [1, 2, 3, 4, 5, 8]);
}

#[test]
fn among_accepted_peers_the_latest_of_the_worst_goes() {
    let mut rig = Rig::untested(3);
    rig.die(3);
    block(&mut rig, &[(1, 2)], &[1, 2]);
    assert_eq!(rig.kick_of(2).code, KickCode::Unreachable);
    assert_eq!(rig.ring(0), [1]);
}

#[test]
fn a_newcomer_is_not_blamed_for_a_neighbour_that_has_just_died() {
    // The neighbour's death is noticed only by its silence, long after the newcomer's dial failed.
    let mut rig = Rig::world(2);
    rig.register(3, 0);
    rig.vote_topology(1, 1, 0);
    rig.vote_topology(2, 2, 0);
    rig.confirm(1);
    let fault = rig.edge(3, 1);
    report(&mut rig, 3, vec![fault]);
    rig.pass(12_000, &[2, 3]);
    rig.confirm_all();
    assert_eq!(rig.accepted(), [2, 3]);
}

#[test]
fn a_broken_edge_is_rebuilt_after_the_grace() {
    let mut rig = Rig::world(3);
    let (before, fault) = (rig.group(0), rig.edge(2, 3));
    rig.broken(2, fault.clone());
    rig.pass(200, &[]);
    assert_eq!(rig.group(0).epoch, before.epoch);
    rig.broken(3, fault.clone());
    rig.pass(100, &[]);
    let after = rig.group(0);
    assert_eq!(after.epoch.0, before.epoch.0 + 1);
    let new = LinkGeneration(after.epoch.0);
    assert_eq!(after.generations, [before.generations[0], new, before.generations[2]]);
    // The second report of the same break was on its way when the plan came, and is ignored.
    rig.send(3, broken(before.epoch, fault));
    rig.pass(1_000, &[1, 2, 3]);
    assert_eq!(rig.group(0).epoch, after.epoch);
}

#[test]
fn a_death_within_the_grace_replaces_the_rebuild() {
    let mut rig = Rig::world(3);
    let (epoch, fault) = (rig.epoch(1), rig.edge(2, 3));
    rig.broken(2, fault);
    rig.pass(100, &[]);
    rig.die(3);
    rig.pass(1_000, &[1, 2]);
    assert_eq!(rig.group(0).epoch.0, epoch.0 + 1);
}

#[test]
fn an_edge_that_breaks_again_is_planned_around_but_nobody_goes() {
    let mut rig = Rig::world(3);
    for _ in 0..2 {
        assert_eq!(rig.ring(0), [1, 2, 3]);
        let fault = rig.edge(2, 3);
        rig.broken(3, fault);
        rig.pass(300, &[]);
        rig.confirm_all();
    }
    assert_eq!(rig.ring(0), [1, 3, 2]);
    let mut rig = Rig::world(2);
    for _ in 0..5 {
        let fault = rig.edge(1, 2);
        rig.broken(1, fault);
        rig.pass(300, &[]);
        rig.confirm_all();
    }
    assert!(rig.group(0).confirmed && rig.accepted() == [1, 2]);
}

#[test]
fn no_collective_begins_over_an_edge_that_is_reported_broken() {
    let mut rig = Rig::world(2);
    let fault = rig.edge(1, 2);
    rig.broken(1, fault);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.initiate(2, op);
    rig.nothing(1);
    rig.pass(300, &[]);
    for n in 1..=2 {
        assert!(matches!(rig.answer(n), M2c::Stale(_)));
    }
    rig.confirm_all();
    rig.commence(rig.op(1, 1, 0));
}

#[test]
fn a_ring_that_is_not_confirmed_in_time_costs_the_late_one_its_place() {
    let mut rig = Rig::world(3);
    rig.die(3);
    rig.confirm(1);
    rig.pass(14_000, &[1, 2]);
    assert_eq!(rig.ring(0), [1, 2]);
    rig.pass(1_500, &[1, 2]);
    assert_eq!(rig.kick_of(2).code, KickCode::RingTimeout);
    assert_eq!(rig.ring(0), [1]);
    assert!(!rig.closed.contains(&1));
}

#[test]
fn nobody_is_late_while_another_member_may_be_dead() {
    let mut rig = Rig::with(|options| options.ring_timeout = std::time::Duration::from_secs(8));
    rig.join(&[1, 2, 3], 0);
    rig.die(3);
    // 2 is silent and will be dropped at 10 s; 1 cannot confirm a ring with it.
    rig.pass(12_000, &[1]);
    assert_eq!(rig.kick_of(2).code, KickCode::Silent);
    assert!(!rig.closed.contains(&1));
    rig.confirm_all();
    assert!(rig.group(0).confirmed);
}

#[test]
fn an_edge_that_a_new_ring_closed_is_not_the_first_cause() {
    let mut rig = Rig::world(4);
    let op = rig.op(1, 7, 0);
    rig.commence(op);
    let last = rig.edge(4, 1);
    // All but 4 have everything; then an edge breaks that only they used, twice, so that the ring goes around it.
    for n in 1..=3 {
        rig.complete(n, op, None);
    }
    for _ in 0..2 {
        let edge = rig.edge(1, 2);
        rig.broken(1, edge);
        rig.pass(1000, &[1, 2, 3, 4]);
        rig.confirm_all();
    }
    let ring = rig.ring(0);
    let at = ring.iter().position(|n| *n == 4).expect("4 is a member");
    assert_ne!(ring[(at + 1) % 4], 1, "the edge from 4 to 1 is closed: {ring:?}");
    rig.mail.clear();
    let generation = last.generation;
    rig.complete(4, op, Some(OpFault { generation, ..rig.fault(OpFaultKind::OutboundLost, Some(1)) }));
    rig.pass(1000, &[1, 2, 3, 4]);
    for n in 1..=4 {
        let verdict = aborted(rig.answer(n));
        assert_eq!(verdict.cause, Cause::EdgeBroken);
        let named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        assert_eq!(named, [rig.peers[&1], rig.peers[&2]], "{verdict}");
    }
}

#[test]
fn a_ring_that_stands_is_not_replaced_by_a_better_one_while_it_is_in_use() {
    let mut rig = Rig::with(|options| options.max_tag_history = 1);
    rig.join(&[1, 2, 3], 0);
    // Both possible rings get an edge that is better avoided; then the first of the two marks expires.
    for (to, seconds) in [(2, 30), (3, 25)] {
        for _ in 0..2 {
            let edge = rig.edge(1, to);
            rig.broken(1, edge);
            rig.pass(1000, &[1, 2, 3]);
            rig.confirm_all();
        }
        rig.pass(seconds * 1000, &[1, 2, 3]);
    }
    rig.pass(7000, &[1, 2, 3]);
    let ring = rig.ring(0);
    assert_eq!(ring, [1, 3, 2]);
    let running = rig.op(1, 9, 0);
    rig.commence(running);
    let epoch = rig.epoch(1);
    for tag in 0..3 {
        let op = OpId { tag: Tag::from(tag), ..running };
        rig.commence(op);
        for n in 1..=3 {
            rig.complete(n, op, None);
        }
    }
    assert!(rig.epoch(1) > epoch, "too many outcomes: a new epoch");
    assert_eq!(rig.ring(0), ring, "with the old ring");
}

#[test]
fn departures_that_come_together_are_one_change_of_the_ring() {
    let mut rig = Rig::world(9);
    let (epoch, op) = (rig.epoch(1), rig.op(1, 1, 0));
    rig.commence(op);
    rig.die_together(&[2, 3, 5, 9]);
    for n in [1, 4, 6, 7, 8] {
        let mail = rig.take(n);
        let plans: Vec<&GroupPlan> = mail
            .iter()
            .filter_map(|packet| if let M2c::GroupPlan(plan) = packet { Some(plan) } else { None })
            .collect();
        assert_eq!(plans.len(), 1, "{mail:?}");
        assert_eq!((plans[0].epoch.0, plans[0].members.len()), (epoch.0 + 1, 5));
        assert_eq!(plans[0].sizes.global, 5);
        // The ring comes before the verdict that it explains.
        assert!(matches!(mail.as_slice(), [M2c::GroupPlan(_), M2c::Outcome(_)]), "{mail:?}");
    }
    rig.confirm_all();
    rig.commence(rig.op(1, 1, 0));
}

/// A firewall forgets what is idle, on all edges at once. It would again: nothing is held against them.
#[test]
fn edges_that_were_lost_while_idle_are_built_anew_without_a_mark() {
    let mut rig = Rig::world(3);
    for round in 0..3 {
        let (epoch, before) = (rig.epoch(1), rig.group(0));
        rig.missing = Some((std::collections::BTreeSet::new(), vec![1, 2, 3]));
        let op = rig.op(1, 7 + round, 0);
        for (n, next) in [(1, 2), (2, 3), (3, 1)] {
            let fault = EdgeFault { forgotten: true, ..rig.edge(n, next) };
            rig.send(n, broken(epoch, fault));
            rig.initiate(n, op);
        }
        assert_eq!(rig.ring(0), [1, 2, 3]);
        let after = rig.group(0);
        assert!(before.generations.iter().zip(&after.generations).all(|(old, new)| old < new));
        assert!(!after.confirmed, "new connections are to be made");
        rig.missing = None;
        rig.confirm_all();
        assert!(rig.group(0).confirmed);
        let again = rig.op(1, 7 + round, 0);
        assert_ne!(again, op);
        rig.commence(again);
        rig.mail.clear();
    }
}
