//! Weighted average: everybody gets the sum of what all give, each times its weight, divided by the sum of the weights.
//!
//! It is an all-reduce of two tensors in memory of the library: the weighted values, and the weight as one `f64`. The
//! caller's tensor is read before the vote and written after the outcome, so a failure leaves it as it is.

use super::{Beside, Call, Place, Prepared};
use crate::{
    Error,
    memory::{Backup, RawTensor, Span, Target},
};
use pccl_protocol::{Descriptor, PartDescriptor};
use pccl_quant::{DataType, ReduceOp, unweigh, weigh, weighted_type};
use std::{ops::Range, sync::Arc};

/// Bytes of a weight.
const WEIGHT_BYTES: usize = size_of::<f64>();

impl<'a> Call<'a> {
    /// Replaces `data` by the weighted average over all peers. See
    /// [`Communicator::weighted_average`](crate::Communicator::weighted_average).
    pub fn weighted_average(data: impl Into<Target<'a>>, weight: f64) -> Self {
        let data = data.into();
        let (count, data_type, data) = (data.count(), data.data_type(), data.span());
        Self::new(move |context| {
            if !weight.is_finite() || weight < 0.0 {
                return Err(Error::InvalidArgument(format!("a weight of {weight}")));
            }
            let carrier = weighted_type(data_type).ok_or_else(|| {
                Error::InvalidArgument(format!("elements of {data_type} have no weighted average"))
            })?;
            let part = context.part(count, carrier, ReduceOp::Sum)?;
            let bytes = count.checked_mul(carrier.size_bytes()).filter(|bytes| *bytes < usize::MAX / 4);
            let bytes =
                bytes.ok_or_else(|| Error::InvalidArgument(format!("{count} elements are too many")))?;
            // The weight, then the values; both to send and to receive.
            let half = WEIGHT_BYTES + bytes;
            let room = context.backups.take(2 * half);
            room.fill(0..WEIGHT_BYTES, |out| out.copy_from_slice(&weight.to_ne_bytes()));
            let settled = data.settled();
            let failure = settled.as_ref().err().cloned();
            let data = settled.unwrap_or_else(|_| data.clone());
            let mut pieces = data.pieces().take_while(|_| failure.is_none());
            let weighed = pieces.try_for_each(|piece| {
                let Range { start, end } = carried(&piece, data_type, carrier);
                let values = data.read(piece)?;
                let place = WEIGHT_BYTES + start..WEIGHT_BYTES + end;
                room.fill(place, |out| weigh(data_type, &values, weight, out));
                Ok(())
            });
            let failure = failure.or(weighed.err());
            let raw = |range: Range<usize>| {
                RawTensor::within(&room, range.clone(), range.start + half..range.end + half)
            };
            let raws = vec![raw(0..WEIGHT_BYTES), raw(WEIGHT_BYTES..half)];
            let weights = PartDescriptor::new(1, DataType::Float64, ReduceOp::Sum);
            let descriptor = Descriptor::all_reduce(vec![weights, part], context.algorithm);
            let beside = Division { data, data_type, carrier, room: room.clone(), half };
            let prepared = Prepared::new(descriptor, raws);
            Ok(Prepared { rooms: vec![room], beside: vec![Box::new(beside)], failure, ..prepared })
        })
    }
}

/// Bytes of what carries some bytes of a tensor.
fn carried(piece: &Range<usize>, data_type: DataType, carrier: DataType) -> Range<usize> {
    let of = |bytes: usize| bytes / data_type.size_bytes() * carrier.size_bytes();
    of(piece.start)..of(piece.end)
}

/// Where the sums are, and where the quotients go.
#[derive(Debug)]
struct Division {
    data: Span,
    data_type: DataType,
    carrier: DataType,
    room: Arc<Backup>,
    half: usize,
}

impl Beside for Division {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        vec![(self.data.range(), true)]
    }

    fn after(&self, _: Place, _: &[RawTensor]) -> Result<(), Error> {
        let mut weights = [0; WEIGHT_BYTES];
        self.room.view(self.half..self.half + WEIGHT_BYTES, |sum| weights.copy_from_slice(sum));
        let weights = f64::from_ne_bytes(weights);
        if weights == 0.0 || !weights.is_finite() {
            return Err(Error::InvalidArgument(format!("the weights of all peers together are {weights}")));
        }
        let first = self.half + WEIGHT_BYTES;
        self.data.pieces().try_for_each(|piece| {
            let Range { start, end } = carried(&piece, self.data_type, self.carrier);
            self.room.view(first + start..first + end, |sums| {
                self.data.fill(piece, |out| unweigh(self.data_type, sums, weights, out))
            })
        })
    }
}
