//! Results that reductions have to yield, said once more, one element at a time: the supervisor's own arithmetic, which
//! has no code in common with the library's.
//!
//! Of N elements over n ranks a chunk has N div n, each of the first N mod n chunks one more. Chunk c starts with the
//! value of rank c and is folded at the ranks c+1, c+2, ... (mod n), the rank's own value on the left. 16-bit floats
//! are added in f32 and rounded at each rank. An average is divided once, at the end.

use crate::{
    coding::{self, Coding, chunks},
    workload::Buffer,
};
use half::f16;
use pccl::ReduceOp;
use std::ops::Range;

/// Arithmetic of one element.
trait Arithmetic: Copy {
    fn fold(self, received: Self, op: ReduceOp) -> Self;
    fn divide(self, ranks: usize) -> Self;
}

macro_rules! integer {
    ($ty:ty) => {
        impl Arithmetic for $ty {
            fn fold(self, received: Self, op: ReduceOp) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => self.wrapping_add(received),
                    ReduceOp::Prod => self.wrapping_mul(received),
                    ReduceOp::Max => Ord::max(self, received),
                    ReduceOp::Min => Ord::min(self, received),
                }
            }
            fn divide(self, ranks: usize) -> Self {
                (i128::from(self) / ranks as i128) as Self
            }
        }
    };
}
integer!(i64);
integer!(u8);

macro_rules! float {
    ($ty:ty) => {
        impl Arithmetic for $ty {
            fn fold(self, received: Self, op: ReduceOp) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => self + received,
                    ReduceOp::Prod => self * received,
                    // Inputs are finite and never zero, so the plain comparison says it all.
                    ReduceOp::Max => {
                        if self > received {
                            self
                        } else {
                            received
                        }
                    }
                    ReduceOp::Min => {
                        if self < received {
                            self
                        } else {
                            received
                        }
                    }
                }
            }
            fn divide(self, ranks: usize) -> Self {
                self / ranks as Self
            }
        }
    };
}
float!(f32);
float!(f64);

impl Arithmetic for f16 {
    fn fold(self, received: Self, op: ReduceOp) -> Self {
        Self::from_f32(self.to_f32().fold(received.to_f32(), op))
    }
    fn divide(self, ranks: usize) -> Self {
        Self::from_f32(self.to_f32().divide(ranks))
    }
}

/// Elements of an all-reduce or a sum that pass the ranks from `first` on.
fn chain<T: Arithmetic>(inputs: &[&Vec<T>], first: usize, elements: Range<usize>, op: ReduceOp) -> Vec<T> {
    let ranks = inputs.len();
    let folded = |index: usize| {
        let fold = |value: T, step: usize| inputs[(first + step) % ranks][index].fold(value, op);
        let value = (1..ranks).fold(inputs[first % ranks][index], fold);
        if op == ReduceOp::Avg { value.divide(ranks) } else { value }
    };
    elements.map(folded).collect()
}

fn ring<T: Arithmetic>(inputs: &[&Vec<T>], op: ReduceOp) -> Vec<T> {
    let chunks = chunks(inputs.len(), inputs[0].len()).enumerate();
    chunks.flat_map(|(chunk, elements)| chain(inputs, chunk, elements, op)).collect()
}

/// Computes with the numbers of buffers of one type and length.
macro_rules! vectors {
    ($inputs:expr, $variant:ident, $compute:expr) => {{
        let vectors: Option<Vec<_>> = $inputs
            .iter()
            .map(|input| match input {
                Buffer::$variant(data) => Some(data),
                _ => None,
            })
            .collect();
        let vectors = vectors.filter(|all| all.iter().all(|data| data.len() == all[0].len()))?;
        Some(Buffer::$variant($compute(&vectors)))
    }};
}

/// The same for any type.
macro_rules! each_type {
    ($inputs:expr, |$vectors:ident| $compute:expr) => {
        match $inputs.first()? {
            Buffer::F16(_) => vectors!($inputs, F16, |$vectors: &[_]| $compute),
            Buffer::F32(_) => vectors!($inputs, F32, |$vectors: &[_]| $compute),
            Buffer::F64(_) => vectors!($inputs, F64, |$vectors: &[_]| $compute),
            Buffer::I64(_) => vectors!($inputs, I64, |$vectors: &[_]| $compute),
            Buffer::U8(_) => vectors!($inputs, U8, |$vectors: &[_]| $compute),
        }
    };
}

