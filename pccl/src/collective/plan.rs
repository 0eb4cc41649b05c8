//! Which bytes travel when: the ring all-reduce as plain data, with no I/O.
//!
//! The schedule is the bandwidth-optimal ring of Patarasuk and Yuan ("Bandwidth optimal all-reduce algorithms for
//! clusters of workstations", 2009): n ranks, n chunks, `2 (n - 1)` stages. At stage `s` rank `r` sends chunk
//! `(r - s) mod n` to the next rank and receives chunk `(r - s - 1) mod n` from the previous one. In the first `n - 1`
//! stages (reduce-scatter) what arrives is folded into the receiver's own chunk, in the rest (gather) it replaces it.
//! Chunks are cut into frames, and each frame runs through its stages on its own: there is no step barrier.
//!
//! A quantised tensor has the same chunks. What travels is the encoded form of one after the other, and a [`Unit`] is
//! what can be decoded by itself: a frame, or, if the scheme cannot be cut, all frames of a chunk.

use pccl_protocol::PartDescriptor;
use pccl_quant::quantise::Codec;
use std::ops::Range;

/// Payload bytes of a full frame; of a quantised one, bytes of the elements that it stands for. A multiple of every
/// element size.
pub(crate) const FRAME_BYTES: usize = 512 << 10;

/// Quantised tensors use frames this many times smaller: a coded frame is forwarded only once it is complete, so every
/// hop costs the time of one frame.
const CODED_FRAMES: usize = 4;

/// The schedule of one attempt as one rank sees it.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    ranks: usize,
    rank: usize,
    parts: Vec<PartPlan>,
    slots: usize,
}

/// Where the chunks and frames of one tensor lie.
#[derive(Debug, Clone)]
struct PartPlan {
    codec: Option<Codec>,
    /// Elements of a small chunk.
    base: usize,
    /// The first `extra` chunks hold one element more.
    extra: usize,
    /// Bytes of such a chunk as it travels, and of a small one.
    chunk_bytes: [usize; 2],
    /// Elements of a full unit.
    unit_elements: usize,
    /// Payload bytes of a full frame.
    frame_bytes: usize,
    /// First slot of each chunk, and the end.
    first_slot: Vec<usize>,
}

/// One frame of one chunk of one tensor: the unit of bookkeeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Index of the tensor.
    pub(crate) part: usize,
    /// Chunk of the tensor.
    pub(crate) chunk: usize,
    /// Number of this frame among all frames of all tensors.
    pub(crate) slot: usize,
    /// First byte in the tensor, in the form in which it travels.
    pub(crate) offset: usize,
    /// Length in bytes.
    pub(crate) len: usize,
}

impl Frame {
    /// The bytes of the tensor that the frame covers.
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// What is decoded and encoded as a whole, of a quantised tensor; a frame, if it is not quantised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Chunk of the tensor.
    pub(crate) chunk: usize,
    /// Elements of the tensor.
    pub(crate) elements: Range<usize>,
    /// Number of the first of them in its chunk.
    pub(crate) first_in_chunk: usize,
    /// Bytes in the encoded form of the tensor.
    pub(crate) encoded: Range<usize>,
    /// The frames that make it up.
    pub(crate) slots: Range<usize>,
}

/// What a stage does with what it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageKind {
    /// Fold into the own chunk.
    Reduce,
    /// Fold; the chunk is then complete and this rank owns it.
    LastReduce,
    /// Replace the own chunk.
    Gather,
}

impl Plan {
    /// The plan of `rank` among `ranks` for these tensors, with full frames of that size, a multiple of every element
    /// size.
    pub(crate) fn new(parts: &[PartDescriptor], ranks: usize, rank: usize, frame_bytes: usize) -> Self {
        assert!(rank < ranks, "a rank is below the number of ranks");
        assert!(frame_bytes > 0 && frame_bytes.is_multiple_of(8), "frames hold whole elements");
        let mut slots = 0;
        let parts = parts
            .iter()
            .map(|part| {
                let mut plan = PartPlan::new(part, ranks, frame_bytes);
                for chunk in 0..ranks {
                    plan.first_slot.push(slots);
                    slots += plan.chunk_bytes(chunk).len().div_ceil(plan.frame_bytes);
                }
                plan.first_slot.push(slots);
                plan
            })
            .collect();
        Self { ranks, rank, parts, slots }
    }

    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Own rank.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Number of tensors.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Number of frames of all tensors.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Number of stages: `2 (n - 1)`.
    pub(crate) fn stages(&self) -> usize {
        2 * (self.ranks - 1)
    }

