//! The sum of the contributions of all ranks at once, for all-reduces in which each rank sends its contribution to the
//! owner of a chunk: every contribution is quantised once and the result once, so the error does not depend on the
//! number of ranks.

use super::{Codec, QuantiseError, Rounding, Scheme};
use crate::{DataType, Kernels, ReduceOp};

/// The contribution of one rank to a chunk.
#[derive(Clone, Copy, Debug)]
pub enum Contribution<'a> {
    /// As it travelled.
    Encoded(&'a [u8]),
    /// Elements as they are: those of the owner, and of its site, need not be quantised.
    Plain(&'a [u8]),
}

impl Codec {
    /// The type in which contributions are added: f64 for f64, otherwise f32, so that 16-bit sums are rounded only
    /// once.
    #[must_use]
    pub fn sum_type(&self) -> DataType {
        if self.data_type == DataType::Float64 { DataType::Float64 } else { DataType::Float32 }
    }

    /// `encoded = contributions[0] + contributions[1] + ...` in this order, divided by `ranks` if that is given: a
    /// contribution may be the sum of several ranks. `sums` is memory to calculate in: as many elements of
    /// [`Codec::sum_type`] as there are in the piece. Pieces, rounding and `first_element` as in [`Codec::encode`].
    ///
    /// # Errors
    /// If there is no contribution, lengths do not belong together, or the scheme cannot round so. Then `sums` and
    /// `encoded` hold anything.
    pub fn combine(
        &self,
        contributions: &[Contribution<'_>],
        ranks: Option<u32>,
        sums: &mut [u8],
        encoded: &mut [u8],
        rounding: Rounding,
        first_element: u64,
    ) -> Result<(), QuantiseError> {
        let Some((first, others)) = contributions.split_first() else {
            return Err(QuantiseError::NoContribution);
        };
        // Encoded bytes do not say of which elements they are, beyond the type that is calculated in.
        let summing = Self { data_type: self.sum_type(), ..*self };
        summing.put(*first, self.data_type, sums, false)?;
        for contribution in others {
            summing.put(*contribution, self.data_type, sums, true)?;
        }
        if let Some(ranks) = ranks {
            let kernels = Kernels::at(self.level).unwrap_or_else(Kernels::detect);
            // The lengths have been checked.
            let _ = kernels.finish_average(summing.data_type, sums, ranks);
        }
        summing.encode(sums, encoded, rounding, first_element)
    }

    /// Sets or adds one contribution, of which plain elements have the type `plain`.
    fn put(
        &self,
        contribution: Contribution<'_>,
        plain: DataType,
        sums: &mut [u8],
        add: bool,
    ) -> Result<(), QuantiseError> {
        match contribution {
            Contribution::Encoded(bytes) => self.decode(bytes, sums, add),
            Contribution::Plain(bytes) => match plain {
                DataType::Float16 => Self { scheme: Scheme::CastF16, ..*self }.decode(bytes, sums, add),
                DataType::BFloat16 => Self { scheme: Scheme::CastBf16, ..*self }.decode(bytes, sums, add),
                _ => self.put_plain(bytes, sums, add),
            },
        }
    }

    fn put_plain(&self, bytes: &[u8], sums: &mut [u8], add: bool) -> Result<(), QuantiseError> {
        if bytes.len() != sums.len() {
            let elements = sums.len() / self.data_type.size_bytes();
            return Err(QuantiseError::EncodedLength { encoded_bytes: bytes.len(), elements });
        }
        if !add {
            sums.copy_from_slice(bytes);
            return Ok(());
        }
        let kernels = Kernels::at(self.level).unwrap_or_else(Kernels::detect);
        kernels
            .fold_in_place(self.data_type, ReduceOp::Sum, sums, bytes)
            .map_err(|_| QuantiseError::PartialElement { bytes: bytes.len(), data_type: self.data_type })
    }
}
