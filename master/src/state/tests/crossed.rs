use super::harness::*;
use crate::state::PeerPhase;
use pccl_protocol::*;
use std::collections::BTreeMap;

/// A call that peers make with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Reduce,
    Send,
    Sync,
    Update,
    Wait,
    Optimize,
    Query,
}

impl Call {
    const ALL: [Self; 7] =
        [Self::Reduce, Self::Send, Self::Sync, Self::Update, Self::Wait, Self::Optimize, Self::Query];

    /// Whether its peer can make no other call meanwhile, and joins no operation.
    const fn excludes(self) -> bool {
        matches!(self, Self::Sync | Self::Update | Self::Wait | Self::Optimize)
    }

    /// The cause that both get if a peer in `self` and one in `other` wait for each other.
    fn beside(self, other: Self) -> Option<Cause> {
        let is_query = self == Self::Query || other == Self::Query;
        // A round of admission takes both.
        let are_alike = |call| matches!(call, Self::Update | Self::Wait);
        let are_joined = self == other || are_alike(self) && are_alike(other);
        if is_query || are_joined || !(self.excludes() || other.excludes()) {
            return None;
        }
        let counts = self == Self::Wait || other == Self::Wait;
        Some(if counts { Cause::WorldChanged } else { Cause::MismatchedCall })
    }
}

/// Client `n` makes the call, whose request is `n`; what two do, they do with each other.
fn make(rig: &mut Rig, n: u64, call: Call) {
    let request = RequestId(n);
    match call {
        Call::Reduce => {
            let op = rig.op(n, 1, 0);
            rig.initiate(n, op);
        }
        Call::Send => {
            let pair = Some(Pair { from: rig.peers[&1], to: rig.peers[&2] });
            let op = OpId { epoch: rig.epoch(n), tag: Tag { number: 2, pair, track: 0 }, attempt: 0 };
            let parts = descriptor(64).parts;
            let descriptor = Descriptor {
                collective: Collective::SendRecv(Nothing {}),
                ..Descriptor::all_reduce(parts, Algorithm::Automatic)
            };
            rig.send(n, C2m::Initiate(Initiate { op, descriptor, has_begun: false }));
        }
        Call::Sync => {
            let vote = SyncInitiate { request, epoch: rig.epoch(n), ..sync_vote() };
            rig.send(n, C2m::SyncInitiate(vote));
        }
        Call::Update => rig.vote_topology(n, n, 0),
        Call::Wait => rig.vote_topology(n, n, 5),
        Call::Optimize => rig.send(n, C2m::VoteOptimize(request)),
        Call::Query => rig.send(n, C2m::VotePending(request)),
    }
}

fn sync_vote() -> SyncInitiate {
    SyncInitiate {
        request: RequestId(0),
        epoch: GroupEpoch(0),
        revision: Revision(0),
        strategy: SyncStrategy::EnforcePopular,
        entries: Vec::new(),
        offered: None,
    }
}

/// The verdicts that a client has got.
fn verdicts(rig: &mut Rig, n: u64) -> Vec<Verdict> {
    let verdict = |packet| match packet {
        M2c::VoteWithdrawn(gone) => gone.verdict,
        M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Failed(verdict), .. }) => Some(verdict),
        M2c::Outcome(OpOutcome { outcome: Outcome::Aborted(verdict), .. }) => Some(verdict),
        _ => None,
    };
    rig.answers(n).into_iter().filter_map(verdict).collect()
}

/// Two clients of three, the first in `one` and the second in `other`, for so long.
fn two_in(one: Call, other: Call, millis: u64, limited: &[u64]) -> (Rig, BTreeMap<u64, Vec<Verdict>>) {
    let mut rig = Rig::world(2);
    rig.limited.extend(limited);
    make(&mut rig, 1, one);
    make(&mut rig, 2, other);
    rig.pass(millis, &[1, 2]);
    let got = [1, 2].map(|n| (n, verdicts(&mut rig, n)));
    (rig, got.into())
}

