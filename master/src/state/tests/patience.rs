//! How long a newcomer that fetches the shared state ahead is kept out: nobody waits for ever, and nobody who gets on
//! is let in too early.

use super::ahead::{come, commit, end_loan, fails, holds, lend, lent, let_in, pending, sentence, step, told};
use super::harness::{Rig, register};
use super::sync::{entry, outcome, vote};
use pccl_protocol::*;

#[test]
fn one_that_gives_up_is_let_in() {
    let (mut rig, sync) = lent();
    assert!(!pending(&mut rig));
    step(&mut rig, 3, AheadStep::GivenUp(Text::new("its tensors are others")));
    assert!(pending(&mut rig));
    lend(&mut rig, 1, sync);
    rig.mail.clear();
    let next = commit(&mut rig, 2, 11);
    lend(&mut rig, 1, next);
    lend(&mut rig, 2, next);
    assert_eq!(told(&mut rig, 3), None);
    assert!(let_in(&mut rig));
}

#[test]
fn it_does_not_chase_a_state_for_ever() {
    let (mut rig, _) = lent();
    for revision in 2..=4 {
        assert!(!pending(&mut rig), "revision {revision}");
        rig.mail.clear();
        let sync = commit(&mut rig, revision, 10 + u128::from(revision));
        lend(&mut rig, 1, sync);
        lend(&mut rig, 2, sync);
        // It goes on with the newest all the same.
        assert_eq!(told(&mut rig, 3).expect("told").0, sync);
    }
    assert!(pending(&mut rig) && let_in(&mut rig));
}

#[test]
fn holding_an_older_state_gives_no_more_time() {
    let (mut rig, mut sync) = lent();
    for revision in 2..=4 {
        holds(&mut rig, 3, sync);
        rig.mail.clear();
        sync = commit(&mut rig, revision, 10 + u128::from(revision));
        lend(&mut rig, 1, sync);
        lend(&mut rig, 2, sync);
    }
    assert!(pending(&mut rig));
}

#[test]
fn it_does_not_fail_for_ever() {
    let (mut rig, sync) = lent();
    fails(&mut rig, 3, sync, &[1, 2]);
    for turn in 1..8 {
        assert!(!pending(&mut rig), "turn {turn}");
        for n in [1, 2] {
            end_loan(&mut rig, n, sync);
        }
        rig.mail.clear();
        for n in [1, 2] {
            lend(&mut rig, n, sync);
        }
        let (_, servers) = told(&mut rig, 3).expect("told");
        fails(&mut rig, 3, sync, &servers);
        // The other one is named after the first.
        while let Some((_, servers)) = told(&mut rig, 3) {
            fails(&mut rig, 3, sync, &servers);
        }
        if pending(&mut rig) {
            assert!(turn > 2, "it was given up too early");
            return;
        }
    }
    panic!("it fails for ever");
}

#[test]
fn one_that_does_not_get_on_is_let_in() {
    let (mut rig, _) = lent();
    // It moves bytes.
    for seconds in 1..=90 {
        rig.pass(1_000, &[1, 2]);
        rig.beat(3, seconds);
    }
    rig.mail.clear();
    assert!(!pending(&mut rig));
    // It beats, and nothing else.
    for _ in 0..58 {
        rig.pass(1_000, &[1, 2]);
        rig.beat(3, 90);
    }
    rig.mail.clear();
    assert!(!pending(&mut rig));
    for _ in 0..3 {
        rig.pass(1_000, &[1, 2]);
        rig.beat(3, 90);
    }
    rig.mail.clear();
    assert!(pending(&mut rig));
}

#[test]
fn the_same_state_once_more_gives_no_more_time() {
    let (mut rig, _) = lent();
    for revision in 2..=8 {
        rig.pass(10_000, &[1, 2, 3]);
        rig.mail.clear();
        let sync = commit(&mut rig, revision, 10);
        lend(&mut rig, 1, sync);
        lend(&mut rig, 2, sync);
    }
    rig.mail.clear();
    assert!(pending(&mut rig));
}

#[test]
fn time_in_which_the_master_stood_still_does_not_count() {
    let (mut rig, _) = lent();
    rig.pass(50_000, &[1, 2, 3]);
    rig.now = rig.now + std::time::Duration::from_secs(20);
    rig.input(crate::state::Input::LoopGap(std::time::Duration::from_secs(20)));
    rig.pass(5_000, &[1, 2, 3]);
    rig.mail.clear();
    assert!(!pending(&mut rig));
    rig.pass(6_000, &[1, 2, 3]);
    rig.mail.clear();
    assert!(pending(&mut rig));
}

