//! Peers whose connection has ended, and who come back or do not.

use super::harness::{Rig, aborted};
use crate::state::{ClientKey, Input};
use pccl_protocol::*;
use std::time::Duration;

/// The time in which a peer may come back.
const GRACE_MS: u64 = 5_000;

fn away(rig: &mut Rig, n: u64) {
    assert!(rig.state.may_return(ClientKey(n)));
    rig.input(Input::Away { client: ClientKey(n), text: "connection reset".into(), with_master: false });
}

/// Another master goes on.
fn away_with_master(rig: &mut Rig, n: u64) {
    rig.input(Input::Away { client: ClientKey(n), text: "another master goes on".into(), with_master: true });
}

fn back(rig: &mut Rig, n: u64) {
    rig.input(Input::Returned { client: ClientKey(n) });
}

/// A client says that its edge of the ring to another one broke.
fn edge_breaks(rig: &mut Rig, by: u64, to: u64) {
    edge_is_lost(rig, (by, to), false);
}

fn edge_is_lost(rig: &mut Rig, (by, to): (u64, u64), forgotten: bool) {
    let plan = &rig.plans[&by];
    let edges = plan.edges_of(rig.peers[&by]).map(|(_, name)| name);
    let edge = edges.into_iter().find(|edge| edge.to == rig.peers[&to]).expect("an edge of the ring");
    let EdgeName { from, to, generation } = edge;
    rig.broken(by, EdgeFault { from, to, generation, forgotten, text: Text::new("end of the stream") });
}

#[test]
fn who_comes_back_has_missed_nothing() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.initiate(2, op);
    rig.answer(1);
    away(&mut rig, 2);
    assert_eq!(rig.tried.last().map(|target| target.peer), Some(rig.peers[&2]), "is it alive?");
    rig.input(Input::Reached { peer: rig.peers[&2], closed: Vec::new(), unix_us: 0 });
    rig.complete(1, op, None);
    rig.pass(GRACE_MS - 1, &[1]);
    rig.nothing(1);
    back(&mut rig, 2);
    assert!(matches!(rig.answer(2), M2c::Commence(_)));
    rig.complete(2, op, None);
    for n in [1, 2] {
        assert!(matches!(rig.answer(n), M2c::Outcome(OpOutcome { outcome: Outcome::Done(_), .. })));
    }
    rig.pass(2 * GRACE_MS, &[1, 2]);
    assert!(rig.closed.is_empty());
}

#[test]
fn who_does_not_come_back_is_lost() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    away(&mut rig, 2);
    rig.pass(GRACE_MS - 1, &[1]);
    rig.nothing(1);
    rig.pass(1, &[1]);
    assert_eq!(rig.closed, [2].into());
    assert_eq!(aborted(rig.answer(1)).cause, Cause::PeerDied);
}

#[test]
fn who_was_silent_before_has_no_more_time_than_that() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    rig.pass(8_000, &[1]);
    away(&mut rig, 2);
    rig.pass(1_999, &[1]);
    assert!(rig.closed.is_empty());
    rig.pass(1, &[1]);
    assert_eq!(rig.closed, [2].into());
    assert_eq!(aborted(rig.answer(1)).cause, Cause::PeerDied);
}

#[test]
fn who_has_lost_the_master_has_more_time_whenever_it_was_heard_last() {
    let wait = limits::TAKE_OVER_GRACE_MS;
    let mut rig = Rig::world(3);
    rig.pass(8_000, &[1]);
    (1..=3).for_each(|n| away_with_master(&mut rig, n));
    back(&mut rig, 1);
    rig.pass(wait - 1, &[1]);
    assert!(rig.closed.is_empty());
    back(&mut rig, 2);
    rig.pass(1, &[1]);
    assert_eq!(rig.closed, [3].into());
    // A peer that is back is judged as before.
    let silence = limits::DEFAULT_PEER_TIMEOUT_MS;
    rig.pass(silence - 2, &[1]);
    assert_eq!(rig.closed, [3].into());
    rig.pass(1, &[1]);
    assert_eq!(rig.closed, [2, 3].into());
}

#[test]
fn an_edge_that_breaks_says_nothing_of_one_that_has_lost_the_master() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    edge_breaks(&mut rig, 1, 2);
    (1..=3).for_each(|n| away_with_master(&mut rig, n));
    back(&mut rig, 1);
    back(&mut rig, 3);
    edge_breaks(&mut rig, 1, 2);
    assert!(rig.closed.is_empty());
    back(&mut rig, 2);
    assert!(rig.closed.is_empty());
}

