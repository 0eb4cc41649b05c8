//! What the owner of a unit, and a local owner, does with the contributions that come to it.

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
    /// A frame of a contribution is here. Folds its unit if that is the last one, and sends the result, or the sum of
    /// the site.
    pub(super) fn contributed(&self, frame: &Frame) -> Result<(), Stop> {
        let (part, unit) = (&self.parts[frame.part], self.plan.unit_of(frame));
        let all = (unit.slots.len() * self.ownership.children(frame)) as u32;
        // The thread that counts the last frame sees what the others have received.
        if self.here[unit.slots.start].fetch_add(1, Ordering::AcqRel) + 1 < all {
            return Ok(());
        }
        match &part.coding {
            Some(coding) => self.combine(frame.part, coding, &unit)?,
            None => self.fold_unit(part, &unit, frame)?,
        }
        let mut frames = self.plan.frames_of_unit(frame.part, &unit);
        let parent = self.ownership.parent(self.plan.rank(), frame);
        if parent.is_none() && part.coding.is_none() {
            part.memory.finished(unit.encoded.clone());
        }
        match parent {
            Some(owner) => self.send(owner, &mut frames, self.plan.rank()),
            None if self.plan.shape().distributes() => self.send_down(&frames.collect::<Vec<_>>()),
            None => {}
        }
        Ok(())
    }

    /// Folds all contributions to a unit: those of the own site, and then what other sites come to.
    fn fold_unit(&self, part: &Part, unit: &Unit, frame: &Frame) -> Result<(), Stop> {
        let (len, kind) = (unit.encoded.len(), (part.data_type, part.op));
        let (in_site, over_sites) = self.ownership.contributors(frame);
        let turns = self.ownership.own_turns(self.plan.start_of(unit.chunk));
        let is_average = part.op == ReduceOp::Avg && self.ownership.is_own(frame);
        let mut own = part.memory.stretches(unit.encoded.clone());
        if !own.all(|stretch| stretch.memory.own().has_arrived(&stretch.bytes)) {
            return Err(Stop::Closed);
        }
        let fold = |all: &mut [u8]| -> Result<(), Stop> {
            let (site, sites) = all.split_at_mut(in_site * len);
            for stretch in part.memory.stretches(unit.encoded.clone()) {
                let bytes = || stretch.bytes.clone();
                let into = |own: &[u8]| {
                    results(stretch.memory).update(bytes(), |out| -> Result<(), Stop> {
                        let range = stretch.in_range();
                        if in_site > 0 {
                            fold_in_turn(kind, around(site, len, turns.0, &range), Some(own), out)?;
                        }
                        if over_sites > 0 {
                            let own = Some(own).filter(|_| in_site == 0);
                            fold_in_turn(kind, around(sites, len, turns.1, &range), own, out)?;
                        }
                        if is_average {
                            finish_average(part.data_type, out, self.plan.ranks() as u32)?;
                        }
                        Ok(())
                    })
                };
                stretch.memory.own().view(bytes(), into).flatten().ok_or(Stop::Closed)??;
            }
            Ok(())
        };
        part.contributions
            .update(self.ownership.place_of(unit, in_site + over_sites), fold)
            .ok_or(Stop::Closed)?
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
        let turn = self.ownership.own_turns(self.plan.start_of(unit.chunk)).1;
        let mut combine = |all: &[u8], own: &[u8], encoded: &mut [u8]| {
            let others = all.chunks_exact(unit.encoded.len());
            let others = others.map(|other| Contribution::Encoded(&other[in_unit.clone()]));
            let mut contributions: Vec<Contribution<'_>> = others.collect();
            contributions.insert(turn, Contribution::Plain(own));
            coding.codec.combine(&contributions, part.op, sums, encoded, rounding, piece.first_in_chunk)
        };
        let place = self.ownership.place_of(unit, self.plan.ranks() - 1);
        let combined = part.contributions.view(place, |all| {
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

/// This range of contributions of `len` bytes each, those before the own turn and those after it.
fn around<'a>(
    all: &'a mut [u8],
    len: usize,
    turn: usize,
    range: &Range<usize>,
) -> (impl Iterator<Item = &'a mut [u8]>, impl Iterator<Item = &'a mut [u8]>) {
    let (before, after) = all.split_at_mut(turn * len);
    let part = |range: Range<usize>| move |other: &'a mut [u8]| &mut other[range.clone()];
    (
        before.chunks_exact_mut(len).map(part(range.clone())),
        after.chunks_exact_mut(len).map(part(range.clone())),
    )
}

/// Folds contributions, those before and after the own one, in this order into `out`, where the own one is already if
/// it is not given.
fn fold_in_turn<'a>(
    (data_type, op): (DataType, ReduceOp),
    (mut before, mut after): (impl Iterator<Item = &'a mut [u8]>, impl Iterator<Item = &'a mut [u8]>),
    own: Option<&[u8]>,
    out: &mut [u8],
) -> Result<(), KernelError> {
    let first = before.next();
    let is_first = first.is_none();
    if let Some(mut partial) = first {
        for next in before {
            fold_in_place(data_type, op, next, partial)?;
            partial = next;
        }
        match own {
            Some(own) => fold_into(data_type, op, out, own, partial)?,
            None => fold_in_place(data_type, op, out, partial)?,
        }
    }
    let Some(mut partial) = after.next() else { return Ok(()) };
    fold_in_place(data_type, op, partial, own.filter(|_| is_first).unwrap_or(out))?;
    for next in after {
        fold_in_place(data_type, op, next, partial)?;
        partial = next;
    }
    out.copy_from_slice(partial);
    Ok(())
}
