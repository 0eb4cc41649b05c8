//! Shared state: tensors that all peers of a group hold bit-identically, and the sync that proves it.

pub(crate) mod ahead;
pub(crate) mod committed;
pub(crate) mod compare;
pub(crate) mod diff;
mod fetch;
mod files;
pub(crate) mod hashing;
mod journal;
mod lane;
pub(crate) mod loan;
mod pacer;
pub(crate) mod progress;
pub(crate) mod salvage;
mod schedule;
pub(crate) mod server;
pub(crate) mod source;
mod spill;
pub(crate) mod sync;
pub(crate) mod syncs;
mod team;
pub(crate) mod upload;

use crate::{
    Error,
    memory::{RawState, StateMemory},
};
use committed::Committed;
use compare::Levels;
use hashing::hashed;
use pccl_hash::{Digest128, Tree};
use pccl_protocol::{Key, ResumeOffer, Revision, StateEntry, limits};
use pccl_quant::{DataType, Element};
use std::{marker::PhantomData, sync::Arc, time::Duration};

pub use files::{SaveInfo, SaveOptions, Saving, StateFile, StateFileError, StateSnapshot};
pub use pccl_protocol::SyncStrategy;
pub use progress::SyncProgress;

/// The time of which the time-outs of a transfer are parts: the peer time-out, as long as that is not so short that a
/// busy machine would pass for a dead one.
fn time_base(peer_timeout: Duration) -> Duration {
    peer_timeout.max(Duration::from_secs(2))
}

/// The report of a successful sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncInfo {
    /// Revision that is now committed.
    pub revision: u64,
    /// Bytes served to other peers.
    pub tx_bytes: u64,
    /// Bytes fetched from other peers; 0 proves that this peer held the elected content before.
    pub rx_bytes: u64,
    /// This peer came with the state that its group held: it had fetched it before it was let in, see
    /// [`Communicator::connect_with_state`](crate::Communicator::connect_with_state). The others have computed in the
    /// meantime and wait for nobody, so it had better not compute first. True in its first sync only.
    pub came_ahead: bool,
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
    /// Digests of the content, if they are known: nobody but the library can have changed it since.
    levels: Option<Arc<Levels>>,
    /// The program's word that the content is that of this committed revision.
    unchanged_since: Option<u64>,
}

/// The tensors of a state as they are voted on, and all digests below.
pub(crate) type Digests = (Vec<StateEntry>, Vec<Arc<Levels>>);

impl StateTensor {
    /// The digests of the content by this tree, as far as they are known.
    fn known(&self, tree: &Tree) -> Option<Arc<Levels>> {
        self.levels.clone().filter(|levels| levels.tree() == tree)
    }

    /// The digests of the content by the program's word that it is as it was committed; `None` if there is no such
    /// word, or it says nothing. Builds with debug assertions look whether it is true.
    fn told(&self, tree: &Tree, committed: &Committed) -> Result<Option<Arc<Levels>>, Error> {
        let since =
            self.unchanged_since.filter(|since| self.known(tree).is_none() && committed.revision >= *since);
        let levels = committed.levels_of(self).filter(|levels| levels.tree() == tree);
        let Some((since, levels)) = since.zip(levels) else { return Ok(None) };
        if cfg!(debug_assertions) && hashed(tree, &[self])?.iter().any(|now| now.root() != levels.root()) {
            let key = &self.key;
            return Err(Error::InvalidUsage(format!(
                "tensor {key} was said to be unchanged since revision {since}, and has changed"
            )));
        }
        Ok(Some(levels))
    }
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
        if !Key::is_valid(key) {
            let text = format!("key {key:?}: 1 to {} bytes, no control characters", limits::MAX_KEY_BYTES);
            return Err(Error::InvalidArgument(text));
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
        let (count, levels, unchanged_since) = (count as u64, None, None);
        self.tensors.insert(
            position,
            StateTensor { key, data_type, count, allow_inequality, memory, levels, unchanged_since },
        );
        Ok(self)
    }

    /// The content of a tensor; `None` if there is no tensor with this key, or its elements are of another type, or do
    /// not lie where such elements lie, or lie on a device.
    pub fn view<T: Element>(&self, key: &str) -> Option<&[T]> {
        let tensor = self.tensors.iter().find(|tensor| tensor.key.as_str() == key);
        tensor.filter(|tensor| tensor.data_type == T::DATA_TYPE)?.memory.elements()
    }

