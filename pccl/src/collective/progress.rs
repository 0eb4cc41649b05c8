//! How far one attempt is, whatever its algorithm: what is left to be received and sent, whether it may touch the
//! caller's memory, and whom it tells.

use pccl_protocol::{LinkGeneration, OpFault, OpFaultKind, OpId, PeerId, Text};
use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tinysockets::link::{Direction, FrameHeader, Gate, LinkFault, OpKey, Outgoing, Violation};

/// Hears how an attempt goes. Called on link threads; must not block.
pub(crate) trait AttemptOwner: Send + Sync {
    /// Everything that this rank receives has arrived.
    fn received_all(&self, op: OpId);
    /// The links have let go of everything that this rank sends.
    fn released_all(&self, op: OpId);
    /// The attempt cannot succeed.
    fn fault(&self, op: OpId, fault: OpFault);
    /// Sends frames to a rank. `false`: there is no link to it.
    fn send(&self, op: OpId, rank: usize, frames: &mut dyn Iterator<Item = Outgoing>) -> bool;
}

/// See the module's documentation.
pub(crate) struct Progress {
    id: OpId,
    gate: Arc<Gate>,
    in_left: AtomicUsize,
    out_left: AtomicUsize,
    rx_bytes: AtomicU64,
    tx_bytes: AtomicU64,
    owner: Weak<dyn AttemptOwner>,
}

impl Progress {
    /// Tracks an attempt that receives and sends the given numbers of frames; its memory is lent behind `gate`.
    pub(super) fn new(
        id: OpId,
        gate: Arc<Gate>,
        (received, sent): (usize, usize),
        owner: Weak<dyn AttemptOwner>,
    ) -> Self {
        Self {
            id,
            gate,
            in_left: AtomicUsize::new(received),
            out_left: AtomicUsize::new(sent),
            rx_bytes: AtomicU64::new(0),
            tx_bytes: AtomicU64::new(0),
            owner,
        }
    }

    /// Identity of the attempt.
    pub(crate) fn id(&self) -> OpId {
        self.id
    }

    /// The owner that hears of it, as long as there is one.
    pub(super) fn owner(&self) -> Option<Arc<dyn AttemptOwner>> {
        self.owner.upgrade()
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

    /// Takes the caller's memory away from all threads; returns when none of them touches it any more.
    pub(crate) fn retract(&self) {
        self.gate.close();
        // No thread waits for anything while it holds a pass, but for a device that works on a unit, so this takes
        // microseconds and needs no deadline.
        self.gate.wait_drained(None);
    }

    /// Whether the memory has been taken away.
    pub(super) fn is_retracted(&self) -> bool {
        self.gate.is_closed()
    }

    /// The header of a frame.
    pub(super) fn header(&self, part: usize, stage: usize, offset: usize, len: usize) -> FrameHeader {
        FrameHeader {
            op: op_key(self.id),
            part: part as u32,
            stage: stage as u32,
            offset: offset as u64,
            len: len as u32,
            flags: 0,
            checksum: 0,
        }
    }

    /// The bytes of a frame are here.
    pub(super) fn bytes_arrived(&self, header: &FrameHeader) {
        self.rx_bytes.fetch_add(header.len.into(), Ordering::Relaxed);
    }

    /// A frame has been dealt with. `true`: it was the last one.
    pub(super) fn frame_done(&self) -> bool {
        self.in_left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Tells the owner that everything is here.
    pub(super) fn all_received(&self) {
        if let Some(owner) = self.owner() {
            owner.received_all(self.id);
        }
    }

    /// Tells the owner that the attempt cannot succeed.
    pub(super) fn report(&self, fault: OpFault) {
        if let Some(owner) = self.owner() {
            owner.fault(self.id, fault);
        }
    }

    /// A frame that is not one of those that arrive.
    pub(super) fn unexpected(&self, header: &FrameHeader) -> Violation {
        let FrameHeader { part, stage, offset, len, .. } = header;
        let text = format!(
            "{}: no frame of {len} bytes at byte {offset} of tensor {part} arrives at stage {stage}",
            self.id
        );
        Violation { text }
    }

    /// As [`tinysockets::link::Transfer::corrupt`].
    pub(super) fn corrupt(&self, header: &FrameHeader, peer: u128, generation: u64) {
        let FrameHeader { part, stage, offset, .. } = header;
        self.report(OpFault {
            kind: OpFaultKind::Corrupt,
            peer: Some(PeerId(peer)),
            generation: LinkGeneration(generation),
            text: Text::new(format!(
                "wrong checksum of the frame at byte {offset} of tensor {part}, stage {stage}"
            )),
        });
    }

    /// As [`tinysockets::link::Transfer::released`].
    pub(super) fn released(&self, header: &FrameHeader) {
        if !self.gate.is_closed() {
            self.tx_bytes.fetch_add(header.len.into(), Ordering::Relaxed);
        }
        if self.out_left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(owner) = self.owner()
        {
            owner.released_all(self.id);
        }
    }
}

/// The link's name for an attempt.
pub(crate) fn op_key(id: OpId) -> OpKey {
    let OpId { epoch, tag, attempt } = id;
    OpKey { epoch: epoch.0, tag: tag.number, attempt, pair: tag.pair.is_some(), track: tag.track }
}

pub(crate) fn local_fault(text: impl Into<String>) -> OpFault {
    OpFault { kind: OpFaultKind::Local, peer: None, generation: LinkGeneration(0), text: Text::new(text) }
}

/// A frame that is not one of those that arrive.
pub(crate) fn violation_fault(text: impl Into<String>) -> OpFault {
    OpFault { kind: OpFaultKind::Violation, ..local_fault(text) }
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
