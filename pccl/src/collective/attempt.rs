//! One attempt of one collective, as the links see it: where each frame comes from and goes to, and how far it all is.
//!
//! **Who may touch which bytes.** Each frame of each chunk has a slot with a small state. An RX thread takes a slot by
//! moving it from one state to the next; whoever takes it is the only one to write the frame's bytes until it puts the
//! slot into the next state, and a frame that is not expected in that state is refused. TX threads read bytes whose slot
//! is done for their stage. In the gather half the bytes of the own chunk are overwritten only after the next rank has
//! received them (what arrives was made from them), so that a TX thread that has not yet booked its send is no overlap.
//!
//! **Restore.** In place, each byte is saved once, before it is overwritten for the first time: by the fold itself for the
//! chunks that this rank reduces, and on admission of the gather frame for its own starting chunk. The slot counts how
//! many of its bytes are saved; a restore copies back exactly those.
//!
//! Tensors that are quantised go another way, see [`coded`]; slots and gate are the same.

mod coded;

use super::{
    coding::Coding,
    plan::{Frame, Plan, StageKind},
};
use crate::memory::{Backup, PartMemory, RawTensor};
use pccl_protocol::{Descriptor, LinkGeneration, OpFault, OpFaultKind, OpId, PartDescriptor, PeerId, Text};
use pccl_quant::{DataType, ReduceOp, copy_streaming, finish_average, fold_in_place_saving, fold_into};
use std::sync::{
    Arc, Weak,
    atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use tinysockets::link::{
    Direction, FrameHeader, Gate, Landing, Lent, LinkFault, OpKey, Outgoing, Transfer, Violation,
};

const IDLE: u8 = 0;
const REDUCING: u8 = 1;
const REDUCED: u8 = 2;
const GATHERING: u8 = 3;
const GATHERED: u8 = 4;

/// Hears how an attempt goes. Called on link threads; must not block.
pub(crate) trait AttemptOwner: Send + Sync {
    /// Everything that this rank receives has arrived.
    fn received_all(&self, op: OpId);
    /// The links have let go of everything that this rank sends.
    fn released_all(&self, op: OpId);
    /// The attempt cannot succeed.
    fn fault(&self, op: OpId, fault: OpFault);
    /// Sends frames to the next rank. `false`: that link is not there.
    fn send(&self, op: OpId, frames: &mut dyn Iterator<Item = Outgoing>) -> bool;
    /// Sends a frame over the mesh, to a rank that is not the next one. `false`: there is no link to it.
    fn send_to(&self, op: OpId, rank: usize, frame: Outgoing) -> bool;
}

struct Part {
    data_type: DataType,
    op: ReduceOp,
    memory: PartMemory,
    raw: RawTensor,
    backup_offset: usize,
    /// If it is quantised.
    coding: Option<Coding>,
}

/// See the module's documentation.
pub(crate) struct Attempt {
    id: OpId,
    plan: Plan,
    parts: Vec<Part>,
    gate: Arc<Gate>,
    backup: Arc<Backup>,
    /// Behind what the parts have lent.
    staging: Arc<Backup>,
    states: Box<[AtomicU8]>,
    saved: Box<[AtomicU32]>,
    /// Frames of the unit that begins with the slot, which have arrived at the present stage.
    here: Box<[AtomicU32]>,
    in_left: AtomicUsize,
    out_left: AtomicUsize,
    rx_bytes: AtomicU64,
    tx_bytes: AtomicU64,
    owner: Weak<dyn AttemptOwner>,
    me: Weak<Self>,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Bytes of backup that these tensors need.
pub(crate) fn backup_bytes(descriptor: &Descriptor, raws: &[RawTensor]) -> usize {
    descriptor.parts.iter().zip(raws).map(|(part, raw)| part_backup_bytes(part, raw)).sum()
}

/// Of a quantised tensor nothing has to be saved; what cannot be cut adds up in the backup.
pub(super) fn part_backup_bytes(part: &PartDescriptor, raw: &RawTensor) -> usize {
    let has_backup = part.quantisation.is_none_or(|quantisation| !quantisation.scheme().can_be_cut());
    if raw.is_in_place() && has_backup { raw.bytes() } else { 0 }
}

impl Attempt {
    /// Prepares an attempt. `backup` has [`backup_bytes`] of the tensors, `staging` as many bytes as the plan has encoded
    /// ones. [`Attempt::prepare`] comes before anything is sent.
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
        let parts = descriptor
            .parts
            .iter()
            .zip(raws)
            .enumerate()
            .map(|(index, (part, raw))| {
                let saved = backup_offset..backup_offset + part_backup_bytes(part, raw);
                backup_offset = saved.end;
                let encoded = staging_offset..staging_offset + plan.encoded_bytes(index);
                staging_offset = encoded.end;
                let coding = plan.codec(index).zip(part.quantisation).map(|(codec, quantisation)| {
                    Coding::new(codec, quantisation, staging.lend(encoded, &gate))
                });
                Part {
                    data_type: part.data_type,
                    op: part.op,
                    backup_offset: saved.start,
                    memory: raw.lend(&gate, &backup, saved),
                    raw: raw.clone(),
                    coding,
                }
            })
            .collect();
        let (slots, received, sent) = (plan.slots(), plan.frames_received(), plan.frames_sent());
        Arc::new_cyclic(|me| Self {
            id,
            plan,
            parts,
            gate,
            backup,
            staging,
            states: (0..slots).map(|_| AtomicU8::new(IDLE)).collect(),
            saved: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            here: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            in_left: AtomicUsize::new(received),
            out_left: AtomicUsize::new(sent),
            rx_bytes: AtomicU64::new(0),
            tx_bytes: AtomicU64::new(0),
            owner,
            me: me.clone(),
        })
    }

    /// Identity of the attempt.
    pub(crate) fn id(&self) -> OpId {
        self.id
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

    /// Whether everything that this rank receives is here.
    pub(crate) fn has_received_all(&self) -> bool {
        self.in_left.load(Ordering::Acquire) == 0
    }

    /// Whether the links have let go of everything that this rank sends.
    pub(crate) fn has_released_all(&self) -> bool {
        self.out_left.load(Ordering::Acquire) == 0
    }

    /// Payload bytes sent and received so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.tx_bytes.load(Ordering::Relaxed), self.rx_bytes.load(Ordering::Relaxed))
    }

    /// Sends the own chunk on its way.
    pub(crate) fn start(&self) {
        if self.plan.stages() > 0 {
            self.send(&mut self.plan.frames_of(self.plan.sent_chunk(0)), 0);
        }
    }

    /// Takes the caller's memory away from all threads; returns when none of them touches it any more.
    pub(crate) fn retract(&self) {
        self.gate.close();
        // No thread waits for anything while it holds a pass, so this takes microseconds and needs no deadline.
        self.gate.wait_drained(None);
    }

    /// Puts back what was overwritten in place. Only after [`Attempt::retract`].
    pub(crate) fn restore(&self) {
        assert!(self.gate.is_closed(), "restore comes after retract");
        for frame in self.plan.all_frames() {
            let part = &self.parts[frame.part];
            let saved = self.saved[frame.slot].load(Ordering::Acquire) as usize;
            if saved > 0 && part.raw.is_in_place() {
                part.raw.restore(frame.offset..frame.offset + saved, &self.backup, part.backup_offset);
            }
        }
    }

    fn header(&self, frame: &Frame, stage: usize) -> FrameHeader {
        FrameHeader {
            op: op_key(self.id),
            part: frame.part as u32,
            stage: stage as u32,
            offset: frame.offset as u64,
            len: frame.len as u32,
            flags: 0,
            checksum: 0,
        }
    }

    fn send(&self, frames: &mut dyn Iterator<Item = Frame>, stage: usize) {
        let (Some(owner), Some(me)) = (self.owner.upgrade(), self.me.upgrade()) else { return };
        let transfer: Arc<dyn Transfer> = me;
        let mut frames =
            frames.map(|frame| Outgoing { transfer: transfer.clone(), header: self.header(&frame, stage) });
        if !owner.send(self.id, &mut frames) {
            owner.fault(self.id, local_fault("the link to the next rank is not there"));
        }
    }

    /// Sends frames that were received at `stage` to the next rank, if there is a next stage.
    fn send_on(&self, mut frames: impl Iterator<Item = Frame>, stage: usize) {
        if stage + 1 < self.plan.stages() {
            self.send(&mut frames, stage + 1);
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
                    self.id, frame.chunk, frame.offset, frame.part
                ),
            })
    }

    /// Saves the own starting chunk before the gather half overwrites it. `false`: the gate is closed.
    fn save_whole(&self, frame: &Frame) -> bool {
        let PartMemory::InPlace { data, backup } = &self.parts[frame.part].memory else { return true };
        data.view(frame.range(), |content| {
            backup.update(frame.range(), |saved| {
                copy_streaming(saved, content);
                self.saved[frame.slot].store(frame.len as u32, Ordering::Release);
            })
        })
        .flatten()
        .is_some()
    }

    /// Folds a piece into the own memory; `None` when the gate is closed.
    fn fold_piece(
        &self,
        frame: &Frame,
        done: usize,
        payload: &[u8],
        last: bool,
    ) -> Option<Result<(), String>> {
        let part = &self.parts[frame.part];
        let range = frame.offset + done..frame.offset + done + payload.len();
        let average = |data: &mut [u8]| {
            if last && part.op == ReduceOp::Avg {
                finish_average(part.data_type, data, self.plan.ranks() as u32)
            } else {
                Ok(())
            }
        };
        let folded = match &part.memory {
            PartMemory::InPlace { data, backup } => data.update(range.clone(), |own| {
                backup.update(range, |saved| {
                    let result = fold_in_place_saving(part.data_type, part.op, own, payload, saved);
                    self.saved[frame.slot].store((done + payload.len()) as u32, Ordering::Release);
                    result.and_then(|()| average(own))
                })
            }),
            PartMemory::OutOfPlace { send, recv } => recv.update(range.clone(), |out| {
                send.view(range, |own| {
                    fold_into(part.data_type, part.op, out, own, payload).and_then(|()| average(out))
                })
            }),
        };
        folded.flatten().map(|result| result.map_err(|error| error.to_string()))
    }

    fn report(&self, fault: OpFault) {
        if let Some(owner) = self.owner.upgrade() {
            owner.fault(self.id, fault);
        }
    }
}

