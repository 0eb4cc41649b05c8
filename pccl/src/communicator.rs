//! The communicator: the calls that a training process makes.

mod join;
mod operate;
mod recover;

use crate::{
    Builder, Error, LaunchOptions, ManyOptions, Optimized, ReduceInfo, ReduceOptions, SharedState, SyncInfo,
    SyncOptions, Tensor, World,
    collective::op::Op,
    config::Config,
    flight,
    limit::Limit,
    session::{Session, Shared},
    state::sync,
    world::Known,
};
use parking_lot::Mutex;
use pccl_protocol::{
    C2m, CallKind, Descriptor, M2c, PeerId, PreviousIdentity, RequestId, Revision, Verdict, VoteTopology,
    flight::{Recorder, Role, What},
    limits,
};
use pccl_quant::Element;
use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// A peer of a run. All calls block; all take `&self` and may come from any thread.
///
/// Calls that agree with all peers of the run or group (`update_topology`, `are_peers_pending`, `wait_for_world`,
/// `sync_shared_state`) go one after another; all-reduces with different tags run concurrently, see
/// [`Communicator::scope`].
#[derive(Debug)]
pub struct Communicator {
    config: Config,
    flight: Arc<Recorder>,
    door: join::Door,
    session: Mutex<Option<Session>>,
    /// Of calls that name no limit of their own.
    call_timeout: Mutex<Option<Duration>>,
    world: Mutex<Arc<Known>>,
    previous: Mutex<Option<PreviousIdentity>>,
    last_verdict: Mutex<Option<Verdict>>,
}

impl Communicator {
    /// Settings for a communicator of the run whose master listens on `master`: `host:port`, `1.2.3.4:port` or
    /// `[::1]:port`.
    pub fn builder(master: &str) -> Builder {
        Builder::new(master)
    }

    pub(crate) fn new(config: Config) -> Self {
        let flight = Recorder::new(Role::Peer, config.group, config.flight.clone());
        flight.set_name(config.name.clone());
        Self {
            call_timeout: Mutex::new(config.call_timeout),
            config,
            flight: Arc::new(flight),
            door: join::Door::default(),
            session: Mutex::new(None),
            world: Mutex::new(Arc::default()),
            previous: Mutex::new(None),
            last_verdict: Mutex::new(None),
        }
    }

    /// Joins the run. Returns when this peer is a full member of its group's ring: at once for the first peer of a run,
    /// otherwise when the others have called [`Communicator::update_topology`]. May be called again after the connection
    /// to the master was lost or this peer was dropped.
    ///
    /// A master that cannot be reached is tried again, with pauses of up to 2 s, until `connect_timeout` (60 s) has passed:
    /// a refused connection, no way to its address, a name that is not known, a master that stops. So peers may be started
    /// before the master. [`Communicator::close`] in another thread ends the attempts.
    ///
    /// # Errors
    /// `ConnectFailed` if the master could not be reached in time; `Refused`, at once, if it does not take this peer, or is
    /// no master; `Kicked` or `MasterLost` if that happens while waiting to be let in; `TimedOut` if this peer was
    /// not let in within the call time-out; `NotConnected` after `close` in another thread; `InvalidUsage` if
    /// already connected.
    pub fn connect(&self) -> Result<(), Error> {
        self.connect_within(self.call_timeout())
    }

