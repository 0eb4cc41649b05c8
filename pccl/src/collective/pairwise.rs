//! One attempt of a collective over the mesh. If its shape folds, every rank sends each chunk to the rank that owns it,
//! which folds what all have sent; if it distributes, the owner then sends it to all.
//!
//! For an all-reduce that is reduce-scatter by pairwise exchange (Thakur, Rabenseifner and Gropp, "Optimization of
//! collective communication operations in MPICH", 2005, section 4.2), and an all-gather of the same kind, without
//! steps: all edges are busy at once. A rank moves as many bytes as on the ring, but `2 / n` of the tensor over each
//! edge, where a ring has `2 (n - 1) / n` on each of its `n` edges. So it pays where pairs are slower than hosts, and
//! where a collective is so small that hops are what it costs: there is one to the owner, and one from it. Rank `r`
//! contributes at stage `r`, and sends what it owns at stage `n + r`.
//!
//! Where edges differ, so do the ranks' shares ([`Ownership`]): whose edges are slow owns less, and less passes them.
//!
//! Over sites there are two levels. A rank sends to the owner of its site; that folds what its site contributes, and
//! sends the sum on to the owner, at the stage of its own contribution. The result comes to it at the owner's stage,
//! and goes on to its site at its own. Each byte crosses between two sites once each way. All that differs is to whom a
//! rank sends ([`Ownership::parent`]).
//!
//! The owner folds in the order of the ring: the same bytes come out. Over sites what each site comes to is folded in
//! the order of [`Sites`](pccl_schedule::Sites). Of a quantised tensor each contribution is quantised once, added with
//! all others in working memory, and the sum is quantised once. So the error does not depend on the number of ranks.
//! The owner's own contribution is not quantised. Over sites that is the contribution of its site: within a site
//! elements travel as they are, at the stage `2 n + r`; each local owner adds those of its site, and quantises what it
//! sends on.
//!
//! **Access to the bytes.** The caller's tensor is only read before the outcome, but for a receive buffer. Results lie
//! in the backup, in the receive buffer, or, encoded, in staging memory, where the own contribution to it was, if that
//! was encoded: the owner has that when a result of it comes. So it is with the sum of a site. Contributions of others
//! have memory of their own, side by side for each unit that is owned. A frame is written once, by the RX thread that
//! takes its state; the thread that counts the last frame of a unit folds it, and is then the only one to touch it.

mod arriving;
mod owned;

use super::{
    coding::{Coding, Stop},
    progress::{AttemptOwner, Progress, local_fault},
    runs::{RunMemory, Stretch},
};
use crate::memory::{Backup, PartMemory, RawTensor};
use pccl_protocol::{Algorithm, Descriptor, OpId};
use pccl_quant::{
    DataType, ReduceOp, copy_streaming,
    quantise::{Codec, Rounding},
};
use pccl_schedule::{Folded, Frame, Ownership, Plan, Unit};
use std::sync::{
    Arc, Weak,
    atomic::{AtomicU8, AtomicU32},
};
use tinysockets::link::{Gate, Lent, Outgoing};

const IDLE: u8 = 0;

/// See the module's documentation.
pub(crate) struct Pairwise {
    plan: Plan,
    ownership: Ownership,
    parts: Vec<Part>,
    /// Keeps the memory alive that the lent ranges of the parts point into.
    _backup: Arc<Backup>,
    memory: Arc<Backup>,
    /// For each slot the contributions of the other ranks that come here by their turn, and in the own turn the result.
    states: Box<[AtomicU8]>,
    /// Frames of contributions that have arrived, of the unit that begins with the slot.
    here: Box<[AtomicU32]>,
    progress: Progress,
    me: Weak<Self>,
}

struct Part {
    data_type: DataType,
    op: ReduceOp,
    memory: RunMemory,
    coding: Option<Coding>,
    /// Contributions of the others to what is owned.
    contributions: Lent,
    /// To add up in, if what is quantised cannot be cut: for each unit that is folded here.
    sums: Lent,
    /// A copy of elements that travel as they are, and are on a device.
    copied: Lent,
}

