//! The protocol under every order of calls and every fault, and a naive one that must fail under the same.
//!
//! Three members over two iterations, with one fault at every call. Usually a look at who has arrived is one step and
//! keys that nobody needs stay; with `PCCL_TEST_FULL` every call is a step. `PCCL_MODEL_FAULTS` sets how many faults a
//! run may have.

mod explorer;
mod naive;
mod ours;
mod world;

use explorer::{Search, explore};
use ours::Detail;
use pccl_iteration::Policy;
use std::{cell::RefCell, collections::BTreeSet};

/// Faults in one run.
fn faults(usual: u8) -> u8 {
    std::env::var("PCCL_MODEL_FAULTS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn holds(what: &str, world: world::World<ours::Participant>) {
    let search = Search { breadth_first: false, probe: 101, limit: 200_000_000 };
    match explore(world, &search, |_| true) {
        Ok(states) => println!("{what}: {states} states"),
        Err(story) => panic!("{what}: {story}"),
    }
}

const COARSE: Detail = Detail { looks: false, tidies: false };
const FINE: Detail = Detail { looks: true, tidies: true };

/// How much is seen where it takes long.
fn usual_detail() -> Detail {
    if std::env::var_os("PCCL_TEST_FULL").is_some() { FINE } else { COARSE }
}

#[test]
fn three_members_two_iterations_with_a_fault_anywhere() {
    holds("3 members", ours::running(3, 2, Policy::AnySubset, faults(1), usual_detail()));
}

#[test]
fn three_members_of_which_most_must_be_there() {
    holds("3 members, majority", ours::running(3, 2, Policy::StrictMajority, faults(1), usual_detail()));
}

#[test]
fn three_members_in_any_order_of_single_calls() {
    holds("3 members, no fault", ours::running(3, 2, Policy::AnySubset, faults(0), FINE));
}

#[test]
fn two_members_two_iterations_with_a_fault_anywhere() {
    holds("2 members", ours::running(2, 2, Policy::AnySubset, faults(1), FINE));
}

#[test]
fn members_begin_a_run() {
    holds("2 members begin", ours::founding(2, 1, faults(1), FINE));
    holds("3 members begin", ours::founding(3, 0, faults(1), usual_detail()));
}

/// Looks for the faults of the naive protocol, as far as they are wanted.
fn found(ranks: u8, present: u8, faults: u8, wanted: &[&str]) {
    let found = RefCell::new(BTreeSet::new());
    let search = Search { breadth_first: true, probe: 0, limit: 3_000_000 };
    let states = explore(naive::world(ranks, present, 2, faults), &search, |world| {
        for name in &world.ghost().found {
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
