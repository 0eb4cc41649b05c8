//! One attempt of a small collective: every rank gets the contributions of all others over the ring and folds them
//! itself.
//!
//! A small operation costs what its hops cost. The pipelined ring of [`Plan`] has `2 (n - 1)` of them; the ring
//! all-gather (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005,
//! section 4.1) has `n - 1`, for more bytes: each rank sends its contribution to the next one, and so on. All tensors
//! of the operation travel as one frame.
//!
//! Where all ranks are connected with each other, there is one hop: every rank sends its contribution to every other.
//! Or there are two: the contributions go to rank 0 only, and it sends the result back. By any way a frame's stage is
//! the rank whose contribution it carries, or `n` for the result.
//!
//! The fold goes in the same order as on the pipelined ring: chunk `c` begins with the contribution of rank `c`. So
//! both algorithms give the same bytes, on every rank.
//!
//! **Access to the bytes.** Contributions lie in memory of our own, one area per rank. An area is written once, by the
//! RX thread that takes its slot, and only read afterwards. The caller's memory is read when the attempt is made and
//! written by [`Exchange::deliver`], on the caller's thread, after the outcome: a failed attempt has nothing to
//! restore.

use super::progress::{AttemptOwner, Progress, link_fault, local_fault};
use crate::memory::{Backup, PartMemory, RawTensor};
use pccl_protocol::{Algorithm, Descriptor, OpId, PartDescriptor};
use pccl_quant::{ReduceOp, finish_average, fold_into};
use pccl_schedule::{Frame, Plan, Shape};
use std::{
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};
use tinysockets::link::{
    FrameHeader, Gate, Landing, Lent, LinkFault, MAX_FRAME_BYTES, Outgoing, Place, Transfer, Violation,
};

const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const RECEIVED: u8 = 2;

/// The rank that folds for all, if one does.
const ROOT: usize = 0;

/// See the module's documentation.
pub(crate) struct Exchange {
    /// One frame per chunk and run: which elements are folded from which rank on.
    plan: Plan,
    parts: Vec<Part>,
    /// Bytes of one contribution.
    bytes: usize,
    memory: Arc<Backup>,
    /// One area per rank, then two in which results are folded in turn.
    areas: Lent,
    /// Of the contribution of each rank, and of the result.
    states: Box<[AtomicU8]>,
    /// The result is here: folded, or received from rank 0.
    is_complete: AtomicBool,
    /// One of those for small operations.
    algorithm: Algorithm,
    progress: Progress,
    me: Weak<Self>,
}

struct Part {
    memory: PartMemory,
    /// First byte in a contribution.
    offset: usize,
    bytes: usize,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("id", &self.progress.id()).finish_non_exhaustive()
    }
}

/// Bytes of memory that an exchange among `ranks` needs beside the tensors.
pub(crate) fn exchange_bytes(descriptor: &Descriptor, ranks: usize) -> usize {
    (ranks + 2) * contribution_bytes(descriptor)
}

fn contribution_bytes(descriptor: &Descriptor) -> usize {
    descriptor.parts.iter().map(|part| part.count as usize * part.data_type.size_bytes()).sum()
}

impl Exchange {
    /// Prepares an attempt of `rank` among `ranks`, and copies what it contributes. `memory` has [`exchange_bytes`];
    /// `backup` is that of the operation, which stays unused.
    pub(crate) fn new(
        id: OpId,
        (ranks, rank, algorithm): (usize, usize, Algorithm),
        descriptor: &Descriptor,
        raws: &[RawTensor],
        (memory, backup): (Arc<Backup>, &Backup),
        owner: Weak<dyn AttemptOwner>,
    ) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let mut offset = 0;
        let parts = raws.iter().map(|raw| {
            let part = Part { memory: raw.lend(&gate, backup, 0..0), offset, bytes: raw.bytes() };
            offset += raw.bytes();
            part
        });
        let parts: Vec<Part> = parts.collect();
        // All but rank 0 may have one frame to send and one to receive.
        let is_leaf = algorithm == Algorithm::ReduceBroadcast && rank != ROOT;
        let frames = match contribution_bytes(descriptor) {
            0 => 0,
            _ if is_leaf => 1,
            _ => ranks - 1,
        };
        let exchange = Arc::new_cyclic(|me| Self {
            plan: Plan::new(&descriptor.parts, &Shape::all_reduce(ranks), rank, MAX_FRAME_BYTES),
            parts,
            bytes: contribution_bytes(descriptor),
            areas: memory.lend(0..exchange_bytes(descriptor, ranks), &gate),
            memory,
            states: (0..=ranks).map(|_| AtomicU8::new(IDLE)).collect(),
            is_complete: AtomicBool::new(frames == 0),
            algorithm,
            progress: Progress::new(id, gate, (frames, frames), owner),
            me: me.clone(),
        });
        exchange.contribute();
        exchange
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

