//! The pieces that a failed sync had fetched and verified: kept for the next attempt, so that they are not moved again.
//!
//! The journal that was rolled back leaves it in the places of what it had set aside. It counts for the next fetch of
//! tensors for which the same content is elected, and is dropped when a sync succeeds, or none of it is wanted.

use super::journal::{Entry, Leftover};
use pccl_hash::Digest128;
use pccl_protocol::{Key, SyncPlan};
use std::collections::BTreeMap;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Salvage {
    /// The tensors, by their numbers, and what was elected for each.
    tensors: Vec<(Key, Digest128)>,
    leftover: Leftover,
}

impl Salvage {
    /// The pieces that the fetch of this plan has left. `None` if there are none.
    pub(super) fn of(plan: &SyncPlan, leftover: Leftover) -> Option<Self> {
        let tensors = plan.fetch.iter().map(|item| (item.key.clone(), item.digest)).collect();
        (!leftover.pages.entries.is_empty()).then_some(Self { tensors, leftover })
    }

    /// The part of it that the fetch of another plan may want, with the numbers that the tensors have there.
    pub(super) fn for_plan(self, plan: &SyncPlan) -> Option<Leftover> {
        let Self { tensors, mut leftover } = self;
        let place_of = |wanted: &(Key, Digest128)| {
            plan.fetch.iter().position(|item| item.key == wanted.0 && item.digest == wanted.1)
        };
        let numbers = tensors.iter().enumerate().filter_map(|(old, wanted)| Some((old, place_of(wanted)?)));
        let numbers: BTreeMap<usize, usize> = numbers.collect();
        let renumbered =
            |entry: Entry| numbers.get(&entry.tensor).map(|tensor| Entry { tensor: *tensor, ..entry });
        leftover.pages.entries = leftover.pages.entries.into_iter().filter_map(renumbered).collect();
        (!leftover.pages.entries.is_empty()).then_some(leftover)
    }
}
