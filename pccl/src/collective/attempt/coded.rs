//! Quantised tensors: what is done with encoded bytes.
//!
//! **Where bytes lie.** A quantised tensor has *staging* memory for the whole of its encoded form, reserved before the
//! vote, so that no thread ever waits for room. Values are encoded there, results received, and both sent from there.
//!
//! **One value and the own elements**, as on the ring: it is received in staging memory. When a unit is complete, the
//! rank adds it to its own elements in working memory, and encodes the sum over it. The last rank divides an average
//! before it encodes. If the result stays with it, it is not encoded: it adds and divides where the result goes.
//!
//! **Several values** have memory of their own, and are added with the own elements, which are not encoded, in working
//! memory; the sum is encoded once. So the error does not depend on the number of ranks. Within a site values are not
//! encoded at all.
//!
//! **Results** are sent on as they came. Everybody decodes them, the rank that has encoded them, too: that is why all
//! end with the same. Out of place a unit is decoded as soon as it is complete, or, if this rank alone had it, by the
//! caller's thread when the outcome is known. In place, and on a device, the caller's thread does all that: until then
//! the caller's memory is only read, so that nothing has to be saved or put back.
//!
//! **On a device.** Elements are encoded, added to and decoded where they are; staging memory is on the host. Of a sum
//! of several values, and of one that stays with its owner, the owner's elements are copied.

use super::tensors::{Part, Tensors};
use crate::{
    collective::coding::{Coding, ELEMENT_BYTES_MAX, PIECE_ELEMENTS, Piece, Stop},
    memory::{LentDevice, PartMemory},
};
use pccl_quant::{
    ReduceOp, finish_average,
    quantise::{Contribution, Rounding},
};
use pccl_schedule::{Input, Step, Unit};
use std::ops::Range;

/// Pieces of elements on a device that are copied at once, at most.
const PIECES_AT_ONCE: usize = 256;

/// The work that is left for a result when the outcome is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Decode,
    /// The last value that has come to it is yet to be added.
    Add,
}

impl Tensors {
    /// Encodes own elements, so that they can be sent.
    pub(super) fn encode(&self, index: usize, unit: &Unit) -> Result<(), Stop> {
        let part = &self.parts[index];
        let Some(coding) = &part.coding else { return Ok(()) };
        coding.encode(part.memory.whole(), unit, self.rounding(index, coding, unit))
    }

    /// Copies own elements of a device to the host that are sent as they are.
    pub(super) fn copy_elements(&self, part: &Part, unit: &Unit) -> Result<(), Stop> {
        let (PartMemory::OnDevice(device), Some(coding)) = (part.memory.whole(), &part.coding) else {
            return Ok(());
        };
        let bytes = coding.bytes_of(unit);
        let elements = device.to_host(bytes.clone()).ok_or(Stop::Closed)??;
        part.copied.update(bytes, |copied| copied.copy_from_slice(&elements)).ok_or(Stop::Closed)
    }

    /// Everything is here that a step for a unit takes in.
    pub(super) fn complete_coded(
        &self,
        index: usize,
        coding: &Coding,
        unit: &Unit,
        step: &Step,
    ) -> Result<(), Stop> {
        let (part, memory) = (&self.parts[index], self.parts[index].memory.whole());
        let is_out_of_place = matches!(memory, PartMemory::OutOfPlace { .. });
        if step.streams() && stays(step) {
            return if is_out_of_place { self.complete_sum(part, coding, unit) } else { Ok(()) };
        }
        if step.streams() {
            self.reduce(index, coding, unit, step)?;
        } else if !step.forwards() {
            self.combine(index, coding, unit, step)?;
        }
        if step.is_result && is_out_of_place {
            coding.decode(unit, memory)?;
            memory.result().finished(coding.bytes_of(unit));
        }
        Ok(())
    }

    /// Decodes results, or completes sums, that are not in the caller's memory yet.
    pub(super) fn deliver_coded(&self) -> Result<(), Stop> {
        if self.program.plan().ranks() == 1 || self.parts.iter().all(|part| part.coding.is_none()) {
            return Ok(());
        }
        let left = |part: &Part, step: &Step| {
            let is_done = matches!(part.memory.whole(), PartMemory::OutOfPlace { .. }) && !step.is_own();
            let is_due = part.coding.is_some() && step.is_result && !is_done;
            is_due.then_some(if step.streams() && stays(step) { Left::Add } else { Left::Decode })
        };
        for (index, unit, left) in self.rows(left) {
            let part = &self.parts[index];
            let (Some(coding), memory) = (&part.coding, part.memory.whole()) else { continue };
            match (left, memory) {
                (Left::Decode, _) => coding.decode(&unit, memory)?,
                (Left::Add, PartMemory::OnDevice(device)) => {
                    self.complete_on(device, index, coding, &unit)?
                }
                (Left::Add, _) => self.complete_sum(part, coding, &unit)?,
            }
        }
        Ok(())
    }

