//! Quantised tensors: what an attempt does with encoded bytes.
//!
//! **Where bytes lie.** A quantised tensor has *staging* memory for the whole of its encoded form, reserved before the vote, so
//! that no thread ever waits for room. Frames are received there and sent from there.
//!
//! **Reduce.** When a unit is complete, the rank adds it to its own elements in working memory, and encodes the sum
//! over it; that is sent on. The last rank, which owns the chunk, divides an average before it encodes.
//!
//! **Gather.** Frames are sent on as they came. Everybody decodes them, the owner its own bytes, too: that is why all ranks
//! end with the same.
//!
//! **Decoding.** Out of place a unit is decoded as soon as it is complete. In place the caller's thread does that when the
//! outcome is known: until then the caller's memory is only read, so that nothing has to be saved or put back.
//!
//! Whoever completes a unit is the only one to touch it until its slots are in the next state.

use super::{Attempt, GATHERED, Part, REDUCED, StageKind, local_fault};
use crate::{
    collective::plan::{Frame, Unit},
    memory::PartMemory,
};
use pccl_quant::{
    ReduceOp, finish_average,
    quantise::{Codec, Quantisation, Rounding},
};
use std::{ops::Range, sync::atomic::Ordering};
use tinysockets::link::Lent;

/// Elements that are coded at once, if the scheme can be cut: they stay in the first-level cache. A multiple of every
/// block.
const PIECE_ELEMENTS: usize = 2048;

/// Largest element.
const ELEMENT_BYTES_MAX: usize = 8;

/// What a quantised tensor has beside its memory.
pub(super) struct Coding {
    codec: Codec,
    quantisation: Quantisation,
    /// The encoded form of the tensor.
    pub(super) staging: Lent,
}

/// Why a unit was not dealt with.
pub(super) enum Stop {
    /// The gate is closed: nobody is interested any more.
    Closed,
    Failed(String),
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A part of a unit that is coded at once.
struct Piece {
    /// Bytes of the tensor.
    bytes: Range<usize>,
    /// Bytes of its encoded form.
    encoded: Range<usize>,
    /// Number of the first element in the chunk.
    first_in_chunk: u64,
}

impl Coding {
    pub(super) fn new(codec: Codec, quantisation: Quantisation, staging: Lent) -> Self {
        Self { codec, quantisation, staging }
    }

    fn pieces(&self, unit: &Unit) -> impl Iterator<Item = Piece> + use<> {
        let step = if self.codec.piece_elements().is_some() { PIECE_ELEMENTS } else { usize::MAX };
        let (codec, unit) = (self.codec, unit.clone());
        let element_bytes = codec.data_type().size_bytes();
        // Whole pieces are whole blocks, so the lengths of pieces add up.
        let encoded = move |elements: usize| unit.encoded.start + codec.encoded_len(elements).unwrap_or(0);
        let (start, count, first) = (unit.elements.start, unit.elements.len(), unit.first_in_chunk);
        (0..count).step_by(step).map(move |done| {
            let end = count.min(done.saturating_add(step));
            Piece {
                bytes: (start + done) * element_bytes..(start + end) * element_bytes,
                encoded: encoded(done)..encoded(end),
                first_in_chunk: (first + done) as u64,
            }
        })
    }
}

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
            match self.encode_own(frame.part, coding, &unit) {
                Ok(()) => {}
                Err(Stop::Closed) => return,
                Err(Stop::Failed(text)) => return self.report(local_fault(text)),
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
                self.report(local_fault(text));
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
            PartMemory::OutOfPlace { recv, .. } if kind != StageKind::Reduce => decode(coding, unit, recv),
            _ => Ok(()),
        }
    }

    /// Decodes the results of what is reduced in place. On the caller's thread, after everything has been received and before
    /// [`Attempt::retract`]. The error is a defect of this library.
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
            decode(coding, &unit, data).map_err(|stop| match stop {
                Stop::Closed => "the result was taken away before it was decoded".to_owned(),
                Stop::Failed(text) => text,
            })?;
        }
        Ok(())
    }

    fn encode_own(&self, index: usize, coding: &Coding, unit: &Unit) -> Result<(), Stop> {
        let part = &self.parts[index];
        let rounding = self.rounding(index, coding, unit);
        for piece in coding.pieces(unit) {
            let encode = |own: &[u8]| {
                coding.staging.update(piece.encoded.clone(), |encoded| {
                    coding.codec.encode(own, encoded, rounding, piece.first_in_chunk)
                })
            };
            part.own().view(piece.bytes.clone(), encode).flatten().ok_or(Stop::Closed)??;
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

    /// The rounding of this rank. Random numbers are those of tag, tensor, chunk and rank: the same in every attempt.
    fn rounding(&self, index: usize, coding: &Coding, unit: &Unit) -> Rounding {
        let place = (index as u64) << 32 | unit.chunk as u64;
        let operation = self.id.tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ place;
        coding.quantisation.rounding(operation, self.plan.rank() as u32)
    }
}

/// Puts the decoded elements of a unit where the result goes.
fn decode(coding: &Coding, unit: &Unit, result: &Lent) -> Result<(), Stop> {
    for piece in coding.pieces(unit) {
        let decode = |encoded: &[u8]| {
            result.update(piece.bytes.clone(), |elements| coding.codec.decode_set(encoded, elements))
        };
        coding.staging.view(piece.encoded.clone(), decode).flatten().ok_or(Stop::Closed)??;
    }
    Ok(())
}

impl Part {
    /// What this rank contributes.
    fn own(&self) -> &Lent {
        match &self.memory {
            PartMemory::InPlace { data, .. } => data,
            PartMemory::OutOfPlace { send, .. } => send,
        }
    }

    /// Runs `work` on a copy of the own elements, which are not more than a piece. `None` when the gate is closed.
    fn in_scratch<R>(
        &self,
        scratch: &mut [u8],
        bytes: Range<usize>,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let scratch = &mut scratch[..bytes.len()];
        self.own().view(bytes, |own| scratch.copy_from_slice(own))?;
        Some(work(scratch))
    }

    /// Runs `work` on a copy of the own elements in memory that nothing else needs before the result comes: the backup, or
    /// the receive buffer. `None` when the gate is closed.
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
