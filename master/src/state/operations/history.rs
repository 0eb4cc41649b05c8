//! The outcomes of attempts in the present epoch of a group, and in those before it over which they are counted on, by
//! tag; and the end of an epoch that has had many.

use crate::state::groups::all_groups::Groups;
use crate::state::membership::members::Roll;
use crate::state::outbox::Outbox;
use pccl_protocol::{Outcome, Tag};
use std::collections::BTreeMap;

/// The attempts that a tag has had since they are counted.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct TagHistory {
    /// Outcomes so far.
    outcomes: u32,
    /// The last of them: all that some member may not know. Members learn the outcome of an attempt that ended before
    /// they voted for it when they vote.
    kept: Vec<Outcome>,
}

impl TagHistory {
    /// The outcome of an attempt, if it is kept.
    pub(crate) fn outcome(&self, attempt: u32) -> Option<&Outcome> {
        let first = self.outcomes - u32::try_from(self.kept.len()).unwrap_or(self.outcomes);
        self.kept.get(attempt.checked_sub(first)? as usize)
    }
}

/// All tags.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct History {
    tags: BTreeMap<Tag, TagHistory>,
    /// Outcomes that are kept, over all tags.
    kept: usize,
    /// All members have been in a sync since, so what is kept is of calls that nobody makes any more.
    is_past: bool,
}

impl History {
    /// The history of a tag, if it has had an outcome.
    pub(crate) fn tag(&self, tag: Tag) -> Option<&TagHistory> {
        self.tags.get(&tag)
    }

    /// Outcomes of `tag`.
    pub(crate) fn attempts(&self, tag: Tag) -> u32 {
        self.tags.get(&tag).map_or(0, |history| history.outcomes)
    }

    /// Records an outcome. `all`: every member is told of it, so it need not be kept, nor those before it.
    pub(crate) fn remember(&mut self, tag: Tag, outcome: Outcome, all: bool) {
        let history = self.tags.entry(tag).or_default();
        if all {
            self.kept -= history.kept.len();
            history.kept = Vec::new();
        } else {
            history.kept.push(outcome);
            self.kept += 1;
        }
        history.outcomes = history.outcomes.saturating_add(1);
    }

    /// All members are in a sync, and have no operation in flight.
    pub(crate) fn note_sync(&mut self) {
        self.is_past = self.kept > 0;
    }

    /// Tags and kept outcomes: what it takes memory for.
    pub(crate) fn len(&self) -> usize {
        self.tags.len() + self.kept
    }
}

impl Groups {
    /// Rule: an epoch with too many outcomes ends at a quiet moment; twice the number does not wait for one. So does an
    /// epoch after a sync in which a member has not learned all outcomes: a call that it makes now is a new one. The
    /// next epoch has the same ring and mesh over the same connections, so that attempts that run go on, and those that
    /// wait for votes are voted for again.
    pub(crate) fn roll_history(&mut self, roll: &mut Roll, out: &mut Outbox) -> bool {
        let limit = roll.options.max_tag_history;
        let is_long = |history: &History, is_quiet: bool| {
            let len = history.len();
            history.is_past || len > limit && (is_quiet || len > limit.saturating_mul(2))
        };
        // A ring that is about to be replaced takes its history along.
        let due = self.which(|group| {
            is_long(&group.work.history, group.work.ops.is_empty())
                && !group.next.is_due
                && group.ring_ready(roll)
        });
        out.changed |= !due.is_empty();
        for id in &due {
            if let Some(group) = self.get_mut(id) {
                group.begin_epoch();
                group.count_anew();
                group.log_ring(*id, out);
                group.push_ring(*id, roll, out);
            }
        }
        !due.is_empty()
    }
}
