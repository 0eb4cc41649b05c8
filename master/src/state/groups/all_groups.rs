//! All groups that have members in a ring.

use super::group::Group;
use crate::state::membership::members::Roll;
use pccl_protocol::{GroupId, PeerId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

/// Groups by their number. Reads as a map.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Groups(BTreeMap<GroupId, Group>);

impl Deref for Groups {
    type Target = BTreeMap<GroupId, Group>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Groups {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Groups {
    /// Groups of which this is true.
    pub(crate) fn which(&self, is_it: impl Fn(&Group) -> bool) -> Vec<GroupId> {
        self.iter().filter(|(_, group)| is_it(group)).map(|(id, _)| *id).collect()
    }

    /// Members of the ring of a group.
    pub(crate) fn members(&self, group: GroupId) -> BTreeSet<PeerId> {
        self.get(&group).map(Group::members).unwrap_or_default()
    }

    /// Sentences that say what the rings wait for that do not stand.
    pub(crate) fn ring_sentences(&self, roll: &Roll) -> Vec<String> {
        self.iter().filter_map(|(id, group)| group.ring_sentence(roll, *id)).collect()
    }
}
