//! All-gather: everybody gets what each one gives, side by side in the order of the ranks.

use super::{Beside, Call, Place, Prepared, Signals, own_part, same_type, split};
use crate::{
    Error,
    memory::{RawTensor, Role, Source, Span, Target},
};
use pccl_protocol::{Collective, Split};
use pccl_quant::ReduceOp;
use std::{ops::Range, sync::OnceLock};

impl<'a> Call<'a> {
    /// Puts what all peers send into `recv`, equally much of each. See
    /// [`Communicator::all_gather`](crate::Communicator::all_gather).
    pub fn all_gather(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>) -> Self {
        Self::gathered(send.into(), recv.into(), None)
    }

    /// Puts what all peers send into `recv`, of each rank as many elements as `counts` says. See
    /// [`Communicator::all_gather_counts`](crate::Communicator::all_gather_counts).
    pub fn all_gather_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
    ) -> Self {
        Self::gathered(send.into(), recv.into(), Some(counts.to_vec()))
    }

    fn gathered(send: Source<'a>, recv: Target<'a>, counts: Option<Vec<u64>>) -> Self {
        let (own, all) = (send.count(), recv.count());
        let (data_type, recv_type) = (send.data_type(), recv.data_type());
        // The content of the target is lost in any case.
        let (send, recv) = (send.span(), recv.span());
        Self::new(move |context| {
            same_type(data_type, recv_type)?;
            let split = split(context.world, counts.as_deref(), own, all)?;
            let part = context.part(all, data_type, ReduceOp::Sum)?;
            let settled = send.settled();
            let failure = settled.as_ref().err().cloned();
            let send = settled.unwrap_or_else(|_| send.clone());
            let beside = Gather { send, all, split: split.clone(), failure: OnceLock::new() };
            let descriptor = context.descriptor(Collective::AllGather(split), vec![part]);
            let prepared = Prepared::of(descriptor, recv.raw(Role::Gets));
            Ok(Prepared { beside: vec![Box::new(beside)], failure, ..prepared })
        })
    }
}

/// The own part comes from a buffer of its own.
#[derive(Debug)]
struct Gather {
    send: Span,
    all: usize,
    split: Split,
    /// Why it could not be put where it belongs.
    failure: OnceLock<Error>,
}

impl Beside for Gather {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        vec![(self.send.range(), false)]
    }

    fn before(&self, place: Place, raws: &[RawTensor], signals: Signals) {
        let [recv] = raws else { return };
        let element_bytes = recv.bytes().checked_div(self.all).unwrap_or(0);
        let start = own_part(&self.split, self.all, place).start * element_bytes;
        if let Err(error) = self.send.put_into(recv, start) {
            let text = error.to_string();
            // The first one counts.
            let _ = self.failure.set(error);
            (signals.fault)(text);
        }
    }

    fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }
}
