//! All-reduce: everybody gets the reduction of what all give.

use super::{Call, Prepared};
use crate::{Error, Tensor};
use pccl_protocol::{Descriptor, limits};

impl<'a> Call<'a> {
    /// Reduces tensors over all peers of the group, as one operation. See
    /// [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    pub fn all_reduce(tensors: impl Into<Vec<Tensor<'a>>>) -> Self {
        let tensors: Vec<_> =
            tensors.into().into_iter().map(|tensor| (tensor.raw, tensor.descriptor)).collect();
        Self::new(move |context| {
            if tensors.len() > limits::MAX_PARTS {
                let text = format!("more than {} tensors in one operation", limits::MAX_PARTS);
                return Err(Error::InvalidArgument(text));
            }
            let mut parts: Vec<_> = tensors.iter().map(|(_, descriptor)| *descriptor).collect();
            for part in &mut parts {
                part.quantisation = part.quantisation.or(context.quantisation);
                crate::memory::check_part(part)?;
            }
            let raws = tensors.iter().map(|(raw, _)| raw.clone()).collect();
            Ok(Prepared::new(Descriptor::all_reduce(parts, context.algorithm), raws))
        })
    }
}

impl<'a> From<Vec<Tensor<'a>>> for Call<'a> {
    fn from(tensors: Vec<Tensor<'a>>) -> Self {
        Self::all_reduce(tensors)
    }
}
