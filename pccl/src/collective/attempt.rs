//! One attempt of one collective, as the links see it: where each frame comes from and goes to, and how far it all is.
//!
//! **Access to the bytes.** Each frame of each chunk has a slot with a small state. An RX thread takes a slot by moving
//! it from one state to the next; the thread that takes it is the only one to write the frame's bytes until it puts the
//! slot into the next state, and a frame that is not expected in that state is refused. TX threads read bytes whose
//! slot is done for their stage. In the gather half the bytes of the own chunk are overwritten only after the next rank
//! has received them (what arrives was made from them), so that a TX thread that has not yet booked its send is no
//! overlap.
//!
//! **Partial sums.** Where the result stays with the owner of a chunk, the other ranks must not lose what they have: in
//! place they fold into the backup, and pass that on.
//!
//! **Restore.** In place, each byte is saved once, before it is overwritten for the first time: by the fold itself for
//! the chunks that this rank folds, and on admission of the gather frame for the others. The slot counts how many of
//! its bytes are saved; a restore copies back exactly those.
//!
//! Tensors that are quantised go another way, see [`coded`]; slots and gate are the same.

mod coded;

use super::{
    coding::{Coding, Stop},
    progress::{AttemptOwner, Progress, link_fault, local_fault},
    runs::{RunMemory, Stretch},
};
use crate::memory::{Backup, PartMemory, RawTensor};
use pccl_protocol::{Descriptor, OpId};
use pccl_quant::{
    DataType, KernelError, ReduceOp, copy_streaming, finish_average, fold_in_place_saving, fold_into,
};
use pccl_schedule::{Frame, Plan, StageKind};
use std::sync::{
    Arc, Weak,
    atomic::{AtomicU8, AtomicU32, Ordering},
};
use tinysockets::link::{FrameHeader, Gate, Landing, Lent, LinkFault, Outgoing, Place, Transfer, Violation};

const IDLE: u8 = 0;
const REDUCING: u8 = 1;
const REDUCED: u8 = 2;
const GATHERING: u8 = 3;
const GATHERED: u8 = 4;

/// A run of tensors.
struct Part {
    data_type: DataType,
    op: ReduceOp,
    memory: RunMemory,
    /// If it is quantised.
    coding: Option<Coding>,
}

/// See the module's documentation.
pub(crate) struct Attempt {
    plan: Plan,
    parts: Vec<Part>,
    backup: Arc<Backup>,
    /// Keeps the memory alive that the lent ranges of the parts point into.
    staging: Arc<Backup>,
    states: Box<[AtomicU8]>,
    saved: Box<[AtomicU32]>,
    /// Frames of the unit that begins with the slot, which have arrived at the present stage.
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
    /// Prepares an attempt. `backup` has [`super::runs::backup_bytes`] of the tensors, `staging` as many bytes as the
    /// plan has encoded ones. [`Attempt::prepare`] comes before anything is sent.
    pub(crate) fn new(
        id: OpId,
        plan: Plan,
        descriptor: &Descriptor,
        raws: &[RawTensor],
        backup: Arc<Backup>,
        staging: Arc<Backup>,
        owner: Weak<dyn AttemptOwner>,
    ) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let (mut backup_offset, mut staging_offset) = (0, 0);
        let parts = plan.runs().enumerate().map(|(index, run)| {
            let encoded = staging_offset..staging_offset + plan.encoded_bytes(index);
            staging_offset = encoded.end;
            let coding = plan.codec(index).zip(run.descriptor.quantisation);
            let coding = coding
                .map(|(codec, quantisation)| Coding::new(codec, quantisation, staging.lend(encoded, &gate)));
            let memory = RunMemory::lend(run, (descriptor, raws), &gate, &backup, &mut backup_offset);
            Part { data_type: run.descriptor.data_type, op: run.descriptor.op, memory, coding }
        });
        let parts = parts.collect();
        let (slots, received, sent) = (plan.slots(), plan.frames_received(), plan.frames_sent());
        Arc::new_cyclic(|me| Self {
            plan,
            parts,
            backup,
            staging,
            states: (0..slots).map(|_| AtomicU8::new(IDLE)).collect(),
            saved: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            here: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            progress: Progress::new(id, gate, (received, sent), owner),
            me: me.clone(),
        })
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Ranks that take part.
    pub(crate) fn ranks(&self) -> usize {
        self.plan.ranks()
    }

    /// The memory of the encoded forms, for a later operation once this attempt is retracted.
    pub(crate) fn staging(&self) -> &Arc<Backup> {
        &self.staging
    }

    /// Own rank.
    pub(crate) fn rank(&self) -> usize {
        self.plan.rank()
    }

    /// Encodes what this rank sends first, and puts its own chunk in place if nothing will be folded into it. On the
    /// thread that votes, before the vote.
    pub(crate) fn prepare(&self) {
        match self.encode_own().and_then(|()| self.keep_own()) {
            Ok(()) | Err(Stop::Closed) => {}
            Err(Stop::Failed(text)) => self.progress.report(local_fault(text)),
        }
    }

