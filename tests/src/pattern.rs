//! Deterministic tensor contents: what a peer puts in and what a test expects come from the same numbers.

use half::{bf16, f16};
use pccl_quant::{DataType, ReduceOp};
use pccl_testkit::random::Rng;

/// A good mixture of 64 bits (splitmix64).
#[must_use]
pub fn mix(seed: u64) -> u64 {
    Rng(seed).next()
}

/// The content of a tensor of `count` elements. Integers are any bit patterns. Of floats, most are ordinary numbers of
/// various sizes whose sums and products have to be rounded; about one in 32 is an infinity, a NaN (some with a
/// payload), a zero of either sign, a subnormal, or the greatest number.
#[must_use]
pub fn bytes(data_type: DataType, count: usize, seed: u64) -> Vec<u8> {
    rarely_special(data_type, count, seed, 0)
}

/// As [`bytes`], but of what would be an infinity or another special value only one in `2^rarity_bits` is.
#[must_use]
pub fn rarely_special(data_type: DataType, count: usize, seed: u64, rarity_bits: u32) -> Vec<u8> {
    let size = data_type.size_bytes();
    let start = mix(seed);
    let random = |index: usize| {
        let random = mix(start ^ (index as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93));
        let ordinary = (random >> 16).trailing_zeros() < rarity_bits;
        random | u64::from(ordinary) << 5
    };
    let mut out = vec![0; count * size];
    if data_type == DataType::Float32 {
        // The usual type, and the largest tensors: worth a loop of its own.
        for (index, element) in out.as_chunks_mut().0.iter_mut().enumerate() {
            *element = float32(random(index)).to_le_bytes();
        }
        return out;
    }
    for (index, element) in out.chunks_exact_mut(size).enumerate() {
        let random = random(index);
        let bits = match data_type {
            DataType::Float16 => u64::from(float16(random)),
            DataType::BFloat16 => u64::from(bfloat16(random)),
            DataType::Float64 => float64(random),
            _ => random,
        };
        element.copy_from_slice(&bits.to_le_bytes()[..size]);
    }
    out
}

/// Signed, 1 to 2 times a power of two between 2^-4 and 2^11.
fn ordinary(random: u64) -> f64 {
    let mantissa = 1.0 + (random >> 16) as f64 / (1u64 << 48) as f64;
    let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
    sign * mantissa * f64::from(1 << ((random >> 1) & 15)) / 16.0
}

fn special(random: u64) -> Option<usize> {
    (random & 0x3E0 == 0).then_some(((random >> 10) & 7) as usize)
}

fn float16(random: u64) -> u16 {
    const SPECIAL: [u16; 8] = [0x7C00, 0xFC00, 0x7E00, 0xFD01, 0x8000, 0x0000, 0x0001, 0x7BFF];
    special(random).map_or_else(|| f16::from_f64(ordinary(random)).to_bits(), |kind| SPECIAL[kind])
}

fn bfloat16(random: u64) -> u16 {
    const SPECIAL: [u16; 8] = [0x7F80, 0xFF80, 0x7FC0, 0xFF81, 0x8000, 0x0000, 0x0001, 0x7F7F];
    special(random).map_or_else(|| bf16::from_f64(ordinary(random)).to_bits(), |kind| SPECIAL[kind])
}

fn float32(random: u64) -> u32 {
    const SPECIAL: [u32; 8] =
        [0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFF80_1234, 0x8000_0000, 0, 0x0000_0001, 0x7F7F_FFFF];
    special(random).map_or_else(|| (ordinary(random) as f32).to_bits(), |kind| SPECIAL[kind])
}

fn float64(random: u64) -> u64 {
    const SPECIAL: [u64; 8] = [
        0x7FF0 << 48,
        0xFFF0 << 48,
        0x7FF8 << 48,
        (0xFFF0 << 48) | 0x1234,
        1 << 63,
        0,
        1,
        0x7FEF_FFFF_FFFF_FFFF,
    ];
    special(random).map_or_else(|| ordinary(random).to_bits(), |kind| SPECIAL[kind])
}

/// State hash of some bytes, as text.
#[must_use]
pub fn digest(content: &[u8]) -> String {
    pccl_hash::tree_hash(content).to_string()
}

/// The result of a ring all-reduce of these inputs. The independent reference, but for large sums of f32, which it is
/// too slow for; a unit test compares the two.
#[must_use]
pub fn expected(data_type: DataType, op: ReduceOp, inputs_in_ring_order: &[&[u8]]) -> Vec<u8> {
    let large = inputs_in_ring_order.first().is_some_and(|input| input.len() > 1 << 20);
    if large && data_type == DataType::Float32 && op == ReduceOp::Sum {
        return sum_f32(inputs_in_ring_order);
    }
    pccl_quant_reference::ring_all_reduce_oracle(data_type, op, inputs_in_ring_order)
}

fn sum_f32(inputs: &[&[u8]]) -> Vec<u8> {
    let ranks = inputs.len();
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let count = inputs[0].len() / 4;
    let mut out = Vec::with_capacity(count * 4);
    let mut start = 0;
    for chunk in 0..ranks {
        let end = start + count / ranks + usize::from(chunk < count % ranks);
        let mut partial = floats(&inputs[chunk][start * 4..end * 4]);
        for step in 1..ranks {
            let own = floats(&inputs[(chunk + step) % ranks][start * 4..end * 4]);
            for (partial, own) in partial.iter_mut().zip(own) {
                let sum = own + *partial;
                *partial = if sum.is_nan() { f32::from_bits(0x7FC0_0000) } else { sum };
            }
        }
        out.extend(partial.iter().flat_map(|value| value.to_le_bytes()));
        start = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_sum_is_the_reference() {
        let inputs: Vec<_> = (0..4).map(|seed| bytes(DataType::Float32, 10_001, seed)).collect();
        for ranks in 2..=4 {
            let inputs: Vec<&[u8]> = inputs[..ranks].iter().map(Vec::as_slice).collect();
            let reference =
                pccl_quant_reference::ring_all_reduce_oracle(DataType::Float32, ReduceOp::Sum, &inputs);
            assert!(sum_f32(&inputs) == reference);
        }
    }

    #[test]
    fn contents_depend_on_the_seed_and_hold_special_values() {
        let one = bytes(DataType::Float32, 10_000, 1);
        assert!(one == bytes(DataType::Float32, 10_000, 1));
        assert!(one != bytes(DataType::Float32, 10_000, 2));
        let floats: Vec<f32> = one.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        assert!(floats.iter().any(|value| value.is_nan()));
        assert!(floats.iter().any(|value| value.is_infinite()));
        assert!(floats.iter().any(|value| value.to_bits() == 0x8000_0000));
        assert!(floats.iter().filter(|value| value.is_normal()).count() > 9_000);
    }
}
