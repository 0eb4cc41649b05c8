//! The work of the caller's threads at the moment: which calls and operations are under way, and for whom they wait.

use super::waiting::{WaitLog, say};
use crate::{Error, collective::op::Op, limit::Limit};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pccl_protocol::{CallKind, CollectiveId, CollectiveKind};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// The calls that are under way.
#[derive(Debug)]
pub(crate) struct Activity {
    /// A call that must be alone, since when, and for how long it may take.
    pub(crate) exclusive: Option<(CallKind, Instant, Limit)>,
    /// Operations that have been launched and not yet waited for.
    pub(crate) ops: Vec<Arc<Op>>,
    /// Calls in segments, some of which may be among the operations.
    pub(crate) claims: Vec<Arc<Claim>>,
    /// No call may begin any more: this peer is about to leave.
    pub(crate) draining: bool,
}

/// The claim that a call in segments holds from its beginning to its end, whichever of its segments are in flight.
#[derive(Debug)]
pub(crate) struct Claim {
    /// The caller's tag.
    pub(crate) tag: u64,
    /// The caller's memory: address ranges, and whether they are written.
    pub(crate) ranges: Vec<(Range<usize>, bool)>,
}

impl Activity {
    /// Operations and calls in segments that are not over; of the latter each counts as one.
    pub(crate) fn in_flight(&self) -> usize {
        self.claims.len() + self.ops.iter().filter(|op| !op.is_segment()).count()
    }

    /// A call that is over only when its thread says so.
    fn long_call(&self) -> Option<CallKind> {
        let reduce = || CallKind::Collective(CollectiveKind::AllReduce);
        self.exclusive.map(|(call, ..)| call).or_else(|| (!self.claims.is_empty()).then(reduce))
    }

    /// Refuses a new call of a peer that is about to leave.
    pub(crate) fn check_not_draining(&self) -> Result<(), Error> {
        if self.draining {
            return Err(Error::InvalidUsage("this communicator is being drained to leave the run".into()));
        }
        Ok(())
    }

    fn oldest_op(&self) -> Option<&Arc<Op>> {
        self.ops.iter().min_by_key(|op| op.launched())
    }
}

/// The report to the master on the calls under way.
pub(super) struct Underway {
    pub(super) call: CallKind,
    /// When it began.
    pub(super) since: Option<Instant>,
    /// Whether anything of it ends by itself when a limit passes.
    pub(super) limited: bool,
    /// The oldest operation.
    pub(super) operation: Option<CollectiveId>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Calls {
    activity: Mutex<Activity>,
    /// A call that had to be alone, or one in segments, is over; goes with `activity`.
    idle: Condvar,
    waiting: Mutex<WaitLog>,
    /// Bytes of the operations that are over.
    moved_bytes: AtomicU64,
}

impl Calls {
    /// Of a session that begins: the caller waits to be let in.
    pub(super) fn connecting() -> Self {
        let exclusive = Some((CallKind::Connect, Instant::now(), Limit::of(None)));
        Self {
            activity: Mutex::new(Activity {
                exclusive,
                ops: Vec::new(),
                claims: Vec::new(),
                draining: false,
            }),
            idle: Condvar::new(),
            waiting: Mutex::default(),
            moved_bytes: AtomicU64::new(0),
        }
    }

    /// The calls under way, to be looked at or changed.
    pub(crate) fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock()
    }

    /// Whether this peer still waits for admission.
    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.activity.lock().exclusive, Some((CallKind::Connect, ..)))
    }

    /// The call that goes alone is over; returns which it was.
    pub(crate) fn end_exclusive(&self) -> Option<CallKind> {
        let over = self.activity.lock().exclusive.take();
        self.idle.notify_all();
        over.map(|(kind, ..)| kind)
    }

    /// A call in segments is over.
    pub(crate) fn end_claim(&self, claim: &Arc<Claim>) {
        self.activity.lock().claims.retain(|other| !Arc::ptr_eq(other, claim));
        self.idle.notify_all();
    }

    /// Waits until a call that goes alone, and those in segments, are over, or until `deadline`: then it returns one
    /// that is not.
    pub(crate) fn wait_for_calls(
        &self,
        activity: &mut MutexGuard<'_, Activity>,
        deadline: Instant,
    ) -> Result<(), CallKind> {
        while let Some(call) = activity.long_call() {
            if self.idle.wait_until(activity, deadline).timed_out() && activity.long_call().is_some() {
                return Err(call);
            }
        }
        Ok(())
    }

    /// The report to the master on all this.
    pub(super) fn underway(&self) -> Underway {
        let activity = self.activity.lock();
        let oldest = activity.oldest_op();
        let (call, since) = match (activity.exclusive, oldest) {
            (Some((call, since, _)), _) => (call, Some(since)),
            (None, Some(op)) => (CallKind::Collective(op.descriptor().kind()), Some(op.launched())),
            (None, None) => (CallKind::None, None),
        };
        let limited = activity.exclusive.is_some_and(|(.., limit)| limit.deadline().is_some())
            || activity.ops.iter().any(|op| op.timeout().is_some());
        Underway { call, since, limited, operation: oldest.and_then(|op| op.named()) }
    }

    /// Bytes that all operations of this session have moved.
    pub(super) fn moved_bytes(&self) -> u64 {
        let running: u64 = self.activity.lock().ops.iter().map(|op| op.moved_bytes()).sum();
        self.moved_bytes.load(Ordering::Relaxed) + running
    }

    /// Books the bytes of an operation that is over.
    pub(crate) fn add_moved_bytes(&self, bytes: u64) {
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// For whom the oldest call that is under way waits, by what the master said last.
    pub(crate) fn blocked_text(&self) -> Option<String> {
        self.waiting.lock().text()
    }

    /// The master has said what this peer waits for, if it does. It says so once a second.
    pub(super) fn note_wait(&self, text: Option<String>) {
        let wait = text.zip(self.oldest_call());
        let line = self.waiting.lock().note(Instant::now(), wait);
        line.into_iter().for_each(say);
    }

    /// When the oldest call that is under way began, and what it has moved.
    fn oldest_call(&self) -> Option<(Instant, u64)> {
        let activity = self.activity.lock();
        let op = activity.oldest_op().map(|op| (op.launched(), op.moved_bytes()));
        activity.exclusive.map(|(_, since, _)| (since, 0)).or(op)
    }
}