    /// What `stage` does with what it receives.
    pub(crate) fn stage_kind(&self, stage: usize) -> StageKind {
        match stage + 2 {
            next if next < self.ranks => StageKind::Reduce,
            next if next == self.ranks => StageKind::LastReduce,
            _ => StageKind::Gather,
        }
    }

    /// The chunk that this rank sends at `stage`.
    pub(crate) fn sent_chunk(&self, stage: usize) -> usize {
        (self.rank + 2 * self.ranks - stage) % self.ranks
    }

    /// The chunk that this rank receives at `stage`.
    pub(crate) fn received_chunk(&self, stage: usize) -> usize {
        (self.rank + 2 * self.ranks - stage - 1) % self.ranks
    }

    /// The frames of `chunk` in every tensor, in order.
    pub(crate) fn frames_of(&self, chunk: usize) -> impl Iterator<Item = Frame> + '_ {
        (0..self.parts.len()).flat_map(move |part| {
            let slots = self.parts[part].first_slot[chunk]..self.parts[part].first_slot[chunk + 1];
            let first = slots.start;
            slots.map(move |slot| self.frame(part, chunk, slot - first))
        })
    }

    /// The frame that a header announces, if this rank receives exactly that frame at that stage.
    pub(crate) fn received_frame(&self, part: u32, stage: u32, offset: u64, len: u32) -> Option<Frame> {
        let (part, stage) = (part as usize, stage as usize);
        if part >= self.parts.len() || stage >= self.stages() {
            return None;
        }
        self.frame_at(part, self.received_chunk(stage), offset, len)
    }

    /// The frame of `chunk` that lies there, if there is exactly that one.
    pub(crate) fn frame_at(&self, part: usize, chunk: usize, offset: u64, len: u32) -> Option<Frame> {
        let plan = self.parts.get(part)?;
        let (bytes, frame_bytes) = (plan.chunk_bytes(chunk), plan.frame_bytes);
        let offset = usize::try_from(offset).ok()?;
        if !bytes.contains(&offset) || !(offset - bytes.start).is_multiple_of(frame_bytes) {
            return None;
        }
        let frame = self.frame(part, chunk, (offset - bytes.start) / frame_bytes);
        (frame.len == len as usize).then_some(frame)
    }

    /// The frame that lies there, if there is exactly that one.
    pub(crate) fn frame_anywhere(&self, part: usize, offset: u64, len: u32) -> Option<Frame> {
        let chunk = self.parts.get(part)?.chunk_with(usize::try_from(offset).ok()?)?;
        self.frame_at(part, chunk, offset, len)
    }

    /// The chunk that this rank completes.
    pub(crate) fn owned_chunk(&self) -> usize {
        self.chunk_owned_by(self.rank)
    }

    /// The chunk that `rank` completes: on the ring it is the last one to add to it.
    pub(crate) fn chunk_owned_by(&self, rank: usize) -> usize {
        (rank + 1) % self.ranks
    }

    /// The rank that completes a chunk on the ring.
    pub(crate) fn ring_owner(&self, chunk: usize) -> usize {
        (chunk + self.ranks - 1) % self.ranks
    }

    /// The elements of a chunk, and its bytes as it travels.
    pub(crate) fn chunk(&self, part: usize, chunk: usize) -> (Range<usize>, Range<usize>) {
        let plan = &self.parts[part];
        (plan.chunk_elements(chunk), plan.chunk_bytes(chunk))
    }

    /// Frames that this rank receives in all stages together; it sends as many as the previous rank's view says, see
    /// [`Plan::frames_sent`].
    pub(crate) fn frames_received(&self) -> usize {
        (0..self.stages()).map(|stage| self.frames_in_chunk(self.received_chunk(stage))).sum()
    }

    /// Frames that this rank sends in all stages together.
    pub(crate) fn frames_sent(&self) -> usize {
        (0..self.stages()).map(|stage| self.frames_in_chunk(self.sent_chunk(stage))).sum()
    }

    /// Frames of one chunk of all tensors.
    pub(crate) fn frames_in_chunk(&self, chunk: usize) -> usize {
        self.parts.iter().map(|part| part.first_slot[chunk + 1] - part.first_slot[chunk]).sum()
    }

    fn frame(&self, part: usize, chunk: usize, index: usize) -> Frame {
        let plan = &self.parts[part];
        let bytes = plan.chunk_bytes(chunk);
        let offset = bytes.start + index * plan.frame_bytes;
        Frame {
            part,
            chunk,
            slot: plan.first_slot[chunk] + index,
            offset,
            len: plan.frame_bytes.min(bytes.end - offset),
        }
    }

    /// The codec of a tensor, if it is quantised.
    pub(crate) fn codec(&self, part: usize) -> Option<Codec> {
        self.parts[part].codec
    }

    /// Bytes of the encoded form of a tensor; 0 if it is not quantised.
    pub(crate) fn encoded_bytes(&self, part: usize) -> usize {
        let plan = &self.parts[part];
        if plan.codec.is_some() { plan.chunk_bytes(self.ranks - 1).end } else { 0 }
    }

    /// Bytes of the encoded forms of all quantised tensors.
    pub(crate) fn all_encoded_bytes(&self) -> usize {
        (0..self.parts.len()).map(|part| self.encoded_bytes(part)).sum()
    }

    /// The unit that a frame belongs to.
    pub(crate) fn unit_of(&self, frame: &Frame) -> Unit {
        let plan = &self.parts[frame.part];
        let chunk = plan.chunk_elements(frame.chunk);
        let slots = plan.first_slot[frame.chunk]..plan.first_slot[frame.chunk + 1];
        if plan.unit_elements == usize::MAX {
            let encoded = plan.chunk_bytes(frame.chunk);
            return Unit { chunk: frame.chunk, elements: chunk, first_in_chunk: 0, encoded, slots };
        }
        let first_in_chunk = (frame.slot - slots.start) * plan.unit_elements;
        let start = chunk.start + first_in_chunk;
        Unit {
            chunk: frame.chunk,
            elements: start..chunk.end.min(start + plan.unit_elements),
            first_in_chunk,
            encoded: frame.range(),
            slots: frame.slot..frame.slot + 1,
        }
    }

    /// The frames of a unit, in order.
    pub(crate) fn frames_of_unit(&self, part: usize, unit: &Unit) -> impl Iterator<Item = Frame> + '_ {
        let (chunk, first) = (unit.chunk, self.parts[part].first_slot[unit.chunk]);
        unit.slots.clone().map(move |slot| self.frame(part, chunk, slot - first))
    }

    /// As if this rank had a processor of that level.
    #[cfg(test)]
    pub(crate) fn at(mut self, level: pccl_quant::Level) -> Self {
        for part in &mut self.parts {
            part.codec = part.codec.and_then(|codec| codec.at(level));
        }
        self
    }

    /// Every frame, in the order of the slots of each chunk.
    pub(crate) fn all_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        (0..self.ranks).flat_map(|chunk| self.frames_of(chunk))
    }
}

