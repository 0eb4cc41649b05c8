use super::harness::*;
use crate::state::PeerPhase;
use pccl_protocol::*;

fn named(verdict: &Verdict) -> Vec<PeerId> {
    verdict.culprits.iter().map(|culprit| culprit.peer).collect()
}

#[test]
fn a_limit_that_passes_before_the_beginning_ends_the_attempt_for_all_and_names_who_was_waited_for() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.initiate(2, op);
    rig.give_up(1, VoteRef::Collective(op), Some(2500));
    let first = rig.answer(1);
    let verdict = aborted(first.clone());
    assert_eq!((verdict.cause, verdict.phase), (Cause::CallTimeout, Phase::Voting));
    assert_eq!(named(&verdict), [rig.peers[&3]]);
    let text = verdict.to_string();
    let wanted = format!("{} gave it up after 2.5 s, waiting for peer {}", rig.name(1), rig.name(3));
    assert!(text.contains(&wanted), "{text}");
    assert_eq!(rig.answer(2), first);
    // The one that comes late gets the same outcome, and the retry goes.
    rig.initiate(3, op);
    assert_eq!(rig.answer(3), first);
    rig.commence(op.next_attempt());
}

#[test]
fn a_limit_that_passes_during_the_transfer_names_those_who_are_not_through() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    rig.complete(1, op, None);
    rig.complete(2, op, None);
    // Also of a peer that holds the result already: that alone is no outcome.
    rig.give_up(1, VoteRef::Collective(op), Some(600_000));
    for n in 1..=3 {
        let verdict = aborted(rig.answer(n));
        assert_eq!((verdict.cause, verdict.phase), (Cause::CallTimeout, Phase::Completing));
        assert_eq!(named(&verdict), [rig.peers[&3]]);
    }
    rig.commence(op.next_attempt());
}

#[test]
fn an_outcome_that_is_decided_wins() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    rig.complete(1, op, None);
    rig.complete(2, op, None);
    assert!(is_done(&rig.answer(1)) && is_done(&rig.answer(2)));
    rig.give_up(1, VoteRef::Collective(op), Some(1));
    rig.nothing(1);
    rig.nothing(2);
    rig.commence(op.next_attempt());
}

#[test]
fn who_gives_up_alone_is_named_itself_and_an_abort_says_that_nobody_wants_the_result() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    rig.complete(2, op, None);
    rig.give_up(1, VoteRef::Collective(op), Some(1000));
    let verdict = aborted(rig.answer(2));
    assert_eq!(named(&verdict), [rig.peers[&1]]);
    assert!(verdict.to_string().contains("waiting for its own part"), "{verdict}");
    rig.take(1);
    let next = op.next_attempt();
    rig.commence(next);
    rig.give_up(2, VoteRef::Collective(next), None);
    let verdict = aborted(rig.answer(1));
    assert_eq!((verdict.cause, named(&verdict)), (Cause::CallerAbort, vec![rig.peers[&2]]));
}

#[test]
fn a_loss_explains_more_than_a_limit() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.initiate(2, op);
    // Its wish goes with it: the others vote again in the smaller world.
    rig.die(1);
    rig.give_up(1, VoteRef::Collective(op), Some(1));
    rig.confirm_all();
    assert!(matches!(rig.answers(2).last(), Some(M2c::Stale(_))));
}

fn vote(rig: &mut Rig, n: u64, request: u64, digest: u128) {
    let (epoch, request) = (rig.epoch(n), RequestId(request));
    let entries = vec![StateEntry {
        key: Key::new("weights"),
        count: 4,
        data_type: pccl_quant::DataType::Float32,
        allow_inequality: false,
        digest: pccl_hash::Digest128::from_u128(digest),
    }];
    let (revision, strategy) = (Revision(0), SyncStrategy::EnforcePopular);
    rig.send(
        n,
        C2m::SyncInitiate(SyncInitiate { request, epoch, revision, strategy, entries, offered: None }),
    );
}

fn failed(packet: M2c) -> Verdict {
    match packet {
        M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Failed(verdict), .. }) => verdict,
        other => panic!("not a failed sync: {other:?}"),
    }
}

