//! Loans: what a sync has committed is given to newcomers also outside of syncs, for as long as it stays as it is.
//!
//! Either the caller's own tensors are lent, behind a gate that is drained before the caller gets them back, or a copy
//! that the library keeps.

use crate::memory::LentContent;

use super::{
    Digests, SharedState, StateSnapshot, StateTensor,
    compare::Levels,
    server::Offer,
    syncs::{LOANS, Syncs},
};
use parking_lot::RwLock;
use pccl_protocol::{C2m, Loan, StateEntry, SyncId};
use std::{
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
    time::Instant,
};
use tinysockets::link::Gate;

/// The content of a tensor that is on offer.
#[derive(Debug)]
pub(crate) enum Lease {
    /// The caller's memory.
    Caller(LentContent),
    /// A tensor of a copy, by its number. The gate is that of its offer.
    Copy { copy: Arc<RwLock<StateSnapshot>>, tensor: usize, gate: Arc<Gate> },
}

impl Lease {
    /// Runs `read` on the bytes of `range`, which must not block. `None` if the offer has ended.
    pub(super) fn view<R>(&self, range: Range<usize>, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Self::Caller(memory) => memory.view(range, read),
            Self::Copy { copy, tensor, gate } => {
                let _pass = gate.enter()?;
                Some(read(copy.read().content(*tensor)?.get(range)?))
            }
        }
    }
}

/// Offers the caller's tensors, whose digests are `levels`. The caller ends the offer before `state` is written.
pub(crate) fn offer(state: &SharedState<'_>, levels: &[Arc<Levels>]) -> Arc<Offer> {
    let gate = Arc::new(Gate::new());
    let lease = |(tensor, levels): (&StateTensor, &Arc<Levels>)| {
        (tensor.key.clone(), (Lease::Caller(tensor.memory.lend(&gate)), levels.clone()))
    };
    let tensors = state.tensors.iter().zip(levels).map(lease).collect();
    Arc::new(Offer { gate, tensors, sent_bytes: AtomicU64::new(0) })
}

/// A loan that stands until this is dropped, or a sync or the session ends it.
#[derive(Debug)]
pub(crate) struct Standing {
    shared: Arc<Syncs>,
    sync: SyncId,
    offer: Arc<Offer>,
    /// The master knows of it.
    is_told: bool,
}

impl Standing {
    /// Lends what `sync` has committed. `None` if another loan stands.
    pub(crate) fn begin(shared: &Arc<Syncs>, sync: SyncId, offer: Arc<Offer>) -> Option<Self> {
        if !shared.server.lend(sync, &offer) {
            offer.end();
            return None;
        }
        // A program with short steps lends so often that nobody could fetch anything meanwhile.
        let is_told = shared.loans.lock().take(&LOANS, Instant::now(), 1.0);
        if is_told {
            // Afterwards: requests may follow at once.
            shared.send(&C2m::Loan(Loan { sync, stands: true }));
        }
        Some(Self { shared: shared.clone(), sync, offer, is_told })
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // A sync that has ended it has told the master by its vote.
        if self.shared.server.end_loan(&self.offer) && self.is_told && !self.shared.is_over() {
            self.shared.send(&C2m::Loan(Loan { sync: self.sync, stands: false }));
        }
    }
}

/// A copy of the state that the library keeps, to lend it.
#[derive(Debug)]
pub(crate) struct KeptCopy {
    copy: Arc<RwLock<StateSnapshot>>,
    entries: Vec<StateEntry>,
    levels: Vec<Arc<Levels>>,
}

impl KeptCopy {
    /// Copies `state`, whose digests are given.
    pub(crate) fn of(state: &SharedState<'_>, (entries, levels): Digests) -> Self {
        Self { copy: Arc::new(RwLock::new(state.snapshot())), entries, levels }
    }

    /// Makes the copy one of `state`: only what differs is copied. Only while no loan of it stands.
    pub(crate) fn renew(self, state: &SharedState<'_>, (entries, levels): Digests) -> Self {
        let is_alike = |(old, new): (&StateEntry, &StateEntry)| {
            (&old.key, old.count, old.data_type) == (&new.key, new.count, new.data_type)
        };
        if self.entries.len() != entries.len() || !self.entries.iter().zip(&entries).all(is_alike) {
            // The old one goes first: two of them may be too much.
            drop(self);
            return Self::of(state, (entries, levels));
        }
        let pairs = self.levels.iter().zip(&levels);
        let changed: Vec<_> = pairs.map(|(old, new)| (new.as_ref(), old.differing(new))).collect();
        self.copy.write().follow(state, &changed);
        Self { copy: self.copy, entries, levels }
    }

    /// The entries of the tensors that are copied.
    pub(crate) fn entries(&self) -> &[StateEntry] {
        &self.entries
    }

    /// Offers the copy.
    pub(crate) fn offer(&self) -> Arc<Offer> {
        let gate = Arc::new(Gate::new());
        let lease = |(tensor, (entry, levels)): (usize, (&StateEntry, &Arc<Levels>))| {
            let lease = Lease::Copy { copy: self.copy.clone(), tensor, gate: gate.clone() };
            (entry.key.clone(), (lease, levels.clone()))
        };
        let tensors = self.entries.iter().zip(&self.levels).enumerate().map(lease).collect();
        Arc::new(Offer { gate, tensors, sent_bytes: AtomicU64::new(0) })
    }
}
