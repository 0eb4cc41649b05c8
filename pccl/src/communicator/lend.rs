//! Lending shared state to newcomers between syncs.

use super::Communicator;
use crate::{
    Error, SharedState,
    session::Shared,
    state::{
        Digests,
        ahead::Torn,
        committed::Committed,
        loan::{self, KeptCopy, Standing},
        salvage::Salvage,
    },
};
use pccl_protocol::SyncId;
use std::sync::Arc;

/// The knowledge and copies of the state that this peer keeps between two syncs.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The state that the last successful sync has committed, or this peer has fetched ahead since.
    pub(super) committed: Option<Arc<Committed>>,
    copy: Option<KeptCopy>,
    /// The loan of the copy. It ends before the copy changes.
    standing: Option<Standing>,
    /// The copy is lent whenever it is what was committed.
    lends: bool,
    /// Tensors that hold a part of a state.
    pub(super) torn: Torn,
    /// The pieces that the last sync had fetched, if it failed.
    pub(super) salvage: Option<Salvage>,
}

impl Kept {
    /// Nothing is lent any more, and no copy is kept.
    pub(super) fn drop_copy(&mut self) {
        self.standing = None;
        self.copy = None;
        self.lends = false;
    }
}

/// A state that is lent until [`DetachedLoan::end`], or until this is dropped: then nobody reads it any more.
#[derive(Debug)]
#[must_use = "the loan ends when this is dropped"]
pub struct DetachedLoan {
    standing: Option<Standing>,
    state: SharedState<'static>,
}

impl DetachedLoan {
    /// Ends the loan, and gives the state back.
    pub fn end(self) -> SharedState<'static> {
        let Self { standing, state } = self;
        drop(standing);
        state
    }
}

impl Communicator {
    /// Runs `work` and lends `state` to newcomers meanwhile: peers that wait to be let in with
    /// [`Communicator::connect_with_state`] fetch it while this peer computes, at a pace that leaves most of the uplink
    /// to collectives ([`Builder::upload_share_pct`](crate::Builder::upload_share_pct)). The state stays as it is until
    /// `work` is over, which can read it with [`SharedState::view`], and nobody reads it any more when this returns. A
    /// sync that another thread begins ends the loan earlier, and so does the end of the session; `work` goes on. In a
    /// group of given members there are no newcomers, and `work` just runs.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// # let mut weights = vec![0.0_f32; 1000];
    /// # fn train_locally(weights: &[f32]) -> Vec<f32> { weights.to_vec() }
    /// let mut state = pccl::SharedState::new(0);
    /// state.tensor("weights", &mut weights)?;
    /// comm.sync_shared_state(&mut state, pccl::SyncStrategy::EnforcePopular)?;
    /// let change = comm.lend_state(&state, || train_locally(state.view("weights").unwrap_or_default()))?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidUsage` if `state` is not what the last sync that succeeded has committed, or another loan stands that is
    /// not that of [`Communicator::lend_snapshot`]; `NotConnected`, `Kicked`, `MasterLost`. `work` did not run then.
    pub fn lend_state<R>(&self, state: &SharedState<'_>, work: impl FnOnce() -> R) -> Result<R, Error> {
        let standing = self.begin_loan(state)?;
        // Dropped after the work, also if that panics.
        let result = work();
        drop(standing);
        Ok(result)
    }

    /// As [`Communicator::lend_state`], for a state whose memory outlives the program's interest in it, as an interface
    /// for another language has it: it is lent until the loan is ended or dropped.
    ///
    /// # Errors
    /// As [`Communicator::lend_state`].
    pub fn lend_detached(&self, state: SharedState<'static>) -> Result<DetachedLoan, Error> {
        let standing = self.begin_loan(&state)?;
        Ok(DetachedLoan { standing, state })
    }

    /// Copies `state` and lends the copy to newcomers, so that the program may change the state at once. The copy takes
    /// as much memory as the state has, until [`Communicator::end_loan`] or [`Communicator::close`]; a later call
    /// copies only the MiBs that have changed since. The loan ends with the next sync that commits something else, and
    /// goes on after one that commits the same again.
    ///
    /// # Errors
    /// As [`Communicator::lend_state`].
    pub fn lend_snapshot(&self, state: &SharedState<'_>) -> Result<(), Error> {
        let shared = self.shared()?;
        let mut kept = self.kept.lock();
        let (digests, sync) = kept.check(&shared, state)?;
        kept.standing = None;
        if shared.config.settings.formed_groups {
            return Ok(());
        }
        let copy = match kept.copy.take() {
            Some(copy) => copy.renew(state, digests),
            None => KeptCopy::of(state, digests),
        };
        kept.standing = Standing::begin(&shared.syncs, sync, copy.offer());
        kept.copy = Some(copy);
        kept.lends = kept.standing.is_some();
        match kept.lends {
            true => Ok(()),
            false => Err(Error::InvalidUsage("another loan stands".into())),
        }
    }

    /// Ends the loan of [`Communicator::lend_snapshot`], if there is one, and frees its memory.
    pub fn end_loan(&self) {
        self.kept.lock().drop_copy();
    }

    /// Lends `state`, unless there are no newcomers to lend it to, or a copy of it is lent already.
    fn begin_loan(&self, state: &SharedState<'_>) -> Result<Option<Standing>, Error> {
        let shared = self.shared()?;
        let kept = self.kept.lock();
        let ((_, levels), sync) = kept.check(&shared, state)?;
        if shared.config.settings.formed_groups || kept.standing.is_some() {
            return Ok(None);
        }
        drop(kept);
        let standing = Standing::begin(&shared.syncs, sync, loan::offer(state, &levels));
        standing.map(Some).ok_or_else(|| Error::InvalidUsage("another loan stands".into()))
    }

    /// A sync is over, and has committed `committed` if it succeeded: the copy is lent again if it is still right.
    pub(super) fn lend_again(&self, shared: &Shared, committed: Option<Committed>) {
        let mut kept = self.kept.lock();
        if let Some(committed) = committed {
            kept.committed = Some(Arc::new(committed));
            kept.torn.clear();
        }
        // The sync has ended it.
        kept.standing = None;
        if !kept.lends {
            return;
        }
        let (Some(copy), Some(committed)) = (&kept.copy, &kept.committed) else { return };
        if let Some((_, sync)) = committed.sync.filter(|(peer, _)| shared.syncs.is_me(*peer))
            && committed.check(copy.entries()).is_ok()
        {
            kept.standing = Standing::begin(&shared.syncs, sync, copy.offer());
        } else {
            kept.lends = false;
        }
    }
}

impl Kept {
    /// The digests of `state`, and the sync of this session that has committed it.
    fn check(&self, shared: &Shared, state: &SharedState<'_>) -> Result<(Digests, SyncId), Error> {
        let refuse =
            |text: &str| Error::InvalidUsage(format!("only what a sync has committed is lent: {text}"));
        let own_sync = |committed: &Committed| committed.sync.filter(|(peer, _)| shared.syncs.is_me(*peer));
        let committed = self.committed.as_ref().and_then(|it| Some((it, own_sync(it)?.1)));
        let (committed, sync) = committed.ok_or_else(|| refuse("there was no sync yet"))?;
        let digests = state.entries_since(&shared.syncs.tree(), committed)?;
        committed.check(&digests.0).map_err(|text| refuse(&text))?;
        Ok((digests, sync))
    }
}
