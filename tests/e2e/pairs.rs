//! Sends and receives between processes, and deaths of one of the two and of others.

use crate::{
    fleet::{Fleet, full},
    peer::Answer,
};
use pccl_tests::{
    collectives::{bytes, input},
    pattern,
    spec::Spec,
};

/// Many frames.
const LARGE: usize = 600_000;

/// Tells `from` to send and `to` to receive, both by their places in the fleet.
fn begin(fleet: &mut Fleet, (from, to): (usize, usize), count: usize, tag: u64) {
    let id = |fleet: &Fleet, place: usize| fleet[place].id.clone().expect("connected");
    let (sender, receiver) = (id(fleet, from), id(fleet, to));
    fleet[to].send(format!("recv {sender} {count} {tag}"));
    fleet[from].send(format!("send {receiver} {count} {tag}"));
}

/// Checks that both have what the sender gave.
#[track_caller]
fn check(fleet: &mut Fleet, (from, to): (usize, usize), count: usize) {
    let digest = pattern::digest(&bytes(&input(fleet[from].index, count)));
    for (place, own) in [(from, 0), (to, 1)] {
        let answer = fleet[place].answer().good();
        let seen = (answer.number("participants"), answer.number("own"), answer.field("digests").to_owned());
        assert_eq!(seen, (2, own, digest.to_string()), "{answer:?}");
    }
}

#[test]
fn each_may_send_to_each() {
    // Of ten most have neither ring nor mesh between them.
    for (peers, pairs) in [(2, vec![(0, 1), (1, 0)]), (3, vec![(0, 2)]), (10, vec![(0, 5), (9, 2), (5, 0)])] {
        let mut fleet = Fleet::new(peers);
        for (number, count) in [1, 1000, LARGE].into_iter().enumerate() {
            for pair in &pairs {
                begin(&mut fleet, *pair, count, number as u64);
                check(&mut fleet, *pair, count);
            }
        }
        fleet.reduce(Spec::sum(1000, 1));
    }
}

/// Places at which one of the two dies, and whether it is the sender.
const POINTS: [(&str, usize, bool); 6] = [
    ("to master: Initiate", 1, true),
    ("from master: Commence", 1, true),
    ("from master: Commence", 1, false),
    ("frame begins, stage 0 of 1", 1, false),
    ("frame complete, stage 0 of 1", 2, false),
    ("to master: Complete", 1, false),
];

fn assert_names(answer: Answer, causes: &[&str], id: &str) {
    let answer = answer.bad(causes[causes.len() - 1]);
    assert_eq!(answer.field("restored"), "true", "{answer:?}");
    assert!(answer.text.contains(&id[..8]), "the dead one is not named: {answer:?}");
}

#[test]
fn the_other_one_gets_a_verdict_when_one_of_the_two_dies() {
    let mut fleet = Fleet::new(4);
    for (case, (point, nth, sender_dies)) in POINTS.into_iter().enumerate() {
        if !full() && case % 2 == 1 {
            continue;
        }
        let pair = (case % 4, (case + 2) % 4);
        let (victim, other) = if sender_dies { pair } else { (pair.1, pair.0) };
        fleet[victim].ask(format!("trap kill {nth} {point}")).good();
        begin(&mut fleet, pair, LARGE, 5);
        fleet[victim].await_death();
        let (id, survivor) = (fleet[victim].id.clone().expect("connected"), fleet[other].id.clone());
        // A peer that had not voted yet is gone before anything began.
        let cause = if point.contains("Initiate") { "Aborted:WorldChanged" } else { "Aborted:PeerDied" };
        let answer = fleet[other].answer();
        assert_names(answer, &[cause], &id);
        fleet.remove(victim);
        // The tag is free, and everybody is there.
        fleet.join(&[]);
        let place = fleet.iter().position(|peer| peer.id == survivor).expect("lives");
        let next = (place, (place + 1) % 4);
        begin(&mut fleet, next, 1000, 5);
        check(&mut fleet, next, 1000);
        fleet.reduce(Spec::sum(1000, case as u64));
    }
}

#[test]
fn the_death_of_a_third_is_nothing_to_the_two() {
    let mut fleet = Fleet::new(10);
    let (from, to) = (fleet[1].id.clone().expect("connected"), fleet[6].id.clone().expect("connected"));
    // The connection between the two is there.
    begin(&mut fleet, (1, 6), 10, 0);
    check(&mut fleet, (1, 6), 10);
    // The receiver holds the transfer up in its middle, and somebody else dies meanwhile.
    fleet[6].ask("trap stop 2 frame begins, stage 0 of 1").good();
    begin(&mut fleet, (1, 6), LARGE, 1);
    fleet[6].await_stop();
    fleet[3].kill();
    fleet.remove(3);
    fleet[6 - 1].resume();
    let place = |fleet: &Fleet, id: &str| {
        fleet.iter().position(|peer| peer.id.as_deref() == Some(id)).expect("lives")
    };
    let pair = (place(&fleet, &from), place(&fleet, &to));
    check(&mut fleet, pair, LARGE);
    fleet.reduce(Spec::sum(1000, 1));
}
