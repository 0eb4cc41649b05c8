//! Runs: consecutive tensors of one operation that are dealt with as one.
//!
//! Tensors of the same type and operator that are not quantised follow each other in one sequence of bytes. The plan
//! cuts that sequence: its chunks and frames may span tensors, so that many small tensors cost what one of their size
//! costs. Which tensors form a run follows from the descriptor, so all peers find the same. Where each rank has a part
//! of every tensor of its own, as in a gather, tensors stay alone.

use super::shape::Shape;
use pccl_protocol::PartDescriptor;
use std::ops::Range;

/// Tensors that are dealt with as one.
#[derive(Debug, Clone)]
pub struct Run {
    /// The one that they are.
    pub descriptor: PartDescriptor,
    /// Their numbers in the operation.
    pub tensors: Range<usize>,
}

impl Run {
    fn takes(&self, part: &PartDescriptor) -> bool {
        let is_same = self.descriptor == PartDescriptor { count: self.descriptor.count, ..*part };
        is_same && part.quantisation.is_none()
    }
}

/// The runs of these tensors.
pub(crate) fn runs_of(parts: &[PartDescriptor], shape: &Shape) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if shape.spans_tensors() && run.takes(part) => {
                // All tensors are in memory, so their elements can be counted.
                run.descriptor.count += part.count;
                run.tensors.end += 1;
            }
            _ => runs.push(Run { descriptor: *part, tensors: index..index + 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_quant::{
        DataType, ReduceOp,
        quantise::{Block, Quantisation, Scheme},
    };
    use proptest::prelude::*;

    fn part(kind: u8, count: u64) -> PartDescriptor {
        let data_type = if kind == 1 { DataType::Float16 } else { DataType::Float32 };
        let op = if kind == 2 { ReduceOp::Max } else { ReduceOp::Sum };
        let quantisation = (kind == 3).then(|| Quantisation::new(Scheme::BlockAffineU8(Block::B64)));
        PartDescriptor { quantisation, ..PartDescriptor::new(count, data_type, op) }
    }

    proptest! {
        #[test]
        fn runs_are_as_long_as_can_be(kinds in prop::collection::vec((0u8..4, 0u64..9), 1..20)) {
            let parts: Vec<_> = kinds.iter().map(|&(kind, count)| part(kind, count)).collect();
            let runs = runs_of(&parts, &Shape::all_reduce(3));
            let mut next = 0;
            for run in &runs {
                prop_assert_eq!(run.tensors.start, next);
                next = run.tensors.end;
                let of_run = &kinds[run.tensors.clone()];
                prop_assert!(of_run.iter().all(|(kind, _)| *kind == of_run[0].0));
                prop_assert!(of_run.len() == 1 || of_run[0].0 != 3, "what is quantised stays alone");
                prop_assert_eq!(run.descriptor.count, of_run.iter().map(|(_, count)| count).sum::<u64>());
            }
            prop_assert_eq!(next, kinds.len());
            for pair in runs.windows(2) {
                let kind_of = |run: &Run| kinds[run.tensors.start].0;
                prop_assert!(kind_of(&pair[0]) != kind_of(&pair[1]) || kind_of(&pair[0]) == 3);
            }
        }
    }

    #[test]
    fn parts_of_ranks_stay_in_their_tensors() {
        let parts = [part(0, 6), part(0, 6)];
        for (shape, runs) in [
            (Shape::all_reduce(3), 1),
            (Shape::broadcast(3, 1), 1),
            (Shape::reduce(3, 1), 1),
            (Shape::all_gather(3, &[]), 2),
            (Shape::reduce_scatter(3, &[1, 2, 3]), 2),
        ] {
            assert_eq!(runs_of(&parts, &shape).len(), runs, "{shape:?}");
        }
    }
}
