//! The common part of gather and scatter: the root has the whole tensor, and each rank a part of it.

use super::{
    Call, Place, Root,
    moves::{Layout, Moves},
    own_part, same_type, split,
};
use crate::memory::{Source, Target};
use pccl_protocol::{Collective, Rooted, Split};
use pccl_quant::ReduceOp;

/// Which way parts go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A gather.
    ToRoot,
    /// A scatter.
    FromRoot,
}

impl<'a> Call<'a> {
    /// Parts of equal size, or of the sizes in `counts`. Only the root has a use for the buffer of the whole tensor.
    pub(super) fn rooted(
        way: Way,
        (send, recv): (Source<'a>, Target<'a>),
        counts: Option<Vec<u64>>,
        root: Root,
    ) -> Self {
        let (own, whole) = match way {
            Way::ToRoot => (send.count(), recv.count()),
            Way::FromRoot => (recv.count(), send.count()),
        };
        let (data_type, recv_type) = (send.data_type(), recv.data_type());
        let (send, recv) = (send.span(), recv.span());
        Self::new(move |context| {
            same_type(data_type, recv_type)?;
            let (named, root) = (root, root.peer(context.world)?);
            let is_root = root == context.me;
            let all = if is_root { whole } else { context.whole(counts.as_deref(), own) };
            let split = split(context.world, counts.as_deref(), own, all)?;
            let part = context.part(all, data_type, ReduceOp::Sum)?;
            let rooted = Rooted { root, split: split.clone() };
            let collective = match way {
                Way::ToRoot => Collective::Gather(rooted),
                Way::FromRoot => Collective::Scatter(rooted),
            };
            let moves = Moves {
                descriptor: context.descriptor(collective, vec![part]),
                counts: Vec::new(),
                send: (is_root || way == Way::ToRoot).then(|| send.clone()),
                recv: (is_root || way == Way::FromRoot).then(|| recv.clone()),
                layout: Box::new(move |place| layout(way, is_root, &split, all, place)),
            };
            Ok(moves.prepare(context)?.naming(named))
        })
    }
}

/// The use that a rank makes of its buffers.
fn layout(way: Way, is_root: bool, split: &Split, all: usize, place: Place) -> Layout {
    let part = own_part(split, all, place);
    let (own, whole) = (0..part.len(), 0..all);
    match (way, is_root) {
        (Way::ToRoot, true) => Layout { takes: vec![(whole, 0)], keeps: Some((own, part)), gives: None },
        (Way::ToRoot, false) => Layout { gives: Some((own, part.start)), ..Layout::default() },
        (Way::FromRoot, true) => {
            Layout { gives: Some((whole, 0)), keeps: Some((part, own)), takes: Vec::new() }
        }
        (Way::FromRoot, false) => Layout { takes: vec![(own, part.start)], ..Layout::default() },
    }
}