#[test]
fn a_sync_is_given_up_before_all_have_voted_and_while_somebody_fetches() {
    let mut rig = Rig::world(3);
    vote(&mut rig, 1, 1, 7);
    vote(&mut rig, 2, 1, 7);
    // Another request is none of this sync.
    rig.give_up(1, VoteRef::Sync(RequestId(9)), Some(1));
    rig.nothing(1);
    rig.give_up(1, VoteRef::Sync(RequestId(1)), Some(2000));
    let verdict = failed(rig.answer(1));
    assert_eq!((verdict.cause, named(&verdict)), (Cause::CallTimeout, vec![rig.peers[&3]]));
    assert_eq!(failed(rig.answer(2)), verdict);
    // The next one is another one.
    vote(&mut rig, 3, 1, 8);
    vote(&mut rig, 1, 2, 7);
    vote(&mut rig, 2, 2, 7);
    let M2c::SyncPlan(plan) = rig.answer(1) else { panic!("no plan") };
    assert_ne!(Operation::Sync(plan.plan.sync), verdict.operation);
    rig.take(2);
    rig.take(3);
    for n in [1, 2] {
        let report = SyncReport::Ready(Nothing {});
        rig.send(
            n,
            C2m::SyncComplete(SyncComplete { sync: plan.plan.sync, report, failures: vec![], gave: vec![] }),
        );
    }
    rig.give_up(2, VoteRef::Sync(RequestId(2)), Some(2000));
    for n in 1..=3 {
        let verdict = failed(rig.answer(n));
        assert_eq!((verdict.cause, verdict.phase), (Cause::CallTimeout, Phase::Transfer));
        assert_eq!(named(&verdict), [rig.peers[&3]]);
    }
    // What the third one was still busy with is late, not wrong.
    let report = SyncReport::Ready(Nothing {});
    rig.send(
        3,
        C2m::SyncComplete(SyncComplete { sync: plan.plan.sync, report, failures: vec![], gave: vec![] }),
    );
    rig.nothing(3);
}

#[test]
fn votes_for_the_whole_run_are_taken_back_by_their_own_peer() {
    let mut rig = Rig::world(2);
    rig.send(1, C2m::VotePending(RequestId(1)));
    rig.send(1, C2m::WithdrawVote(RequestId(1)));
    let M2c::VoteWithdrawn(gone) = rig.answer(1) else { panic!("not taken back") };
    assert!(gone.missing.as_str().contains(&rig.name(2)), "{}", gone.missing);
    // The query of the other one waits for a new vote.
    rig.send(2, C2m::VotePending(RequestId(1)));
    rig.nothing(2);
    rig.send(1, C2m::VotePending(RequestId(2)));
    let answer = PendingAnswer { request: RequestId(2), pending: false };
    assert_eq!(rig.answer(1), M2c::PendingAnswer(answer));
    rig.take(2);
    // A withdrawal that crosses the answer is ignored.
    rig.send(1, C2m::WithdrawVote(RequestId(2)));
    rig.nothing(1);

    rig.send(1, C2m::VoteOptimize(RequestId(3)));
    rig.send(1, C2m::WithdrawVote(RequestId(3)));
    assert!(matches!(rig.answer(1), M2c::VoteWithdrawn(gone) if gone.request == RequestId(3)));
    // It is free for another call.
    rig.vote_topology(1, 4, 0);
    rig.register(3, 0);
    assert_eq!(rig.phase(3), Some(PeerPhase::Pending));
}

#[test]
fn an_optimisation_that_runs_counts_on_all_who_have_voted() {
    let mut rig = Rig::world(2);
    for n in [1, 2] {
        rig.send(n, C2m::VoteOptimize(RequestId(1)));
    }
    rig.send(1, C2m::WithdrawVote(RequestId(1)));
    let answers = rig.answers(1);
    assert!(!answers.iter().any(|packet| matches!(packet, M2c::VoteWithdrawn(_))), "{answers:?}");
}

