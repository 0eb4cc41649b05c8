//! The kernels with AVX2 and F16C: the generic loops compiled anew, and arithmetic of 16-bit floats by the conversion
//! instructions (f16), or by packing as compilers do not find it (bf16).

use std::arch::x86_64::*;

use super::generic;
use crate::{DataType, ReduceOp};

/// A type: f16 or bf16.
const HALF: bool = false;
const BRAIN: bool = true;

/// The operation of a loop of 16-bit floats.
const SUM: u8 = 0;
const PROD: u8 = 1;

#[target_feature(enable = "avx2,f16c")]
pub(super) fn fold_in_place(data_type: DataType, op: ReduceOp, own: &mut [u8], received: &[u8]) {
    match (data_type, op) {
        (DataType::Float16, ReduceOp::Sum | ReduceOp::Avg) => in_place::<HALF, SUM>(own, received),
        (DataType::Float16, ReduceOp::Prod) => in_place::<HALF, PROD>(own, received),
        (DataType::BFloat16, ReduceOp::Sum | ReduceOp::Avg) => in_place::<BRAIN, SUM>(own, received),
        (DataType::BFloat16, ReduceOp::Prod) => in_place::<BRAIN, PROD>(own, received),
        _ => generic::fold_in_place(data_type, op, own, received),
    }
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn fold_into(data_type: DataType, op: ReduceOp, out: &mut [u8], own: &[u8], received: &[u8]) {
    match (data_type, op) {
        (DataType::Float16, ReduceOp::Sum | ReduceOp::Avg) => into::<HALF, SUM>(out, own, received),
        (DataType::Float16, ReduceOp::Prod) => into::<HALF, PROD>(out, own, received),
        (DataType::BFloat16, ReduceOp::Sum | ReduceOp::Avg) => into::<BRAIN, SUM>(out, own, received),
        (DataType::BFloat16, ReduceOp::Prod) => into::<BRAIN, PROD>(out, own, received),
        _ => generic::fold_into(data_type, op, out, own, received),
    }
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn finish_average(data_type: DataType, data: &mut [u8], ranks: u32) {
    match data_type {
        DataType::Float16 => average::<HALF>(data, ranks),
        DataType::BFloat16 => average::<BRAIN>(data, ranks),
        _ => generic::finish_average(data_type, data, ranks),
    }
}

/// Sixteen elements as stored.
type Block = [u8; 32];

fn data_type<const TYPE: bool>() -> DataType {
    if TYPE == BRAIN { DataType::BFloat16 } else { DataType::Float16 }
}

fn operation<const OP: u8>() -> ReduceOp {
    if OP == PROD { ReduceOp::Prod } else { ReduceOp::Sum }
}

#[target_feature(enable = "avx2,f16c")]
fn in_place<const TYPE: bool, const OP: u8>(own: &mut [u8], received: &[u8]) {
    let (own_blocks, own_rest) = own.as_chunks_mut();
    let (received_blocks, received_rest) = received.as_chunks();
    for (own, received) in own_blocks.iter_mut().zip(received_blocks) {
        *own = combined::<TYPE, OP>(*own, *received);
    }
    generic::fold_in_place(data_type::<TYPE>(), operation::<OP>(), own_rest, received_rest);
}

#[target_feature(enable = "avx2,f16c")]
fn into<const TYPE: bool, const OP: u8>(out: &mut [u8], own: &[u8], received: &[u8]) {
    let (out_blocks, out_rest) = out.as_chunks_mut();
    let (own_blocks, own_rest) = own.as_chunks();
    let (received_blocks, received_rest) = received.as_chunks();
    for (out, (own, received)) in out_blocks.iter_mut().zip(own_blocks.iter().zip(received_blocks)) {
        *out = combined::<TYPE, OP>(*own, *received);
    }
    generic::fold_into(data_type::<TYPE>(), operation::<OP>(), out_rest, own_rest, received_rest);
}

#[target_feature(enable = "avx2,f16c")]
fn average<const TYPE: bool>(data: &mut [u8], ranks: u32) {
    let (blocks, rest) = data.as_chunks_mut();
    if ranks.is_power_of_two() {
        // The same number, so it is rounded alike, and faster.
        let factor = _mm256_set1_ps(1.0 / ranks as f32);
        for block in blocks {
            let [a, b] = widened::<TYPE>(*block);
            *block = narrowed::<TYPE>([_mm256_mul_ps(a, factor), _mm256_mul_ps(b, factor)]);
        }
    } else {
        let divisor = _mm256_set1_ps(ranks as f32);
        for block in blocks {
            let [a, b] = widened::<TYPE>(*block);
            *block = narrowed::<TYPE>([_mm256_div_ps(a, divisor), _mm256_div_ps(b, divisor)]);
        }
    }
    generic::finish_average(data_type::<TYPE>(), rest, ranks);
}

/// Sum or product, by way of f32, rounded once.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn combined<const TYPE: bool, const OP: u8>(own: Block, received: Block) -> Block {
    let ([a, b], [c, d]) = (widened::<TYPE>(own), widened::<TYPE>(received));
    narrowed::<TYPE>(if OP == PROD {
        [_mm256_mul_ps(a, c), _mm256_mul_ps(b, d)]
    } else {
        [_mm256_add_ps(a, c), _mm256_add_ps(b, d)]
    })
}

/// The elements as f32: of f16 the first half and the second one, of bf16 those of even and of odd number, which need
/// not move for that.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widened<const TYPE: bool>(block: Block) -> [__m256; 2] {
    if TYPE == BRAIN {
        let bits = load(block);
        [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)),
            _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(UPPER_HALF))),
        ]
    } else {
        let bits = load(block);
        [_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(bits))]
    }
}

