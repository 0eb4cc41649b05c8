//! Early frames: their sender does not know whether this end has announced the operation.
//!
//! A frame of an operation that this end knows is received as any other. One of an operation that is still to be
//! announced is received whole and given to [`Directory::keep`](super::Directory::keep). It is handed over when the
//! operation is announced.

use pccl_hash::Checksum;

use super::{FLAG_EARLY, FaultKind, FrameHeader, Landing, Transfer, Violation, core::Fault, places::Places};

/// Most payload bytes of an early frame.
pub const MAX_EARLY_FRAME_BYTES: usize = 256 << 10;

/// A frame that came before its operation was announced.
#[derive(Debug)]
pub struct EarlyFrame {
    header: FrameHeader,
    payload: Vec<u8>,
    /// The payload was damaged on its way.
    is_damaged: bool,
    /// The peer that sent it, and the generation of the link.
    name: (u128, u64),
}

impl EarlyFrame {
    /// A frame with its payload, which has come whole over the link of a peer with this generation.
    #[must_use]
    pub fn new(header: FrameHeader, payload: Vec<u8>, name: (u128, u64)) -> Self {
        let checksum = || {
            let mut checksum = Checksum::new();
            checksum.append(&payload);
            checksum.value()
        };
        let is_damaged = header.has_checksum() && checksum() != header.checksum;
        Self { header, payload, is_damaged, name }
    }

    /// Which frame it is.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// Hands it over to its operation, as a link does with a frame that arrives. Must not be called under a lock that
    /// the transfer takes.
    ///
    /// # Errors
    /// The operation does not admit it, or names no memory for it.
    pub fn hand_over(&self, transfer: &dyn Transfer) -> Result<(), Violation> {
        let header = &self.header;
        match transfer.admit(header)? {
            Landing::Discard => return Ok(()),
            Landing::Direct => {}
            Landing::Fold => {
                return Err(Violation { text: "an early frame is not folded piece by piece".to_owned() });
            }
        }
        let mut done = 0;
        while done < self.payload.len() {
            let target = |done| transfer.target(header, done);
            let places = Places::of(header, done, usize::MAX, target).map_err(defect)?;
            let end = done + places.bytes();
            if !places.are_writable() {
                return Err(Violation { text: "memory lent for reading is no place to receive".to_owned() });
            }
            if places.fill(&self.payload[done..end]).is_none() {
                // The operation has stopped.
                return Ok(());
            }
            done = end;
        }
        match self.is_damaged {
            true => transfer.corrupt(header, self.name.0, self.name.1),
            false => transfer.arrived(header),
        }
        Ok(())
    }
}

impl FrameHeader {
    /// Whether its sender does not know whether the receiver has announced the operation.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.flags & FLAG_EARLY != 0
    }
}

/// Refuses an early frame that is longer than those may be.
pub(super) fn check_length(header: &FrameHeader) -> Result<(), Fault> {
    if header.len as usize > MAX_EARLY_FRAME_BYTES {
        let text = format!("an early frame of {} bytes, at most {MAX_EARLY_FRAME_BYTES} may be", header.len);
        return Err(Fault::new(FaultKind::Violation, text));
    }
    Ok(())
}

fn defect(fault: Fault) -> Violation {
    Violation { text: fault.text }
}
