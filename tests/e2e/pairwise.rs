//! Large operations by pairwise exchange between processes: results of tensors that travel as they are are those of the
//! ring, bit for bit; those of quantised ones are those of an independent oracle, and more accurate than the ring's.

use crate::{
    fleet::{Fleet, config},
    kill::{Seen, reduce_with_death_by},
    quantised::{FLOATS, SCHEMES, quantised},
};
use pccl::{Block, DataType, Quantisation, ReduceOp, Scheme};
use pccl_tests::{pattern::mix, spec::Spec};

/// Asks for it, and requires that it takes place, and that send buffers are only read.
#[track_caller]
fn exchange(fleet: &mut Fleet, spec: Spec) -> String {
    let ranks = fleet.len();
    let answers = fleet.reduce_by("pairwise", spec);
    // Where there is nothing to move no way is better than another.
    let way = if spec.count == 0 { "ring" } else { "pairwise" };
    for answer in &answers {
        assert_eq!(answer.field("algorithm"), way, "{spec}: {answer:?}");
        assert_eq!(answer.field("sent"), "true", "{spec}: the send buffer was changed");
        assert_eq!(answer.number("participants"), ranks);
    }
    answers[0].field("digests").to_owned()
}

/// Every type and operation: no elements, fewer than peers, chunks of unequal size. And large ones with several frames
/// in each chunk.
fn everything(peers: usize) {
    let mut fleet = Fleet::new(peers);
    fleet.await_pairwise();
    let counts = [0, 1, peers - 1, peers + 1, 1025];
    for (at, data_type) in DataType::ALL.into_iter().enumerate() {
        for (op_at, op) in ReduceOp::ALL.into_iter().enumerate() {
            for (count_at, count) in counts.into_iter().enumerate() {
                let seed = mix((at * 64 + op_at * 8 + count_at) as u64);
                let in_place = (at + op_at + count_at) % 2 == 0;
                let spec = Spec { data_type, op, count, seed, in_place, quantisation: None };
                let digest = exchange(&mut fleet, spec);
                if count == 1025 && at % 3 == 0 {
                    assert_eq!(fleet.reduce_by("ring", spec)[0].field("digests"), digest, "{spec}");
                }
            }
        }
    }
    let large = [
        Spec { op: ReduceOp::Sum, in_place: true, ..Spec::sum(peers * 300_000 + 1, 1) },
        Spec { op: ReduceOp::Sum, in_place: false, ..Spec::sum(peers * 300_000 - 1, 2) },
        Spec { op: ReduceOp::Avg, data_type: DataType::Float64, ..Spec::sum(peers * 70_000 + 5, 3) },
        Spec {
            op: ReduceOp::Max,
            data_type: DataType::Int64,
            in_place: false,
            ..Spec::sum(peers * 70_000, 4)
        },
    ];
    for spec in large {
        exchange(&mut fleet, spec);
    }
}

#[test]
fn every_type_and_operation_with_three_peers() {
    everything(3);
}

#[test]
fn every_type_and_operation_with_four_peers() {
    everything(4);
}

#[test]
fn every_type_and_operation_with_eight_peers() {
    everything(8);
}

/// As around the ring: each rank sends and receives `2 (n - 1) / n` of the tensor, or of its encoded form.
#[test]
fn traffic_is_that_of_a_ring() {
    let mut fleet = Fleet::new(3);
    fleet.await_pairwise();
    let plain = Spec::sum(3 * 256 * 1000, 1);
    let encoded =
        quantised(DataType::Float32, ReduceOp::Sum, plain.count, Scheme::BlockAffineU8(Block::B256));
    for (spec, chunk_bytes) in [(plain, 4 * 256 * 1000), (encoded, 264 * 1000)] {
        for answer in fleet.reduce_by("pairwise", spec) {
            assert_eq!(answer.field("algorithm"), "pairwise");
            assert_eq!(
                (answer.number("tx"), answer.number("rx")),
                (4 * chunk_bytes, 4 * chunk_bytes),
                "{spec}"
            );
        }
    }
}

