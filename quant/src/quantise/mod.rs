//! Quantisation: elements as fewer bits, for the wire.
//!
//! **Purpose.** A [`Codec`] turns floats into bytes and back by one of the [schemes](Scheme), on every [`Level`] of
//! processor features to the last bit alike. The block schemes and the casts may be encoded and decoded in pieces, as
//! frames come and go; a scheme per chunk needs the whole chunk.
//!
//! **Limits.** No buffers, no threads, no network.
//!
//! # The computation
//!
//! The working type W is f32, and f64 for elements of f64. Every operation below is rounded by itself, to nearest, ties
//! to even; nothing is fused. Numbers are stored little-endian.
//!
//! - **Block schemes**: each block of elements, of which the last may be short, becomes a record: the scale (W), for
//!   affine codes also the middle (W), then the codes.
//!   - **Affine**, codes 0 to D (255, or 15 in 4 bits, two per byte, the first one low): `middle = min / 2 + max / 2`,
//!     `scale = greater of (max - middle, middle - min) / (D / 2)`. Code: `(x - middle) * (1 / scale) + D / 2`,
//!     rounded. Value: `middle + (code - D / 2) * scale`.
//!   - **Symmetric**, codes -127 to 127: `scale = greatest magnitude / 127`. Value: `code * scale`.
//!   - **fp8**: the scale is the least power of two with which the greatest magnitude fits. Value: `code * scale`. If
//!     rounding up would make an element infinite, it is rounded down.
//!   - Affine and symmetric scales are rounded up to 8 (u4: 4) bits less than W has, so that the product of code and
//!     scale is exact. (A compiler or processor that fuses it with the addition cannot change the result.) No scale is
//!     less than the least normal number of W. One that would make values infinite is rounded down.
//!   - A block of equal elements is exact; so is one of a single element. -0 may come back as +0.
//! - **Chunk schemes**: scale, middle and zero as f64, then the codes; all in f64. Value:
//!   `middle + (code - zero) * scale`. [`Scheme::MinMax`] spreads the codes from minimum to maximum.
//!   [`Scheme::ZeroPointScale`] spreads them over six standard deviations on each side of the mean, beyond which values
//!   are cut off; if 0 is in that range, it has a code of its own. Codes of signed types are those of unsigned ones
//!   with the topmost bit inverted.
//! - **Casts**: each element by itself. f64 is rounded to f32 first.
//!
//! # NaN and infinity
//!
//! A block (chunk) that holds any NaN or infinity has the scale NaN, and all its elements become NaN, on every rank.
//! Other blocks do not notice. Casts keep NaN and infinity where they are. Every NaN that is decoded is the one of [the
//! reduce kernels](crate).
//!
//! # Hostile bytes
//!
//! Any bytes decode, to whatever numbers. A metadata number that is not finite makes its block NaN.

mod block;
mod cast;
mod choice;
mod chunk;
mod codes;
mod combine;
mod fp8;
mod levels;
mod noise;
mod scheme;
mod work;

use thiserror::Error;

use crate::{DataType, Level, ReduceOp};
pub use choice::Quantisation;
pub use combine::Contribution;
pub use noise::NoiseKey;
pub use scheme::{Algorithm, Block, Scheme};

/// How an element between two codes is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearer code, of two equally near ones to the even one: the least error of a single element.
    #[default]
    NearestEven,
    /// To either, by chance, so that the expectation is the element itself, to within 2^-16 of a step.
    Stochastic(NoiseKey),
}

/// Why a codec could not be made, or refused its arguments. It has then written nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum QuantiseError {
    /// Only floats are quantised.
    #[error("elements of type {0} cannot be quantised, only f16, bf16, f32 and f64")]
    ElementType(DataType),
    /// Codes of a chunk are integers.
    #[error("codes of type {0} are not possible, only integers")]
    CodeType(DataType),
    /// The scheme has no stochastic rounding.
    #[error("{0} cannot round stochastically")]
    NoStochastic(Scheme),
    /// Codes are decoded and added; other reductions have no quantised form.
    #[error("{0} of quantised elements is not possible, only sum and avg")]
    Operation(ReduceOp),
    /// A sum of nothing.
    #[error("a sum needs at least 1 contribution, not 0")]
    NoContribution,
    /// The data is not whole elements.
    #[error("{bytes} bytes are not a whole number of {data_type} elements of {} bytes", data_type.size_bytes())]
    PartialElement {
        /// Length of the data.
        bytes: usize,
        /// Type of its elements.
        data_type: DataType,
    },
    /// The encoded form has not the length that belongs to the data.
    #[error("{encoded_bytes} encoded bytes do not belong to {elements} elements")]
    EncodedLength {
        /// Length of the encoded form.
        encoded_bytes: usize,
        /// Number of elements of the data.
        elements: usize,
    },
    /// Stochastic rounding does not begin at any element.
    #[error(
        "element {first_element} is not a multiple of {}: stochastic rounding cannot begin there",
        noise::SEGMENT
    )]
    NoiseOffset {
        /// Number of the first element.
        first_element: u64,
    },
}

