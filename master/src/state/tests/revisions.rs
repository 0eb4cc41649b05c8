//! Which revision a group may commit: what it knows, what newcomers offer, and what an operator chooses.

use super::harness::{Rig, register};
use super::sync::{cast, entry, outcome, plan_of, ready, run, vote};
use crate::state::{Input, PeerPhase};
use pccl_protocol::SyncStrategy::{EnforcePopular, ReceiveOnly, SendOnly};
use pccl_protocol::*;
use tinysockets::key::SecretKey;

fn offer(revision: u64) -> ResumeOffer {
    ResumeOffer { revision: Revision(revision), digest: None }
}

/// The offer of a peer that brings the tensor "w" with this digest.
fn exact(revision: u64, digest: u128) -> ResumeOffer {
    let digest = state_digest(&[entry("w", digest)]).to_u128();
    ResumeOffer { digest: Some(digest), ..offer(revision) }
}

/// A client registers with what it brings.
fn come(rig: &mut Rig, n: u64, resume: Option<ResumeOffer>) {
    rig.connect(n);
    rig.send(n, C2m::Register(Register { resume, ..register(0) }));
    rig.confirm_all();
}

/// Everybody who is in lets in who waits.
fn let_in(rig: &mut Rig) {
    for n in rig.accepted() {
        rig.vote_topology(n, 7000 + n, 0);
    }
    rig.confirm_all();
    rig.mail.clear();
}

/// The clients vote; their votes are (revision, digest of "w").
fn votes(rig: &mut Rig, ballots: &[(u64, u64, u128)]) {
    for (n, revision, digest) in ballots {
        let epoch = rig.epoch(*n);
        rig.send(*n, C2m::SyncInitiate(vote(epoch, *revision, EnforcePopular, vec![entry("w", *digest)])));
    }
}

/// They sync and commit.
fn commits(rig: &mut Rig, ballots: &[(u64, u64, u128)], revision: u64) {
    votes(rig, ballots);
    let plans: Vec<SyncPlan> = ballots.iter().map(|(n, ..)| plan_of(rig, *n)).collect();
    for ((n, ..), plan) in ballots.iter().zip(&plans) {
        ready(rig, *n, plan.sync);
    }
    for (n, ..) in ballots {
        assert_eq!(outcome(rig.answer(*n)), SyncOutcome::Committed(Revision(revision)), "client {n}");
    }
}

/// They sync in vain; all are told the same.
fn fails(rig: &mut Rig, ballots: &[(u64, u64, u128)]) -> Verdict {
    votes(rig, ballots);
    let told: Vec<SyncOutcome> = ballots.iter().map(|(n, ..)| outcome(rig.answer(*n))).collect();
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    match told.into_iter().next() {
        Some(SyncOutcome::Failed(verdict)) => verdict,
        other => panic!("no failure: {other:?}"),
    }
}

fn accept(rig: &mut Rig, revision: u64) -> String {
    let text = rig.state.describe_choice(None, Revision(revision)).expect("there is a choice");
    rig.input(Input::AcceptRevision { group: None, revision: Revision(revision) });
    text
}

#[test]
fn fresh_peers_wait_for_what_a_newcomer_offers() {
    for resume in [offer(1000), exact(1000, 9)] {
        let mut rig = Rig::world(2);
        come(&mut rig, 3, Some(resume));
        let verdict = fails(&mut rig, &[(1, 0, 1), (2, 0, 1)]);
        assert_eq!((verdict.cause, verdict.culprits.len()), (Cause::ResumeWaits, 1));
        assert_eq!(verdict.culprits[0].peer, rig.peers[&3]);
        assert!(verdict.detail.as_str().contains("offers revision 1000"), "{verdict}");
        let status = rig.state.blocked_on().join("\n");
        assert!(status.contains("offers revision 1000"), "{status}");
        let_in(&mut rig);
        commits(&mut rig, &[(1, 0, 1), (2, 0, 1), (3, 1000, 9)], 1000);
        assert!(!rig.state.blocked_on().join("\n").contains("offers"));
        // From then on it is a group like any other.
        commits(&mut rig, &[(1, 1001, 2), (2, 1001, 2), (3, 1001, 2)], 1001);
    }
}

