//! The loops of block schemes: what a block extends over, its codes, and back.
//!
//! A block of elements becomes a record: the scale, for some codes the middle, then the codes. Only the last record may
//! have fewer elements.

use super::{
    codes::{Code, Extent, Step, at_least, at_most},
    noise::{NoiseKey, SEGMENT},
    work::{Source, Work},
};

/// Elements that are treated side by side, in registers.
const LANES: usize = 32;

/// Elements whose steps are calculated in advance: they should stay in the first-level cache.
const BATCH_ELEMENTS: usize = 2048;
/// Most blocks at once.
const BATCH_BLOCKS: usize = 8;

/// How codes are chosen, at compile time.
pub(super) trait Round: Copy {
    /// The codes of 64 elements, of which the first is element `64 * segment` of the operation.
    fn codes<S: Source, C: Code>(
        self,
        elements: &[S::Bytes; SEGMENT],
        step: Step<S::Work>,
        segment: u64,
    ) -> [u8; SEGMENT];
}

/// To nearest, ties to even.
#[derive(Clone, Copy)]
pub(super) struct Nearest;

impl Round for Nearest {
    #[inline(always)]
    fn codes<S: Source, C: Code>(
        self,
        elements: &[S::Bytes; SEGMENT],
        step: Step<S::Work>,
        _: u64,
    ) -> [u8; SEGMENT] {
        let mut codes = [0; SEGMENT];
        for (code, element) in codes.iter_mut().zip(elements) {
            *code = C::nearest(S::load(*element).widen(), step);
        }
        codes
    }
}

impl Round for NoiseKey {
    #[inline(always)]
    fn codes<S: Source, C: Code>(
        self,
        elements: &[S::Bytes; SEGMENT],
        step: Step<S::Work>,
        segment: u64,
    ) -> [u8; SEGMENT] {
        let noise = self.segment(segment);
        let mut codes = [0; SEGMENT];
        for (code, (element, noise)) in codes.iter_mut().zip(elements.iter().zip(noise)) {
            *code = C::stochastic(S::load(*element).widen(), step, noise);
        }
        codes
    }
}

/// Encodes elements, of which the first is at the start of segment `first_segment` of the operation, into `records` of
/// the right length.
///
/// The steps of several blocks are calculated before the codes of the first: each is a long chain of dependent
/// operations, which the processor then does side by side.
#[inline(always)]
pub(super) fn encode<S: Source, C: Code, R: Round>(
    data: &[u8],
    records: &mut [u8],
    block: usize,
    rounding: R,
    first_segment: u64,
) {
    let record_bytes = C::meta_bytes::<S::Work>() + C::code_bytes(block);
    let blocks_at_once = (BATCH_ELEMENTS / block).clamp(1, BATCH_BLOCKS);
    let mut segment = first_segment;
    let batches = S::elements(data).chunks(block * blocks_at_once);
    for (batch, records) in batches.zip(records.chunks_mut(record_bytes * blocks_at_once)) {
        let steps = steps::<S, C>(batch, block);
        let records = records.chunks_mut(record_bytes);
        for ((elements, step), record) in batch.chunks(block).zip(steps).zip(records) {
            write_record::<S, C, R>(elements, record, step, rounding, segment);
            segment = segment.wrapping_add((block / SEGMENT) as u64);
        }
    }
}

/// The steps of up to [`BATCH_BLOCKS`] blocks.
#[inline(always)]
fn steps<S: Source, C: Code>(batch: &[S::Bytes], block: usize) -> [Step<S::Work>; BATCH_BLOCKS] {
    let nothing = Reduced { extent: Extent { min: S::Work::ZERO, max: S::Work::ZERO }, is_finite: true };
    let mut all = [nothing; BATCH_BLOCKS];
    for (elements, all) in batch.chunks(block).zip(&mut all) {
        *all = reduced::<S>(elements);
    }
    let mut steps = all.map(|reduced| C::step::<S>(reduced.extent));
    // One addition per element finds out about all that are not finite. Only if a sum is not finite, by them or because
    // it is too great, there is a closer look.
    for ((elements, reduced), step) in batch.chunks(block).zip(all).zip(&mut steps) {
        if !reduced.is_finite && !all_finite::<S>(elements) {
            *step = Step::poisoned();
        }
    }
    steps
}

