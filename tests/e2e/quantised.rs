//! All-reduces of quantised tensors, compared by bytes with an independent oracle that goes around the ring hop by hop.

use crate::{
    fleet::{Fleet, config},
    kill::{Seen, reduce_with_death},
};
use pccl::{Block, DataType, Quantisation, ReduceOp, Scheme};
use pccl_quant::Level;
use pccl_tests::{pattern, spec::Spec};

pub(crate) const FLOATS: [DataType; 4] =
    [DataType::Float16, DataType::BFloat16, DataType::Float32, DataType::Float64];

pub(crate) const SCHEMES: [Scheme; 11] = [
    Scheme::MinMax(DataType::Uint8),
    Scheme::MinMax(DataType::Int32),
    Scheme::ZeroPointScale(DataType::Uint8),
    Scheme::BlockAffineU8(Block::B256),
    Scheme::BlockAffineU8(Block::B1024),
    Scheme::BlockSymmetricI8(Block::B64),
    Scheme::BlockAffineU4(Block::B128),
    Scheme::CastBf16,
    Scheme::CastF16,
    Scheme::BlockE4m3(Block::B512),
    Scheme::BlockE5m2(Block::B256),
];

/// Fewer elements than peers, short blocks, and chunks of several units.
const COUNTS: [usize; 4] = [0, 2, 1025, 101_000];
/// Chunks of several frames of every type.
const LARGE: usize = 1_000_003;

pub(crate) fn quantised(
    data_type: DataType,
    op: ReduceOp,
    count: usize,
    how: impl Into<Quantisation>,
) -> Spec {
    let quantisation = how.into();
    let seed = pattern::mix(count as u64 ^ u64::from(quantisation.scheme().parameter()) << 32);
    Spec { data_type, op, count, seed, in_place: true, quantisation: Some(quantisation) }
}

/// Every scheme and type, in place and out of place; sums, averages, stochastic rounding in turn.
fn everything(peers: usize) {
    let mut fleet = Fleet::new(peers);
    let mut case = 0;
    for scheme in SCHEMES {
        for data_type in FLOATS {
            for count in COUNTS {
                case += 1;
                let op = if case % 2 == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
                let how = Quantisation::new(scheme);
                let how = if case % 3 == 0 && scheme.has_stochastic() { how.stochastic(case) } else { how };
                let spec = Spec { in_place: case % 5 < 3, ..quantised(data_type, op, count, how) };
                for answer in fleet.reduce(spec) {
                    assert_eq!(answer.field("sent"), "true", "{spec}: the send buffer was changed");
                    assert_eq!(answer.number("participants"), peers);
                }
            }
        }
    }
}

#[test]
fn every_scheme_and_type_with_two_peers() {
    everything(2);
}

#[test]
fn every_scheme_and_type_with_three_peers() {
    everything(3);
}

#[test]
fn every_scheme_and_type_with_four_peers() {
    everything(4);
}

/// Peers of one group whose processors have different features: each result is compared among them, and with the
/// oracle.
#[test]
fn processors_of_different_kinds_get_the_same_bytes() {
    let mut fleet = Fleet::with_each(config(), &[&["level=Base"], &["level=Avx2"], &["level=Avx512"]]);
    let answers = fleet.all("level");
    let levels: Vec<&str> = answers.iter().map(|answer| answer.field("level")).collect();
    for (found, wanted) in levels.iter().zip(Level::ALL) {
        assert!(!wanted.is_available() || *found == format!("{wanted:?}"), "{levels:?}");
    }
    let mut case = 0;
    for scheme in SCHEMES {
        for data_type in FLOATS {
            case += 1;
            let op = if case % 2 == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
            let how = Quantisation::new(scheme);
            let how = if case % 3 == 0 && scheme.has_stochastic() { how.stochastic(case) } else { how };
            fleet.reduce(quantised(data_type, op, 101_000, how));
        }
    }
    for (data_type, op) in DataType::ALL.into_iter().flat_map(|it| ReduceOp::ALL.map(|op| (it, op))) {
        let spec = Spec { quantisation: None, ..quantised(data_type, op, 101_000, SCHEMES[0]) };
        fleet.reduce(spec);
    }
}

/// Several connections deliver frames in any order; the bytes follow from the input alone, also if they are rounded by
/// chance.
#[test]
fn results_are_deterministic() {
    let mut fleet = Fleet::with(config(), 3, &["pool=4"]);
    let float = DataType::Float32;
    for how in [
        Quantisation::new(Scheme::BlockAffineU8(Block::B256)).stochastic(7),
        Quantisation::new(Scheme::ZeroPointScale(DataType::Uint16)).stochastic(7),
    ] {
        let spec = quantised(float, ReduceOp::Avg, LARGE, how);
        let first = fleet.reduce(spec)[0].field("digests").to_owned();
        for _ in 0..3 {
            assert!(fleet.reduce(spec).iter().all(|answer| answer.field("digests") == first));
        }
        let other = how.stochastic(8);
        let other = fleet.reduce(Spec { quantisation: Some(other), ..spec });
        assert_ne!(other[0].field("digests"), first, "the seed makes a difference");
    }
}

