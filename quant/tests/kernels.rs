//! Every kernel, on every level of this processor, against the scalar oracle, by bytes.

use pccl_quant::{DataType, Kernels, Level, ReduceOp};
use pccl_quant_reference::{divide_scalar, fold_scalar};
use proptest::prelude::*;

fn all_kernels() -> Vec<Kernels> {
    Level::ALL.into_iter().filter_map(Kernels::at).collect()
}

/// A copy of some bytes at an address that is `offset` past a multiple of 16.
struct Misaligned {
    memory: Vec<u8>,
    range: std::ops::Range<usize>,
}

impl Misaligned {
    fn new(data: &[u8], offset: usize) -> Self {
        let memory = vec![0; data.len() + 16 + offset];
        let start = memory.as_ptr().align_offset(16) + offset;
        let mut copy = Self { memory, range: start..start + data.len() };
        copy.bytes().copy_from_slice(data);
        copy
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.range.clone()]
    }
}

/// Runs the four kernels on each level and compares each result with the oracle.
fn check(data_type: DataType, op: ReduceOp, own: &[u8], received: &[u8], ranks: u32, offsets: [usize; 4]) {
    let expected = fold_scalar(data_type, op, own, received);
    let divided = divide_scalar(data_type, own, ranks);
    for kernels in all_kernels() {
        let context = (kernels.level(), data_type, op, offsets);
        let mut received = Misaligned::new(received, offsets[1]);
        let received = &*received.bytes();

        let mut in_place = Misaligned::new(own, offsets[0]);
        kernels.fold_in_place(data_type, op, in_place.bytes(), received).unwrap();
        assert_same(data_type, in_place.bytes(), &expected, own, received, context);

        let mut out = Misaligned::new(&vec![0xA5; own.len()], offsets[2]);
        let mut source = Misaligned::new(own, offsets[0]);
        kernels.fold_into(data_type, op, out.bytes(), source.bytes(), received).unwrap();
        assert_same(data_type, out.bytes(), &expected, own, received, context);
        assert_eq!(source.bytes(), own);

        let mut saving = Misaligned::new(own, offsets[0]);
        let mut saved = Misaligned::new(&vec![0xA5; own.len()], offsets[3]);
        kernels.fold_in_place_saving(data_type, op, saving.bytes(), received, saved.bytes()).unwrap();
        assert_same(data_type, saving.bytes(), &expected, own, received, context);
        assert_eq!(saved.bytes(), own);

        let mut average = Misaligned::new(own, offsets[0]);
        kernels.finish_average(data_type, average.bytes(), ranks).unwrap();
        assert_same(data_type, average.bytes(), &divided, own, &[], (kernels.level(), ranks));
    }
}

/// Names the first element that differs, since whole buffers are too long to read.
fn assert_same(
    data_type: DataType,
    result: &[u8],
    expected: &[u8],
    own: &[u8],
    received: &[u8],
    context: impl std::fmt::Debug,
) {
    if result == expected {
        return;
    }
    let size = data_type.size_bytes();
    assert_eq!(result.len(), expected.len(), "{context:?}");
    let index = result.iter().zip(expected).position(|(a, b)| a != b).unwrap() / size;
    let element = |data: &[u8]| data.get(index * size..(index + 1) * size).map(<[u8]>::to_vec);
    panic!(
        "{context:?}, {data_type} element {index}: {:02x?}, expected {:02x?}; own {:02x?}, received {:02x?}",
        element(result),
        element(expected),
        element(own),
        element(received),
    );
}

