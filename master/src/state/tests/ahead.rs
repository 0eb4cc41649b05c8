//! Newcomers that fetch the shared state before they are let in: who is told what, who is let in with it, and what is a
//! fault. How long they are kept out is in `patience`.

use super::harness::{Rig, register};
use super::sync::{entry, failure, outcome, plan_of, ready, vote};
use crate::state::PeerPhase;
use pccl_protocol::SyncStrategy::EnforcePopular;
use pccl_protocol::*;

/// All accepted clients sync: tensor "w" with this digest. They commit it.
pub(super) fn commit(rig: &mut Rig, revision: u64, digest: u128) -> SyncId {
    let all = rig.accepted();
    for n in &all {
        let epoch = rig.epoch(*n);
        rig.send(*n, C2m::SyncInitiate(vote(epoch, revision, EnforcePopular, vec![entry("w", digest)])));
    }
    let plans: Vec<SyncPlan> = all.iter().map(|n| plan_of(rig, *n)).collect();
    for (n, plan) in all.iter().zip(&plans) {
        ready(rig, *n, plan.sync);
    }
    for n in &all {
        assert_eq!(outcome(rig.answer(*n)), SyncOutcome::Committed(Revision(revision)), "client {n}");
    }
    plans[0].sync
}

pub(super) fn lend(rig: &mut Rig, n: u64, sync: SyncId) {
    rig.send(n, C2m::Loan(Loan { sync, stands: true }));
}

pub(super) fn end_loan(rig: &mut Rig, n: u64, sync: SyncId) {
    rig.send(n, C2m::Loan(Loan { sync, stands: false }));
}

pub(super) fn step(rig: &mut Rig, n: u64, step: AheadStep) {
    rig.send(n, C2m::Ahead(step));
}

pub(super) fn holds(rig: &mut Rig, n: u64, sync: SyncId) {
    step(rig, n, AheadStep::Holds(sync));
}

pub(super) fn fails(rig: &mut Rig, n: u64, sync: SyncId, sources: &[u64]) {
    let failures = sources.iter().map(|s| failure(rig, *s, SourceFault::Unreached)).collect();
    step(rig, n, AheadStep::Failed(AheadFailure { sync, failures }));
}

/// A newcomer of group 0 that wants the state ahead.
pub(super) fn come(rig: &mut Rig, n: u64, resume: Option<ResumeOffer>) {
    rig.connect(n);
    rig.send(n, C2m::Register(Register { resume, ..register(0) }));
    step(rig, n, AheadStep::Wanted(Nothing {}));
    assert!(matches!(rig.answers(n)[..], [M2c::Registered(_), ..]));
}

/// The facts that the newcomer is told: the sync, and the serving peers in their order.
pub(super) fn told(rig: &mut Rig, n: u64) -> Option<(SyncId, Vec<u64>)> {
    let answers = rig.answers(n);
    let plan = match &answers[..] {
        [] => return None,
        [M2c::StateAhead(plan)] => plan,
        other => panic!("client {n}: {other:?}"),
    };
    assert_eq!(plan.fetch.len(), 1);
    let number = |id: PeerId| *rig.peers.iter().find(|(_, peer)| **peer == id).expect("known").0;
    Some((plan.sync, plan.sources.iter().map(|source| number(source.peer)).collect()))
}

/// The answer to all who are in when they ask whether somebody waits.
pub(super) fn pending(rig: &mut Rig) -> bool {
    let all = rig.accepted();
    for n in &all {
        rig.send(*n, C2m::VotePending(RequestId(8000 + n)));
    }
    let answers: Vec<bool> = all
        .iter()
        .map(|n| match rig.answer(*n) {
            M2c::PendingAnswer(answer) => answer.pending,
            other => panic!("client {n}: {other:?}"),
        })
        .collect();
    assert!(answers.iter().all(|one| *one == answers[0]));
    answers[0]
}

/// All who are in let in who waits; whether somebody was.
pub(super) fn let_in(rig: &mut Rig) -> bool {
    let before = rig.accepted();
    for n in &before {
        rig.vote_topology(*n, 7000 + n, 0);
    }
    rig.confirm_all();
    for n in &before {
        assert!(matches!(rig.answer(*n), M2c::TopologyDone(_)), "client {n}");
    }
    rig.accepted().len() > before.len()
}

