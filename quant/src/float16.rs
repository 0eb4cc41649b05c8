//! Conversions between f32 and the two 16-bit types, on bit patterns.
//!
//! Written so that a loop over them can become vector code (with AVX2 it does; with SSE2 alone the f16 pair stays
//! scalar): no branches, only selects between values that are all
//! computed, and no table. (The conversions of the crate `half` look at the processor's features per element, which
//! keeps a loop from becoming vector code.) The f16 pair follows F. Giesen's `half_to_float_fast5` and
//! `float_to_half_fast3_rtne` (public domain).

/// Bits of the quiet NaN that stands for every NaN result.
pub(crate) const F16_NAN: u16 = 0x7E00;
/// Likewise for bf16.
pub(crate) const BF16_NAN: u16 = 0x7FC0;

const F32_INF: u32 = 0x7F80_0000;
const F32_SIGN: u32 = 0x8000_0000;

/// `yes` or `no`, by arithmetic: of an `if` the compiler may make a branch, and then no vector code.
#[inline(always)]
fn select(condition: bool, yes: u32, no: u32) -> u32 {
    let mask = u32::from(condition).wrapping_neg();
    no ^ ((yes ^ no) & mask)
}

/// The f32 of the same value, exact. A NaN stays some NaN.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    /// 2^-14, the smallest normal f16; also the implicit one that a subnormal does not have.
    const MIN_NORMAL: u32 = (127 - 14) << 23;
    const EXPONENT: u32 = 0x7C00 << 13;
    let half = u32::from(half);
    let sign = (half & 0x8000) << 16;
    let magnitude = (half & 0x7FFF) << 13;
    let exponent = magnitude & EXPONENT;
    let rebiased = magnitude + ((127 - 15) << 23);
    // Infinity and NaN: the exponent goes all the way up.
    let special = rebiased + ((128 - 16) << 23);
    // Zero and subnormals: read with an implicit one, then take it away. Exact, and no subnormal f32 takes part.
    let subnormal = (f32::from_bits(rebiased + (1 << 23)) - f32::from_bits(MIN_NORMAL)).to_bits();
    let finite = select(exponent == 0, subnormal, rebiased);
    let bits = select(exponent == EXPONENT, special, finite);
    f32::from_bits(bits | sign)
}

/// The nearest f16, ties to even; beyond its range infinity. Every NaN becomes [`F16_NAN`].
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    /// 2^16, from which on all is infinity (what lies just below is rounded to infinity by the carry).
    const OVERFLOW: u32 = (127 + 16) << 23;
    const MIN_NORMAL: u32 = (127 - 14) << 23;
    /// A number whose last mantissa bit is worth 2^-24, as that of a subnormal f16 is.
    const ALIGN: u32 = ((127 - 15) + (23 - 10) + 1) << 23;
    let bits = value.to_bits();
    let sign = (bits & F32_SIGN) >> 16;
    let magnitude = bits & !F32_SIGN;
    // Subnormal results: the addition shifts the mantissa to its place and rounds it as wanted.
    let aligned = f32::from_bits(magnitude) + f32::from_bits(ALIGN);
    let subnormal = aligned.to_bits().wrapping_sub(ALIGN);
    // Normal results: rebias, round half up, and one less if the mantissa is even.
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xFFF + odd) >> 13;
    let finite = select(magnitude < MIN_NORMAL, subnormal, normal);
    let number = select(magnitude >= OVERFLOW, 0x7C00, finite) | sign;
    select(magnitude > F32_INF, u32::from(F16_NAN), number) as u16
}

/// The f32 of the same value, exact. A NaN stays some NaN.
#[inline(always)]
pub(crate) fn bf16_to_f32(brain: u16) -> f32 {
    f32::from_bits(u32::from(brain) << 16)
}

/// The nearest bf16, ties to even; beyond its range infinity. Every NaN becomes [`BF16_NAN`].
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7FFF + odd) >> 16;
    select(bits & !F32_SIGN > F32_INF, u32::from(BF16_NAN), rounded) as u16
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_16_bit_pattern_widens_as_half_says() {
        for bits in 0..=u16::MAX {
            for (ours, theirs) in [
                (f16_to_f32(bits), f16::from_bits(bits).to_f32()),
                (bf16_to_f32(bits), bf16::from_bits(bits).to_f32()),
            ] {
                assert_eq!(ours.is_nan(), theirs.is_nan(), "{bits:#06x}");
                assert!(ours.is_nan() || ours.to_bits() == theirs.to_bits(), "{bits:#06x}");
            }
        }
    }

    fn narrows_as_half_says(value: f32) {
        let (f, b) = (f16::from_f32(value), bf16::from_f32(value));
        let (f, b) = if value.is_nan() { (F16_NAN, BF16_NAN) } else { (f.to_bits(), b.to_bits()) };
        assert_eq!(f32_to_f16(value), f, "{value:e} {:#010x}", value.to_bits());
        assert_eq!(f32_to_bf16(value), b, "{value:e} {:#010x}", value.to_bits());
    }

    /// Every value of each 16-bit type, every midpoint between two neighbours, and the f32 next to either.
    #[test]
    fn rounding_is_right_at_and_around_every_tie() {
        for upper in 0..=u16::MAX {
            let base = u32::from(upper) << 16;
            for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                narrows_as_half_says(f32::from_bits(base | low));
            }
            let exact = f16_to_f32(upper).to_bits();
            let next = f16_to_f32(upper.wrapping_add(1)).to_bits();
            let midpoint = f32::from_bits(exact).midpoint(f32::from_bits(next)).to_bits();
            for near in [exact, midpoint] {
                for step in [u32::MAX, 0, 1] {
                    narrows_as_half_says(f32::from_bits(near.wrapping_add(step)));
                }
            }
        }
    }
}