    /// Out of place, copies what stays what it is. The own chunk of a quantised tensor is decoded like everybody
    /// else's.
    fn keep_own(&self) -> Result<(), Stop> {
        let (shape, is_alone) = (self.plan.shape(), self.plan.ranks() == 1);
        let Some(chunk) = shape.chunk_owned_by(self.plan.rank()) else { return Ok(()) };
        if shape.folds() && !is_alone {
            return Ok(());
        }
        for (index, part) in self.parts.iter().enumerate() {
            if part.coding.is_some() && !is_alone {
                continue;
            }
            let (elements, size) = (self.plan.chunk(index, chunk).0, part.data_type.size_bytes());
            for Stretch { memory, bytes, .. } in
                part.memory.stretches(elements.start * size..elements.end * size)
            {
                if let PartMemory::OnDevice(device) = memory {
                    device.keep().ok_or(Stop::Closed)??;
                } else if let PartMemory::OutOfPlace { send, recv } = memory {
                    let copy = |out: &mut [u8]| send.view(bytes.clone(), |own| copy_streaming(out, own));
                    recv.update(bytes.clone(), copy).flatten().ok_or(Stop::Closed)?;
                }
            }
        }
        Ok(())
    }

    /// Sends the chunk on its way whose route starts here, if one does.
    pub(crate) fn start(&self) {
        if let Some(chunk) = self.plan.sent_chunk(0) {
            self.send(&mut self.plan.frames_of(chunk), 0);
        }
    }

    /// Puts back what was overwritten in place. Only after [`Progress::retract`].
    pub(crate) fn restore(&self) {
        assert!(self.progress.is_retracted(), "restore comes after retract");
        for frame in self.plan.all_frames() {
            let saved = self.saved[frame.slot].load(Ordering::Acquire) as usize;
            if saved > 0 {
                let saved = frame.offset..frame.offset + saved;
                self.parts[frame.part].memory.restore(saved, &self.backup);
            }
        }
    }

    fn header(&self, frame: &Frame, stage: usize) -> FrameHeader {
        self.progress.header(frame.part, stage, frame.offset, frame.len)
    }

    fn send(&self, frames: &mut dyn Iterator<Item = Frame>, stage: usize) {
        let (Some(owner), Some(me)) = (self.progress.owner(), self.me.upgrade()) else { return };
        let transfer: Arc<dyn Transfer> = me;
        let mut frames =
            frames.map(|frame| Outgoing { transfer: transfer.clone(), header: self.header(&frame, stage) });
        if !owner.send(self.progress.id(), &mut frames) {
            owner.fault(self.progress.id(), local_fault("the link to the next rank is not there"));
        }
    }

    /// Sends frames that were received at `stage` to the next rank, if there is a next stage.
    fn send_on(&self, mut frames: impl Iterator<Item = Frame>, stage: usize) {
        if stage + 1 < self.plan.stages() {
            self.send(&mut frames, stage + 1);
        }
    }

