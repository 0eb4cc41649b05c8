//! Peers that nobody can dial: everything works as without, over connections that they have made.

use crate::{
    fleet::{Fleet, config, full, sync_command},
    networks::{self, Networks},
    peer::Peer,
};
use pccl::{MasterConfig, RelayConfig, RunKey};
use pccl_tests::spec::{Spec, StateSpec};

const HIDDEN: &[&str] = &["outbound=1"];
const OPEN: &[&str] = &["outbound=0"];

/// With a run key and without.
fn configs() -> [MasterConfig; 2] {
    let key = RunKey::from_bytes(*b"\xf2key of a run, all of its bytes.");
    [None, Some(key)].map(|run_key| MasterConfig { run_key, ..config() })
}

/// A world of peers of which each has settings of its own, and logs who connects to it.
fn world(config: MasterConfig, settings: &[&[&str]]) -> Fleet {
    let mut fleet = Fleet::empty(config);
    for settings in settings {
        fleet.spawn(settings);
    }
    fleet.all("trap kill 1 no such line").into_iter().for_each(|answer| drop(answer.good()));
    fleet.send("connect");
    fleet.send(format!("wait {} 0", settings.len()));
    for peer in &mut *fleet {
        peer.answer().good();
        peer.answer().good();
    }
    fleet.meet();
    fleet
}

/// Whether somebody has dialed this peer for data.
fn was_dialed(peer: &Peer) -> bool {
    peer.log().contains("connection 0 from peer")
}

#[test]
fn operations_and_syncs_go_over_connections_that_they_have_made() {
    for config in configs() {
        let mut fleet = world(config, &[OPEN, HIDDEN, OPEN, HIDDEN]);
        for peer in [1, 3] {
            fleet[peer].await_log("this peer is outbound-only, as its program says");
        }
        for spec in [Spec::sum(1000, 1), Spec::sum(3_000_000, 2)] {
            fleet.reduce(spec);
        }
        // Both of those that hold the state have to be asked, and one who fetches cannot be dialed either.
        let tensor = |seed| [StateSpec::new("a", 3_000_000, seed)];
        let commands = [1, 1, 2, 1].map(|seed| sync_command(0, "popular", &tensor(seed)));
        let digest = tensor(1)[0].digest();
        for answer in fleet.sync(&commands) {
            assert_eq!(answer.good().list("digests"), std::slice::from_ref(&digest));
        }
        let commands = [3, 4, 5, 4].map(|seed| sync_command(1, "popular", &tensor(seed)));
        let digest = tensor(4)[0].digest();
        for answer in fleet.sync(&commands) {
            assert_eq!(answer.good().list("digests"), std::slice::from_ref(&digest));
        }
        fleet.all("optimize").into_iter().for_each(|answer| {
            // The way between the two cannot be measured, in both directions.
            assert_eq!(answer.good().number("unmeasured"), 2);
        });
        fleet.reduce(Spec::sum(2_000_000, 4));
        assert_eq!([0, 1, 2, 3].map(|peer| was_dialed(&fleet[peer])), [true, false, true, false]);
    }
}

#[test]
fn who_separates_them_is_missed_and_replaced() {
    let mut fleet = Fleet::with_each(config(), &[OPEN, HIDDEN, OPEN, HIDDEN]);
    fleet[2].kill();
    fleet.remove(2);
    fleet.await_status(": 2 peers in 1 group");
    // Of the two the one goes that came last, and waits to be let in again.
    let answers = fleet.all("wait 2 0");
    let gone: Vec<usize> = (0..3).filter(|at| !answers[*at].ok).collect();
    let [gone] = gone[..] else { panic!("{answers:?}") };
    assert!(gone > 0 && answers[gone].text.contains("2 of 3 peers are outbound-only"), "{answers:?}");
    fleet[gone].send("connect");
    let place = fleet.spawn(OPEN);
    fleet[place].send("connect");
    for at in (0..3).filter(|at| *at != gone) {
        fleet[at].send("wait 4 0");
    }
    // It may be let in before the other one has come back, and then has to wait for that as well.
    fleet[place].answer().good();
    fleet[place].send("wait 4 0");
    for peer in &mut *fleet {
        peer.answer().good();
    }
    fleet.meet();
    fleet.reduce(Spec::sum(100_000, 3));
}

