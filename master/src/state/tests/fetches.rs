//! Fetches of shared state that fail: who goes, and that the others go on.

use super::harness::Rig;
use super::sync::{
    Ballot, cast, entry, failed_at, failed_by, failure, judged, outcome, plan_of, ready, run,
    trained_survivor, vote,
};
use pccl_protocol::SyncStrategy::EnforcePopular;
use pccl_protocol::*;

/// Client 2 has joined client 1, which has trained, and cannot fetch. Both vote; returns the sync.
fn fetches_in_vain(rig: &mut Rig, sources: &[u64], fault: SourceFault) {
    cast(rig, &[(6, EnforcePopular, 10), (0, EnforcePopular, 20)]);
    let plans = [plan_of(rig, 1), plan_of(rig, 2)];
    assert_eq!(plans[1].sources.len(), 1);
    ready(rig, 1, plans[0].sync);
    failed_by(rig, 2, plans[0].sync, sources, fault);
}

fn survivor_and_newcomer() -> Rig {
    let mut rig = Rig::world(1);
    run(&mut rig, &[(5, EnforcePopular, 10)]);
    rig.join(&[2], 0);
    rig
}

#[test]
fn a_newcomer_that_cannot_fetch_goes_after_two_failures_and_the_others_go_on() {
    let mut rig = survivor_and_newcomer();
    fetches_in_vain(&mut rig, &[1], SourceFault::Unreached);
    judged(&mut rig);
    for n in [1, 2] {
        let SyncOutcome::Failed(verdict) = outcome(rig.answer(n)) else { panic!("client {n}") };
        assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::NoSource, rig.peers[&2]));
        assert!(verdict.detail.as_str().contains("10.0.0.1:2000 did not answer"), "{verdict}");
    }
    fetches_in_vain(&mut rig, &[1], SourceFault::Unreached);
    judged(&mut rig);
    let reason = rig.kick_of(2);
    assert_eq!(reason.code, KickCode::Unreachable);
    assert!(reason.detail.as_str().contains("10.0.0.1:2000 did not answer"), "{reason}");
    assert_eq!(outcome(rig.answer(1)), SyncOutcome::Committed(Revision(6)));
}

#[test]
fn a_fetch_that_succeeds_makes_good_for_one_that_failed() {
    let mut rig = survivor_and_newcomer();
    for _ in 0..3 {
        fetches_in_vain(&mut rig, &[1], SourceFault::Unreached);
        judged(&mut rig);
        assert!([1, 2].iter().all(|n| matches!(outcome(rig.answer(*n)), SyncOutcome::Failed(_))));
        run(&mut rig, &[(5, EnforcePopular, 10), (0, EnforcePopular, 20)]);
    }
}

#[test]
fn nobody_is_to_blame_for_a_source_that_is_silent() {
    let mut rig = survivor_and_newcomer();
    for _ in 0..4 {
        rig.pass(500, &[1, 2]);
        cast(&mut rig, &[(6, EnforcePopular, 10), (0, EnforcePopular, 20)]);
        let sync = plan_of(&mut rig, 1).sync;
        rig.take(2);
        rig.pass(3_000, &[2]);
        ready(&mut rig, 1, sync);
        rig.pass(2_500, &[2]);
        failed_at(&mut rig, 2, sync, &[1]);
        // Nobody can sync without it before it is heard again or dropped.
        rig.pass(1_000, &[2]);
        rig.nothing(2);
        let waits = rig.state.blocked_on();
        let name = rig.peers[&1].to_string();
        assert!(
            waits.iter().any(|text| text.contains("a sign of life of") && text.contains(&name)),
            "{waits:?}"
        );
        rig.pass(1_000, &[1, 2]);
        assert!([1, 2].iter().all(|n| matches!(outcome(rig.answer(*n)), SyncOutcome::Failed(_))));
    }
    // Whether one that was heard until the end is alive is waited for.
    rig.pass(500, &[1, 2]);
    fetches_in_vain(&mut rig, &[1], SourceFault::Unreached);
    rig.pass(5_000, &[2]);
    rig.nothing(2);
    rig.die(1);
    let SyncOutcome::Failed(verdict) = outcome(rig.answer(2)) else { panic!() };
    assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::PeerDied, rig.peers[&1]));
}

#[test]
fn a_source_that_stopped_is_named_when_it_is_dropped() {
    let mut rig = survivor_and_newcomer();
    cast(&mut rig, &[(6, EnforcePopular, 10), (0, EnforcePopular, 20)]);
    let sync = plan_of(&mut rig, 1).sync;
    rig.take(2);
    ready(&mut rig, 1, sync);
    rig.pass(6_000, &[2]);
    failed_at(&mut rig, 2, sync, &[1]);
    rig.pass(5_000, &[2]);
    let SyncOutcome::Failed(verdict) = outcome(rig.answer(2)) else { panic!() };
    assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::PeerSilent, rig.peers[&1]));
    assert!(verdict.detail.as_str().contains("could not fetch"), "{verdict}");
}

