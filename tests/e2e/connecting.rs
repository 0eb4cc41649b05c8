//! A master dies while a peer connects: `connect` goes on, or begins anew, and returns as if the master had lived. With
//! a journal, and with masters that stand by.

use crate::{
    fleet::{Fleet, config},
    journal::Place,
    peer::WATCHDOG,
    standby::Run,
};
use pccl::MasterConfig;
use pccl_tests::{pattern::mix, spec::Spec};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Starts a process that knows all masters, and does not connect yet.
fn spawn(run: &mut Run) -> usize {
    let masters = run.masters();
    let acting = std::mem::replace(&mut run.fleet.address, masters);
    let place = run.fleet.spawn(&[]);
    run.fleet.address = acting;
    place
}

/// The members let the newcomer in; nobody gets an error.
fn let_in(fleet: &mut Fleet) {
    let newcomer = fleet.len() - 1;
    (0..newcomer).for_each(|place| fleet[place].send(format!("wait {} 0", newcomer + 1)));
    for answer in fleet.answers() {
        answer.good();
    }
    fleet.meet();
    fleet.reduce(Spec::sum(1000, 1));
}

/// The newcomer goes again, so that all cases are alike.
fn leave(fleet: &mut Fleet) {
    let newcomer = fleet.len() - 1;
    fleet.remove(newcomer);
    fleet.reduce(Spec::sum(1000, 2));
}

/// The master dies while the newcomer stands at this point of its call.
fn die_at(run: &mut Run, point: &str) {
    let newcomer = spawn(run);
    run.fleet[newcomer].ask(format!("trap stop 1 {point}")).good();
    run.fleet[newcomer].send("connect");
    if point.contains("Admitted") {
        (0..newcomer).for_each(|place| run.fleet[place].send(format!("wait {} 0", newcomer + 1)));
    }
    run.fleet[newcomer].await_stop();
    run.kill_master();
    run.fleet[newcomer].resume();
    run.recover_master();
    if point.contains("Admitted") {
        for answer in run.fleet.answers() {
            answer.good();
        }
        run.fleet.meet();
    } else {
        let_in(&mut run.fleet);
    }
    leave(&mut run.fleet);
}

/// The master dies while the newcomer waits to be let in, and nobody does yet.
fn die_while_pending(run: &mut Run) {
    let newcomer = spawn(run);
    run.fleet[newcomer].send("connect");
    await_pending(&run.fleet.address);
    run.kill_master();
    run.recover_master();
    let_in(&mut run.fleet);
    leave(&mut run.fleet);
}

/// Waits until somebody waits to be let in.
fn await_pending(master: &str) {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let status =
            pccl_master::query_status(master, crate::run_key().as_ref(), WATCHDOG).expect("a status");
        if status.peers.iter().any(|peer| peer.stage == pccl_protocol::PeerStage::Pending) {
            return;
        }
        assert!(Instant::now() < deadline, "nobody waits: {status}");
        pccl_testkit::barrier::look_again();
    }
}

/// The master dies at any moment of the call.
fn die_at_any_moment(run: &mut Run, round: u64) {
    let newcomer = spawn(run);
    run.fleet[newcomer].send("connect");
    // Not a wait for anything: the moment of death is to be any.
    thread::sleep(Duration::from_micros(mix(round) % 30_000));
    run.kill_master();
    run.recover_master();
    let_in(&mut run.fleet);
    leave(&mut run.fleet);
}

fn die_at_each_point(run: &mut Run) {
    for point in ["to master: Register", "from master: Registered", "from master: Admitted"] {
        die_at(run, point);
    }
    die_while_pending(run);
    let rounds = if crate::fleet::full() { 20 } else { 4 };
    (0..rounds).for_each(|round| die_at_any_moment(run, round));
}

#[test]
fn whoever_connects_waits_for_a_master_with_a_journal() {
    let place = Place::new("connecting");
    let config = MasterConfig { journal: Some(place.path()), ..config() };
    die_at_each_point(&mut Run::with(config, 2, 0));
}

#[test]
fn whoever_connects_finds_the_standby_that_takes_over() {
    let config = MasterConfig { accept_standbys: true, ..config() };
    die_at_each_point(&mut Run::with(config, 3, 1));
}

/// The master's knowledge of the newcomer is lost with its journal. The newcomer registers with the next master inside
/// its call, while members are told.
#[test]
fn whoever_waits_to_be_let_in_begins_anew_in_another_run() {
    let place = Place::new("connecting-anew");
    let config = MasterConfig { journal: Some(place.path()), ..config() };
    let mut run = Run::with(config, 1, 0);
    let newcomer = spawn(&mut run);
    run.fleet[newcomer].send("connect");
    await_pending(&run.fleet.address);
    run.kill_master();
    std::fs::remove_file(place.path().join("journal")).expect("there is one");
    run.recover_master();
    run.fleet[newcomer].answer().good();
    let told = run.fleet[0].ask("pending");
    assert_eq!(told.kind(), "MasterLost", "{told:?}");
}
