//! The state that the last sync of this peer has committed, or that it has fetched ahead since, by its digests: a few
//! bytes for each MiB of the state.

use super::{SharedState, StateTensor, compare::Levels};
use crate::Error;
use pccl_hash::Tree;
use pccl_protocol::{Key, PeerId, StateEntry, SyncId};
use pccl_quant::DataType;
use std::{collections::BTreeMap, sync::Arc};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Committed {
    /// The identity that this peer had, and the sync. The numbers of syncs begin anew with each run. `None` if this
    /// peer was in none, but has fetched what the others have committed.
    pub(crate) sync: Option<(PeerId, SyncId)>,
    pub(crate) revision: u64,
    tensors: BTreeMap<Key, Tensor>,
}

#[derive(Debug)]
struct Tensor {
    data_type: DataType,
    count: u64,
    levels: Arc<Levels>,
}

impl Committed {
    /// The content of `state` at `revision`, whose digests by `tree` it knows.
    ///
    /// # Errors
    /// Those of a device, if it does not know them after all.
    pub(crate) fn of(
        state: &SharedState<'_>,
        tree: &Tree,
        revision: u64,
        sync: Option<(PeerId, SyncId)>,
    ) -> Result<Self, Error> {
        let (_, levels) = state.entries(tree)?;
        let of_tensor = |(tensor, levels): (&StateTensor, Arc<Levels>)| {
            (tensor.key.clone(), Tensor { data_type: tensor.data_type, count: tensor.count, levels })
        };
        let tensors = state.tensors.iter().zip(levels).map(of_tensor).collect();
        Ok(Self { sync, revision, tensors })
    }

    /// The digests of a tensor, if it had the same type and length.
    pub(super) fn levels_of(&self, tensor: &StateTensor) -> Option<Arc<Levels>> {
        let known = self.tensors.get(&tensor.key)?;
        let fits = known.data_type == tensor.data_type && known.count == tensor.count;
        fits.then(|| known.levels.clone())
    }

    /// Whether these tensors are what was committed; if not, the first that differs.
    pub(crate) fn check(&self, entries: &[StateEntry]) -> Result<(), String> {
        for entry in entries {
            let known = self.tensors.get(&entry.key);
            if known.is_none_or(|known| known.data_type != entry.data_type || known.count != entry.count) {
                return Err(format!("tensor {} was not in it as it is", entry.key));
            }
            if known.is_some_and(|known| known.levels.root() != entry.digest) {
                return Err(format!("tensor {} has changed since", entry.key));
            }
        }
        let is_there = |key: &Key| entries.iter().any(|entry| entry.key == *key);
        match self.tensors.keys().find(|key| !is_there(key)) {
            Some(key) => Err(format!("tensor {key} is missing")),
            None => Ok(()),
        }
    }
}
