//! The float types that are quantised, and the type in which that is calculated: f32, or f64 for f64.
//!
//! All is `inline(always)`, because a loop takes on the processor features of the function it ends up in. Nothing here
//! may be fused or reordered by the compiler, which is why all levels yield the same bits.

use std::ops::{Add, Div, Mul, Sub};

use half::{bf16, f16};

use crate::{
    element::Lane,
    float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16},
};

/// A type to calculate in: f32 or f64.
pub(super) trait Work:
    Copy
    + PartialOrd
    + Lane
    + Source<Work = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    /// The greatest number.
    const GREATEST: Self;
    /// The least normal number: no step is smaller, so that its reciprocal is a number.
    const LEAST_NORMAL: Self;
    /// The one NaN that stands for every NaN.
    const QUIET_NAN: Self;
    const SIZE_BYTES: usize;
    /// An integer as wide.
    type Key: Copy + Ord;
    /// The key of infinity without sign.
    const INFINITE: Self::Key;

    /// An integer that orders numbers as their values, -0 before +0.
    fn ordered(self) -> Self::Key;
    /// The number that has this key.
    fn of_ordered(key: Self::Key) -> Self;
    /// The key of the magnitude: [`Work::INFINITE`] or more if not finite.
    fn magnitude(self) -> Self::Key;
    fn of_f32(value: f32) -> Self;
    fn of_f64(value: f64) -> Self;
    fn as_f32(self) -> f32;
    fn as_f64(self) -> f64;
    fn finite(self) -> bool;
    /// The least number at least `self` with `bits` mantissa bits less, so that products with numbers of `bits` bits
    /// are exact. For a positive, finite `self`.
    fn coarse(self, bits: u32) -> Self;
    /// The next smaller number that is coarse, of a positive one that is.
    fn previous_coarse(self, bits: u32) -> Self;
    /// The greatest power of two at most `self`, which is positive and normal.
    fn power_of_two(self) -> Self;
    /// The nearest integer, ties to even, modulo 256; for magnitudes up to 2^20.
    fn nearest_byte(self) -> u8;
    /// `self * 2^15` to the nearest integer, ties to even; for 0 to 255.
    fn fixed15(self) -> u32;
    /// Reads one from the front of `bytes`, which are enough.
    fn read(bytes: &[u8]) -> Self;
    /// Writes one to the front of `bytes`, which are enough.
    fn write(self, bytes: &mut [u8]);
}

/// A type of elements that are quantised.
pub(super) trait Source: Lane {
    type Work: Work;
    /// The greatest number of the type.
    const GREATEST_ELEMENT: Self::Work;
    /// The same value, exact.
    fn widen(self) -> Self::Work;
    /// The nearest value of the type, ties to even; every NaN becomes the one NaN.
    fn narrow(value: Self::Work) -> Self;
    /// `self + value`, rounded once to the working type and once to this one; every NaN becomes the one NaN.
    fn plus(self, value: Self::Work) -> Self;
}

macro_rules! work {
    ($type:ident, $key:ident, $size:literal, $round:literal, $fixed:literal, $mantissa_bits:literal) => {
        impl Work for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const GREATEST: Self = $type::MAX;
            const LEAST_NORMAL: Self = $type::MIN_POSITIVE;
            // Written out in `element.rs` for sums; the same.
            const QUIET_NAN: Self = $type::from_bits($type::INFINITY.to_bits() | 1 << ($mantissa_bits - 1));
            const SIZE_BYTES: usize = $size;
            type Key = $key;
            const INFINITE: $key = $type::INFINITY.to_bits() as $key;

            #[inline(always)]
            fn ordered(self) -> $key {
                let bits = self.to_bits() as $key;
                bits ^ ((bits >> ($key::BITS - 1)) & $key::MAX)
            }

            #[inline(always)]
            fn of_ordered(key: $key) -> Self {
                Self::from_bits((key ^ ((key >> ($key::BITS - 1)) & $key::MAX)) as _)
            }

            #[inline(always)]
            fn magnitude(self) -> $key {
                self.to_bits() as $key & $key::MAX
            }

            #[inline(always)]
            fn of_f32(value: f32) -> Self {
                Self::from(value)
            }

            #[inline(always)]
            fn of_f64(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn as_f32(self) -> f32 {
                self as f32
            }

            #[inline(always)]
            fn as_f64(self) -> f64 {
                self.into()
            }

            #[inline(always)]
            fn finite(self) -> bool {
                self.is_finite()
            }

            #[inline(always)]
            fn coarse(self, bits: u32) -> Self {
                let low = (1 << bits) - 1;
                Self::from_bits((self.to_bits() + low) & !low)
            }

            #[inline(always)]
            fn previous_coarse(self, bits: u32) -> Self {
                Self::from_bits(self.to_bits() - (1 << bits))
            }

            #[inline(always)]
            fn power_of_two(self) -> Self {
                Self::from_bits(self.to_bits() >> $mantissa_bits << $mantissa_bits)
            }

            #[inline(always)]
            fn nearest_byte(self) -> u8 {
                // At that size the last mantissa bit is worth 1, so the addition rounds to an integer.
                (self + $round).to_bits() as u8
            }

            #[inline(always)]
            fn fixed15(self) -> u32 {
                // As above, with a last bit worth 2^-15.
                (self + $fixed).to_bits() as u32 & 0x7F_FFFF
            }

            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or(Self::ZERO, |bytes| Self::from_le_bytes(*bytes))
            }

            #[inline(always)]
            fn write(self, bytes: &mut [u8]) {
                if let Some(bytes) = bytes.first_chunk_mut() {
                    *bytes = self.to_le_bytes();
                }
            }
        }

        impl Source for $type {
            type Work = Self;
            const GREATEST_ELEMENT: Self = Self::MAX;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow(value: Self) -> Self {
                if value.is_nan() { Self::QUIET_NAN } else { value }
            }

            #[inline(always)]
            fn plus(self, value: Self) -> Self {
                self.sum(value)
            }
        }
    };
}

work!(f32, i32, 4, 12_582_912.0, 256.0, 23);
work!(f64, i64, 8, 6_755_399_441_055_744.0, 206_158_430_208.0, 52);

macro_rules! source16 {
    ($type:ident, $greatest:literal, $widen:ident, $narrow:ident) => {
        impl Source for $type {
            type Work = f32;
            const GREATEST_ELEMENT: f32 = f32::from_bits($greatest);

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.to_bits())
            }

            #[inline(always)]
            fn narrow(value: f32) -> Self {
                Self::from_bits($narrow(value))
            }

            #[inline(always)]
            fn plus(self, value: f32) -> Self {
                Self::narrow(self.widen() + value)
            }
        }
    };
}

source16!(f16, 0x477F_E000, f16_to_f32, f32_to_f16);
source16!(bf16, 0x7F7F_0000, bf16_to_f32, f32_to_bf16);