    /// As [`Communicator::connect`]; `timeout` is how long this peer waits to be let in, once it is registered,
    /// `None` for ever. Then it leaves the run.
    ///
    /// # Errors
    /// As [`Communicator::connect`].
    pub fn connect_within(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let at = self.door.enter()?;
        {
            let mut slot = self.session.lock();
            if slot.as_ref().is_some_and(|session| session.shared.end().is_none()) {
                return Err(Error::InvalidUsage("already connected".into()));
            }
            if slot.as_ref().is_some_and(|session| !session.shared.activity.lock().ops.is_empty()) {
                return Err(Error::InvalidUsage(
                    "wait for the all-reduces of the lost connection first".into(),
                ));
            }
            // The old session goes first: its listeners free their ports.
            *slot = None;
        }
        // Not under the lock: both may take long, and another thread may want to close.
        let session = self.reach(&at)?;
        let shared = session.shared.clone();
        {
            let mut slot = self.session.lock();
            // Under the lock: whoever closes from now on finds the session.
            at.check()?;
            *slot = Some(session);
        }
        drop(at);
        self.await_admission(&shared, Limit::of(timeout))?;
        // Not only if it is newer: the one before is of another session.
        if let Some(known) = shared.take_answer_world() {
            *self.world.lock() = known;
        }
        if let Some(identity) = shared.identity() {
            *self.previous.lock() = Some(PreviousIdentity {
                run: identity.run,
                peer: identity.peer,
                revision: None,
                unknown_outcome: None,
            });
        }
        Ok(())
    }

    /// Waits until the others have let this peer in; leaves when the limit passes.
    fn await_admission(&self, shared: &Arc<Shared>, limit: Limit) -> Result<(), Error> {
        let admitted = shared.wait_for_admission(limit.deadline());
        if !matches!(admitted, Err(Error::TimedOut { .. })) {
            return admitted;
        }
        let waits = shared.blocked_text().unwrap_or_else(|| "admission waits for the master".into());
        // Not under the lock: another thread may want to close.
        let session = self.session.lock().take_if(|session| Arc::ptr_eq(&session.shared, shared));
        if let Some(session) = session {
            session.leave();
        }
        let text = format!("not let in after {:?}: {waits}", limit.time());
        Err(Error::TimedOut { call: CallKind::Connect, text, verdict: None })
    }

    /// The limit of calls that name none of their own; see [`Builder::call_timeout`](crate::Builder::call_timeout).
    pub fn call_timeout(&self) -> Option<Duration> {
        *self.call_timeout.lock()
    }

    /// Changes the limit of the calls that begin from now on; `None` for no limit.
    pub fn set_call_timeout(&self, timeout: Option<Duration>) {
        *self.call_timeout.lock() = timeout;
    }

    /// What this peer is called; see [`Builder::name`](crate::Builder::name).
    pub fn name(&self) -> &str {
        self.config.name.as_str()
    }

    /// The identity of this peer in the run: a new one after each connect. `None` before the first registration, and
    /// after [`Communicator::close`].
    pub fn id(&self) -> Option<PeerId> {
        let slot = self.session.lock();
        slot.as_ref().and_then(|session| session.shared.identity()).map(|identity| identity.peer)
    }

    /// Whether this peer is connected to the run at the moment.
    pub fn is_connected(&self) -> bool {
        self.shared().is_ok_and(|shared| !shared.is_connecting())
    }

    /// The run as it was when the last agreeing call was answered. See [`World`].
    pub fn world(&self) -> World {
        self.world.lock().world.clone()
    }

    /// Shows the caller what is known with the answer to a call, unless a later answer has been shown.
    fn show(&self, known: Option<Arc<Known>>) {
        let mut shown = self.world.lock();
        if let Some(known) = known.filter(|known| known.is_newer_than(&shown)) {
            *shown = known;
        }
    }

    /// Lets in all peers that wait, and returns when all rings are connected. All peers of the run have to call it.
    ///
    /// # Errors
    /// `PendingAsyncOps` while all-reduces are in flight; `TimedOut` when the call time-out has passed;
    /// `NotConnected`, `Kicked`, `MasterLost`.
    pub fn update_topology(&self) -> Result<(), Error> {
        self.update_topology_within(self.call_timeout())
    }

    /// As [`Communicator::update_topology`], with a limit of its own; `None` waits for ever. When it has passed,
    /// this peer's vote is taken back, so that it may make other calls; those who have voted go on waiting for it. A
    /// round that has begun ends first, and then the call succeeds.
    ///
    /// # Errors
    /// As [`Communicator::update_topology`].
    pub fn update_topology_within(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let limit = Limit::of(timeout);
        let call = self.exclusive(CallKind::UpdateTopology, true)?;
        let request = call.shared.next_request();
        vote_topology(&call.shared, CallKind::UpdateTopology, (request, 0), limit, &mut |_, _, _| {})
    }

