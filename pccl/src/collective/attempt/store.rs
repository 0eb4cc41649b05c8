//! The memory of an attempt, as the attempt sees it.

use crate::{collective::coding::Stop, memory::Backup};
use pccl_schedule::{Arrival, Frame, Step, Unit};
use std::sync::Arc;
use tinysockets::link::{FrameHeader, Landing, Place};

/// Says where the values of an attempt lie, and folds them. All memory is lent behind the gate of the attempt.
pub(super) trait Store: Send + Sync {
    /// Puts values in place that this rank alone has: encodes them, and copies results that stay what they are.
    fn prepare(&self) -> Result<(), Stop>;

    /// Where a frame goes that is due and begins to come. Saves the bytes that it overwrites.
    fn admit(&self, arrival: &Arrival<'_>) -> Landing;

    /// Bytes of an element of a run.
    fn granule_bytes(&self, part: usize) -> usize;

    /// Folds a piece of a frame that is folded while it comes, from byte `done` of it on.
    fn fold_piece(&self, arrival: &Arrival<'_>, done: usize, payload: &[u8]) -> Result<(), Stop>;

    /// Where a frame goes that was admitted, from byte `done` of it on.
    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_>;

    /// Where a frame lies that is sent, from byte `done` of it on. After what it carries was made.
    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_>;

    /// Everything is here that a step takes in: makes its value.
    fn complete(&self, frame: &Frame, unit: &Unit, step: &Step) -> Result<(), Stop>;

    /// Puts results into the caller's memory that are not there.
    fn deliver(&self) -> Result<(), Stop>;

    /// Puts back what was overwritten. After the gate has drained.
    fn restore(&self);

    /// The memory beside the tensors and their backup.
    fn memory(&self) -> &Arc<Backup>;
}
