//! Calls that wait for each other among processes fail for all who are in them, and those for which somebody may still
//! come wait on.

use crate::{
    fleet::{Fleet, config, sync_command},
    peer::Answer,
};
use pccl_tests::spec::{Spec, StateSpec};

/// In milliseconds: shorter than calls that wait for each other are left alone, and longer.
const SHORT_MS: u64 = 1500;
const LONG_MS: u64 = 8000;

fn named(n: usize) -> Fleet {
    let names: Vec<String> = (0..n).map(|index| format!("name=node-{index}")).collect();
    let settings: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
    let settings: Vec<&[&str]> = settings.iter().map(|setting| &setting[..]).collect();
    Fleet::with_each(config(), &settings)
}

fn sync() -> String {
    sync_command(0, "popular", &[StateSpec::new("w", 1000, 1)])
}

/// One who waits in the verdict's operation and one who is in another call, both named.
#[track_caller]
fn is_crossed(answer: Answer, waits: &[&str], other: &[&str], call: &str) {
    let answer = answer.bad("Aborted:MismatchedCall");
    assert_eq!(answer.field("remedy"), "GiveUp", "{answer:?}");
    let (first, rest) = answer.text.split_once(" waits in it for ").expect("who waits");
    let (second, call_of) = rest.split_once(", which is in ").expect("who is elsewhere");
    // The culprits, both of them, stand in front of it in parentheses.
    let first = first.rsplit_once(") (").map_or(first, |(_, first)| first);
    let is_one_of = |text: &str, names: &[&str]| names.iter().any(|name| text.contains(name));
    assert!(is_one_of(second, other) && is_one_of(first, waits), "{answer:?}");
    assert!(call_of.starts_with(&format!("{call} and waits there for ")), "{answer:?}");
}

#[test]
fn a_reduction_beside_a_sync_or_a_topology_call() {
    const REDUCE: &[&str] = &["node-0", "node-1"];
    const OTHER: &[&str] = &["node-2"];
    let mut fleet = named(3);
    let spec = Spec::sum(1000, 1);
    for (command, call) in [(sync(), "sync_shared_state"), ("topology".to_owned(), "update_topology")] {
        for peer in &mut fleet[..2] {
            peer.send(format!("reduce {spec} 7 0"));
        }
        fleet[2].send(&command);
        let answers = fleet.answers();
        for answer in &answers[..2] {
            assert_eq!(answer.field("restored"), "true", "{answer:?}");
            is_crossed(answer.clone(), REDUCE, OTHER, call);
        }
        match call {
            "sync_shared_state" => is_crossed(answers[2].clone(), OTHER, REDUCE, "all_reduce"),
            _ => is_crossed(answers[2].clone(), REDUCE, OTHER, call),
        }
        // Nothing of it is left.
        fleet.reduce(spec);
    }
}

#[test]
fn a_sync_that_waits_for_who_comes_late() {
    let mut fleet = named(2);
    fleet[1].send(sync());
    // It gives the reduction up in time, and is then in nothing that keeps it from the sync.
    fleet[0].ask(format!("limit {SHORT_MS}")).good();
    fleet[0].ask(format!("reduce {} 7 0", Spec::sum(1000, 1))).bad("TimedOut:CallTimeout");
    fleet[0].ask(format!("limit {LONG_MS}")).good();
    fleet[0].ask("pending").bad("TimedOut");
    fleet[0].ask("limit 60000").good();
    let late = fleet[0].ask(sync()).good();
    assert_eq!(fleet[1].answer().good().field("digests"), late.field("digests"));
}

#[test]
fn a_reduction_beside_a_query_waits_for_another_thread() {
    let mut fleet = named(2);
    let spec = Spec::sum(1000, 1);
    fleet[0].send(format!("reduce {spec} 7 0"));
    fleet[1].ask(format!("limit {LONG_MS}")).good();
    fleet[1].ask("pending").bad("TimedOut");
    fleet[1].send(format!("reduce {spec} 7 0"));
    let answers = fleet.answers();
    fleet.check(&[spec], &answers);
}