/// Schemes and types in turn: sums and averages, stochastic rounding, in place and out of place.
fn every_scheme(fleet: &mut Fleet, counts: &[usize]) {
    let mut case = 0;
    for scheme in SCHEMES {
        for data_type in FLOATS {
            for &count in counts {
                case += 1;
                let op = if case % 2 == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
                let how = Quantisation::new(scheme);
                let how = if case % 3 == 0 && scheme.has_stochastic() { how.stochastic(case) } else { how };
                let spec = Spec { in_place: case % 5 < 3, ..quantised(data_type, op, count, how) };
                exchange(fleet, spec);
            }
        }
    }
}

fn every_scheme_with(peers: usize) {
    let mut fleet = Fleet::new(peers);
    fleet.await_pairwise();
    every_scheme(&mut fleet, &[0, 1, peers - 1, peers + 1, 1025, 40_003]);
}

#[test]
fn every_scheme_and_type_with_three_peers() {
    every_scheme_with(3);
}

#[test]
fn every_scheme_and_type_with_four_peers() {
    every_scheme_with(4);
}

#[test]
fn every_scheme_and_type_with_eight_peers() {
    every_scheme_with(8);
}

/// Chunks of several frames.
#[test]
fn large_quantised_tensors() {
    let mut fleet = Fleet::new(4);
    fleet.await_pairwise();
    for (scheme, data_type, in_place) in [
        (Scheme::BlockAffineU8(Block::B256), DataType::Float32, true),
        (Scheme::MinMax(DataType::Int32), DataType::Float32, false),
        (Scheme::CastBf16, DataType::Float64, true),
        (Scheme::BlockSymmetricI8(Block::B256), DataType::BFloat16, false),
    ] {
        let spec = quantised(data_type, ReduceOp::Avg, 1_000_003, scheme);
        exchange(&mut fleet, Spec { in_place, ..spec });
    }
}

/// Peers whose processors have different features.
#[test]
fn processors_of_different_kinds_get_the_same_bytes() {
    let mut fleet =
        Fleet::with_each(config(), &[&["level=Base"], &["level=Avx2"], &["level=Avx512"], &["level=Base"]]);
    fleet.await_pairwise();
    every_scheme(&mut fleet, &[40_003]);
    for (data_type, op) in DataType::ALL.into_iter().flat_map(|it| ReduceOp::ALL.map(|op| (it, op))) {
        exchange(&mut fleet, Spec { data_type, op, ..Spec::sum(40_003, 5) });
    }
}

/// Several connections deliver frames in any order; the bytes follow from the input alone.
#[test]
fn results_are_deterministic() {
    let mut fleet = Fleet::with(config(), 4, &["pool=4"]);
    fleet.await_pairwise();
    for how in [
        Quantisation::new(Scheme::BlockAffineU8(Block::B256)).stochastic(7),
        Quantisation::new(Scheme::ZeroPointScale(DataType::Uint16)).stochastic(7),
    ] {
        let spec = quantised(DataType::Float32, ReduceOp::Avg, 1_000_003, how);
        let first = exchange(&mut fleet, spec);
        for _ in 0..3 {
            assert_eq!(exchange(&mut fleet, spec), first);
        }
        let other = exchange(&mut fleet, Spec { quantisation: Some(how.stochastic(8)), ..spec });
        assert_ne!(other, first, "the seed makes a difference");
    }
}

#[test]
fn tensors_that_are_quantised_and_others_in_one_operation() {
    let mut fleet = Fleet::new(4);
    fleet.await_pairwise();
    let specs: Vec<Spec> = (0..40)
        .map(|i| {
            let data_type = DataType::ALL[i % 12];
            let is_quantised = FLOATS.contains(&data_type) && i % 7 != 0;
            let ops = if is_quantised { 2 } else { 5 };
            Spec {
                data_type,
                op: ReduceOp::ALL[i % ops],
                count: [0, 1, 3, 1000, 77, 30_000, 200_001][i % 7],
                seed: i as u64,
                in_place: i % 3 == 0,
                quantisation: is_quantised.then(|| Quantisation::new(SCHEMES[i % SCHEMES.len()])),
            }
        })
        .collect();
    assert!(specs.iter().any(|spec| spec.quantisation.is_none() && spec.count > 100_000));
    let words: Vec<_> = specs.iter().map(ToString::to_string).collect();
    let answers = fleet.all(format!("many {} 0 100 pairwise", words.join(",")));
    fleet.check(&specs, &answers);
    assert!(answers.iter().all(|answer| answer.field("algorithm") == "pairwise"), "{answers:?}");
}

