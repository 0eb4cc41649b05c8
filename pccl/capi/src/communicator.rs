//! A communicator as C sees it: settings until it connects, all-reduces by their tags, and calls of several threads.

use crate::{
    failure::{Failure, Outcome},
    loans::Loans,
    registry::Registry,
    types::{Handle, code},
};
use parking_lot::{Condvar, Mutex};
use pccl::{
    Ahead, Builder, Call, Communicator, DetachedReduce, LaunchOptions, ManyOptions, ReduceInfo, Remedy,
    Schedule, SegmentedError, SegmentedInfo, SharedState, StateDiff, SyncProgress, Tensor, doctor::Report,
};
use std::{
    cell::Cell,
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

thread_local! {
    /// The limit of the calls of this thread, if it has one of its own.
    pub(crate) static THREAD_TIMEOUT: Cell<Option<Option<Duration>>> = const { Cell::new(None) };
}

/// How long destroying waits for calls of other threads, which end as soon as the session does.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(30);

/// All communicators of the process.
pub(crate) static COMMUNICATORS: Registry<Comm> = Registry::new("communicator");
/// Whether `pcclInit` has been called.
pub(crate) static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Comm {
    settings: Mutex<Settings>,
    /// By tag; what goes from one peer to another by a number of its own, since its tag may be in flight to others. An
    /// operation that is being awaited stays until that is over.
    reduces: Mutex<BTreeMap<u64, Reduce>>,
    /// Of all-reduces that begin from now on.
    schedule: Mutex<Schedule>,
    /// Of calls that begin from now on.
    call_timeout: Mutex<Option<Duration>>,
    /// The difference that the last comparison of states has found.
    diff: Mutex<Option<StateDiff>>,
    /// The last report of the doctor.
    pub(crate) report: Mutex<Report>,
    loans: Loans,
    was_connected: AtomicBool,
    calls: Mutex<usize>,
    call_over: Condvar,
}

#[derive(Debug)]
struct Settings {
    builder: Builder,
    communicator: Arc<Communicator>,
}

#[derive(Debug)]
enum Reduce {
    /// Its tag is taken, the launch is under way.
    Launching,
    /// In flight.
    Flying(DetachedReduce),
    /// Some thread awaits it.
    Awaited(DetachedReduce),
}

/// A call that uses a communicator. It is not freed before.
pub(crate) struct InCall(Arc<Comm>);

impl Deref for InCall {
    type Target = Comm;

    fn deref(&self) -> &Comm {
        &self.0
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        *self.0.calls.lock() -= 1;
        self.0.call_over.notify_all();
    }
}

/// Refuses what needs `pcclInit` first.
pub(crate) fn check_initialized() -> Outcome {
    if INITIALIZED.load(Ordering::Acquire) {
        return Ok(());
    }
    Err(Failure { code: code::NOT_INITIALIZED, ..Failure::usage("call pcclInit first") })
}

/// The communicator of a handle, for one call.
pub(crate) fn enter(handle: Handle) -> Outcome<InCall> {
    check_initialized()?;
    let comm = COMMUNICATORS.get(handle)?;
    *comm.calls.lock() += 1;
    Ok(InCall(comm))
}

impl Comm {
    /// The difference that the last comparison of states has found.
    pub(crate) fn last_diff(&self) -> Option<StateDiff> {
        self.diff.lock().clone()
    }

    pub(crate) fn set_last_diff(&self, diff: StateDiff) {
        *self.diff.lock() = Some(diff);
    }

    /// A communicator with these settings.
    pub(crate) fn new(builder: Builder) -> Outcome<Self> {
        let communicator = build(&builder)?;
        Ok(Self {
            settings: Mutex::new(Settings { builder, communicator }),
            reduces: Mutex::new(BTreeMap::new()),
            schedule: Mutex::new(Schedule::default()),
            call_timeout: Mutex::new(None),
            diff: Mutex::new(None),
            report: Mutex::default(),
            loans: Loans::default(),
            was_connected: AtomicBool::new(false),
            calls: Mutex::new(0),
            call_over: Condvar::new(),
        })
    }

    /// Changes a setting. Only as long as there was no connection: what was learned in it would be lost.
    pub(crate) fn set(&self, name: &str, value: &str) -> Outcome {
        if self.was_connected() {
            return Err(Failure::usage("settings come before the first connect"));
        }
        let mut settings = self.settings.lock();
        let argument = |error: pccl::Error| Failure::of(&error, code::INVALID_ARGUMENT);
        let builder = settings.builder.clone().set(name, value).map_err(argument)?;
        let communicator = build(&builder)?;
        // Calls of this interface have their limits from here.
        if name == "call_timeout" {
            self.set_call_timeout(communicator.call_timeout());
        }
        *settings = Settings { builder, communicator };
        Ok(())
    }

    /// Chooses how the data of later all-reduces travels.
    pub(crate) fn set_schedule(&self, schedule: Schedule) {
        *self.schedule.lock() = schedule;
    }

    /// Sets the limit of later calls.
    pub(crate) fn set_call_timeout(&self, timeout: Option<Duration>) {
        *self.call_timeout.lock() = timeout;
    }

    /// The limit of a call that begins now on this thread.
    pub(crate) fn call_timeout(&self) -> Option<Duration> {
        THREAD_TIMEOUT.with(|own| own.get()).unwrap_or_else(|| *self.call_timeout.lock())
    }

    /// The communicator of the library.
    pub(crate) fn inner(&self) -> Arc<Communicator> {
        self.settings.lock().communicator.clone()
    }

    /// The same, for calls that have no meaning before the first connect.
    pub(crate) fn connected(&self) -> Outcome<Arc<Communicator>> {
        if self.was_connected() {
            return Ok(self.inner());
        }
        Err(Failure::of(&pccl::Error::NotConnected, code::INVALID_USAGE))
    }

    /// Whether there ever was a connection.
    fn was_connected(&self) -> bool {
        if !self.was_connected.load(Ordering::Acquire) && self.inner().is_connected() {
            self.was_connected.store(true, Ordering::Release);
        }
        self.was_connected.load(Ordering::Acquire)
    }

    /// `pcclRecover`.
    pub(crate) fn recover(&self, remedy: Remedy, peers: u32) -> Outcome {
        self.enter_run(|communicator| communicator.make_good(remedy, peers as usize))
    }

    /// `pcclRecoverWithState`.
    pub(crate) fn recover_with(
        &self,
        remedy: Remedy,
        peers: u32,
        state: &mut SharedState<'_>,
    ) -> Outcome<Ahead> {
        self.enter_run(|communicator| communicator.make_good_with_state(remedy, peers as usize, state))
    }

    /// `pcclConnect`.
    pub(crate) fn connect(&self) -> Outcome {
        self.enter_run(|communicator| communicator.connect_within(self.call_timeout()))?;
        self.was_connected.store(true, Ordering::Release);
        Ok(())
    }

    /// `pcclConnectWithState`.
    pub(crate) fn connect_with(
        &self,
        state: &mut SharedState<'_>,
        timeout: Option<Duration>,
        progress: impl FnMut(SyncProgress),
    ) -> Outcome<Ahead> {
        let ahead =
            self.enter_run(|communicator| communicator.connect_with_state(state, timeout, progress))?;
        self.was_connected.store(true, Ordering::Release);
        Ok(ahead)
    }

    /// Makes a call that connects, if that is needed.
    fn enter_run<T>(&self, enter: impl FnOnce(&Communicator) -> Result<T, pccl::Error>) -> Outcome<T> {
        // It may be that of a session that is over; what comes now may write into the same memory.
        self.end_loan(0);
        let entered = enter(&self.inner());
        // Before anything else can close it.
        self.was_connected();
        entered.map_err(|error| Failure { code: connect_code(&error), ..Failure::of(&error, 0) })
    }

    /// Lends a state. Returns the number of the loan.
    pub(crate) fn lend(&self, state: SharedState<'static>) -> Outcome<u64> {
        let loan = self.connected()?.lend_detached(state);
        Ok(self.loans.keep(loan.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?))
    }

    /// Ends a loan by its number, or, for 0, the one that stands.
    pub(crate) fn end_loan(&self, number: u64) {
        self.loans.end(number);
    }

    /// Leaves the run at once.
    pub(crate) fn close(&self) {
        self.inner().close();
        self.end_loan(0);
    }

    /// Launches a collective under a tag that is free.
    pub(crate) fn launch(&self, call: impl Into<Call<'static>>, tag: u64) -> Outcome {
        let communicator = self.take_tag(tag)?;
        self.launch_under(tag, &communicator, call.into(), tag)
    }

    /// Launches an operation between two peers. Returns the number under which it is kept.
    pub(crate) fn launch_pair(&self, call: Call<'static>, tag: u64) -> Outcome<u64> {
        let communicator = self.in_company()?;
        let key = {
            let mut reduces = self.reduces.lock();
            // Tags are small numbers as a rule, so the first of these is free.
            let key = (1 << 63..=u64::MAX).find(|key| !reduces.contains_key(key));
            let key = key.ok_or_else(|| Failure::internal("no number is free"))?;
            reduces.insert(key, Reduce::Launching);
            key
        };
        self.launch_under(key, &communicator, call, tag).map(|()| key)
    }

    fn launch_under(&self, key: u64, communicator: &Communicator, call: Call<'static>, tag: u64) -> Outcome {
        let options = LaunchOptions { tag, schedule: *self.schedule.lock(), timeout: None };
        let launched = communicator.launch_detached(call, options);
        let mut reduces = self.reduces.lock();
        match launched {
            Ok(reduce) => {
                reduces.insert(key, Reduce::Flying(reduce));
                Ok(())
            }
            Err(error) => {
                reduces.remove(&key);
                Err(Failure::of(&error, code::INVALID_USAGE))
            }
        }
    }

    /// All-reduces many tensors in one operation under a tag that is free, again and again until that is over.
    pub(crate) fn reduce_many(&self, tensors: &mut [Tensor<'_>], tag: u64) -> Outcome<ReduceInfo> {
        let communicator = self.take_tag(tag)?;
        let limit = self.call_timeout();
        let options = ManyOptions { tag, schedule: *self.schedule.lock(), ..ManyOptions::default() };
        let options = ManyOptions { timeout: limit, ..options };
        let result = communicator.all_reduce_many(tensors, options);
        self.reduces.lock().remove(&tag);
        result.map_err(|error| Failure::of_reduce(&error))
    }

    /// All-reduces a tensor in segments under a tag that is free.
    pub(crate) fn reduce_in_segments(
        &self,
        tensor: Tensor<'_>,
        segment_bytes: usize,
        tag: u64,
    ) -> Outcome<Result<SegmentedInfo, SegmentedError>> {
        let communicator = self.take_tag(tag)?;
        let options = LaunchOptions { tag, schedule: *self.schedule.lock(), timeout: self.call_timeout() };
        let result = communicator.all_reduce_in_segments(tensor, segment_bytes, options);
        self.reduces.lock().remove(&tag);
        Ok(result)
    }

    /// The communicator, if the group is large enough for an operation.
    fn in_company(&self) -> Outcome<Arc<Communicator>> {
        let communicator = self.connected()?;
        if communicator.is_connected() {
            communicator.check_company().map_err(|error| Failure::of_reduce(&error))?;
        }
        Ok(communicator)
    }

    /// Takes a tag for a collective that is about to begin, if the group is large enough for one.
    fn take_tag(&self, tag: u64) -> Outcome<Arc<Communicator>> {
        let communicator = self.in_company()?;
        let mut reduces = self.reduces.lock();
        if reduces.contains_key(&tag) {
            return Err(Failure::argument(format!("tag {tag} is in flight already")));
        }
        reduces.insert(tag, Reduce::Launching);
        drop(reduces);
        Ok(communicator)
    }

    /// Waits for the all-reduce of a tag; nothing uses its memory afterwards. After `timeout` it is given up for all.
    pub(crate) fn wait(
        &self,
        tag: u64,
        timeout: Option<Duration>,
    ) -> Outcome<Result<ReduceInfo, pccl::Error>> {
        let reduce = {
            let mut reduces = self.reduces.lock();
            match reduces.get_mut(&tag) {
                Some(slot @ Reduce::Flying(_)) => {
                    let Reduce::Flying(reduce) = std::mem::replace(slot, Reduce::Launching) else {
                        return Err(Failure::internal("an all-reduce in flight is not in flight"));
                    };
                    *slot = Reduce::Awaited(reduce.clone());
                    reduce
                }
                Some(Reduce::Awaited(_)) => {
                    return Err(Failure::usage(format!(
                        "another thread awaits the all-reduce with tag {tag}"
                    )));
                }
                // As the original has it for tags that are not in flight.
                Some(Reduce::Launching) | None => {
                    return Err(Failure {
                        code: code::RANK_CONNECTION_LOST,
                        ..Failure::usage(format!("no all-reduce with tag {tag} is in flight"))
                    });
                }
            }
        };
        let result = self.inner().wait_within(&reduce, timeout);
        self.reduces.lock().remove(&tag);
        Ok(result)
    }

    /// The all-reduce of a tag, to look at or to abort.
    pub(crate) fn reduce(&self, tag: u64) -> Outcome<DetachedReduce> {
        match self.reduces.lock().get(&tag) {
            Some(Reduce::Flying(reduce) | Reduce::Awaited(reduce)) => Ok(reduce.clone()),
            Some(Reduce::Launching) | None => {
                Err(Failure::usage(format!("no all-reduce with tag {tag} is in flight")))
            }
        }
    }

    /// Ends the session and everything in flight. Nothing uses memory of the caller afterwards.
    pub(crate) fn destroy(&self) -> Outcome {
        self.inner().close();
        let deadline = Instant::now() + DESTROY_TIMEOUT;
        let mut calls = self.calls.lock();
        while *calls > 0 {
            if self.call_over.wait_until(&mut calls, deadline).timed_out() && *calls > 0 {
                return Err(Failure::usage(format!("{} calls of other threads do not end", *calls)));
            }
        }
        drop(calls);
        let tags: Vec<u64> = self.reduces.lock().keys().copied().collect();
        for tag in tags {
            // The failure of the reduce interests nobody any more.
            let _ = self.wait(tag, None)?;
        }
        // A connect that was under way when the session was closed has made another one.
        self.close();
        Ok(())
    }
}

fn build(builder: &Builder) -> Outcome<Arc<Communicator>> {
    let communicator =
        builder.clone().build().map_err(|error| Failure::of(&error, code::INVALID_ARGUMENT))?;
    Ok(Arc::new(communicator))
}

fn connect_code(error: &pccl::Error) -> i32 {
    match error {
        // Somebody has closed. And whoever is refused for good would otherwise be told to call again, for ever.
        pccl::Error::InvalidUsage(_) | pccl::Error::NotConnected | pccl::Error::Refused(_) => {
            code::INVALID_USAGE
        }
        pccl::Error::InvalidArgument(_) => code::INVALID_ARGUMENT,
        pccl::Error::PendingAsyncOps { .. } => code::PENDING_ASYNC_OPS,
        _ => code::MASTER_CONNECTION_FAILED,
    }
}
