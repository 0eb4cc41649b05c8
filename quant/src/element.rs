//! The element types at compile time: how one element is read, written, combined and divided.

use half::{bf16, f16};

use crate::{
    DataType,
    float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16},
    reciprocal::{Reciprocal, Unsigned},
};

/// A Rust type that a tensor's elements may have. Sealed: these are the twelve types of [`DataType`].
pub trait Element: Lane + Copy + Send + Sync + 'static {
    /// The type as a run-time value.
    const DATA_TYPE: DataType;
}

/// The functions of an element that the kernels need; private, which seals [`Element`].
///
/// All of it is `inline(always)`, because a loop takes on the processor features of the function it ends up in.
pub trait Lane: Sized + Copy {
    /// The element as stored: a byte array, so that it may lie at any address.
    type Bytes: Copy;

    /// The whole elements of `bytes`.
    fn elements(bytes: &[u8]) -> &[Self::Bytes];
    /// The whole elements of `bytes`, to write to.
    fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    /// Reads an element.
    fn load(bytes: Self::Bytes) -> Self;
    /// Writes an element.
    fn store(self) -> Self::Bytes;

    /// `self + received`.
    fn sum(self, received: Self) -> Self;
    /// `self * received`.
    fn prod(self, received: Self) -> Self;
    /// The greater.
    fn max(self, received: Self) -> Self;
    /// The less.
    fn min(self, received: Self) -> Self;
    /// A number of ranks in the form that [`Lane::divided`] takes.
    type Divisor: Copy;
    /// `ranks`, which are at least 1, as a divisor.
    fn divisor(ranks: u32) -> Self::Divisor;
    /// `self / ranks`.
    fn divided(self, ranks: Self::Divisor) -> Self;
}

/// The part that only the stored size decides.
macro_rules! storage {
    ($size:literal) => {
        type Bytes = [u8; $size];

        #[inline(always)]
        fn elements(bytes: &[u8]) -> &[Self::Bytes] {
            bytes.as_chunks().0
        }

        #[inline(always)]
        fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
            bytes.as_chunks_mut().0
        }

        #[inline(always)]
        fn load(bytes: Self::Bytes) -> Self {
            Self::from_le_bytes(bytes)
        }

        #[inline(always)]
        fn store(self) -> Self::Bytes {
            self.to_le_bytes()
        }
    };
}

/// The quotient truncated towards zero: that of the magnitudes, with the sign of the sum.
macro_rules! divided_integer {
    (unsigned, $value:expr, $ranks:expr) => {
        $value.quotient($ranks)
    };
    (signed, $value:expr, $ranks:expr) => {{
        let sign = $value >> (Self::BITS - 1);
        ($value.unsigned_abs().quotient($ranks) as Self ^ sign).wrapping_sub(sign)
    }};
}

macro_rules! integer {
    ($type:ty, $size:literal, $unsigned:ty, $sign:ident, $data_type:ident) => {
        impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
        }

        impl Lane for $type {
            storage!($size);

            #[inline(always)]
            fn sum(self, received: Self) -> Self {
                self.wrapping_add(received)
            }

            #[inline(always)]
            fn prod(self, received: Self) -> Self {
                self.wrapping_mul(received)
            }

            #[inline(always)]
            fn max(self, received: Self) -> Self {
                Ord::max(self, received)
            }

            #[inline(always)]
            fn min(self, received: Self) -> Self {
                Ord::min(self, received)
            }

            type Divisor = Reciprocal<$unsigned>;

            fn divisor(ranks: u32) -> Self::Divisor {
                <$unsigned>::reciprocal(ranks)
            }

            #[inline(always)]
            fn divided(self, ranks: Self::Divisor) -> Self {
                divided_integer!($sign, self, ranks)
            }
        }
    };
}

integer!(u8, 1, u8, unsigned, Uint8);
integer!(i8, 1, u8, signed, Int8);
integer!(i16, 2, u16, signed, Int16);
integer!(u16, 2, u16, unsigned, Uint16);
integer!(u32, 4, u32, unsigned, Uint32);
integer!(i32, 4, u32, signed, Int32);
integer!(u64, 8, u64, unsigned, Uint64);
integer!(i64, 8, u64, signed, Int64);

