//! Proving that all peers hold the same shared state.

use super::Communicator;
use crate::{
    Error, SharedState, SyncInfo, SyncOptions, SyncProgress, flight,
    limit::Limit,
    state::{committed::Committed, sync},
};
use pccl_flight::What;
use pccl_protocol::{CallKind, Cause, ResumeOffer, Revision};
use std::sync::atomic::Ordering;

impl Communicator {
    /// Proves that all peers of the group hold the same shared state, or makes it so: the elected content replaces what
    /// differs. All peers of the group have to call it, with the same keys, types and counts: the set that most of
    /// those have who hold the committed state counts. Works alone.
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
    /// tensors than its group, skips a revision, or can fetch from nobody; the others go on. `System` if what is
    /// replaced can be kept nowhere, see [`Builder::state_memory`](crate::Builder::state_memory). `TooFewPeers` below
    /// the minimum world size; `PendingAsyncOps`, `NotConnected`, `MasterLost`. `InvalidUsage`, in builds with debug
    /// assertions, if a tensor has changed that was said to be [unchanged](SharedState::unchanged_since).
    pub fn sync_shared_state(
        &self,
        state: &mut SharedState<'_>,
        options: impl Into<SyncOptions>,
    ) -> Result<SyncInfo, Error> {
        self.sync_shared_state_with(state, options, |_| {})
    }

    /// As [`Communicator::sync_shared_state`], and tells `progress` how far it is while this peer fetches what differs:
    /// about once per second, and at the end. It is called on the caller's thread; what it does holds up nothing but
    /// the next report.
    ///
    /// # Errors
    /// As [`Communicator::sync_shared_state`].
    pub fn sync_shared_state_with(
        &self,
        state: &mut SharedState<'_>,
        options: impl Into<SyncOptions>,
        mut progress: impl FnMut(SyncProgress),
    ) -> Result<SyncInfo, Error> {
        let SyncOptions { strategy, timeout } = options.into();
        let limit = Limit::of(timeout.or(self.call_timeout()));
        let call = self.exclusive(CallKind::Sync, true, limit)?;
        let (committed, torn) = {
            let kept = self.kept.lock();
            (kept.committed.clone(), kept.torn.clone())
        };
        let salvage = self.kept.lock().salvage.take();
        let offered = self.offer.lock().is_some_and(|offer| offer.digest.is_some());
        let mut wish =
            sync::Wish { strategy, limit, committed, offered, torn, salvage, progress: &mut progress };
        let result = sync::run(&call.shared.syncs, state, &mut wish);
        self.kept.lock().salvage = wish.salvage.filter(|_| result.is_err());
        let committed = result
            .as_ref()
            .ok()
            .and_then(|synced| Some((call.shared.told.identity()?.peer, synced.sync?)))
            .and_then(|sync| {
                Committed::of(state, &call.shared.syncs.tree(), state.revision(), Some(sync)).ok()
            });
        self.lend_again(&call.shared, committed);
        let result = result.map(|synced| SyncInfo {
            came_ahead: self.came_ahead.swap(false, Ordering::Relaxed),
            ..synced.info
        });
        let bytes = result.as_ref().map_or(0, |info| info.rx_bytes);
        flight::result(&self.flight, What::SyncResult, None, bytes, result.as_ref().err());
        if result.is_err() {
            flight::settle(&self.flight);
        }
        self.note_verdict(&result);
        self.note_state(&result);
        if result.is_ok() {
            state.forget_file();
        }
        result
    }

    /// Offers `state` to the run at the next connects, until a sync succeeds or [`Communicator::close`] is called: this
    /// peer holds it, for instance from a file, and the run can go on from it. Peers that are fresh wait for it
    /// ([`Cause::ResumeWaits`]), and the first sync of this peer has to bring exactly this
    /// state, or the master drops it (`KickCode::FalseOffer`). To be called before [`Communicator::connect`].
    ///
    /// A peer that has synced before, and reconnects, offers the revision of its last sync by itself.
    pub fn offer_resume(&self, state: &SharedState<'_>) {
        match state.offer() {
            Ok(offer) => *self.offer.lock() = Some(offer),
            Err(error) => log::error!("nothing is offered to the run: {error}"),
        }
    }

    /// Notes the statement of a sync about what this peer holds, and about whom it needs.
    fn note_state(&self, result: &Result<SyncInfo, Error>) {
        if let Ok(info) = result {
            *self.offer.lock() = Some(ResumeOffer { revision: Revision(info.revision), digest: None });
        }
        let cause = result.as_ref().err().and_then(Error::verdict).map(|verdict| verdict.cause);
        let lacks = matches!(cause, Some(Cause::ResumeWaits | Cause::StateLost));
        self.lacks_state.store(lacks, Ordering::Relaxed);
        if result.is_ok() {
            *self.lack.lock() = None;
        }
    }
}