#[test]
fn of_two_that_restore_the_newer_one_wins() {
    let mut rig = Rig::new();
    come(&mut rig, 1, Some(exact(999, 4)));
    assert_eq!(rig.accepted(), [1]);
    rig.mail.clear();
    come(&mut rig, 2, Some(exact(1000, 5)));
    assert_eq!(fails(&mut rig, &[(1, 999, 4)]).cause, Cause::ResumeWaits);
    let_in(&mut rig);
    commits(&mut rig, &[(1, 999, 4), (2, 1000, 5)], 1000);
}

#[test]
fn what_is_offered_must_be_brought() {
    for (revision, digest) in [(1000, 8), (999, 9), (1001, 9)] {
        let mut rig = Rig::new();
        come(&mut rig, 1, Some(exact(1000, 9)));
        votes(&mut rig, &[(1, revision, digest)]);
        assert_eq!(rig.kick_of(1).code, KickCode::FalseOffer, "{revision} {digest}");
    }
    // Without a digest it may bring more; with less, it is as fresh as others.
    let mut rig = Rig::new();
    come(&mut rig, 1, Some(offer(1000)));
    rig.mail.clear();
    commits(&mut rig, &[(1, 1001, 9)], 1001);
    let mut rig = Rig::new();
    come(&mut rig, 1, Some(offer(1000)));
    rig.mail.clear();
    commits(&mut rig, &[(1, 3, 9)], 3);
}

/// With a key the digests of votes are others in each run, so the vote says beside them what was offered.
#[test]
fn with_a_key_what_was_offered_is_named_beside_the_vote() {
    let named = exact(1000, 9).digest;
    let other = exact(1000, 8).digest;
    for (offered, is_right) in [(named, true), (other, false), (None, false)] {
        let key = SecretKey::from_bytes([1; 32]);
        let mut rig = Rig::with(|options| options.state_key = Some(key.clone()));
        rig.connect(1);
        let resume = Some(exact(1000, 9));
        rig.send(1, C2m::Register(Register { resume, ..register(0) }));
        let registered = rig.answers(1).into_iter().find_map(|packet| match packet {
            M2c::Registered(registered) => Some(registered),
            _ => None,
        });
        assert_eq!(registered.expect("it is let in").state_key, Some(key));
        rig.confirm_all();
        rig.mail.clear();
        let ballot = vote(rig.epoch(1), 1000, EnforcePopular, vec![entry("w", 77)]);
        rig.send(1, C2m::SyncInitiate(SyncInitiate { offered, ..ballot }));
        if is_right {
            plan_of(&mut rig, 1);
        } else {
            assert_eq!(rig.kick_of(1).code, KickCode::FalseOffer, "{offered:?}");
        }
    }
}

#[test]
fn an_offer_goes_with_its_peer() {
    let mut rig = Rig::world(1);
    come(&mut rig, 2, Some(offer(1000)));
    assert_eq!(fails(&mut rig, &[(1, 0, 1)]).cause, Cause::ResumeWaits);
    rig.die(2);
    commits(&mut rig, &[(1, 0, 1)], 0);
}

#[test]
fn offers_to_other_groups_and_of_what_is_not_newer_do_not_count() {
    let mut rig = Rig::world(1);
    come(&mut rig, 2, Some(offer(5)));
    rig.connect(3);
    rig.send(3, C2m::Register(Register { resume: Some(offer(1000)), ..register(1) }));
    commits(&mut rig, &[(1, 5, 1)], 5);
}

#[test]
fn who_restores_and_is_outnumbered_by_other_tensors_stays() {
    let mut rig = Rig::world(2);
    come(&mut rig, 3, Some(offer(7)));
    let_in(&mut rig);
    let epoch = rig.epoch(1);
    for n in [1, 2] {
        rig.send(n, C2m::SyncInitiate(vote(epoch, 0, EnforcePopular, vec![entry("old", 1)])));
    }
    rig.send(3, C2m::SyncInitiate(vote(epoch, 7, EnforcePopular, vec![entry("w", 1)])));
    assert_eq!(rig.kick_of(1).code, KickCode::StateMismatch);
    assert_eq!(rig.kick_of(2).code, KickCode::StateMismatch);
    assert!(!rig.closed.contains(&3));
}