    /// The program's word that a tensor is as it was when a sync of this communicator committed `revision`, or when it
    /// had [fetched that ahead](crate::Communicator::fetched_revision). If the last sync that succeeded committed that
    /// revision or a later one, and had the same tensor, neither the next sync nor a loan hashes it; otherwise they
    /// hash it as ever. Builds with debug assertions hash it all the same, and refuse to sync or lend what has changed.
    /// In other builds a wrong word makes this peer vote for a content that it does not have: the states of the peers
    /// differ from then on, and a peer that fetches from this one takes it for a source that lies.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no tensor with this key.
    pub fn unchanged_since(&mut self, key: &str, revision: u64) -> Result<&mut Self, Error> {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.key.as_str() == key);
        let tensor = tensor.ok_or_else(|| {
            Error::InvalidArgument(format!("a word about tensor {key:?}, which the state does not have"))
        })?;
        tensor.unchanged_since = Some(revision);
        Ok(self)
    }

    /// The tensors with their state hashes, as they are voted on, and all digests below those.
    ///
    /// # Errors
    /// `System` with what the driver of a device refuses.
    pub(crate) fn entries(&self, tree: &Tree) -> Result<Digests, Error> {
        self.entries_with(tree, vec![None; self.tensors.len()])
    }

    /// One digest over keys, types and contents without a key: what lasts longer than a run is known by.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn plain_digest(&self) -> Result<Digest128, Error> {
        Ok(pccl_protocol::state_digest(&self.entries(&Tree::Plain)?.0))
    }

    /// Whether the tensor `entry` has the content that is known by these digests.
    pub(crate) fn is_still(&self, entry: &StateEntry, known: &Levels) -> bool {
        let tensor = self.tensors.iter().find(|tensor| tensor.key == entry.key);
        let Some(tensor) = tensor else { return false };
        let root = match tensor.known(known.tree()) {
            Some(levels) => Some(levels.root()),
            None => hashed(known.tree(), &[tensor]).ok().and_then(|it| Some(it.first()?.root())),
        };
        root == Some(known.root())
    }

    /// The same, with the program's word for what is unchanged since a sync has committed it.
    ///
    /// # Errors
    /// `InvalidUsage` names a tensor that has changed, in builds with debug assertions. `System` as there.
    pub(crate) fn entries_since(&self, tree: &Tree, committed: &Committed) -> Result<Digests, Error> {
        let told = self.tensors.iter().map(|tensor| tensor.told(tree, committed));
        self.entries_with(tree, told.collect::<Result<Vec<_>, Error>>()?)
    }

    /// The same, with the digests of each tensor that need not be computed.
    fn entries_with(&self, tree: &Tree, told: Vec<Option<Arc<Levels>>>) -> Result<Digests, Error> {
        let known: Vec<_> =
            self.tensors.iter().zip(told).map(|(tensor, told)| tensor.known(tree).or(told)).collect();
        let unknown = self.tensors.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<&StateTensor> = unknown.map(|(tensor, _)| tensor).collect();
        let mut hashed = hashed(tree, &unknown)?.into_iter();
        let entry = |(tensor, known): (&StateTensor, Option<Arc<Levels>>)| {
            let levels = known.or_else(|| hashed.next().map(Arc::new))?;
            let entry = StateEntry {
                key: tensor.key.clone(),
                count: tensor.count,
                data_type: tensor.data_type,
                allow_inequality: tensor.allow_inequality,
                digest: levels.root(),
            };
            Some((entry, levels))
        };
        Ok(self.tensors.iter().zip(known).filter_map(entry).unzip())
    }

    /// The content of the tensors has these digests.
    pub(crate) fn know(&mut self, levels: &[Arc<Levels>]) {
        for (tensor, levels) in self.tensors.iter_mut().zip(levels) {
            tensor.levels = Some(levels.clone());
        }
    }

    /// The content of the tensors is going to change.
    pub(crate) fn forget(&mut self) {
        self.tensors.iter_mut().for_each(|tensor| tensor.levels = None);
    }

    /// One hash over keys, types and contents, for logs and comparisons between peers. It is the same in all runs,
    /// with a run key and without, and anybody can make it: it proves nothing about data of somebody who cheats. Where
    /// a device does not give the content of its tensors any more, it is the driver's error, in words.
    pub fn hash(&self) -> String {
        self.plain_digest().map_or_else(|error| error.to_string(), |digest| digest.to_string())
    }

    /// The offer of this state: the content that was read from a file, or else the present one.
    pub(crate) fn offer(&self) -> Result<ResumeOffer, Error> {
        let loaded = self.loaded.filter(|(revision, _)| *revision == self.revision);
        let digest = loaded.map(|(_, digest)| digest);
        let digest = digest.map_or_else(|| self.plain_digest(), Ok)?;
        Ok(ResumeOffer { revision: self.wire_revision(), digest: Some(digest.to_u128()) })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The digests of one run tell the content that a tensor held in it, also when it votes in another run.
    #[test]
    fn a_part_of_a_state_is_known_across_runs() {
        let trees = [Tree::Plain, Tree::keyed([1; 32]), Tree::keyed([2; 32])];
        let mut tensor = vec![5_u8; 3 << 20];
        for before in &trees {
            let mut state = SharedState::new(0);
            state.tensor("w", &mut tensor).expect("a key");
            let (_, levels) = state.entries(before).expect("hashed");
            state.know(&levels);
            for now in &trees {
                let (entries, _) = state.entries(now).expect("hashed");
                assert!(state.is_still(&entries[0], &levels[0]));
                assert_eq!(entries[0].digest == levels[0].root(), before == now);
            }
            drop(state);
            tensor[7] ^= 1;
            let mut state = SharedState::new(0);
            state.tensor("w", &mut tensor).expect("a key");
            for now in &trees {
                let (entries, _) = state.entries(now).expect("hashed");
                assert!(!state.is_still(&entries[0], &levels[0]));
            }
        }
    }
}
