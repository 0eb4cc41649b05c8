//! Sums of the contributions of all ranks at once, against additions one by one.

use pccl_quant::{
    DataType, Level, ReduceOp,
    quantise::{Block, Codec, Contribution, NoiseKey, Quantisation, QuantiseError, Rounding, Scheme},
};
use pccl_quant_reference::quantised_pairwise_oracle;
use pccl_testkit::random::Rng;

use super::data::{FLOATS, all_schemes, bytes_of, decode, encode, values_of};

const ELEMENTS: usize = 700;
const RANKS: usize = 5;

/// Adds and divides in f64 or, step by step, in f32.
fn average_of(sum_type: DataType, inputs: &[Vec<f64>]) -> Vec<f64> {
    let rounded = |value: f64| if sum_type == DataType::Float64 { value } else { f64::from(value as f32) };
    let sum = |index: usize| inputs[1..].iter().fold(inputs[0][index], |sum, it| rounded(sum + it[index]));
    (0..inputs[0].len()).map(|index| rounded(sum(index) / inputs.len() as f64)).collect()
}

#[test]
fn every_scheme_type_and_level_against_single_additions() {
    let mut rng = Rng(21);
    let per_block =
        [Scheme::BlockAffineU8, Scheme::BlockSymmetricI8, Scheme::BlockAffineU4, Scheme::BlockE4m3]
            .map(|scheme| scheme(Block::B64));
    let others = [Scheme::MinMax(DataType::Uint8), Scheme::ZeroPointScale(DataType::Int16)];
    let schemes = per_block.into_iter().chain(others).chain([Scheme::CastBf16, Scheme::CastF16]);
    for (scheme, data_type) in schemes.flat_map(|scheme| FLOATS.map(|it| (scheme, it))) {
        let codec = Codec::new(scheme, data_type).unwrap();
        let sum_codec = Codec::new(scheme, codec.sum_type()).unwrap();
        let inputs: Vec<Vec<u8>> = (0..RANKS)
            .map(|_| bytes_of(data_type, &(0..ELEMENTS).map(|_| rng.normal()).collect::<Vec<_>>()))
            .collect();
        let encoded: Vec<_> = inputs.iter().map(|it| encode(&codec, it, Rounding::NearestEven)).collect();
        for own in 0..RANKS {
            // Of the owner, and of one more rank of its site.
            let is_plain = |rank: usize| rank == own || rank == (own + 2) % RANKS;
            let contribution = |rank: usize| match is_plain(rank) {
                true => Contribution::Plain(&inputs[rank]),
                false => Contribution::Encoded(&encoded[rank]),
            };
            let values = |rank: usize| match is_plain(rank) {
                true => values_of(data_type, &inputs[rank]),
                false => values_of(codec.sum_type(), &decode(&sum_codec, &encoded[rank], ELEMENTS)),
            };
            let average = average_of(codec.sum_type(), &(0..RANKS).map(values).collect::<Vec<_>>());
            let average = bytes_of(codec.sum_type(), &average);
            let rounding = match scheme.has_stochastic() && own % 2 == 0 {
                true => Rounding::Stochastic(NoiseKey::new(1, 2, own as u32)),
                false => Rounding::NearestEven,
            };
            let expected = encode(&sum_codec, &average, rounding);
            for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                let contributions: Vec<_> = (0..RANKS).map(contribution).collect();
                let (mut sums, mut found) = (vec![0xA5; average.len()], vec![0xA5; expected.len()]);
                let codec = codec.at(level).unwrap();
                codec
                    .combine(&contributions, Some(RANKS as u32), &mut sums, &mut found, rounding, 0)
                    .unwrap();
                assert!(sums == average, "{scheme} of {data_type}, {level:?}: sums");
                assert!(found == expected, "{scheme} of {data_type}, {level:?}");
            }
        }
    }
}

