//! All-gather: everybody gets what each one gives, side by side in the order of the ranks.

use super::{Beside, Call, Fault, Place, Prepared, own_part, same_type, split};
use crate::memory::{RawTensor, Source, Span, Target};
use pccl_protocol::{Collective, Split};
use pccl_quant::ReduceOp;
use std::ops::Range;

impl<'a> Call<'a> {
    /// Puts what all peers send into `recv`, equally much of each. See
    /// [`Communicator::all_gather`](crate::Communicator::all_gather).
    pub fn all_gather(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>) -> Self {
        Self::gather(send.into(), recv.into(), None)
    }

    /// Puts what all peers send into `recv`, of each rank as many elements as `counts` says. See
    /// [`Communicator::all_gather_counts`](crate::Communicator::all_gather_counts).
    pub fn all_gather_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
    ) -> Self {
        Self::gather(send.into(), recv.into(), Some(counts.to_vec()))
    }

    fn gather(send: Source<'a>, recv: Target<'a>, counts: Option<Vec<u64>>) -> Self {
        let (own, all) = (send.count(), recv.count());
        let (data_type, recv_type) = (send.data_type(), recv.data_type());
        // What is there is lost in any case.
        let (send, recv) = (send.span(), recv.in_place().without_backup());
        Self::new(move |context| {
            same_type(data_type, recv_type)?;
            let split = split(context.world, counts.as_deref(), own, all)?;
            let part = context.part(all, data_type, ReduceOp::Sum)?;
            let beside = Gather { send: send.clone(), recv: recv.clone(), all, split: split.clone() };
            let descriptor = context.descriptor(Collective::AllGather(split), vec![part]);
            Ok(Prepared { beside: Some(Box::new(beside)), ..Prepared::of(descriptor, recv.clone()) })
        })
    }
}

/// The own part comes from a buffer of its own.
#[derive(Debug)]
struct Gather {
    send: Span,
    recv: RawTensor,
    all: usize,
    split: Split,
}

impl Beside for Gather {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        vec![(self.send.range(), false)]
    }

    fn before(&self, place: Place, _fault: Fault) {
        let element_bytes = self.recv.bytes().checked_div(self.all).unwrap_or(0);
        let own = own_part(&self.split, self.all, place);
        self.recv.put(own.start * element_bytes, &self.send);
    }
}
