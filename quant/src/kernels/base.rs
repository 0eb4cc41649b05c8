//! The kernels with the features that the target guarantees.

use super::generic;
use crate::{DataType, ReduceOp};

pub(super) fn fold_in_place(data_type: DataType, op: ReduceOp, own: &mut [u8], received: &[u8]) {
    generic::fold_in_place(data_type, op, own, received);
}

pub(super) fn fold_into(data_type: DataType, op: ReduceOp, out: &mut [u8], own: &[u8], received: &[u8]) {
    generic::fold_into(data_type, op, out, own, received);
}

pub(super) fn finish_average(data_type: DataType, data: &mut [u8], ranks: u32) {
    generic::finish_average(data_type, data, ranks);
}