/// Points of an exchange of four that each rank passes, with three frames in each chunk, and how the others see a death
/// there. A rank that has got results may have sent its own as well.
const POINTS: [(&str, usize, Seen); 10] = [
    ("to master: Initiate", 1, Seen::Nothing),
    ("from master: Commence", 1, Seen::Verdict),
    ("frame begins, a contribution", 1, Seen::Verdict),
    ("frame begins, a contribution", 8, Seen::Verdict),
    ("frame complete, a contribution", 1, Seen::Verdict),
    ("frame complete, a contribution", 9, Seen::Verdict),
    ("frame begins, a result", 1, Seen::Either),
    ("frame complete, a result", 9, Seen::Either),
    ("to master: Complete", 1, Seen::Either),
    ("from master: Outcome", 1, Seen::Success),
];

/// One verdict for all, inputs bit-identical, and the retry succeeds, around the ring or by exchange.
fn deaths(specs: [Spec; 2]) {
    let mut fleet = Fleet::new(4);
    for (case, (point, nth, seen)) in POINTS.into_iter().enumerate() {
        fleet.await_pairwise();
        let spec = Spec { seed: case as u64, ..specs[case % 2] };
        reduce_with_death_by("pairwise", &mut fleet, case % 4, (point, nth, seen), spec);
        fleet.join(&[]);
    }
    fleet.await_pairwise();
}

#[test]
fn a_death_at_each_point() {
    deaths([true, false].map(|in_place| Spec { in_place, ..Spec::sum(4 * 300_000, 0) }));
}

#[test]
fn a_death_at_each_point_of_a_quantised_exchange() {
    // Units of 128 KiB of elements, less a little: three frames in each chunk.
    let schemes = [Scheme::BlockAffineU8(Block::B256), Scheme::CastBf16];
    deaths(schemes.map(|scheme| quantised(DataType::Float32, ReduceOp::Avg, 4 * 90_000, scheme)));
}

/// A peer that asks for another way makes another call: nobody is dropped, nothing is changed.
#[test]
fn schedules_that_differ_fail_the_vote() {
    let mut fleet = Fleet::new(3);
    fleet.await_pairwise();
    let spec = Spec::sum(100_000, 1);
    for (one, other) in [("ring", "pairwise"), ("pairwise", "automatic"), ("automatic", "ring")] {
        fleet[0].send(format!("reduce {spec} 0 0 {one}"));
        fleet[1].send(format!("reduce {spec} 0 0 {other}"));
        fleet[2].send(format!("reduce {spec} 0 0 {other}"));
        for answer in fleet.answers() {
            for name in [one, other] {
                assert!(answer.text.contains(&format!("algorithm {name}")), "{answer:?}");
            }
            assert_eq!(answer.field("restored"), "true");
            answer.bad("Aborted:MismatchedCall");
        }
        exchange(&mut fleet, spec);
    }
}

/// There is no mesh of two or of nine.
#[test]
fn other_groups_take_the_ring() {
    for peers in [2, 9] {
        let mut fleet = Fleet::new(peers);
        let scheme = Scheme::BlockAffineU8(Block::B256);
        for spec in [Spec::sum(100_000, 1), quantised(DataType::Float32, ReduceOp::Avg, 10_000, scheme)] {
            for answer in fleet.reduce_by("pairwise", spec) {
                assert_eq!(answer.field("algorithm"), "ring", "{peers} peers, {spec}");
            }
        }
    }
}
