//! Send and receive: one member gets what another one gives. It is a broadcast among the two, which nobody else votes
//! for, over an edge between them.

use super::{Call, Context, Prepared, Root};
use crate::{
    Error,
    memory::{RawTensor, Role, Source, Target},
};
use pccl_protocol::{Collective, Nothing, Pair};
use pccl_quant::{DataType, ReduceOp};

impl<'a> Call<'a> {
    /// Gives `data` to another member, which receives it. See [`Communicator::send`](crate::Communicator::send).
    pub fn send(data: impl Into<Source<'a>>, to: impl Into<Root>) -> Self {
        let (data, to) = (data.into(), to.into());
        let (raw, count, data_type) = (data.given(), data.count(), data.data_type());
        Self::new(move |context| {
            let pair = Pair { from: context.me, to: to.peer(context.world)? };
            Ok(between(context, pair, (count, data_type), raw.clone())?.naming(to))
        })
    }

    /// Puts what another member sends into `data`. See [`Communicator::recv`](crate::Communicator::recv).
    pub fn recv(data: impl Into<Target<'a>>, from: impl Into<Root>) -> Self {
        let (data, from) = (data.into(), from.into());
        // The content of the target is lost in any case.
        let (raw, count, data_type) = (data.span().raw(Role::Gets), data.count(), data.data_type());
        Self::new(move |context| {
            let pair = Pair { from: from.peer(context.world)?, to: context.me };
            Ok(between(context, pair, (count, data_type), raw.clone())?.naming(from))
        })
    }
}

fn between(
    context: &Context<'_>,
    pair: Pair,
    (count, data_type): (usize, DataType),
    raw: RawTensor,
) -> Result<Prepared, Error> {
    if pair.from == pair.to {
        return Err(Error::InvalidArgument("a peer cannot send to itself".into()));
    }
    if context.quantisation.is_some() {
        return Err(Error::InvalidArgument("what is sent to one peer is not quantised".into()));
    }
    let part = context.part(count, data_type, ReduceOp::Sum)?;
    let descriptor = context.descriptor(Collective::SendRecv(Nothing {}), vec![part]);
    Ok(Prepared { pair: Some(pair), ..Prepared::of(descriptor, raw) })
}
