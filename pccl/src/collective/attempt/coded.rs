//! Quantised tensors: what an attempt does with encoded bytes.
//!
//! **Where bytes lie.** A quantised tensor has *staging* memory for the whole of its encoded form, reserved before the
//! vote, so that no thread ever waits for room. Frames are received there and sent from there.
//!
//! **Reduce.** When a unit is complete, the rank adds it to its own elements in working memory, and encodes the sum
//! over it; that is sent on. The last rank, which owns the chunk, divides an average before it encodes.
//!
//! **Gather.** Frames are sent on as they came. Everybody decodes them, the owner its own bytes, too: that is why all
//! ranks end with the same.
//!
//! **Decoding.** Out of place a unit is decoded as soon as it is complete. In place the caller's thread does that when
//! the outcome is known: until then the caller's memory is only read, so that nothing has to be saved or put back.
//!
//! Whoever completes a unit is the only one to touch it until its slots are in the next state.

use super::{Attempt, GATHERED, Part, REDUCED, StageKind};
use crate::{
    collective::{
        coding::{Coding, ELEMENT_BYTES_MAX, PIECE_ELEMENTS, Stop},
        plan::{Frame, Unit},
        progress::local_fault,
    },
    memory::PartMemory,
};
use pccl_quant::{ReduceOp, finish_average, quantise::Rounding};
use std::{ops::Range, sync::atomic::Ordering};

impl Attempt {
    /// Encodes the own chunk, so that it can be sent. On the thread that votes, before the vote.
    pub(crate) fn prepare(&self) {
        if self.plan.stages() == 0 {
            return;
        }
        for frame in self.plan.frames_of(self.plan.sent_chunk(0)) {
            let part = &self.parts[frame.part];
            let Some(coding) = &part.coding else { continue };
            let unit = self.plan.unit_of(&frame);
            if unit.slots.start != frame.slot {
                continue;
            }
            let rounding = self.rounding(frame.part, coding, &unit);
            match coding.encode(part.memory.own(), &unit, rounding) {
                Ok(()) => {}
                Err(Stop::Closed) => return,
                Err(Stop::Failed(text)) => return self.progress.report(local_fault(text)),
            }
        }
    }

    /// A frame of a quantised tensor is in its staging memory. `false`: the attempt cannot go on.
    pub(super) fn arrived_coded(&self, stage: usize, frame: &Frame, coding: &Coding) -> bool {
        let kind = self.plan.stage_kind(stage);
        let unit = self.plan.unit_of(frame);
        if kind == StageKind::Gather {
            // As it came, whether its unit is complete or not.
            self.states[frame.slot].store(GATHERED, Ordering::Release);
            self.send_on(std::iter::once(*frame), stage);
        }
        // The thread that counts the last frame sees what the others have received.
        let here = &self.here[unit.slots.start];
        if here.fetch_add(1, Ordering::AcqRel) + 1 < unit.slots.len() as u32 {
            return true;
        }
        here.store(0, Ordering::Release);
        match self.unit_complete(frame.part, coding, &unit, stage) {
            Ok(()) => true,
            Err(Stop::Closed) => false,
            Err(Stop::Failed(text)) => {
                self.progress.report(local_fault(text));
                false
            }
        }
    }

    fn unit_complete(&self, index: usize, coding: &Coding, unit: &Unit, stage: usize) -> Result<(), Stop> {
        let kind = self.plan.stage_kind(stage);
        if kind != StageKind::Gather {
            self.reduce(index, coding, unit, stage)?;
        }
        match &self.parts[index].memory {
            PartMemory::OutOfPlace { recv, .. } if kind != StageKind::Reduce => coding.decode(unit, recv),
            _ => Ok(()),
        }
    }

    /// Decodes the results of what is reduced in place. On the caller's thread, after everything has been received and
    /// before [`super::Progress::retract`]. The error is a defect of this library.
    pub(crate) fn decode_in_place(&self) -> Result<(), String> {
        for frame in self.plan.all_frames() {
            let part = &self.parts[frame.part];
            let (Some(coding), PartMemory::InPlace { data, .. }) = (&part.coding, &part.memory) else {
                continue;
            };
            let unit = self.plan.unit_of(&frame);
            if unit.slots.start != frame.slot {
                continue;
            }
            coding.decode(&unit, data).map_err(Stop::after_the_outcome)?;
        }
        Ok(())
    }

    /// Adds a unit to the own elements, encodes the sum in its place, and sends it on.
    fn reduce(&self, index: usize, coding: &Coding, unit: &Unit, stage: usize) -> Result<(), Stop> {
        let part = &self.parts[index];
        let rounding = self.rounding(index, coding, unit);
        let divides = part.op == ReduceOp::Avg && self.plan.stage_kind(stage) == StageKind::LastReduce;
        let is_cut = coding.codec.piece_elements().is_some();
        let mut scratch = [0; PIECE_ELEMENTS * ELEMENT_BYTES_MAX];
        for piece in coding.pieces(unit) {
            let add_and_encode = |work: &mut [u8]| {
                coding.staging.update(piece.encoded.clone(), |encoded| -> Result<(), Stop> {
                    coding.codec.decode_add(encoded, work)?;
                    if divides {
                        finish_average(part.data_type, work, self.plan.ranks() as u32)?;
                    }
                    Ok(coding.codec.encode(work, encoded, rounding, piece.first_in_chunk)?)
                })
            };
            let bytes = piece.bytes.clone();
            let done = if is_cut {
                part.in_scratch(&mut scratch, bytes, add_and_encode)
            } else {
                part.in_spare(bytes, add_and_encode)
            };
            done.flatten().ok_or(Stop::Closed)??;
        }
        for slot in unit.slots.clone() {
            self.states[slot].store(REDUCED, Ordering::Release);
        }
        self.send_on(self.plan.frames_of_unit(index, unit), stage);
        Ok(())
    }

    fn rounding(&self, index: usize, coding: &Coding, unit: &Unit) -> Rounding {
        coding.rounding(self.progress.id().tag, self.plan.rank(), index, unit)
    }
}

impl Part {
    /// Runs `work` on a copy of the own elements, which are not more than a piece. `None` when the gate is closed.
    fn in_scratch<R>(
        &self,
        scratch: &mut [u8],
        bytes: Range<usize>,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let scratch = &mut scratch[..bytes.len()];
        self.memory.own().view(bytes, |own| scratch.copy_from_slice(own))?;
        Some(work(scratch))
    }

    /// Runs `work` on a copy of the own elements in memory that nothing else needs before the result comes: the backup,
    /// or the receive buffer. `None` when the gate is closed.
    fn in_spare<R>(&self, bytes: Range<usize>, work: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let (own, spare) = match &self.memory {
            PartMemory::InPlace { data, backup } => (data, backup),
            PartMemory::OutOfPlace { send, recv } => (send, recv),
        };
        let copied = |own: &[u8]| {
            spare.update(bytes.clone(), |copy| {
                copy.copy_from_slice(own);
                work(copy)
            })
        };
        own.view(bytes.clone(), copied).flatten()
    }
}