    /// Adds a unit to the own elements where the result goes.
    fn complete_sum(&self, part: &Part, coding: &Coding, unit: &Unit) -> Result<(), Stop> {
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
            (coding.pieces(unit).collect(), self.program.plan().chunk(index, unit.chunk).0);
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
            finish_average(part.data_type, sum, self.program.plan().ranks() as u32)?;
        }
        Ok(())
    }

    /// Adds a unit to the own elements, and encodes the sum in its place.
    fn reduce(&self, index: usize, coding: &Coding, unit: &Unit, step: &Step) -> Result<(), Stop> {
        let part = &self.parts[index];
        let (rounding, ranks) = (self.rounding(index, coding, unit), self.kind(part, step).ranks);
        match part.memory.whole() {
            PartMemory::OnDevice(device) => coding.add_on(device, unit, ranks, rounding),
            _ => self.reduce_on_host(part, coding, unit, (ranks, rounding)),
        }
    }

    fn reduce_on_host(
        &self,
        part: &Part,
        coding: &Coding,
        unit: &Unit,
        (ranks, rounding): (Option<u32>, Rounding),
    ) -> Result<(), Stop> {
        let is_cut = coding.codec.piece_elements().is_some();
        let mut scratch = [0; PIECE_ELEMENTS * ELEMENT_BYTES_MAX];
        for piece in coding.pieces(unit) {
            let add_and_encode = |work: &mut [u8]| {
                coding.staging.update(piece.encoded.clone(), |encoded| -> Result<(), Stop> {
                    coding.codec.decode_add(encoded, work)?;
                    if let Some(ranks) = ranks {
                        finish_average(part.data_type, work, ranks)?;
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

    /// Adds all contributions to a unit, and encodes the sum. A tensor on a device is copied for it.
    fn combine(&self, index: usize, coding: &Coding, unit: &Unit, step: &Step) -> Result<(), Stop> {
        let (part, rounding) = (&self.parts[index], self.rounding(index, coding, unit));
        let first = coding.bytes_of(unit).start;
        let copied = match part.memory.whole() {
            PartMemory::OnDevice(device) => Some(device.to_host(coding.bytes_of(unit)).ok_or(Stop::Closed)??),
            memory if !memory.own().has_arrived(&coding.bytes_of(unit)) => return Err(Stop::Closed),
            _ => None,
        };
        let ranks = self.kind(part, step).ranks;
        let combine_piece = |piece: &Piece, sums: &mut [u8]| -> Result<(), Stop> {
            let mut combine = |others: &[u8], own: &[u8]| {
                let contributions = in_order((others, own), coding, (unit, piece), step);
                coding.staging.update(piece.encoded.clone(), |into| {
                    coding.codec.combine(&contributions, ranks, sums, into, rounding, piece.first_in_chunk)
                })
            };
            let combined =
                part.contributions.view(self.contributions_to(unit, part, step), |others| match &copied {
                    Some(own) => {
                        Some(combine(others, &own[piece.bytes.start - first..piece.bytes.end - first]))
                    }
                    None => part.memory.whole().own().view(piece.bytes.clone(), |own| combine(others, own)),
                });
            Ok(combined.flatten().flatten().ok_or(Stop::Closed)??)
        };
        let sum_bytes = coding.codec.sum_type().size_bytes();
        let mut scratch = [0; PIECE_ELEMENTS * ELEMENT_BYTES_MAX];
        for piece in coding.pieces(unit) {
            let bytes = sum_bytes * piece.bytes.len() / coding.codec.data_type().size_bytes();
            if coding.codec.piece_elements().is_some() {
                combine_piece(&piece, &mut scratch[..bytes])?;
                continue;
            }
            // A scheme that cannot be cut has one piece in each unit.
            let sums = self.rooms.get(&unit.slots.start).map_or(0, |room| room.sums);
            part.sums
                .update(sums..sums + bytes, |sums| combine_piece(&piece, sums))
                .ok_or(Stop::Closed)??;
        }
        Ok(())
    }

    fn rounding(&self, index: usize, coding: &Coding, unit: &Unit) -> Rounding {
        let plan = self.program.plan();
        coding.rounding(self.number, plan.rank(), plan.run(index).tensors.start, unit)
    }
}

/// Whether the value of a step stays with this rank.
fn stays(step: &Step) -> bool {
    step.is_result && step.sends.is_empty()
}

/// The inputs of a step for a piece of a unit, in the order in which they are added. `others` are the values of others
/// for the unit, side by side, and `own` the own elements of the piece.
fn in_order<'a>(
    (others, own): (&'a [u8], &'a [u8]),
    coding: &Coding,
    (unit, piece): (&Unit, &Piece),
    step: &Step,
) -> Vec<Contribution<'a>> {
    let (elements, mut rest) = (coding.bytes_of(unit), others);
    let mut of_input = |input: &Input| {
        let Input::Received(hop) = input else { return Contribution::Plain(own) };
        let (part, whole) =
            if hop.is_plain { (&piece.bytes, &elements) } else { (&piece.encoded, &unit.encoded) };
        let (value, after) = rest.split_at(whole.len());
        rest = after;
        let value = &value[part.start - whole.start..part.end - whole.start];
        if hop.is_plain { Contribution::Plain(value) } else { Contribution::Encoded(value) }
    };
    step.inputs.iter().map(&mut of_input).collect()
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
