//! A caller gives up what it has voted for: because its limit has passed, or because it wants no result. The outcome
//! is one for all, unless it has been decided before; those who vote for that attempt later learn it.

use super::MasterState;
use super::group::{GivenUp, Group, Op, Sync};
use pccl_protocol::{Cause, GiveUp, GroupId, Operation, PeerId, Phase, Text, Verdict, VoteRef};

/// Peers that a verdict names as those who were waited for; the details count the rest.
const WAITED_MAX: usize = 8;

impl MasterState {
    pub(super) fn record_give_up(&mut self, id: PeerId, group: GroupId, packet: GiveUp) {
        let wish = GivenUp { by: id, limit_ms: packet.limit_ms };
        if let VoteRef::Forming(request) = packet.vote {
            if !self.give_up_forming(wish, request) {
                self.give_up_connecting(group, wish, request);
            }
            return;
        }
        let Some(group) = self.groups.get_mut(&group) else { return };
        let slot = match packet.vote {
            VoteRef::Collective(op) => match group.ops.change(op) {
                Some(Op::Voting { votes, given_up, .. }) if votes.contains_key(&id) => given_up,
                Some(Op::Running { participants, given_up, .. }) if participants.contains_key(&id) => {
                    given_up
                }
                // It has its outcome, or was voted for anew.
                _ => return,
            },
            VoteRef::Forming(_) => return,
            VoteRef::Sync(request) => match &mut group.sync {
                Some(Sync::Voting { votes, given_up, .. })
                    if votes.get(&id).is_some_and(|vote| vote.request == request) =>
                {
                    given_up
                }
                Some(Sync::Running { voters, given_up, .. })
                    if voters.get(&id).is_some_and(|voter| voter.request == request) =>
                {
                    given_up
                }
                _ => return,
            },
        };
        slot.get_or_insert(wish);
    }

    /// Members of a ring that have not voted.
    pub(super) fn members_without(&self, group: &Group, has_voted: impl Fn(PeerId) -> bool) -> Vec<PeerId> {
        group.ring.iter().copied().filter(|peer| !has_voted(*peer)).collect()
    }

    /// The verdict for an operation that somebody gave up while the `open` peers were waited for.
    pub(super) fn given_up_verdict(
        &self,
        (operation, phase, bytes_done): (Operation, Phase, u64),
        GivenUp { by, limit_ms }: GivenUp,
        open: &[PeerId],
    ) -> Verdict {
        let others = || open.iter().copied().filter(|peer| *peer != by);
        let caller = self.name_of(by);
        let (cause, why) = match limit_ms {
            Some(limit_ms) => {
                (Cause::CallTimeout, format!("{caller} gave it up after {:.1} s", limit_ms as f64 / 1000.0))
            }
            None => (Cause::CallerAbort, format!("{caller} wanted no result any more")),
        };
        let waited = if others().next().is_some() {
            self.list_peers(others())
        } else if open.is_empty() {
            // All have voted, and something else is missing.
            self.ring_sentences().join("; ")
        } else {
            "its own part".to_owned()
        };
        let waited = if waited.is_empty() { waited } else { format!(", waiting for {waited}") };
        let mut culprits: Vec<_> = others().take(WAITED_MAX).map(|peer| self.culprit_of(peer)).collect();
        if cause == Cause::CallerAbort || culprits.is_empty() {
            culprits = vec![self.culprit_of(by)];
        }
        Verdict {
            cause,
            culprits,
            operation,
            phase,
            bytes_done,
            silent_ms: 0,
            detail: Text::new(format!("{why}{waited}")),
        }
    }
}
