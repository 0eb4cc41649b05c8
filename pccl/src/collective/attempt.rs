//! One attempt of one collective, as the links see it: it carries out the [`Program`] of this rank.
//!
//! A value comes as frames. When all that a step takes in is here, the thread that brought the last frame folds it, and
//! sends the value on. A value that goes on as it came goes on frame by frame, and one that is folded with the own
//! elements alone is folded piece by piece while it comes. Which frames there are, in which order they are folded and
//! where they go is the program's; where values lie, and how they are folded, is that of a [`Store`].
//!
//! **Access to the bytes.** Each value that a frame may get from others has a small state. An RX thread takes a frame
//! by moving it from one state to the next; it is the only one to write the frame's bytes until it puts it into the
//! next state, and a frame that is not expected in that state is refused. The thread that counts the last frame of a
//! step is the only one to touch its unit until the value is sent. TX threads read bytes that are done. A result that
//! overwrites them comes from ranks that have received them (it was made from them), so that a TX thread that has not
//! yet booked its send is no overlap.

mod coded;
mod fold;
mod store;
mod tensors;
mod whole;

use super::{
    calls,
    coding::Stop,
    progress::{AttemptOwner, Progress, link_fault, local_fault, violation_fault},
};
use crate::{
    backups::BackupPool,
    memory::{Backup, RawTensor},
};
use pccl_protocol::{Algorithm, Descriptor, OpId};
use pccl_schedule::{Arrival, Frame, Hop, Program};
use std::sync::{
    Arc, Weak,
    atomic::{AtomicU8, AtomicU32, Ordering},
};
use store::Store;
use tensors::Tensors;
use tinysockets::link::{
    FLAG_EARLY, FrameHeader, Gate, Landing, LinkFault, Outgoing, Place, Transfer, Violation,
};
use whole::Whole;

const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const RECEIVED: u8 = 2;
/// The value has been folded that it will replace.
const OPEN: u8 = 3;

/// See the module's documentation.
pub(crate) struct Attempt {
    program: Arc<Program>,
    store: Box<dyn Store>,
    /// For each slot, of each value that may come to it.
    states: Box<[AtomicU8]>,
    /// How many of these a slot has.
    values_max: usize,
    /// Frames that have arrived for the present step of the unit that begins with the slot.
    here: Box<[AtomicU32]>,
    progress: Progress,
    me: Weak<Self>,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt").field("id", &self.progress.id()).finish_non_exhaustive()
    }
}

impl Attempt {
    /// Prepares an attempt. `backup` has [`super::runs::backup_bytes`] of the tensors; `room` gives further memory.
    /// [`Attempt::prepare`] comes before anything is sent.
    pub(crate) fn new(
        id: OpId,
        program: Arc<Program>,
        tensors: (&Descriptor, &[RawTensor]),
        (backup, room): (Arc<Backup>, &dyn Fn(usize) -> Arc<Backup>),
        owner: Weak<dyn AttemptOwner>,
    ) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let store: Box<dyn Store> = if program.is_whole() {
            Box::new(Whole::new(program.clone(), tensors, &gate, (backup, room)))
        } else {
            Box::new(Tensors::new(program.clone(), id.tag.number, tensors, &gate, (backup, room)))
        };
        let (slots, values_max) = (program.slots(), program.values_max());
        Arc::new_cyclic(|me| Self {
            states: (0..slots * values_max).map(|_| AtomicU8::new(IDLE)).collect(),
            values_max,
            here: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            progress: Progress::new(id, gate, program.traffic(), owner),
            program,
            store,
            me: me.clone(),
        })
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Whether whole contributions travel. Their frames are early ones: their sender does not know who has
    /// voted.
    pub(crate) fn is_whole(&self) -> bool {
        self.program.is_whole()
    }

    /// Its identity.
    pub(crate) fn id(&self) -> OpId {
        self.progress.id()
    }

    /// Own rank and number of ranks.
    pub(crate) fn place(&self) -> calls::Place {
        calls::Place { rank: self.program.plan().rank(), ranks: self.program.plan().ranks() }
    }

