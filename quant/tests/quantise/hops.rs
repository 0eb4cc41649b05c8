//! Errors of a whole average: over a ring, where each rank quantises the partial sum anew, and direct, where each rank
//! quantises once and the owner adds. Then the owner quantises the average, and everybody decodes that.
//!
//! `cargo test -p pccl-quant --test quantise hops -- --nocapture` prints the table of `docs/quantisation.md`.

use pccl_quant::{
    DataType, Level,
    quantise::{Block, Codec, Contribution, Rounding, Scheme},
};
use pccl_testkit::random::Rng;

use super::data::{bytes_of, decode, encode, values_of};

const F32: DataType = DataType::Float32;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Ring,
    Direct,
}

/// Ranks run on all levels of this processor in turn.
fn codec_of(rank: usize, scheme: Scheme) -> Codec {
    let levels: Vec<Level> = Level::ALL.into_iter().filter(|level| level.is_available()).collect();
    Codec::new(scheme, F32).unwrap().at(levels[rank % levels.len()]).unwrap()
}

/// The average as each rank has it in the end; all must have the same bytes.
fn average(way: Way, scheme: Scheme, inputs: &[Vec<f64>], rounding: impl Fn(usize) -> Rounding) -> Vec<f64> {
    let count = inputs[0].len();
    let (ranks, inputs) = (inputs.len(), inputs.iter().map(|input| bytes_of(F32, input)).collect::<Vec<_>>());
    let owner = codec_of(ranks - 1, scheme);
    let encoded = match way {
        Way::Ring => {
            let mut sum = inputs[0].clone();
            for (rank, input) in inputs.iter().enumerate().skip(1) {
                let encoded = encode(&codec_of(rank - 1, scheme), &sum, rounding(rank - 1));
                sum.clone_from(input);
                codec_of(rank, scheme).decode_add(&encoded, &mut sum).unwrap();
            }
            pccl_quant::finish_average(F32, &mut sum, ranks as u32).unwrap();
            encode(&owner, &sum, rounding(ranks - 1))
        }
        Way::Direct => {
            let quantise =
                |(rank, input): (usize, &Vec<u8>)| encode(&codec_of(rank, scheme), input, rounding(rank));
            let quantised: Vec<_> = inputs.iter().enumerate().map(quantise).collect();
            let mut contributions: Vec<_> = quantised.iter().map(|it| Contribution::Encoded(it)).collect();
            contributions[ranks - 1] = Contribution::Plain(&inputs[ranks - 1]);
            let (mut sums, mut encoded) = (vec![0; 4 * count], vec![0; quantised[0].len()]);
            let rounding = rounding(ranks - 1);
            owner
                .combine(&contributions, Some(ranks as u32), &mut sums, &mut encoded, rounding, 0)
                .expect("an average");
            encoded
        }
    };
    let results: Vec<Vec<u8>> =
        (0..ranks.min(4)).map(|rank| decode(&codec_of(rank, scheme), &encoded, count)).collect();
    assert!(results.iter().all(|result| *result == results[0]), "ranks differ: {scheme}");
    values_of(F32, &results[0])
}

fn exact(inputs: &[Vec<f64>]) -> Vec<f64> {
    let sum = |index: usize| inputs.iter().map(|input| f64::from(input[index] as f32)).sum::<f64>();
    (0..inputs[0].len()).map(|index| sum(index) / inputs.len() as f64).collect()
}

fn nearest(_: usize) -> Rounding {
    Rounding::NearestEven
}

/// No average is off by more than the sum of what its steps may be off. With ranges R that are equal on all ranks: a
/// ring of W R (W + 1) / 1020 for 8 bits, direct R / 255.
#[test]
fn averages_keep_their_bounds() {
    let mut rng = Rng(11);
    for (scheme, codes) in [
        (Scheme::BlockAffineU8(Block::B64), 255.0),
        (Scheme::BlockAffineU4(Block::B64), 15.0),
        (Scheme::BlockSymmetricI8(Block::B64), 254.0),
    ] {
        for ranks in [2, 3, 8, 32] {
            for trial in 0..150 {
                // Every rank has both ends of the range, so that ranges are equal; rank by rank in the same place in a
                // third of the cases, so that partial sums have the greatest range that they can have.
                let input = |rng: &mut Rng| -> Vec<f64> {
                    let mut input: Vec<f64> = match trial % 3 {
                        0 => (0..64).map(|_| rng.uniform() * 2.0 - 1.0).collect(),
                        1 => (0..64).map(|_| (rng.uniform() - 0.5).signum()).collect(),
                        _ => vec![(rng.uniform() * 255.0).floor() / 127.5 - 1.0 + 1.0 / 255.0; 64],
                    };
                    (input[0], input[1]) = (-1.0, 1.0);
                    input
                };
                let inputs: Vec<Vec<f64>> = (0..ranks).map(|_| input(&mut rng)).collect();
                let expected = exact(&inputs);
                // The owner's part is quantised once less than others' when the way is direct.
                let bounds = [(Way::Ring, (ranks + 1) as f64 / 4.0), (Way::Direct, 1.0)];
                for (way, steps) in bounds {
                    let limit = 2.0 / codes * steps + 2_f64.powi(-22) * (ranks + 1) as f64;
                    let found = average(way, scheme, &inputs, nearest);
                    for (x, y) in expected.iter().zip(found) {
                        assert!(
                            (x - y).abs() <= limit,
                            "{way:?} of {ranks}, {scheme}: {x} is {y}, limit {limit}"
                        );
                    }
                }
            }
        }
    }
}

