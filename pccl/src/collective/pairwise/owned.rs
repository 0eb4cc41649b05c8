//! The work of the owner of a unit, and of a local owner, on the contributions that come to it.

use super::{Pairwise, Part, results};
use crate::{
    collective::coding::{Coding, ELEMENT_BYTES_MAX, PIECE_ELEMENTS, Piece, Stop},
    memory::PartMemory,
};
use pccl_quant::{
    DataType, KernelError, ReduceOp, finish_average, fold_in_place, fold_into,
    quantise::{Contribution, Rounding},
};
use pccl_schedule::{Frame, Unit};
use std::{ops::Range, sync::atomic::Ordering};

impl Pairwise {
    /// A frame of a contribution is here. Folds its unit if that is the last one, and sends the result, or the sum of
    /// the site.
    pub(super) fn contributed(&self, frame: &Frame) -> Result<(), Stop> {
        let (part, unit) = (&self.parts[frame.part], self.plan.unit_of(frame));
        let arrivals = |frame: Frame| self.ownership.arrivals(&self.plan, &frame);
        let all: usize = self.plan.frames_of_unit(frame.part, &unit).map(arrivals).sum();
        // The thread that counts the last frame sees what the others have received.
        if self.here[unit.slots.start].fetch_add(1, Ordering::AcqRel) + 1 < all as u32 {
            return Ok(());
        }
        match &part.coding {
            Some(coding) => self.combine((frame.part, part), coding, (&unit, frame))?,
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
        part.contributions.update(self.contributions_to(unit, frame), fold).ok_or(Stop::Closed)?
    }

    /// Where the contributions of others to a unit lie.
    fn contributions_to(&self, unit: &Unit, frame: &Frame) -> Range<usize> {
        let start = self.ownership.folded_before(unit).contributed_bytes;
        start..start + self.ownership.contributions(&self.plan, frame, unit).bytes()
    }

    /// Adds all contributions to a unit, and encodes the sum. A tensor on a device is copied for it.
    fn combine(
        &self,
        (index, part): (usize, &Part),
        coding: &Coding,
        (unit, frame): (&Unit, &Frame),
    ) -> Result<(), Stop> {
        let rounding = self.rounding(index, coding, unit);
        let sum_bytes = coding.codec.sum_type().size_bytes();
        let is_cut = coding.codec.piece_elements().is_some();
        let mut scratch = [0; PIECE_ELEMENTS * ELEMENT_BYTES_MAX];
        let copied = match part.memory.whole() {
            PartMemory::OnDevice(device) => Some(device.to_host(coding.bytes_of(unit)).ok_or(Stop::Closed)??),
            memory if !memory.own().has_arrived(&coding.bytes_of(unit)) => return Err(Stop::Closed),
            _ => None,
        };
        let is_average = part.op == ReduceOp::Avg && self.ownership.is_own(frame);
        let ranks = is_average.then_some(self.plan.ranks() as u32);
        // A scheme that cannot be cut has one piece in each unit.
        let sums_start = self.ownership.folded_before(unit).elements * sum_bytes;
        for piece in coding.pieces(unit) {
            let bytes = sum_bytes * piece.bytes.len() / coding.codec.data_type().size_bytes();
            let add = |sums: &mut [u8]| {
                let copied = copied.as_deref();
                self.combine_piece((part, copied), (coding, rounding, ranks), (unit, frame, &piece), sums)
            };
            if is_cut {
                add(&mut scratch[..bytes])?;
            } else {
                part.sums.update(sums_start..sums_start + bytes, add).ok_or(Stop::Closed)??;
            }
        }
        Ok(())
    }

    fn combine_piece(
        &self,
        (part, copied): (&Part, Option<&[u8]>),
        (coding, rounding, ranks): (&Coding, Rounding, Option<u32>),
        (unit, frame, piece): (&Unit, &Frame, &Piece),
        sums: &mut [u8],
    ) -> Result<(), Stop> {
        let mut combine = |others: &[u8], own: &[u8], into: &mut [u8]| {
            let contributions = self.in_order(others, own, coding, (unit, frame, piece));
            coding.codec.combine(&contributions, ranks, sums, into, rounding, piece.first_in_chunk)
        };
        let combined = part.contributions.view(self.contributions_to(unit, frame), |others| {
            let mut with_own =
                |own: &[u8]| coding.staging.update(piece.encoded.clone(), |into| combine(others, own, into));
            let first = coding.bytes_of(unit).start;
            match copied {
                Some(own) => Some(with_own(&own[piece.bytes.start - first..piece.bytes.end - first])),
                None => part.memory.whole().own().view(piece.bytes.clone(), with_own),
            }
        });
        Ok(combined.flatten().flatten().ok_or(Stop::Closed)??)
    }

    /// The contributions of all to a piece of a unit, in the order in which it is added: those of the own site, of
    /// which this rank is one, in the turn of their site.
    fn in_order<'a>(
        &self,
        others: &'a [u8],
        own: &'a [u8],
        coding: &Coding,
        (unit, frame, piece): (&Unit, &Frame, &Piece),
    ) -> Vec<Contribution<'a>> {
        let all = self.ownership.contributions(&self.plan, frame, unit);
        let turns = self.ownership.own_turns(self.plan.start_of(unit.chunk));
        let part_of = |all: &'a [u8], len: usize, which: usize, range: Range<usize>, before: usize| {
            let start = which * len + range.start - before;
            &all[start..start + range.len()]
        };
        let (of_site, over_sites) = others.split_at(all.of_site * all.of_site_bytes);
        let plain = |which: usize| {
            let before = coding.bytes_of(unit).start;
            Contribution::Plain(part_of(of_site, all.of_site_bytes, which, piece.bytes.clone(), before))
        };
        let encoded = |which: usize| {
            let before = unit.encoded.start;
            Contribution::Encoded(part_of(
                over_sites,
                all.over_sites_bytes,
                which,
                piece.encoded.clone(),
                before,
            ))
        };
        // A local owner that is not the owner has its site only.
        let turn = turns.1.min(all.over_sites);
        let mut contributions: Vec<Contribution<'a>> = (0..turn).map(encoded).collect();
        contributions.extend((0..turns.0).map(plain));
        contributions.push(Contribution::Plain(own));
        contributions.extend((turns.0..all.of_site).map(plain));
        contributions.extend((turn..all.over_sites).map(encoded));
        contributions
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