    /// The algorithm by which it goes.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.program.algorithm()
    }

    /// Does what can be done before the others have voted. Once, on the thread that votes, before the vote.
    pub(crate) fn prepare(&self) {
        self.carry_on(self.store.prepare());
    }

    /// Sends the values on their way into which nothing of others goes. After [`Attempt::prepare`].
    pub(crate) fn start(&self) {
        for frames in self.program.first_sent().chunk_by(|(one, _), (other, _)| one.rank == other.rank) {
            self.send(frames[0].0.rank, &mut frames.iter().copied());
        }
    }

    /// Ends the attempt on the caller's thread: in the caller's memory is the result if `keep`, and what was there
    /// before if not. Memory of the library goes back to `pool`. The error is a defect of this library.
    pub(crate) fn conclude(&self, keep: bool, pool: &BackupPool) -> Result<(), String> {
        let delivered = if keep { self.deliver() } else { Ok(()) };
        self.progress.retract();
        if !keep {
            self.restore();
        }
        pool.give(self.store.memory().clone());
        delivered
    }

    /// Puts results into the caller's memory that are not there yet. On the caller's thread, after everything has been
    /// received and before [`Progress::retract`]. The error is a defect of this library.
    pub(super) fn deliver(&self) -> Result<(), String> {
        self.store.deliver().map_err(Stop::after_the_outcome)
    }

    /// Puts back what was overwritten in place. Only after [`Progress::retract`].
    pub(super) fn restore(&self) {
        assert!(self.progress.is_retracted(), "restore comes after retract");
        self.store.restore();
    }

    fn send(&self, to: usize, frames: &mut dyn Iterator<Item = (Hop, Frame)>) {
        let (Some(owner), Some(me)) = (self.progress.owner(), self.me.upgrade()) else { return };
        let transfer: Arc<dyn Transfer> = me;
        let mut frames = frames.map(|(hop, frame)| {
            let mut header = self.progress.header(frame.part, hop.stage, frame.offset, frame.len);
            header.flags |= if self.is_whole() { FLAG_EARLY } else { 0 };
            Outgoing { transfer: transfer.clone(), header }
        });
        if !owner.send(self.progress.id(), to, &mut frames) {
            owner.fault(self.progress.id(), local_fault(format!("the link to rank {to} is not there")));
        }
    }

    fn arrival(&self, header: &FrameHeader) -> Option<Arrival<'_>> {
        let FrameHeader { part, stage, offset, len, .. } = header;
        self.program.arrival(*part as usize, *stage as usize, *offset, *len)
    }

    /// Books a frame that begins to arrive.
    fn take(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        let arrival = self.arrival(header).ok_or_else(|| self.progress.unexpected(header))?;
        log::trace!("{}: frame begins, {}", self.progress.id(), self.program.what(&arrival));
        if self.progress.is_retracted() {
            return Ok(Landing::Discard);
        }
        let from = if arrival.before > 0 { OPEN } else { IDLE };
        let state = self.state(arrival.frame.slot, arrival.before + arrival.number);
        let taken = state.compare_exchange(from, RECEIVING, Ordering::AcqRel, Ordering::Acquire);
        taken.map_err(|found| Violation {
            text: format!(
                "{}: a frame at byte {} of tensor {} is not expected at stage {} in state {found}",
                self.progress.id(),
                header.offset,
                header.part,
                header.stage
            ),
        })?;
        Ok(self.store.admit(&arrival))
    }

    /// The state of the value with that number among those that a slot gets.
    fn state(&self, slot: usize, number: usize) -> &AtomicU8 {
        &self.states[slot * self.values_max + number]
    }

    /// Makes a step, if the frame that is here is the last one that it waits for.
    fn advance(&self, arrival: &Arrival<'_>) -> Result<(), Stop> {
        let (frame, step) = (&arrival.frame, arrival.step());
        let unit = self.program.plan().unit_of(frame);
        let frames = |hop: Hop| self.program.frames(frame.part, &unit, hop);
        let all: usize = step.received().map(|hop| self.program.frame_count(frame.part, &unit, hop)).sum();
        // The thread that counts the last frame sees what the others have received.
        let here = &self.here[unit.slots.start];
        if here.fetch_add(1, Ordering::AcqRel) + 1 < all as u32 {
            return Ok(());
        }
        here.store(0, Ordering::Release);
        self.store.complete(frame, &unit, step)?;
        if step.forwards() {
            return Ok(());
        }
        let next = arrival.before + step.received().count();
        if arrival.steps[arrival.taker + 1..].iter().any(|step| !step.is_own()) {
            unit.slots.clone().for_each(|slot| self.state(slot, next).store(OPEN, Ordering::Release));
        }
        for hop in &step.sends {
            self.send(hop.rank, &mut frames(*hop).map(|frame| (*hop, frame)));
        }
        Ok(())
    }

    /// Whether the attempt goes on after some work. Reports what has gone wrong with it.
    fn carry_on(&self, done: Result<(), Stop>) -> bool {
        match done {
            Ok(()) => true,
            Err(Stop::Closed) => false,
            Err(Stop::Failed(text)) => {
                self.progress.report(local_fault(text));
                false
            }
        }
    }
}

impl Transfer for Attempt {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        if !header.is_early() {
            return self.take(header);
        }
        // Its sender may have called something else: that is for the master to find, and no reason to end a link.
        let taken = if self.is_whole() { self.take(header) } else { Err(self.progress.unexpected(header)) };
        Ok(taken.unwrap_or_else(|violation| {
            self.progress.report(violation_fault(violation.text));
            Landing::Discard
        }))
    }

    fn fold(&self, header: &FrameHeader, done: usize, payload: &[u8]) -> bool {
        let Some(arrival) = self.arrival(header) else { return false };
        self.carry_on(self.store.fold_piece(&arrival, done, payload))
    }

    fn granule_bytes(&self, header: &FrameHeader) -> usize {
        self.store.granule_bytes(header.part as usize)
    }

    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.store.target(header, done)
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.store.source(header, done)
    }

    fn arrived(&self, header: &FrameHeader) {
        let Some(arrival) = self.arrival(header) else { return };
        self.progress.bytes_arrived(header);
        log::trace!("{}: frame complete, {}", self.progress.id(), self.program.what(&arrival));
        let frame = arrival.frame;
        self.state(frame.slot, arrival.before + arrival.number).store(RECEIVED, Ordering::Release);
        for hop in arrival.forwards() {
            self.send(hop.rank, &mut std::iter::once((hop, frame)));
        }
        if self.carry_on(self.advance(&arrival)) && self.progress.frame_done() {
            self.progress.all_received();
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