    /// Whether this rank has all contributions, and has folded them.
    pub(crate) fn has_received_all(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// The algorithm by which it goes.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Sends the own contribution on its way.
    pub(crate) fn start(&self) {
        if self.bytes == 0 || self.ranks() == 1 {
            return;
        }
        match self.algorithm {
            // It has nothing to send before all contributions are here.
            Algorithm::ReduceBroadcast if self.rank() == ROOT => {}
            Algorithm::ReduceBroadcast => self.send_to(ROOT, self.rank()),
            Algorithm::Direct => self.send_to_all(self.rank()),
            _ => self.send_to(self.next_rank(), self.rank()),
        }
    }

    /// Copies the result into the caller's memory. On the caller's thread, before [`Progress::retract`], once
    /// everything has been received. The error is a defect of this library.
    pub(crate) fn deliver(&self) -> Result<(), String> {
        for part in &self.parts {
            let result = self.area(self.result_area(), part.offset..part.offset + part.bytes);
            let target = part.memory.result();
            let copied =
                target.update(0..part.bytes, |out| self.areas.view(result, |from| out.copy_from_slice(from)));
            copied.flatten().ok_or_else(|| {
                format!("{}: the memory was taken back before the result", self.progress.id())
            })?;
        }
        Ok(())
    }

    /// The memory beside the tensors, for another operation. Only after [`Progress::retract`].
    pub(crate) fn memory(&self) -> Arc<Backup> {
        assert!(self.progress.is_retracted(), "memory is free after retract");
        self.memory.clone()
    }

    /// Bytes `range` of a contribution, in the area of `index`.
    fn area(&self, index: usize, range: Range<usize>) -> Range<usize> {
        index * self.bytes + range.start..index * self.bytes + range.end
    }

    /// Folds go from one of the two last areas into the other; the same one is last for every chunk.
    fn result_area(&self) -> usize {
        self.ranks() + self.ranks() % 2
    }

    fn contribute(&self) {
        for part in &self.parts {
            let range = self.area(self.rank(), part.offset..part.offset + part.bytes);
            let own = part.memory.own();
            let _ = own.view(0..part.bytes, |own| self.areas.update(range, |out| out.copy_from_slice(own)));
        }
        self.states[self.rank()].store(RECEIVED, Ordering::Release);
    }

    /// Stands for the result where others are ranks that contribute.
    fn result_slot(&self) -> usize {
        self.ranks()
    }

    /// Whether the contribution of this rank, or the result, comes here.
    fn is_due(&self, slot: usize) -> bool {
        let is_leaf = self.algorithm == Algorithm::ReduceBroadcast && self.rank() != ROOT;
        if is_leaf { slot == self.result_slot() } else { slot < self.ranks() && slot != self.rank() }
    }

    /// Where a contribution lies, or the result, from byte `done` on.
    fn place(&self, slot: usize, done: usize) -> Place<'_> {
        let area = if slot == self.result_slot() { self.result_area() } else { slot };
        Place { memory: &self.areas, range: self.area(area, done..self.bytes) }
    }

    fn next_rank(&self) -> usize {
        (self.rank() + 1) % self.ranks()
    }

    /// Sends a contribution to `rank`, or the result.
    fn send_to(&self, rank: usize, slot: usize) {
        let (Some(owner), Some(me)) = (self.progress.owner(), self.me.upgrade()) else { return };
        let frame = Outgoing { transfer: me, header: self.progress.header(0, slot, 0, self.bytes) };
        // The ring has the edge to the next rank.
        let is_sent = if rank == self.next_rank() {
            owner.send(self.progress.id(), &mut std::iter::once(frame))
        } else {
            owner.send_to(self.progress.id(), rank, frame)
        };
        if !is_sent {
            owner.fault(self.progress.id(), local_fault(format!("the link to rank {rank} is not there")));
        }
    }

