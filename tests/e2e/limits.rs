//! Callers with limits among processes: a peer that does not make the call, or stands still in it, costs the others
//! the limit and nothing else.

use crate::{
    fleet::{Fleet, config, sync_command},
    peer::Answer,
};
use pccl::MasterConfig;
use pccl_tests::spec::{Spec, StateSpec};
use std::time::{Duration, Instant};

/// The limit of whoever gives up, in milliseconds.
const LIMIT_MS: u64 = 1500;

/// Names all peers and gives the first one a limit.
fn limited(n: usize) -> Fleet {
    let names: Vec<String> = (0..n).map(|index| format!("name=node-{index}")).collect();
    let settings: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
    let settings: Vec<&[&str]> = settings.iter().map(|setting| &setting[..]).collect();
    let mut fleet = Fleet::with_each(config(), &settings);
    fleet[0].ask(format!("limit {LIMIT_MS}")).good();
    fleet
}

#[track_caller]
fn is_blamed(answer: &Answer, by: &str, whom: &str) {
    for part in [by, whom, "gave it up after 1.5 s, waiting for"] {
        assert!(answer.text.contains(part), "{part:?} is not in {answer:?}");
    }
    assert_eq!(answer.field("restored"), "true", "{answer:?}");
    assert_eq!(answer.field("remedy"), "Retry");
}

#[test]
fn a_peer_that_does_not_reduce() {
    let mut fleet = limited(3);
    // One that travels around the ring, one that does not.
    for (round, count) in [500_000, 10].into_iter().enumerate() {
        let spec = Spec::sum(count, round as u64);
        let began = Instant::now();
        for peer in &mut fleet[..2] {
            peer.send(format!("reduce {spec} 7 0"));
        }
        let (quitter, other) = (fleet[0].answer(), fleet[1].answer());
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(LIMIT_MS), "{took:?}");
        let (quitter, other) = (quitter.bad("TimedOut:CallTimeout"), other.bad("Aborted:CallTimeout"));
        assert_eq!(quitter.text.trim_start_matches("timed out: "), other.text, "one verdict for all");
        is_blamed(&quitter, "node-0", "node-2");
        is_blamed(&other, "node-0", "node-2");
        // The one that comes late learns of it, and all go on.
        fleet[0].ask("limit 60000").good();
        let answers = fleet.all(format!("reduce {spec} 7 20"));
        fleet.check(&[spec], &answers);
        assert_eq!(answers[2].field("errors"), "Aborted:CallTimeout");
        fleet[0].ask(format!("limit {LIMIT_MS}")).good();
    }
}

#[test]
fn a_peer_that_does_not_sync() {
    let mut fleet = limited(3);
    let states: Vec<String> =
        (0..3).map(|seed| sync_command(0, "popular", &[StateSpec::new("w", 1000, seed)])).collect();
    for (peer, command) in fleet.iter_mut().zip(&states).take(2) {
        peer.send(command);
    }
    let quitter = fleet[0].answer().bad("TimedOut:CallTimeout");
    is_blamed(&quitter, "node-0", "node-2");
    is_blamed(&fleet[1].answer().bad("Aborted:CallTimeout"), "node-0", "node-2");
    fleet[0].ask("limit 60000").good();
    let answers = fleet.sync(&states);
    let first = answers[0].clone().good();
    for answer in answers {
        assert_eq!(answer.good().field("digests"), first.field("digests"));
    }
}

#[test]
fn votes_for_the_whole_run_are_taken_back() {
    let mut fleet = limited(2);
    for command in ["topology", "pending", "optimize"] {
        let answer = fleet[0].ask(command).bad("TimedOut");
        assert!(answer.text.contains("was given up after 1.5s; it waited for"), "{answer:?}");
        assert!(answer.text.contains("node-1"), "{answer:?}");
        assert_eq!(answer.field("remedy"), "Retry");
    }
    // Nothing of them is left: whatever comes next goes its way.
    fleet[0].ask("limit 60000").good();
    fleet.reduce(Spec::sum(1000, 1));
    for command in ["pending", "optimize"] {
        fleet.all(command).into_iter().for_each(|answer| drop(answer.good()));
    }
    fleet.join(&[]);
    fleet.reduce(Spec::sum(1000, 2));
}

#[test]
fn a_peer_that_stands_still_in_the_transfer() {
    let mut fleet = limited(3);
    let spec = Spec { in_place: true, ..Spec::sum(4_000_000, 3) };
    fleet[2].ask("trap stop 1 frame begins").good();
    fleet.send(format!("reduce {spec} 1 0"));
    fleet[2].await_stop();
    let quitter = fleet[0].answer().bad("TimedOut:CallTimeout");
    assert_eq!(quitter.field("restored"), "true");
    assert!(quitter.text.contains("failed while transfer") && quitter.text.contains("node-2"), "{quitter:?}");
    let other = fleet[1].answer().bad("Aborted:CallTimeout");
    assert_eq!(other.field("restored"), "true");
    fleet[2].resume();
    let late = fleet[2].answer().bad("Aborted:CallTimeout");
    assert_eq!(late.field("restored"), "true");
    fleet[0].ask("limit 60000").good();
    fleet.reduce(spec);
}

/// The source has stopped, and who fetches from it would be patient for 36 s. The one with a limit ends that for all.
#[test]
fn a_sync_whose_source_stands_still() {
    let settings: &[&[&str]] = &[&["name=node-0"], &["name=node-1"], &["name=node-2"]];
    let config = MasterConfig { peer_timeout: Duration::from_secs(60), ..config() };
    let mut fleet = Fleet::with_each(config, settings);
    fleet[0].ask(format!("limit {LIMIT_MS}")).good();
    fleet[2].ask("trap stop 1 from master: SyncPlan").good();
    let command = |revision: u64, seed| sync_command(revision, "popular", &[StateSpec::new("w", 1000, seed)]);
    let states = [command(0, 1), command(0, 1), command(5, 2)];
    for (peer, command) in fleet.iter_mut().zip(&states) {
        peer.send(command);
    }
    fleet[2].await_stop();
    let quitter = fleet[0].answer().bad("TimedOut:CallTimeout");
    assert_eq!(quitter.field("restored"), "true");
    let told = Instant::now();
    let other = fleet[1].answer().bad("Aborted:CallTimeout");
    assert!(told.elapsed() < Duration::from_secs(20), "it went on to fetch: {other:?}");
    assert_eq!(other.field("restored"), "true");
    fleet[2].resume();
    fleet[2].answer().bad("Aborted:CallTimeout");
    fleet[0].ask("limit 60000").good();
    let answers = fleet.sync(&states);
    let first = answers[0].clone().good();
    for answer in answers {
        assert_eq!((answer.field("digests"), answer.number("revision")), (first.field("digests"), 5));
    }
}

#[test]
fn a_newcomer_that_nobody_lets_in() {
    let mut fleet = Fleet::new(1);
    let place = fleet.spawn(&["call-timeout-ms=1500"]);
    let answer = fleet[place].ask("connect").bad("TimedOut");
    assert_eq!(answer.field("remedy"), "Reconnect");
    assert!(answer.text.contains("not let in after 1.5s"), "{answer:?}");
    // It has left, and comes again.
    assert_eq!(fleet[0].ask("pending").good().field("pending"), "false");
    fleet[place].ask("limit 60000").good();
    fleet[place].send("connect");
    fleet[0].send("wait 2 0");
    fleet.answers().into_iter().for_each(|answer| drop(answer.good()));
    fleet.meet();
    fleet.reduce(Spec::sum(1000, 1));
}