    /// Measures the edges of which nothing is known, or only what is old, plans the best ring, and returns when all peers
    /// have it. All peers of the run have to call it; nobody is let in. Up to 2 s are spent on each pair of a group (the
    /// master's `probe_time`), many pairs at a time: at most that times the size of the group, less one. A peer that dies
    /// meanwhile is left out, which is no error.
    ///
    /// # Errors
    /// `PendingAsyncOps` while all-reduces are in flight; `TimedOut` when the call time-out has passed;
    /// `NotConnected`, `Kicked`, `MasterLost`.
    pub fn optimize_topology(&self) -> Result<Optimized, Error> {
        self.optimize_topology_within(self.call_timeout())
    }

    /// As [`Communicator::optimize_topology`], with a limit of its own; `None` waits for ever. When it has passed,
    /// this peer's vote is taken back. Once all peers have voted, the optimisation goes on to its end, and the call
    /// succeeds.
    ///
    /// # Errors
    /// As [`Communicator::optimize_topology`].
    pub fn optimize_topology_within(&self, timeout: Option<Duration>) -> Result<Optimized, Error> {
        let limit = Limit::of(timeout);
        let call = self.exclusive(CallKind::OptimizeTopology, true)?;
        let request = call.shared.next_request();
        call.shared.send(&C2m::VoteOptimize(request));
        let optimized =
            agree(&call.shared, CallKind::OptimizeTopology, request, limit, |packet| match packet {
                M2c::OptimizeDone(done) if done.request == request => Some(Optimized::new(done)),
                _ => None,
            })?;
        log::info!("{optimized}");
        Ok(optimized)
    }

    /// Whether any peer waits to be let in. All peers of the run have to call it; all get the same answer. Allowed while
    /// all-reduces are in flight.
    ///
    /// # Errors
    /// `TimedOut` when the call time-out has passed; `NotConnected`, `Kicked`, `MasterLost`.
    pub fn are_peers_pending(&self) -> Result<bool, Error> {
        self.are_peers_pending_within(self.call_timeout())
    }

    /// As [`Communicator::are_peers_pending`], with a limit of its own; `None` waits for ever. When it has passed,
    /// this peer's vote is taken back.
    ///
    /// # Errors
    /// As [`Communicator::are_peers_pending`].
    pub fn are_peers_pending_within(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let limit = Limit::of(timeout);
        let call = self.exclusive(CallKind::ArePeersPending, false)?;
        let request = call.shared.next_request();
        call.shared.send(&C2m::VotePending(request));
        agree(&call.shared, CallKind::ArePeersPending, request, limit, |packet| match packet {
            M2c::PendingAnswer(answer) if answer.request == request => Some(answer.pending),
            _ => None,
        })
    }

    /// Waits until the run has at least `peers` peers, letting in whoever comes; `timeout` of `None` waits for ever,
    /// whatever the call time-out is. While it waits the log says who is missing.
    ///
    /// # Errors
    /// `TimedOut` when `timeout` has passed; `PendingAsyncOps`, `NotConnected`, `Kicked`, `MasterLost`.
    pub fn wait_for_world(&self, peers: usize, timeout: Option<Duration>) -> Result<World, Error> {
        self.wait_for_world_with(peers, timeout, |have, want, missing| {
            log::info!("waiting for the world: {have} of {want} peers ({missing})");
        })
    }