/// Every NaN result becomes the one quiet NaN, `$nan`.
macro_rules! canonical {
    ($result:expr, $type:ty, $nan:literal) => {{
        let result: $type = $result;
        <$type>::from_bits(if result.is_nan() { $nan } else { result.to_bits() })
    }};
}
macro_rules! float {
    ($type:ty, $size:literal, $data_type:ident, $nan:literal, $quiet:literal) => {
        impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
        }

        impl Lane for $type {
            storage!($size);

            #[inline(always)]
            fn sum(self, received: Self) -> Self {
                canonical!(self + received, $type, $nan)
            }

            #[inline(always)]
            fn prod(self, received: Self) -> Self {
                canonical!(self * received, $type, $nan)
            }

            #[inline(always)]
            fn max(self, received: Self) -> Self {
                let (own_bits, received_bits) = (self.to_bits(), received.to_bits());
                let greater = if self > received { own_bits } else { received_bits };
                // Equal numbers have equal bits, but for the two zeros: `&` makes +0 of them.
                let number = if self == received { own_bits & received_bits } else { greater };
                let right = if received.is_nan() { received_bits | $quiet } else { number };
                Self::from_bits(if self.is_nan() { own_bits | $quiet } else { right })
            }

            #[inline(always)]
            fn min(self, received: Self) -> Self {
                let (own_bits, received_bits) = (self.to_bits(), received.to_bits());
                let less = if self < received { own_bits } else { received_bits };
                // As above; `|` makes -0 of the two zeros.
                let number = if self == received { own_bits | received_bits } else { less };
                let right = if received.is_nan() { received_bits | $quiet } else { number };
                Self::from_bits(if self.is_nan() { own_bits | $quiet } else { right })
            }

            type Divisor = Self;

            fn divisor(ranks: u32) -> Self {
                ranks as Self
            }

            #[inline(always)]
            fn divided(self, ranks: Self) -> Self {
                canonical!(self / ranks, $type, $nan)
            }
        }
    };
}

float!(f32, 4, Float32, 0x7FC0_0000, 0x0040_0000);
float!(f64, 8, Float64, 0x7FF8_0000_0000_0000, 0x0008_0000_0000_0000);

macro_rules! float16 {
    ($type:ty, $data_type:ident, $widen:ident, $narrow:ident, $infinity:literal, $quiet:literal) => {
        impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
        }

        impl Lane for $type {
            storage!(2);

            #[inline(always)]
            fn sum(self, received: Self) -> Self {
                Self::from_bits($narrow($widen(self.to_bits()) + $widen(received.to_bits())))
            }

            #[inline(always)]
            fn prod(self, received: Self) -> Self {
                Self::from_bits($narrow($widen(self.to_bits()) * $widen(received.to_bits())))
            }

            #[inline(always)]
            fn max(self, received: Self) -> Self {
                let (own, received) = (self.to_bits(), received.to_bits());
                let number = if rank16(own) > rank16(received) { own } else { received };
                Self::from_bits(first_nan16(own, received, number, $infinity, $quiet))
            }

            #[inline(always)]
            fn min(self, received: Self) -> Self {
                let (own, received) = (self.to_bits(), received.to_bits());
                let number = if rank16(own) < rank16(received) { own } else { received };
                Self::from_bits(first_nan16(own, received, number, $infinity, $quiet))
            }

            type Divisor = f32;

            fn divisor(ranks: u32) -> f32 {
                ranks as f32
            }

            #[inline(always)]
            fn divided(self, ranks: f32) -> Self {
                Self::from_bits($narrow($widen(self.to_bits()) / ranks))
            }
        }
    };
}

/// An integer that orders 16-bit floats as their values, and -0 before +0: the magnitude's bits of a negative number
/// are inverted.
#[inline(always)]
fn rank16(bits: u16) -> i16 {
    let bits = bits as i16;
    bits ^ ((bits >> 15) & 0x7FFF)
}

/// The NaN among the operands, the left one first, made quiet; `number` if there is none.
#[inline(always)]
fn first_nan16(own: u16, received: u16, number: u16, infinity: u16, quiet: u16) -> u16 {
    let right = if received & 0x7FFF > infinity { received | quiet } else { number };
    if own & 0x7FFF > infinity { own | quiet } else { right }
}

float16!(f16, Float16, f16_to_f32, f32_to_f16, 0x7C00, 0x0200);
float16!(bf16, BFloat16, bf16_to_f32, f32_to_bf16, 0x7F80, 0x0040);
