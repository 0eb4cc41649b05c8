//! Gather: the root gets what each one gives, side by side in the order of the ranks.

use super::{
    Call, Root,
    moves::{Layout, Moves},
    own_part, same_type, split,
};
use crate::memory::{Source, Target};
use pccl_protocol::{Collective, Rooted};
use pccl_quant::ReduceOp;

impl<'a> Call<'a> {
    /// Puts what all peers send into `recv` at the root, equally much of each; the others have no use for `recv`. See
    /// [`Communicator::gather`](crate::Communicator::gather).
    pub fn gather(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>, root: impl Into<Root>) -> Self {
        Self::gather_to(send.into(), recv.into(), None, root.into())
    }

    /// As [`Call::gather`], of each rank as many elements as `counts` says. See
    /// [`Communicator::gather_counts`](crate::Communicator::gather_counts).
    pub fn gather_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
        root: impl Into<Root>,
    ) -> Self {
        Self::gather_to(send.into(), recv.into(), Some(counts.to_vec()), root.into())
    }

    fn gather_to(send: Source<'a>, recv: Target<'a>, counts: Option<Vec<u64>>, root: Root) -> Self {
        let (own, taken) = (send.count(), recv.count());
        let (data_type, recv_type) = (send.data_type(), recv.data_type());
        let (send, recv) = (send.span(), recv.span());
        Self::new(move |context| {
            same_type(data_type, recv_type)?;
            let (named, root) = (root, root.peer(context.world)?);
            let is_root = root == context.me;
            let all = if is_root { taken } else { context.whole(counts.as_deref(), own) };
            let split = split(context.world, counts.as_deref(), own, all)?;
            let part = context.part(all, data_type, ReduceOp::Sum)?;
            let collective = Collective::Gather(Rooted { root, split: split.clone() });
            let moves = Moves {
                descriptor: context.descriptor(collective, vec![part]),
                counts: Vec::new(),
                send: Some(send.clone()),
                recv: is_root.then(|| recv.clone()),
                layout: Box::new(move |place| {
                    let part = own_part(&split, all, place);
                    if is_root {
                        let takes = vec![(0..all, 0)];
                        return Layout { takes, keeps: Some((0..part.len(), part)), gives: None };
                    }
                    Layout { gives: Some((0..part.len(), part.start)), ..Layout::default() }
                }),
            };
            Ok(moves.prepare(context)?.naming(named))
        })
    }
}
