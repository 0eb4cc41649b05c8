//! The kernels of quantisation, run by the stand-in, against the scalar oracle, by bytes.

use crate::common::Filled;
use pccl_quant::{
    DataType,
    quantise::{Block, Codec, Rounding, Scheme},
};
use pccl_quant_reference::{
    codecs::{self, Seeds},
    data::{FLOATS, elements_of},
    divide_scalar,
};
use pccl_testkit::{
    random::Rng,
    standin::{Count, Standin},
};

/// Every scheme that has kernels.
fn schemes(block: Block) -> [Scheme; 7] {
    [
        Scheme::BlockAffineU8(block),
        Scheme::BlockAffineU4(block),
        Scheme::BlockSymmetricI8(block),
        Scheme::BlockE4m3(block),
        Scheme::BlockE5m2(block),
        Scheme::CastBf16,
        Scheme::CastF16,
    ]
}

fn same(what: &str, (scheme, data_type, seed): (Scheme, DataType, u64), found: &[u8], expected: &[u8]) {
    let at = (0..expected.len().max(found.len())).find(|at| found.get(*at) != expected.get(*at));
    let Some(at) = at else { return };
    let bytes = |all: &[u8]| all[at..all.len().min(at + 16)].to_vec();
    panic!(
        "{what} of {data_type} by {scheme}, seed {seed}: byte {at} of {}, {:02x?}, not {:02x?}",
        expected.len(),
        bytes(found),
        bytes(expected)
    );
}

/// Encodes, takes a hop, and decodes `elements` elements that follow from `seed`, as the oracle does.
fn check(standin: &Standin, scheme: Scheme, data_type: DataType, elements: usize, seed: u64) {
    let mut rng = Rng::keyed(&[seed]);
    let kind = (seed % 10) as u8;
    let data = elements_of(data_type, kind, elements, &mut rng);
    let own = elements_of(data_type, kind, elements, &mut rng);
    let seeds = Seeds { seed: rng.next(), operation: rng.next(), rank: rng.next() as u32 };
    let seeds = (scheme.has_stochastic() && rng.next().is_multiple_of(2)).then_some(seeds);
    let first_element = rng.next() >> 7 << 6;
    let rounding = (seeds.map_or(Rounding::NearestEven, Seeds::rounding), first_element);
    let ranks = rng.next().is_multiple_of(2).then_some(1 + (rng.next() as u32 >> (rng.next() % 32)));
    let (codec, what) = (Codec::new(scheme, data_type).expect("a codec"), (scheme, data_type, seed));
    let skew = if seed.is_multiple_of(3) { 0 } else { rng.index(17) };

    let mut filled = Filled::new(standin, &data, skew);
    assert_eq!(filled.memory.has_codec(&codec), Ok(elements > 0), "{scheme}");
    let expected = codecs::encode(scheme, data_type, &data, seeds, first_element);
    let mut encoded = vec![0xA5; codec.encoded_len(elements).expect("a length")];
    filled.memory.encode(&codec, &mut encoded, rounding).expect("encoded");
    same("codes", what, &encoded, &expected);

    filled.memory.decode_set(&codec, &encoded).expect("decoded");
    let set = codecs::decode(scheme, data_type, &encoded, &data, false);
    same("values", what, &filled.memory.to_vec().expect("a copy"), &set);

    let filled = Filled::new(standin, &own, skew);
    let mut sum = codecs::decode(scheme, data_type, &encoded, &own, true);
    if let Some(ranks) = ranks {
        sum = divide_scalar(data_type, &sum, ranks);
    }
    let expected = codecs::encode(scheme, data_type, &sum, seeds, first_element);
    filled.memory.add_and_encode(&codec, &mut encoded, ranks, rounding).expect("a hop");
    same("codes of a sum", what, &encoded, &expected);
    same("own elements", what, &filled.memory.to_vec().expect("a copy"), &own);
}

#[test]
fn every_length_around_a_block_is_that_of_the_oracle() {
    let standin = Standin::load().expect("the stand-in");
    let lengths: Vec<usize> = (0..=130).chain([255, 256, 257, 1023, 1024, 1025, 2047, 5000]).collect();
    for (number, elements) in (0..).zip(lengths) {
        for (place, block) in (0..).zip([Block::B64, Block::B256]) {
            for (other, scheme) in (0..).zip(schemes(block)) {
                for (last, data_type) in (0..).zip(FLOATS) {
                    check(
                        &standin,
                        scheme,
                        data_type,
                        elements,
                        997 * number + 131 * place + 17 * other + last,
                    );
                }
            }
        }
    }
    assert!(standin.count(Count::Kernels) > 1000, "the kernels have run");
}

#[test]
fn every_kind_of_elements_is_that_of_the_oracle() {
    let standin = Standin::load().expect("the stand-in");
    for block in Block::ALL {
        for scheme in schemes(block) {
            for data_type in FLOATS {
                for seed in 0..30 {
                    check(&standin, scheme, data_type, 1 + (seed as usize * 733) % 3000, seed);
                }
            }
        }
    }
}

#[test]
fn more_than_a_batch_is_that_of_the_oracle() {
    let standin = Standin::load().expect("the stand-in");
    for (scheme, data_type) in [
        (Scheme::BlockAffineU4(Block::B1024), DataType::BFloat16),
        (Scheme::BlockAffineU8(Block::B64), DataType::Float64),
        (Scheme::CastF16, DataType::Float32),
    ] {
        for seed in [10, 21] {
            check(&standin, scheme, data_type, (2 << 18) + 77, seed);
        }
    }
}

#[test]
fn any_bytes_decode_as_the_oracle_decodes_them() {
    let standin = Standin::load().expect("the stand-in");
    for scheme in schemes(Block::B64) {
        for data_type in FLOATS {
            let (codec, elements) = (Codec::new(scheme, data_type).expect("a codec"), 1000);
            let bytes = Rng::keyed(&[7]).bytes(codec.encoded_len(elements).expect("a length"));
            let own = vec![0; elements * data_type.size_bytes()];
            let mut filled = Filled::new(&standin, &own, 0);
            filled.memory.decode_set(&codec, &bytes).expect("decoded");
            let expected = codecs::decode(scheme, data_type, &bytes, &own, false);
            same("values", (scheme, data_type, 7), &filled.memory.to_vec().expect("a copy"), &expected);
        }
    }
}

#[test]
fn what_has_no_kernel_is_told() {
    let standin = Standin::load().expect("the stand-in");
    let filled = Filled::new(&standin, &[0; 64], 0);
    let codec = Codec::new(Scheme::MinMax(DataType::Uint8), DataType::Float32).expect("a codec");
    assert_eq!(filled.memory.has_codec(&codec), Ok(false));
    let mut encoded = vec![0; codec.encoded_len(16).expect("a length")];
    let refused = filled.memory.encode(&codec, &mut encoded, (Rounding::NearestEven, 0));
    assert!(matches!(refused, Err(pccl_cuda::CudaError::NoCompiler(_))), "{refused:?}");
}
