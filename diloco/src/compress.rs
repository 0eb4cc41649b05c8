//! How contributions are compressed: blocks of a few bits each, with what is lost kept for the next round.

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
}

impl Compression {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Bf16, Self::Int8, Self::Int4];

    /// Its name, as settings spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Bytes of a number of elements on the wire.
    pub fn encoded_bytes(self, elements: usize) -> usize {
        match self.codec() {
            None => elements * size_of::<f32>(),
            Some(codec) => codec.encoded_len(elements).unwrap_or(usize::MAX),
        }
    }

    fn codec(self) -> Option<Codec> {
        let scheme = match self {
            Self::None => return None,
            Self::Bf16 => Scheme::CastBf16,
            Self::Int8 => Scheme::BlockSymmetricI8(Block::B256),
            Self::Int4 => Scheme::BlockAffineU4(Block::B128),
        };
        Codec::new(scheme, DataType::Float32).ok()
    }

    /// A fragment may be cut at multiples of this number of elements.
    pub(crate) fn piece_elements(self) -> usize {
        self.codec().and_then(|codec| codec.piece_elements()).unwrap_or(1)
    }

    /// Appends `values` in their encoded form to `to`, and takes from `values` what that form says: they hold what is
    /// lost then.
    ///
    /// # Errors
    /// `System` if the form cannot be made: a fault of this library.
    pub(crate) fn encode(self, values: &mut [f32], to: &mut Vec<u8>) -> Result<(), Error> {
        let Some(codec) = self.codec() else {
            to.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            values.fill(0.0);
            return Ok(());
        };
        let begin = to.len();
        to.resize(begin + self.encoded_bytes(values.len()), 0);
        let encoded = to.get_mut(begin..).unwrap_or_default();
        codec.encode(&bytes_of(values), encoded, Rounding::NearestEven, 0).map_err(fault)?;
        let mut decoded = Vec::new();
        self.decode(encoded, values.len(), &mut decoded)?;
        values.iter_mut().zip(decoded).for_each(|(value, said)| *value -= said);
        Ok(())
    }

    /// Appends the `elements` elements of an encoded form to `to`.
    ///
    /// # Errors
    /// `System` if `encoded` has not the length of that form.
    pub(crate) fn decode(self, encoded: &[u8], elements: usize, to: &mut Vec<f32>) -> Result<(), Error> {
        match self.codec() {
            None if encoded.len() != elements * size_of::<f32>() => {
                return Err(fault(format_args!("{} bytes are not {elements} elements", encoded.len())));
            }
            None => to.extend(floats_of(encoded)),
            Some(codec) => {
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
        f.write_str(self.name())
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
