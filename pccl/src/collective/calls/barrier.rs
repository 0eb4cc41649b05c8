//! Barrier: nobody goes on before all have come. It has no tensors: the votes are all of it.

use super::{Call, Prepared};
use pccl_protocol::{Collective, Nothing};

impl Call<'_> {
    /// Waits for all peers. See [`Communicator::barrier`](crate::Communicator::barrier).
    pub fn barrier() -> Self {
        Self::new(|context| {
            let descriptor = context.descriptor(Collective::Barrier(Nothing {}), Vec::new());
            Ok(Prepared::new(descriptor, Vec::new()))
        })
    }
}