pub(super) fn sentence(rig: &Rig) -> String {
    rig.state.blocked_on().join("\n")
}

fn protocol_fault(rig: &mut Rig, n: u64) -> String {
    let reason = rig.kick_of(n);
    assert_eq!(reason.code, KickCode::Protocol);
    reason.detail.as_str().to_owned()
}

/// Two who have committed and lend, and a newcomer that was told so.
pub(super) fn lent() -> (Rig, SyncId) {
    let mut rig = Rig::world(2);
    let sync = commit(&mut rig, 1, 10);
    lend(&mut rig, 1, sync);
    lend(&mut rig, 2, sync);
    come(&mut rig, 3, None);
    (rig, sync)
}

#[test]
fn a_newcomer_is_let_in_when_it_holds_the_state() {
    let mut rig = Rig::world(2);
    let sync = commit(&mut rig, 1, 10);
    lend(&mut rig, 1, sync);
    lend(&mut rig, 2, sync);
    rig.connect(3);
    rig.send(3, C2m::Register(register(0)));
    rig.mail.clear();
    step(&mut rig, 3, AheadStep::Wanted(Nothing {}));
    let (named, servers) = told(&mut rig, 3).expect("told");
    assert_eq!((named, servers.len()), (sync, 2));
    assert!(!pending(&mut rig) && !let_in(&mut rig));
    let text = sentence(&rig);
    assert!(text.contains("fetches the shared state ahead, 2 of 2 serving peers"), "{text}");
    rig.beat(3, 0);
    let echo = rig.take(3).into_iter().find_map(|packet| match packet {
        M2c::Echo(echo) => echo.blocked_on,
        _ => None,
    });
    assert_eq!(echo.expect("a sentence").as_str(), "fetches the shared state ahead, 2 of 2 serving peers");
    holds(&mut rig, 3, sync);
    assert!(pending(&mut rig) && let_in(&mut rig));
    assert_eq!(rig.phase(3), Some(PeerPhase::Accepted));
    // A step that crosses the admission is late, and nothing else.
    holds(&mut rig, 3, sync);
    assert_eq!(rig.phase(3), Some(PeerPhase::Accepted));
}

#[test]
fn who_does_not_want_it_is_let_in_as_ever() {
    let (mut rig, _) = lent();
    rig.register(4, 0);
    assert!(pending(&mut rig) && let_in(&mut rig));
    assert_eq!((rig.phase(3), rig.phase(4)), (Some(PeerPhase::Pending), Some(PeerPhase::Accepted)));
}

#[test]
fn loans_that_begin_together_are_told_of_together() {
    let mut rig = Rig::world(3);
    let sync = commit(&mut rig, 1, 10);
    come(&mut rig, 4, None);
    come(&mut rig, 5, None);
    lend(&mut rig, 1, sync);
    lend(&mut rig, 3, sync);
    assert_eq!((told(&mut rig, 4), told(&mut rig, 5)), (None, None));
    rig.pass(250, &[1, 2, 3, 4, 5]);
    let (a, b) = (told(&mut rig, 4).expect("told"), told(&mut rig, 5).expect("told"));
    assert_eq!([a.clone(), b.clone()].map(|(sync, servers)| (sync, servers.len())), [(sync, 2); 2]);
    assert_ne!(a.1, b.1, "both begin with the same serving peer");
    // All who hold it: nobody else is to come.
    let sync = commit(&mut rig, 2, 11);
    (1..=3).for_each(|n| lend(&mut rig, n, sync));
    assert_eq!(told(&mut rig, 4).map(|(sync, servers)| (sync, servers.len())), Some((sync, 3)));
}

#[test]
fn nobody_is_told_before_there_is_a_loan_and_nothing_twice() {
    let mut rig = Rig::world(2);
    let first = commit(&mut rig, 1, 10);
    come(&mut rig, 3, None);
    assert!(pending(&mut rig), "nobody lends");
    lend(&mut rig, 1, first);
    lend(&mut rig, 2, first);
    assert_eq!(told(&mut rig, 3).expect("told").0, first);
    // Neither the end of a loan nor its beginning is news for one that still fetches.
    end_loan(&mut rig, 1, first);
    lend(&mut rig, 1, first);
    assert_eq!(told(&mut rig, 3), None);
    let second = commit(&mut rig, 2, 11);
    assert_eq!(told(&mut rig, 3), None);
    assert!(!pending(&mut rig), "it was lent the last time");
    lend(&mut rig, 1, first);
    assert_eq!(told(&mut rig, 3), None, "a loan of an older sync is over");
    lend(&mut rig, 2, second);
    rig.pass(250, &[1, 2, 3]);
    assert_eq!(told(&mut rig, 3), Some((second, vec![2])));
    // A beginning of the next sync ends the loan.
    let epoch = rig.epoch(2);
    rig.send(2, C2m::SyncInitiate(vote(epoch, 3, EnforcePopular, vec![entry("w", 12)])));
    let text = sentence(&rig);
    assert!(text.contains("fetches the shared state ahead, and waits for the next loan of it"), "{text}");
}

