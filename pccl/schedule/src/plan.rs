//! How the tensors of an operation are cut, as plain data, with no I/O: the chunks of their [`Shape`] into frames.
//!
//! The plan cuts the [runs](Run) of an operation: one tensor each, or several that are dealt with as one.
//!
//! A quantised tensor has the same chunks. The encoded form of one after the other travels, and a [`Unit`] is what can
//! be decoded by itself: a frame, or, if the scheme cannot be cut, all frames of a chunk. Over sites elements travel as
//! they are, too: with as many frames as their unit has, or fewer if these are more than elements.

use super::{
    runs::{Run, runs_of},
    shape::Shape,
};
use pccl_protocol::PartDescriptor;
use pccl_quant::quantise::Codec;
use std::ops::Range;

/// Payload bytes of a full frame; of a quantised one, bytes of the elements that it stands for. A multiple of every
/// element size.
pub const FRAME_BYTES: usize = 512 << 10;

/// Quantised tensors use frames this many times smaller: a coded frame is forwarded only once it is complete, so every
/// hop costs the time of one frame.
const CODED_FRAMES: usize = 4;

/// The schedule of one attempt as one rank sees it.
#[derive(Debug, Clone)]
pub struct Plan {
    shape: Shape,
    rank: usize,
    parts: Vec<PartPlan>,
    slots: usize,
}

/// Where the chunks and frames of one run lie.
#[derive(Debug, Clone)]
struct PartPlan {
    run: Run,
    codec: Option<Codec>,
    /// Elements of a full unit.
    unit_elements: usize,
    /// Payload bytes of a full frame.
    frame_bytes: usize,
    /// Where each chunk begins, and the end of the last one.
    starts: Vec<Start>,
}

/// Where a chunk begins.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// First element of the run.
    element: usize,
    /// First byte of the run, in the form in which it travels.
    byte: usize,
    /// First slot.
    slot: usize,
}

/// One frame of one chunk of one run: the unit of bookkeeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Index of the run.
    pub part: usize,
    /// Chunk of the run.
    pub chunk: usize,
    /// Number of this frame among all frames of all runs.
    pub slot: usize,
    /// First byte in the run, in the form in which it travels.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Frame {
    /// The bytes of the run that the frame covers.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// The part of a quantised tensor that is decoded and encoded as a whole; a frame, if it is not quantised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Chunk of the run.
    pub chunk: usize,
    /// Elements of the run.
    pub elements: Range<usize>,
    /// Number of the first of them in its chunk.
    pub first_in_chunk: usize,
    /// Bytes of the run, in the form in which it travels.
    pub encoded: Range<usize>,
    /// The frames that make it up.
    pub slots: Range<usize>,
}

impl Plan {
    /// The plan of `rank` for these tensors, which all fit `shape`, with full frames of that size, a multiple of every
    /// element size.
    pub fn new(parts: &[PartDescriptor], shape: &Shape, rank: usize, frame_bytes: usize) -> Self {
        assert!(rank < shape.ranks(), "a rank is below the number of ranks");
        assert!(frame_bytes > 0 && frame_bytes.is_multiple_of(8), "frames hold whole elements");
        let mut slots = 0;
        let runs = runs_of(parts, shape).into_iter();
        let parts = runs.map(|run| PartPlan::new(run, shape, frame_bytes, &mut slots)).collect();
        Self { shape: shape.clone(), rank, parts, slots }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.shape.ranks()
    }

    /// Own rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The shape: the treatment of the chunks.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of runs.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The run with that index.
    pub fn run(&self, part: usize) -> &Run {
        &self.parts[part].run
    }

