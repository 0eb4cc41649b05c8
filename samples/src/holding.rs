//! The samples that a member holds, and how far it has trained on them.

use crate::Ledger;
use std::ops::Range;

/// The samples that a member holds. It takes samples in its own order, trains on them in that order, and its ledger
/// counts them in that order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holding {
    owner: u128,
    held: Vec<Range<u64>>,
    /// How many of them were taken, from the first one on.
    taken: u64,
    /// How many of those are trained on.
    trained: u64,
    /// Samples that were taken, and are no longer held: what is made of them must not count.
    stale: u64,
}

impl Holding {
    /// Takes up to `most` samples: their positions. There are none as long as samples are outstanding that are no
    /// longer held, so no step mixes both.
    pub fn take(&mut self, most: u64) -> Vec<u64> {
        if self.stale > 0 {
            return Vec::new();
        }
        let positions = self.held.iter().flat_map(Range::clone);
        let taken = positions.skip(self.taken as usize).take(most as usize).collect::<Vec<_>>();
        self.taken += taken.len() as u64;
        taken
    }

    /// Samples that were taken and not trained on yet.
    pub fn outstanding(&self) -> u64 {
        self.stale + self.taken - self.trained
    }

    /// How many of those that it holds are trained on: the number to use up when the own contribution counts.
    pub fn trained(&self) -> u64 {
        self.trained
    }

    /// A step has trained on `count` samples, those that were taken first. Returns whether samples were among them that
    /// are no longer held: the member has to forget what this step has changed.
    ///
    /// # Errors
    /// The number of samples that were taken, if it is less.
    pub fn train(&mut self, count: u64) -> Result<bool, u64> {
        let outstanding = self.outstanding();
        if count > outstanding {
            return Err(outstanding);
        }
        let stale = self.stale.min(count);
        self.stale -= stale;
        self.trained += count - stale;
        Ok(stale > 0)
    }

    /// Changes since the last step are lost: their samples are taken again.
    pub fn forget(&mut self) {
        self.stale = self.outstanding();
        (self.taken, self.trained) = (0, 0);
    }

    /// Looks at the ledger after a step. `owner`: the number of this member. Returns whether samples that it has
    /// trained on are no longer its own, without being counted: it has to forget all that is not part of a step.
    pub fn refresh(&mut self, owner: u128, ledger: &Ledger) -> bool {
        let held = ledger.held_by(owner);
        match owner == self.owner && owner != 0 {
            true => self.follow(held, ledger),
            false => self.lose(owner, held),
        }
    }

    /// The ledger counts from the first sample on, and appends.
    fn follow(&mut self, held: Vec<Range<u64>>, ledger: &Ledger) -> bool {
        let mut counted = 0;
        for range in &self.held {
            let kept = held.iter().find(|it| it.end == range.end);
            if kept.is_none() && !ledger.is_counted(range.end - 1) {
                return self.lose(self.owner, held);
            }
            counted += kept.map_or(range.end, |it| it.start.max(range.start)) - range.start;
        }
        if counted > self.trained {
            return self.lose(self.owner, held);
        }
        self.trained -= counted;
        self.taken -= counted;
        self.held = held;
        false
    }

    fn lose(&mut self, owner: u128, held: Vec<Range<u64>>) -> bool {
        let had_trained = self.trained > 0;
        let stale = self.outstanding();
        *self = Self { owner, held, taken: 0, trained: 0, stale };
        had_trained
    }
}