#[test]
fn a_pause_of_the_master_is_not_counted() {
    let mut rig = Rig::world(2);
    away(&mut rig, 2);
    rig.now = rig.now + Duration::from_secs(60);
    rig.input(Input::LoopGap(Duration::from_secs(60)));
    rig.tick();
    rig.pass(GRACE_MS - 1, &[1]);
    assert!(rig.closed.is_empty());
    rig.pass(1, &[1]);
    assert_eq!(rig.closed, [2].into());
}

#[test]
fn an_edge_that_breaks_as_well_says_that_it_is_dead() {
    // Whichever is noticed first.
    for connection_first in [true, false] {
        let mut rig = Rig::world(3);
        let op = rig.op(1, 1, 0);
        rig.commence(op);
        if connection_first {
            away(&mut rig, 2);
            assert!(rig.closed.is_empty());
        }
        edge_breaks(&mut rig, 1, 2);
        if !connection_first {
            assert!(rig.closed.is_empty());
            away(&mut rig, 2);
        }
        assert_eq!(rig.closed, [2].into());
        let verdict = aborted(rig.answer(3));
        assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::PeerDied, rig.peers[&2]));
    }
}

/// A firewall on the way to a peer that forgets its connections forgets that to the master as well.
#[test]
fn edges_that_were_forgotten_say_nothing_of_a_death() {
    for connection_first in [true, false] {
        let mut rig = Rig::world(3);
        if connection_first {
            away(&mut rig, 2);
        }
        edge_is_lost(&mut rig, (1, 2), true);
        if !connection_first {
            away(&mut rig, 2);
        }
        back(&mut rig, 2);
        rig.confirm_all();
        assert_eq!((rig.closed.len(), rig.group(0).confirmed), (0, true));
    }
}

#[test]
fn what_it_says_itself_says_nothing_of_it() {
    let mut rig = Rig::world(3);
    edge_breaks(&mut rig, 2, 3);
    away(&mut rig, 2);
    assert!(rig.closed.is_empty());
    // But of the other end.
    away(&mut rig, 3);
    assert_eq!(rig.closed, [3].into());
}

#[test]
fn an_edge_that_broke_long_ago_says_nothing() {
    let mut rig = Rig::world(3);
    edge_breaks(&mut rig, 1, 2);
    rig.pass(1_000, &[1, 2, 3]);
    rig.confirm_all();
    away(&mut rig, 2);
    assert!(rig.closed.is_empty());
}

#[test]
fn a_port_at_which_nobody_listens_any_more_says_that_it_is_dead() {
    let mut rig = Rig::world(2);
    let refused = |is_state| vec![(is_state, "connection refused".to_owned())];
    let reached = |peer, closed| Input::Reached { peer, closed, unix_us: 0 };
    rig.input(reached(rig.peers[&2], Vec::new()));
    away(&mut rig, 2);
    rig.input(reached(rig.peers[&2], refused(true)));
    assert!(rig.closed.is_empty());
    rig.input(reached(rig.peers[&2], refused(false)));
    assert_eq!(rig.closed, [2].into());

    // One at which nobody listened before says nothing.
    let mut rig = Rig::world(2);
    rig.answers_for_ports = false;
    rig.input(reached(rig.peers[&2], refused(false)));
    away(&mut rig, 2);
    rig.input(reached(rig.peers[&2], refused(false)));
    assert!(rig.closed.is_empty());
}

#[test]
fn who_has_not_registered_has_no_place() {
    let mut rig = Rig::world(1);
    rig.connect(2);
    assert!(!rig.state.may_return(ClientKey(2)) && !rig.state.is_peer(ClientKey(2)));
    rig.register(3, 0);
    assert!(rig.state.may_return(ClientKey(3)));
    assert_eq!(rig.state.client_of(rig.peers[&3]), Some(ClientKey(3)));
}

#[test]
fn nobody_is_blamed_for_a_ring_while_one_is_away() {
    let mut rig = Rig::world(2);
    rig.register(3, 0);
    rig.vote_topology(1, 1, 0);
    rig.vote_topology(2, 1, 0);
    rig.pass(14_000, &[1, 2, 3]);
    away(&mut rig, 3);
    rig.pass(2_000, &[1, 2]);
    assert!(rig.closed.is_empty(), "{:?}", rig.closed);
    back(&mut rig, 3);
    rig.confirm_all();
    assert_eq!(rig.accepted(), [1, 2, 3]);
}
