//! Collectives of any kind: from the call of the caller to the operation and back.

use super::{Communicator, beginning::Beginning, misfits::Ended};
use crate::{
    Call, CollectiveOptions, Error, LaunchOptions, ManyOptions, ReduceInfo, ReduceOptions, Root,
    collective::op::Op,
    flight,
    limit::Limit,
    memory::RawTensor,
    session::{Shared, calls::Claim},
};
use pccl_protocol::CollectiveKind;
use pccl_quant::Element;
use std::sync::Arc;

impl Communicator {
    /// Carries out a collective and waits for its end. The calls for each kind, such as [`Communicator::broadcast`],
    /// are short for this.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `Aborted` with the cause `WorldChanged` if the call was made for members that
    /// the group does not have any more: the root is gone, or there are not as many peers as it has parts. A peer that
    /// then makes such a call twice in a row in a world that it knows gets `InvalidArgument`: it would fit at no time.
    pub fn call<'a>(
        &self,
        call: impl Into<Call<'a>>,
        options: impl Into<LaunchOptions>,
    ) -> Result<ReduceInfo, Error> {
        let (shared, op) = self.launch(&call.into(), options.into())?;
        self.complete(&shared, &op, Limit::of(op.timeout()))
    }

    /// As [`Communicator::call`]; after an abort it is tried again, whole, until it succeeds, too few peers are left,
    /// the members are not those that it was called for, or the retries of `options` are used up.
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, what the collective only reads or works on in place is as before.
    pub fn call_with_retry<'a>(
        &self,
        call: impl Into<Call<'a>>,
        options: ManyOptions,
    ) -> Result<ReduceInfo, Error> {
        let (call, mut retries) = (call.into(), options.retries);
        let limit = Limit::of(options.timeout.or(self.call_timeout()));
        loop {
            let (shared, op) = self.launch(&call, options.into())?;
            let result = self.complete(&shared, &op, limit);
            let Err(error) = &result else { return result };
            if !error.may_pass() || retries == 0 || limit.is_over() {
                return result;
            }
            retries -= 1;
            log::info!("trying the {} again: {error}", op.descriptor().kind());
        }
    }

    /// Replaces `data` by what it is at `root`, a rank of [`Communicator::world`] or a peer. All peers of the group
    /// call it with the same root, count, type and tag.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let mut weights = vec![0.0_f32; 1000];
    /// comm.broadcast(&mut weights, 0, ())?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `data` is as before. `InvalidArgument` if there is no such rank.
    pub fn broadcast<T: Element>(
        &self,
        data: &mut [T],
        root: impl Into<Root>,
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::broadcast(data, root).quantised(options.quantisation), options)
    }

    /// Puts what all peers of the group send into `recv`, in the order of the ranks that they have when it begins: as
    /// many elements of each, so that `recv` has those of all. [`ReduceInfo::rank`] is the own rank then.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let mut losses = vec![0.0_f32; comm.world().group_size];
    /// comm.all_gather(&[0.25_f32], &mut losses, ())?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `send` is as before and `recv` is undefined. `InvalidArgument` if `recv`
    /// is not a multiple of `send`.
    pub fn all_gather<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::all_gather(send, recv).quantised(options.quantisation), options)
    }

    /// As [`Communicator::all_gather`], with as many elements of each rank of [`Communicator::world`] as `counts`
    /// says. All peers give the same counts.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`]; `InvalidArgument` if the counts do not fit the world or the buffers.
    pub fn all_gather_counts<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[u64],
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::all_gather_counts(send, recv, counts).quantised(options.quantisation), options)
    }

    /// Reduces `data` over all peers of the group, to `root`: it has the result in `data`, the others keep what they
    /// have.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let mut samples = [64_u64];
    /// comm.reduce(&mut samples, 0, pccl::ReduceOp::Sum)?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `data` is as before. `InvalidArgument` if there is no such rank.
    pub fn reduce<T: Element>(
        &self,
        data: &mut [T],
        root: impl Into<Root>,
        options: impl Into<ReduceOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::reduce(data, root, options.op).quantised(options.quantisation), options)
    }

    /// Reduces `send` over all peers of the group. Of the result each peer gets one of as many equal parts as there
    /// are ranks, in the order of the ranks that they have when it begins: as many elements as `recv` has.
    /// [`ReduceInfo::rank`] is the own rank then.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let mut part = vec![0.0_f32; 250];
    /// let gradient = vec![0.5_f32; part.len() * comm.world().group_size];
    /// comm.reduce_scatter(&gradient, &mut part, pccl::ReduceOp::Avg)?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `send` is as before, and `recv` too. `InvalidArgument` if `send` is not
    /// a multiple of `recv`.
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        options: impl Into<ReduceOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::reduce_scatter(send, recv, options.op).quantised(options.quantisation), options)
    }

    /// As [`Communicator::reduce_scatter`], with as many elements for each rank of [`Communicator::world`] as
    /// `counts` says. All peers give the same counts.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`]; `InvalidArgument` if the counts do not fit the world or the buffers.
    pub fn reduce_scatter_counts<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[u64],
        options: impl Into<ReduceOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        let call = Call::reduce_scatter_counts(send, recv, counts, options.op);
        self.call(call.quantised(options.quantisation), options)
    }

    /// Returns when all peers of the group have called it.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// comm.barrier(())?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`].
    pub fn barrier(&self, options: impl Into<CollectiveOptions>) -> Result<ReduceInfo, Error> {
        self.call(Call::barrier(), options.into())
    }

    /// Gives `data` to one member of the group, which calls [`Communicator::recv`] with the same tag. Nobody else takes
    /// part, or is waited for: what others do, and whether they die, changes nothing. Tags of what goes from one peer
    /// to another are their own: the same number may be in flight to others, from others and among all.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let world = comm.world();
    /// let (rank, ranks) = (world.rank, world.group_size);
    /// let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    /// let (own, mut other) = (vec![1.0_f32; 1000], vec![0.0_f32; 1000]);
    /// comm.scope(|scope| {
    ///     let sent = scope.launch(pccl::Call::send(&own[..], next), 0)?;
    ///     let received = scope.launch(pccl::Call::recv(&mut other[..], previous), 0)?;
    ///     sent.wait()?;
    ///     received.wait()
    /// })?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]: `Aborted` with the cause `WorldChanged` if the other one is no member any more, with
    /// `EdgeBroken` if there is no connection from the one to the other, with `MismatchedCall` if the two have tensors
    /// of different types or lengths. `InvalidArgument` if it is this peer itself.
    pub fn send<T: Element>(
        &self,
        data: &[T],
        to: impl Into<Root>,
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::send(data, to).quantised(options.quantisation), options)
    }

    /// Puts what one member of the group gives by [`Communicator::send`] into `data`. See there.
    ///
    /// # Errors
    /// As [`Communicator::send`]; after any, the content of `data` is undefined.
    pub fn recv<T: Element>(
        &self,
        data: &mut [T],
        from: impl Into<Root>,
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::recv(data, from).quantised(options.quantisation), options)
    }

    /// Replaces `data` by the weighted average over all peers of the group: the sum of what all have, each times its
    /// `weight`, divided by the sum of the weights. A weight is a finite number, at least 0, such as the number of
    /// samples that a peer has seen. `docs/semantics/results.md` has the exact rule. Floats only.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let (mut gradient, samples) = (vec![0.5_f32; 1000], 640);
    /// comm.weighted_average(&mut gradient, f64::from(samples), ())?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `data` is as before. `InvalidArgument` for a weight that is none, for
    /// elements that are no floats, and, on all peers, if all weights are 0.
    pub fn weighted_average<T: Element>(
        &self,
        data: &mut [T],
        weight: f64,
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::weighted_average(data, weight).quantised(options.quantisation), options)
    }

    /// The error of a collective that began now if there are too few peers, as far as this peer knows. The master has
    /// the last word.
    ///
    /// # Errors
    /// `TooFewPeers`.
    pub fn check_company(&self) -> Result<(), Error> {
        let world = self.world();
        let in_group =
            if self.config.settings.formed_groups || self.config.settings.world_of_one { 1 } else { 2 };
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let few = |have: usize, need: usize, in_group| {
            Err(Error::TooFewPeers { have: number(have), need: number(need), in_group })
        };
        if world.group_size < in_group && !self.config.settings.formed_groups {
            return few(world.group_size, in_group, true);
        }
        if world.global_size < world.min_world_size && !self.config.settings.formed_groups {
            return few(world.global_size, world.min_world_size, false);
        }
        Ok(())
    }

    /// Begins an operation. The memory of `call` stays lent until [`Communicator::complete`] has returned: the two
    /// callers (the blocking calls and the scope) make sure that it is called before the borrows end.
    pub(crate) fn launch(
        &self,
        call: &Call<'_>,
        options: LaunchOptions,
    ) -> Result<(Arc<Shared>, Arc<Op>), Error> {
        let shared = self.shared()?;
        let op = self.launch_on(&shared, call, options, 0)?;
        Ok((shared, op))
    }

    /// As [`Communicator::launch`], in a session that may have been replaced meanwhile, on a track of the tag.
    pub(crate) fn launch_on(
        &self,
        shared: &Arc<Shared>,
        call: &Call<'_>,
        LaunchOptions { tag, schedule, timeout }: LaunchOptions,
        track: u8,
    ) -> Result<Arc<Op>, Error> {
        self.check_group("a collective")?;
        let me = shared.told.identity().ok_or(Error::NotConnected)?.peer;
        // A call in a formed group that has lost somebody is for the whole group: so it fails with who is missing.
        let formed = self.formed.lock().clone().filter(|_| self.config.settings.formed_groups);
        let known = formed.unwrap_or_else(|| self.world.lock().clone());
        let how = (schedule.algorithm(), self.config.settings.refuse_non_finite);
        let prepared = call.prepare((me, &known.world), &shared.operations.backups, how)?;
        let timeout = timeout.or(self.call_timeout());
        let op = Op::new(&shared.operations, ((tag, track), timeout), known, prepared);
        {
            let mut activity = shared.calls.activity();
            // There is room for the whole call since it has begun.
            if !op.is_segment() {
                Beginning::of(&op).check(&activity)?;
            }
            activity.ops.push(op.clone());
        }
        flight::launched(&shared.flight, tag, op.descriptor());
        shared.begin(&op);
        Ok(op)
    }

    /// Begins a call in segments: until [`Calls::end_claim`](crate::session::calls::Calls::end_claim) its tag and
    /// memory are taken, and whatever waits for operations to be over waits for it.
    pub(crate) fn claim(&self, tag: u64, tensor: &RawTensor) -> Result<(Arc<Shared>, Arc<Claim>), Error> {
        let shared = self.shared()?;
        let ranges = tensor.ranges();
        let kind = CollectiveKind::AllReduce.call();
        let beginning = Beginning { kind, tag: tag.into(), parts: 1, ranges: ranges.clone() };
        let claim = Arc::new(Claim { tag, ranges });
        let mut activity = shared.calls.activity();
        beginning.check(&activity)?;
        activity.claims.push(claim.clone());
        drop(activity);
        Ok((shared, claim))
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
        shared.calls.add_moved_bytes(result.as_ref().map_or(moved, |info| info.tx_bytes + info.rx_bytes));
        op.recycle();
        let others_run = {
            let mut activity = shared.calls.activity();
            activity.ops.retain(|other| !Arc::ptr_eq(other, op));
            !activity.ops.is_empty()
        };
        if others_run {
            shared.control.recall_reader();
        }
        let answer = op.answer_world();
        self.show(answer.clone());
        if result.is_err() {
            flight::settle(&shared.flight);
        }
        let Some(answer) = answer else { return result };
        let ended =
            Ended { collective: &op.descriptor().collective, launched: op.launched(), known: op.known() };
        self.misfits.judge(ended, &answer.world, result)
    }

    /// [`Communicator::complete`] for an operation that may have been waited for already.
    pub(crate) fn complete_if_open(&self, shared: &Arc<Shared>, op: &Arc<Op>) -> Result<(), Error> {
        let open = shared.calls.activity().ops.iter().any(|other| Arc::ptr_eq(other, op));
        if open { self.complete(shared, op, Limit::of(op.timeout())).map(drop) } else { Ok(()) }
    }
}
