//! Scatter: each one gets its part of what the root gives, in the order of the ranks.

use super::{Call, Root, rooted::Way};
use crate::memory::{Source, Target};

impl<'a> Call<'a> {
    /// Puts an equal part of what the root sends into `recv` of each; the others have no use for `send`. See
    /// [`Communicator::scatter`](crate::Communicator::scatter).
    pub fn scatter(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>, root: impl Into<Root>) -> Self {
        Self::rooted(Way::FromRoot, (send.into(), recv.into()), None, root.into())
    }

    /// As [`Call::scatter`], with as many elements for each rank as `counts` says. See
    /// [`Communicator::scatter_counts`](crate::Communicator::scatter_counts).
    pub fn scatter_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
        root: impl Into<Root>,
    ) -> Self {
        Self::rooted(Way::FromRoot, (send.into(), recv.into()), Some(counts.to_vec()), root.into())
    }
}
