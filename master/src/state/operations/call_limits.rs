//! A caller gives up what it has voted for: because its limit has passed, or because it wants no result. The outcome
//! is one for all, unless it has been decided before; those who vote for that attempt later learn it.

use crate::state::groups::all_groups::Groups;
use crate::state::groups::group::{Op, Sync};
use crate::state::groups::group_creation::Formings;
use crate::state::groups::losses::{GivenUp, WhyGivenUp};
use crate::state::membership::members::Roll;
use pccl_protocol::{CallKind, Cause, GiveUp, GroupId, Operation, PeerId, Phase, Text, Verdict, VoteRef};

/// Peers that a verdict names as those who were waited for; the details count the rest.
const WAITED_MAX: usize = 8;

impl Groups {
    pub(crate) fn record_give_up(
        &mut self,
        formings: &mut Formings,
        id: PeerId,
        group: GroupId,
        packet: GiveUp,
    ) {
        let wish = GivenUp { by: id, why: WhyGivenUp::of_caller(packet.limit_ms) };
        if let VoteRef::Forming(request) = packet.vote {
            if !formings.give_up(wish, request) {
                self.give_up_connecting(group, wish, request);
            }
            return;
        }
        let Some(group) = self.get_mut(&group) else { return };
        let slot = match packet.vote {
            VoteRef::Collective(op) => match group.work.ops.change(op) {
                Some(Op::Voting { votes, given_up, .. }) if votes.contains_key(&id) => given_up,
                Some(Op::Running { participants, given_up, .. }) if participants.contains_key(&id) => {
                    given_up
                }
                // It has its outcome, or was voted for anew.
                _ => return,
            },
            VoteRef::Forming(_) => return,
            VoteRef::Sync(request) => match &mut group.shared.sync {
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

    /// The verdict for an operation that somebody gave up while the `open` peers were waited for.
    pub(crate) fn given_up_verdict(
        &self,
        roll: &Roll,
        operation: (Operation, Phase, u64),
        given_up: GivenUp,
        open: &[PeerId],
    ) -> Verdict {
        let others = || open.iter().copied().filter(|peer| *peer != given_up.by);
        let mut verdict = roll.verdict_of_giving_up(operation, given_up);
        if let WhyGivenUp::Elsewhere { .. } = given_up.why {
            return verdict;
        }
        let waited = if others().next().is_some() {
            roll.list_peers(others())
        } else if open.is_empty() {
            // All have voted, and something else is missing.
            self.ring_sentences(roll).join("; ")
        } else {
            "its own part".to_owned()
        };
        if !waited.is_empty() {
            verdict.detail = Text::new(format!("{}, waiting for {waited}", verdict.detail));
        }
        if verdict.cause == Cause::CallTimeout && others().next().is_some() {
            verdict.culprits = others().take(WAITED_MAX).map(|peer| roll.culprit_of(peer)).collect();
        }
        verdict
    }
}

impl Roll {
    /// The verdict for an operation that somebody gave up while nobody else was waited for.
    pub(crate) fn verdict_of_giving_up(
        &self,
        (operation, phase, bytes_done): (Operation, Phase, u64),
        GivenUp { by, why }: GivenUp,
    ) -> Verdict {
        let caller = self.name_of(by);
        let mut culprits = vec![self.culprit_of(by)];
        let (cause, why) = match why {
            WhyGivenUp::Limit(limit_ms) => {
                (Cause::CallTimeout, format!("{caller} gave it up after {:.1} s", limit_ms as f64 / 1000.0))
            }
            WhyGivenUp::Unwanted => (Cause::CallerAbort, format!("{caller} wanted no result any more")),
            WhyGivenUp::Elsewhere { call: call @ CallKind::WaitForWorld, waits, .. } => {
                culprits.clear();
                let waits = self.name_of(waits);
                let text =
                    format!("{waits} waits in it for {caller}, which is in {call} and waits for more peers");
                (Cause::WorldChanged, text)
            }
            WhyGivenUp::Elsewhere { call, waits: waiter, is_mistake } => {
                let waits = self.name_of(waiter);
                let text = format!(
                    "{waits} waits in it for {caller}, which is in {call} and waits there for {waits}"
                );
                if is_mistake {
                    culprits.insert(0, self.culprit_of(waiter));
                    (Cause::MismatchedCall, text)
                } else {
                    culprits.clear();
                    (Cause::WorldChanged, format!("{text}; the members have changed since their last sync"))
                }
            }
        };
        let detail = Text::new(why);
        Verdict { cause, culprits, operation, phase, bytes_done, silent_ms: 0, detail }
    }
}
