//! Questions for the status, and what an operator does about the answer.

use super::harness::{Rig, aborted};
use crate::state::Input;
use pccl_protocol::*;

fn ask(rig: &mut Rig, n: u64, request: u64) -> Status {
    rig.send(n, C2m::StatusRequest(RequestId(request)));
    match rig.take(n).pop() {
        Some(M2c::Status(status)) => {
            assert_eq!(status.request, RequestId(request));
            status
        }
        other => panic!("no status: {other:?}"),
    }
}

#[test]
fn the_status_says_who_is_in_and_what_waits_since_when() {
    let mut rig = Rig::world(3);
    rig.join(&[4], 5);
    rig.register(6, 0);
    let op = rig.op(1, 7, 0);
    rig.initiate(1, op);
    rig.pass(1_000, &[1, 2, 3, 4, 6]);
    rig.initiate(2, op);
    rig.pass(1_500, &[1, 2, 3, 4, 6]);
    rig.mail.clear();
    let status = ask(&mut rig, 1, 77);
    assert_eq!((status.sizes.global, status.sizes.group, status.sizes.groups), (4, 3, 2));
    assert_eq!(status.run, RunId(7));
    assert_eq!(status.uptime_ms, 1_002_500);
    let groups: Vec<(u32, usize, bool)> =
        status.groups.iter().map(|g| (g.group.0, g.ring.len(), g.connected)).collect();
    assert_eq!(groups, [(0, 3, true), (5, 1, true)]);
    assert_eq!(status.groups[0].epoch, rig.epoch(1));
    let peers: Vec<(PeerId, PeerStage)> = status.peers.iter().map(|p| (p.peer, p.stage)).collect();
    let want = [1, 2, 3, 4].map(|n| (rig.peers[&n], PeerStage::Accepted));
    assert_eq!(peers[..4], want);
    assert_eq!(peers[4], (rig.peers[&6], PeerStage::Pending));
    assert_eq!(status.peers[2].host.as_str(), "10.0.0.3");
    assert_eq!(status.peers[2].call, CallKind::Collective(CollectiveKind::AllReduce));
    let wait = &status.waits[0];
    assert_eq!(wait.since_ms, 2_500);
    assert!(wait.text.as_str().contains("tag 7") && wait.text.as_str().contains("10.0.0.3"), "{wait:?}");
    assert_eq!(status.waits.len(), 1);
}

#[test]
fn somebody_outside_may_ask_a_few_times_and_is_no_peer() {
    let mut rig = Rig::world(1);
    rig.connect(9);
    for request in 0..u64::from(limits::MAX_STRANGER_REQUESTS) {
        let status = ask(&mut rig, 9, request);
        assert_eq!((status.peers.len(), status.sizes.global, status.sizes.group), (1, 1, 0));
    }
    assert_eq!(rig.state.snapshot().peers.len(), 1);
    rig.send(9, C2m::StatusRequest(RequestId(99)));
    assert_eq!(rig.kick_of(9).code, KickCode::Protocol);
}

#[test]
fn questions_do_not_keep_a_connection_beyond_the_time_to_register() {
    let mut rig = Rig::new();
    rig.connect(9);
    rig.pass(4_000, &[]);
    ask(&mut rig, 9, 1);
    rig.pass(1_000, &[]);
    assert_eq!(rig.kick_of(9).code, KickCode::RegistrationTimeout);
}

#[test]
fn a_question_does_not_disturb_what_runs() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    ask(&mut rig, 1, 1);
    rig.complete(1, op, None);
    ask(&mut rig, 1, 2);
    rig.complete(2, op, None);
    assert!(super::harness::is_done(&rig.answer(1)));
}

#[test]
fn a_peer_is_found_by_its_name_or_by_the_beginning_of_its_identity() {
    let mut rig = Rig::world(3);
    let full = |n: u64| format!("{:#}", rig.peers[&n]);
    // The rig's identities are 1, 2, 3 in their first 32 bits.
    assert_eq!(rig.state.find_peer("00000002").unwrap().0, rig.peers[&2]);
    assert_eq!(rig.state.find_peer(&full(3).to_uppercase()).unwrap().0, rig.peers[&3]);
    assert!(rig.state.find_peer("0000000").unwrap_err().contains("names 3 peers"));
    assert!(rig.state.find_peer("ff").unwrap_err().contains("no peer"));
    for bad in ["", "  "] {
        assert!(rig.state.find_peer(bad).unwrap_err().contains("hexadecimal"), "{bad}");
    }
    for (peer, name) in [(1, "node1:17"), (2, "twin"), (3, "twin")] {
        rig.state.roll.peers.get_mut(&rig.peers[&peer]).unwrap().info.name = pccl_protocol::Name::new(name);
    }
    for bad in ["xyz", "0x1", &"0".repeat(33), "é", "node1:1"] {
        let error = rig.state.find_peer(bad).unwrap_err();
        assert!(error.contains(bad) && error.contains("node1:17"), "nobody is {bad}: {error}");
    }
    assert_eq!(rig.state.find_peer("node1:17").unwrap().0, rig.peers[&1]);
    let error = rig.state.find_peer("twin").unwrap_err();
    assert!(
        error.contains("names 2 peers") && error.contains("00000002") && error.contains("00000003"),
        "{error}"
    );
    // A name that could be an identity as well means both.
    rig.state.roll.peers.get_mut(&rig.peers[&1]).unwrap().info.name = pccl_protocol::Name::new("00000002");
    assert!(rig.state.find_peer("00000002").unwrap_err().contains("names 2 peers"));
}

#[test]
fn an_operators_kick_names_its_reason_to_both_sides() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    let peer = rig.peers[&2];
    rig.input(Input::Kick { peer, reason: "bad memory".into() });
    let reason = rig.kick_of(2);
    assert_eq!((reason.code, reason.detail.as_str()), (KickCode::Operator, "bad memory"));
    let verdict = aborted(rig.answers(1).pop().expect("an outcome"));
    assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::PeerDropped, peer));
    assert!(verdict.to_string().contains("removed by an operator: bad memory"), "{verdict}");
    rig.confirm_all();
    rig.mail.clear();
    // A peer that is gone cannot be kicked.
    rig.input(Input::Kick { peer, reason: "again".into() });
    assert!(rig.mail.is_empty());
}
