//! Asynchronous collectives: several in flight, told apart by their tags.

use crate::{
    Call, Communicator, Error, LaunchOptions, ReduceInfo, ReduceOptions, Tensor, collective::op::Op,
    limit::Limit, session::Shared,
};
use parking_lot::Mutex;
use pccl_protocol::PeerId;
use pccl_quant::Element;
use std::{marker::PhantomData, sync::Arc, time::Duration};

/// Lends buffers to asynchronous collectives, as `std::thread::scope` lends to threads: all of them are over before the
/// scope ends, whatever happens to their handles.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    comm: &'scope Communicator,
    launched: Mutex<Vec<(Arc<Shared>, Arc<Op>)>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A collective in flight.
#[derive(Debug)]
#[must_use = "a collective is over only when it has been waited for"]
pub struct AsyncReduce<'scope> {
    comm: &'scope Communicator,
    shared: Arc<Shared>,
    op: Arc<Op>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Launches an all-reduce in place. See [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// `InvalidUsage` if the tag is in flight already; `NotConnected`, `Kicked`, `MasterLost`.
    pub fn all_reduce<T: Element>(
        &'scope self,
        data: &'env mut [T],
        options: impl Into<ReduceOptions>,
    ) -> Result<AsyncReduce<'scope>, Error> {
        let options = options.into();
        self.launch(vec![Tensor::in_place(data, options.op).with(options.quantisation)], options)
    }

    /// Launches an all-reduce from `send` into `recv`. See [`Communicator::all_reduce_into`].
    ///
    /// # Errors
    /// As [`Scope::all_reduce`], and `InvalidArgument` for different lengths.
    pub fn all_reduce_into<T: Element>(
        &'scope self,
        send: &'env [T],
        recv: &'env mut [T],
        options: impl Into<ReduceOptions>,
    ) -> Result<AsyncReduce<'scope>, Error> {
        let options = options.into();
        self.launch(vec![Tensor::out_of_place(send, recv, options.op)?.with(options.quantisation)], options)
    }

    /// Launches one all-reduce of many tensors: one vote, one outcome.
    ///
    /// # Errors
    /// As [`Scope::all_reduce`].
    pub fn all_reduce_many(
        &'scope self,
        tensors: Vec<Tensor<'env>>,
        options: impl Into<LaunchOptions>,
    ) -> Result<AsyncReduce<'scope>, Error> {
        self.launch(tensors, options)
    }

    /// Launches a collective of any kind. See [`Communicator::call`].
    ///
    /// # Errors
    /// As [`Scope::all_reduce`], and those about arguments of the call of that kind.
    pub fn launch(
        &'scope self,
        call: impl Into<Call<'env>>,
        options: impl Into<LaunchOptions>,
    ) -> Result<AsyncReduce<'scope>, Error> {
        let (shared, op) = self.comm.launch(&call.into(), options.into())?;
        Ok(self.keep(shared, op))
    }

    /// Launches a segment, again if need be, on a track of the tag that none is on.
    pub(crate) fn launch_segment(
        &'scope self,
        shared: &Arc<Shared>,
        call: &Call<'env>,
        options: LaunchOptions,
        track: u8,
    ) -> Result<AsyncReduce<'scope>, Error> {
        let op = self.comm.launch_on(shared, call, options, track)?;
        Ok(self.keep(shared.clone(), op))
    }

    fn keep(&'scope self, shared: Arc<Shared>, op: Arc<Op>) -> AsyncReduce<'scope> {
        shared.control.recall_reader();
        self.launched.lock().push((shared.clone(), op.clone()));
        AsyncReduce { comm: self.comm, shared, op }
    }
}

impl AsyncReduce<'_> {
    /// Blocks until the collective is over, or until the limit with which it was launched has passed, from now: then
    /// it is given up for all peers.
    ///
    /// # Errors
    /// As [`Communicator::call`].
    pub fn wait(self) -> Result<ReduceInfo, Error> {
        self.finish(Limit::of(self.op.timeout()))
    }

    /// As [`AsyncReduce::wait`], with this limit.
    ///
    /// # Errors
    /// As [`Communicator::call`].
    pub fn wait_for(self, timeout: Duration) -> Result<ReduceInfo, Error> {
        self.finish(Limit::of(Some(timeout)))
    }

    /// Waits for its end, once.
    pub(crate) fn finish(&self, limit: Limit) -> Result<ReduceInfo, Error> {
        self.comm.complete(&self.shared, &self.op, limit)
    }

    /// The peers that took part, by rank. Once it is over.
    pub(crate) fn contributors(&self) -> Vec<PeerId> {
        self.op.contributors()
    }

    /// Whether [`AsyncReduce::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.op.is_done()
    }

    /// Gives the collective up, for all peers: unless its outcome is decided already, all of them get the verdict
    /// `CallerAbort`. It still has to be waited for.
    pub fn abort(&self) {
        self.op.give_up(None);
    }

    /// The tag.
    pub fn tag(&self) -> u64 {
        self.op.tag().number
    }
}

impl Communicator {
    /// Runs `body` with a scope that lends buffers to asynchronous collectives. Those that were not waited for are
    /// waited for at the end; their results are lost.
    pub fn scope<'env, R>(&self, body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
        /// Waits for what is left, also when `body` panics: the buffers are lent until then.
        struct Finish<'a, 'scope, 'env: 'scope>(&'a Scope<'scope, 'env>);
        impl Drop for Finish<'_, '_, '_> {
            fn drop(&mut self) {
                let launched = std::mem::take(&mut *self.0.launched.lock());
                for (shared, op) in launched {
                    if let Err(error) = self.0.comm.complete_if_open(&shared, &op) {
                        log::warn!("a collective that nobody waited for failed: {error}");
                    }
                }
            }
        }
        let scope =
            Scope { comm: self, launched: Mutex::new(Vec::new()), scope: PhantomData, env: PhantomData };
        let finish = Finish(&scope);
        let result = body(&scope);
        drop(finish);
        result
    }
}