    /// As [`Communicator::wait_for_world`]; `progress` is called with the number of peers there are, the number wanted,
    /// and who is missing, in words, whenever that changes.
    ///
    /// # Errors
    /// As [`Communicator::wait_for_world`].
    pub fn wait_for_world_with(
        &self,
        peers: usize,
        timeout: Option<Duration>,
        mut progress: impl FnMut(usize, usize, &str),
    ) -> Result<World, Error> {
        let wanted =
            u32::try_from(peers).ok().filter(|&n| n as usize <= limits::MAX_PEERS).ok_or_else(|| {
                Error::InvalidArgument(format!("a world has at most {} peers", limits::MAX_PEERS))
            })?;
        let limit = Limit::of(timeout);
        let call = self.exclusive(CallKind::WaitForWorld, true)?;
        let request = call.shared.next_request();
        // A vote that waits for one peer is answered by the present world, a plain vote would wait for all others.
        vote_topology(&call.shared, CallKind::WaitForWorld, (request, wanted.max(1)), limit, &mut progress)?;
        drop(call);
        Ok(self.world())
    }

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
    /// `Aborted` with the verdict if a peer was lost or calls do not match: `data` is as before, and the error says whether
    /// to retry. `TimedOut` when the limit has passed: the same for this peer, and the others get the verdict
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

    /// Reduces many tensors in one operation: one vote, one world, one outcome. After an abort it is tried again, whole,
    /// until it succeeds, too few peers are left, or the retries of `options` are used up.
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
                Err(error) if error.is_retryable() && retries > 0 && !limit.is_over() => {
                    retries -= 1;
                    log::info!("trying the all-reduce again: {error}");
                }
                other => return other,
            }
        }
    }

    /// Proves that all peers of the group hold the same shared state, or makes it so: the elected content replaces what
    /// differs. All peers of the group have to call it, with the same keys, types and counts: the set that most of those
    /// have who hold the committed state counts. Works alone.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// # let (mut weights, mut revision) = (vec![0.0_f32; 1000], 0);
    /// let mut state = pccl::SharedState::new(revision);
    /// state.tensor("weights", &mut weights)?;
    /// comm.sync_shared_state(&mut state, pccl::SyncStrategy::EnforcePopular)?;
    /// revision = state.revision() + 1;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Aborted` with the verdict: nothing was changed, and the error says whether to retry. `TimedOut` when the
    /// limit has passed: the same for this peer, and the others get the verdict. `Kicked`: this peer has other
    /// tensors than its group, skips a revision, or can fetch from nobody; the others go on. `TooFewPeers` below the
    /// minimum world size; `PendingAsyncOps`, `NotConnected`, `MasterLost`.
    pub fn sync_shared_state(
        &self,
        state: &mut SharedState<'_>,
        options: impl Into<SyncOptions>,
    ) -> Result<SyncInfo, Error> {
        let SyncOptions { strategy, timeout } = options.into();
        let limit = Limit::of(timeout.or(self.call_timeout()));
        let call = self.exclusive(CallKind::Sync, true)?;
        let result = sync::run(&call.shared, state, strategy, limit);
        let bytes = result.as_ref().map_or(0, |info| info.rx_bytes);
        flight::result(&self.flight, What::SyncResult, None, bytes, result.as_ref().err());
        if result.is_err() {
            flight::settle(&self.flight);
        }
        self.note_verdict(&result);
        if let (Ok(info), Some(previous)) = (&result, self.previous.lock().as_mut()) {
            previous.revision = Some(Revision(info.revision));
        }
        result
    }

    /// Leaves the run: tells the master, closes every connection, and ends every thread. All-reduces in flight fail, here
    /// and on the other peers; [`Communicator::close_within`] lets them finish first. The communicator may connect again.
    pub fn close(&self) {
        self.door.call_back();
        let session = self.session.lock().take();
        if let Some(session) = session {
            session.leave();
        }
        flight::settle(&self.flight);
    }

    /// Writes what the flight recorder holds into a new file in `directory`, which is made if it is not there, and returns
    /// the path of the file. `pccl-master explain` reads the files of several peers together.
    ///
    /// # Errors
    /// `System` if the file cannot be written.
    pub fn dump_flight(&self, directory: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let directory = directory.as_ref();
        self.flight
            .dump(directory, "on request")
            .map_err(|error| Error::System(format!("cannot write to {}: {error}", directory.display())))
    }

    /// The live session, or why there is none.
    fn shared(&self) -> Result<Arc<Shared>, Error> {
        let slot = self.session.lock();
        let session = slot.as_ref().ok_or(Error::NotConnected)?;
        match session.shared.end() {
            None => Ok(session.shared.clone()),
            Some(_) => Err(session.shared.end_error()),
        }
    }

    /// Begins a call that goes alone among its kind; `drained` says that no all-reduce may be in flight.
    fn exclusive(&self, kind: CallKind, drained: bool) -> Result<Exclusive<'_>, Error> {
        let shared = self.shared()?;
        {
            let mut activity = shared.activity.lock();
            activity.check_not_draining()?;
            if let Some((other, _)) = activity.exclusive {
                return Err(Error::InvalidUsage(format!("{kind} while another thread is in {other}")));
            }
            if drained && !activity.ops.is_empty() {
                return Err(Error::PendingAsyncOps { count: activity.ops.len() });
            }
            activity.exclusive = Some((kind, Instant::now()));
        }
        flight::call(&shared.flight, What::CallBegan, kind);
        shared.forget_answers();
        shared.take_answer_world();
        Ok(Exclusive { comm: self, shared })
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
        let op = Op::new(&shared, (tag, timeout), Descriptor::all_reduce(parts, schedule.algorithm()), raws);
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

