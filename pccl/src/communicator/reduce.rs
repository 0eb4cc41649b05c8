//! All-reduces: from the call of the caller to the operation and back.

use super::Communicator;
use crate::{
    Error, LaunchOptions, ManyOptions, ReduceInfo, ReduceOptions, Tensor, collective::op::Op, flight,
    limit::Limit, session::Shared,
};
use pccl_protocol::{CallKind, Descriptor, limits};
use pccl_quant::Element;
use std::{ops::Range, sync::Arc};

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
        self.reduce(options, vec![Tensor::in_place(data, options.op).with(options.quantisation)])
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
        self.reduce(options, vec![Tensor::out_of_place(send, recv, options.op)?.with(options.quantisation)])
    }

    /// Reduces many tensors in one operation: one vote, one world, one outcome. After an abort it is tried again,
    /// whole, until it succeeds, too few peers are left, the limit or the retries of `options` are used up, or a caller
    /// on any peer has given it up (`CallerAbort`, `CallTimeout`): whoever did so may not come back to it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; after any, all send and in-place tensors are as before.
    pub fn all_reduce_many(
        &self,
        tensors: &mut [Tensor<'_>],
        options: ManyOptions,
    ) -> Result<ReduceInfo, Error> {
        let mut retries = options.retries;
        let limit = Limit::of(options.timeout.or(self.call_timeout()));
        loop {
            let (shared, op) =
                self.launch(options.into(), tensors.iter_mut().map(Tensor::reborrow).collect())?;
            match self.complete(&shared, &op, limit) {
                Err(error)
                    if error.is_retryable() && !error.is_given_up() && retries > 0 && !limit.is_over() =>
                {
                    retries -= 1;
                    log::info!("trying the all-reduce again: {error}");
                }
                other => return other,
            }
        }
    }

    /// What a reduce that began now would fail with if there are too few peers, as far as this peer knows. The master
    /// has the last word.
    ///
    /// # Errors
    /// `TooFewPeers`.
    pub fn check_company(&self) -> Result<(), Error> {
        let world = self.world();
        let in_group = if self.config.formed || self.config.alone { 1 } else { 2 };
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let few = |have: usize, need: usize, in_group| {
            Err(Error::TooFewPeers { have: number(have), need: number(need), in_group })
        };
        if world.group_size < in_group && !self.config.formed {
            return few(world.group_size, in_group, true);
        }
        if world.global_size < world.min_world_size && !self.config.formed {
            return few(world.global_size, world.min_world_size, false);
        }
        Ok(())
    }

    fn reduce(
        &self,
        options: impl Into<LaunchOptions>,
        tensors: Vec<Tensor<'_>>,
    ) -> Result<ReduceInfo, Error> {
        let (shared, op) = self.launch(options.into(), tensors)?;
        self.complete(&shared, &op, Limit::of(op.timeout()))
    }

    /// Begins an operation. The memory of `tensors` stays lent until [`Communicator::complete`] has returned: the two
    /// callers (the blocking calls and the scope) make sure that it is called before the borrows end.
    pub(crate) fn launch(
        &self,
        LaunchOptions { tag, schedule, timeout }: LaunchOptions,
        tensors: Vec<Tensor<'_>>,
    ) -> Result<(Arc<Shared>, Arc<Op>), Error> {
        let shared = self.shared()?;
        self.check_kind(CallKind::AllReduce)?;
        if tensors.len() > limits::MAX_PARTS {
            return Err(Error::InvalidArgument(format!(
                "more than {} tensors in one operation",
                limits::MAX_PARTS
            )));
        }
        tensors.iter().try_for_each(Tensor::check)?;
        let parts = tensors.iter().map(|tensor| tensor.descriptor).collect();
        let raws = tensors.into_iter().map(|tensor| tensor.raw).collect();
        let timeout = timeout.or(self.call_timeout());
        let op =
            Op::new(&shared, (tag, timeout), Descriptor { parts, algorithm: schedule.algorithm() }, raws);
        {
            let mut activity = shared.activity.lock();
            activity.check_not_draining()?;
            if let Some((call, _)) = activity.exclusive
                && call != CallKind::ArePeersPending
            {
                return Err(Error::InvalidUsage(format!("all_reduce while another thread is in {call}")));
            }
            if activity.ops.iter().any(|other| other.tag() == tag) {
                return Err(Error::InvalidUsage(format!("tag {tag} is in flight already")));
            }
            if activity.ops.len() >= limits::MAX_TAGS_IN_FLIGHT {
                return Err(Error::InvalidUsage(format!(
                    "more than {} all-reduces in flight",
                    limits::MAX_TAGS_IN_FLIGHT
                )));
            }
            check_overlaps(activity.ops.iter().chain([&op]))?;
            activity.ops.push(op.clone());
        }
        flight::launched(&shared.flight, tag, op.descriptor());
        op.vote();
        Ok((shared, op))
    }

    /// Waits for an operation and takes it off the books. When the limit passes, it is given up.
    pub(crate) fn complete(
        &self,
        shared: &Arc<Shared>,
        op: &Arc<Op>,
        limit: Limit,
    ) -> Result<ReduceInfo, Error> {
        let moved = op.moved_bytes();
        let result = op.wait(limit);
        self.note_verdict(&result);
        shared.add_moved_bytes(result.as_ref().map_or(moved, |info| info.tx_bytes + info.rx_bytes));
        op.recycle(shared);
        let others_run = {
            let mut activity = shared.activity.lock();
            activity.ops.retain(|other| !Arc::ptr_eq(other, op));
            !activity.ops.is_empty()
        };
        if others_run {
            shared.recall_reader();
        }
        if let (Err(Error::OutcomeUnknown(_)), Some(previous)) = (&result, self.previous.lock().as_mut()) {
            previous.unknown_outcome = op.last_id();
        }
        self.show(op.answer_world());
        if result.is_err() {
            flight::settle(&shared.flight);
        }
        result
    }

    /// [`Communicator::complete`] for an operation that may have been waited for already.
    pub(crate) fn complete_if_open(&self, shared: &Arc<Shared>, op: &Arc<Op>) -> Result<(), Error> {
        let open = shared.activity.lock().ops.iter().any(|other| Arc::ptr_eq(other, op));
        if open { self.complete(shared, op, Limit::of(op.timeout())).map(drop) } else { Ok(()) }
    }
}

/// No memory that an operation writes may be used by another one in flight, or twice by the same.
fn check_overlaps<'a>(ops: impl Iterator<Item = &'a Arc<Op>>) -> Result<(), Error> {
    let mut ranges: Vec<(Range<usize>, bool)> = Vec::new();
    for raw in ops.flat_map(|op| op.raws()) {
        let (written, read) = raw.ranges();
        ranges.push((written, true));
        ranges.extend(read.map(|read| (read, false)));
    }
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_unstable_by_key(|(range, _)| range.start);
    let (mut written_end, mut any_end) = (0, 0);
    for (range, written) in ranges {
        if range.start < written_end || (written && range.start < any_end) {
            return Err(Error::InvalidArgument(
                "buffers overlap, with each other or with an operation in flight".into(),
            ));
        }
        any_end = any_end.max(range.end);
        if written {
            written_end = written_end.max(range.end);
        }
    }
    Ok(())
}
