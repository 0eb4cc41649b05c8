//! What the owner of a unit does with the contributions of all ranks.

use super::{Pairwise, Part, results};
use crate::{
    collective::{
        coding::{Coding, ELEMENT_BYTES_MAX, PIECE_ELEMENTS, Piece, Stop},
        plan::{Frame, Unit},
    },
    memory::PartMemory,
};
use pccl_quant::{
    DataType, KernelError, ReduceOp, finish_average, fold_in_place, fold_into,
    quantise::{Contribution, Rounding},
};
use std::{ops::Range, sync::atomic::Ordering};

impl Pairwise {
    /// Where the contributions of all others to a unit lie, one behind the other.
    pub(super) fn place_of(&self, unit: &Unit) -> Range<usize> {
        let (place, others) = (self.ownership.place_of(unit), self.plan.ranks() - 1);
        place.start * others..place.end * others
    }

    /// A frame of a contribution is here. Folds its unit if that is the last one, and sends the result.
    pub(super) fn contributed(&self, frame: &Frame) -> Result<(), Stop> {
        let (part, unit) = (&self.parts[frame.part], self.plan.unit_of(frame));
        let all = (unit.slots.len() * (self.plan.ranks() - 1)) as u32;
        // The thread that counts the last frame sees what the others have received.
        if self.here[unit.slots.start].fetch_add(1, Ordering::AcqRel) + 1 < all {
            return Ok(());
        }
        match &part.coding {
            Some(coding) => self.combine(frame.part, coding, &unit)?,
            None => self.fold_unit(part, &unit)?,
        }
        if !self.plan.shape().distributes() {
            return Ok(());
        }
        let stage = self.result_stage(self.plan.rank());
        for to in self.others() {
            self.send(to, &mut self.plan.frames_of_unit(frame.part, &unit), stage);
        }
        Ok(())
    }

    /// Folds all contributions to a unit.
    fn fold_unit(&self, part: &Part, unit: &Unit) -> Result<(), Stop> {
        let (len, turn) = (unit.encoded.len(), self.turn_of(self.plan.rank(), unit.chunk));
        let fold = |all: &mut [u8]| -> Result<(), Stop> {
            let (before, after) = all.split_at_mut(turn * len);
            for stretch in part.memory.stretches(unit.encoded.clone()) {
                let bytes = || stretch.bytes.clone();
                let before = before.chunks_exact_mut(len).map(|other| &mut other[stretch.in_range()]);
                let after = after.chunks_exact_mut(len).map(|other| &mut other[stretch.in_range()]);
                let into = |own: &[u8]| {
                    results(stretch.memory).update(bytes(), |out| -> Result<(), Stop> {
                        fold_in_turn((part.data_type, part.op), (before, after), own, out)?;
                        if part.op == ReduceOp::Avg {
                            finish_average(part.data_type, out, self.plan.ranks() as u32)?;
                        }
                        Ok(())
                    })
                };
                stretch.memory.own().view(bytes(), into).flatten().ok_or(Stop::Closed)??;
            }
            Ok(())
        };
        part.contributions.update(self.place_of(unit), fold).ok_or(Stop::Closed)?
    }

    /// Adds all contributions to a unit, and encodes the sum. What is on a device is copied for it.
    fn combine(&self, index: usize, coding: &Coding, unit: &Unit) -> Result<(), Stop> {
        let part = &self.parts[index];
        let rounding = self.rounding(index, coding, unit);
        let sum_bytes = coding.codec.sum_type().size_bytes();
        let is_cut = coding.codec.piece_elements().is_some();
        let mut scratch = [0; PIECE_ELEMENTS * ELEMENT_BYTES_MAX];
        let copied = match part.memory.whole() {
            PartMemory::OnDevice(device) => Some(device.to_host(coding.bytes_of(unit)).ok_or(Stop::Closed)??),
            _ => None,
        };
        for piece in coding.pieces(unit) {
            let bytes = sum_bytes * piece.bytes.len() / coding.codec.data_type().size_bytes();
            let add = |sums: &mut [u8]| {
                let copied = copied.as_deref();
                self.combine_piece((part, copied), (coding, rounding), (unit, &piece), sums)
            };
            if is_cut {
                add(&mut scratch[..bytes])?;
            } else {
                part.sums.update(0..bytes, add).ok_or(Stop::Closed)??;
            }
        }
        Ok(())
    }

    fn combine_piece(
        &self,
        (part, copied): (&Part, Option<&[u8]>),
        (coding, rounding): (&Coding, Rounding),
        (unit, piece): (&Unit, &Piece),
        sums: &mut [u8],
    ) -> Result<(), Stop> {
        let in_unit = piece.encoded.start - unit.encoded.start..piece.encoded.end - unit.encoded.start;
        let turn = self.turn_of(self.plan.rank(), unit.chunk);
        let mut combine = |all: &[u8], own: &[u8], encoded: &mut [u8]| {
            let others = all.chunks_exact(unit.encoded.len());
            let others = others.map(|other| Contribution::Encoded(&other[in_unit.clone()]));
            let mut contributions: Vec<Contribution<'_>> = others.collect();
            contributions.insert(turn, Contribution::Plain(own));
            coding.codec.combine(&contributions, part.op, sums, encoded, rounding, piece.first_in_chunk)
        };
        let combined = part.contributions.view(self.place_of(unit), |all| {
            let mut with_own = |own: &[u8]| {
                coding.staging.update(piece.encoded.clone(), |encoded| combine(all, own, encoded))
            };
            let first = coding.bytes_of(unit).start;
            match copied {
                Some(own) => Some(with_own(&own[piece.bytes.start - first..piece.bytes.end - first])),
                None => part.memory.whole().own().view(piece.bytes.clone(), with_own),
            }
        });
        Ok(combined.flatten().flatten().ok_or(Stop::Closed)??)
    }
}

/// Folds contributions, those before and after the own one, in this order into `out`.
fn fold_in_turn<'a>(
    (data_type, op): (DataType, ReduceOp),
    (mut before, mut after): (impl Iterator<Item = &'a mut [u8]>, impl Iterator<Item = &'a mut [u8]>),
    own: &[u8],
    out: &mut [u8],
) -> Result<(), KernelError> {
    let first = before.next();
    let is_first = first.is_none();
    if let Some(mut partial) = first {
        for next in before {
            fold_in_place(data_type, op, next, partial)?;
            partial = next;
        }
        fold_into(data_type, op, out, own, partial)?;
    }
    let Some(mut partial) = after.next() else { return Ok(()) };
    fold_in_place(data_type, op, partial, if is_first { own } else { out })?;
    for next in after {
        fold_in_place(data_type, op, next, partial)?;
        partial = next;
    }
    out.copy_from_slice(partial);
    Ok(())
}
