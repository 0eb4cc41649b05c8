//! Runs: consecutive tensors of one operation that are dealt with as one.
//!
//! Tensors of the same type and operator that are not quantised follow each other in one sequence of bytes. The plan
//! cuts that sequence: its chunks and frames may span tensors, so that many small tensors cost what one of their size
//! costs. Which tensors form a run follows from the descriptor, so all peers find the same. Where each rank has a part
//! of every tensor of its own, as in a gather, tensors stay alone.
//!
//! A tensor that a peer has in one buffer and a tensor that it has in two may be in one run: that is its own business.

use super::shape::Shape;
use crate::memory::{Backup, PartMemory, RawTensor};
use pccl_protocol::{Descriptor, PartDescriptor};
use std::{ops::Range, sync::Arc};
use tinysockets::link::{Gate, Lent, Place};

/// Tensors that are dealt with as one.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// The one that they are.
    pub(crate) descriptor: PartDescriptor,
    /// Their numbers in the operation.
    pub(crate) tensors: Range<usize>,
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

/// Bytes of backup that these tensors need.
pub(crate) fn backup_bytes(descriptor: &Descriptor, raws: &[RawTensor]) -> usize {
    descriptor.parts.iter().zip(raws).map(|(part, raw)| part_backup_bytes(part, raw)).sum()
}

/// Of a quantised tensor nothing has to be saved; a tensor that cannot be cut adds up in the backup.
fn part_backup_bytes(part: &PartDescriptor, raw: &RawTensor) -> usize {
    match &part.quantisation {
        Some(quantisation) if quantisation.scheme().can_be_cut() => 0,
        _ if raw.is_saved() => raw.bytes(),
        _ => 0,
    }
}

/// The memory of a run as one attempt uses it.
#[derive(Debug)]
pub(crate) struct RunMemory {
    /// At least one; the others are not empty.
    tensors: Vec<TensorMemory>,
}

#[derive(Debug)]
struct TensorMemory {
    /// First byte in the run.
    start: usize,
    memory: PartMemory,
    raw: RawTensor,
    backup_offset: usize,
}

/// Bytes of a run that lie in one tensor.
#[derive(Debug)]
pub(crate) struct Stretch<'a> {
    /// That of the tensor.
    pub(crate) memory: &'a PartMemory,
    /// The bytes of the tensor.
    pub(crate) bytes: Range<usize>,
    /// How many bytes of the range that was asked for lie before them.
    pub(crate) at: usize,
}

impl Stretch<'_> {
    /// The bytes of the range that was asked for.
    pub(crate) fn in_range(&self) -> Range<usize> {
        self.at..self.at + self.bytes.len()
    }
}

impl RunMemory {
    /// Lends the tensors of a run, of those of an operation, behind `gate`. They take their part of `backup` from
    /// `backup_offset` on, which is advanced.
    pub(crate) fn lend(
        run: &Run,
        (descriptor, raws): (&Descriptor, &[RawTensor]),
        gate: &Arc<Gate>,
        backup: &Backup,
        backup_offset: &mut usize,
    ) -> Self {
        let (mut tensors, mut start) = (Vec::with_capacity(run.tensors.len()), 0);
        for index in run.tensors.clone() {
            let (part, raw) = (&descriptor.parts[index], &raws[index]);
            let saved = *backup_offset..*backup_offset + part_backup_bytes(part, raw);
            *backup_offset = saved.end;
            if raw.bytes() > 0 || run.tensors.len() == 1 {
                let (memory, raw) = (raw.lend(gate, backup, saved.clone()), raw.clone());
                tensors.push(TensorMemory { start, memory, raw, backup_offset: saved.start });
            }
            start += raws[index].bytes();
        }
        if tensors.is_empty() {
            let (first, at) = (&raws[run.tensors.start], *backup_offset);
            let (memory, raw) = (first.lend(gate, backup, at..at), first.clone());
            tensors.push(TensorMemory { start: 0, memory, raw, backup_offset: at });
        }
        Self { tensors }
    }

    /// The memory of the only tensor: of one that is quantised.
    pub(crate) fn whole(&self) -> &PartMemory {
        &self.tensors[0].memory
    }

    /// The tensors in which some bytes of the run lie.
    pub(crate) fn stretches(&self, range: Range<usize>) -> impl Iterator<Item = Stretch<'_>> {
        let tensors = self.tensors[self.tensor_with(range.start)..].iter();
        let touched = tensors.take_while(move |tensor| tensor.start < range.end);
        touched.map(move |tensor| {
            let start = range.start.max(tensor.start);
            let end = range.end.min(tensor.start + tensor.raw.bytes());
            let bytes = start - tensor.start..end - tensor.start;
            Stretch { memory: &tensor.memory, bytes, at: start - range.start }
        })
    }

    /// Says that results are where they go, and that nobody writes them any more.
    pub(crate) fn finished(&self, range: Range<usize>) {
        for Stretch { memory, bytes, .. } in self.stretches(range) {
            memory.result().finished(bytes);
        }
    }

    /// Where the first bytes of the range lie, in the memory that `which` picks.
    pub(crate) fn place(&self, range: Range<usize>, which: impl Fn(&PartMemory) -> &Lent) -> Place<'_> {
        let tensor = &self.tensors[self.tensor_with(range.start)];
        let end = range.end.min(tensor.start + tensor.raw.bytes());
        Place { memory: which(&tensor.memory), range: range.start - tensor.start..end - tensor.start }
    }

    /// Copies saved bytes back into tensors that are saved. As [`RawTensor::restore`].
    pub(crate) fn restore(&self, range: Range<usize>, backup: &Backup) {
        for tensor in self.tensors.iter().filter(|tensor| tensor.raw.is_saved()) {
            let start = range.start.max(tensor.start);
            let end = range.end.min(tensor.start + tensor.raw.bytes());
            if start < end {
                tensor.raw.restore(start - tensor.start..end - tensor.start, backup, tensor.backup_offset);
            }
        }
    }

    /// The tensor in which a byte lies that the run has.
    fn tensor_with(&self, byte: usize) -> usize {
        self.tensors.partition_point(|tensor| tensor.start <= byte).saturating_sub(1)
    }
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
