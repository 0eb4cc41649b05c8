//! The kernels with AVX2 and F16C: the generic loops compiled anew, and f16 arithmetic by the conversion instructions.

use std::arch::x86_64::*;

use super::generic;
use crate::{DataType, ReduceOp};

#[target_feature(enable = "avx2,f16c")]
pub(super) fn fold_in_place(data_type: DataType, op: ReduceOp, own: &mut [u8], received: &[u8]) {
    match (data_type, op) {
        (DataType::Float16, ReduceOp::Sum | ReduceOp::Avg) => f16_in_place::<false>(own, received),
        (DataType::Float16, ReduceOp::Prod) => f16_in_place::<true>(own, received),
        _ => generic::fold_in_place(data_type, op, own, received),
    }
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn fold_into(data_type: DataType, op: ReduceOp, out: &mut [u8], own: &[u8], received: &[u8]) {
    match (data_type, op) {
        (DataType::Float16, ReduceOp::Sum | ReduceOp::Avg) => f16_into::<false>(out, own, received),
        (DataType::Float16, ReduceOp::Prod) => f16_into::<true>(out, own, received),
        _ => generic::fold_into(data_type, op, out, own, received),
    }
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn finish_average(data_type: DataType, data: &mut [u8], ranks: u32) {
    generic::finish_average(data_type, data, ranks);
}

/// Eight f16 as stored.
type Block = [u8; 16];

fn operation<const PROD: bool>() -> ReduceOp {
    if PROD { ReduceOp::Prod } else { ReduceOp::Sum }
}

#[target_feature(enable = "avx2,f16c")]
fn f16_in_place<const PROD: bool>(own: &mut [u8], received: &[u8]) {
    let (own_blocks, own_rest) = own.as_chunks_mut::<16>();
    let (received_blocks, received_rest) = received.as_chunks::<16>();
    for (own, received) in own_blocks.iter_mut().zip(received_blocks) {
        *own = f16_block::<PROD>(*own, *received);
    }
    generic::fold_in_place(DataType::Float16, operation::<PROD>(), own_rest, received_rest);
}

#[target_feature(enable = "avx2,f16c")]
fn f16_into<const PROD: bool>(out: &mut [u8], own: &[u8], received: &[u8]) {
    let (out_blocks, out_rest) = out.as_chunks_mut::<16>();
    let (own_blocks, own_rest) = own.as_chunks::<16>();
    let (received_blocks, received_rest) = received.as_chunks::<16>();
    for (out, (own, received)) in out_blocks.iter_mut().zip(own_blocks.iter().zip(received_blocks)) {
        *out = f16_block::<PROD>(*own, *received);
    }
    generic::fold_into(DataType::Float16, operation::<PROD>(), out_rest, own_rest, received_rest);
}

/// Sum or product of eight f16, by way of f32, rounded once, NaN as the one quiet NaN.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn f16_block<const PROD: bool>(own: Block, received: Block) -> Block {
    let own = _mm256_cvtph_ps(load(own));
    let received = _mm256_cvtph_ps(load(received));
    let result = if PROD { _mm256_mul_ps(own, received) } else { _mm256_add_ps(own, received) };
    let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(result, result);
    // The f32 whose conversion is `F16_NAN`.
    let nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC0_0000));
    let canonical = _mm256_blendv_ps(result, nan, is_nan);
    store(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(block: Block) -> __m128i {
    // By way of integers rather than pointers: no alignment to keep, no `unsafe`, and the compiler makes one load of it.
    let bits = u128::from_le_bytes(block);
    _mm_set_epi64x((bits >> 64) as i64, bits as i64)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(lanes: __m128i) -> Block {
    let low = _mm_cvtsi128_si64(lanes) as u64;
    let high = _mm_extract_epi64::<1>(lanes) as u64;
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}
