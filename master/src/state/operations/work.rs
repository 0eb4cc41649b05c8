//! The collectives of one group: those without outcome, and what is kept of those that have one.

use super::history::History;
use super::pending::Ops;
use super::verdicts::NEW_PLAN;
use crate::state::groups::edges::Edges;
use crate::state::groups::group::{Completion, Op};
use crate::state::groups::losses::{BrokenEdge, Loss};
use crate::state::types::Timestamp;
use pccl_protocol::{Algorithm, Complete, GroupEpoch, OpId, Outcome, Pair, PeerId, Text};

/// See the module's documentation.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Work {
    pub(crate) ops: Ops,
    /// The first of the epochs up to the present one over which attempts are counted on.
    pub(crate) counted_since: GroupEpoch,
    /// Outcomes since then, by tag.
    pub(crate) history: History,
    /// An attempt that some had begun early has ended without an outcome: its identity must not be used again.
    pub(crate) has_spent: bool,
}

impl Work {
    /// From this epoch on attempts are counted anew.
    pub(crate) fn count_from(&mut self, epoch: GroupEpoch) {
        self.counted_since = epoch;
        self.history = History::default();
    }

    /// Records an outcome, if its epoch is one that counts. `all`: every member is told of it.
    pub(crate) fn remember(&mut self, op: OpId, outcome: Outcome, all: bool) {
        if op.epoch >= self.counted_since {
            self.history.remember(op.tag, outcome, all);
        }
    }

    /// A participant has ended its part of an operation.
    pub(crate) fn record_complete(&mut self, id: PeerId, complete: Complete, now: Timestamp) {
        let part = match self.ops.change(complete.op) {
            Some(Op::Running { participants, open, faulty, .. }) => {
                open.remove(&id);
                *faulty |= complete.fault.is_some();
                participants.get_mut(&id)
            }
            // Not admitted from others than those who have begun early.
            Some(Op::Voting { begun, .. }) => begun.get_mut(&id),
            None => None,
        };
        if let Some(part) = part {
            part.reported_bytes = Some(complete.moved_bytes);
            part.complete = Some(Completion { fault: complete.fault, at: now });
        }
    }

    /// Takes a lost peer out of every operation.
    pub(crate) fn lose(&mut self, id: PeerId, moved_bytes: u64, loss: &Loss) {
        self.ops.lose(id, |op| match op {
            Op::Voting { votes, missing, begun, given_up, .. } => {
                given_up.take_if(|given_up| given_up.by == id);
                begun.remove(&id);
                // It stays a member until there is another ring.
                missing.extend(votes.remove(&id).map(|_| id));
            }
            Op::Running { participants, open, lost, lost_bytes, most_bytes, .. } => {
                let Some(part) = participants.remove(&id) else { return };
                open.remove(&id);
                let beaten = moved_bytes.saturating_sub(part.base_bytes).min(*most_bytes);
                let moved = part.reported_bytes.unwrap_or(beaten);
                *lost_bytes = lost_bytes.saturating_add(moved);
                lost.push(loss.clone());
            }
        });
    }

    /// An edge was judged broken: attempts of `users`, and one between its two ends, learn of it.
    pub(crate) fn note_broken(&mut self, edge: &BrokenEdge, users: impl Fn(OpId, Algorithm) -> bool) {
        self.ops.change_some(|id, op| {
            let Op::Running { algorithm, broken, edge: own, .. } = op else { return false };
            let pair = id.tag.pair.map(|Pair { from, to }| (from, to));
            let is_own = pair == Some(edge.ends) && *own == Some(edge.generation);
            let is_user = is_own || users(id, *algorithm);
            if is_user {
                broken.push(edge.clone());
            }
            is_user
        });
    }

    /// After a new plan: what runs between two members ends if its edge is planned no more, for nobody else would end
    /// it.
    pub(crate) fn end_what_has_no_edge(&mut self, edges: &Edges) {
        self.ops.change_some(|id, op| {
            let (Op::Running { broken, edge: Some(generation), .. }, Some(pair)) = (op, id.tag.pair) else {
                return false;
            };
            let (ends, generation) = ((pair.from, pair.to), *generation);
            let is_gone = edges.named(ends, generation).is_none();
            if is_gone {
                let text = Text::new(NEW_PLAN);
                broken.push(BrokenEdge { ends, generation, stalled_ms: 0, is_final: true, text });
            }
            is_gone
        });
    }
}