/// The link's name for an attempt.
pub(crate) fn op_key(id: OpId) -> OpKey {
    OpKey { epoch: id.epoch.0, tag: id.tag, attempt: id.attempt }
}

pub(crate) fn local_fault(text: impl Into<String>) -> OpFault {
    OpFault { kind: OpFaultKind::Local, peer: None, generation: LinkGeneration(0), text: Text::new(text) }
}

/// A broken link as the fault of an operation.
pub(crate) fn link_fault(fault: &LinkFault) -> OpFault {
    let kind = match (fault.kind, fault.direction) {
        (tinysockets::link::FaultKind::Violation, _) => OpFaultKind::Violation,
        (_, Direction::In) => OpFaultKind::InboundLost,
        (_, Direction::Out) => OpFaultKind::OutboundLost,
    };
    OpFault {
        kind,
        peer: Some(PeerId(fault.peer)),
        generation: LinkGeneration(fault.generation),
        text: Text::new(fault.text.clone()),
    }
}

impl Transfer for Attempt {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        let frame = self.received(header).ok_or_else(|| Violation {
            text: format!(
                "{}: no frame of {} bytes at byte {} of tensor {} arrives at stage {}",
                self.id, header.len, header.offset, header.part, header.stage
            ),
        })?;
        log::trace!("{}: frame begins, stage {} of {}", self.id, header.stage, self.plan.stages());
        if self.gate.is_closed() {
            return Ok(Landing::Discard);
        }
        let is_coded = self.parts[frame.part].coding.is_some();
        if self.plan.stage_kind(header.stage as usize) != StageKind::Gather {
            self.take_slot(&frame, IDLE, REDUCING)?;
            return Ok(if is_coded { Landing::Direct } else { Landing::Fold });
        }
        let own = frame.chunk == self.plan.rank();
        self.take_slot(&frame, if own { IDLE } else { REDUCED }, GATHERING)?;
        if own && !is_coded && !self.save_whole(&frame) {
            return Ok(Landing::Discard);
        }
        Ok(Landing::Direct)
    }

    fn fold(&self, header: &FrameHeader, done: usize, payload: &[u8]) -> bool {
        let Some(frame) = self.received(header) else { return false };
        let last = self.plan.stage_kind(header.stage as usize) == StageKind::LastReduce;
        match self.fold_piece(&frame, done, payload, last) {
            Some(Ok(())) => true,
            Some(Err(text)) => {
                self.report(local_fault(text));
                false
            }
            None => false,
        }
    }

    fn granule_bytes(&self, header: &FrameHeader) -> usize {
        self.parts.get(header.part as usize).map_or(1, |part| part.data_type.size_bytes())
    }

    fn target(&self, header: &FrameHeader) -> (&Lent, usize) {
        let part = &self.parts[header.part as usize];
        let memory = match (&part.coding, &part.memory) {
            (Some(coding), _) => &coding.staging,
            (None, PartMemory::InPlace { data, .. }) => data,
            (None, PartMemory::OutOfPlace { recv, .. }) => recv,
        };
        (memory, header.offset as usize)
    }

    fn source(&self, header: &FrameHeader) -> (&Lent, usize) {
        let part = &self.parts[header.part as usize];
        let memory = match (&part.coding, &part.memory) {
            (Some(coding), _) => &coding.staging,
            (None, PartMemory::InPlace { data, .. }) => data,
            (None, PartMemory::OutOfPlace { send, .. }) if header.stage == 0 => send,
            (None, PartMemory::OutOfPlace { recv, .. }) => recv,
        };
        (memory, header.offset as usize)
    }

    fn arrived(&self, header: &FrameHeader) {
        let Some(frame) = self.received(header) else { return };
        let stage = header.stage as usize;
        self.rx_bytes.fetch_add(header.len.into(), Ordering::Relaxed);
        log::trace!("{}: frame complete, stage {} of {}", self.id, stage, self.plan.stages());
        if let Some(coding) = &self.parts[frame.part].coding {
            if !self.arrived_coded(stage, &frame, coding) {
                return;
            }
        } else {
            let gather = self.plan.stage_kind(stage) == StageKind::Gather;
            self.states[frame.slot].store(if gather { GATHERED } else { REDUCED }, Ordering::Release);
            self.send_on(std::iter::once(frame), stage);
        }
        if self.in_left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(owner) = self.owner.upgrade()
        {
            owner.received_all(self.id);
        }
    }

    fn corrupt(&self, header: &FrameHeader, peer: u128, generation: u64) {
        self.report(OpFault {
            kind: OpFaultKind::Corrupt,
            peer: Some(PeerId(peer)),
            generation: LinkGeneration(generation),
            text: Text::new(format!(
                "wrong checksum of the frame at byte {} of tensor {}, stage {}",
                header.offset, header.part, header.stage
            )),
        });
    }

    fn released(&self, header: &FrameHeader) {
        if !self.gate.is_closed() {
            self.tx_bytes.fetch_add(header.len.into(), Ordering::Relaxed);
        }
        if self.out_left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(owner) = self.owner.upgrade()
        {
            owner.released_all(self.id);
        }
    }

    fn link_failed(&self, fault: &LinkFault) {
        self.report(link_fault(fault));
    }
}
