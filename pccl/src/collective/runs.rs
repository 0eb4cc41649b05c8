//! The memory of [runs](Run): consecutive tensors of one operation that are dealt with as one.
//!
//! A tensor that a peer has in one buffer and a tensor that it has in two may be in one run: that is its own business.

use crate::memory::{Backup, PartMemory, RawTensor};
use pccl_protocol::{Descriptor, PartDescriptor};
use pccl_schedule::Run;
use std::{ops::Range, sync::Arc};
use tinysockets::link::{Gate, Lent, Place};

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
    /// In order. At least one, and the others are not empty; of pieces those that are not empty.
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
        if descriptor.kind().only_moves() {
            return Self::lend_pieces(raws, gate, backup, *backup_offset);
        }
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

    /// Lends the pieces of a tensor that this rank has, in order: nothing of them is saved. The rank has no memory
    /// here for the rest of the tensor, some of which it may pass on.
    fn lend_pieces(raws: &[RawTensor], gate: &Arc<Gate>, backup: &Backup, at: usize) -> Self {
        let lend = |raw: &RawTensor| TensorMemory {
            start: raw.starts_at(),
            memory: raw.lend(gate, backup, at..at),
            raw: raw.clone(),
            backup_offset: at,
        };
        Self { tensors: raws.iter().filter(|raw| raw.bytes() > 0).map(lend).collect() }
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