const UPPER_HALF: i32 = 0xFFFF_0000_u32 as i32;

/// Rounded to nearest, ties to even, NaN as the one quiet NaN.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrowed<const TYPE: bool>(values: [__m256; 2]) -> Block {
    if TYPE == BRAIN {
        let [even, odd] = [carried(values[0]), carried(values[1])];
        let even = _mm256_srli_epi32::<16>(even);
        store(_mm256_blend_epi16::<0b1010_1010>(even, odd))
    } else {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        let low = _mm256_cvtps_ph::<NEAREST>(canonical(values[0], values[0]));
        let high = _mm256_cvtps_ph::<NEAREST>(canonical(values[1], values[1]));
        store(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high))
    }
}

/// The nearest bf16 in the upper halves; the lower ones are anything.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn carried(value: __m256) -> __m256i {
    let bits = _mm256_castps_si256(value);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let carried = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    _mm256_castps_si256(canonical(value, _mm256_castsi256_ps(carried)))
}

/// `result`, or where `value` is NaN, the f32 whose conversion is `F16_NAN`, and whose upper half is `BF16_NAN`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn canonical(value: __m256, result: __m256) -> __m256 {
    let nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC0_0000));
    _mm256_blendv_ps(result, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value))
}

// By way of integers rather than pointers: no alignment to keep, no `unsafe`, and the compiler makes one load or store
// of it.

#[inline]
#[target_feature(enable = "avx2")]
fn load(block: Block) -> __m256i {
    let word = |index: usize| i64::from_le_bytes(block.as_chunks().0[index]);
    _mm256_setr_epi64x(word(0), word(1), word(2), word(3))
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(lanes: __m256i) -> Block {
    let words = [
        _mm256_extract_epi64::<0>(lanes),
        _mm256_extract_epi64::<1>(lanes),
        _mm256_extract_epi64::<2>(lanes),
        _mm256_extract_epi64::<3>(lanes),
    ];
    let mut block = Block::default();
    block.as_chunks_mut().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    block
}
