//! The request of the caller of a collective: a scheme, a way to round, and for which tensors that makes sense.

use std::fmt;

use super::{Codec, NoiseKey, QuantiseError, Rounding, Scheme};
use crate::{DataType, ReduceOp};

/// How a tensor is quantised while it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantisation {
    scheme: Scheme,
    seed: Option<u64>,
}

impl Quantisation {
    /// By `scheme`, rounded to the nearest code, ties to even.
    #[must_use]
    pub const fn new(scheme: Scheme) -> Self {
        Self { scheme, seed: None }
    }

    /// Rounds stochastically. The random numbers follow from `seed`, the tag of the operation, tensor, rank, and index
    /// of the element: give each operation another seed, for example the number of the step, the same on all peers.
    /// With equal seeds, the errors of successive operations are alike and do not average out.
    #[must_use]
    pub const fn stochastic(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// The scheme.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The seed, if rounding is stochastic.
    #[must_use]
    pub const fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The rounding of `rank` in `operation`, which has to be another one for every range of indices.
    #[must_use]
    pub fn rounding(&self, operation: u64, rank: u32) -> Rounding {
        self.seed
            .map_or(Rounding::NearestEven, |seed| Rounding::Stochastic(NoiseKey::new(seed, operation, rank)))
    }

    /// The codec for a tensor that is reduced by `op`.
    ///
    /// # Errors
    /// If elements of this type, or this reduction, cannot be quantised, or the scheme cannot round so.
    pub fn codec(&self, data_type: DataType, op: ReduceOp) -> Result<Codec, QuantiseError> {
        let codec = Codec::new(self.scheme, data_type)?;
        if !matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
            return Err(QuantiseError::Operation(op));
        }
        if self.seed.is_some() && !self.scheme.has_stochastic() {
            return Err(QuantiseError::NoStochastic(self.scheme));
        }
        Ok(codec)
    }
}

impl From<Scheme> for Quantisation {
    fn from(scheme: Scheme) -> Self {
        Self::new(scheme)
    }
}

impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scheme.fmt(f)?;
        self.seed.map_or(Ok(()), |seed| write!(f, ", stochastic with seed {seed}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantise::Block;

    #[test]
    fn only_sums_and_averages_of_floats() {
        let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                let is_float = matches!(data_type.name(), "f16" | "bf16" | "f32" | "f64");
                let wanted = is_float && matches!(op, ReduceOp::Sum | ReduceOp::Avg);
                assert_eq!(affine.codec(data_type, op).is_ok(), wanted, "{op} of {data_type}");
            }
        }
    }

    #[test]
    fn refusals_say_why() {
        let f32 = DataType::Float32;
        let error = |quantisation: Quantisation, data_type, op| {
            quantisation.codec(data_type, op).expect_err("refused").to_string()
        };
        let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
        assert_eq!(
            error(affine, f32, ReduceOp::Max),
            "max of quantised elements is not possible, only sum and avg"
        );
        assert!(error(affine, DataType::Int32, ReduceOp::Sum).contains("i32"));
        let cast = Quantisation::new(Scheme::CastBf16);
        assert_eq!(error(cast.stochastic(1), f32, ReduceOp::Sum), "bf16 cannot round stochastically");
        let floats = Quantisation::new(Scheme::MinMax(f32));
        assert!(error(floats, f32, ReduceOp::Sum).contains("only integers"));
    }

    #[test]
    fn words() {
        let affine = Quantisation::from(Scheme::BlockAffineU8(Block::B64));
        assert_eq!(affine.to_string(), "affine u8, block 64");
        assert_eq!(affine.stochastic(9).to_string(), "affine u8, block 64, stochastic with seed 9");
    }
}
