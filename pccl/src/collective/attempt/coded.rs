//! Quantised tensors: what an attempt does with encoded bytes.
//!
//! **Where bytes lie.** A quantised tensor has *staging* memory for the whole of its encoded form, reserved before the
//! vote, so that no thread ever waits for room. Frames are received there and sent from there.
//!
//! **Reduce.** When a unit is complete, the rank adds it to its own elements in working memory, and encodes the sum
//! over it; that is sent on. The last rank, which owns the chunk, divides an average before it encodes. If the result
//! stays with the owner, it is not encoded: the owner adds and divides where the result goes.
//!
//! **Gather.** Frames are sent on as they came. Everybody decodes them, the owner its own bytes, too: that is why all
//! ranks end with the same.
//!
//! **Decoding.** Out of place a unit is decoded as soon as it is complete, or, of what the owner has encoded at the
//! beginning, by the caller's thread when the outcome is known. In place, and on a device, the caller's thread does all
//! that: until then the caller's memory is only read, so that nothing has to be saved or put back.
//!
//! **On a device.** Elements are encoded, added to and decoded where they are; staging memory is on the host. Of a sum
//! that stays with its owner, the owner's elements are copied, since nothing is encoded there.
//!
//! The thread that completes a unit is the only one to touch it until its slots are in the next state.

use super::{Attempt, GATHERED, Part, REDUCED, StageKind};
use crate::{
    collective::{
        coding::{Coding, ELEMENT_BYTES_MAX, PIECE_ELEMENTS, Piece, Stop},
        progress::local_fault,
    },
    memory::{LentDevice, PartMemory},
};
use pccl_quant::{ReduceOp, finish_average, quantise::Rounding};
use pccl_schedule::{Frame, Unit};
use std::{ops::Range, sync::atomic::Ordering};

/// Pieces of elements on a device that are copied at once, at most.
const PIECES_AT_ONCE: usize = 256;

impl Attempt {
    /// Encodes the chunk whose route starts here, so that it can be sent.
    pub(super) fn encode_own(&self) -> Result<(), Stop> {
        let Some(chunk) = self.plan.sent_chunk(0) else { return Ok(()) };
        for (index, coding) in self.coded_parts() {
            let unit = self.plan.all_units(index, chunk);
            coding.encode(self.parts[index].memory.whole(), &unit, self.rounding(index, coding, &unit))?;
        }
        Ok(())
    }

    /// The quantised tensors.
    fn coded_parts(&self) -> impl Iterator<Item = (usize, &Coding)> {
        self.parts.iter().enumerate().filter_map(|(index, part)| Some((index, part.coding.as_ref()?)))
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
        let (kind, memory) = (self.plan.stage_kind(stage), self.parts[index].memory.whole());
        let is_out_of_place = matches!(memory, PartMemory::OutOfPlace { .. });
        match kind {
            StageKind::Reduce => self.reduce(index, coding, unit, stage),
            StageKind::LastReduce if !self.plan.shape().distributes() => {
                if is_out_of_place {
                    self.complete_sum(index, coding, unit)
                } else {
                    Ok(())
                }
            }
            StageKind::LastReduce | StageKind::Gather => {
                if kind == StageKind::LastReduce {
                    self.reduce(index, coding, unit, stage)?;
                }
                if is_out_of_place {
                    coding.decode(unit, memory)?;
                    memory.result().finished(coding.bytes_of(unit));
                }
                Ok(())
            }
        }
    }

    /// Puts results into the caller's memory that are not there yet. On the caller's thread, after everything has been
    /// received and before [`super::Progress::retract`]. The error is a defect of this library.
    pub(crate) fn deliver(&self) -> Result<(), String> {
        if self.plan.stages() == 0 {
            return Ok(());
        }
        let shape = self.plan.shape();
        for chunk in 0..shape.chunks() {
            let is_own = shape.owner(chunk) == self.plan.rank();
            for (index, coding) in self.coded_parts() {
                let (memory, unit) = (self.parts[index].memory.whole(), self.plan.all_units(index, chunk));
                let delivered = match memory {
                    PartMemory::InPlace { .. } | PartMemory::OnDevice(_) if shape.distributes() => {
                        coding.decode(&unit, memory)
                    }
                    PartMemory::InPlace { .. } if is_own => self.complete_sum(index, coding, &unit),
                    PartMemory::OnDevice(device) if is_own => self.complete_on(device, index, coding, &unit),
                    PartMemory::OutOfPlace { .. } if is_own && !shape.folds() => coding.decode(&unit, memory),
                    _ => Ok(()),
                };
                delivered.map_err(Stop::after_the_outcome)?;
            }
        }
        Ok(())
    }

