//! The schemes with one step for a whole chunk, under the names that PCCL has for them: min-max and zero-point-scale.
//!
//! Everything is calculated in f64, whatever the elements are. A chunk becomes `scale`, `middle` and `zero`, then the
//! codes; the value of code q is `middle + (q - zero) * scale`.

use super::{
    block::{self, Sink},
    codes::Extent,
    noise::{NoiseKey, SEGMENT},
    work::{Source, Work},
};
use crate::element::Lane;

/// An unsigned type of codes. Codes of a signed type have the topmost bit inverted.
pub(super) trait Integer: Lane {
    /// The greatest code.
    const GREATEST: f64;
    /// The nearest code, ties to even; for 0 to [`Integer::GREATEST`].
    fn nearest(position: f64) -> Self;
    fn as_f64(self) -> f64;
    /// With the topmost bit inverted, if so wanted.
    fn flipped(self, signed: bool) -> Self;
}

macro_rules! integer {
    ($type:ident, $nearest:expr) => {
        impl Integer for $type {
            const GREATEST: f64 = $type::MAX as f64;

            #[inline(always)]
            fn nearest(position: f64) -> Self {
                let nearest: fn(f64) -> Self = $nearest;
                nearest(position)
            }

            #[inline(always)]
            fn as_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn flipped(self, signed: bool) -> Self {
                self ^ (Self::from(signed) << ($type::BITS - 1))
            }
        }
    };
}

/// The last mantissa bit of a number of this size is worth 1, so an addition rounds to an integer.
const ROUND: f64 = 6_755_399_441_055_744.0;

integer!(u8, |position| (position + ROUND).to_bits() as u8);
integer!(u16, |position| (position + ROUND).to_bits() as u16);
integer!(u32, |position| (position + ROUND).to_bits() as u32);
// An f64 has fewer digits; the conversion takes 2^64 for the greatest code.
integer!(u64, |position| position.round_ties_even() as u64);

/// The numbers that stand in front of the codes.
#[derive(Clone, Copy, Debug)]
struct Step {
    scale: f64,
    middle: f64,
    zero: f64,
}

impl Step {
    /// From minimum to maximum.
    fn min_max(extent: Extent<f64>, greatest_code: f64) -> Self {
        let Extent { min, max } = extent;
        if min == max {
            return Self { scale: 0.0, middle: min + 0.0, zero: 0.0 };
        }
        let (middle, radius) = (min * 0.5 + max * 0.5, max * 0.5 - min * 0.5);
        let zero = greatest_code / 2.0;
        let mut scale = (radius / zero).max(f64::MIN_POSITIVE);
        while !((middle + zero * scale).is_finite() && (middle - zero * scale).is_finite()) {
            scale = scale.next_down();
        }
        Self { scale, middle, zero }
    }

    /// Six standard deviations to each side of the mean. The code of 0 is a whole number, if there is a code for 0.
    #[inline(always)]
    fn zero_point<S: Source>(elements: &[S::Bytes], extent: Extent<f64>, greatest_code: f64) -> Self {
        let (mean, deviation) = moments::<S>(elements, extent.min * 0.5 + extent.max * 0.5);
        let scale = 12.0 * deviation / greatest_code;
        // Not so for a constant, and where a square is too great or too small to be calculated with.
        if !(scale.is_finite() && scale >= f64::MIN_POSITIVE && mean.is_finite()) {
            return Self::min_max(extent, greatest_code);
        }
        // The outermost values may lie beyond the outermost elements, but must not be infinite.
        let greatest = S::GREATEST_ELEMENT.as_f64();
        if extent.max + scale > greatest || extent.min - scale < -greatest {
            return Self::min_max(extent, greatest_code);
        }
        let half = ((greatest_code + 1.0) / 2.0).floor();
        let zero = half - (mean / scale).round_ties_even();
        if (0.0..=greatest_code).contains(&zero) {
            Self { scale, middle: 0.0, zero }
        } else {
            Self { scale, middle: mean, zero: half }
        }
    }

    #[inline(always)]
    fn poisoned() -> Self {
        Self { scale: f64::QUIET_NAN, middle: f64::QUIET_NAN, zero: f64::QUIET_NAN }
    }

    fn write(self, meta: &mut [u8]) {
        for (value, out) in [self.scale, self.middle, self.zero].into_iter().zip(meta.chunks_mut(8)) {
            value.write(out);
        }
    }

