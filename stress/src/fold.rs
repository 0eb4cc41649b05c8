//! What an all-reduce has to yield, said once more, one element at a time: the supervisor's own arithmetic, which has
//! no code in common with the library's.
//!
//! Of N elements over n ranks a chunk has N div n, each of the first N mod n chunks one more. Chunk c starts with the
//! value of rank c and is folded at the ranks c+1, c+2, ... (mod n), the rank's own value on the left. 16-bit floats
//! are added in f32 and rounded at each rank. An average is divided once, at the end.

use crate::{
    coding::{self, Coding},
    workload::Buffer,
};
use half::f16;
use pccl::ReduceOp;

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

fn ring<T: Arithmetic>(inputs: &[&Vec<T>], op: ReduceOp) -> Vec<T> {
    let (ranks, count) = (inputs.len(), inputs[0].len());
    let mut result = Vec::with_capacity(count);
    for chunk in 0..ranks {
        let len = count / ranks + usize::from(chunk < count % ranks);
        let first = result.len();
        for (offset, &starting) in inputs[chunk][first..first + len].iter().enumerate() {
            let mut value = starting;
            for step in 1..ranks {
                value = inputs[(chunk + step) % ranks][first + offset].fold(value, op);
            }
            result.push(if op == ReduceOp::Avg { value.divide(ranks) } else { value });
        }
    }
    result
}

/// The result of reducing `inputs`, which are in ring order. By pairwise exchange it differs only where they are
/// quantised. `None` if there are none, or they differ in type or length.
pub(crate) fn all_reduce(
    inputs: &[&Buffer],
    op: ReduceOp,
    coding: Option<Coding>,
    pairwise: bool,
) -> Option<Buffer> {
    macro_rules! fold {
        ($variant:ident) => {
            fold!($variant, |vectors: &[_]| ring(vectors, op))
        };
        ($variant:ident, $ring:expr) => {{
            let vectors: Option<Vec<_>> = inputs
                .iter()
                .map(|input| match input {
                    Buffer::$variant(data) => Some(data),
                    _ => None,
                })
                .collect();
            let vectors = vectors.filter(|all| all.iter().all(|data| data.len() == all[0].len()))?;
            Some(Buffer::$variant($ring(&vectors)))
        }};
    }
    match (inputs.first()?, coding) {
        (Buffer::F32(_), Some(coding)) if pairwise => {
            fold!(F32, |vectors: &[_]| coding::pairwise(vectors, op, coding))
        }
        (Buffer::F32(_), Some(coding)) => fold!(F32, |vectors: &[_]| coding::ring(vectors, op, coding)),
        (_, Some(_)) => None,
        (Buffer::F16(_), None) => fold!(F16),
        (Buffer::F32(_), None) => fold!(F32),
        (Buffer::F64(_), None) => fold!(F64),
        (Buffer::I64(_), None) => fold!(I64),
        (Buffer::U8(_), None) => fold!(U8),
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
    fn what_does_not_fit_together_has_no_result() {
        let (a, b, c) = (Buffer::U8(vec![1]), Buffer::U8(vec![1, 2]), Buffer::I64(vec![1]));
        assert_eq!(all_reduce(&[&a, &b], ReduceOp::Sum, None, false), None);
        assert_eq!(all_reduce(&[&a, &c], ReduceOp::Sum, None, false), None);
        assert_eq!(all_reduce(&[], ReduceOp::Sum, None, false), None);
        assert_eq!(all_reduce(&[&a, &a], ReduceOp::Sum, Some(Coding::Bf16), false), None);
    }
}
