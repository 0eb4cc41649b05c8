//! Which schemes there are, their numbers, and how long their output is.

use std::fmt;

use crate::DataType;

/// A way to quantise, without its parameters; with the public numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// Elements travel as they are.
    None = 0,
    /// Equally spaced codes from minimum to maximum of the chunk.
    MinMax = 1,
    /// Equally spaced codes around the mean of the chunk, to six standard deviations from it.
    ZeroPointScale = 2,
    /// Equally spaced codes from minimum to maximum of each block, 8 bits.
    BlockAffineU8 = 3,
    /// Codes from -127 to 127, in proportion to the greatest magnitude of each block.
    BlockSymmetricI8 = 4,
    /// Equally spaced codes from minimum to maximum of each block, 4 bits.
    BlockAffineU4 = 5,
    /// Each element as bf16.
    CastBf16 = 6,
    /// Each element as f16.
    CastF16 = 7,
    /// Floats of 8 bits with 3 bits of mantissa, one scale per block.
    BlockE4m3 = 8,
    /// Floats of 8 bits with 2 bits of mantissa, one scale per block.
    BlockE5m2 = 9,
}

impl Algorithm {
    /// All algorithms, in the order of their codes.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::MinMax,
        Self::ZeroPointScale,
        Self::BlockAffineU8,
        Self::BlockSymmetricI8,
        Self::BlockAffineU4,
        Self::CastBf16,
        Self::CastF16,
        Self::BlockE4m3,
        Self::BlockE5m2,
    ];

    /// The public number of the algorithm: the value of its C constant.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The algorithm with this public number, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Elements that share a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Block {
    /// 64 elements.
    B64 = 64,
    /// 128 elements.
    B128 = 128,
    /// 256 elements: a good compromise between size and accuracy.
    #[default]
    B256 = 256,
    /// 512 elements.
    B512 = 512,
    /// 1024 elements.
    B1024 = 1024,
}

impl Block {
    /// All sizes, rising.
    pub const ALL: [Self; 5] = [Self::B64, Self::B128, Self::B256, Self::B512, Self::B1024];

    /// The number of elements.
    #[must_use]
    pub const fn elements(self) -> usize {
        self as usize
    }

    /// The block of `elements` elements, if there is one.
    #[must_use]
    pub fn of(elements: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|block| block.elements() == elements)
    }
}

/// How elements are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// [`Algorithm::MinMax`] with codes of an integer type.
    MinMax(DataType),
    /// [`Algorithm::ZeroPointScale`] with codes of an integer type.
    ZeroPointScale(DataType),
    /// [`Algorithm::BlockAffineU8`].
    BlockAffineU8(Block),
    /// [`Algorithm::BlockSymmetricI8`].
    BlockSymmetricI8(Block),
    /// [`Algorithm::BlockAffineU4`].
    BlockAffineU4(Block),
    /// [`Algorithm::CastBf16`].
    CastBf16,
    /// [`Algorithm::CastF16`].
    CastF16,
    /// [`Algorithm::BlockE4m3`].
    BlockE4m3(Block),
    /// [`Algorithm::BlockE5m2`].
    BlockE5m2(Block),
}

impl Scheme {
    /// The scheme without its parameters.
    #[must_use]
    pub const fn algorithm(self) -> Algorithm {
        match self {
            Self::MinMax(_) => Algorithm::MinMax,
            Self::ZeroPointScale(_) => Algorithm::ZeroPointScale,
            Self::BlockAffineU8(_) => Algorithm::BlockAffineU8,
            Self::BlockSymmetricI8(_) => Algorithm::BlockSymmetricI8,
            Self::BlockAffineU4(_) => Algorithm::BlockAffineU4,
            Self::CastBf16 => Algorithm::CastBf16,
            Self::CastF16 => Algorithm::CastF16,
            Self::BlockE4m3(_) => Algorithm::BlockE4m3,
            Self::BlockE5m2(_) => Algorithm::BlockE5m2,
        }
    }