/// Clients 1 and 2 have committed revision 10, and died; client 3 has none of it.
fn lost() -> Rig {
    let mut rig = Rig::world(2);
    commits(&mut rig, &[(1, 10, 1), (2, 10, 1)], 10);
    rig.join(&[3], 0);
    rig.die_together(&[1, 2]);
    rig.confirm_all();
    rig.mail.clear();
    rig
}

#[test]
fn a_revision_whose_holders_died_is_not_overwritten() {
    let mut rig = lost();
    let verdict = fails(&mut rig, &[(3, 0, 7)]);
    assert_eq!(verdict.cause, Cause::StateLost);
    assert!(verdict.detail.as_str().contains("committed revision 10"), "{verdict}");
    assert!(verdict.detail.as_str().contains("accept-revision 0"), "{verdict}");
    assert!(rig.state.blocked_on().join("\n").contains("accept-revision 0"));
    assert_eq!(rig.state.undecided_revisions(), [(GroupId(0), Revision(0))]);
    // Somebody comes back who holds it.
    come(&mut rig, 4, None);
    let_in(&mut rig);
    commits(&mut rig, &[(3, 0, 7), (4, 10, 1)], 10);
    assert_eq!(rig.state.undecided_revisions(), []);
}

#[test]
fn an_operator_gives_a_lost_revision_up() {
    let mut rig = lost();
    assert_eq!(fails(&mut rig, &[(3, 8, 7)]).cause, Cause::StateLost);
    assert!(accept(&mut rig, 8).contains("goes on from revision 8"));
    // Below that nothing is committed, above it something may be.
    assert_eq!(fails(&mut rig, &[(3, 7, 7)]).cause, Cause::StateLost);
    commits(&mut rig, &[(3, 9, 7)], 9);
    commits(&mut rig, &[(3, 10, 8)], 10);
    let error = rig.state.describe_choice(None, Revision(3)).unwrap_err();
    assert!(error.contains("nothing has to be chosen"), "{error}");
}

#[test]
fn what_a_run_has_known_outlives_all_of_its_peers_unless_they_left() {
    // Killed: it may go on.
    let mut rig = lost();
    rig.die(3);
    rig.join(&[4], 0);
    assert_eq!(fails(&mut rig, &[(4, 0, 7)]).cause, Cause::StateLost);
    // The last one left on purpose: that training is over.
    let mut rig = Rig::world(2);
    commits(&mut rig, &[(1, 10, 1), (2, 10, 1)], 10);
    rig.die(1);
    rig.confirm_all();
    rig.send(2, C2m::Leave(Nothing {}));
    rig.join(&[3], 0);
    commits(&mut rig, &[(3, 0, 7)], 0);
    // Not while somebody is there who came for it.
    let mut rig = Rig::world(1);
    commits(&mut rig, &[(1, 10, 1)], 10);
    rig.join(&[2], 0);
    rig.send(1, C2m::Leave(Nothing {}));
    rig.confirm_all();
    rig.mail.clear();
    assert_eq!(fails(&mut rig, &[(2, 0, 7)]).cause, Cause::StateLost);
}

#[test]
fn a_master_that_is_told_where_to_go_on_commits_nothing_older() {
    let mut rig = Rig::with(|options| options.accept_revision = Some(Revision(1000)));
    rig.join(&[1], 0);
    assert_eq!(fails(&mut rig, &[(1, 0, 7)]).cause, Cause::StateLost);
    rig.join(&[2], 0);
    commits(&mut rig, &[(1, 0, 7), (2, 1000, 1)], 1000);
}

/// Clients 1 and 2 are at revision 3 when client 3 comes with 1000.
fn late() -> Rig {
    let mut rig = Rig::world(2);
    commits(&mut rig, &[(1, 3, 1), (2, 3, 1)], 3);
    come(&mut rig, 3, Some(exact(1000, 9)));
    rig
}

