//! Joining a run with the shared state fetched beforehand, so that the others are not held up.

use super::Communicator;
use crate::{
    Ahead, Error, Remedy, SharedState, SyncProgress,
    state::{
        ahead::{self, Wish},
        committed::Committed,
    },
};
use pccl_hash::Tree;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

impl Communicator {
    /// As [`Communicator::connect_within`], and fetches the shared state of the group into `state` while this peer
    /// waits to be let in: from members that [lend](Communicator::lend_state) it, verified piece by piece, while they
    /// train on. As long as they lend, this peer is let in when it holds what they committed last, so that the sync
    /// that follows moves little or nothing. Where nobody lends it is let in as ever. After three newer states it is
    /// let in with what it has; when it is let in midway, the sync goes on where this was.
    ///
    /// It does not fetch if this peer has synced a newer revision before, or if `state` is what it has
    /// [offered](Communicator::offer_resume): that is what the run gets.
    ///
    /// **The content of the tensors is unspecified from here until a sync succeeds**, also if this fails: some pieces
    /// are of one state and some of another one. A sync commits no such mixture: if nobody is left who has the whole
    /// state, it fails with `InvalidUsage` and names the tensor.
    ///
    /// `progress` is called on the caller's thread, about once per second.
    ///
    /// # Errors
    /// As [`Communicator::connect_within`].
    pub fn connect_with_state(
        &self,
        state: &mut SharedState<'_>,
        timeout: Option<Duration>,
        mut progress: impl FnMut(SyncProgress),
    ) -> Result<Ahead, Error> {
        // Before the connection says what this peer holds.
        let held = *self.offer.lock();
        let mut torn = std::mem::take(&mut self.kept.lock().torn);
        let mut tree = Tree::Plain;
        let result = self.enter(timeout, true, |shared, limit| {
            tree = shared.syncs.tree();
            let wish = Wish { limit, held, torn: &mut torn, progress: &mut progress };
            ahead::wait(&shared.syncs, state, wish)
        });
        let mut kept = self.kept.lock();
        kept.torn = torn;
        if !result.as_ref().is_ok_and(|ahead| *ahead == Ahead::default()) {
            // The tensors may have been written.
            let fetched = result.as_ref().ok().and_then(|ahead| ahead.revision);
            kept.committed =
                fetched.and_then(|revision| Committed::of(state, &tree, revision, None).ok()).map(Arc::new);
        }
        drop(kept);
        let came_ahead = result.as_ref().is_ok_and(|ahead| ahead.revision.is_some());
        self.came_ahead.store(came_ahead, Ordering::Relaxed);
        result
    }

    /// The revision that this peer has fetched ahead, until its first sync succeeds: what a loop may give as its word
    /// ([`SharedState::unchanged_since`]) if nothing has been written to the tensors since then. The others wait for
    /// that sync, and with this word for no hashing.
    pub fn fetched_revision(&self) -> Option<u64> {
        let kept = self.kept.lock();
        kept.committed
            .as_ref()
            .filter(|committed| committed.sync.is_none())
            .map(|committed| committed.revision)
    }

    /// As [`Communicator::run`], for loops that lend their state: whenever this peer connects, it does so with
    /// [`Communicator::connect_with_state`], and the state that `of` makes of the training.
    ///
    /// # Errors
    /// As [`Communicator::run`], and those of `of`.
    pub fn run_with_state<S>(
        &self,
        training: &mut S,
        peers: usize,
        of: impl Fn(&mut S) -> Result<SharedState<'_>, Error>,
        more: impl Fn(&S) -> bool,
        step: impl FnMut(&Self, &mut S) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let connect = |comm: &Self, training: &mut S| {
            comm.connect_with_state(&mut of(training)?, comm.call_timeout(), |_| {}).map(drop)
        };
        self.run_by(training, peers, more, step, connect)
    }

    /// As [`Communicator::make_good`]; if that means to connect, it is done with [`Communicator::connect_with_state`],
    /// and this returns what that does.
    ///
    /// # Errors
    /// As [`Communicator::make_good`].
    pub fn make_good_with_state(
        &self,
        remedy: Remedy,
        peers: usize,
        state: &mut SharedState<'_>,
    ) -> Result<Ahead, Error> {
        let mut ahead = Ahead::default();
        let connect = || {
            ahead = self.connect_with_state(state, self.call_timeout(), |_| {})?;
            Ok(())
        };
        self.make_good_by(remedy, peers, connect).map(|()| ahead)
    }
}
