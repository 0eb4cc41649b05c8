//! Gather: the root gets what each one gives, side by side in the order of the ranks.

use super::{Call, Root, rooted::Way};
use crate::memory::{Source, Target};

impl<'a> Call<'a> {
    /// Puts what all peers send into `recv` at the root, equally much of each; the others have no use for `recv`. See
    /// [`Communicator::gather`](crate::Communicator::gather).
    pub fn gather(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>, root: impl Into<Root>) -> Self {
        Self::rooted(Way::ToRoot, (send.into(), recv.into()), None, root.into())
    }

    /// As [`Call::gather`], of each rank as many elements as `counts` says. See
    /// [`Communicator::gather_counts`](crate::Communicator::gather_counts).
    pub fn gather_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
        root: impl Into<Root>,
    ) -> Self {
        Self::rooted(Way::ToRoot, (send.into(), recv.into()), Some(counts.to_vec()), root.into())
    }
}