/// Root of the mean square of the errors, and their mean, both relative to that root of the averages.
fn relative(expected: &[f64], found: &[f64]) -> (f64, f64) {
    let count = expected.len() as f64;
    let size = (expected.iter().map(|x| x * x).sum::<f64>() / count).sqrt();
    let errors: Vec<f64> = expected.iter().zip(found).map(|(x, y)| y - x).collect();
    let rms = (errors.iter().map(|error| error * error).sum::<f64>() / count).sqrt();
    (rms / size, errors.iter().sum::<f64>() / count / size)
}

fn inputs(ranks: usize, elements: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut rng = Rng(seed);
    (0..ranks).map(|_| (0..elements).map(|_| rng.normal()).collect()).collect()
}

/// The figures that analysis and an earlier simulation have, within a fifth.
#[test]
fn errors_are_as_great_as_expected() {
    let u8_256 = Scheme::BlockAffineU8(Block::B256);
    for (way, scheme, at_8, at_32) in [
        (Way::Ring, Scheme::MinMax(DataType::Uint8), 0.019, 0.038),
        (Way::Ring, Scheme::ZeroPointScale(DataType::Uint8), 0.029, 0.055),
        (Way::Ring, u8_256, 0.0136, 0.026),
        (Way::Ring, Scheme::BlockAffineU8(Block::B64), 0.011, 0.021),
        (Way::Ring, Scheme::BlockE4m3(Block::B256), 0.055, 0.106),
        (Way::Ring, Scheme::BlockAffineU4(Block::B64), 0.193, 0.379),
        (Way::Direct, u8_256, 0.009, 0.009),
        (Way::Direct, Scheme::BlockAffineU4(Block::B64), 0.127, 0.127),
    ] {
        for (ranks, expected) in [(8, at_8), (32, at_32)] {
            let inputs = inputs(ranks, 16_384, 12);
            let (rms, bias) = relative(&exact(&inputs), &average(way, scheme, &inputs, nearest));
            println!("{way:?} of {ranks}, {scheme}: error {rms:.4} (expected {expected}), bias {bias:.5}");
            assert!(
                (rms / expected - 1.0).abs() < 0.2,
                "{way:?} of {ranks}, {scheme}: {rms}, not {expected}"
            );
            assert!(
                bias.abs() < 4.0 * rms / (16_384_f64).sqrt(),
                "{way:?} of {ranks}, {scheme}: bias {bias}"
            );
        }
    }
}

#[test]
fn table_of_errors() {
    let integers = [DataType::Uint8, DataType::Int8, DataType::Uint16];
    let chunks =
        integers.into_iter().flat_map(|codes| [Scheme::MinMax(codes), Scheme::ZeroPointScale(codes)]);
    let blocks = [
        Scheme::BlockAffineU8(Block::B64),
        Scheme::BlockAffineU8(Block::B256),
        Scheme::BlockAffineU8(Block::B1024),
        Scheme::BlockSymmetricI8(Block::B256),
        Scheme::BlockAffineU4(Block::B64),
        Scheme::BlockAffineU4(Block::B256),
        Scheme::BlockE4m3(Block::B256),
        Scheme::BlockE5m2(Block::B256),
        Scheme::CastBf16,
        Scheme::CastF16,
    ];
    let by_ranks = [1, 8, 32].map(|ranks| inputs(ranks, 16_384, 13));
    for scheme in chunks.chain(blocks) {
        let codec = Codec::new(scheme, F32).unwrap();
        let size = codec.encoded_len(16_384).unwrap() as f64 / 16_384.0;
        let error =
            |way, inputs: &[Vec<f64>]| relative(&exact(inputs), &average(way, scheme, inputs, nearest)).0;
        let [one, ring_8, ring_32] = [0, 1, 2].map(|index| error(Way::Ring, &by_ranks[index]));
        let [direct_8, direct_32] = [1, 2].map(|index| error(Way::Direct, &by_ranks[index]));
        println!(
            "| {scheme} | {size:.3} | {one:.5} | {ring_8:.5} | {ring_32:.5} | {direct_8:.5} | {direct_32:.5} |"
        );
        assert!(direct_32 <= ring_32 * 1.05 && one < 0.2, "{scheme}");
    }
}