impl std::fmt::Debug for Pairwise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pairwise").field("id", &self.progress.id()).finish_non_exhaustive()
    }
}

/// Bytes of memory that a tensor needs beside itself and its backup: encoded form, contributions of the others, sums,
/// copied elements.
fn part_bytes(plan: &Plan, ownership: &Ownership, index: usize, raws: &[RawTensor]) -> [usize; 4] {
    let run = plan.run(index);
    let folded = if plan.shape().folds() { ownership.folded(index) } else { Folded::default() };
    let needs_sums = |codec: &Codec| codec.piece_elements().is_none();
    let sums = plan.codec(index).filter(needs_sums);
    let sum_bytes = sums.map_or(0, |codec| folded.elements * codec.sum_type().size_bytes());
    let is_copied = ownership.is_plain_within(plan, index) && raws[run.tensors.start].device().is_some();
    let copied = if is_copied { raws[run.tensors.start].bytes() } else { 0 };
    [plan.encoded_bytes(index), folded.contributed_bytes, sum_bytes, copied]
}

/// Bytes of memory that pairwise exchange needs beside the tensors and their backup.
pub(crate) fn pairwise_bytes(plan: &Plan, ownership: &Ownership, raws: &[RawTensor]) -> usize {
    (0..plan.parts()).flat_map(|index| part_bytes(plan, ownership, index, raws)).sum()
}