/// A quarter of the bytes of f32, and the metadata.
#[test]
fn traffic_is_that_of_the_encoded_form() {
    let mut fleet = Fleet::new(3);
    let scheme = Scheme::BlockAffineU8(Block::B256);
    for answer in fleet.reduce(quantised(DataType::Float32, ReduceOp::Sum, 3 * 256 * 1000, scheme)) {
        assert_eq!(answer.number("tx"), 4 * 264 * 1000);
        assert_eq!(answer.number("rx"), 4 * 264 * 1000);
    }
}

#[test]
fn tensors_that_are_quantised_and_others_in_one_operation() {
    let mut fleet = Fleet::new(3);
    let specs: Vec<Spec> = (0..20)
        .map(|i| {
            let data_type = DataType::ALL[i % 12];
            let how = Quantisation::new(SCHEMES[i % SCHEMES.len()]);
            Spec {
                data_type,
                op: ReduceOp::ALL[i % 2],
                count: [0, 1, 2, 1000, 77, 30_000][i % 6],
                seed: i as u64,
                in_place: i % 3 == 0,
                quantisation: FLOATS.contains(&data_type).then_some(how),
            }
        })
        .collect();
    let words: Vec<_> = specs.iter().map(ToString::to_string).collect();
    let answers = fleet.all(format!("many {} 0 100", words.join(",")));
    fleet.check(&specs, &answers);
}

/// A death in the middle: one verdict, inputs bit-identical, and the retry succeeds.
#[test]
fn a_death_in_the_middle() {
    let mut fleet = Fleet::new(3);
    let schemes = [Scheme::BlockAffineU8(Block::B256), Scheme::MinMax(DataType::Uint16), Scheme::CastF16];
    let points = [
        ("frame begins, stage 0 of 4", 1, Seen::Verdict),
        ("frame complete, stage 0 of 4", 2, Seen::Verdict),
        ("frame begins, stage 1 of 4", 2, Seen::Verdict),
        ("frame complete, stage 1 of 4", 1, Seen::Verdict),
        ("frame begins, stage 2 of 4", 2, Seen::Verdict),
        ("frame complete, stage 2 of 4", 2, Seen::Verdict),
        ("frame complete, stage 3 of 4", 1, Seen::Either),
        ("from master: Outcome", 1, Seen::Success),
    ];
    for (case, (point, nth, seen)) in points.into_iter().enumerate() {
        let spec = quantised(DataType::Float32, ReduceOp::Avg, LARGE, schemes[case % 3]);
        let spec = Spec { in_place: case % 4 != 3, ..spec };
        reduce_with_death(&mut fleet, case % 3, point, nth, spec, seen);
        fleet.join(&[]);
    }
}

/// The verdict names both ways to quantise.
#[test]
fn quantisations_that_differ_fail_the_vote() {
    let mut fleet = Fleet::new(2);
    for (one, other, words) in [
        ("3.256", "3.128", ["affine u8, block 256", "affine u8, block 128"]),
        ("3.256.1", "3.256.2", ["stochastic with seed 1", "stochastic with seed 2"]),
        ("6.0", "7.0", ["as bf16", "as f16"]),
    ] {
        fleet[0].send(format!("reduce f32:sum:1000:1:in:{one} 0 0"));
        fleet[1].send(format!("reduce f32:sum:1000:1:in:{other} 0 0"));
        for answer in fleet.answers() {
            assert!(words.iter().all(|word| answer.text.contains(word)), "{answer:?}");
            assert_eq!(answer.field("restored"), "true");
            answer.bad("Aborted:MismatchedCall");
        }
    }
}

/// Refused at once, without the others.
#[test]
fn what_cannot_be_quantised_is_an_invalid_argument() {
    let mut fleet = Fleet::new(2);
    for (tensor, words) in [
        ("f32:max:10:1:in:3.256", "max of quantised elements is not possible"),
        ("i32:sum:10:1:in:3.256", "elements of type i32 cannot be quantised"),
        ("f32:sum:10:1:in:1.10", "codes of type f32 are not possible"),
        ("f32:sum:10:1:in:6.0.1", "bf16 cannot round stochastically"),
    ] {
        let answer = fleet[0].ask(format!("reduce {tensor} 0 0"));
        assert!(answer.text.contains(words), "{answer:?}");
        answer.bad("InvalidArgument");
    }
}