    /// Where the payload lies from byte `done` on: in staging memory, if it is encoded, otherwise in what `which`
    /// picks.
    fn place(&self, header: &FrameHeader, done: usize, which: impl Fn(&PartMemory) -> &Lent) -> Place<'_> {
        let part = &self.parts[header.part as usize];
        let start = header.offset as usize;
        let range = start + done..start + header.len as usize;
        match &part.coding {
            Some(coding) => Place { memory: &coding.staging, range },
            None => part.memory.place(range, which),
        }
    }

    fn received(&self, header: &FrameHeader) -> Option<Frame> {
        self.plan.received_frame(header.part, header.stage, header.offset, header.len)
    }

    fn take_slot(&self, frame: &Frame, from: u8, to: u8) -> Result<(), Violation> {
        self.states[frame.slot]
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|found| Violation {
                text: format!(
                    "{}: frame of chunk {} at byte {} of tensor {} is not expected in state {found}",
                    self.progress.id(),
                    frame.chunk,
                    frame.offset,
                    frame.part
                ),
            })
    }

    /// Saves what a gather frame overwrites although nothing was folded into it. `false`: the gate is closed.
    fn save_whole(&self, frame: &Frame) -> bool {
        self.parts[frame.part].memory.stretches(frame.range()).all(|stretch| {
            let PartMemory::InPlace { data, backup } = stretch.memory else { return true };
            if backup.is_empty() {
                return true;
            }
            let saved = data.view(stretch.bytes.clone(), |content| {
                backup.update(stretch.bytes.clone(), |saved| {
                    copy_streaming(saved, content);
                    self.saved[frame.slot].store(stretch.in_range().end as u32, Ordering::Release);
                })
            });
            saved.flatten().is_some()
        })
    }

    /// Folds a piece of the frame with the own contribution; `None` when the gate is closed.
    fn fold_piece(
        &self,
        frame: &Frame,
        done: usize,
        payload: &[u8],
        last: bool,
    ) -> Option<Result<(), KernelError>> {
        let part = &self.parts[frame.part];
        let start = frame.offset + done;
        for stretch in part.memory.stretches(start..start + payload.len()) {
            let (payload, saved) = (&payload[stretch.in_range()], done + stretch.in_range().end);
            if let Err(error) = self.fold_stretch(part, &stretch, payload, last, (frame.slot, saved))? {
                return Some(Err(error));
            }
        }
        Some(Ok(()))
    }

    /// Folds the part that lies in one tensor. In place, this number of bytes of the slot is then saved.
    fn fold_stretch(
        &self,
        part: &Part,
        stretch: &Stretch<'_>,
        payload: &[u8],
        last: bool,
        (slot, saved_bytes): (usize, usize),
    ) -> Option<Result<(), KernelError>> {
        let bytes = || stretch.bytes.clone();
        if !stretch.memory.own().has_arrived(&stretch.bytes) {
            return None;
        }
        let average = |data: &mut [u8]| {
            if last && part.op == ReduceOp::Avg {
                finish_average(part.data_type, data, self.plan.ranks() as u32)
            } else {
                Ok(())
            }
        };
        let into = |out: &Lent, own: &Lent| {
            out.update(bytes(), |out| {
                own.view(bytes(), |own| {
                    fold_into(part.data_type, part.op, out, own, payload).and_then(|()| average(out))
                })
            })
        };
        let folded = match stretch.memory {
            PartMemory::InPlace { data, backup } if self.keeps_partial(last) => into(backup, data),
            PartMemory::InPlace { data, backup } => data.update(bytes(), |own| {
                backup.update(bytes(), |saved| {
                    let result = fold_in_place_saving(part.data_type, part.op, own, payload, saved);
                    self.saved[slot].store(saved_bytes as u32, Ordering::Release);
                    result.and_then(|()| average(own))
                })
            }),
            memory => into(memory.result(), memory.own()),
        };
        folded.flatten()
    }

    /// Whether a sum, the last one to a chunk or not, is not for the caller: see the module's documentation.
    fn keeps_partial(&self, last: bool) -> bool {
        !last && !self.plan.shape().distributes()
    }
}

impl Transfer for Attempt {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        let frame = self.received(header).ok_or_else(|| self.progress.unexpected(header))?;
        log::trace!("{}: frame begins, stage {} of {}", self.progress.id(), header.stage, self.plan.stages());
        if self.progress.is_retracted() {
            return Ok(Landing::Discard);
        }
        let is_coded = self.parts[frame.part].coding.is_some();
        if self.plan.stage_kind(header.stage as usize) != StageKind::Gather {
            self.take_slot(&frame, IDLE, REDUCING)?;
            return Ok(if is_coded { Landing::Direct } else { Landing::Fold });
        }
        let is_first = !self.plan.folds_before_gather(frame.chunk);
        self.take_slot(&frame, if is_first { IDLE } else { REDUCED }, GATHERING)?;
        if is_first && !is_coded && !self.save_whole(&frame) {
            return Ok(Landing::Discard);
        }
        Ok(Landing::Direct)
    }

    fn fold(&self, header: &FrameHeader, done: usize, payload: &[u8]) -> bool {
        let Some(frame) = self.received(header) else { return false };
        let last = self.plan.stage_kind(header.stage as usize) == StageKind::LastReduce;
        match self.fold_piece(&frame, done, payload, last) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                self.progress.report(local_fault(error.to_string()));
                false
            }
            None => false,
        }
    }

    fn granule_bytes(&self, header: &FrameHeader) -> usize {
        self.parts.get(header.part as usize).map_or(1, |part| part.data_type.size_bytes())
    }

    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.place(header, done, PartMemory::result)
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.place(header, done, |memory| match memory {
            memory if header.stage == 0 => memory.own(),
            // A rank that sends on what it has folded is not the owner, unless the result is distributed.
            PartMemory::InPlace { backup, .. } if self.keeps_partial(false) => backup,
            memory => memory.result(),
        })
    }

    fn arrived(&self, header: &FrameHeader) {
        let Some(frame) = self.received(header) else { return };
        let stage = header.stage as usize;
        self.progress.bytes_arrived(header);
        log::trace!("{}: frame complete, stage {} of {}", self.progress.id(), stage, self.plan.stages());
        if let Some(coding) = &self.parts[frame.part].coding {
            if !self.arrived_coded(stage, &frame, coding) {
                return;
            }
        } else {
            let kind = self.plan.stage_kind(stage);
            let state = if kind == StageKind::Gather { GATHERED } else { REDUCED };
            self.states[frame.slot].store(state, Ordering::Release);
            self.send_on(std::iter::once(frame), stage);
            if kind != StageKind::Reduce {
                self.parts[frame.part].memory.finished(frame.range());
            }
        }
        if self.progress.frame_done() {
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