#[test]
fn a_source_that_refuses_goes_if_others_hold_the_state() {
    // 1 is ahead of 2, and both hold the last commit.
    let mut rig = Rig::world(2);
    run(&mut rig, &[(5, EnforcePopular, 10), (5, EnforcePopular, 10)]);
    for dropped in [false, true] {
        fetches_in_vain(&mut rig, &[1], SourceFault::Refused);
        judged(&mut rig);
        let SyncOutcome::Failed(verdict) = outcome(rig.answer(2)) else { panic!() };
        let cause = if dropped { Cause::PeerDropped } else { Cause::NoSource };
        assert_eq!(verdict.cause, cause);
        if dropped {
            assert_eq!(verdict.culprits[0].peer, rig.peers[&1]);
            assert_eq!(rig.kick_of(1).code, KickCode::Unreachable);
        } else {
            rig.take(1);
        }
    }
}

#[test]
fn a_fresh_source_that_fails_several_goes_and_they_elect_another() {
    let mut rig = Rig::world(3);
    let p = EnforcePopular;
    cast(&mut rig, &[(1, p, 1), (0, p, 2), (0, p, 2)]);
    let sync = plan_of(&mut rig, 1).sync;
    rig.take(2);
    rig.take(3);
    ready(&mut rig, 1, sync);
    failed_at(&mut rig, 2, sync, &[1]);
    failed_at(&mut rig, 3, sync, &[1]);
    judged(&mut rig);
    let reason = rig.kick_of(1);
    assert_eq!(reason.code, KickCode::Unreachable);
    assert!(reason.detail.as_str().contains("2 peers failed at"), "{reason}");
    assert!(reason.detail.as_str().contains("10.0.0.1:2000"), "{reason}");
    for n in [2, 3] {
        let SyncOutcome::Failed(verdict) = outcome(rig.answer(n)) else { panic!("client {n}") };
        assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::PeerDropped, rig.peers[&1]));
        assert!(verdict.detail.as_str().contains("10.0.0.1:2000"), "{verdict}");
    }
    for n in [2, 3] {
        let epoch = rig.epoch(n);
        rig.send(n, C2m::SyncInitiate(vote(epoch, 0, p, vec![entry("w", 2)])));
    }
    assert!(plan_of(&mut rig, 2).fetch.is_empty() && plan_of(&mut rig, 3).fetch.is_empty());
}

#[test]
fn who_holds_the_only_copy_stays_though_nobody_can_fetch_it() {
    let mut rig = trained_survivor(5);
    let p = EnforcePopular;
    cast(&mut rig, &[(6, p, 10), (0, p, 20), (0, p, 30)]);
    let sync = plan_of(&mut rig, 1).sync;
    rig.take(2);
    rig.take(3);
    ready(&mut rig, 1, sync);
    failed_at(&mut rig, 2, sync, &[1]);
    failed_at(&mut rig, 3, sync, &[1]);
    judged(&mut rig);
    assert_eq!(outcome(rig.answer(1)), SyncOutcome::Committed(Revision(6)));
    for n in [2, 3] {
        let reason = rig.kick_of(n);
        assert_eq!(reason.code, KickCode::Unreachable);
        let text = reason.detail.as_str();
        assert!(text.contains("10.0.0.1:2000 holds the only copy; open that port there"), "{text}");
    }
}

#[test]
fn a_source_that_fails_while_others_serve_is_asked_last() {
    let mut rig = Rig::world(3);
    let p = EnforcePopular;
    run(&mut rig, &[(5, p, 1); 3]);
    let mut next = 4;
    let mut first_of = |rig: &mut Rig, in_vain: Option<u64>| {
        let newcomer = next;
        next += 1;
        rig.join(&[newcomer], 0);
        let ballots: Vec<Ballot> =
            (1..=newcomer).map(|n| if n < newcomer { (5, p, 1) } else { (0, p, 9) }).collect();
        cast(rig, &ballots);
        for n in 1..newcomer {
            let sync = plan_of(rig, n).sync;
            ready(rig, n, sync);
        }
        let plan = plan_of(rig, newcomer);
        assert_eq!(plan.sources.len() as u64, newcomer - 1);
        let first = *rig.peers.iter().find(|(_, id)| **id == plan.sources[0].peer).expect("a peer").0;
        let failures = in_vain.map(|source| failure(rig, source, SourceFault::Unreached));
        let report = SyncReport::Ready(Nothing {});
        let failures: Vec<_> = failures.into_iter().collect();
        let gave = vec![plan.sources[failures.len()].peer];
        rig.send(newcomer, C2m::SyncComplete(SyncComplete { sync: plan.sync, report, failures, gave }));
        for n in 1..=newcomer {
            assert_eq!(outcome(rig.answer(n)), SyncOutcome::Committed(Revision(5)));
        }
        first
    };
    assert_eq!(first_of(&mut rig, Some(1)), 1);
    assert_eq!(first_of(&mut rig, None), 2);
    assert_eq!(first_of(&mut rig, None), 2);
}

#[test]
fn a_failure_of_a_source_that_was_not_named_is_a_violation() {
    let mut rig = survivor_and_newcomer();
    fetches_in_vain(&mut rig, &[2], SourceFault::Unreached);
    assert_eq!(rig.kick_of(2).code, KickCode::Protocol);
}