impl Pairwise {
    /// Prepares an attempt. `memory` has [`pairwise_bytes`]; `backup` is that of the operation.
    pub(crate) fn new(
        id: OpId,
        (plan, ownership): (Plan, Ownership),
        descriptor: &Descriptor,
        raws: &[RawTensor],
        (memory, backup): (Arc<Backup>, Arc<Backup>),
        owner: Weak<dyn AttemptOwner>,
    ) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let (mut saved, mut used) = (0, 0);
        let mut lend = |bytes: usize| {
            used += bytes;
            memory.lend(used - bytes..used, &gate)
        };
        let mut parts = Vec::with_capacity(plan.parts());
        for (index, run) in plan.runs().enumerate() {
            let bytes = part_bytes(&plan, &ownership, index, raws);
            let [encoded, contributions, sums, copied] = bytes.map(&mut lend);
            let codec = plan.codec(index).zip(run.descriptor.quantisation);
            parts.push(Part {
                data_type: run.descriptor.data_type,
                op: run.descriptor.op,
                memory: RunMemory::lend(run, (descriptor, raws), &gate, &backup, &mut saved),
                coding: codec.map(|(codec, quantisation)| Coding::new(codec, quantisation, encoded)),
                contributions,
                sums,
                copied,
            });
        }
        let (ranks, slots) = (plan.ranks(), plan.slots());
        let (mut received, mut sent) = (0, 0);
        for frame in plan.all_frames() {
            if plan.shape().folds() {
                received += ownership.arrivals(&plan, &frame);
                sent += usize::from(ownership.sent_up(&plan, plan.rank(), &frame).is_some());
            }
            if plan.shape().distributes() {
                received += usize::from(!ownership.is_own(&frame));
                sent += ownership.children(&frame);
            }
        }
        Arc::new_cyclic(|me| Self {
            parts,
            _backup: backup,
            memory,
            states: (0..slots * ranks).map(|_| AtomicU8::new(IDLE)).collect(),
            here: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            plan,
            ownership,
            progress: Progress::new(id, gate, (received, sent), owner),
            me: me.clone(),
        })
    }

    /// Pairwise exchange, or that over sites.
    pub(crate) fn algorithm(&self) -> Algorithm {
        if self.ownership.has_sites() { Algorithm::Sites } else { Algorithm::Pairwise }
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Ranks that take part.
    pub(crate) fn ranks(&self) -> usize {
        self.plan.ranks()
    }

    /// Own rank.
    pub(crate) fn rank(&self) -> usize {
        self.plan.rank()
    }

    /// Encodes what this rank sends first, so that it can be sent: its contributions, or, if there are none, what it
    /// owns. On the thread that votes, before the vote.
    pub(crate) fn prepare(&self) {
        if let Err(Stop::Failed(text)) = self.keep_own() {
            return self.progress.report(local_fault(text));
        }
        let folds = self.plan.shape().folds();
        for frame in self.plan.all_frames().filter(|frame| self.ownership.is_own(frame) != folds) {
            let part = &self.parts[frame.part];
            let Some(coding) = &part.coding else { continue };
            let unit = self.plan.unit_of(&frame);
            if unit.slots.start != frame.slot {
                continue;
            }
            match self.prepare_unit(part, coding, &frame, &unit) {
                Ok(()) => {}
                Err(Stop::Closed) => return,
                Err(Stop::Failed(text)) => return self.progress.report(local_fault(text)),
            }
        }
    }

    fn prepare_unit(&self, part: &Part, coding: &Coding, frame: &Frame, unit: &Unit) -> Result<(), Stop> {
        let (ownership, rank) = (&self.ownership, self.plan.rank());
        let parent =
            ownership.parent(rank, frame).filter(|_| ownership.is_plain_within(&self.plan, frame.part));
        match (parent, part.memory.whole()) {
            (Some(parent), PartMemory::OnDevice(device)) if ownership.are_near(rank, parent) => {
                let bytes = coding.bytes_of(unit);
                let elements = device.to_host(bytes.clone()).ok_or(Stop::Closed)??;
                part.copied.update(bytes, |copied| copied.copy_from_slice(&elements)).ok_or(Stop::Closed)
            }
            (Some(parent), _) if ownership.are_near(rank, parent) => Ok(()),
            // It is encoded when the site has been added.
            (Some(_), _) if ownership.children(frame) > 0 => Ok(()),
            (_, memory) => coding.encode(memory, unit, self.rounding(frame.part, coding, unit)),
        }
    }

    /// Out of place, copies what stays what it is. The own part of a quantised tensor is decoded like everybody else's.
    fn keep_own(&self) -> Result<(), Stop> {
        if self.plan.shape().folds() {
            return Ok(());
        }
        for frame in self.plan.all_frames().filter(|frame| self.ownership.is_own(frame)) {
            let part = &self.parts[frame.part];
            if part.coding.is_some() {
                continue;
            }
            for Stretch { memory, bytes, .. } in part.memory.stretches(frame.range()) {
                let PartMemory::OutOfPlace { send, recv } = memory else { continue };
                let copy = |out: &mut [u8]| send.view(bytes.clone(), |own| copy_streaming(out, own));
                recv.update(bytes.clone(), copy).flatten().ok_or(Stop::Closed)?;
            }
        }
        Ok(())
    }

    /// Sends everything up to which nobody else contributes here, or, if nothing is folded, what is owned down. After
    /// [`Pairwise::prepare`].
    pub(crate) fn start(&self) {
        let (own, rank) = (&self.ownership, self.plan.rank());
        for to in self.others() {
            if !self.plan.shape().folds() {
                let is_for = |frame: &Frame| own.is_own(frame) && own.parent(to, frame) == Some(rank);
                self.send(to, &mut self.plan.all_frames().filter(is_for), self.result_stage(rank));
                continue;
            }
            let is_for = |frame: &Frame| own.parent(rank, frame) == Some(to) && own.children(frame) == 0;
            let is_plain =
                |frame: &Frame| own.are_near(rank, to) && own.is_plain_within(&self.plan, frame.part);
            let all = || self.plan.all_frames().filter(is_for);
            self.send(to, &mut all().filter(|frame| !is_plain(frame)), rank);
            let plain =
                all().filter(|frame| is_plain(frame)).filter_map(|frame| self.plan.plain_frame(&frame));
            self.send(to, &mut { plain }, self.plain_stage(rank));
        }
    }

    /// Sends frames of a result to all that get it from here.
    fn send_down(&self, frames: &[Frame]) {
        let (rank, Some(first)) = (self.plan.rank(), frames.first()) else { return };
        for to in self.others().filter(|to| self.ownership.parent(*to, first) == Some(rank)) {
            self.send(to, &mut frames.iter().copied(), self.result_stage(rank));
        }
    }

    /// Copies or decodes results into the caller's memory. On the caller's thread, after everything has been received
    /// and before [`Progress::retract`]. The error is a defect of this library.
    pub(crate) fn deliver(&self) -> Result<(), String> {
        let shape = self.plan.shape();
        for frame in self.plan.all_frames() {
            let (part, is_own) = (&self.parts[frame.part], self.ownership.is_own(&frame));
            if !is_own && !shape.distributes() {
                continue;
            }
            let delivered = match &part.coding {
                Some(coding) => {
                    let unit = self.plan.unit_of(&frame);
                    let is_first = unit.slots.start == frame.slot;
                    if is_first { coding.decode(&unit, part.memory.whole()) } else { Ok(()) }
                }
                // A frame into which nothing is folded is where it has been.
                None if is_own && !shape.folds() => Ok(()),
                None => {
                    part.memory.stretches(frame.range()).try_for_each(|Stretch { memory, bytes, .. }| {
                        let PartMemory::InPlace { data, backup } = memory else { return Ok(()) };
                        // A tensor without a backup got the result where it goes.
                        if backup.is_empty() {
                            return Ok(());
                        }
                        let copy =
                            |result: &[u8]| data.update(bytes.clone(), |data| copy_streaming(data, result));
                        backup.view(bytes.clone(), copy).flatten().ok_or(Stop::Closed)
                    })
                }
            };
            delivered.map_err(Stop::after_the_outcome)?;
        }
        Ok(())
    }

    /// The memory beside the tensors, for a later operation. Only after [`Progress::retract`].
    pub(crate) fn memory(&self) -> &Arc<Backup> {
        assert!(self.progress.is_retracted(), "memory is free after retract");
        &self.memory
    }

    /// All other ranks, from the next one on, so that not all begin with the same one.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.plan.rank(), self.plan.ranks());
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    fn rounding(&self, index: usize, coding: &Coding, unit: &Unit) -> Rounding {
        let tensor = self.plan.run(index).tensors.start;
        coding.rounding(self.progress.id().tag.number, self.plan.rank(), tensor, unit)
    }

    fn send(&self, to: usize, frames: &mut dyn Iterator<Item = Frame>, stage: usize) {
        let (Some(owner), Some(me)) = (self.progress.owner(), self.me.upgrade()) else { return };
        let mut frames = frames.map(|frame| {
            let header = self.progress.header(frame.part, stage, frame.offset, frame.len);
            Outgoing { transfer: me.clone(), header }
        });
        // The ring has the edge to the next rank.
        let is_sent = if to == (self.plan.rank() + 1) % self.plan.ranks() {
            owner.send(self.progress.id(), &mut frames)
        } else {
            frames.all(|frame| owner.send_to(self.progress.id(), to, frame))
        };
        if !is_sent {
            owner.fault(self.progress.id(), local_fault(format!("the link to rank {to} is not there")));
        }
    }

    /// The stage at which a rank sends what it owns; it contributes to others at the stage of its number.
    fn result_stage(&self, rank: usize) -> usize {
        self.plan.ranks() + rank
    }

    /// The stage at which a rank contributes elements of a quantised tensor as they are.
    fn plain_stage(&self, rank: usize) -> usize {
        2 * self.plan.ranks() + rank
    }
}

/// Where results are received and sent from.
fn results(memory: &PartMemory) -> &Lent {
    match memory {
        PartMemory::InPlace { data, backup } if backup.is_empty() => data,
        PartMemory::InPlace { backup, .. } => backup,
        memory => memory.result(),
    }
}