/// Two that nobody can dial, and nobody else, train while one of them dies and is replaced. The newcomer fetches the
/// state from the other one, which it cannot dial either.
#[test]
fn two_that_nobody_can_dial_train_over_the_relay_of_the_master() {
    let relay = Some(RelayConfig { port: 0, ..RelayConfig::new(1000) });
    for config in configs() {
        let key = config.run_key.clone();
        let mut fleet = Fleet::empty(MasterConfig { relay, ..config });
        (0..2).for_each(|_| assert!(fleet.spawn(HIDDEN) < 2));
        // It dies in the middle of an all-reduce.
        fleet[1].ask("trap kill 20 frame begins").good();
        (0..2).for_each(|place| begin_training(&mut fleet, place, 2));
        fleet[1].await_death();
        let replacement = fleet.spawn(HIDDEN);
        begin_training(&mut fleet, replacement, 2);
        fleet.remove(1);
        if key.is_none() {
            fleet.await_status("at most 1000 Mbit/s");
        }
        let ends: Vec<_> = fleet
            .iter_mut()
            .map(|peer| {
                assert!(matches!(peer.note().as_str(), "note fresh"));
                peer.answer().good()
            })
            .collect();
        for end in &ends {
            assert_eq!((end.field("step"), end.field("right")), (&*STEPS.to_string(), "true"));
            assert_eq!(end.field("digest"), ends[0].field("digest"));
        }
        for peer in &mut *fleet {
            assert!(peer.log().contains("goes through the relay of the master"), "{}", peer.log());
        }
    }
}

/// With others between them nobody uses it.
#[test]
fn nothing_is_relayed_where_a_ring_goes_without() {
    let relay = Some(RelayConfig { port: 0, ..RelayConfig::new(1) });
    let mut fleet = world(MasterConfig { relay, ..config() }, &[HIDDEN, HIDDEN, OPEN, OPEN]);
    fleet.reduce(Spec::sum(100_000, 1));
    fleet.await_status("nobody uses it");
}

#[test]
fn a_master_may_want_peers_that_can_be_dialed() {
    let mut fleet = Fleet::empty(MasterConfig { require_reachable: true, ..config() });
    let place = fleet.spawn(HIDDEN);
    let answer = fleet[place].ask("connect").bad("Refused");
    assert!(answer.text.contains("--require-reachable"), "{answer:?}");
}

/// Three hosts of which two only dial out, one of these behind a NAT that rewrites ports, train while a peer behind the
/// NAT and one that can be dialed die and are replaced. Nobody says what its network is like: the master finds out.
#[test]
fn three_hosts_of_which_two_only_dial_out_train_to_the_same_state() {
    let [open, keyed] = configs();
    for config in if full() { vec![open, keyed] } else { vec![keyed] } {
        match Networks::up() {
            Ok(networks) => train_across(&networks, config),
            Err(why) => return eprintln!("skipped, this machine does not have what it takes: {why}"),
        }
    }
}

const STEPS: u32 = 24;

fn begin_training(fleet: &mut Fleet, place: usize, peers: u32) {
    let file = fleet.file_of(place);
    fleet[place].send(format!("train {} {STEPS} {peers}", file.display()));
}

fn train_across(networks: &Networks, config: MasterConfig) {
    let key = config.run_key.clone();
    let at = |host| networks.command(host, key.as_ref());
    let config = MasterConfig { listen: "0.0.0.0:48148".into(), ..config };
    let address = format!("{}:48148", Networks::address(networks::OPEN));
    let mut fleet = Fleet::with_master_by(at(networks::OPEN), &address, config);
    let hosts = [networks::OPEN, networks::WALLED, networks::HIDDEN, networks::OPEN];
    for host in hosts {
        fleet.spawn_by(at(host), &[]);
    }
    // Each dies in the middle of an all-reduce.
    fleet[2].ask("trap kill 20 frame begins").good();
    fleet[3].ask("trap kill 60 frame begins").good();
    (0..4).for_each(|place| begin_training(&mut fleet, place, 4));
    for (victim, host) in [(2, networks::HIDDEN), (3, networks::OPEN)] {
        fleet[victim].await_death();
        let replacement = fleet.spawn_by(at(host), &[]);
        begin_training(&mut fleet, replacement, 4);
    }
    fleet.remove(3);
    fleet.remove(2);
    let ends: Vec<_> = fleet
        .iter_mut()
        .map(|peer| {
            assert!(matches!(peer.note().as_str(), "note fresh"));
            peer.answer().good()
        })
        .collect();
    for end in &ends {
        assert_eq!((end.field("step"), end.field("right")), (&*STEPS.to_string(), "true"));
        assert_eq!(end.field("digest"), ends[0].field("digest"));
    }
    for (place, is_hidden) in [(0, false), (1, true), (2, true), (3, false)] {
        let text = "this peer is outbound-only, since nobody reaches it at";
        assert_eq!(fleet[place].log().contains(text), is_hidden, "{}", fleet[place].log());
    }
}
