//! All-reduces.

use super::Communicator;
use crate::{Call, Error, ManyOptions, ReduceInfo, ReduceOptions, Tensor};
use pccl_quant::Element;

impl Communicator {
    /// Reduces `data` over all peers of the group, in place. All of them have to call it with the same count, type,
    /// reduction and tag.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let mut gradient = vec![0.5_f32; 1000];
    /// comm.all_reduce(&mut gradient, pccl::ReduceOp::Avg)?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Aborted` with the verdict if a peer was lost or calls do not match: `data` is as before, and the error says
    /// whether to retry. `TimedOut` when the limit has passed: the same for this peer, and the others get the verdict
    /// `CallTimeout`, which names this peer and those for whom it waited. `TooFewPeers` if there is no other peer;
    /// `OutcomeUnknown`, see there; `InvalidUsage` if the tag is in flight; `NotConnected`, `Kicked`, `MasterLost`.
    pub fn all_reduce<T: Element>(
        &self,
        data: &mut [T],
        options: impl Into<ReduceOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(vec![Tensor::in_place(data, options.op).with(options.quantisation)], options)
    }

    /// Reduces `send` over all peers of the group into `recv`, which has the same length. See
    /// [`Communicator::all_reduce`]. After an error `recv` is undefined.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and `InvalidArgument` for different lengths.
    pub fn all_reduce_into<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        options: impl Into<ReduceOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(vec![Tensor::out_of_place(send, recv, options.op)?.with(options.quantisation)], options)
    }

    /// Reduces many tensors in one operation: one vote, one world, one outcome. After an abort it is tried again,
    /// whole, until it succeeds, too few peers are left, the limit or the retries of `options` are used up, or a caller
    /// on any peer has given it up (`CallerAbort`, `CallTimeout`): a peer that did so may not come back to it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; after any, all send and in-place tensors are as before.
    pub fn all_reduce_many(
        &self,
        tensors: &mut [Tensor<'_>],
        options: ManyOptions,
    ) -> Result<ReduceInfo, Error> {
        self.call_with_retry(
            Call::all_reduce(tensors.iter_mut().map(Tensor::reborrow).collect::<Vec<_>>()),
            options,
        )
    }
}
