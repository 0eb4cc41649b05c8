//! Reduce-scatter: each one gets its part of the reduction of what all give.
//!
//! Sums pass through memory for the whole tensor, which the library has; the own part of it is copied to the caller
//! at the end. A tensor that is quantised on a device has its sums in the bytes that travel, and the own part goes
//! where it belongs.

use super::{Beside, Call, Place, Prepared, on_device, own_part, same_type, split};
use crate::{
    Error,
    memory::{RawTensor, Source, Span, Target},
};
use pccl_protocol::{Collective, Split};
use pccl_quant::ReduceOp;
use std::ops::Range;

impl<'a> Call<'a> {
    /// Reduces `send` over all peers; each one gets an equal part of the result in `recv`. See
    /// [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    pub fn reduce_scatter(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>, op: ReduceOp) -> Self {
        Self::scattered(send.into(), recv.into(), None, op)
    }

    /// As [`Call::reduce_scatter`], with as many elements for each rank as `counts` says. See
    /// [`Communicator::reduce_scatter_counts`](crate::Communicator::reduce_scatter_counts).
    pub fn reduce_scatter_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
        op: ReduceOp,
    ) -> Self {
        Self::scattered(send.into(), recv.into(), Some(counts.to_vec()), op)
    }

    fn scattered(send: Source<'a>, recv: Target<'a>, counts: Option<Vec<u64>>, op: ReduceOp) -> Self {
        let (all, own) = (send.count(), recv.count());
        let (data_type, recv_type) = (send.data_type(), recv.data_type());
        let (send, recv) = (send.span(), recv.span());
        Self::new(move |context| {
            same_type(data_type, recv_type)?;
            let split = split(context.world, counts.as_deref(), own, all)?;
            let part = context.part(all, data_type, op)?;
            let collective = Collective::ReduceScatter(split.clone());
            let stays = |device: &_| on_device::is_quantised_there(device, &part, &collective) == Ok(true);
            if let Some(device) = send.scattered_into(&recv).filter(stays) {
                let descriptor = context.descriptor(collective, vec![part]);
                return Ok(Prepared::of(descriptor, RawTensor::on_device(device)));
            }
            let room = context.backups.take(if send.is_on_device() { 0 } else { send.range().len() });
            let raw = send.folded_into(&room);
            let settled = recv.settled();
            let failure = settled.as_ref().err().cloned();
            let recv = settled.unwrap_or_else(|_| recv.clone());
            let beside = Scatter { recv, all, split };
            let descriptor = context.descriptor(collective, vec![part]);
            let prepared = Prepared::of(descriptor, raw);
            Ok(Prepared { rooms: vec![room], beside: vec![Box::new(beside)], failure, ..prepared })
        })
    }
}

/// The own part goes to a buffer of its own.
#[derive(Debug)]
struct Scatter {
    recv: Span,
    all: usize,
    split: Split,
}

impl Beside for Scatter {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        vec![(self.recv.range(), true)]
    }

    fn after(&self, place: Place, raws: &[RawTensor]) -> Result<(), Error> {
        let [sums] = raws else { return Ok(()) };
        let own = own_part(&self.split, self.all, place);
        let element_bytes = self.recv.range().len().checked_div(own.len()).unwrap_or(0);
        let start = own.start * element_bytes;
        self.recv.pieces().try_for_each(|piece| {
            let result = start + piece.start..start + piece.end;
            sums.view_result(result, |result| self.recv.fill(piece, |out| out.copy_from_slice(result)))
        })
    }
}
