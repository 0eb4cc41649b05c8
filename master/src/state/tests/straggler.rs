//! A caller that alone holds up a vote.

use super::harness::{Rig, is_done};
use super::sync::vote;
use crate::state::Input;
use pccl_protocol::*;
use std::time::Duration;

const EVERYBODY: &[u64] = &[1, 2, 3, 4];

fn rig(size: u64) -> Rig {
    let mut rig = Rig::with(|options| options.straggler_timeout = Some(Duration::from_secs(20)));
    rig.join(&(1..=size).collect::<Vec<_>>(), 0);
    rig
}

/// How a vote is cast, and what the reason for the kick calls it.
type Cast = (fn(&mut Rig, u64), &'static str);

fn votes() -> [Cast; 4] {
    [
        (
            |rig, n| {
                let op = rig.op(n, 5, 0);
                rig.initiate(n, op);
            },
            "all-reduce tag 5",
        ),
        (
            |rig, n| {
                let epoch = rig.epoch(n);
                rig.send(n, C2m::SyncInitiate(vote(epoch, 0, SyncStrategy::EnforcePopular, vec![])));
            },
            "shared-state sync of group 0",
        ),
        (|rig, n| rig.vote_topology(n, 50, 0), "update_topology"),
        (|rig, n| rig.send(n, C2m::VotePending(RequestId(51))), "are_peers_pending"),
    ]
}

#[test]
fn whoever_alone_holds_up_a_vote_is_dropped_after_the_time() {
    for (cast, name) in votes() {
        let mut rig = rig(3);
        cast(&mut rig, 1);
        // Two are missing: nobody is alone.
        rig.pass(100_000, EVERYBODY);
        assert!(rig.closed.is_empty(), "{name}");
        cast(&mut rig, 3);
        rig.pass(19_999, EVERYBODY);
        assert!(rig.closed.is_empty(), "{name}");
        rig.pass(1, EVERYBODY);
        let reason = rig.kick_of(2);
        assert_eq!(reason.code, KickCode::Straggler, "{name}");
        let text = reason.to_string();
        assert!(text.contains(name) && text.contains("20.0 s") && text.contains("all_reduce"), "{text}");
        assert_eq!(rig.closed, [2].into(), "{name}");
        // Each of the others confirms the ring that goes without it.
        rig.confirm_all();
        rig.pass(100_000, EVERYBODY);
        assert_eq!(rig.closed, [2].into(), "{name}");
    }
}

#[test]
fn nobody_is_dropped_when_it_is_off_or_the_vote_comes_in_time() {
    for (cast, name) in votes() {
        let mut off = Rig::world(2);
        cast(&mut off, 1);
        off.pass(1_000_000, EVERYBODY);
        assert!(off.closed.is_empty(), "{name}");

        let mut rig = rig(2);
        cast(&mut rig, 1);
        rig.pass(15_000, EVERYBODY);
        cast(&mut rig, 2);
        rig.pass(15_000, EVERYBODY);
        assert!(rig.closed.is_empty(), "{name}");
    }
}

#[test]
fn a_transfer_is_never_too_slow() {
    let mut rig = rig(2);
    let slow = rig.op(1, 1, 0);
    rig.commence(slow);
    rig.complete(1, slow, None);
    // The other waits with its next operation for the one whose transfer is slow.
    let next = rig.op(1, 2, 0);
    rig.initiate(1, next);
    rig.pass(500_000, EVERYBODY);
    assert!(rig.closed.is_empty());
    rig.mail.clear();
    rig.complete(2, slow, None);
    assert!(is_done(&rig.answer(1)));
    // From now on it is the caller that is late.
    rig.pass(19_000, EVERYBODY);
    assert!(rig.closed.is_empty());
    rig.pass(1_000, EVERYBODY);
    assert_eq!(rig.kick_of(2).code, KickCode::Straggler);
}

#[test]
fn who_waits_for_more_peers_blames_nobody() {
    let mut rig = rig(2);
    rig.vote_topology(1, 1, 5);
    rig.pass(100_000, EVERYBODY);
    assert!(rig.closed.is_empty());
    // Now somebody could be let in, if the other one voted.
    rig.register(3, 0);
    rig.pass(20_000, EVERYBODY);
    assert_eq!(rig.closed, [2].into());
}

#[test]
fn two_that_wait_for_each_other_lose_the_one_who_began_first() {
    let mut rig = rig(2);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.pass(1_000, EVERYBODY);
    rig.send(2, C2m::VotePending(RequestId(51)));
    rig.pass(19_000, EVERYBODY);
    assert_eq!(rig.closed, [2].into());
    rig.confirm_all();
    rig.pass(100_000, EVERYBODY);
    assert_eq!(rig.closed, [2].into());
    assert!(rig.kick_of(2).to_string().contains("all-reduce tag 1"));
}

#[test]
fn a_silent_peer_is_silent_and_no_straggler() {
    let mut rig = Rig::with(|options| options.straggler_timeout = Some(Duration::from_secs(6)));
    rig.join(&[1, 2], 0);
    rig.beat(2, 0);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.pass(10_000, &[1]);
    assert_eq!(rig.kick_of(2).code, KickCode::Silent);
}

#[test]
fn who_waits_for_a_silent_peer_is_no_straggler() {
    let mut rig = Rig::with(|options| options.straggler_timeout = Some(Duration::from_secs(6)));
    rig.join(&[1, 2], 0);
    rig.beat(2, 0);
    // Each holds up the call of the other.
    rig.send(2, C2m::VotePending(RequestId(51)));
    let epoch = rig.epoch(1);
    rig.send(1, C2m::SyncInitiate(vote(epoch, 0, SyncStrategy::EnforcePopular, vec![])));
    rig.pass(10_000, &[1]);
    assert_eq!(rig.kick_of(2).code, KickCode::Silent);
    assert_eq!(rig.closed, [2].into());
}

#[test]
fn the_time_of_waiting_for_a_silent_peer_does_not_count_when_that_is_gone() {
    let mut rig = Rig::with(|options| options.straggler_timeout = Some(Duration::from_secs(6)));
    rig.join(&[1, 2], 0);
    rig.join(&[3], 1);
    for n in [2, 3] {
        rig.send(n, C2m::VotePending(RequestId(51)));
    }
    let epoch = rig.epoch(1);
    rig.send(1, C2m::SyncInitiate(vote(epoch, 0, SyncStrategy::EnforcePopular, vec![])));
    // Peer 3 waits for 1, and 1 for 2, which dies.
    rig.pass(8_000, &[1, 3]);
    assert!(rig.closed.is_empty());
    rig.die(2);
    rig.pass(1_000, &[1, 3]);
    assert_eq!(rig.closed, [2].into(), "1 had no time to call");
    rig.pass(6_000, &[1, 3]);
    assert_eq!(rig.kick_of(1).code, KickCode::Straggler);
}

#[test]
fn time_in_which_the_master_stood_still_does_not_count() {
    let mut rig = rig(2);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.now = rig.now + Duration::from_secs(60);
    rig.input(Input::LoopGap(Duration::from_secs(60)));
    rig.tick();
    assert!(rig.closed.is_empty());
    rig.pass(19_999, EVERYBODY);
    assert!(rig.closed.is_empty());
    rig.pass(1, EVERYBODY);
    assert_eq!(rig.closed, [2].into());
}

#[test]
fn a_newcomer_that_cannot_vote_yet_is_not_late() {
    let mut rig = rig(1);
    rig.register(2, 0);
    rig.vote_topology(1, 1, 0);
    // The round waits for the ring, whose member 2 is not accepted.
    let seen = rig.now;
    rig.pass(14_000, EVERYBODY);
    assert!(rig.closed.is_empty(), "{:?} since {seen:?}", rig.state.blocked_on());
    rig.confirm_all();
    assert_eq!(rig.accepted(), [1, 2]);
}
