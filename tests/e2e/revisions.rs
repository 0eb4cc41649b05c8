//! Tests of who may commit which revision: trained peers, fresh ones, and the operator's choice.

use crate::{
    fleet::{Fleet, config, sync_command},
    peer::{Answer, WATCHDOG},
};
use pccl::MasterConfig;
use pccl_tests::spec::StateSpec;
use std::path::PathBuf;

fn state(seed: u64) -> [StateSpec; 1] {
    [StateSpec::new("weights", 256, seed)]
}

fn command(revision: u64, seed: u64) -> String {
    sync_command(revision, "popular", &state(seed))
}

/// A peer that says what it brings, and waits to be let in.
fn offer(fleet: &mut Fleet, revision: u64, seed: u64) -> usize {
    let place = fleet.spawn(&[]);
    fleet.peers[place].ask(format!("offer {revision} {}", state(seed)[0])).good();
    fleet.peers[place].send("connect");
    place
}

/// The members let in who waits, and all of them sync; they commit `revision` with the state of `seed`.
#[track_caller]
fn let_in_and_commit(fleet: &mut Fleet, members: usize, commands: &[String], (revision, seed): (usize, u64)) {
    for peer in &mut fleet.peers[..members] {
        peer.send("topology");
    }
    assert!(fleet.answers().iter().all(|answer| answer.ok));
    commit(fleet, commands, (revision, seed));
}

#[track_caller]
fn commit(fleet: &mut Fleet, commands: &[String], (revision, seed): (usize, u64)) {
    for answer in fleet.sync(commands) {
        let answer = answer.good();
        assert_eq!(
            (answer.number("revision"), answer.list("digests")),
            (revision, vec![state(seed)[0].digest()])
        );
    }
}

/// The first two sync in vain, for one cause.
#[track_caller]
fn fails(fleet: &mut Fleet, commands: [String; 2], cause: &str) -> Answer {
    for (peer, command) in fleet.peers.iter_mut().zip(&commands) {
        peer.send(command);
    }
    let answers: Vec<Answer> = fleet.peers[..2].iter_mut().map(|peer| peer.answer()).collect();
    for answer in &answers {
        let answer = answer.clone().bad(&format!("Aborted:{cause}"));
        assert_eq!((answer.field("remedy"), answer.field("restored")), ("WaitForPeers", "true"));
        assert_eq!(answer.text, answers[0].text);
    }
    answers[0].clone()
}

/// The case that has to go well: the run begins anew, fresh peers are faster than the one that was trained.
#[test]
fn fresh_peers_wait_for_the_trained_one() {
    let mut fleet = Fleet::new(2);
    let trained = offer(&mut fleet, 1000, 7);
    fleet.await_status("1 not let in yet");
    let answer = fails(&mut fleet, [command(0, 1), command(0, 1)], "ResumeWaits");
    assert!(answer.text.contains("offers revision 1000"), "{}", answer.text);
    fleet.await_status("offers revision 1000");
    assert_eq!(trained, 2);
    let_in_and_commit(&mut fleet, 2, &[command(0, 1), command(0, 1), command(1000, 7)], (1000, 7));
}

/// A peer that brings something else than it said is dropped, and the others go on.
#[test]
fn an_offer_is_verified() {
    let mut fleet = Fleet::new(2);
    offer(&mut fleet, 1000, 7);
    fleet.await_status("1 not let in yet");
    for peer in &mut fleet.peers[..2] {
        peer.send("topology");
    }
    assert!(fleet.answers().iter().all(|answer| answer.ok));
    let answers = fleet.sync(&[command(0, 1), command(0, 1), command(1000, 8)]);
    assert_eq!((answers[2].field("code"), answers[2].field("remedy")), ("FalseOffer", "GiveUp"));
    for answer in &answers[..2] {
        assert_eq!(answer.clone().good().number("revision"), 0);
    }
}

/// Two trained peers lose their master. At the next one they offer by themselves what they held last.
#[test]
fn who_has_synced_offers_that_after_a_restart_of_the_master() {
    let mut fleet = Fleet::new(2);
    commit(&mut fleet, &[command(5, 7), command(5, 7)], (5, 7));
    fleet.replace_master();
    // Two fresh ones are there first.
    let mut fresh = Fleet::at(&fleet.address);
    for _ in 0..2 {
        fresh.spawn(&[]);
    }
    fresh.send("connect");
    fresh.send("wait 2 0");
    for peer in &mut fresh.peers {
        peer.answer().good();
        peer.answer().good();
    }
    fleet.send("world");
    fleet.answers();
    fleet.send("connect");
    fleet.await_status("2 not let in yet");
    fails(&mut fresh, [command(0, 1), command(0, 1)], "ResumeWaits");
    fresh.send("topology");
    assert!(fresh.answers().iter().chain(&fleet.answers()).all(|answer| answer.ok));
    fresh.send(command(0, 1));
    fleet.send(command(6, 9));
    for answer in fresh.answers().iter().chain(&fleet.answers()) {
        assert_eq!(answer.clone().good().number("revision"), 6);
    }
}

fn with_operator(name: &str) -> (MasterConfig, PathBuf) {
    let admin = std::env::temp_dir().join(format!("pccl-e2e-{}-{name}.sock", std::process::id()));
    (MasterConfig { admin: Some(admin.clone()), ..config() }, admin)
}

#[test]
fn a_state_whose_last_holder_was_killed_is_given_up_by_an_operator_only() {
    let (config, admin) = with_operator("lost");
    let mut fleet = Fleet::with(config, 1, &[]);
    commit(&mut fleet, &[command(9, 7)], (9, 7));
    fleet.join(&[]);
    fleet.join(&[]);
    fleet.remove(0);
    assert!(fleet.all("wait 2 0").iter().all(|answer| answer.ok));
    let answer = fails(&mut fleet, [command(0, 1), command(0, 1)], "StateLost");
    for part in ["committed revision 9", "accept-revision 0"] {
        assert!(answer.text.contains(part), "{}", answer.text);
    }
    fleet.await_status("accept-revision 0");
    let done = pccl_master::accept_revision(&admin, None, 0, WATCHDOG).expect("obeyed");
    assert_eq!(done, "group 0 goes on from revision 0 or a newer one");
    commit(&mut fleet, &[command(0, 1), command(0, 1)], (0, 1));
    let error = pccl_master::accept_revision(&admin, None, 0, WATCHDOG).unwrap_err();
    assert!(error.contains("nothing has to be chosen"), "{error}");
}

#[test]
fn who_comes_too_late_waits_for_the_operator() {
    let (config, admin) = with_operator("late");
    let mut fleet = Fleet::with(config, 2, &[]);
    commit(&mut fleet, &[command(0, 1), command(0, 1)], (0, 1));
    offer(&mut fleet, 1000, 7);
    fleet.await_status("accept-revision 1000");
    for peer in &mut fleet.peers {
        peer.await_log("has gone on without it");
    }
    // The others go on, and nobody lets it in.
    for peer in &mut fleet.peers[..2] {
        peer.send("pending");
    }
    for peer in &mut fleet.peers[..2] {
        assert_eq!(peer.answer().good().field("pending"), "false");
    }
    pccl_master::accept_revision(&admin, None, 1000, WATCHDOG).expect("obeyed");
    fails(&mut fleet, [command(1, 2), command(1, 2)], "ResumeWaits");
    let_in_and_commit(&mut fleet, 2, &[command(1, 2), command(1, 2), command(1000, 7)], (1000, 7));
}
