//! Early begins: what this peer has sent for attempts that perhaps not all have voted for, and what others have sent
//! for attempts that this peer has not called yet. Both are bounded.

use parking_lot::Mutex;
use pccl_protocol::{Descriptor, GroupEpoch, OpId, PeerId};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tinysockets::link::{EarlyFrame, Violation};

/// Most bytes that a peer has under way for its early begins, all ranks' contributions counted.
const MAX_SENT_BYTES: usize = 1 << 20;
/// Most bytes that are kept of what one neighbour has sent: what it may have under way in this epoch and in the one
/// before.
const MAX_KEPT_BYTES: usize = 2 * MAX_SENT_BYTES;
/// A shorter frame counts as this number of bytes.
const LEAST_BYTES: usize = 512;
/// Attempts of which something was thrown away, at most.
const MAX_LOST: usize = 1024;

/// The budget of a peer for its early begins.
#[derive(Debug, Default)]
pub(crate) struct EarlyBudget {
    used_bytes: Mutex<usize>,
    is_suspended: AtomicBool,
}

/// A part of the [`EarlyBudget`], until it is dropped.
#[derive(Debug)]
pub(crate) struct EarlyBegin {
    budget: Arc<EarlyBudget>,
    bytes: usize,
}

impl EarlyBudget {
    /// The master has too few peers: an early begin would be void, and cost an epoch.
    pub(crate) fn suspend(&self) {
        self.is_suspended.store(true, Ordering::Relaxed);
    }

    /// An operation is done.
    pub(crate) fn resume(&self) {
        self.is_suspended.store(false, Ordering::Relaxed);
    }

    /// Takes what an operation of this number of ranks needs, if as much is left.
    pub(crate) fn take(self: &Arc<Self>, descriptor: &Descriptor, ranks: usize) -> Option<EarlyBegin> {
        if self.is_suspended.load(Ordering::Relaxed) {
            return None;
        }
        let frame_bytes = usize::try_from(descriptor.bytes()).ok()?.max(LEAST_BYTES);
        // A neighbour may get the contribution of each rank, and the result.
        let bytes = frame_bytes.checked_mul(ranks + 1)?;
        let mut used = self.used_bytes.lock();
        if *used + bytes > MAX_SENT_BYTES {
            return None;
        }
        *used += bytes;
        Some(EarlyBegin { budget: self.clone(), bytes })
    }
}

impl Drop for EarlyBegin {
    fn drop(&mut self) {
        *self.budget.used_bytes.lock() -= self.bytes;
    }
}

/// Frames of attempts that this peer has not called yet.
#[derive(Debug, Default)]
pub(super) struct EarlyFrames {
    of: BTreeMap<OpId, Vec<(PeerId, EarlyFrame)>>,
    kept_bytes: BTreeMap<PeerId, usize>,
    /// Attempts of which frames came that are here no more. A call of one of them fails, unless it has its outcome.
    lost: BTreeSet<OpId>,
}

impl EarlyFrames {
    /// Keeps a frame from a neighbour. If it has sent too many, those of another attempt go: the outcome of one at
    /// least is decided, as it exceeds the budget of the neighbour without one.
    pub(super) fn keep(&mut self, from: PeerId, id: OpId, frame: EarlyFrame) -> Result<(), Violation> {
        // The attempts before it have outcomes.
        self.forget(|other| (other.epoch, other.tag) == (id.epoch, id.tag) && other.attempt < id.attempt);
        let bytes = bytes_of(&frame);
        while self.kept_bytes.get(&from).copied().unwrap_or(0) + bytes > MAX_KEPT_BYTES {
            let is_its = |(_, frames): &(&OpId, &Vec<_>)| frames.iter().any(|(by, _)| *by == from);
            let Some(first) = self.of.iter().find(is_its).map(|(id, _)| *id) else { break };
            self.take(first);
            self.lost.insert(first);
            if self.lost.len() > MAX_LOST {
                let text = format!("more than {MAX_LOST} operations begun early that were never called here");
                return Err(Violation { text });
            }
        }
        *self.kept_bytes.entry(from).or_default() += bytes;
        self.of.entry(id).or_default().push((from, frame));
        Ok(())
    }

    /// The frames of an attempt; none of it are here any more.
    pub(super) fn take(&mut self, id: OpId) -> Vec<EarlyFrame> {
        let frames = self.of.remove(&id).unwrap_or_default();
        for (from, frame) in &frames {
            let kept = self.kept_bytes.entry(*from).or_default();
            *kept = kept.saturating_sub(bytes_of(frame));
        }
        frames.into_iter().map(|(_, frame)| frame).collect()
    }

    /// Whether frames of an attempt were thrown away.
    pub(super) fn has_lost(&mut self, id: OpId) -> bool {
        self.lost.remove(&id)
    }

    /// A newer epoch: attempts of those before it begin no more.
    pub(super) fn begin_epoch(&mut self, epoch: GroupEpoch) {
        self.forget(|id| id.epoch < epoch);
        self.lost.retain(|id| id.epoch >= epoch);
        self.kept_bytes.retain(|_, bytes| *bytes > 0);
    }

