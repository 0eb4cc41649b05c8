//! The protocol under every order of calls and every fault, and a naive one that must fail under the same.
//!
//! `PCCL_MODEL_FAULTS` sets how many faults a run may have; the default keeps the tests short.

mod explorer;
mod naive;
mod ours;

use explorer::explore;
use ours::Detail;
use pccl_iteration::Policy;
use std::{cell::RefCell, collections::BTreeSet};

/// Faults in one run.
fn faults(usual: u8) -> u8 {
    std::env::var("PCCL_MODEL_FAULTS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn holds(what: &str, world: explorer::World<ours::Participant>) {
    match explore(world, 101, |_| true) {
        Ok(states) => println!("{what}: {states} states"),
        Err(story) => panic!("{what}: {story}"),
    }
}

const COARSE: Detail = Detail { looks: false, tidies: false };
const TIDY: Detail = Detail { looks: false, tidies: true };
const FINE: Detail = Detail { looks: true, tidies: true };

#[test]
fn three_members_two_iterations() {
    holds("3 members, 2 iterations", ours::running(3, 2, Policy::AnySubset, faults(1), COARSE));
}

#[test]
fn three_members_two_iterations_tidy() {
    holds("3 members, 2 iterations, tidy", ours::running(3, 2, Policy::AnySubset, faults(1) - 1, TIDY));
}

#[test]
fn two_members_two_iterations_more_faults() {
    holds("2 members, 2 iterations", ours::running(2, 2, Policy::AnySubset, faults(1) + 1, FINE));
}

#[test]
fn three_members_with_a_majority() {
    holds("3 members, majority", ours::running(3, 1, Policy::StrictMajority, faults(1), COARSE));
}

#[test]
fn members_begin_a_run() {
    holds("2 members begin", ours::founding(2, 1, faults(1), FINE));
    holds("3 members begin", ours::founding(3, 0, faults(1) - 1, COARSE));
}

/// What is wrong with the naive protocol.
fn found(ranks: u8, rounds: u8, faults: u8, wanted: &[&str]) -> BTreeSet<&'static str> {
    let found = RefCell::new(BTreeSet::new());
    let states = explore(naive::world(ranks, rounds, faults), 0, |world| {
        for name in &world.ghost.found {
            if found.borrow_mut().insert(*name) {
                println!("{name}:\n{}\n", world.story());
            }
        }
        !wanted.iter().all(|name| found.borrow().contains(name))
    });
    println!("{ranks} ranks: {states:?} states, {:?}", found.borrow());
    found.into_inner()
}

#[test]
fn the_naive_protocol_fails_as_known() {
    let three = ["R1", "R2", "R3", "R6", "R7", "R8"];
    let of_three = found(3, 2, 2, &three);
    assert!(three.iter().all(|name| of_three.contains(name)), "{of_three:?}");
    let of_four = found(4, 1, 2, &["R4", "R6"]);
    assert!(of_four.contains("R4") && of_four.contains("R6"), "{of_four:?}");
}
