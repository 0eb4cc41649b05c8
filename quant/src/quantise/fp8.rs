//! Codes that are floats of 8 bits, as the Open Compute Project defines them, times a power of two per block.
//!
//! With a power of two, the division and the multiplication are exact, so the only error is that of the 8 bits.

use super::{
    codes::{Code, Extent, Step, at_least, at_most, greatest_magnitude},
    work::{Source, Work},
};

/// Floats of 8 bits, by the number of their mantissa bits: 3 for e4m3 (greatest number 448), 2 for e5m2 (57 344).
pub(super) struct Float8<const MANTISSA_BITS: u32>;

impl<const MANTISSA_BITS: u32> Float8<MANTISSA_BITS> {
    const BIAS: u32 = if MANTISSA_BITS == 3 { 7 } else { 15 };
    const GREATEST: f32 = if MANTISSA_BITS == 3 { 448.0 } else { 57_344.0 };
    /// The greatest power of two among the numbers.
    const GREATEST_POWER: f32 = if MANTISSA_BITS == 3 { 256.0 } else { 32_768.0 };
    /// By how much a mantissa is longer in an f32.
    const SHIFT: u32 = 23 - MANTISSA_BITS;
    /// Bits of the f32 of the least normal number.
    const LEAST_NORMAL: u32 = (127 + 1 - Self::BIAS) << 23;
    /// Bits of an f32 whose last mantissa bit is worth as much as that of a subnormal number.
    const ALIGN: u32 = Self::LEAST_NORMAL + (Self::SHIFT << 23);

    /// The nearest number, ties to even. The magnitude is at most [`Self::GREATEST`].
    #[inline(always)]
    fn narrowed(value: f32) -> u8 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7FFF_FFFF;
        let aligned = f32::from_bits(magnitude) + f32::from_bits(Self::ALIGN);
        let subnormal = aligned.to_bits().wrapping_sub(Self::ALIGN);
        let odd = (magnitude >> Self::SHIFT) & 1;
        let rounded = magnitude.wrapping_add((1 << (Self::SHIFT - 1)) - 1 + odd) >> Self::SHIFT;
        let normal = rounded.wrapping_sub((127 - Self::BIAS) << MANTISSA_BITS);
        let number = if magnitude < Self::LEAST_NORMAL { subnormal } else { normal };
        (number | bits >> 24 & 0x80) as u8
    }

    /// The value of a code. Those that stand for infinity or NaN do so here.
    #[inline(always)]
    fn widened(code: u8) -> f32 {
        let magnitude = u32::from(code & 0x7F);
        let sign = u32::from(code & 0x80) << 24;
        let normal = (magnitude << Self::SHIFT) + ((127 - Self::BIAS) << 23);
        // Read with an implicit one, which is then taken away: exact, and no subnormal f32 takes part.
        let with_one = f32::from_bits(normal + (1 << 23));
        let subnormal = (with_one - f32::from_bits(Self::LEAST_NORMAL)).to_bits();
        let finite = if magnitude >> MANTISSA_BITS == 0 { subnormal } else { normal };
        let special = match MANTISSA_BITS {
            3 if magnitude == 0x7F => f32::NAN.to_bits(),
            2 if magnitude >= 0x7C => normal | 0x7F80_0000,
            _ => finite,
        };
        f32::from_bits(special | sign)
    }
}

impl<const MANTISSA_BITS: u32> Code for Float8<MANTISSA_BITS> {
    const HAS_MIDDLE: bool = false;
    const BITS: u32 = 8;
    /// One.
    const OF_CONSTANT: u8 = (Self::BIAS << MANTISSA_BITS) as u8;

    #[inline(always)]
    fn step<S: Source>(extent: Extent<S::Work>) -> Step<S::Work> {
        let greatest = at_least(greatest_magnitude(extent), S::Work::LEAST_NORMAL);
        let scale = greatest.power_of_two() / S::Work::of_f32(Self::GREATEST_POWER);
        let scale = at_least(scale, S::Work::LEAST_NORMAL);
        let fits = greatest <= scale * S::Work::of_f32(Self::GREATEST);
        let scale = if fits { scale } else { scale + scale };
        let inverse = S::Work::ONE / scale;
        // The greatest code to be used: the one that rounding up to would make an element infinite is left out.
        let top = Self::narrowed((greatest * inverse).as_f32());
        let reaches = S::Work::of_f32(Self::widened(top)) * scale <= S::GREATEST_ELEMENT;
        let limit = S::Work::of_f32(Self::widened(top.wrapping_sub(u8::from(!reaches))));
        let constant = extent.min == extent.max;
        Step {
            scale: if constant { extent.min + S::Work::ZERO } else { scale },
            // Not stored, since `HAS_MIDDLE` is not set.
            middle: limit,
            inverse: if constant { S::Work::ZERO } else { inverse },
        }
    }

    #[inline(always)]
    fn nearest<W: Work>(element: W, step: Step<W>) -> u8 {
        let scaled = at_least(at_most(element * step.inverse, step.middle), W::ZERO - step.middle);
        Self::narrowed(scaled.as_f32())
    }

    /// Not offered; see [`super::Scheme::has_stochastic`].
    #[inline(always)]
    fn stochastic<W: Work>(element: W, step: Step<W>, _: u32) -> u8 {
        Self::nearest(element, step)
    }

    #[inline(always)]
    fn value<W: Work>(code: u8, step: Step<W>) -> W {
        W::of_f32(Self::widened(code)) * step.scale
    }
}