    /// The parameter beside the algorithm, as a public number: elements of a block, or the type of codes; 0 if there is
    /// none.
    #[must_use]
    pub const fn parameter(self) -> u16 {
        match self {
            Self::MinMax(codes) | Self::ZeroPointScale(codes) => codes.code() as u16,
            Self::BlockAffineU8(block)
            | Self::BlockSymmetricI8(block)
            | Self::BlockAffineU4(block)
            | Self::BlockE4m3(block)
            | Self::BlockE5m2(block) => block as u16,
            Self::CastBf16 | Self::CastF16 => 0,
        }
    }

    /// The scheme with this [`Scheme::algorithm`] and [`Scheme::parameter`], if there is one.
    #[must_use]
    pub fn of(algorithm: Algorithm, parameter: u16) -> Option<Self> {
        let codes = || u8::try_from(parameter).ok().and_then(DataType::from_code);
        let block = || Block::of(parameter.into());
        let cast = |scheme| (parameter == 0).then_some(scheme);
        match algorithm {
            Algorithm::None => None,
            Algorithm::MinMax => codes().map(Self::MinMax),
            Algorithm::ZeroPointScale => codes().map(Self::ZeroPointScale),
            Algorithm::BlockAffineU8 => block().map(Self::BlockAffineU8),
            Algorithm::BlockSymmetricI8 => block().map(Self::BlockSymmetricI8),
            Algorithm::BlockAffineU4 => block().map(Self::BlockAffineU4),
            Algorithm::CastBf16 => cast(Self::CastBf16),
            Algorithm::CastF16 => cast(Self::CastF16),
            Algorithm::BlockE4m3 => block().map(Self::BlockE4m3),
            Algorithm::BlockE5m2 => block().map(Self::BlockE5m2),
        }
    }

    /// Whether pieces of a chunk can be encoded and decoded apart from each other.
    #[must_use]
    pub const fn can_be_cut(self) -> bool {
        !matches!(self, Self::MinMax(_) | Self::ZeroPointScale(_))
    }

    /// Whether the scheme can round by chance.
    #[must_use]
    pub const fn has_stochastic(self) -> bool {
        match self {
            Self::MinMax(_)
            | Self::ZeroPointScale(_)
            | Self::BlockAffineU8(_)
            | Self::BlockSymmetricI8(_)
            | Self::BlockAffineU4(_) => true,
            Self::CastBf16 | Self::CastF16 | Self::BlockE4m3(_) | Self::BlockE5m2(_) => false,
        }
    }

    /// How the output for elements of this type is laid out.
    pub(super) const fn layout(self, data_type: DataType) -> Layout {
        let work_bytes = if matches!(data_type, DataType::Float64) { 8 } else { 4 };
        match self {
            Self::MinMax(codes) | Self::ZeroPointScale(codes) => {
                Layout { block: usize::MAX, meta_bytes: CHUNK_META_BYTES, code_bits: 8 * codes.size_bytes() }
            }
            Self::BlockAffineU8(block) => {
                Layout { block: block.elements(), meta_bytes: 2 * work_bytes, code_bits: 8 }
            }
            Self::BlockAffineU4(block) => {
                Layout { block: block.elements(), meta_bytes: 2 * work_bytes, code_bits: 4 }
            }
            Self::BlockSymmetricI8(block) | Self::BlockE4m3(block) | Self::BlockE5m2(block) => {
                Layout { block: block.elements(), meta_bytes: work_bytes, code_bits: 8 }
            }
            Self::CastBf16 | Self::CastF16 => Layout { block: 1, meta_bytes: 0, code_bits: 16 },
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::MinMax(codes) => format!("min-max {codes}"),
            Self::ZeroPointScale(codes) => format!("zero-point-scale {codes}"),
            Self::BlockAffineU8(block) => format!("affine u8, block {}", block.elements()),
            Self::BlockSymmetricI8(block) => format!("symmetric i8, block {}", block.elements()),
            Self::BlockAffineU4(block) => format!("affine u4, block {}", block.elements()),
            Self::CastBf16 => "bf16".to_owned(),
            Self::CastF16 => "f16".to_owned(),
            Self::BlockE4m3(block) => format!("fp8 e4m3, block {}", block.elements()),
            Self::BlockE5m2(block) => format!("fp8 e5m2, block {}", block.elements()),
        };
        f.pad(&text)
    }
}