#[test]
fn a_sync_that_commits_the_same_changes_nothing() {
    let (mut rig, first) = lent();
    holds(&mut rig, 3, first);
    let second = commit(&mut rig, 2, 10);
    lend(&mut rig, 1, second);
    lend(&mut rig, 2, second);
    assert_eq!(told(&mut rig, 3), None);
    assert!(pending(&mut rig));
    let third = commit(&mut rig, 3, 11);
    lend(&mut rig, 1, third);
    lend(&mut rig, 2, third);
    assert_eq!(told(&mut rig, 3).expect("told").0, third);
    assert!(!pending(&mut rig));
    // Its word about an older one does not count any more.
    holds(&mut rig, 3, first);
    assert!(!pending(&mut rig));
    holds(&mut rig, 3, third);
    assert!(pending(&mut rig));
}

#[test]
fn after_a_failure_it_is_told_of_others() {
    let mut rig = Rig::world(3);
    let sync = commit(&mut rig, 1, 10);
    lend(&mut rig, 1, sync);
    lend(&mut rig, 2, sync);
    rig.pass(250, &[1, 2, 3]);
    come(&mut rig, 4, None);
    rig.pass(1, &[]);
    assert_eq!(told(&mut rig, 4), Some((sync, vec![1, 2])));
    lend(&mut rig, 3, sync);
    assert_eq!(told(&mut rig, 4), None, "it still fetches");
    fails(&mut rig, 4, sync, &[1, 2]);
    assert_eq!(told(&mut rig, 4), Some((sync, vec![3])));
    fails(&mut rig, 4, sync, &[3]);
    assert_eq!(told(&mut rig, 4), None);
    let text = sentence(&rig);
    assert!(text.contains("fetches the shared state ahead, in vain from 3 of 3 serving peers"), "{text}");
    assert!(!pending(&mut rig), "the next state may come");
    // A loan that begins anew is another chance.
    end_loan(&mut rig, 2, sync);
    lend(&mut rig, 2, sync);
    assert_eq!(told(&mut rig, 4), Some((sync, vec![2])));
}

#[test]
fn the_state_of_one_group_is_nothing_to_another() {
    let (mut rig, sync) = lent();
    rig.register(4, 1);
    step(&mut rig, 4, AheadStep::Wanted(Nothing {}));
    assert!(pending(&mut rig), "nobody of its group is there");
    assert!(let_in(&mut rig));
    assert_eq!(rig.accepted(), [1, 2, 4]);
    rig.mail.clear();
    lend(&mut rig, 4, sync);
    fails(&mut rig, 3, sync, &[1, 2]);
    rig.pass(250, &[1, 2, 3, 4]);
    assert_eq!(told(&mut rig, 3), None);
}

#[test]
fn what_is_as_new_stays_as_it_is() {
    let offer = |revision| ResumeOffer { revision: Revision(revision), digest: Some(9) };
    for (revision, counts) in [(0, false), (1, true), (2, true)] {
        let mut rig = Rig::world(2);
        let sync = commit(&mut rig, 1, 10);
        lend(&mut rig, 1, sync);
        lend(&mut rig, 2, sync);
        come(&mut rig, 3, Some(offer(revision)));
        assert_eq!(pending(&mut rig), counts, "revision {revision}");
    }
    // A newcomer that was told fetches over what it brought, and need not bring it.
    let mut rig = Rig::world(2);
    let sync = commit(&mut rig, 1, 10);
    lend(&mut rig, 1, sync);
    lend(&mut rig, 2, sync);
    come(&mut rig, 3, Some(offer(0)));
    holds(&mut rig, 3, sync);
    assert!(let_in(&mut rig));
    rig.mail.clear();
    commit(&mut rig, 1, 10);
}

