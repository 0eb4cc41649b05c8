//! Scatter: each one gets its part of what the root gives, in the order of the ranks.

use super::{
    Call, Root,
    moves::{Layout, Moves},
    own_part, same_type, split,
};
use crate::memory::{Source, Target};
use pccl_protocol::{Collective, Rooted};
use pccl_quant::ReduceOp;

impl<'a> Call<'a> {
    /// Puts an equal part of what the root sends into `recv` of each; the others have no use for `send`. See
    /// [`Communicator::scatter`](crate::Communicator::scatter).
    pub fn scatter(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>, root: impl Into<Root>) -> Self {
        Self::scatter_from(send.into(), recv.into(), None, root.into())
    }

    /// As [`Call::scatter`], with as many elements for each rank as `counts` says. See
    /// [`Communicator::scatter_counts`](crate::Communicator::scatter_counts).
    pub fn scatter_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
        root: impl Into<Root>,
    ) -> Self {
        Self::scatter_from(send.into(), recv.into(), Some(counts.to_vec()), root.into())
    }

    fn scatter_from(send: Source<'a>, recv: Target<'a>, counts: Option<Vec<u64>>, root: Root) -> Self {
        let (given, own) = (send.count(), recv.count());
        let (data_type, recv_type) = (send.data_type(), recv.data_type());
        let (send, recv) = (send.span(), recv.span());
        Self::new(move |context| {
            same_type(data_type, recv_type)?;
            let (named, root) = (root, root.peer(context.world)?);
            let is_root = root == context.me;
            let all = if is_root { given } else { context.whole(counts.as_deref(), own) };
            let split = split(context.world, counts.as_deref(), own, all)?;
            let part = context.part(all, data_type, ReduceOp::Sum)?;
            let collective = Collective::Scatter(Rooted { root, split: split.clone() });
            let moves = Moves {
                descriptor: context.descriptor(collective, vec![part]),
                counts: Vec::new(),
                send: is_root.then(|| send.clone()),
                recv: Some(recv.clone()),
                layout: Box::new(move |place| {
                    let part = own_part(&split, all, place);
                    if is_root {
                        let (gives, keeps) = (Some((0..all, 0)), Some((part.clone(), 0..part.len())));
                        return Layout { gives, keeps, takes: Vec::new() };
                    }
                    Layout { takes: vec![(0..part.len(), part.start)], ..Layout::default() }
                }),
            };
            Ok(moves.prepare(context)?.naming(named))
        })
    }
}
