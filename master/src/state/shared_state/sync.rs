//! Shared-state syncs: votes, plans, outcomes.

use super::election::{Conflict, Deviation, deviants, elect};
use super::serving::Content;
use crate::state::MasterState;
use crate::state::groups::group::{Group, Sync, SyncVote, SyncVoter, VoterReport};
use crate::state::groups::losses::Loss;
use pccl_protocol::{
    Cause, GroupId, KickCode, KickReason, M2c, Operation, PeerId, Phase, Revision, Stale, SyncId,
    SyncInitiate, SyncOutcome, SyncPlan, SyncPlanFor, Text, TooFewPeers, Verdict, VoteRef,
};
use std::collections::BTreeMap;

/// The next step of a sync.
enum Step {
    Wait,
    Forget,
    TooFew(TooFewPeers),
    Stale,
    Elect,
    /// It fails for those who have voted, before it has begun.
    Refuse(SyncId, Verdict),
    Drop(Vec<(PeerId, KickReason)>),
    Decide(SyncOutcome),
}

impl MasterState {
    pub(crate) fn admit_sync(&self, group: GroupId, vote: &SyncInitiate) -> Result<(), KickReason> {
        let Some(group) = self.groups.get(&group) else { return Ok(()) };
        if vote.epoch > group.epoch {
            let text =
                format!("voted for a sync in epoch {}, but the present one is {}", vote.epoch, group.epoch);
            return Err(KickReason::new(KickCode::Protocol, text));
        }
        if let Some(pair) = vote.entries.windows(2).find(|pair| pair[0].key >= pair[1].key) {
            let text = format!("shared-state keys out of order: \"{}\", \"{}\"", pair[0].key, pair[1].key);
            return Err(KickReason::new(KickCode::Protocol, text));
        }
        match group.shared.committed {
            Some(Revision(committed))
                if vote.epoch >= group.net.since && vote.revision.0 > committed.saturating_add(1) =>
            {
                let text = format!(
                    "revision {} was voted, but the last committed one is {committed}, so the next one is {}",
                    vote.revision,
                    committed.saturating_add(1)
                );
                Err(KickReason::new(KickCode::RevisionJump, text))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn record_sync_initiate(&mut self, id: PeerId, group_id: GroupId, vote: SyncInitiate) {
        let since = self.roll.now;
        self.check_offer(id, &vote);
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        group.shared.agreed.iter_mut().for_each(|agreed| agreed.end(id));
        let epoch = group.epoch;
        // Whom a sync is among is the same as long as the edges are.
        if vote.epoch >= group.net.since {
            let sync = group.shared.sync.get_or_insert_with(|| Sync::Voting {
                since,
                epoch,
                votes: BTreeMap::new(),
                given_up: None,
            });
            if let Sync::Voting { votes, .. } = sync {
                let SyncInitiate { request, revision, strategy, entries, .. } = vote;
                votes.insert(id, SyncVote { request, revision, strategy, entries });
                return;
            }
        }
        self.out.send_peer(&self.roll, id, M2c::Stale(Stale { vote: VoteRef::Sync(vote.request), epoch }));
    }

    /// Takes a lost peer out of the sync of its group.
    pub(crate) fn lose_voter(group: &mut Group, id: PeerId, loss: &Loss) {
        group.shared.fetches.forget(id);
        group.shared.agreed.iter_mut().for_each(|agreed| agreed.forget(id));
        match &mut group.shared.sync {
            Some(Sync::Voting { votes, given_up, .. }) => {
                votes.remove(&id);
                given_up.take_if(|given_up| given_up.by == id);
            }
            Some(Sync::Running { voters, lost, given_up, .. }) => {
                lost.extend(voters.remove(&id).map(|_| loss.clone()));
                given_up.take_if(|given_up| given_up.by == id);
            }
            None => {}
        }
    }

    /// Rule: sync votes are answered, complete ones elect, running syncs are decided.
    pub(crate) fn settle_syncs(&mut self) -> bool {
        let mut fired = false;
        let all: Vec<GroupId> =
            self.groups.iter().filter(|(_, group)| group.shared.sync.is_some()).map(|(id, _)| *id).collect();
        for group_id in all {
            let step = self.next_sync_step(group_id);
            fired |= !matches!(step, Step::Wait);
            self.take_sync_step(group_id, step);
        }
        fired
    }

    fn next_sync_step(&self, group_id: GroupId) -> Step {
        let Some(group) = self.groups.get(&group_id) else { return Step::Wait };
        match &group.shared.sync {
            Some(Sync::Voting { epoch, votes, given_up, .. }) => {
                let any = votes.values().next().map(|vote| VoteRef::Sync(vote.request));
                let Some(any) = any else { return Step::Forget };
                if let Some(few) = group.too_few(&self.roll, any, 1) {
                    Step::TooFew(few)
                } else if *epoch < group.net.since {
                    Step::Stale
                } else if let Some(given_up) = given_up {
                    let missing = group.members_without(|peer| votes.contains_key(&peer));
                    let sync = SyncId(self.last_sync.0 + 1);
                    let operation = (Operation::Sync(sync), Phase::Voting, 0);
                    Step::Refuse(
                        sync,
                        self.groups.given_up_verdict(&self.roll, operation, *given_up, &missing),
                    )
                } else if votes.len() == group.ring.len() && group.all_accepted(&self.roll) {
                    Step::Elect
                } else {
                    Step::Wait
                }
            }
            Some(Sync::Running { sync, revision, voters, lost, given_up, .. }) => {
                if voters.is_empty() {
                    return Step::Forget;
                }
                if voters.values().all(|voter| voter.report == VoterReport::Ready) {
                    return Step::Decide(SyncOutcome::Committed(*revision));
                }
                if let Some(given_up) = given_up {
                    let open = voters.iter().filter(|(_, voter)| voter.report == VoterReport::Awaited);
                    let open: Vec<PeerId> = open.map(|(peer, _)| *peer).collect();
                    let operation = (Operation::Sync(*sync), Phase::Transfer, 0);
                    let verdict = self.groups.given_up_verdict(&self.roll, operation, *given_up, &open);
                    return Step::Decide(SyncOutcome::Failed(verdict));
                }
                if !self.failures_due(voters) {
                    return Step::Wait;
                }
                let culprits = self.culprits_of_fetches(group, voters, lost);
                if !culprits.is_empty() {
                    return Step::Drop(culprits);
                }
                match voters.iter().find(|(_, voter)| voter.report != VoterReport::Ready) {
                    Some((id, voter)) => {
                        Step::Decide(SyncOutcome::Failed(self.no_source(*sync, *id, voter, lost)))
                    }
                    None => Step::Wait,
                }
            }
            None => Step::Wait,
        }
    }

    fn take_sync_step(&mut self, group_id: GroupId, step: Step) {
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let epoch = group.epoch;
        match step {
            Step::Wait => {}
            Step::Forget => group.shared.sync = None,
            Step::Elect => self.run_election(group_id),
            Step::Refuse(sync, verdict) => {
                let Some(Sync::Voting { since, votes, .. }) = group.shared.sync.take() else { return };
                let voters = votes.iter().map(|(id, vote)| (*id, SyncVoter::new(vote.request))).collect();
                self.last_sync = sync;
                group.shared.sync = Some(Sync::refused(since, sync, voters));
                self.end_sync(group_id, SyncOutcome::Failed(verdict));
            }
            // The rules look again at what they leave behind.
            Step::Drop(reasons) => reasons.into_iter().for_each(|(id, reason)| self.kick(id, reason)),
            Step::Decide(outcome) => self.end_sync(group_id, outcome),
            Step::TooFew(_) | Step::Stale => {
                let Some(Sync::Voting { votes, .. }) = group.shared.sync.take() else { return };
                for (id, vote) in votes {
                    let vote = VoteRef::Sync(vote.request);
                    let packet = match step {
                        Step::TooFew(few) => M2c::TooFewPeers(TooFewPeers { vote, ..few }),
                        _ => M2c::Stale(Stale { vote, epoch }),
                    };
                    self.out.send_peer(&self.roll, id, packet);
                }
            }
        }
    }

    /// Drops voters whose state is none of the group's. The others vote again, on the ring without them.
    fn drop_deviants(&mut self, group_id: GroupId) -> bool {
        let Some(group) = self.groups.get(&group_id) else { return false };
        let Some(Sync::Voting { votes, .. }) = &group.shared.sync else { return false };
        let trusted = self.roll.trusted_with_shapes(group, votes);
        let (all, deviants) = (votes.len(), deviants(votes, &trusted));
        for (id, Deviation { theirs, own, agree }) in &deviants {
            let text =
                format!("the shared state of its group has {theirs} ({agree} of {all} peers); it has {own}");
            self.kick(*id, KickReason::new(KickCode::StateMismatch, text));
        }
        !deviants.is_empty()
    }

    /// Nobody can dial a peer, nor those who hold what it needs. The others vote again without it; it comes back, and
    /// by then others hold the state. It is not kept outside until then: others may wait for a number of peers before
    /// they sync.
    fn drop_without_source(&mut self, id: PeerId) {
        let text = "it is outbound-only, and so are all who hold the shared state: it can fetch once a peer that can \
                    be dialed has it";
        self.kick(id, KickReason::new(KickCode::Unreachable, text));
    }

    fn run_election(&mut self, group_id: GroupId) {
        if self.drop_deviants(group_id) {
            return;
        }
        let sync = SyncId(self.last_sync.0 + 1);
        self.last_sync = sync;
        let now = self.roll.now;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let Some(Sync::Voting { votes, .. }) = &group.shared.sync else { return };
        let in_vain = |source| {
            let may_give = self.roll.may_give(source);
            may_give.then(|| group.shared.fetches.in_vain(source))
        };
        let may_meet = |to, from| self.roll.may_meet((to, from));
        let elected =
            elect(votes, &group.shared.holders, in_vain, (may_meet, self.roll.options.relay.is_some()));
        let apart = elected.iter().flat_map(|election| &election.parts);
        let apart: Vec<PeerId> = apart.filter(|(_, part)| part.is_apart).map(|(id, _)| *id).collect();
        let Some(Sync::Voting { since, epoch, votes, given_up }) = group.shared.sync.take() else { return };
        let refusal = elected.as_ref().ok().map(|election| (sync, election.revision));
        let refusal = refusal.and_then(|elected| self.refuse_revision(group_id, &votes, elected));
        // Nobody fetches what is refused: then nobody has to go for it.
        if refusal.is_none() && !apart.is_empty() {
            if let Some(group) = self.groups.get_mut(&group_id) {
                group.shared.sync = Some(Sync::Voting { since, epoch, votes, given_up });
            }
            return apart.into_iter().for_each(|id| self.drop_without_source(id));
        }
        let unserved = elected.as_ref().ok().and_then(|it| self.refuse_source(&votes, (sync, it)));
        let refusal = refusal.or(unserved);
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let mut voters: BTreeMap<PeerId, SyncVoter> =
            votes.iter().map(|(id, vote)| (*id, SyncVoter::new(vote.request))).collect();
        let (revision, content, parts) = match elected {
            Ok(election) if refusal.is_none() => {
                let is_lent = group.formed.is_none();
                let may_give = |id| self.roll.may_give(id);
                let content =
                    if is_lent { Content::of(&votes, &election, may_give) } else { Content::default() };
                (election.revision, content, election.parts)
            }
            refused => {
                group.shared.sync = Some(Sync::refused(now, sync, voters));
                let conflict = refused.err().map(|conflict| self.conflict_verdict(sync, &conflict));
                let Some(verdict) = conflict.or(refusal) else { return };
                return self.end_sync(group_id, SyncOutcome::Failed(verdict));
            }
        };
        let mut plans = Vec::with_capacity(parts.len());
        for (id, part) in parts {
            let Some(voter) = voters.get_mut(&id) else { continue };
            voter.sources.extend(part.sources.iter().copied());
            let sources =
                part.sources.iter().filter_map(|source| self.roll.state_source(id, *source)).collect();
            let plan = SyncPlan { sync, revision, fetch: part.fetch, sources };
            plans.push((id, M2c::SyncPlan(SyncPlanFor { request: voter.request, plan })));
        }
        if let Some(group) = self.groups.get_mut(&group_id) {
            let (lost, given_up) = (Vec::new(), None);
            let running = Sync::Running { since: now, sync, revision, content, voters, lost, given_up };
            group.shared.sync = Some(running);
        }
        for (id, plan) in plans {
            self.out.send_peer(&self.roll, id, plan);
        }
    }

    fn conflict_verdict(&self, sync: SyncId, conflict: &Conflict) -> Verdict {
        let (a, b) = conflict.peers;
        let (x, y) = (&conflict.values.0, &conflict.values.1);
        let detail = if a == b {
            format!("{} called it with {x}", self.roll.name_of(a))
        } else {
            format!("{} called it with {x}, {} with {y}", self.roll.name_of(a), self.roll.name_of(b))
        };
        let mut culprits = vec![self.roll.culprit_of(a)];
        if a != b {
            culprits.push(self.roll.culprit_of(b));
        }
        Verdict {
            cause: Cause::MismatchedCall,
            culprits,
            operation: Operation::Sync(sync),
            phase: Phase::Voting,
            bytes_done: 0,
            silent_ms: 0,
            detail: Text::new(detail),
        }
    }
}