#[test]
fn calls_that_wait_for_each_other_fail_for_all_and_name_who_is_in_what() {
    let call = |n: u64, kind| match kind {
        CallKind::Sync => sync_vote(n),
        CallKind::UpdateTopology => {
            C2m::VoteTopology(VoteTopology { request: RequestId(n), wait_for_world: 0 })
        }
        _ => C2m::VoteOptimize(RequestId(n)),
    };
    for kind in [CallKind::Sync, CallKind::UpdateTopology, CallKind::OptimizeTopology] {
        let mut rig = Rig::world(3);
        let op = rig.op(1, 1, 0);
        rig.initiate(1, op);
        rig.initiate(2, op);
        let vote = call(3, kind);
        rig.send(
            3,
            if let C2m::SyncInitiate(vote) = vote {
                C2m::SyncInitiate(SyncInitiate { epoch: rig.epoch(3), ..vote })
            } else {
                vote
            },
        );
        // Whoever has just learnt of a failure may be about to give up what else it has voted for.
        rig.pass(4000, &[1, 2, 3]);
        (1..=3).for_each(|n| rig.nothing(n));
        rig.pass(3000, &[1, 2, 3]);
        let verdict = aborted(rig.answer(1));
        assert_eq!(verdict, aborted(rig.answer(2)));
        assert_eq!(verdict.cause, Cause::MismatchedCall, "{verdict}");
        let text = verdict.detail.as_str();
        assert!(text.contains(&format!("{}, which is in {kind}", rig.name(3))), "{text}");
        let named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        assert_eq!(named[1], rig.peers[&3]);
        let told = rig.answers(3).into_iter().find_map(|packet| match packet {
            M2c::VoteWithdrawn(gone) => gone.verdict,
            M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Failed(verdict), .. }) => Some(verdict),
            _ => None,
        });
        assert_eq!(told.map(|verdict| verdict.cause), Some(Cause::MismatchedCall), "{kind}");
        // Nothing is left of it.
        let op = rig.op(1, 1, 1);
        rig.commence(op);
    }
}

#[test]
fn a_sync_beside_a_vote_of_topology_fails_as_well() {
    let mut rig = Rig::world(2);
    let C2m::SyncInitiate(vote) = sync_vote(1) else { return };
    rig.send(1, C2m::SyncInitiate(SyncInitiate { epoch: rig.epoch(1), ..vote }));
    rig.vote_topology(2, 5, 0);
    rig.pass(7000, &[1, 2]);
    let failed = |packet: &M2c| {
        matches!(packet, M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Failed(verdict), .. })
            if verdict.cause == Cause::MismatchedCall)
    };
    assert!(rig.answers(1).iter().any(failed));
    let gone = |packet: &M2c| matches!(packet, M2c::VoteWithdrawn(gone) if gone.verdict.is_some());
    assert!(rig.answers(2).iter().any(gone));
}

#[test]
fn calls_that_cross_each_other_for_a_moment_go_on() {
    // One learns that an operation failed and goes on to the sync; the other one first gives up what else it had begun.
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    let vote = |rig: &mut Rig, n: u64| {
        let C2m::SyncInitiate(vote) = sync_vote(n) else { return };
        rig.send(n, C2m::SyncInitiate(SyncInitiate { epoch: rig.epoch(n), ..vote }));
    };
    vote(&mut rig, 2);
    rig.pass(4000, &[1, 2]);
    rig.give_up(1, VoteRef::Collective(op), None);
    assert_eq!(aborted(rig.answer(1)).cause, Cause::CallerAbort);
    rig.pass(9000, &[1, 2]);
    vote(&mut rig, 1);
    let committed = |packet: &M2c| {
        matches!(packet, M2c::SyncPlan(_))
            || matches!(packet, M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Committed(_), .. }))
    };
    (1..=2).for_each(|n| assert!(rig.answers(n).iter().any(committed)));
}

#[test]
fn who_may_still_come_is_waited_for() {
    let mut rig = Rig::world(3);
    // Another thread of either may make the missing call; the pending query goes beside operations; who waits for a
    // world of four may stop to.
    let (one, two) = (rig.op(1, 1, 0), rig.op(1, 2, 0));
    rig.initiate(1, one);
    rig.initiate(2, two);
    rig.send(3, C2m::VotePending(RequestId(1)));
    rig.pass(9000, &[1, 2, 3]);
    rig.send(3, C2m::VoteTopology(VoteTopology { request: RequestId(2), wait_for_world: 4 }));
    rig.pass(9000, &[1, 2, 3]);
    let is_verdict = |packet: &M2c| matches!(packet, M2c::Outcome(_) | M2c::VoteWithdrawn(_));
    (1..=3).for_each(|n| assert!(!rig.answers(n).iter().any(is_verdict)));
}

fn sync_vote(request: u64) -> C2m {
    C2m::SyncInitiate(SyncInitiate {
        request: RequestId(request),
        epoch: GroupEpoch(0),
        revision: Revision(0),
        strategy: SyncStrategy::EnforcePopular,
        entries: Vec::new(),
        offered: None,
    })
}
