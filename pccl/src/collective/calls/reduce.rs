//! Reduce: the root gets the reduction of what all give.

use super::{Call, Prepared, Root};
use crate::memory::{Role, Target};
use pccl_protocol::Collective;
use pccl_quant::ReduceOp;

impl<'a> Call<'a> {
    /// Reduces `data` over all peers of the group; the result is in `data` at the root, and the others keep what they
    /// have. See [`Communicator::reduce`](crate::Communicator::reduce).
    pub fn reduce(data: impl Into<Target<'a>>, root: impl Into<Root>, op: ReduceOp) -> Self {
        let (data, root) = (data.into(), root.into());
        let (span, count, data_type) = (data.span(), data.count(), data.data_type());
        Self::new(move |context| {
            let (named, root) = (root, root.peer(context.world)?);
            let part = context.part(count, data_type, op)?;
            let role = if root == context.me { Role::Exchanges } else { Role::Folds };
            let descriptor = context.descriptor(Collective::Reduce(root), vec![part]);
            Ok(Prepared::of(descriptor, span.raw(role)).naming(named))
        })
    }
}