/// Bytes in front of the codes of a whole chunk: scale, middle, zero point, as f64.
pub(super) const CHUNK_META_BYTES: usize = 24;

/// The sizes of a scheme's output: records of metadata and codes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Elements per record.
    pub(super) block: usize,
    /// Bytes in front of the codes of a record.
    pub(super) meta_bytes: usize,
    /// Bits of a code.
    pub(super) code_bits: usize,
}

impl Layout {
    /// Bytes that this many elements become; `None` if that is more than memory can hold.
    pub(super) fn encoded_len(self, elements: usize) -> Option<usize> {
        let record = |elements: usize| {
            // Whole bytes of codes per element, or two elements per byte.
            let codes = if self.code_bits < 8 {
                elements.div_ceil(2)
            } else {
                elements.checked_mul(self.code_bits / 8)?
            };
            codes.checked_add(self.meta_bytes)
        };
        let (whole, rest) = (elements / self.block, elements % self.block);
        let whole_bytes = if whole == 0 { 0 } else { whole.checked_mul(record(self.block)?)? };
        let rest_bytes = if rest == 0 { 0 } else { record(rest)? };
        whole_bytes.checked_add(rest_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are public: C callers compiled against the first three.
    #[test]
    fn public_numbers() {
        assert_eq!(Algorithm::ALL.map(Algorithm::code), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        for code in 0..=u8::MAX {
            assert_eq!(Algorithm::from_code(code).map(Algorithm::code), (code < 10).then_some(code));
        }
    }

    #[test]
    fn schemes_go_to_numbers_and_back() {
        let mut count = 0;
        for algorithm in Algorithm::ALL {
            for parameter in 0..=u16::MAX {
                if let Some(scheme) = Scheme::of(algorithm, parameter) {
                    assert_eq!((scheme.algorithm(), scheme.parameter()), (algorithm, parameter));
                    count += 1;
                }
            }
        }
        assert_eq!(count, 2 * 12 + 5 * 5 + 2);
    }

    #[test]
    fn blocks_have_five_sizes() {
        let sizes: Vec<usize> = (0..2000).filter(|size| Block::of(*size).is_some()).collect();
        assert_eq!(sizes, [64, 128, 256, 512, 1024]);
        assert_eq!(Block::default().elements(), 256);
    }

    #[test]
    fn lengths_by_hand() {
        let len = |scheme: Scheme, data_type, elements| scheme.layout(data_type).encoded_len(elements);
        let f32 = DataType::Float32;
        let affine = Scheme::BlockAffineU8(Block::B64);
        assert_eq!([0, 1, 64, 65, 128].map(|n| len(affine, f32, n).unwrap()), [0, 9, 72, 81, 144]);
        assert_eq!(len(affine, DataType::Float64, 65), Some(16 + 64 + 16 + 1));
        let four = Scheme::BlockAffineU4(Block::B64);
        assert_eq!([0, 1, 2, 3, 64, 65].map(|n| len(four, f32, n).unwrap()), [0, 9, 9, 10, 40, 49]);
        assert_eq!(len(Scheme::BlockSymmetricI8(Block::B256), DataType::BFloat16, 300), Some(308));
        assert_eq!(len(Scheme::CastF16, f32, 7), Some(14));
        assert_eq!(len(Scheme::MinMax(DataType::Uint16), f32, 7), Some(24 + 14));
        assert_eq!(len(Scheme::MinMax(DataType::Uint16), f32, 0), Some(0));
        assert_eq!(len(Scheme::CastF16, f32, usize::MAX), None);
        assert_eq!(len(affine, f32, usize::MAX), None);
    }
}
