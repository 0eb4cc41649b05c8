//! The protocol under every order of calls and every fault, and a naive one that must fail under the same.
//!
//! `PCCL_MODEL_FAULTS` sets how many faults a run may have; what there is without it keeps the tests short.

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
    match explore(world, 101, 20_000_000, |_| true) {
        Ok(states) => println!("{what}: {states} states"),
        Err(story) => panic!("{what}: {story}"),
    }
}

const COARSE: Detail = Detail { looks: false, tidies: false };
const TIDY: Detail = Detail { looks: false, tidies: true };
const FINE: Detail = Detail { looks: true, tidies: true };

#[test]
fn three_members_two_iterations_in_any_order() {
    holds("3 members, 2 iterations", ours::running(3, 2, Policy::AnySubset, faults(0), TIDY));
}

#[test]
fn three_members_one_iteration_with_a_fault_anywhere() {
    holds("3 members, 1 iteration", ours::running(3, 1, Policy::AnySubset, faults(1), COARSE));
    holds("3 members, majority", ours::running(3, 1, Policy::StrictMajority, faults(1), COARSE));
}

#[test]
fn two_members_two_iterations_with_a_fault_anywhere() {
    holds("2 members, 2 iterations", ours::running(2, 2, Policy::AnySubset, faults(1), FINE));
}

#[test]
fn members_begin_a_run() {
    holds("2 members begin", ours::founding(2, 1, faults(0), FINE));
    holds("3 members begin", ours::founding(3, 0, faults(0), COARSE));
}

/// What is wrong with the naive protocol, as far as it is wanted.
fn found(ranks: u8, present: u8, faults: u8, wanted: &[&str]) {
    let found = RefCell::new(BTreeSet::new());
    let states = explore(naive::world(ranks, present, 2, faults), 0, 3_000_000, |world| {
        for name in &world.ghost.found {
            if found.borrow_mut().insert(*name) {
                println!("{name}:\n{}\n", world.story());
            }
        }
        !wanted.iter().all(|name| found.borrow().contains(name))
    });
    println!("{ranks} ranks: {states:?} states, {:?}", found.borrow());
    assert!(wanted.iter().all(|name| found.borrow().contains(name)), "{wanted:?} are not all found");
}

#[test]
fn the_naive_protocol_fails_as_known() {
    // Two winners, a stale flag, and arrivals of the last round need no fault at all.
    found(2, 2, 0, &["R1", "R2", "R3"]);
    // A winner that ends in the middle.
    found(2, 2, 1, &["R7", "R8"]);
    // One rank counted twice.
    found(4, 1, 1, &["R4"]);
    // Halves that do not see each other.
    found(4, 2, 2, &["R6"]);
}
