//! Early begins: contributions are on their way before all have voted, and votes to complete come early, too.

use super::harness::{Rig, aborted, descriptor, is_done};
use pccl_protocol::*;

impl Rig {
    fn begin_early(&mut self, n: u64, op: OpId) {
        self.send(n, C2m::Initiate(Initiate { op, descriptor: descriptor(64), has_begun: true }));
    }
}

#[test]
fn an_operation_costs_one_visit_to_the_master() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 42, 0);
    for n in 1..=3 {
        rig.begin_early(n, op);
        rig.complete(n, op, None);
    }
    for n in 1..=3 {
        assert_eq!(rig.answer(n), M2c::Outcome(OpOutcome { op, outcome: Outcome::Done(Nothing {}) }));
    }
    rig.commence(op.next_attempt());
}

#[test]
fn a_peer_that_has_completed_hears_nothing_before_the_last_vote() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 42, 0);
    for n in [1, 2] {
        rig.begin_early(n, op);
        rig.complete(n, op, None);
    }
    (1..=3).for_each(|n| rig.nothing(n));
    // The third has no room to begin early: it is told, and the others are not.
    rig.initiate(3, op);
    assert!(matches!(rig.answer(3), M2c::Commence(_)));
    (1..=2).for_each(|n| rig.nothing(n));
    rig.complete(3, op, None);
    (1..=3).for_each(|n| assert!(is_done(&rig.answer(n))));
}

#[test]
fn votes_that_differ_are_named_although_all_have_completed() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    for (n, count) in [(1, 64), (2, 64), (3, 63)] {
        let vote = Initiate { op, descriptor: descriptor(count), has_begun: true };
        rig.send(n, C2m::Initiate(vote));
        let fault = (n == 3).then(|| rig.fault(OpFaultKind::Violation, None));
        rig.complete(n, op, fault);
    }
    let verdicts: Vec<Verdict> = (1..=3).map(|n| aborted(rig.answer(n))).collect();
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]));
    assert_eq!((verdicts[0].cause, verdicts[0].phase), (Cause::MismatchedCall, Phase::Voting));
}

#[test]
fn a_fault_waits_for_the_last_vote() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.begin_early(1, op);
    let fault = rig.fault(OpFaultKind::Local, None);
    rig.complete(1, op, Some(fault));
    rig.begin_early(2, op);
    rig.complete(2, op, None);
    (1..=3).for_each(|n| rig.nothing(n));
    rig.begin_early(3, op);
    let verdict = aborted(rig.answer(1));
    assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::LocalFault, rig.peers[&1]));
    (2..=3).for_each(|n| assert_eq!(aborted(rig.answer(n)), verdict));
}

/// The contribution of the peer that died has reached the others, its vote has not: nobody may count it.
#[test]
fn a_death_after_the_contribution_and_before_the_vote_makes_the_attempt_void() {
    let mut rig = Rig::world(4);
    let op = rig.op(1, 1, 0);
    for n in 1..=3 {
        rig.begin_early(n, op);
        rig.complete(n, op, None);
    }
    rig.die(4);
    for n in 1..=3 {
        let stale = M2c::Stale(Stale { vote: VoteRef::Collective(op), epoch: rig.epoch(n) });
        assert_eq!(rig.answer(n), stale);
    }
    // A vote to complete that was on its way is for nothing.
    rig.complete(1, op, None);
    rig.confirm_all();
    rig.commence(rig.op(1, 1, 0));
}

#[test]
fn a_death_after_both_votes_makes_the_attempt_void_while_a_vote_is_missing() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    for n in [1, 2] {
        rig.begin_early(n, op);
        rig.complete(n, op, None);
    }
    rig.die(2);
    assert!(matches!(rig.answer(1), M2c::Stale(_)));
    rig.begin_early(3, op);
    assert!(matches!(rig.answer(3), M2c::Stale(_)));
}

/// The third may hold contributions to an attempt that was answered, and must not take them for those of the next call.
#[test]
fn an_attempt_that_ended_without_an_outcome_is_no_identity_any_more() {
    for (is_early, epochs) in [(true, 1), (false, 0)] {
        let mut rig = Rig::with(|options| options.min_world_size = 4);
        rig.join(&[1, 2, 3], 0);
        let op = rig.op(1, 1, 0);
        rig.send(1, C2m::Initiate(Initiate { op, descriptor: descriptor(64), has_begun: is_early }));
        assert!(matches!(rig.answer(1), M2c::TooFewPeers(_)));
        assert_eq!(rig.epoch(3).0, op.epoch.0 + epochs);
        rig.initiate(3, op);
        let answer = rig.answer(3);
        assert_eq!(matches!(answer, M2c::Stale(_)), is_early, "{answer:?}");
    }
}

#[test]
fn only_who_has_begun_early_may_complete_before_the_last_vote_and_once() {
    let refused = |votes: &dyn Fn(&mut Rig, OpId)| {
        let mut rig = Rig::world(2);
        let op = rig.op(1, 1, 0);
        votes(&mut rig, op);
        rig.closed.contains(&1)
    };
    assert!(refused(&|rig, op| {
        rig.initiate(1, op);
        rig.complete(1, op, None);
    }));
    assert!(refused(&|rig, op| {
        rig.begin_early(1, op);
        rig.complete(1, op, None);
        rig.complete(1, op, None);
    }));
    assert!(!refused(&|rig, op| {
        rig.begin_early(1, op);
        rig.complete(1, op, None);
    }));
}