impl PartPlan {
    /// Leaves `first_slot` empty.
    fn new(part: &PartDescriptor, ranks: usize, frame_bytes: usize) -> Self {
        let element_bytes = part.data_type.size_bytes();
        // The launch of an operation has refused what has no codec.
        let codec = part.quantisation.and_then(|it| it.codec(part.data_type, part.op).ok());
        let bytes = |elements: usize| match &codec {
            None => elements * element_bytes,
            // Cannot overflow: the encoded form is no larger than the tensor, which is in memory.
            Some(codec) => codec.encoded_len(elements).unwrap_or(0),
        };
        let unit_elements = match codec.map(|codec| codec.piece_elements()) {
            None => frame_bytes / element_bytes,
            Some(None) => usize::MAX,
            Some(Some(piece)) => (frame_bytes / CODED_FRAMES / element_bytes / piece).max(1) * piece,
        };
        let count = part.count as usize;
        let base = count / ranks;
        Self {
            base,
            extra: count % ranks,
            chunk_bytes: [bytes(base + 1), bytes(base)],
            unit_elements,
            frame_bytes: if unit_elements == usize::MAX { frame_bytes } else { bytes(unit_elements) },
            codec,
            first_slot: Vec::with_capacity(ranks + 1),
        }
    }

    fn chunk_elements(&self, chunk: usize) -> Range<usize> {
        let start = chunk * self.base + chunk.min(self.extra);
        start..start + self.base + usize::from(chunk < self.extra)
    }

    /// In the form in which the tensor travels.
    fn chunk_bytes(&self, chunk: usize) -> Range<usize> {
        let [large, small] = self.chunk_bytes;
        let large_before = chunk.min(self.extra);
        let start = large_before * large + (chunk - large_before) * small;
        start..start + if chunk < self.extra { large } else { small }
    }

