//! The codes of block schemes: the step between two of them, an element's code, a code's value.

use super::{
    noise,
    work::{Source, Work},
};

/// The numbers of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent<W> {
    pub(super) min: W,
    pub(super) max: W,
}

/// The numbers that turn elements into codes and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<W> {
    /// Distance of the values of two neighbouring codes. NaN or infinite: the whole block is NaN.
    pub(super) scale: W,
    /// The number that the values lie around; only for codes that have it.
    pub(super) middle: W,
    /// The factor that elements are multiplied by; 0 if they all have [`Code::OF_CONSTANT`]. Not stored.
    pub(super) inverse: W,
}

impl<W: Work> Step<W> {
    /// The step of a block that becomes NaN.
    #[inline(always)]
    pub(super) fn poisoned() -> Self {
        Self { scale: W::QUIET_NAN, middle: W::QUIET_NAN, inverse: W::ZERO }
    }
}

/// A kind of codes.
pub(super) trait Code {
    /// Whether `middle` is stored behind `scale`.
    const HAS_MIDDLE: bool;
    /// 8, or 4: two codes per byte, the first in the low bits.
    const BITS: u32;
    /// The byte of codes of a constant block.
    const OF_CONSTANT: u8;

    /// The step for a block of finite elements. Without branches, so that it can be done for many blocks at once.
    fn step<S: Source>(extent: Extent<S::Work>) -> Step<S::Work>;
    /// The code nearest to `element`, an even one of two.
    fn nearest<W: Work>(element: W, step: Step<W>) -> u8;
    /// One of the two codes around `element`: the upper one for a share of the `noise` that is as great as the share of
    /// the way to it.
    fn stochastic<W: Work>(element: W, step: Step<W>, noise: u32) -> u8;
    /// The value of a code: a product, which is exact unless the step is a stranger's, then at most one addition.
    fn value<W: Work>(code: u8, step: Step<W>) -> W;

    /// Bytes in front of the codes of a block.
    #[inline(always)]
    fn meta_bytes<W: Work>() -> usize {
        W::SIZE_BYTES * if Self::HAS_MIDDLE { 2 } else { 1 }
    }

    /// Bytes of `count` codes.
    #[inline(always)]
    fn code_bytes(count: usize) -> usize {
        if Self::BITS == 4 { count.div_ceil(2) } else { count }
    }
}

/// `DISTANCES + 1` codes from 0 on, equally spaced from the least to the greatest element.
///
/// The value of code q is `middle + (q - DISTANCES / 2) * scale`. Around the middle, rather than up from the minimum,
/// the products stay in range even if the distance from minimum to maximum does not, and rounding errs half as much.
pub(super) struct Affine<const DISTANCES: u8>;

impl<const DISTANCES: u8> Affine<DISTANCES> {
    #[inline(always)]
    fn half<W: Work>() -> W {
        W::of_f32(f32::from(DISTANCES) / 2.0)
    }

    /// Where `element` lies between the codes.
    #[inline(always)]
    fn position<W: Work>(element: W, step: Step<W>) -> W {
        (element - step.middle) * step.inverse + Self::half()
    }
}

impl<const DISTANCES: u8> Code for Affine<DISTANCES> {
    const HAS_MIDDLE: bool = true;
    const BITS: u32 = if DISTANCES == 15 { 4 } else { 8 };
    const OF_CONSTANT: u8 = 0;

    #[inline(always)]
    fn step<S: Source>(Extent { min, max }: Extent<S::Work>) -> Step<S::Work> {
        let half = S::Work::of_f32(0.5);
        let middle = min * half + max * half;
        // Not half of the distance from minimum to maximum: the middle is rounded, and may lie off by many codes where
        // numbers are great and their differences small.
        let radius = at_least(max - middle, middle - min);
        let scale = at_least(radius / Self::half(), S::Work::LEAST_NORMAL).coarse(Self::BITS);
        let reach = Self::half::<S::Work>() * scale;
        let fits = (middle + reach).finite() & (middle - reach).finite();
        let scale = if fits { scale } else { scale.previous_coarse(Self::BITS) };
        let constant = min == max;
        Step {
            scale: if constant { S::Work::ZERO } else { scale },
            // Plus zero, which makes +0 of -0, since which zero is the minimum is a matter of chance.
            middle: if constant { min + S::Work::ZERO } else { middle },
            inverse: if constant { S::Work::ZERO } else { S::Work::ONE / scale },
        }
    }

    #[inline(always)]
    fn nearest<W: Work>(element: W, step: Step<W>) -> u8 {
        Self::position(element, step).nearest_byte()
    }

    #[inline(always)]
    fn stochastic<W: Work>(element: W, step: Step<W>, noise: u32) -> u8 {
        let greatest = W::of_f32(f32::from(DISTANCES));
        up_or_down(at_most(at_least(Self::position(element, step), W::ZERO), greatest), noise)
    }

    #[inline(always)]
    fn value<W: Work>(code: u8, step: Step<W>) -> W {
        step.middle + (W::of_f32(f32::from(code)) - Self::half()) * step.scale
    }
}

/// Codes from -127 to 127, of which 0 means 0.
pub(super) struct Symmetric;

impl Code for Symmetric {
    const HAS_MIDDLE: bool = false;
    const BITS: u32 = 8;
    const OF_CONSTANT: u8 = 1;

    #[inline(always)]
    fn step<S: Source>(extent: Extent<S::Work>) -> Step<S::Work> {
        let Extent { min, max } = extent;
        let codes = S::Work::of_f32(127.0);
        let scale = at_least(greatest_magnitude(extent) / codes, S::Work::LEAST_NORMAL).coarse(Self::BITS);
        let scale = if (codes * scale).finite() { scale } else { scale.previous_coarse(Self::BITS) };
        let constant = min == max;
        Step {
            // Code 1 is the constant itself, so the scale may be negative.
            scale: if constant { min + S::Work::ZERO } else { scale },
            middle: S::Work::ZERO,
            inverse: if constant { S::Work::ZERO } else { S::Work::ONE / scale },
        }
    }

    #[inline(always)]
    fn nearest<W: Work>(element: W, step: Step<W>) -> u8 {
        (element * step.inverse).nearest_byte()
    }

    #[inline(always)]
    fn stochastic<W: Work>(element: W, step: Step<W>, noise: u32) -> u8 {
        let shifted = element * step.inverse + W::of_f32(127.0);
        up_or_down(at_most(at_least(shifted, W::ZERO), W::of_f32(254.0)), noise).wrapping_sub(127)
    }

    #[inline(always)]
    fn value<W: Work>(code: u8, step: Step<W>) -> W {
        W::of_f32(f32::from(code as i8)) * step.scale
    }
}

#[inline(always)]
pub(super) fn greatest_magnitude<W: Work>(extent: Extent<W>) -> W {
    at_least(extent.max, W::ZERO - extent.min)
}

#[inline(always)]
pub(super) fn at_least<W: Work>(value: W, bound: W) -> W {
    if value > bound { value } else { bound }
}

#[inline(always)]
pub(super) fn at_most<W: Work>(value: W, bound: W) -> W {
    if value < bound { value } else { bound }
}

/// An integer next to `position`, which is within 0 to 255.
#[inline(always)]
fn up_or_down<W: Work>(position: W, noise: u32) -> u8 {
    ((position.fixed15() + noise) >> noise::BITS) as u8
}
