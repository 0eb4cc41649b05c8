//! The loops, for any element and operation, and the choice among them by run-time values.
//!
//! All functions are `inline(always)`: each level calls them from a function of its own, and the loops are compiled
//! with that function's processor features. Lengths are checked by the caller; a loop ends with the shortest.

use half::{bf16, f16};

use crate::{DataType, ReduceOp, element::Lane};

/// Calls `$function` with the element type of `$data_type` as its first type argument.
macro_rules! for_type {
    ($data_type:expr, $function:ident ( $($argument:expr),* )) => {
        match $data_type {
            DataType::Uint8 => $function::<u8>($($argument),*),
            DataType::Int8 => $function::<i8>($($argument),*),
            DataType::Int16 => $function::<i16>($($argument),*),
            DataType::Uint16 => $function::<u16>($($argument),*),
            DataType::Uint32 => $function::<u32>($($argument),*),
            DataType::Int32 => $function::<i32>($($argument),*),
            DataType::Uint64 => $function::<u64>($($argument),*),
            DataType::Int64 => $function::<i64>($($argument),*),
            DataType::Float16 => $function::<f16>($($argument),*),
            DataType::BFloat16 => $function::<bf16>($($argument),*),
            DataType::Float32 => $function::<f32>($($argument),*),
            DataType::Float64 => $function::<f64>($($argument),*),
        }
    };
}

#[inline(always)]
pub(super) fn fold_in_place(data_type: DataType, op: ReduceOp, own: &mut [u8], received: &[u8]) {
    for_type!(data_type, fold_in_place_of(op, own, received));
}

#[inline(always)]
pub(super) fn fold_into(data_type: DataType, op: ReduceOp, out: &mut [u8], own: &[u8], received: &[u8]) {
    for_type!(data_type, fold_into_of(op, out, own, received));
}

#[inline(always)]
pub(super) fn finish_average(data_type: DataType, data: &mut [u8], ranks: u32) {
    for_type!(data_type, finish_average_of(data, ranks));
}

#[inline(always)]
fn fold_in_place_of<E: Lane>(op: ReduceOp, own: &mut [u8], received: &[u8]) {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => in_place(own, received, E::sum),
        ReduceOp::Prod => in_place(own, received, E::prod),
        ReduceOp::Max => in_place(own, received, E::max),
        ReduceOp::Min => in_place(own, received, E::min),
    }
}

#[inline(always)]
fn fold_into_of<E: Lane>(op: ReduceOp, out: &mut [u8], own: &[u8], received: &[u8]) {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => into(out, own, received, E::sum),
        ReduceOp::Prod => into(out, own, received, E::prod),
        ReduceOp::Max => into(out, own, received, E::max),
        ReduceOp::Min => into(out, own, received, E::min),
    }
}

#[inline(always)]
fn in_place<E: Lane>(own: &mut [u8], received: &[u8], combine: impl Fn(E, E) -> E) {
    for (own, received) in E::elements_mut(own).iter_mut().zip(E::elements(received)) {
        *own = combine(E::load(*own), E::load(*received)).store();
    }
}

#[inline(always)]
fn into<E: Lane>(out: &mut [u8], own: &[u8], received: &[u8], combine: impl Fn(E, E) -> E) {
    let operands = E::elements(own).iter().zip(E::elements(received));
    for (out, (own, received)) in E::elements_mut(out).iter_mut().zip(operands) {
        *out = combine(E::load(*own), E::load(*received)).store();
    }
}

#[inline(always)]
fn finish_average_of<E: Lane>(data: &mut [u8], ranks: u32) {
    let ranks = E::divisor(ranks);
    for element in E::elements_mut(data) {
        *element = E::load(*element).divided(ranks).store();
    }
}