    /// The chunk that has this byte of the tensor, in the form in which it travels.
    fn chunk_with(&self, byte: usize) -> Option<usize> {
        let [large, small] = self.chunk_bytes;
        let of_large = large * self.extra;
        if byte < of_large {
            return byte.checked_div(large);
        }
        let chunk = self.extra + (byte - of_large).checked_div(small)?;
        (chunk + 1 < self.first_slot.len()).then_some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_quant::{DataType, ReduceOp};
    use proptest::prelude::*;

    fn parts(counts: &[u64]) -> Vec<PartDescriptor> {
        counts.iter().map(|&count| PartDescriptor::new(count, DataType::Float32, ReduceOp::Sum)).collect()
    }

    proptest! {
        #[test]
        fn frames_tile_every_tensor(
            counts in prop::collection::vec(0u64..200, 1..5),
            ranks in 1usize..9,
            frame in 1usize..6,
        ) {
            let descriptors = parts(&counts);
            let plan = Plan::new(&descriptors, ranks, 0, frame * 8);
            let mut seen = vec![Vec::new(); counts.len()];
            let mut slots = Vec::new();
            for frame in plan.all_frames() {
                seen[frame.part].push(frame.range());
                slots.push(frame.slot);
            }
            slots.sort_unstable();
            prop_assert_eq!(slots, (0..plan.slots()).collect::<Vec<_>>());
            for frame in plan.all_frames() {
                prop_assert_eq!(plan.frame_anywhere(frame.part, frame.offset as u64, frame.len as u32), Some(frame));
                prop_assert_eq!(plan.frame_anywhere(frame.part, frame.offset as u64 + 1, frame.len as u32), None);
            }
            let end = (counts[0] * 4, 8);
            prop_assert_eq!(plan.frame_anywhere(0, end.0, end.1), None);
            for (part, ranges) in seen.iter_mut().enumerate() {
                ranges.sort_by_key(|range| range.start);
                let mut end = 0;
                for range in ranges.iter() {
                    prop_assert_eq!(range.start, end);
                    prop_assert!(!range.is_empty());
                    end = range.end;
                }
                prop_assert_eq!(end as u64, counts[part] * 4);
            }
        }

        #[test]
        fn sends_mirror_receives(
            counts in prop::collection::vec(0u64..200, 1..4),
            ranks in 2usize..9,
            frame in 1usize..6,
        ) {
            let descriptors = parts(&counts);
            let plans: Vec<_> = (0..ranks).map(|r| Plan::new(&descriptors, ranks, r, frame * 8)).collect();
            for (rank, plan) in plans.iter().enumerate() {
                let next = &plans[(rank + 1) % ranks];
                prop_assert_eq!(plan.frames_sent(), next.frames_received());
                for stage in 0..plan.stages() {
                    prop_assert_eq!(plan.sent_chunk(stage), next.received_chunk(stage));
                    for frame in plan.frames_of(plan.sent_chunk(stage)) {
                        let (part, offset) = (frame.part as u32, frame.offset as u64);
                        let got = next.received_frame(part, stage as u32, offset, frame.len as u32);
                        prop_assert_eq!(got, Some(frame));
                    }
                }
            }
        }

        #[test]
        fn every_chunk_visits_every_rank_and_is_owned_once(ranks in 2usize..12) {
            let descriptors = parts(&[100]);
            for chunk in 0..ranks {
                let mut owner = None;
                let mut gathered = 0;
                for rank in 0..ranks {
                    let plan = Plan::new(&descriptors, ranks, rank, FRAME_BYTES);
                    for stage in 0..plan.stages() {
                        if plan.received_chunk(stage) == chunk {
                            match plan.stage_kind(stage) {
                                StageKind::LastReduce => { prop_assert_eq!(owner.replace(rank), None); }
                                StageKind::Gather => gathered += 1,
                                StageKind::Reduce => {}
                            }
                        }
                    }
                }
                prop_assert_eq!(owner, Some((chunk + ranks - 1) % ranks));
                prop_assert_eq!(gathered, ranks - 1);
            }
        }
    }

    #[test]
    fn headers_off_the_grid_are_not_in_the_plan() {
        let plan = Plan::new(&parts(&[64]), 2, 0, 32);
        // Rank 0 of 2 receives chunk 1 (bytes 128..256) at stage 0.
        assert!(plan.received_frame(0, 0, 128, 32).is_some());
        for (part, stage, offset, len) in [
            (1, 0, 128, 32),
            (0, 2, 128, 32),
            (0, 0, 0, 32),
            (0, 0, 132, 32),
            (0, 0, 128, 16),
            (0, 0, 256, 32),
            (0, 0, u64::MAX, 32),
        ] {
            assert_eq!(plan.received_frame(part, stage, offset, len), None);
        }
    }
}
