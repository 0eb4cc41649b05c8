//! Knowledge about each process.

use super::TOUCH_SLACK_US;
use std::ops::RangeInclusive;

/// From the death of a master to the first word of the next one at least.
const MASTER_DOWN_MIN_US: u64 = 20_000;
/// A process of a peer.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) group: u32,
    pub(super) identity: Option<u128>,
    /// Under which master it joined, counted from 0.
    pub(super) reign: u64,
    /// Since when it might be let in; while it is no member.
    pub(super) out_since_us: u64,
    pub(super) joined_us: u64,
    /// A member, by its own report.
    pub(super) joined: bool,
    /// Revision of the last sync since it joined.
    pub(super) revision: Option<u64>,
    /// It joined with a whole state, and has not synced yet.
    pub(super) is_ahead: bool,
    pub(super) stopped: bool,
    /// When it was last stopped.
    pub(super) stopped_us: u64,
    /// Was stopped and has not been heard since.
    pub(super) dazed: bool,
    pub(super) touched_us: Option<u64>,
    pub(super) killed: bool,
    pub(super) leaving: bool,
    pub(super) left: bool,
    pub(super) exited: bool,
    pub(super) heard_us: u64,
    /// When it completed its last operation.
    pub(super) completed_us: u64,
    pub(super) hung: bool,
}

impl Record {
    pub(super) fn is_steady(&self) -> bool {
        self.joined && !self.stopped && !self.dazed && !self.killed && !self.leaving && !self.exited
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.killed && !self.exited
    }

    /// When the call that fails now may have been decided: a peer that was stopped in the middle of it hears of it
    /// late.
    pub(super) fn decided_us(&self, at_us: u64) -> RangeInclusive<u64> {
        let in_call = self.stopped_us > self.completed_us;
        if in_call { self.stopped_us.min(at_us)..=at_us } else { at_us..=at_us }
    }

    /// Whether something explains what befell it at a time, in its life since another one: it is stopped, was asked to
    /// leave, or was touched at most `late_us` before.
    pub(super) fn is_touched(&self, since_us: u64, at_us: u64, late_us: u64) -> bool {
        let in_this_life = |touched: &u64| touched + TOUCH_SLACK_US >= since_us;
        let touched = self.touched_us.filter(in_this_life);
        touched
            .is_some_and(|touched| self.stopped || self.leaving || touched.saturating_add(late_us) >= at_us)
    }

    /// There was no master since `down_us`: what was done to it then, or shortly before, shows only now.
    pub(super) fn master_is_back(&mut self, down_us: u64, late_us: u64, now_us: u64) {
        if let Some(touched) = self.touched_us.as_mut().filter(|touched| **touched + late_us >= down_us) {
            *touched = now_us;
        }
    }
}

/// The master that is there now, or was last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Master {
    /// How many there were before it.
    pub(super) reign: u64,
    /// There is none, or it is stopped; since when, or when that was last so.
    pub(super) down: bool,
    pub(super) down_us: u64,
    /// When the one before it was killed, and since when it listens.
    pub(super) killed_us: Option<u64>,
    pub(super) listens_us: u64,
    /// Not everybody has found it yet.
    pub(super) new: bool,
}

impl Master {
    /// Under which master something was that is told only now. For a moment after a death there is none.
    pub(super) fn reign_at(&self, at_us: u64) -> u64 {
        let before = self.killed_us.is_some_and(|killed| at_us < killed + MASTER_DOWN_MIN_US);
        self.reign - u64::from(before)
    }
}
