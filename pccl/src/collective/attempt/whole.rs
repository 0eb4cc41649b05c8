//! The memory of a small all-reduce in which each contribution travels as a whole: all tensors of the operation are one
//! frame.
//!
//! The fold goes in the same order as on the pipelined ring: chunk `c` begins with the contribution of rank `c`. So all
//! algorithms give the same bytes, on every rank.
//!
//! **Access to the bytes.** Contributions lie in memory of the library, one area per rank, and so does the result. An
//! area is written once, by the RX thread whose frame it is or by the thread that folds, and only read afterwards. The
//! caller's memory is read when the attempt is prepared and written after the outcome: a failed attempt has nothing to
//! restore.

use super::{
    fold::{BLOCK_BYTES, Kind, Scratch, fold_inputs},
    store::Store,
};
use crate::{
    collective::{coding::Stop, runs::RunMemory},
    memory::{Backup, PartMemory, RawTensor},
};
use pccl_protocol::Descriptor;
use pccl_quant::ReduceOp;
use pccl_schedule::{Arrival, Frame, Input, Program, Step, Unit};
use std::{ops::Range, sync::Arc};
use tinysockets::link::{FrameHeader, Gate, Landing, Lent, Place};

/// See the module's documentation.
pub(super) struct Whole {
    program: Arc<Program>,
    /// Each run, with its first byte in a contribution.
    runs: Vec<(usize, RunMemory)>,
    /// Bytes of a contribution.
    bytes: usize,
    /// Is lent with the tensors, though nothing is saved there.
    _backup: Arc<Backup>,
    memory: Arc<Backup>,
    /// One area per rank, then that of the result.
    areas: Lent,
}

impl Whole {
    pub(super) fn new(
        program: Arc<Program>,
        (descriptor, raws): (&Descriptor, &[RawTensor]),
        gate: &Arc<Gate>,
        (backup, room): (Arc<Backup>, &dyn Fn(usize) -> Arc<Backup>),
    ) -> Self {
        let plan = program.plan();
        let (mut bytes, mut saved) = (0, 0);
        let runs = plan.runs().map(|run| {
            let start = bytes;
            bytes += raws[run.tensors.clone()].iter().map(RawTensor::bytes).sum::<usize>();
            (start, RunMemory::lend(run, (descriptor, raws), gate, &backup, &mut saved))
        });
        let runs = runs.collect();
        let all = (plan.ranks() + 1) * bytes;
        let memory = room(all);
        let areas = memory.lend(0..all, gate);
        Self { program, runs, bytes, _backup: backup, memory, areas }
    }

    /// Bytes of the contribution of a rank, or, for the number of ranks, of the result. Frames have the same number as
    /// their stage.
    fn area(&self, number: usize, bytes: Range<usize>) -> Range<usize> {
        number * self.bytes + bytes.start..number * self.bytes + bytes.end
    }

    fn place(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        Place { memory: &self.areas, range: self.area(header.stage as usize, done..self.bytes) }
    }

    /// Has `copy` work on the tensors of the caller and on their bytes in an area.
    fn with_tensors(
        &self,
        area: usize,
        copy: impl Fn(&PartMemory, Range<usize>, Range<usize>) -> Option<()>,
    ) -> Result<(), Stop> {
        for (start, run) in &self.runs {
            for stretch in run.stretches(0..self.bytes - start) {
                let at = start + stretch.at..start + stretch.at + stretch.bytes.len();
                copy(stretch.memory, stretch.bytes, self.area(area, at)).ok_or(Stop::Closed)?;
            }
        }
        Ok(())
    }

    /// Folds all contributions.
    fn fold(&self) -> Result<(), Stop> {
        let (plan, result) = (self.program.plan(), self.bytes * self.program.plan().ranks());
        let mut scratch = Scratch::default();
        let mut fold = |frame: Frame, all: &[u8], result: &mut [u8]| {
            let Some(step) = self.program.folding_step(&frame) else { return Ok(()) };
            let descriptor = plan.run(frame.part).descriptor;
            let ranks = (descriptor.op == ReduceOp::Avg).then_some(plan.ranks() as u32);
            let kind = Kind { data_type: descriptor.data_type, op: descriptor.op, ranks };
            let first = self.runs[frame.part].0 + frame.offset;
            for start in (first..first + frame.len).step_by(BLOCK_BYTES) {
                let block = start..(first + frame.len).min(start + BLOCK_BYTES);
                let input = |number: usize| match step.inputs[number] {
                    Input::Own => &all[self.area(plan.rank(), block.clone())],
                    Input::Received(hop) => &all[self.area(hop.stage, block.clone())],
                };
                fold_inputs(kind, step, input, &mut result[block.clone()], &mut scratch)?;
            }
            Ok(())
        };
        let fold = |all: &[u8]| {
            self.areas.update(result..result + self.bytes, |result| {
                plan.all_frames().try_for_each(|frame| fold(frame, all, result))
            })
        };
        self.areas.view(0..result, fold).flatten().ok_or(Stop::Closed)?
    }
}

impl Store for Whole {
    fn prepare(&self) -> Result<(), Stop> {
        let plan = self.program.plan();
        self.with_tensors(plan.rank(), |memory, bytes, area| {
            memory.own().view(bytes, |own| self.areas.update(area, |area| area.copy_from_slice(own)))?
        })
    }

    fn admit(&self, _: &Arrival<'_>) -> Landing {
        Landing::Direct
    }

    fn granule_bytes(&self, _: usize) -> usize {
        1
    }

    fn fold_piece(&self, _: &Arrival<'_>, _: usize, _: &[u8]) -> Result<(), Stop> {
        Err(Stop::Failed("a whole contribution is not folded while it comes".to_owned()))
    }

    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.place(header, done)
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.place(header, done)
    }

    fn complete(&self, _: &Frame, _: &Unit, step: &Step) -> Result<(), Stop> {
        if step.forwards() { Ok(()) } else { self.fold() }
    }

    fn deliver(&self) -> Result<(), Stop> {
        self.with_tensors(self.program.plan().ranks(), |memory, bytes, area| {
            memory
                .result()
                .update(bytes, |out| self.areas.view(area, |result| out.copy_from_slice(result)))?
        })
    }

    fn restore(&self) {}

    fn memory(&self) -> &Arc<Backup> {
        &self.memory
    }
}
