//! One attempt of a small collective: every rank gets the contributions of all others over the ring and folds them
//! itself.
//!
//! A small operation costs what its hops cost. The pipelined ring of [`super::plan`] has `2 (n - 1)` of them; the ring
//! all-gather (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005,
//! section 4.1) has `n - 1`, for more bytes. At stage `s` rank `r` sends the contribution of rank `(r - s) mod n` on
//! and receives that of `(r - s - 1) mod n`. All tensors of the operation travel as one frame.
//!
//! Where all ranks are connected with each other, there is one hop: every rank sends its contribution to every other,
//! at stage `n - 1 + r`. Or there are two: the contributions go to rank 0 only, at these stages, and it sends the
//! result back, at stage `2 n - 1`. All ways put the same bytes into the same places, so what has been prepared serves
//! any of them, and the master says which.
//!
//! The fold goes in the same order as on the pipelined ring: chunk `c` begins with the contribution of rank `c`. So
//! both algorithms give the same bytes, on every rank.
//!
//! **Who may touch which bytes.** Contributions lie in memory of our own, one area per rank. An area is written once,
//! by the RX thread that takes its slot, and only read afterwards. The caller's memory is read when the attempt is made
//! and written by [`Exchange::deliver`], on the caller's thread, after the outcome: a failed attempt has nothing to
//! restore.