/// The result of reducing `inputs`, which are in ring order. By pairwise exchange it differs only where they are
/// quantised. `None` if there are none, or they differ in type or length.
pub(crate) fn all_reduce(
    inputs: &[&Buffer],
    op: ReduceOp,
    coding: Option<Coding>,
    pairwise: bool,
) -> Option<Buffer> {
    match (inputs.first()?, coding) {
        (Buffer::F32(_), Some(coding)) => {
            let by = if pairwise { coding::pairwise } else { coding::ring };
            vectors!(inputs, F32, |vectors: &[_]| by(vectors, op, coding))
        }
        (_, Some(_)) => None,
        (_, None) => each_type!(inputs, |vectors| ring(vectors, op)),
    }
}

/// The result that the rank `owner` gets of reducing these elements, when it alone gets them. Quantised, it rounds no
/// more.
pub(crate) fn to_owner(
    inputs: &[&Buffer],
    owner: usize,
    elements: Range<usize>,
    op: ReduceOp,
    coding: Option<Coding>,
) -> Option<Buffer> {
    let first = owner + 1;
    match (inputs.first()?, coding) {
        (Buffer::F32(_), Some(coding)) => {
            vectors!(inputs, F32, |vectors: &[_]| { coding::chain(vectors, first, elements, op, coding) })
        }
        (_, Some(_)) => None,
        (_, None) => each_type!(inputs, |vectors| chain(vectors, first, elements, op)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_a_chunk_starts_at_its_own_rank() {
        let huge = 16_777_216.0_f32;
        let inputs = [
            Buffer::F32(vec![huge, 1.0, 1.0, 2.0]),
            Buffer::F32(vec![1.0, 1.0, huge, 3.0]),
            Buffer::F32(vec![1.0, 1.0, 1.0, 4.0]),
        ];
        let inputs: Vec<&Buffer> = inputs.iter().collect();
        // Chunk 0: (huge + 1) + 1 = huge. Chunk 1 (one element): (huge at rank 1, + 1) + 1. Chunk 2: 4 + 2 + 3.
        let sum = all_reduce(&inputs, ReduceOp::Sum, None, false);
        assert_eq!(sum, Some(Buffer::F32(vec![huge, 3.0, huge, 9.0])));
    }

    #[test]
    fn integers_wrap_and_sixteen_bit_floats_round_at_each_rank() {
        let fold = |a, b, op| all_reduce(&[&a, &b], op, None, false);
        assert_eq!(
            fold(Buffer::U8(vec![200]), Buffer::U8(vec![100]), ReduceOp::Sum),
            Some(Buffer::U8(vec![44]))
        );
        assert_eq!(
            fold(Buffer::I64(vec![-3]), Buffer::I64(vec![2]), ReduceOp::Min),
            Some(Buffer::I64(vec![-3]))
        );
        let half = |value: f32| f16::from_f32(value);
        // 2048 + 1 rounds to 2048 in f16; twice.
        let inputs = [2048.0, 1.0, 1.0].map(|value| Buffer::F16(vec![half(value)]));
        let sum = all_reduce(&inputs.iter().collect::<Vec<_>>(), ReduceOp::Sum, None, false);
        assert_eq!(sum, Some(Buffer::F16(vec![half(2048.0)])));
    }

    #[test]
    fn the_owner_comes_last() {
        let huge = 16_777_216.0_f32;
        let inputs = [vec![huge, 2.0], vec![1.0, 3.0], vec![1.0, 4.0]].map(Buffer::F32);
        let inputs: Vec<&Buffer> = inputs.iter().collect();
        let of = |owner, elements, op| to_owner(&inputs, owner, elements, op, None);
        // (1 + 1) + huge at rank 0, (1 + huge) + 1 at rank 1.
        assert_eq!(of(0, 0..1, ReduceOp::Sum), Some(Buffer::F32(vec![huge + 2.0])));
        assert_eq!(of(1, 0..1, ReduceOp::Sum), Some(Buffer::F32(vec![huge])));
        assert_eq!(of(2, 1..2, ReduceOp::Avg), Some(Buffer::F32(vec![3.0])));
    }

    #[test]
    fn what_does_not_fit_together_has_no_result() {
        let (a, b, c) = (Buffer::U8(vec![1]), Buffer::U8(vec![1, 2]), Buffer::I64(vec![1]));
        assert_eq!(all_reduce(&[&a, &b], ReduceOp::Sum, None, false), None);
        assert_eq!(all_reduce(&[&a, &c], ReduceOp::Sum, None, false), None);
        assert_eq!(all_reduce(&[], ReduceOp::Sum, None, false), None);
        assert_eq!(all_reduce(&[&a, &a], ReduceOp::Sum, Some(Coding::Bf16), false), None);
    }
}