/// The values that all ranks hold in the end, each chunk by way of its owner.
fn pairwise(
    how: Quantisation,
    codec: &Codec,
    op: ReduceOp,
    (tag, part): (u64, u32),
    inputs: &[Vec<u8>],
) -> Vec<u8> {
    let (ranks, size) = (inputs.len(), codec.data_type().size_bytes());
    let count = inputs[0].len() / size;
    let mut result = Vec::new();
    for chunk in 0..ranks {
        let elements = count / ranks + usize::from(chunk < count % ranks);
        let bytes = result.len()..result.len() + elements * size;
        let rounding = |rank: usize| {
            let operation = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(part) << 32 ^ chunk as u64;
            how.rounding(operation, rank as u32)
        };
        let others = (0..ranks - 1).map(|step| (chunk + step) % ranks);
        let encoded: Vec<_> =
            others.map(|rank| encode(codec, &inputs[rank][bytes.clone()], rounding(rank))).collect();
        let owner = (chunk + ranks - 1) % ranks;
        let mut contributions: Vec<_> = encoded.iter().map(|it| Contribution::Encoded(it)).collect();
        contributions.push(Contribution::Plain(&inputs[owner][bytes.clone()]));
        let mut sums = vec![0xA5; elements * codec.sum_type().size_bytes()];
        let mut travelling = vec![0xA5; codec.encoded_len(elements).expect("it fits")];
        let divisor = (op == ReduceOp::Avg).then_some(ranks as u32);
        codec
            .combine(&contributions, divisor, &mut sums, &mut travelling, rounding(owner), 0)
            .expect("a sum");
        result.extend(decode(codec, &travelling, elements));
    }
    result
}

/// Chunks of several blocks, unequal ones, and empty ones; an infinity here and there.
#[test]
fn exchanges_of_all_schemes_and_types_are_those_of_the_oracle() {
    let mut rng = Rng(23);
    for (case, (scheme, data_type)) in
        all_schemes().into_iter().flat_map(|scheme| FLOATS.map(|it| (scheme, it))).enumerate()
    {
        let op = [ReduceOp::Sum, ReduceOp::Avg][case % 2];
        let how = Quantisation::new(scheme);
        let how = if case % 3 == 0 && scheme.has_stochastic() { how.stochastic(case as u64) } else { how };
        let codec = how.codec(data_type, op).expect("a float");
        for (ranks, count) in [(3, 500), (4, 3), (8, 4001)] {
            let values = |rng: &mut Rng| -> Vec<f64> {
                let value = |rng: &mut Rng| {
                    if rng.next().is_multiple_of(2000) { f64::INFINITY } else { rng.normal() }
                };
                (0..count).map(|_| value(rng)).collect()
            };
            let inputs: Vec<_> = (0..ranks).map(|_| bytes_of(data_type, &values(&mut rng))).collect();
            let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            let expected = quantised_pairwise_oracle(data_type, op, how, (77, 3), &views);
            assert!(
                pairwise(how, &codec, op, (77, 3), &inputs) == expected,
                "{how} of {data_type}, {op}, {ranks} ranks, {count} elements"
            );
        }
    }
}

/// 16-bit sums of many ranks are rounded once, not once per rank.
#[test]
fn the_error_does_not_grow_with_the_number_of_ranks() {
    let codec = Codec::new(Scheme::CastBf16, DataType::BFloat16).unwrap();
    let one = bytes_of(DataType::BFloat16, &[1.0; 64]);
    for ranks in [2, 300, 1000] {
        // From 256 on, adding 1 to a bf16 changes nothing.
        let contributions = vec![Contribution::Encoded(&one); ranks];
        let (mut sums, mut encoded) = ([0; 4 * 64], [0; 2 * 64]);
        codec.combine(&contributions, None, &mut sums, &mut encoded, Rounding::NearestEven, 0).unwrap();
        for value in values_of(DataType::BFloat16, &decode(&codec, &encoded, 64)) {
            assert!((value - ranks as f64).abs() <= ranks as f64 / 256.0, "{ranks} ones are {value}");
        }
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let codec = Codec::new(Scheme::BlockAffineU8(Block::B64), DataType::Float32).unwrap();
    let (plain, mut sums, mut encoded) = ([0; 16], [0; 16], [0; 12]);
    let mut combine = |contributions: &[Contribution<'_>]| {
        codec.combine(contributions, None, &mut sums, &mut encoded, Rounding::NearestEven, 0)
    };
    assert_eq!(combine(&[]), Err(QuantiseError::NoContribution));
    let one = [Contribution::Plain(&plain)];
    assert_eq!(combine(&one), Ok(()));
    for wrong in [Contribution::Plain(&plain[..12]), Contribution::Encoded(&plain)] {
        assert!(matches!(combine(&[one[0], wrong]), Err(QuantiseError::EncodedLength { .. })));
    }
}