    /// An attempt has its outcome, and those of its tag before it in its epoch had theirs. Others of the tag may be of
    /// a later epoch, in which attempts are counted anew.
    pub(super) fn decided(&mut self, last: OpId) {
        let is_over = |id: &OpId| (id.epoch, id.tag) == (last.epoch, last.tag) && id.attempt <= last.attempt;
        if !self.of.is_empty() || !self.lost.is_empty() {
            self.forget(is_over);
            self.lost.retain(|id| !is_over(id));
        }
    }

    fn forget(&mut self, is_over: impl Fn(&OpId) -> bool) {
        let over: Vec<OpId> = self.of.keys().filter(|id| is_over(id)).copied().collect();
        over.into_iter().for_each(|id| drop(self.take(id)));
    }
}

fn bytes_of(frame: &EarlyFrame) -> usize {
    (frame.header().len as usize).max(LEAST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{Algorithm, PartDescriptor, Tag};
    use pccl_quant::{DataType, ReduceOp};
    use tinysockets::link::{FrameHeader, OpKey};

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn id(epoch: u64, tag: u64, attempt: u32) -> OpId {
        OpId { epoch: GroupEpoch(epoch), tag: Tag::from(tag), attempt }
    }

    fn frame(len: usize) -> EarlyFrame {
        let op = OpKey { epoch: 0, tag: 0, attempt: 0, pair: false, track: 0 };
        let header = FrameHeader { op, part: 0, stage: 0, offset: 0, len: len as u32, flags: 0, checksum: 0 };
        EarlyFrame::new(header, vec![0; len], (1, 1))
    }

    fn kept(frames: &mut EarlyFrames, id: OpId) -> usize {
        frames.take(id).len()
    }

    #[test]
    fn frames_are_there_for_the_call_that_they_came_before() {
        let mut frames = EarlyFrames::default();
        for (from, len) in [(A, 10), (B, 20)] {
            frames.keep(from, id(3, 7, 0), frame(len)).expect("room");
        }
        frames.keep(A, id(3, 8, 0), frame(10)).expect("room");
        assert_eq!(kept(&mut frames, id(3, 7, 1)), 0);
        assert_eq!(kept(&mut frames, id(3, 7, 0)), 2);
        assert_eq!(kept(&mut frames, id(3, 7, 0)), 0);
        assert!(!frames.has_lost(id(3, 7, 0)));
        assert_eq!(kept(&mut frames, id(3, 8, 0)), 1);
    }

    /// A peer may hear of the last outcome of an epoch after a neighbour has begun in the next one, where attempts are
    /// counted anew.
    #[test]
    fn an_outcome_takes_only_what_is_over() {
        let mut frames = EarlyFrames::default();
        let ids = [id(3, 7, 5), id(3, 7, 6), id(3, 8, 0), id(4, 7, 0)];
        for id in ids {
            frames.keep(A, id, frame(10)).expect("room");
        }
        // The next attempt of a tag says that those before it in its epoch are over.
        assert_eq!(kept(&mut frames, ids[0]), 0);
        frames.decided(ids[1]);
        assert_eq!(ids.map(|id| frames.of.contains_key(&id)), [false, false, true, true]);
        frames.begin_epoch(GroupEpoch(4));
        assert_eq!(ids.map(|id| frames.of.contains_key(&id)), [false, false, false, true]);
        assert_eq!(kept(&mut frames, ids[3]), 1);
        assert!(frames.kept_bytes.values().all(|bytes| *bytes == 0));
    }

    #[test]
    fn a_neighbour_that_sends_too_much_loses_its_own_first() {
        let mut frames = EarlyFrames::default();
        frames.keep(B, id(3, 0, 0), frame(100)).expect("room");
        let len = MAX_KEPT_BYTES / 4;
        for tag in 1..=6 {
            frames.keep(A, id(3, tag, 0), frame(len)).expect("room");
        }
        let here = (0..=6).map(|tag| frames.of.contains_key(&id(3, tag, 0)));
        assert_eq!(here.collect::<Vec<_>>(), [true, false, false, true, true, true, true]);
        assert!(frames.has_lost(id(3, 1, 0)) && !frames.has_lost(id(3, 3, 0)));
        // Nothing is remembered for ever.
        let all: Result<(), Violation> =
            (7..2000).try_for_each(|tag| frames.keep(A, id(3, tag, 0), frame(len)));
        assert!(all.expect_err("somebody who never stops").text.contains("never called here"));
    }

    #[test]
    fn a_peer_sends_no_more_than_others_keep() {
        let budget = Arc::new(EarlyBudget::default());
        let part = PartDescriptor::new(1000, DataType::Float32, ReduceOp::Sum);
        let descriptor = Descriptor::all_reduce(vec![part], Algorithm::Automatic);
        let begun: Vec<EarlyBegin> =
            std::iter::from_fn(|| budget.take(&descriptor, 4)).take(10_000).collect();
        assert_eq!(begun.len(), MAX_SENT_BYTES / (5 * 4000));
        drop(begun);
        assert_eq!(*budget.used_bytes.lock(), 0);
        budget.suspend();
        assert!(budget.take(&descriptor, 4).is_none());
        budget.resume();
        let empty = Descriptor::all_reduce(vec![PartDescriptor { count: 0, ..part }], Algorithm::Automatic);
        assert_eq!(budget.take(&empty, 1023).map(|begun| begun.bytes), Some(1024 * LEAST_BYTES));
    }
}