    /// From the next rank on, so that not all begin with the same one.
    fn send_to_all(&self, slot: usize) {
        for to in (1..self.ranks()).map(|step| (self.rank() + step) % self.ranks()) {
            self.send_to(to, slot);
        }
    }

    /// Folds all contributions. All of them are here, and nobody writes to them any more.
    fn fold_all(&self) -> Result<(), String> {
        for chunk in 0..self.ranks() {
            for frame in self.plan.frames_of(chunk) {
                self.fold_chunk(&frame).ok_or("the operation has stopped")??;
            }
        }
        Ok(())
    }

    /// Folds one chunk of one run into the area of results; `None` when the gate is closed.
    fn fold_chunk(&self, frame: &Frame) -> Option<Result<(), String>> {
        let (run, ranks) = (self.plan.run(frame.part), self.ranks());
        let PartDescriptor { data_type, op, .. } = run.descriptor;
        let start = self.parts[run.tensors.start].offset + frame.offset;
        let bytes = start..start + frame.len;
        let of = |index: usize| self.area(index, bytes.clone());
        let mut partial = of(frame.chunk);
        for step in 1..ranks {
            let own = of((frame.chunk + step) % ranks);
            let out = of(ranks + (step + 1) % 2);
            let folded = self.areas.update(out.clone(), |out| {
                self.areas.view(own, |own| {
                    self.areas.view(partial, |partial| fold_into(data_type, op, out, own, partial))
                })
            });
            if let Err(error) = folded???.map_err(|error| error.to_string()) {
                return Some(Err(error));
            }
            partial = out;
        }
        if op == ReduceOp::Avg {
            let finished = self.areas.update(partial, |out| finish_average(data_type, out, ranks as u32));
            return finished.map(|result| result.map_err(|error| error.to_string()));
        }
        Some(Ok(()))
    }

    /// The last frame has arrived. If it was a contribution, folds: only then this rank holds the whole result.
    fn complete(&self, slot: usize) {
        if slot != self.result_slot()
            && let Err(text) = self.fold_all()
        {
            return self.progress.report(local_fault(text));
        }
        self.is_complete.store(true, Ordering::Release);
        // That all contributions are here says that all others have heard that it has begun.
        if slot != self.result_slot() && self.algorithm == Algorithm::ReduceBroadcast {
            self.send_to_all(self.result_slot());
        }
        self.progress.all_received();
    }
}

impl Transfer for Exchange {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        let slot = header.stage as usize;
        let fits = header.part == 0 && header.offset == 0 && header.len as usize == self.bytes;
        if !fits || !self.is_due(slot) {
            return Err(self.progress.unexpected(header));
        }
        log::trace!("{}: contribution {slot} begins", self.progress.id());
        let taken = self.states[slot].compare_exchange(IDLE, RECEIVING, Ordering::AcqRel, Ordering::Acquire);
        taken.map(|_| Landing::Direct).map_err(|_| Violation {
            text: format!("{}: contribution {slot} of {} arrives twice", self.progress.id(), self.ranks()),
        })
    }

    fn fold(&self, _: &FrameHeader, _: usize, _: &[u8]) -> bool {
        false
    }

    fn granule_bytes(&self, _: &FrameHeader) -> usize {
        1
    }

    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.place(header.stage as usize, done)
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.place(header.stage as usize, done)
    }

    fn arrived(&self, header: &FrameHeader) {
        let slot = header.stage as usize;
        log::trace!("{}: contribution {slot} complete", self.progress.id());
        self.states[slot].store(RECEIVED, Ordering::Release);
        self.progress.bytes_arrived(header);
        if self.algorithm == Algorithm::AllGather && self.next_rank() != slot {
            self.send_to(self.next_rank(), slot);
        }
        if self.progress.frame_done() {
            self.complete(slot);
        }
    }

    fn corrupt(&self, header: &FrameHeader, peer: u128, generation: u64) {
        self.progress.corrupt(header, peer, generation);
    }

    fn released(&self, header: &FrameHeader) {
        self.progress.released(header);
    }

    fn link_failed(&self, fault: &LinkFault) {
        self.progress.report(link_fault(fault));
    }
}