#[inline(always)]
fn write_record<S: Source, C: Code, R: Round>(
    elements: &[S::Bytes],
    record: &mut [u8],
    step: Step<S::Work>,
    rounding: R,
    first_segment: u64,
) {
    let (meta, codes) = record.split_at_mut(C::meta_bytes::<S::Work>());
    step.scale.write(meta);
    if C::HAS_MIDDLE {
        step.middle.write(&mut meta[S::Work::SIZE_BYTES..]);
    }
    if step.inverse == S::Work::ZERO {
        codes.fill(C::OF_CONSTANT);
    } else {
        write_codes::<S, C, R>(elements, codes, step, rounding, first_segment);
    }
}

#[inline(always)]
fn write_codes<S: Source, C: Code, R: Round>(
    elements: &[S::Bytes],
    codes: &mut [u8],
    step: Step<S::Work>,
    rounding: R,
    first_segment: u64,
) {
    let (segments, rest) = elements.as_chunks::<SEGMENT>();
    let mut segment = first_segment;
    let (whole, last) = codes.split_at_mut(C::code_bytes(segments.len() * SEGMENT));
    if C::BITS == 4 {
        for (elements, out) in segments.iter().zip(whole.as_chunks_mut::<{ SEGMENT / 2 }>().0) {
            *out = packed(rounding.codes::<S, C>(elements, step, segment));
            segment = segment.wrapping_add(1);
        }
    } else {
        for (elements, out) in segments.iter().zip(whole.as_chunks_mut::<SEGMENT>().0) {
            *out = rounding.codes::<S, C>(elements, step, segment);
            segment = segment.wrapping_add(1);
        }
    }
    if !rest.is_empty() {
        // A last, short segment is filled up with zeros, of which the codes are dropped.
        let mut elements = [S::narrow(S::Work::ZERO).store(); SEGMENT];
        elements[..rest.len()].copy_from_slice(rest);
        let mut codes = rounding.codes::<S, C>(&elements, step, segment);
        codes[rest.len()..].fill(0);
        let out = if C::BITS == 4 { &packed(codes)[..] } else { &codes };
        last.copy_from_slice(&out[..last.len()]);
    }
}

/// Two codes per byte, the first in the low bits.
#[inline(always)]
fn packed(codes: [u8; SEGMENT]) -> [u8; SEGMENT / 2] {
    let mut bytes = [0; SEGMENT / 2];
    for (byte, pair) in bytes.iter_mut().zip(codes.as_chunks::<2>().0) {
        let pair = u16::from_le_bytes(*pair);
        *byte = (pair | pair >> 4) as u8;
    }
    bytes
}

#[inline(always)]
fn unpacked(bytes: &[u8; SEGMENT / 2]) -> [u8; SEGMENT] {
    let mut codes = [0; SEGMENT];
    for (pair, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        let byte = u16::from(*byte);
        *pair = ((byte | byte << 4) & 0x0F0F).to_le_bytes();
    }
    codes
}

/// Minimum, maximum and sum of the elements of each lane.
#[derive(Clone, Copy)]
struct Lanes<W, const N: usize> {
    min: [W; N],
    max: [W; N],
    sum: [W; N],
}

impl<W: Work, const N: usize> Lanes<W, N> {
    #[inline(always)]
    fn new() -> Self {
        Self { min: [W::GREATEST; N], max: [W::ZERO - W::GREATEST; N], sum: [W::ZERO; N] }
    }

    #[inline(always)]
    fn take<S: Source<Work = W>>(&mut self, group: &[S::Bytes; N]) {
        for (lane, element) in group.iter().enumerate() {
            let element = S::load(*element).widen();
            self.min[lane] = at_most(element, self.min[lane]);
            self.max[lane] = at_least(element, self.max[lane]);
            self.sum[lane] = self.sum[lane] + element;
        }
    }
}

/// Minimum and maximum of a block, and whether the sum was a number.
#[derive(Clone, Copy)]
struct Reduced<W> {
    extent: Extent<W>,
    is_finite: bool,
}

