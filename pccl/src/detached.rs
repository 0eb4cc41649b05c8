//! Collectives without a scope: of memory that is there for good.

use crate::{
    Call, Communicator, Error, LaunchOptions, ReduceInfo,
    collective::op::Op,
    limit::{Limit, moment_after},
    session::Shared,
};
use std::{sync::Arc, time::Duration};

/// A collective on memory that is never given back, in flight until [`Communicator::wait`]. Clones are the same
/// one, for threads that look at it or abort it while another one waits.
#[derive(Debug, Clone)]
#[must_use = "a collective is over only when it has been waited for"]
pub struct DetachedReduce {
    shared: Arc<Shared>,
    op: Arc<Op>,
}

impl DetachedReduce {
    /// Whether [`Communicator::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.op.is_done()
    }

    /// Sleeps until [`Communicator::wait`] would return at once (`true`), or until `timeout` has passed.
    pub fn wait_until_done(&self, timeout: Duration) -> bool {
        self.op.wait_until_done(moment_after(timeout))
    }

    /// Gives the collective up, for all peers: unless its outcome is decided already, all of them get the verdict
    /// `CallerAbort`. It still has to be waited for.
    pub fn abort(&self) {
        self.op.give_up(None);
    }

    /// Says that nobody waits for it soon. Without this it may pause for some milliseconds before it goes on.
    pub fn goes_on_alone(&self) {
        self.shared.control.recall_reader();
    }

    /// The tag.
    pub fn tag(&self) -> u64 {
        self.op.tag().number
    }
}

impl Communicator {
    /// Launches a collective whose memory outlives the program's interest in it, as an interface for another language
    /// has it. See [`Communicator::scope`] for borrowed memory.
    ///
    /// # Errors
    /// `InvalidUsage` if the tag is in flight already; `NotConnected`, `Kicked`, `MasterLost`.
    pub fn launch_detached(
        &self,
        call: impl Into<Call<'static>>,
        options: impl Into<LaunchOptions>,
    ) -> Result<DetachedReduce, Error> {
        let (shared, op) = self.launch(&call.into(), options.into())?;
        Ok(DetachedReduce { shared, op })
    }

    /// Blocks until a detached collective is over, or until the limit with which it was launched has passed, from
    /// now: then it is given up for all peers. Nothing uses its memory any more then.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidUsage` if it was waited for before.
    pub fn wait(&self, reduce: &DetachedReduce) -> Result<ReduceInfo, Error> {
        self.wait_within(reduce, reduce.op.timeout())
    }

    /// As [`Communicator::wait`], with this limit; `None` waits for ever.
    ///
    /// # Errors
    /// As [`Communicator::wait`].
    pub fn wait_within(
        &self,
        reduce: &DetachedReduce,
        timeout: Option<Duration>,
    ) -> Result<ReduceInfo, Error> {
        let DetachedReduce { shared, op } = reduce;
        if !shared.calls.activity().ops.iter().any(|other| Arc::ptr_eq(other, op)) {
            return Err(Error::InvalidUsage("this collective has been waited for already".into()));
        }
        self.complete(shared, op, Limit::of(timeout))
    }
}