    fn read(meta: &[u8]) -> Self {
        let value = |index: usize| <f64 as Work>::read(&meta[8 * index..]);
        Self { scale: value(0), middle: value(1), zero: value(2) }
    }
}

/// Mean and standard deviation; NaN or infinite if they cannot be calculated with f64.
///
/// In a fixed order, so that the result is the same on every level.
#[inline(always)]
fn moments<S: Source>(elements: &[S::Bytes], near: f64) -> (f64, f64) {
    const LANES: usize = 16;
    let (mut sums, mut squares) = ([0.0; LANES], [0.0; LANES]);
    let (groups, rest) = elements.as_chunks::<LANES>();
    let away = |element: &S::Bytes| f64_of::<S>(*element) - near;
    for group in groups {
        for lane in 0..LANES {
            let away = away(&group[lane]);
            sums[lane] += away;
            squares[lane] += away * away;
        }
    }
    let mut sum: f64 = sums.iter().sum();
    let mut square: f64 = squares.iter().sum();
    for away in rest.iter().map(away) {
        sum += away;
        square += away * away;
    }
    let count = elements.len() as f64;
    let variance = (square - sum * sum / count) / (count - 1.0);
    (near + sum / count, variance.sqrt())
}

#[inline(always)]
fn f64_of<S: Source>(element: S::Bytes) -> f64 {
    S::load(element).widen().as_f64()
}

/// Encodes a whole chunk into `encoded` of the right length.
#[inline(always)]
pub(super) fn encode<S: Source, I: Integer>(
    data: &[u8],
    encoded: &mut [u8],
    is_min_max: bool,
    signed: bool,
    noise: Option<NoiseKey>,
    first_segment: u64,
) {
    let elements = S::elements(data);
    if elements.is_empty() {
        return;
    }
    let step = match block::finite_extent::<S>(elements) {
        None => Step::poisoned(),
        Some(Extent { min, max }) => {
            let extent = Extent { min: min.as_f64(), max: max.as_f64() };
            if is_min_max {
                Step::min_max(extent, I::GREATEST)
            } else {
                Step::zero_point::<S>(elements, extent, I::GREATEST)
            }
        }
    };
    let (meta, codes) = encoded.split_at_mut(super::scheme::CHUNK_META_BYTES);
    step.write(meta);
    if step.scale == 0.0 || step.scale.is_nan() {
        codes.fill(0);
        return;
    }
    let inverse = 1.0 / step.scale;
    let code = |element: S::Bytes, shift: f64| {
        let position = (f64_of::<S>(element) - step.middle) * inverse + step.zero + shift;
        let position = if position > 0.0 { position } else { 0.0 };
        let position = if position < I::GREATEST { position } else { I::GREATEST };
        I::nearest(position).flipped(signed).store()
    };
    let codes = I::elements_mut(codes);
    let Some(key) = noise else {
        codes.iter_mut().zip(elements).for_each(|(out, element)| *out = code(*element, 0.0));
        return;
    };
    let mut segment = first_segment;
    for (codes, elements) in codes.chunks_mut(SEGMENT).zip(elements.chunks(SEGMENT)) {
        // To the nearest after a shift by less than half a code: whole numbers stay what they are.
        let shifts = key.segment(segment).map(|noise| (f64::from(noise) + 0.5) / 32_768.0 - 0.5);
        for ((out, element), shift) in codes.iter_mut().zip(elements).zip(shifts) {
            *out = code(*element, shift);
        }
        segment = segment.wrapping_add(1);
    }
}

/// Decodes a whole chunk from `encoded` of the right length.
#[inline(always)]
pub(super) fn decode<S: Source, I: Integer, K: Sink>(encoded: &[u8], data: &mut [u8], signed: bool) {
    let elements = S::elements_mut(data);
    if elements.is_empty() {
        return;
    }
    let (meta, codes) = encoded.split_at(super::scheme::CHUNK_META_BYTES);
    let step = Step::read(meta);
    if !(step.scale.is_finite() && step.middle.is_finite() && step.zero.is_finite()) {
        elements.fill(S::narrow(S::Work::QUIET_NAN).store());
        return;
    }
    for (element, code) in elements.iter_mut().zip(I::elements(codes)) {
        let value = step.middle + (I::load(*code).flipped(signed).as_f64() - step.zero) * step.scale;
        *element = K::put::<S>(*element, S::Work::of_f64(value));
    }
}