#[test]
fn when_the_last_loan_has_ended_and_nobody_syncs_it_is_let_in() {
    let (mut rig, sync) = lent();
    fails(&mut rig, 3, sync, &[1, 2]);
    end_loan(&mut rig, 1, sync);
    end_loan(&mut rig, 2, sync);
    rig.mail.clear();
    assert!(!pending(&mut rig));
    rig.pass(61_000, &[1, 2, 3]);
    rig.mail.clear();
    assert!(pending(&mut rig) && let_in(&mut rig));
}

#[test]
fn two_syncs_without_a_loan_end_the_wait() {
    let (mut rig, _) = lent();
    rig.mail.clear();
    commit(&mut rig, 2, 10);
    assert!(!pending(&mut rig));
    commit(&mut rig, 3, 10);
    assert!(pending(&mut rig));
}

#[test]
fn syncs_that_fail_do_not_keep_it_out() {
    let (mut rig, _) = lent();
    for turn in 0..3 {
        rig.mail.clear();
        for (n, digest) in [(1, 11), (2, 12)] {
            let epoch = rig.epoch(n);
            let vote = vote(epoch, 2, SyncStrategy::SendOnly, vec![entry("w", digest)]);
            rig.send(n, C2m::SyncInitiate(vote));
        }
        assert!(matches!(outcome(rig.answer(1)), SyncOutcome::Failed(_)), "turn {turn}");
        assert!(matches!(outcome(rig.answer(2)), SyncOutcome::Failed(_)), "turn {turn}");
        rig.pass(25_000, &[1, 2, 3]);
    }
    rig.mail.clear();
    assert!(pending(&mut rig));
}

#[test]
fn a_loan_goes_with_its_peer_and_the_last_of_them_with_all() {
    let (mut rig, sync) = lent();
    rig.die(1);
    rig.mail.clear();
    assert!(!pending(&mut rig));
    assert!(sentence(&rig).contains("1 of 1 serving peers"));
    fails(&mut rig, 3, sync, &[1]);
    // One that was let in since holds nothing that was agreed on.
    rig.register(4, 0);
    rig.vote_topology(2, 71, 0);
    rig.confirm_all();
    rig.mail.clear();
    assert_eq!(rig.accepted(), [2, 4]);
    assert!(!pending(&mut rig));
    lend(&mut rig, 4, sync);
    rig.pass(250, &[2, 3, 4]);
    assert_eq!(told(&mut rig, 3), None, "it may not lend what it does not hold");
    rig.die(2);
    rig.confirm_all();
    rig.mail.clear();
    assert!(pending(&mut rig) && let_in(&mut rig));
}

#[test]
fn when_all_have_gone_it_is_let_in_at_once() {
    let (mut rig, _) = lent();
    rig.die(1);
    rig.die(2);
    rig.confirm_all();
    assert_eq!(rig.accepted(), [3]);
}

#[test]
fn who_waits_for_more_peers_gets_it_at_once() {
    let (mut rig, _) = lent();
    rig.vote_topology(1, 1, 3);
    rig.vote_topology(2, 2, 3);
    rig.confirm_all();
    assert_eq!(rig.accepted(), [1, 2, 3]);
    // Too few for anything: nobody trains.
    let mut rig = Rig::with(|options| options.min_world_size = 2);
    rig.join(&[1, 2], 0);
    let sync = commit(&mut rig, 1, 10);
    lend(&mut rig, 1, sync);
    lend(&mut rig, 2, sync);
    come(&mut rig, 3, None);
    assert!(!pending(&mut rig));
    rig.die(2);
    rig.confirm_all();
    rig.mail.clear();
    assert!(pending(&mut rig) && let_in(&mut rig));
}

#[test]
fn what_was_missed_before_an_operator_gave_up_does_not_count_as_chased() {
    let (mut rig, _) = lent();
    let resume = Some(ResumeOffer { revision: Revision(9), digest: None });
    rig.connect(4);
    rig.send(4, C2m::Register(Register { resume, ..register(0) }));
    rig.input(crate::state::Input::AcceptRevision { group: None, revision: Revision(9) });
    rig.die(4);
    rig.mail.clear();
    // Four contents that nobody lends, and of which the newcomer hears nothing.
    let sync = (10..14).map(|revision| commit(&mut rig, revision, revision.into())).last().expect("commits");
    lend(&mut rig, 1, sync);
    lend(&mut rig, 2, sync);
    assert_eq!(told(&mut rig, 3).expect("told").0, sync);
    assert!(!pending(&mut rig), "it has only begun to fetch");
}
