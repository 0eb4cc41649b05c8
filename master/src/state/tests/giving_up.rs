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
    // The report of the third one, which was still busy, is late, not wrong.
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
