//! All-reduces in segments, with a death at each named point in one of them: the survivors go on by themselves, and
//! every byte of every segment is what its contributors give.

use crate::{
    fleet::{Fleet, full},
    peer::{Answer, Peer},
};
use pccl::{Block, Scheme};
use pccl_tests::{
    pattern,
    spec::{Spec, Way},
};

/// Eight segments of three frames each, one for each rank, and one that is shorter.
const COUNT: usize = 1_250_000;
const SEGMENT_BYTES: usize = 600_000;
const SEGMENTS: usize = 9;

/// Checks what all have answered: the same of each segment, and in each of them what its contributors give. Returns
/// their numbers.
#[track_caller]
fn check(fleet: &Fleet, spec: &Spec, answers: &[Answer]) -> Vec<usize> {
    for answer in answers {
        assert_eq!(answer.field("restored"), "true", "what is not done has changed: {answer:?}");
        assert_eq!(answer.field("segments"), answers[0].field("segments"), "peers differ");
        assert_eq!(answer.field("retries"), answers[0].field("retries"), "peers differ");
    }
    let segments = answers[0].list("segments");
    let mut numbers = Vec::new();
    for segment in &segments {
        let words: Vec<&str> = segment.split(':').collect();
        let &[start, end, algorithm, digest, ids] = words.as_slice() else { panic!("no segment: {segment}") };
        let (start, end): (usize, usize) = (start.parse().expect("a number"), end.parse().expect("a number"));
        let order: Vec<usize> = ids.split('+').map(|id| fleet.index_of(id)).collect();
        let number = start / (SEGMENT_BYTES / spec.data_type.size_bytes());
        let expected = spec.segment((number as u64, start..end), &order, Way::of(algorithm, &[]));
        assert_eq!(pattern::digest(&expected), digest, "elements {start} to {end} of peers {order:?}");
        numbers.push(order.len());
    }
    numbers
}

/// Points of a call, and how many segments have the victim for sure when it dies there.
const POINTS: [(&str, usize, usize); 10] = [
    ("to master: Initiate", 5, 1),
    ("from master: Commence", 5, 1),
    ("frame begins, stage 0 of 4", 5, 1),
    // Quantised: two frames of each segment.
    ("frame complete, stage 1 of 4", 5, 1),
    ("frame complete, stage 2 of 4", 5, 1),
    ("frame complete, stage 3 of 4", 6, 1),
    ("to master: Complete", 4, 1),
    // The first one is how all cut.
    ("from master: Outcome", 1, 0),
    ("from master: Outcome", 2, 1),
    ("from master: Outcome", 6, 5),
];

#[test]
fn a_death_at_each_point_of_a_segment() {
    let mut fleet = Fleet::new(3);
    let quantised = Scheme::BlockAffineU8(Block::B256);
    for (case, (point, nth, least)) in POINTS.into_iter().enumerate() {
        let victims = if full() { 0..3 } else { case % 3..case % 3 + 1 };
        for victim in victims {
            let spec = Spec {
                in_place: case % 3 != 2,
                op: if case % 2 == 0 { pccl::ReduceOp::Avg } else { pccl::ReduceOp::Sum },
                quantisation: (case % 4 == 3).then(|| quantised.into()),
                ..Spec::sum(COUNT, case as u64)
            };
            fleet[victim].ask(format!("trap kill {nth} {point}")).good();
            fleet.send(format!("segments {spec} 7 {SEGMENT_BYTES}"));
            fleet[victim].await_death();
            fleet.remove(victim);
            let answers: Vec<Answer> = fleet.answers().into_iter().map(Answer::good).collect();
            let numbers = check(&fleet, &spec, &answers);
            let what = format!("death of peer {victim} at {nth}. {point:?}: {numbers:?}");
            let with_it = numbers.iter().filter(|number| **number == 3).count();
            assert_eq!(numbers.len(), SEGMENTS, "{what}");
            assert!((least..SEGMENTS).contains(&with_it), "{what}");
            assert_eq!(numbers[SEGMENTS - 1], 2, "{what}");
            fleet.join(&[]);
            let answers = fleet.all(format!("segments {spec} 7 {SEGMENT_BYTES}"));
            assert_eq!(check(&fleet, &spec, &answers), [3; SEGMENTS]);
        }
    }
}

/// Two die one after the other in the same call; over the mesh, too.
#[test]
fn two_deaths_in_one_call() {
    let mut fleet = Fleet::new(4);
    for (case, schedule) in ["automatic", "pairwise"].into_iter().enumerate() {
        let spec = Spec { op: pccl::ReduceOp::Avg, ..Spec::sum(COUNT, case as u64) };
        fleet[1].ask("trap kill 2 from master: Outcome").good();
        fleet[3].ask("trap kill 5 from master: Outcome").good();
        fleet.send(format!("segments {spec} 7 {SEGMENT_BYTES} {schedule}"));
        for victim in [3, 1] {
            Peer::await_death(&mut fleet[victim]);
            fleet.remove(victim);
        }
        let answers: Vec<Answer> = fleet.answers().into_iter().map(Answer::good).collect();
        let numbers = check(&fleet, &spec, &answers);
        assert_eq!((numbers[0], numbers[SEGMENTS - 1]), (4, 2), "{numbers:?}");
        fleet.join(&[]);
        fleet.join(&[]);
    }
}

/// Nobody else is left: what was done is said, and the rest is as before.
#[test]
fn the_last_one_keeps_what_is_done() {
    let mut fleet = Fleet::new(2);
    let spec = Spec::sum(COUNT, 1);
    fleet[1].ask("trap kill 5 from master: Outcome").good();
    fleet.send(format!("segments {spec} 7 {SEGMENT_BYTES}"));
    fleet[1].await_death();
    fleet.remove(1);
    let answer = fleet[0].answer().bad("TooFewPeers");
    let numbers = check(&fleet, &spec, std::slice::from_ref(&answer));
    assert!(
        (4..SEGMENTS).contains(&numbers.len()) && numbers.iter().all(|number| *number == 2),
        "{numbers:?}"
    );
    assert_eq!(answer.field("remedy"), "WaitForPeers");
}

/// The master is gone: the call fails, and what is done is the same on all who say so.
#[test]
fn the_master_dies_in_the_middle() {
    let mut fleet = Fleet::new(3);
    let spec = Spec::sum(COUNT, 1);
    fleet[2].ask("trap stop 5 frame complete, stage 1 of 4").good();
    fleet.send(format!("segments {spec} 7 {SEGMENT_BYTES}"));
    fleet[2].await_stop();
    drop(fleet.master.take());
    fleet[2].resume();
    let answers = fleet.answers();
    for answer in &answers {
        assert!(["MasterLost", "OutcomeUnknown", "Kicked"].contains(&answer.kind()), "{answer:?}");
        let numbers = check(&fleet, &spec, std::slice::from_ref(answer));
        assert!(!numbers.is_empty() && numbers.len() < SEGMENTS, "{answer:?}");
        assert_eq!(answer.kind() == "OutcomeUnknown", answer.number("unknown") > 0, "{answer:?}");
    }
}
