//! How contributions are compressed: blocks of a few bits each, with what is lost kept for the next round.

mod largest;
mod two_bits;

use pccl::{Block, DataType, Error, Scheme};
use pccl_quant::quantise::{Codec, Rounding};
use std::fmt;

/// The form of a parameter on the wire. The error that it makes is added to the next contribution (error feedback, as
/// in 1-bit Adam, [arXiv 2102.02888](https://arxiv.org/abs/2102.02888)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// 32 bits: contributions as they are.
    #[default]
    None,
    /// 16 bits, rounded to bf16.
    Bf16,
    /// 8 bits, in proportion to the greatest magnitude of each block of 256.
    Int8,
    /// 4 bits, from the least to the greatest of each block of 128.
    Int4,
    /// 2 bits: four levels around zero, with a step for each block of 64.
    Int2,
    /// The largest only: of each 4,096 elements one of this number, at least one; 2 to 4,096. Each takes 20 bits. A
    /// mean has as many of all contributors together.
    Largest(u16),
}

impl Compression {
    /// One of each kind.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Bf16, Self::Int8, Self::Int4, Self::Int2, Self::Largest(64)];
    /// The smallest and the greatest number of [`Compression::Largest`].
    pub(crate) const LARGEST: std::ops::RangeInclusive<u16> = 2..=largest::BLOCK as u16;

    /// The form of a mean of so compressed contributions: what one rank sends to all.
    pub(crate) fn of_mean(self, contributors: usize) -> Self {
        match self {
            Self::Largest(one_of) => match usize::from(one_of) / contributors.max(1) {
                // Places and values take more room than a byte for each element.
                0..4 => Self::Int8,
                one_of => Self::Largest(one_of as u16),
            },
            other => other,
        }
    }

    /// Bytes of a number of elements on the wire.
    pub fn encoded_bytes(self, elements: usize) -> usize {
        match self {
            Self::Int2 => two_bits::encoded_bytes(elements),
            Self::Largest(one_of) => largest::encoded_bytes(elements, one_of.into()),
            _ => match self.codec() {
                None => elements * size_of::<f32>(),
                Some(codec) => codec.encoded_len(elements).unwrap_or(usize::MAX),
            },
        }
    }

    fn codec(self) -> Option<Codec> {
        let scheme = match self {
            Self::None | Self::Int2 | Self::Largest(_) => return None,
            Self::Bf16 => Scheme::CastBf16,
            Self::Int8 => Scheme::BlockSymmetricI8(Block::B256),
            Self::Int4 => Scheme::BlockAffineU4(Block::B128),
        };
        Codec::new(scheme, DataType::Float32).ok()
    }

    /// A fragment may be cut at multiples of this number of elements.
    pub(crate) fn piece_elements(self) -> usize {
        match self {
            Self::Int2 => two_bits::BLOCK,
            Self::Largest(_) => largest::BLOCK,
            _ => self.codec().and_then(|codec| codec.piece_elements()).unwrap_or(1),
        }
    }

    /// Appends `values` in their encoded form to `to`, and takes from `values` what that form says: they hold what is
    /// lost then.
    ///
    /// # Errors
    /// `System` if the form cannot be made: a fault of this library.
    pub(crate) fn encode(self, values: &mut [f32], to: &mut Vec<u8>) -> Result<(), Error> {
        let begin = to.len();
        match (self, self.codec()) {
            (Self::Int2, _) => two_bits::encode(values, to),
            (Self::Largest(one_of), _) => largest::encode(values, one_of.into(), to),
            (_, None) => to.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            (_, Some(codec)) => {
                to.resize(begin + self.encoded_bytes(values.len()), 0);
                let encoded = to.get_mut(begin..).unwrap_or_default();
                codec.encode(&bytes_of(values), encoded, Rounding::NearestEven, 0).map_err(fault)?;
            }
        }
        let mut decoded = Vec::new();
        self.decode(to.get(begin..).unwrap_or_default(), values.len(), &mut decoded)?;
        for (value, said) in values.iter_mut().zip(decoded) {
            // Beyond the range of the form: an error that is not finite would never end.
            let lost = *value - said;
            *value = if lost.is_finite() { lost } else { 0.0 };
        }
        Ok(())
    }

    /// Appends the `elements` elements of an encoded form to `to`.
    ///
    /// # Errors
    /// `System` if `encoded` has not the length of that form.
    pub(crate) fn decode(self, encoded: &[u8], elements: usize, to: &mut Vec<f32>) -> Result<(), Error> {
        if encoded.len() != self.encoded_bytes(elements) {
            return Err(fault(format_args!("{} bytes are not {elements} elements", encoded.len())));
        }
        match (self, self.codec()) {
            (Self::Int2, _) => two_bits::decode(encoded, elements, to),
            (Self::Largest(one_of), _) => largest::decode(encoded, elements, one_of.into(), to),
            (_, None) => to.extend(floats_of(encoded)),
            (_, Some(codec)) => {
                let mut decoded = vec![0; elements * size_of::<f32>()];
                codec.decode_set(encoded, &mut decoded).map_err(fault)?;
                to.extend(floats_of(&decoded));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Int8 => f.write_str("int8"),
            Self::Int4 => f.write_str("int4"),
            Self::Int2 => f.write_str("int2"),
            Self::Largest(one_of) => write!(f, "largest 1/{one_of}"),
        }
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats_of(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

fn fault(error: impl fmt::Display) -> Error {
    Error::System(format!("a contribution could not be compressed: {error}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_lost_and_what_is_said_are_the_whole(
            values in prop::collection::vec(-1e3_f32..1e3, 1..700),
            which in 0..Compression::ALL.len(),
        ) {
            let compression = Compression::ALL[which];
            let (mut lost, mut encoded, mut said) = (values.clone(), Vec::new(), Vec::new());
            compression.encode(&mut lost, &mut encoded).expect("encodes");
            prop_assert_eq!(encoded.len(), compression.encoded_bytes(values.len()));
            compression.decode(&encoded, values.len(), &mut said).expect("decodes");
            let limit = match compression {
                Compression::None => 0.0,
                Compression::Bf16 => 1e3 / 256.0,
                Compression::Int8 => 1e3 / 127.0,
                Compression::Int4 => 2e3 / 15.0,
                // Of a block of zeros and one value, that one.
                Compression::Int2 | Compression::Largest(_) => 1e3,
            };
            for ((value, lost), said) in values.iter().zip(&lost).zip(&said) {
                prop_assert!(lost.abs() <= limit, "{} of {} is lost", lost, value);
                prop_assert!((value - said - lost).abs() <= 1e-3);
            }
        }
    }

    #[test]
    fn bits_on_the_wire_are_those_of_the_name() {
        let bytes = Compression::ALL.map(|it| it.encoded_bytes(1 << 20));
        assert_eq!(bytes[..2], [4 << 20, 2 << 20]);
        assert!(bytes[4] < (1 << 18) * 126 / 100, "{bytes:?}");
        assert!(bytes[5] < (1 << 20) / 64 * 26 / 10, "{bytes:?}");
        assert!(bytes[2] < (1 << 20) * 103 / 100, "{bytes:?}");
        assert!(bytes[3] < (1 << 19) * 113 / 100, "{bytes:?}");
    }

    #[test]
    fn a_form_of_another_length_is_refused() {
        for compression in Compression::ALL {
            assert!(compression.decode(&[0; 3], 5, &mut Vec::new()).is_err(), "{compression}");
        }
    }
}