    /// Adds a unit to the own elements where the result goes.
    fn complete_sum(&self, index: usize, coding: &Coding, unit: &Unit) -> Result<(), Stop> {
        let part = &self.parts[index];
        for piece in coding.pieces(unit) {
            let bytes = piece.bytes.clone();
            let added = part.memory.whole().result().update(bytes.clone(), |sum| {
                if let PartMemory::OutOfPlace { send, .. } = part.memory.whole() {
                    send.view(bytes, |own| sum.copy_from_slice(own))?;
                }
                coding
                    .staging
                    .view(piece.encoded.clone(), |encoded| self.add_last(part, coding, encoded, sum))
            });
            added.flatten().ok_or(Stop::Closed)??;
        }
        Ok(())
    }

    /// The same for elements on a device, which are copied for it: a sum that stays with its owner is not encoded
    /// again.
    fn complete_on(
        &self,
        device: &LentDevice,
        index: usize,
        coding: &Coding,
        unit: &Unit,
    ) -> Result<(), Stop> {
        let (pieces, own): (Vec<Piece>, _) =
            (coding.pieces(unit).collect(), self.plan.chunk(index, unit.chunk).0);
        let size = coding.codec.data_type().size_bytes();
        let start = device.result_start(&(own.start * size..own.end * size));
        for batch in pieces.chunks(PIECES_AT_ONCE) {
            let (Some(first), Some(last)) = (batch.first(), batch.last()) else { break };
            let all = first.bytes.start..last.bytes.end;
            let mut sums = device.to_host(all.clone()).ok_or(Stop::Closed)??;
            for Piece { bytes, encoded, .. } in batch {
                let sum = &mut sums[bytes.start - all.start..bytes.end - all.start];
                let add = |encoded: &[u8]| self.add_last(&self.parts[index], coding, encoded, sum);
                coding.staging.view(encoded.clone(), add).ok_or(Stop::Closed)??;
            }
            device.set(all.start - start..all.end - start, &sums).ok_or(Stop::Closed)??;
        }
        Ok(())
    }

    /// Adds what has come to the owner of a chunk to its own elements.
    fn add_last(&self, part: &Part, coding: &Coding, encoded: &[u8], sum: &mut [u8]) -> Result<(), Stop> {
        coding.codec.decode_add(encoded, sum)?;
        if part.op == ReduceOp::Avg {
            finish_average(part.data_type, sum, self.plan.ranks() as u32)?;
        }
        Ok(())
    }

    /// Adds a unit to the own elements, encodes the sum in its place, and sends it on.
    fn reduce(&self, index: usize, coding: &Coding, unit: &Unit, stage: usize) -> Result<(), Stop> {
        let part = &self.parts[index];
        let rounding = self.rounding(index, coding, unit);
        let divides = part.op == ReduceOp::Avg && self.plan.stage_kind(stage) == StageKind::LastReduce;
        if let PartMemory::OnDevice(device) = part.memory.whole() {
            coding.add_on(device, unit, divides.then_some(self.plan.ranks() as u32), rounding)?;
        } else {
            self.reduce_on_host(part, coding, unit, (divides, rounding))?;
        }
        for slot in unit.slots.clone() {
            self.states[slot].store(REDUCED, Ordering::Release);
        }
        self.send_on(self.plan.frames_of_unit(index, unit), stage);
        Ok(())
    }

    fn reduce_on_host(
        &self,
        part: &Part,
        coding: &Coding,
        unit: &Unit,
        (divides, rounding): (bool, Rounding),
    ) -> Result<(), Stop> {
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
        Ok(())
    }

    fn rounding(&self, index: usize, coding: &Coding, unit: &Unit) -> Rounding {
        let tensor = self.plan.run(index).tensors.start;
        coding.rounding(self.progress.id().tag.number, self.plan.rank(), tensor, unit)
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
        self.memory.whole().own().view(bytes, |own| scratch.copy_from_slice(own))?;
        Some(work(scratch))
    }

    /// Runs `work` on a copy of the own elements in memory that nothing else needs before the result comes: the backup,
    /// or the receive buffer. `None` when the gate is closed.
    fn in_spare<R>(&self, bytes: Range<usize>, work: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let memory = self.memory.whole();
        let (own, spare) = match memory {
            PartMemory::InPlace { data, backup } => (data, backup),
            _ => (memory.own(), memory.result()),
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
