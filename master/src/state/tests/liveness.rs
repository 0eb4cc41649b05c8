//! Silence, gaps of the loop, time to register, echoes.

use super::harness::{Rig, aborted};
use crate::state::{ClientKey, Input, Timestamp};
use pccl_protocol::*;
use std::time::Duration;

#[test]
fn a_silent_peer_is_dropped_and_named() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    rig.beat(2, 0);
    rig.pass(9_999, &[1]);
    assert!(!rig.closed.contains(&2));
    rig.pass(1, &[1]);
    assert_eq!(rig.kick_of(2).code, KickCode::Silent);
    let verdict = aborted(rig.answers(1).pop().expect("an outcome"));
    assert_eq!((verdict.cause, verdict.silent_ms), (Cause::PeerSilent, 10_000));
    assert!(verdict.to_string().contains("10.0.0.2"), "{verdict}");
    assert!(verdict.to_string().contains("all_reduce"), "{verdict}");
}

#[test]
fn any_packet_is_a_sign_of_life() {
    let mut rig = Rig::world(2);
    for request in 0..5 {
        rig.pass(8_000, &[1]);
        rig.send(2, C2m::VotePending(RequestId(request)));
    }
    assert!(rig.closed.is_empty());
}

#[test]
fn silence_is_judged_by_ticks_alone() {
    let mut rig = Rig::world(2);
    rig.now = rig.now + Duration::from_secs(60);
    rig.beat(1, 0);
    assert!(rig.closed.is_empty());
    // The beat of 2 lay in its socket; the tick comes after it was read.
    rig.beat(2, 0);
    rig.tick();
    assert!(rig.closed.is_empty());
}

#[test]
fn a_gap_of_the_loop_drops_nobody() {
    let mut rig = Rig::world(2);
    rig.connect(3);
    rig.now = rig.now + Duration::from_secs(20);
    rig.input(Input::LoopGap(Duration::from_secs(20)));
    rig.tick();
    assert!(rig.closed.is_empty());
    rig.pass(11_000, &[1]);
    assert_eq!(rig.closed, [2, 3].into());
    // A gap never makes anybody younger than now.
    rig.input(Input::LoopGap(Duration::from_secs(1_000_000)));
    rig.pass(11_000, &[]);
    assert!(rig.closed.contains(&1));
}

#[test]
fn a_gap_moves_the_deadline_of_a_ring() {
    let mut rig = Rig::world(3);
    rig.die(3);
    rig.confirm(1);
    rig.pass(14_000, &[1, 2]);
    rig.now = rig.now + Duration::from_secs(5);
    rig.input(Input::LoopGap(Duration::from_secs(5)));
    rig.pass(500, &[1, 2]);
    assert_eq!(rig.accepted(), [1, 2]);
    rig.pass(1_500, &[1, 2]);
    assert_eq!(rig.accepted(), [1]);
}

#[test]
fn a_connection_has_to_register_in_time() {
    let mut rig = Rig::new();
    rig.connect(1);
    assert_eq!(rig.state.next_deadline(), Some(rig.now + Duration::from_secs(5)));
    rig.pass(5_000, &[]);
    assert_eq!(rig.kick_of(1).code, KickCode::RegistrationTimeout);
    assert_eq!(rig.state.next_deadline(), None);
}

#[test]
fn an_echo_says_what_a_vote_waits_for() {
    let mut rig = Rig::world(3);
    rig.beat(3, 0);
    let op = rig.op(1, 77, 0);
    rig.initiate(1, op);
    rig.initiate(2, op);
    rig.now = rig.now + Duration::from_secs(12);
    rig.beat(1, 0);
    let mail = rig.take(1);
    let [M2c::Echo(Echo { sequence: 1, blocked_on: Some(text) })] = mail.as_slice() else {
        panic!("{mail:?}")
    };
    for part in ["tag 77", &rig.peers[&3].to_string(), "10.0.0.3", "in all_reduce, no beat lately"] {
        assert!(text.as_str().contains(part), "{part}: {text}");
    }
    // The sentence says the same as long as nothing changes: whoever logs it knows the time.
    rig.now = rig.now + Duration::from_secs(3);
    rig.beat(1, 0);
    let later = rig.take(1);
    assert!(matches!(later.as_slice(), [M2c::Echo(Echo { blocked_on: Some(same), .. })] if same == text));
    assert!(!text.as_str().contains("10.0.0.2"), "{text}");
    rig.beat(3, 0);
    assert!(matches!(rig.take(3).as_slice(), [.., M2c::Echo(Echo { blocked_on: None, .. })]));
    assert!(rig.state.blocked_on().iter().any(|s| s.contains("tag 77")));
}

#[test]
fn everything_that_waits_has_a_sentence() {
    let mut rig = Rig::world(3);
    rig.register(4, 0);
    rig.vote_topology(1, 1, 0);
    rig.send(2, C2m::VotePending(RequestId(1)));
    let all = rig.state.blocked_on().join("\n");
    for part in ["update_topology", "are_peers_pending", &rig.peers[&3].to_string()] {
        assert!(all.contains(part), "{part}: {all}");
    }
    rig.beat(4, 0);
    assert!(matches!(rig.take(4).pop(), Some(M2c::Echo(Echo { blocked_on: Some(_), .. }))));
}

#[test]
fn time_does_not_run_backwards() {
    let mut rig = Rig::world(2);
    rig.now = Timestamp::from_millis(5);
    rig.tick();
    rig.beat(1, 0);
    assert!(rig.closed.is_empty());
}

#[test]
fn inputs_of_forgotten_clients_are_ignored() {
    let mut rig = Rig::world(2);
    let before = rig.state.snapshot();
    for input in [
        Input::Disconnected { client: ClientKey(99), text: String::new() },
        Input::Packet { client: ClientKey(99), packet: C2m::Leave(Nothing {}) },
        Input::Malformed { client: ClientKey(99), error: String::new() },
        Input::SlowReader { client: ClientKey(99) },
    ] {
        rig.input(input);
    }
    assert_eq!(rig.state.snapshot(), before);
}

/// An edge breaks under an attempt, and the master stands still before it can judge that: the death of one end, which
/// explains it, comes only after the pause.
#[test]
fn a_fault_is_not_judged_by_a_pause_of_the_master() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    let fault = rig.fault(OpFaultKind::OutboundLost, Some(2));
    rig.complete(1, op, Some(fault));
    rig.now = rig.now + Duration::from_secs(3);
    rig.input(Input::LoopGap(Duration::from_secs(3)));
    rig.tick();
    rig.nothing(1);
    rig.die(2);
    assert_eq!(aborted(rig.answer(1)).cause, Cause::PeerDied);
}