/// Encodes and decodes elements of one type by one scheme.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    scheme: Scheme,
    data_type: DataType,
    /// Invariant: available on this processor. The calls into a level rely on it.
    level: Level,
}

impl Codec {
    /// A codec with the fastest kernels of this processor.
    ///
    /// # Errors
    /// If elements are not floats, or the codes of a chunk not integers.
    pub fn new(scheme: Scheme, data_type: DataType) -> Result<Self, QuantiseError> {
        if !is_float(data_type) {
            return Err(QuantiseError::ElementType(data_type));
        }
        match scheme {
            Scheme::MinMax(codes) | Scheme::ZeroPointScale(codes) if is_float(codes) => {
                Err(QuantiseError::CodeType(codes))
            }
            _ => Ok(Self { scheme, data_type, level: Level::detect() }),
        }
    }

    /// The same with the kernels of `level`, if this processor has its features: for tests and benchmarks.
    #[must_use]
    pub fn at(self, level: Level) -> Option<Self> {
        level.is_available().then_some(Self { level, ..self })
    }

    /// The scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The type of the elements.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Encoded size of `elements` elements in bytes, 0 for 0; `None` on overflow.
    #[must_use]
    pub fn encoded_len(&self, elements: usize) -> Option<usize> {
        self.scheme.layout(self.data_type).encoded_len(elements)
    }

    /// Elements that cannot be parted: pieces of an operation begin at multiples of it. `None` for the schemes per
    /// chunk, which cannot be cut at all.
    ///
    /// The encoded piece that begins at element `n` begins at byte `encoded_len(n)`.
    #[must_use]
    pub fn piece_elements(&self) -> Option<usize> {
        let block = self.scheme.layout(self.data_type).block;
        (block != usize::MAX).then_some(block)
    }

    /// Encodes `data` into `encoded`, which must have the right length. Both may lie at any address.
    ///
    /// A piece of an operation must begin at a multiple of [`Codec::piece_elements`] and, unless it is the last, end at
    /// one; then the pieces are the same bytes as the whole. `first_element` is the number of the piece's first
    /// element, a multiple of 64; only stochastic rounding looks at it.
    ///
    /// # Errors
    /// If lengths or offset are wrong, or the scheme cannot round so. Nothing is written then.
    pub fn encode(
        &self,
        data: &[u8],
        encoded: &mut [u8],
        rounding: Rounding,
        first_element: u64,
    ) -> Result<(), QuantiseError> {
        self.check_lengths(data.len(), encoded.len())?;
        if rounding != Rounding::NearestEven {
            if !self.scheme.has_stochastic() {
                return Err(QuantiseError::NoStochastic(self.scheme));
            }
            if !first_element.is_multiple_of(noise::SEGMENT as u64) {
                return Err(QuantiseError::NoiseOffset { first_element });
            }
        }
        let (scheme, data_type) = (self.scheme, self.data_type);
        levels::encode(
            self.level,
            levels::Encode { scheme, data_type, rounding, first_element, data, encoded },
        );
        Ok(())
    }

    /// `data = decoded`; pieces as in [`Codec::encode`].
    ///
    /// # Errors
    /// If the lengths do not belong together. Nothing is written then.
    pub fn decode_set(&self, encoded: &[u8], data: &mut [u8]) -> Result<(), QuantiseError> {
        self.decode(encoded, data, false)
    }

    /// `data = data + decoded`, in one pass; pieces as in [`Codec::encode`]. 16-bit elements are added in f32 to the
    /// decoded f32, and rounded once.
    ///
    /// # Errors
    /// If the lengths do not belong together. Nothing is written then.
    pub fn decode_add(&self, encoded: &[u8], data: &mut [u8]) -> Result<(), QuantiseError> {
        self.decode(encoded, data, true)
    }

    fn decode(&self, encoded: &[u8], data: &mut [u8], add: bool) -> Result<(), QuantiseError> {
        self.check_lengths(data.len(), encoded.len())?;
        let (scheme, data_type) = (self.scheme, self.data_type);
        levels::decode(self.level, levels::Decode { scheme, data_type, encoded, data, add });
        Ok(())
    }

    fn check_lengths(&self, bytes: usize, encoded_bytes: usize) -> Result<(), QuantiseError> {
        let size = self.data_type.size_bytes();
        if !bytes.is_multiple_of(size) {
            return Err(QuantiseError::PartialElement { bytes, data_type: self.data_type });
        }
        let elements = bytes / size;
        if self.encoded_len(elements) == Some(encoded_bytes) {
            Ok(())
        } else {
            Err(QuantiseError::EncodedLength { encoded_bytes, elements })
        }
    }
}

fn is_float(data_type: DataType) -> bool {
    matches!(data_type, DataType::Float16 | DataType::BFloat16 | DataType::Float32 | DataType::Float64)
}