impl Drop for Communicator {
    fn drop(&mut self) {
        self.close();
    }
}

/// Votes for a round of topology and waits for its answer.
fn vote_topology(
    shared: &Shared,
    call: CallKind,
    (request, wait_for_world): (RequestId, u32),
    limit: Limit,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<(), Error> {
    enum News {
        Done,
        Progress(u32, u32, String),
    }
    shared.send(&C2m::VoteTopology(VoteTopology { request, wait_for_world }));
    loop {
        let news = agree(shared, call, request, limit, |packet| match packet {
            M2c::TopologyDone(done) if done.request == request => Some(News::Done),
            M2c::TopologyProgress(p) if p.request == request && !limit.is_over() => {
                Some(News::Progress(p.have, p.want, p.missing.as_str().to_owned()))
            }
            _ => None,
        });
        match news? {
            News::Done => return Ok(()),
            News::Progress(have, want, missing) => progress(have as usize, want as usize, &missing),
        }
    }
}

/// Waits for the answer to a vote for the whole run. When the limit passes, the vote is taken back, unless others
/// have counted on it: then it is answered, they go on with what follows, and so must this peer. Bounded by the end
/// of the round or of the optimisation, if one is running.
fn agree<T>(
    shared: &Shared,
    call: CallKind,
    request: RequestId,
    limit: Limit,
    mut pick: impl FnMut(&M2c) -> Option<T>,
) -> Result<T, Error> {
    match shared.receive(limit.deadline(), &mut pick) {
        Err(Error::TimedOut { .. }) => {}
        other => return other,
    }
    shared.send(&C2m::WithdrawVote(request));
    let answered = shared.receive(None, |packet| match packet {
        M2c::VoteWithdrawn(withdrawn) if withdrawn.request == request => {
            Some(Err(withdrawn.missing.as_str().to_owned()))
        }
        other => pick(other).map(Ok),
    })?;
    answered.map_err(|missing| {
        let text = format!("{call} was given up after {:?}; it waited for {missing}", limit.time());
        Error::TimedOut { call, text, verdict: None }
    })
}

/// A call that goes alone. When it is over, the caller sees the world that its answer told.
struct Exclusive<'a> {
    comm: &'a Communicator,
    shared: Arc<Shared>,
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // Before the next call can be answered.
        let answer_world = self.shared.take_answer_world();
        let over = self.shared.activity.lock().exclusive.take();
        if let Some((kind, _)) = over {
            flight::call(&self.shared.flight, What::CallEnded, kind);
        }
        if self.shared.end().is_some() {
            flight::settle(&self.shared.flight);
        }
        self.shared.idle.notify_all();
        self.comm.show(answer_world);
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