use super::{
    plan::{Frame, Plan},
    progress::{AttemptOwner, Progress, link_fault, local_fault},
    shape::Shape,
};
use crate::memory::{Backup, PartMemory, RawTensor};
use pccl_protocol::{Algorithm, Descriptor, OpId, PartDescriptor};
use pccl_quant::{ReduceOp, finish_average, fold_into};
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
    /// All contributions are here and folded.
    is_complete: AtomicBool,
    /// One of those for small operations.
    algorithm: Algorithm,
    /// Rank 0 has sent the result to all.
    is_broadcast: AtomicBool,
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
        let hops = if contribution_bytes(descriptor) == 0 { 0 } else { ranks - 1 };
        let exchange = Arc::new_cyclic(|me| Self {
            plan: Plan::new(&descriptor.parts, &Shape::all_reduce(ranks), rank, MAX_FRAME_BYTES),
            parts,
            bytes: contribution_bytes(descriptor),
            areas: memory.lend(0..exchange_bytes(descriptor, ranks), &gate),
            memory,
            states: (0..=ranks).map(|_| AtomicU8::new(IDLE)).collect(),
            is_complete: AtomicBool::new(hops == 0),
            algorithm,
            is_broadcast: AtomicBool::new(false),
            progress: Progress::new(id, gate, (hops, hops), owner),
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
        let own = self.first_direct_stage() + self.rank();
        match self.algorithm {
            Algorithm::ReduceBroadcast if self.rank() == ROOT => self.broadcast_when_due(),
            Algorithm::ReduceBroadcast => {
                self.progress.sends_only(1);
                self.send_to(ROOT, own);
            }
            Algorithm::Direct => self.send_to_all(own),
            _ => self.send(0),
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

    /// The first stage of those at which a rank sends to all.
    fn first_direct_stage(&self) -> usize {
        self.ranks() - 1
    }

    /// Whose contribution arrives at `stage`; the number of ranks stands for the result.
    fn received_at(&self, stage: usize) -> usize {
        match stage.checked_sub(self.first_direct_stage()) {
            Some(slot) => slot,
            None => (self.rank() + 2 * self.ranks() - stage - 1) % self.ranks(),
        }
    }

    /// Whose contribution leaves at `stage`, as [`Exchange::received_at`].
    fn sent_at(&self, stage: usize) -> usize {
        match stage.checked_sub(self.first_direct_stage()) {
            Some(slot) => slot,
            None => (self.rank() + self.ranks() - stage) % self.ranks(),
        }
    }

    /// First byte of a contribution, or of the result.
    fn place_of(&self, slot: usize) -> usize {
        let area = if slot == self.ranks() { self.result_area() } else { slot };
        area * self.bytes
    }

    /// The stage at which rank 0 sends the result.
    fn result_stage(&self) -> usize {
        self.first_direct_stage() + self.ranks()
    }

    fn frame(&self, me: Arc<Self>, stage: usize) -> Outgoing {
        let header = self.progress.header(0, stage, 0, self.bytes);
        Outgoing { transfer: me, header }
    }

    /// Sends to the next rank what it receives at `stage`.
    fn send(&self, stage: usize) {
        let (Some(owner), Some(me)) = (self.progress.owner(), self.me.upgrade()) else { return };
        if !owner.send(self.progress.id(), &mut std::iter::once(self.frame(me, stage))) {
            owner.fault(self.progress.id(), local_fault("the link to the next rank is not there"));
        }
    }

    /// Sends to `rank` what is sent at `stage`.
    fn send_to(&self, rank: usize, stage: usize) {
        let (Some(owner), Some(me)) = (self.progress.owner(), self.me.upgrade()) else { return };
        let frame = self.frame(me, stage);
        // The ring has the edge to the next rank.
        let is_sent = if rank == (self.rank() + 1) % self.ranks() {
            owner.send(self.progress.id(), &mut std::iter::once(frame))
        } else {
            owner.send_to(self.progress.id(), rank, frame)
        };
        if !is_sent {
            owner.fault(self.progress.id(), local_fault(format!("the link to rank {rank} is not there")));
        }
    }

    /// From the next rank on, so that not all begin with the same one.
    fn send_to_all(&self, stage: usize) {
        for to in (1..self.ranks()).map(|step| (self.rank() + step) % self.ranks()) {
            self.send_to(to, stage);
        }
    }

    /// Rank 0 sends the result, once it has it and the master has named this way. Either may come first.
    fn broadcast_when_due(&self) {
        let is_due = self.rank() == ROOT
            && self.algorithm == Algorithm::ReduceBroadcast
            && self.is_complete.load(Ordering::SeqCst);
        if is_due && !self.is_broadcast.swap(true, Ordering::SeqCst) {
            self.send_to_all(self.result_stage());
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

    /// The last contribution has arrived: folds, and only then this rank holds the whole result.
    fn complete(&self) {
        match self.fold_all() {
            Ok(()) => self.finish(),
            Err(text) => self.progress.report(local_fault(text)),
        }
    }

    /// The result is in its place.
    fn finish(&self) {
        self.is_complete.store(true, Ordering::SeqCst);
        self.broadcast_when_due();
        self.progress.all_received();
    }
}

impl Transfer for Exchange {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        let stage = header.stage as usize;
        let fits = header.part == 0 && header.offset == 0 && header.len as usize == self.bytes;
        let own_slot = if self.rank() == ROOT { [ROOT, self.ranks()] } else { [self.rank(); 2] };
        let is_ours = stage <= self.result_stage() && !own_slot.contains(&self.received_at(stage));
        if !fits || !is_ours {
            return Err(self.progress.unexpected(header));
        }
        let slot = self.received_at(stage);
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
        let start = self.place_of(self.received_at(header.stage as usize));
        Place { memory: &self.areas, range: start + done..start + self.bytes }
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let start = self.place_of(self.sent_at(header.stage as usize));
        Place { memory: &self.areas, range: start + done..start + self.bytes }
    }

    fn arrived(&self, header: &FrameHeader) {
        let stage = header.stage as usize;
        let slot = self.received_at(stage);
        log::trace!("{}: contribution {slot} complete", self.progress.id());
        self.states[slot].store(RECEIVED, Ordering::Release);
        self.progress.bytes_arrived(header);
        if stage == self.result_stage() {
            return self.finish();
        }
        if stage + 1 < self.first_direct_stage() {
            self.send(stage + 1);
        }
        if self.progress.frame_done() {
            self.complete();
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