impl<W: Work, const N: usize> Lanes<W, N> {
    /// By way of integers: compilers know how to find the least of a vector of those, but not of floats.
    #[inline(always)]
    fn reduced(&self) -> Reduced<W> {
        let (mut min, mut max) = (W::GREATEST.ordered(), (W::ZERO - W::GREATEST).ordered());
        let mut magnitude = W::ZERO.magnitude();
        for lane in 0..N {
            min = min.min(self.min[lane].ordered());
            max = max.max(self.max[lane].ordered());
            magnitude = magnitude.max(self.sum[lane].magnitude());
        }
        let extent = Extent { min: W::of_ordered(min), max: W::of_ordered(max) };
        Reduced { extent, is_finite: magnitude < W::INFINITE }
    }
}

/// If an element is not finite, a sum is not, and minimum and maximum say nothing.
#[inline(always)]
fn reduced<S: Source>(elements: &[S::Bytes]) -> Reduced<S::Work> {
    let (groups, rest) = elements.as_chunks::<LANES>();
    let mut lanes = Lanes::<S::Work, LANES>::new();
    groups.iter().for_each(|group| lanes.take::<S>(group));
    if let Some(first) = rest.first() {
        let mut group = [*first; LANES];
        group[..rest.len()].copy_from_slice(rest);
        lanes.take::<S>(&group);
    }
    lanes.reduced()
}

/// Minimum and maximum; `None` if an element is not finite. There must be an element.
#[inline(always)]
pub(super) fn finite_extent<S: Source>(elements: &[S::Bytes]) -> Option<Extent<S::Work>> {
    let Reduced { extent, is_finite } = reduced::<S>(elements);
    (is_finite || all_finite::<S>(elements)).then_some(extent)
}

#[cold]
#[inline(never)]
fn all_finite<S: Source>(elements: &[S::Bytes]) -> bool {
    elements.iter().all(|element| S::load(*element).widen().finite())
}

/// The fate of a decoded value, at compile time.
pub(super) trait Sink {
    /// The new element.
    fn put<S: Source>(old: S::Bytes, value: S::Work) -> S::Bytes;
}

/// Decoded values replace the elements.
pub(super) struct Set;

impl Sink for Set {
    #[inline(always)]
    fn put<S: Source>(_: S::Bytes, value: S::Work) -> S::Bytes {
        S::narrow(value).store()
    }
}

/// Decoded values are added to the elements.
pub(super) struct Add;

impl Sink for Add {
    #[inline(always)]
    fn put<S: Source>(old: S::Bytes, value: S::Work) -> S::Bytes {
        S::load(old).plus(value).store()
    }
}

/// Decodes `records`, which have the right length for `data`.
#[inline(always)]
pub(super) fn decode<S: Source, C: Code, K: Sink>(records: &[u8], data: &mut [u8], block: usize) {
    let meta_bytes = C::meta_bytes::<S::Work>();
    let record_bytes = meta_bytes + C::code_bytes(block);
    for (elements, record) in S::elements_mut(data).chunks_mut(block).zip(records.chunks(record_bytes)) {
        let (meta, codes) = record.split_at(meta_bytes);
        let scale = S::Work::read(meta);
        let middle = if C::HAS_MIDDLE { S::Work::read(&meta[S::Work::SIZE_BYTES..]) } else { S::Work::ZERO };
        if scale.finite() && middle.finite() {
            let step = Step { scale, middle, inverse: S::Work::ZERO };
            read_codes::<S, C, K>(codes, elements, step);
        } else {
            elements.fill(S::narrow(S::Work::QUIET_NAN).store());
        }
    }
}

#[inline(always)]
fn read_codes<S: Source, C: Code, K: Sink>(codes: &[u8], elements: &mut [S::Bytes], step: Step<S::Work>) {
    let put = |element: &mut S::Bytes, code: u8| *element = K::put::<S>(*element, C::value(code, step));
    if C::BITS == 4 {
        let (segments, rest) = elements.as_chunks_mut::<SEGMENT>();
        let (whole, last) = codes.split_at(segments.len() * SEGMENT / 2);
        for (elements, codes) in segments.iter_mut().zip(whole.as_chunks::<{ SEGMENT / 2 }>().0) {
            elements.iter_mut().zip(unpacked(codes)).for_each(|(element, code)| put(element, code));
        }
        for (pair, byte) in rest.chunks_mut(2).zip(last) {
            pair.iter_mut().zip([byte & 15, byte >> 4]).for_each(|(element, code)| put(element, code));
        }
    } else {
        elements.iter_mut().zip(codes).for_each(|(element, code)| put(element, *code));
    }
}
