//! Errors of one pass: hard limits, exact cases, no bias.

use pccl_quant::{
    DataType,
    quantise::{Block, Codec, NoiseKey, Rounding, Scheme},
};
use pccl_testkit::random::Rng;

use super::data::{FLOATS, bytes_of, decode, encode, round_trip, values_of};

/// 2^-22 of the greatest magnitude, for f32: what the rounding of the calculation itself may add. For 16-bit elements
/// half of the last bit of the result, for f64 less.
fn slack(data_type: DataType) -> f64 {
    match data_type {
        DataType::Float64 => 2_f64.powi(-51),
        DataType::Float32 => 2_f64.powi(-22),
        DataType::Float16 => 2_f64.powi(-11) + 2_f64.powi(-22),
        _ => 2_f64.powi(-8) + 2_f64.powi(-22),
    }
}

fn least(data_type: DataType) -> f64 {
    match data_type {
        DataType::Float64 => f64::MIN_POSITIVE,
        DataType::Float16 => 2_f64.powi(-24),
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

/// The block schemes with integer codes, and the step for a block from `min` to `max`.
fn step(scheme: Scheme, min: f64, max: f64) -> f64 {
    match scheme {
        Scheme::BlockAffineU8(_) => max / 255.0 - min / 255.0,
        Scheme::BlockAffineU4(_) => max / 15.0 - min / 15.0,
        _ => max.max(-min) / 127.0,
    }
}

/// No element is off by more than half a step (a step, if rounded by chance) and the slack.
fn check(scheme: Scheme, data_type: DataType, values: &[f64], what: &str) {
    let codec = Codec::new(scheme, data_type).unwrap();
    let values = values_of(data_type, &bytes_of(data_type, values));
    let block = codec.piece_elements().unwrap();
    for (rounding, steps) in
        [(Rounding::NearestEven, 0.5), (Rounding::Stochastic(NoiseKey::new(5, 6, 7)), 1.0 + 2_f64.powi(-15))]
    {
        let decoded = round_trip(&codec, &values, rounding);
        for (block, decoded) in values.chunks(block).zip(decoded.chunks(block)) {
            let min = block.iter().copied().fold(f64::INFINITY, f64::min);
            let max = block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let limit = steps * step(scheme, min, max)
                + slack(data_type) * max.abs().max(min.abs())
                + steps * least(data_type);
            for (x, y) in block.iter().zip(decoded) {
                let error = (x - y).abs();
                assert!(
                    error <= limit,
                    "{what}, {scheme}, {data_type}: {x:e} became {y:e}: {error:e} > {limit:e}"
                );
            }
        }
    }
}

fn integer_schemes() -> impl Iterator<Item = Scheme> {
    let kinds: [fn(Block) -> Scheme; 3] =
        [Scheme::BlockAffineU8, Scheme::BlockSymmetricI8, Scheme::BlockAffineU4];
    kinds.into_iter().flat_map(|kind| [Block::B64, Block::B256, Block::B1024].map(kind))
}

#[test]
fn no_element_is_off_by_more_than_half_a_step() {
    let mut rng = Rng(1);
    for scheme in integer_schemes() {
        for data_type in FLOATS {
            for (offset, deviation) in [(0.0, 1.0), (1000.0, 0.001), (-7.0, 1e-4), (0.0, 1e-3), (3.0, 30.0)] {
                let values: Vec<f64> = (0..3000).map(|_| offset + deviation * rng.normal()).collect();
                check(scheme, data_type, &values, "normal");
            }
            let negative: Vec<f64> = (0..700).map(|_| -1000.0 - rng.uniform()).collect();
            check(scheme, data_type, &negative, "all negative");
            let mut outlier: Vec<f64> = (0..700).map(|_| rng.normal()).collect();
            outlier[300] = 10_000.0;
            check(scheme, data_type, &outlier, "one outlier");
        }
    }
}

#[test]
fn extreme_magnitudes_stay_within_bounds() {
    let mut rng = Rng(2);
    for scheme in integer_schemes() {
        for (data_type, greatest, tiny) in [
            (DataType::Float32, f64::from(f32::MAX), 1e-38),
            (DataType::Float64, f64::MAX, 1e-308),
            (DataType::BFloat16, 3.389_531_389e38, 1e-38),
            (DataType::Float16, 65_504.0, 1e-6),
        ] {
            let mut values: Vec<f64> = (0..500).map(|_| greatest * (2.0 * rng.uniform() - 1.0)).collect();
            (values[3], values[400]) = (greatest, -greatest);
            check(scheme, data_type, &values, "greatest");
            values.iter_mut().for_each(|value| *value = value.abs());
            check(scheme, data_type, &values, "greatest, positive");
            let values: Vec<f64> = (0..500).map(|_| tiny * rng.uniform()).collect();
            check(scheme, data_type, &values, "subnormal");
        }
    }
}

/// Elements right at and next to the middle between two codes, where rounding to the wrong side shows at once.
#[test]
fn ties_and_their_neighbours() {
    let mut rng = Rng(3);
    for scheme in integer_schemes() {
        for _ in 0..30 {
            let (min, max) = (-rng.uniform() * 8.0, rng.uniform() * 8.0);
            let step = step(scheme, min, max);
            let mut values = vec![min, max];
            for code in 0..70 {
                let tie = (min + (f64::from(code) + 0.5) * step) as f32;
                values.extend([tie.next_down(), tie, tie.next_up()].map(f64::from));
            }
            values.retain(|value| (min..=max).contains(value));
            check(scheme, DataType::Float32, &values, "ties");
        }
    }
}

/// Random search for the worst block, by changes to the worst so far.
#[test]
fn no_worse_block_is_found_by_search() {
    let mut rng = Rng(4);
    for scheme in [Scheme::BlockAffineU8(Block::B64), Scheme::BlockSymmetricI8(Block::B64)] {
        let codec = Codec::new(scheme, DataType::Float32).unwrap();
        let excess = |values: &[f64]| {
            let values = values_of(DataType::Float32, &bytes_of(DataType::Float32, values));
            let decoded = round_trip(&codec, &values, Rounding::NearestEven);
            let min = values.iter().copied().fold(f64::INFINITY, f64::min);
            let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let worst = values.iter().zip(&decoded).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            (worst - step(scheme, min, max) / 2.0) / max.abs().max(min.abs())
        };
        for offset in [0.0, 1.0, 100.0] {
            let mut best: Vec<f64> = (0..64).map(|_| offset + rng.uniform()).collect();
            let mut most = excess(&best);
            for _ in 0..3000 {
                let mut next = best.clone();
                next[rng.next() as usize % 64] = offset + rng.uniform();
                let found = excess(&next);
                if found > most {
                    (best, most) = (next, found);
                }
            }
            assert!(most <= 2_f64.powi(-22), "{scheme}, offset {offset}: 2^{}", most.log2());
        }
    }
}

#[test]
fn equal_elements_single_ones_and_none_are_exact() {
    let per_block: [fn(Block) -> Scheme; 5] = [
        Scheme::BlockAffineU8,
        Scheme::BlockSymmetricI8,
        Scheme::BlockAffineU4,
        Scheme::BlockE4m3,
        Scheme::BlockE5m2,
    ];
    let integers = DataType::ALL.into_iter().filter(|data_type| !FLOATS.contains(data_type));
    let chunks = integers.flat_map(|codes| [Scheme::MinMax(codes), Scheme::ZeroPointScale(codes)]);
    for scheme in per_block.map(|scheme| scheme(Block::B64)).into_iter().chain(chunks) {
        for data_type in FLOATS {
            let codec = Codec::new(scheme, data_type).unwrap();
            for value in [0.0, 0.3, -42.0, 43.0, 1e-7, 60_000.0, f64::from(f32::MAX), -1e300, 1e-310] {
                let value = values_of(data_type, &bytes_of(data_type, &[value]))[0];
                for count in [0, 1, 2, 63, 64, 65, 1000] {
                    let values = vec![value; count];
                    if value.is_finite() {
                        assert_eq!(
                            round_trip(&codec, &values, Rounding::NearestEven),
                            values,
                            "{scheme} {data_type}"
                        );
                    }
                }
            }
        }
    }
}

/// The case that the tests of the C++ PCCL have: constants 42 and 43 make exactly 85.
#[test]
fn constants_sum_exactly() {
    for data_type in FLOATS {
        let codec = Codec::new(Scheme::ZeroPointScale(DataType::Uint8), data_type).unwrap();
        let encoded = encode(&codec, &bytes_of(data_type, &[42.0; 100]), Rounding::NearestEven);
        let mut sum = bytes_of(data_type, &[43.0; 100]);
        codec.decode_add(&encoded, &mut sum).unwrap();
        assert_eq!(values_of(data_type, &sum), [85.0; 100]);
    }
}

#[test]
fn a_block_that_is_not_finite_leaves_others_alone() {
    for scheme in integer_schemes().chain([Scheme::BlockE4m3(Block::B128), Scheme::BlockE5m2(Block::B128)]) {
        for data_type in FLOATS {
            let codec = Codec::new(scheme, data_type).unwrap();
            let block = codec.piece_elements().unwrap();
            let clean: Vec<f64> = (0..4 * block + 3).map(|index| (index % 37) as f64 - 11.0).collect();
            let expected = encode(&codec, &bytes_of(data_type, &clean), Rounding::NearestEven);
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                for at in [block, 2 * block - 1, 4 * block + 2] {
                    let mut values = clean.clone();
                    values[at] = bad;
                    let encoded = encode(&codec, &bytes_of(data_type, &values), Rounding::NearestEven);
                    let decoded = values_of(data_type, &decode(&codec, &encoded, values.len()));
                    let start = at / block;
                    for (number, decoded) in decoded.chunks(block).enumerate() {
                        assert_eq!(number == start, decoded.iter().all(|value| value.is_nan()), "{scheme}");
                        assert_eq!(number == start, decoded.iter().any(|value| value.is_nan()), "{scheme}");
                    }
                    let bytes = codec.encoded_len(start * block).unwrap();
                    assert_eq!(encoded[..bytes], expected[..bytes]);
                    if let Some(after) = codec.encoded_len((start + 1) * block).filter(|_| start < 4) {
                        assert_eq!(encoded[after..], expected[after..]);
                    }
                }
            }
        }
    }
}

/// Encoding what was decoded gives the same bytes, so forwarding ranks may do either.
#[test]
fn symmetric_codes_are_stable() {
    let mut rng = Rng(5);
    for block in Block::ALL {
        for data_type in [DataType::Float32, DataType::Float64] {
            for scheme in
                [Scheme::BlockSymmetricI8(block), Scheme::BlockE4m3(block), Scheme::BlockE5m2(block)]
            {
                let codec = Codec::new(scheme, data_type).unwrap();
                let values: Vec<f64> = (0..20_000).map(|_| rng.normal() * 0.1).collect();
                let encoded = encode(&codec, &bytes_of(data_type, &values), Rounding::NearestEven);
                let decoded = decode(&codec, &encoded, values.len());
                let again = encode(&codec, &decoded, Rounding::NearestEven);
                if matches!(scheme, Scheme::BlockSymmetricI8(_)) {
                    assert!(again == encoded, "{scheme} {data_type}");
                }
                assert!(decode(&codec, &again, values.len()) == decoded, "{scheme} {data_type}");
            }
        }
    }
}

#[test]
fn floats_of_8_and_16_bits_keep_their_relative_error() {
    let mut rng = Rng(6);
    for (scheme, relative, range) in [
        (Scheme::BlockE4m3(Block::B64), 2_f64.powi(-4), 2_f64.powi(-13)),
        (Scheme::BlockE5m2(Block::B64), 2_f64.powi(-3), 2_f64.powi(-28)),
        (Scheme::CastF16, 2_f64.powi(-11), 2_f64.powi(-14)),
        (Scheme::CastBf16, 2_f64.powi(-8), f64::from(f32::MIN_POSITIVE)),
    ] {
        let codec = Codec::new(scheme, DataType::Float32).unwrap();
        let values: Vec<f64> = (0..64 * 200).map(|_| f64::from(rng.normal() as f32)).collect();
        let decoded = round_trip(&codec, &values, Rounding::NearestEven);
        for (values, decoded) in values.chunks(64).zip(decoded.chunks(64)) {
            let greatest = values.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
            for (x, y) in values.iter().zip(decoded) {
                let limit = relative * x.abs().max(greatest * range);
                assert!((x - y).abs() <= limit, "{scheme}: {x} became {y}");
            }
        }
    }
}

/// The mean of the errors is 0 within four deviations of a mean; that of one element rounded by chance many times too.
#[test]
fn nothing_is_biased() {
    let mut rng = Rng(7);
    let chunks = [DataType::Uint8, DataType::Int8, DataType::Uint16]
        .into_iter()
        .flat_map(|codes| [Scheme::MinMax(codes), Scheme::ZeroPointScale(codes)]);
    for scheme in integer_schemes().chain(chunks) {
        let codec = Codec::new(scheme, DataType::Float32).unwrap();
        let values: Vec<f64> = (0..200_000).map(|_| f64::from(rng.normal() as f32)).collect();
        for rounding in [Rounding::NearestEven, Rounding::Stochastic(NoiseKey::new(1, 1, 1))] {
            let decoded = round_trip(&codec, &values, rounding);
            let errors: Vec<f64> = values.iter().zip(&decoded).map(|(x, y)| y - x).collect();
            assert_no_bias(&errors, &format!("{scheme}, {rounding:?}"));
        }
        let values: Vec<f64> = (0..64).map(|_| f64::from(rng.normal() as f32)).collect();
        let rounds = 20_000_u64;
        let mut errors = vec![Vec::new(); values.len()];
        for operation in 0..rounds {
            let decoded = round_trip(&codec, &values, Rounding::Stochastic(NoiseKey::new(2, operation, 0)));
            errors.iter_mut().zip(values.iter().zip(decoded)).for_each(|(errors, (x, y))| errors.push(y - x));
        }
        let worst = errors.iter().map(|errors| deviations(errors).abs()).fold(0.0, f64::max);
        // Of 64 elements one may be off by more than four.
        assert!(worst < 5.0, "{scheme}: an element is off by {worst} deviations");
    }
}

fn deviations(errors: &[f64]) -> f64 {
    let count = errors.len() as f64;
    let mean = errors.iter().sum::<f64>() / count;
    let variance = errors.iter().map(|error| (error - mean).powi(2)).sum::<f64>() / (count - 1.0);
    // An extreme element has its code for itself; what is left is the rounding of the calculation.
    if variance.sqrt() < 1e-6 { 0.0 } else { mean / (variance / count).sqrt() }
}

fn assert_no_bias(errors: &[f64], what: &str) {
    let off = deviations(errors);
    assert!(off.abs() < 4.0, "{what}: the mean error is off by {off} deviations");
}

/// Ranks draw different numbers, so their errors average out.
#[test]
fn ranks_and_operations_round_independently() {
    let codec = Codec::new(Scheme::BlockAffineU8(Block::B256), DataType::Float32).unwrap();
    let mut rng = Rng(8);
    let values: Vec<f64> = (0..100_000).map(|_| f64::from(rng.normal() as f32)).collect();
    let errors = |seed, operation, rank| -> Vec<f64> {
        let rounding = Rounding::Stochastic(NoiseKey::new(seed, operation, rank));
        round_trip(&codec, &values, rounding).iter().zip(&values).map(|(y, x)| y - x).collect()
    };
    // Rounding to nearest is in both; what the noise adds must not be. The correlation of the errors, given the
    // element, is 0, so over all elements it is 0 as well.
    let correlation = |a: &[f64], b: &[f64]| {
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        product(a, b) / (product(a, a) * product(b, b)).sqrt()
    };
    let first = errors(1, 1, 0);
    assert_eq!(first, errors(1, 1, 0));
    for other in [errors(1, 1, 1), errors(1, 2, 0), errors(2, 1, 0)] {
        let correlation = correlation(&first, &other);
        assert!(correlation.abs() < 4.0 / (values.len() as f64).sqrt(), "{correlation}");
    }
    let neighbours = correlation(&first[1..], &first[..first.len() - 1]);
    assert!(neighbours.abs() < 4.0 / (values.len() as f64).sqrt(), "neighbours: {neighbours}");
    let halves = correlation(&first[32..], &first[..first.len() - 32]);
    assert!(halves.abs() < 4.0 / (values.len() as f64).sqrt(), "two of one hash: {halves}");
}
