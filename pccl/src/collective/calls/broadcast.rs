//! Broadcast: everybody gets what the root has.

use super::{Call, Prepared, Root};
use crate::memory::{Role, Target};
use pccl_protocol::Collective;
use pccl_quant::ReduceOp;

impl<'a> Call<'a> {
    /// Replaces `data` by what it is at the root. See [`Communicator::broadcast`](crate::Communicator::broadcast).
    pub fn broadcast(data: impl Into<Target<'a>>, root: impl Into<Root>) -> Self {
        let (data, root) = (data.into(), root.into());
        let (span, count, data_type) = (data.span(), data.count(), data.data_type());
        Self::new(move |context| {
            let (named, root) = (root, root.peer(context.world)?);
            let part = context.part(count, data_type, ReduceOp::Sum)?;
            let role = if root == context.me { Role::Gives } else { Role::Replaces };
            let descriptor = context.descriptor(Collective::Broadcast(root), vec![part]);
            Ok(Prepared::of(descriptor, span.raw(role)).naming(named))
        })
    }
}