fn warnings(rig: &mut Rig, n: u64) -> Vec<String> {
    let all = rig.take(n).into_iter();
    all.filter_map(|packet| if let M2c::Warning(text) = packet { Some(text.to_string()) } else { None })
        .collect()
}

#[test]
fn who_comes_too_late_waits_for_an_operator_and_all_are_told() {
    let mut rig = late();
    for n in [1, 2, 3] {
        let told = warnings(&mut rig, n);
        assert_eq!(told.len(), 1, "client {n}: {told:?}");
        for part in ["offers revision 1000", "at revision 3", "accept-revision 1000", "accept-revision 3"] {
            assert!(told[0].contains(part), "{told:?}");
        }
    }
    assert!(rig.state.blocked_on().join("\n").contains("offers revision 1000"));
    // Nobody is held up by it, and nobody lets it in.
    for n in [1, 2] {
        rig.send(n, C2m::VotePending(RequestId(80)));
    }
    assert_eq!(rig.answer(1), M2c::PendingAnswer(PendingAnswer { request: RequestId(80), pending: false }));
    let_in(&mut rig);
    commits(&mut rig, &[(1, 4, 2), (2, 4, 2)], 4);
    assert_eq!((rig.phase(3), rig.accepted()), (Some(PeerPhase::Pending), vec![1, 2]));
}

#[test]
fn an_operator_takes_what_came_late() {
    let mut rig = late();
    rig.mail.clear();
    accept(&mut rig, 1000);
    assert_eq!(fails(&mut rig, &[(1, 4, 2), (2, 4, 2)]).cause, Cause::ResumeWaits);
    let_in(&mut rig);
    commits(&mut rig, &[(1, 4, 2), (2, 4, 2), (3, 1000, 9)], 1000);
    // If it goes before, nothing is lost but time.
    let mut rig = late();
    rig.mail.clear();
    accept(&mut rig, 1000);
    rig.die(3);
    assert_eq!(fails(&mut rig, &[(1, 4, 2), (2, 4, 2)]).cause, Cause::StateLost);
    accept(&mut rig, 4);
    commits(&mut rig, &[(1, 4, 2), (2, 4, 2)], 4);
}

#[test]
fn an_operator_chooses_while_a_sync_runs() {
    let mut rig = late();
    rig.mail.clear();
    votes(&mut rig, &[(1, 4, 2), (2, 4, 2)]);
    let plans = [plan_of(&mut rig, 1), plan_of(&mut rig, 2)];
    accept(&mut rig, 1000);
    for (n, plan) in (1..).zip(&plans) {
        ready(&mut rig, n, plan.sync);
    }
    rig.mail.clear();
    let_in(&mut rig);
    commits(&mut rig, &[(1, 5, 2), (2, 5, 2), (3, 1000, 9)], 1000);
}

#[test]
fn an_operator_turns_away_what_came_late() {
    let mut rig = late();
    rig.mail.clear();
    assert!(accept(&mut rig, 3).contains("turned away"));
    assert_eq!(rig.kick_of(3).code, KickCode::Operator);
    commits(&mut rig, &[(1, 4, 2), (2, 4, 2)], 4);
}

#[test]
fn one_step_ahead_is_not_late_and_who_comes_with_less_joins() {
    let mut rig = Rig::world(1);
    commits(&mut rig, &[(1, 3, 1)], 3);
    come(&mut rig, 2, Some(offer(4)));
    come(&mut rig, 3, Some(offer(2)));
    let_in(&mut rig);
    commits(&mut rig, &[(1, 4, 6), (2, 4, 5), (3, 2, 1)], 4);
}

#[test]
fn who_says_so_may_still_spread_an_older_state() {
    let mut rig = Rig::world(2);
    assert_eq!(run(&mut rig, &[(9, ReceiveOnly, 1), (5, SendOnly, 2)]).len(), 2);
    cast(&mut rig, &[(5, ReceiveOnly, 1), (0, SendOnly, 2)]);
    assert_eq!(plan_of(&mut rig, 1).revision, Revision(0));
}
