//! Shared state: tensors that all peers of a group hold bit-identically, and the sync that proves it.

pub(crate) mod compare;
pub(crate) mod diff;
mod fetch;
mod files;
mod journal;
mod lane;
mod progress;
mod schedule;
pub(crate) mod server;
pub(crate) mod source;
pub(crate) mod sync;
pub(crate) mod syncs;
mod team;

use crate::{
    Error,
    memory::{RawState, StateMemory},
};
use compare::Levels;
use pccl_hash::Digest128;
use pccl_protocol::{Key, ResumeOffer, Revision, StateEntry, limits};
use pccl_quant::{DataType, Element};
use std::{marker::PhantomData, sync::Arc, time::Duration};

pub use files::{SaveInfo, SaveOptions, Saving, StateFile, StateFileError, StateSnapshot};
pub use pccl_protocol::SyncStrategy;
pub use progress::SyncProgress;

/// What the time-outs of a transfer are parts of: the peer time-out, as long as that is not so short that a busy
/// machine would pass for a dead one.
fn time_base(peer_timeout: Duration) -> Duration {
    peer_timeout.max(Duration::from_secs(2))
}

/// What a successful sync reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncInfo {
    /// Revision that is now committed.
    pub revision: u64,
    /// Bytes served to other peers.
    pub tx_bytes: u64,
    /// Bytes fetched from other peers; 0 proves that this peer held the elected content before.
    pub rx_bytes: u64,
}

/// Named tensors and their revision. The tensors are borrowed for as long as this value lives.
#[derive(Debug)]
pub struct SharedState<'a> {
    pub(crate) revision: u64,
    pub(crate) tensors: Vec<StateTensor>,
    /// The revision and the digest of the file that the tensors were read from.
    loaded: Option<(u64, Digest128)>,
    lent: PhantomData<&'a mut [u8]>,
}

#[derive(Debug)]
pub(crate) struct StateTensor {
    pub(crate) key: Key,
    pub(crate) data_type: DataType,
    pub(crate) count: u64,
    pub(crate) allow_inequality: bool,
    pub(crate) memory: RawState,
}

impl<'a> SharedState<'a> {
    /// An empty state at `revision`. A peer that has nothing yet starts at 0; a peer that has changed its state since
    /// the last sync gives the revision after the last committed one.
    pub fn new(revision: u64) -> Self {
        Self { revision, tensors: Vec::new(), loaded: None, lent: PhantomData }
    }

    /// The revision. After a successful sync it is the committed one.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// `InvalidArgument` for a key that is empty, too long or used twice, and for too many tensors.
    pub fn tensor<T: Element>(&mut self, key: &str, data: &'a mut [T]) -> Result<&mut Self, Error> {
        self.memory(key, StateMemory::new(data), false)
    }

    /// Adds a tensor whose content may differ between peers. It is moved only to peers whose revision is outdated.
    ///
    /// # Errors
    /// As [`SharedState::tensor`].
    pub fn tensor_allowing_inequality<T: Element>(
        &mut self,
        key: &str,
        data: &'a mut [T],
    ) -> Result<&mut Self, Error> {
        self.memory(key, StateMemory::new(data), true)
    }

    /// Adds a tensor whose type is known at run time only; `allow_inequality` as in
    /// [`SharedState::tensor_allowing_inequality`].
    ///
    /// # Errors
    /// As [`SharedState::tensor`].
    pub fn memory(
        &mut self,
        key: &str,
        memory: StateMemory<'a>,
        allow_inequality: bool,
    ) -> Result<&mut Self, Error> {
        if key.is_empty() || key.len() > limits::MAX_KEY_BYTES {
            return Err(Error::InvalidArgument(format!("key {key:?}: 1 to {} bytes", limits::MAX_KEY_BYTES)));
        }
        if self.tensors.len() >= limits::MAX_STATE_ENTRIES {
            return Err(Error::InvalidArgument(format!("more than {} tensors", limits::MAX_STATE_ENTRIES)));
        }
        let key = Key::new(key);
        // Sorted by key, so that all peers list their tensors alike, in whatever order they were added.
        let Err(position) = self.tensors.binary_search_by(|tensor| tensor.key.cmp(&key)) else {
            return Err(Error::InvalidArgument(format!("key {key} is used twice")));
        };
        let StateMemory { raw: memory, data_type, count, .. } = memory;
        self.tensors
            .insert(position, StateTensor { key, data_type, count: count as u64, allow_inequality, memory });
        Ok(self)
    }

    /// The tensors with their state hashes, as they are voted on, and all digests below those.
    pub(crate) fn entries(&self) -> (Vec<StateEntry>, Vec<Arc<Levels>>) {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let entry = |tensor: &StateTensor| {
            log::trace!("hashing {}", tensor.key);
            let levels = Levels::of(tensor.memory.view(), threads);
            let entry = StateEntry {
                key: tensor.key.clone(),
                count: tensor.count,
                data_type: tensor.data_type,
                allow_inequality: tensor.allow_inequality,
                digest: levels.root(),
            };
            (entry, Arc::new(levels))
        };
        self.tensors.iter().map(entry).unzip()
    }

    /// One hash over keys, types and contents, for logs and comparisons between peers.
    pub fn hash(&self) -> String {
        pccl_protocol::state_digest(&self.entries().0).to_string()
    }

    /// What this state can be offered as: what was read from a file, or else what it is now.
    pub(crate) fn offer(&self) -> ResumeOffer {
        let loaded = self.loaded.filter(|(revision, _)| *revision == self.revision);
        let digest = loaded.map(|(_, digest)| digest);
        let digest = digest.unwrap_or_else(|| pccl_protocol::state_digest(&self.entries().0));
        ResumeOffer { revision: self.wire_revision(), digest: Some(digest.to_u128()) }
    }

    /// A sync has succeeded: what is held now need not be what was read.
    pub(crate) fn forget_file(&mut self) {
        self.loaded = None;
    }

    /// The revision as the wire has it.
    pub(crate) fn wire_revision(&self) -> Revision {
        Revision(self.revision)
    }
}