#[test]
fn whichever_two_calls_wait_for_each_other_they_end_for_both() {
    for (one, other) in Call::ALL.iter().flat_map(|one| Call::ALL.map(|other| (*one, other))) {
        // A peer that has just learnt of a failure may be about to give up its other votes.
        let (_, early) = two_in(one, other, 4_000, &[]);
        assert!(early.values().all(Vec::is_empty), "{one:?} beside {other:?}: {early:?}");
        let (mut rig, got) = two_in(one, other, 8_000, &[]);
        for (n, call, beside) in [(1, one, other), (2, other, one)] {
            // A peer that waits for a larger world waits on.
            let expected = one.beside(other).filter(|_| call != Call::Wait);
            let causes: Vec<Cause> = got[&n].iter().map(|verdict| verdict.cause).collect();
            assert_eq!(causes, Vec::from_iter(expected), "{n}: {call:?} beside {beside:?}");
            for verdict in &got[&n] {
                let text = verdict.detail.as_str();
                assert!(text.contains(&rig.name(1)) && text.contains(&rig.name(2)), "{text}");
                let named = if verdict.cause == Cause::MismatchedCall { 2 } else { 0 };
                assert_eq!(verdict.culprits.len(), named, "{verdict}");
            }
        }
        // Nothing of it is left, so that both may make the same call.
        if one.beside(other) == Some(Cause::MismatchedCall) {
            let op = rig.op(1, 7, 0);
            rig.commence(op);
        }
    }
}

#[test]
fn after_a_loss_it_is_no_mistake_once() {
    let mut rig = Rig::world(3);
    super::sync::run(&mut rig, &[(1, SyncStrategy::EnforcePopular, 7); 3]);
    rig.die(3);
    rig.confirm_all();
    // The second one had nothing to do with what the loss has ended.
    for (number, cause) in [(1, Cause::WorldChanged), (2, Cause::MismatchedCall)] {
        make(&mut rig, 1, Call::Send);
        make(&mut rig, 2, Call::Sync);
        rig.pass(8_000, &[1, 2]);
        for n in [1, 2] {
            let causes: Vec<Cause> = verdicts(&mut rig, n).iter().map(|verdict| verdict.cause).collect();
            assert_eq!(causes, [cause], "{number}: {n}");
        }
        // Back to the sync, for the next attempt of the transfer.
        super::sync::run(&mut rig, &[(1, SyncStrategy::EnforcePopular, 7); 2]);
    }
}

#[test]
fn who_waits_for_a_larger_world_gets_it_when_the_others_have_counted_again() {
    for call in [Call::Reduce, Call::Sync, Call::Optimize] {
        let (mut rig, _) = two_in(call, Call::Wait, 8_000, &[]);
        for n in 3..=5 {
            rig.register(n, 0);
        }
        rig.vote_topology(1, 9, 5);
        rig.confirm_all();
        assert!((1..=5).all(|n| rig.phase(n) == Some(PeerPhase::Accepted)), "{call:?}");
    }
}

/// The first client is in a vote for the whole run, as the second one was until its limit passed.
fn left_behind(vote: Call, next: Call, limited: &[u64]) -> Rig {
    let mut rig = Rig::world(2);
    rig.limited.extend(limited);
    make(&mut rig, 2, vote);
    rig.pass(3_000, &[1, 2]);
    rig.send(2, C2m::WithdrawVote(RequestId(2)));
    make(&mut rig, 1, vote);
    rig.take(2);
    make(&mut rig, 2, next);
    rig.pass(20_000, &[1, 2]);
    rig
}