#[test]
fn what_an_operator_gives_up_is_not_lent() {
    let (mut rig, sync) = lent();
    let resume = Some(ResumeOffer { revision: Revision(9), digest: None });
    rig.connect(4);
    rig.send(4, C2m::Register(Register { resume, ..register(0) }));
    rig.input(crate::state::Input::AcceptRevision { group: None, revision: Revision(9) });
    rig.mail.clear();
    lend(&mut rig, 1, sync);
    assert!(pending(&mut rig));
    assert_eq!(told(&mut rig, 3), None);
}

#[test]
fn only_accepted_peers_lend_and_only_what_was_committed() {
    let (mut rig, sync) = lent();
    lend(&mut rig, 3, sync);
    assert!(protocol_fault(&mut rig, 3).contains("Loan from a peer that waits for admission"));
    lend(&mut rig, 1, SyncId(sync.0 + 1));
    assert!(protocol_fault(&mut rig, 1).contains("has not committed"));
    rig.connect(5);
    lend(&mut rig, 5, sync);
    assert!(protocol_fault(&mut rig, 5).contains("Loan from a client that has not registered"));
    // Nor what runs.
    let mut rig = Rig::world(1);
    let epoch = rig.epoch(1);
    rig.send(1, C2m::SyncInitiate(vote(epoch, 1, EnforcePopular, vec![entry("w", 1)])));
    let plan = plan_of(&mut rig, 1);
    lend(&mut rig, 1, plan.sync);
    assert!(protocol_fault(&mut rig, 1).contains("has not committed"));
}

#[test]
fn steps_are_about_what_was_told() {
    type Fault = fn(&Rig, SyncId) -> AheadStep;
    let faults: [(Fault, &str); 4] = [
        (|_, _| AheadStep::Wanted(Nothing {}), "twice"),
        (|_, sync| AheadStep::Holds(SyncId(sync.0 + 1)), "of which it was not told"),
        (
            |_, sync| AheadStep::Failed(AheadFailure { sync: SyncId(sync.0 + 1), failures: vec![] }),
            "of which it was not told",
        ),
        (
            |rig, sync| {
                let failures = vec![failure(rig, 3, SourceFault::Refused)];
                AheadStep::Failed(AheadFailure { sync, failures })
            },
            "none of its sources",
        ),
    ];
    for (fault, text) in faults {
        let (mut rig, sync) = lent();
        let fault = fault(&rig, sync);
        step(&mut rig, 3, fault);
        let said = protocol_fault(&mut rig, 3);
        assert!(said.contains(text), "{said}");
    }
    let (mut rig, sync) = lent();
    rig.register(4, 0);
    holds(&mut rig, 4, sync);
    assert!(protocol_fault(&mut rig, 4).contains("without having said so"));
    rig.connect(5);
    step(&mut rig, 5, AheadStep::Wanted(Nothing {}));
    assert!(protocol_fault(&mut rig, 5).contains("Ahead from a client that has not registered"));
}

#[test]
fn a_step_about_an_older_sync_is_late_however_old() {
    let (mut rig, first) = lent();
    step(&mut rig, 3, AheadStep::Failed(AheadFailure { sync: first, failures: vec![] }));
    for revision in 2..=12 {
        rig.mail.clear();
        let sync = commit(&mut rig, revision, 10 + u128::from(revision));
        lend(&mut rig, 1, sync);
        lend(&mut rig, 2, sync);
        assert_eq!(told(&mut rig, 3).map(|told| told.0), Some(sync));
        fails(&mut rig, 3, first, &[1, 2]);
        holds(&mut rig, 3, first);
        assert_eq!(rig.phase(3), Some(PeerPhase::Pending));
    }
}

#[test]
fn formed_groups_lend_to_nobody() {
    let mut rig = Rig::world(1);
    commit(&mut rig, 1, 10);
    rig.connect(7);
    rig.send(7, C2m::Register(Register { formed: true, ..register(5) }));
    rig.mail.clear();
    // It may have lent in a group that was broken up.
    lend(&mut rig, 7, SyncId(1));
    rig.nothing(7);
    step(&mut rig, 7, AheadStep::Wanted(Nothing {}));
    assert!(protocol_fault(&mut rig, 7).contains("formed of lists"));
}