    /// All runs, in their order.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.parts.iter().map(|part| &part.run)
    }

    /// Number of frames of all runs.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// As [`Shape::start_of`].
    pub fn start_of(&self, chunk: usize) -> usize {
        self.shape.start_of(chunk)
    }

    /// The frames of `chunk` in every run, in order.
    pub fn frames_of(&self, chunk: usize) -> impl Iterator<Item = Frame> + '_ {
        (0..self.parts.len()).flat_map(move |part| {
            let frames = self.parts[part].slots(chunk).len();
            (0..frames).map(move |index| self.frame(part, chunk, index))
        })
    }

    /// The frame of `chunk` that lies there, if there is exactly that one.
    fn frame_at(&self, part: usize, chunk: usize, offset: u64, len: u32) -> Option<Frame> {
        let plan = self.parts.get(part)?;
        let (bytes, frame_bytes) = (plan.bytes(chunk), plan.frame_bytes);
        let offset = usize::try_from(offset).ok()?;
        if !bytes.contains(&offset) || !(offset - bytes.start).is_multiple_of(frame_bytes) {
            return None;
        }
        let frame = self.frame(part, chunk, (offset - bytes.start) / frame_bytes);
        (frame.len == len as usize).then_some(frame)
    }

    /// The frame that lies there, if there is exactly that one.
    pub fn frame_anywhere(&self, part: usize, offset: u64, len: u32) -> Option<Frame> {
        let chunk = self.parts.get(part)?.chunk_with(usize::try_from(offset).ok()?)?;
        self.frame_at(part, chunk, offset, len)
    }

    /// The elements of a chunk, and its bytes as it travels.
    pub fn chunk(&self, part: usize, chunk: usize) -> (Range<usize>, Range<usize>) {
        let plan = &self.parts[part];
        (plan.elements(chunk), plan.bytes(chunk))
    }

    fn frame(&self, part: usize, chunk: usize, index: usize) -> Frame {
        let plan = &self.parts[part];
        let bytes = plan.bytes(chunk);
        let offset = bytes.start + index * plan.frame_bytes;
        let len = plan.frame_bytes.min(bytes.end - offset);
        Frame { part, chunk, slot: plan.starts[chunk].slot + index, offset, len }
    }

    /// The codec of a tensor, if it is quantised.
    pub fn codec(&self, part: usize) -> Option<Codec> {
        self.parts[part].codec
    }

    /// Bytes of the encoded form of a tensor; 0 if it is not quantised.
    pub fn encoded_bytes(&self, part: usize) -> usize {
        let plan = &self.parts[part];
        if plan.codec.is_some() { plan.starts[self.shape.chunks()].byte } else { 0 }
    }

    /// The unit that a frame belongs to.
    pub fn unit_of(&self, frame: &Frame) -> Unit {
        let plan = &self.parts[frame.part];
        let (chunk, slots) = (plan.elements(frame.chunk), plan.slots(frame.chunk));
        if plan.unit_elements == usize::MAX {
            return self.all_units(frame.part, frame.chunk);
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

    /// All units of a chunk as one, which is as good for a rank that encodes or decodes all of them.
    pub fn all_units(&self, part: usize, chunk: usize) -> Unit {
        let plan = &self.parts[part];
        let (elements, encoded) = (plan.elements(chunk), plan.bytes(chunk));
        Unit { chunk, elements, first_in_chunk: 0, encoded, slots: plan.slots(chunk) }
    }

    /// The part of its unit that travels with a frame where elements of a quantised run travel as they are; its offset
    /// is that in the tensor. None if frames before it have all elements.
    pub fn plain_frame(&self, frame: &Frame) -> Option<Frame> {
        let (unit, size) = (self.unit_of(frame), self.parts[frame.part].element_bytes());
        let each = unit.elements.len().div_ceil(unit.slots.len());
        let first = (frame.slot - unit.slots.start) * each;
        let elements = first..unit.elements.len().min(first + each);
        let offset = (unit.elements.start + first) * size;
        (!elements.is_empty()).then(|| Frame { offset, len: elements.len() * size, ..*frame })
    }

    /// The frame with which elements travel that lie there in a tensor, if there is exactly that one.
    pub fn frame_of_plain(&self, part: usize, offset: u64, len: u32) -> Option<Frame> {
        let plan = self.parts.get(part)?;
        let element = usize::try_from(offset).ok()? / plan.element_bytes();
        let chunk = plan.starts.partition_point(|start| start.element <= element).checked_sub(1)?;
        let in_chunk = element - plan.starts[chunk].element;
        let slots = (chunk < self.shape.chunks()).then(|| plan.slots(chunk))?;
        let index = match plan.unit_elements {
            usize::MAX => in_chunk / plan.elements(chunk).len().div_ceil(slots.len()),
            elements => in_chunk / elements,
        };
        let frame = self.frame(part, chunk, index);
        let plain = self.plain_frame(&frame)?;
        (plain.offset as u64 == offset && plain.len == len as usize).then_some(frame)
    }

    /// The frames of a unit, in order.
    pub fn frames_of_unit(&self, part: usize, unit: &Unit) -> impl Iterator<Item = Frame> + '_ {
        let (chunk, first) = (unit.chunk, self.parts[part].starts[unit.chunk].slot);
        unit.slots.clone().map(move |slot| self.frame(part, chunk, slot - first))
    }

    /// As if this rank had a processor of that level: for tests, as results do not depend on it.
    pub fn at(mut self, level: pccl_quant::Level) -> Self {
        for part in &mut self.parts {
            part.codec = part.codec.and_then(|codec| codec.at(level));
        }
        self
    }

    /// Every frame, in the order of the slots of each chunk.
    pub fn all_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        (0..self.shape.chunks()).flat_map(|chunk| self.frames_of(chunk))
    }
}

impl PartPlan {
    /// Takes its slots from `slots` on.
    fn new(run: Run, shape: &Shape, frame_bytes: usize, slots: &mut usize) -> Self {
        let part = &run.descriptor;
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
        let frame_bytes = if unit_elements == usize::MAX { frame_bytes } else { bytes(unit_elements) };
        let mut starts = Vec::with_capacity(shape.chunks() + 1);
        let mut at = Start { element: 0, byte: 0, slot: *slots };
        starts.push(at);
        for elements in shape.chunk_counts(part.count as usize) {
            let len = bytes(elements);
            at.element += elements;
            at.byte += len;
            at.slot += len.div_ceil(frame_bytes);
            starts.push(at);
        }
        *slots = at.slot;
        Self { run, codec, unit_elements, frame_bytes, starts }
    }

    /// Bytes of an element of the tensors.
    fn element_bytes(&self) -> usize {
        self.run.descriptor.data_type.size_bytes()
    }

    fn elements(&self, chunk: usize) -> Range<usize> {
        self.starts[chunk].element..self.starts[chunk + 1].element
    }

    /// In the form in which the tensor travels.
    fn bytes(&self, chunk: usize) -> Range<usize> {
        self.starts[chunk].byte..self.starts[chunk + 1].byte
    }

    fn slots(&self, chunk: usize) -> Range<usize> {
        self.starts[chunk].slot..self.starts[chunk + 1].slot
    }

    /// The chunk that has this byte of the run, in the form in which it travels.
    fn chunk_with(&self, byte: usize) -> Option<usize> {
        let after = self.starts.partition_point(|start| start.byte <= byte);
        (after < self.starts.len()).then(|| after - 1)
    }
}