#[test]
fn who_is_left_behind_in_a_vote_by_a_limit_may_follow_when_its_own_passes() {
    let goes_on = |packet: &M2c| !matches!(packet, M2c::Echo(_) | M2c::Sizes(_));
    for vote in [Call::Update, Call::Optimize] {
        for next in [Call::Reduce, Call::Sync] {
            let mut rig = left_behind(vote, next, &[1, 2]);
            (1..=2).for_each(|n| assert!(verdicts(&mut rig, n).is_empty(), "{vote:?}, {next:?}"));
            rig.send(1, C2m::WithdrawVote(RequestId(1)));
            rig.take(1);
            make(&mut rig, 1, next);
            for n in [1, 2] {
                let answers = rig.answers(n);
                assert!(answers.iter().any(goes_on), "{vote:?}, {next:?}: {answers:?}");
                assert!(!answers.iter().any(|packet| matches!(packet, M2c::VoteWithdrawn(_))), "{answers:?}");
            }
            // Without a limit it never follows.
            let mut rig = left_behind(vote, next, &[2]);
            (1..=2).for_each(|n| assert_eq!(verdicts(&mut rig, n).len(), 1, "{vote:?}, {next:?}"));
        }
    }
    for (vote, next) in [(Call::Update, Call::Optimize), (Call::Optimize, Call::Update)] {
        let mut rig = left_behind(vote, next, &[1, 2]);
        (1..=2).for_each(|n| assert!(verdicts(&mut rig, n).is_empty(), "{vote:?}, {next:?}"));
    }
}

#[test]
fn a_limit_that_would_end_a_call_for_all_saves_neither() {
    for other in [Call::Sync, Call::Update, Call::Optimize] {
        let (_, got) = two_in(Call::Reduce, other, 8_000, &[1, 2]);
        assert!(got.values().all(|verdicts| verdicts.len() == 1), "{other:?}: {got:?}");
    }
}

#[test]
fn all_who_wait_hear_of_it_and_who_is_in_what() {
    for (call, text) in [
        (Call::Sync, "sync_shared_state"),
        (Call::Update, "update_topology"),
        (Call::Optimize, "optimize_topology"),
    ] {
        let mut rig = Rig::world(3);
        [1, 2].into_iter().for_each(|n| make(&mut rig, n, Call::Reduce));
        make(&mut rig, 3, call);
        rig.pass(8_000, &[1, 2, 3]);
        let told = [1, 2].map(|n| verdicts(&mut rig, n));
        assert_eq!(told[0], told[1]);
        let verdict = &told[0][0];
        let text = format!("{}, which is in {text}", rig.name(3));
        assert!(verdict.detail.as_str().contains(&text), "{verdict}");
        assert_eq!(verdict.culprits[1].peer, rig.peers[&3]);
        assert_eq!(verdicts(&mut rig, 3).len(), 1);
    }
}

#[test]
fn calls_that_cross_each_other_for_a_moment_go_on() {
    // One learns that an operation failed and goes on to the sync; the other one first gives up what else it had begun.
    let (mut rig, _) = two_in(Call::Reduce, Call::Sync, 4_000, &[]);
    let op = rig.op(1, 1, 0);
    rig.give_up(1, VoteRef::Collective(op), None);
    assert_eq!(aborted(rig.answer(1)).cause, Cause::CallerAbort);
    rig.pass(9_000, &[1, 2]);
    make(&mut rig, 1, Call::Sync);
    let goes_on = |packet: &M2c| matches!(packet, M2c::SyncPlan(_) | M2c::SyncOutcome(_));
    (1..=2).for_each(|n| assert!(rig.answers(n).iter().any(goes_on)));
}

#[test]
fn operations_that_another_thread_may_answer_are_waited_for() {
    let mut rig = Rig::world(3);
    let (one, two) = (rig.op(1, 1, 0), rig.op(1, 2, 0));
    rig.initiate(1, one);
    rig.initiate(2, two);
    make(&mut rig, 3, Call::Query);
    rig.pass(9_000, &[1, 2, 3]);
    (1..=3).for_each(|n| assert!(verdicts(&mut rig, n).is_empty()));
}