/// The bit patterns of each type where something may go wrong.
fn specials(data_type: DataType) -> Vec<u64> {
    let bits = 8 * data_type.size_bytes();
    let mantissa_bits = match data_type {
        DataType::Float16 => 10,
        DataType::BFloat16 => 7,
        DataType::Float32 => 23,
        DataType::Float64 => 52,
        _ => {
            let edges = [
                0,
                1,
                2,
                3,
                1 << (bits - 1),
                u64::MAX >> (64 - bits),
                0x55 << (bits - 8),
                0xFF << (bits - 8),
            ];
            return edges
                .iter()
                .flat_map(|&edge| [edge, edge.wrapping_sub(1), edge.wrapping_add(1)])
                .collect();
        }
    };
    let infinity = ((1_u64 << (bits - 1 - mantissa_bits)) - 1) << mantissa_bits;
    let one = (infinity >> 1) & !((1 << mantissa_bits) - 1);
    let quiet = infinity | 1 << (mantissa_bits - 1);
    let positive = [
        0,
        1,                        // the least subnormal
        (1 << mantissa_bits) - 1, // the greatest subnormal
        1 << mantissa_bits,       // the least normal number
        one,
        one + 1,
        one + (1 << mantissa_bits),
        one - 1,
        infinity - 1, // the greatest number
        infinity - (1 << mantissa_bits),
        infinity,
        infinity + 1, // signalling NaN
        infinity + 5,
        quiet,
        quiet + 3,
    ];
    positive.iter().flat_map(|&pattern| [pattern, pattern | 1 << (bits - 1)]).collect()
}

/// All pairs of patterns, as two arrays of elements.
fn pairs(data_type: DataType, left: &[u64], right: &[u64]) -> (Vec<u8>, Vec<u8>) {
    let size = data_type.size_bytes();
    let element = |pattern: &u64| pattern.to_le_bytes()[..size].to_vec();
    let own = left.iter().flat_map(|pattern| element(pattern).repeat(right.len())).collect();
    let received = right.iter().flat_map(element).collect::<Vec<_>>().repeat(left.len());
    (own, received)
}

#[test]
fn all_pairs_of_special_values() {
    for data_type in DataType::ALL {
        let specials = specials(data_type);
        let (own, received) = pairs(data_type, &specials, &specials);
        for op in ReduceOp::ALL {
            for ranks in [1, 2, 3, 64, 127, 300, 70_000, 1 << 31, u32::MAX] {
                check(data_type, op, &own, &received, ranks, [0, 0, 0, 0]);
            }
        }
    }
}

#[test]
fn every_16_bit_float_with_every_special_value() {
    let every: Vec<u64> = (0..=u64::from(u16::MAX)).step_by(7).collect();
    for data_type in [DataType::Float16, DataType::BFloat16] {
        let (own, received) = pairs(data_type, &every, &specials(data_type));
        let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
        for (op, ranks) in ops.into_iter().zip([3, 4, 1 << 31, 1000]) {
            check(data_type, op, &own, &received, ranks, [0, 0, 0, 0]);
        }
    }
}

/// Floats of random bits are mostly of wildly different size; this brings exponents near each other, where rounding and
/// cancellation happen.
fn with_near_exponents(data_type: DataType, data: &mut [u8]) {
    let size = data_type.size_bytes();
    let (mask, near) = match data_type {
        DataType::Float16 => (0xC7, 0x38),
        DataType::BFloat16 | DataType::Float32 => (0x81, 0x3E),
        DataType::Float64 => (0x80, 0x3F),
        _ => return,
    };
    for top in data.iter_mut().skip(size - 1).step_by(size) {
        *top = *top & mask | near;
    }
}

fn operands() -> impl Strategy<Value = (DataType, Vec<u8>, Vec<u8>)> {
    (prop::sample::select(&DataType::ALL[..]), 0..400_usize, any::<bool>()).prop_flat_map(
        |(data_type, count, near)| {
            let bytes = count * data_type.size_bytes();
            let data = prop::collection::vec(any::<u8>(), bytes..=bytes).prop_map(move |mut data| {
                if near {
                    with_near_exponents(data_type, &mut data);
                }
                data
            });
            (Just(data_type), data.clone(), data)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn kernels_agree_with_the_oracle(
        (data_type, own, received) in operands(),
        op in prop::sample::select(&ReduceOp::ALL[..]),
        ranks in prop_oneof![1..300_u32, 1..u32::MAX],
        offsets in prop::array::uniform4(0..16_usize),
    ) {
        check(data_type, op, &own, &received, ranks, offsets);
    }
}

/// Longer than a block of the saving kernel, and not a multiple of it.
#[test]
fn saving_spans_blocks() {
    let own: Vec<u8> = (0..20_008_u32).map(|index| ((index * 37) >> 3) as u8).collect();
    let received: Vec<u8> = own.iter().rev().copied().collect();
    for data_type in DataType::ALL {
        check(data_type, ReduceOp::Sum, &own, &received, 3, [3, 5, 7, 9]);
    }
}
