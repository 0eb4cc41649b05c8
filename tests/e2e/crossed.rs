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
fn calls_of_which_none_can_end() {
    const FIRST: &[&str] = &["node-0", "node-1"];
    const OTHER: &[&str] = &["node-2"];
    let mut fleet = named(3);
    let spec = Spec::sum(1000, 1);
    let reduce = format!("reduce {spec} 7 0");
    for (first, other, call) in [
        (reduce.clone(), sync(), "sync_shared_state"),
        (reduce, "topology".to_owned(), "update_topology"),
        ("optimize".to_owned(), "topology".to_owned(), "update_topology"),
    ] {
        fleet[..2].iter_mut().for_each(|peer| peer.send(&first));
        fleet[2].send(&other);
        let answers = fleet.answers();
        for answer in &answers[..2] {
            is_crossed(answer.clone(), FIRST, OTHER, call);
            if first.starts_with("reduce") {
                assert_eq!(answer.field("restored"), "true", "{answer:?}");
            }
        }
        match call {
            "sync_shared_state" => is_crossed(answers[2].clone(), OTHER, FIRST, "all_reduce"),
            _ => is_crossed(answers[2].clone(), FIRST, OTHER, call),
        }
        // Nothing of it is left.
        fleet.reduce(spec);
    }
}

/// Both wait for a third peer, which computes; the limit of one passes, and it begins its step again with a sync.
#[test]
fn whose_limit_passes_later_is_waited_for() {
    let mut fleet = named(3);
    fleet[1].ask(format!("limit {SHORT_MS}")).good();
    fleet[1].ask("topology").bad("TimedOut");
    fleet[1].ask("limit 0").good();
    fleet[0].ask(format!("limit {LONG_MS}")).good();
    fleet[0].send("topology");
    fleet[1].send(sync());
    assert_eq!(fleet[0].answer().bad("TimedOut").field("remedy"), "Retry");
    fleet[0].ask("limit 0").good();
    fleet[0].send(sync());
    fleet[2].send(sync());
    let answers = fleet.answers();
    let first = answers[0].clone().good();
    for answer in answers {
        assert_eq!(answer.good().field("digests"), first.field("digests"));
    }
}

/// Two have looked at the size of the world at different moments: one waits for a third peer, the other one has begun
/// its step.
#[test]
fn a_step_that_began_while_another_peer_waits_for_a_larger_world() {
    let mut fleet = named(2);
    fleet[0].send("wait 3 0");
    let answer = fleet[1].ask(sync()).bad("Aborted:WorldChanged");
    assert_eq!(answer.field("remedy"), "Retry", "{answer:?}");
    assert!(answer.text.contains("which is in wait_for_world and waits for more peers"), "{answer:?}");
    // It counts again, as the next step of a loop does.
    fleet[1].send("wait 3 0");
    let place = fleet.spawn(&[]);
    fleet[place].send("connect");
    fleet.answers().into_iter().for_each(|answer| drop(answer.good()));
    fleet.meet();
    fleet.reduce(Spec::sum(1000, 1));
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
