//! Calls that wait for each other: one member is in a call that excludes all others until it is answered, and somebody
//! for whom that waits is in something else, which waits for the first.
//!
//! Such a call is a sync, `update_topology`, `optimize_topology` or `wait_for_world`: its peer has no operation in
//! flight and can begin none, and whoever has one in flight cannot join the call before that is over. So neither can
//! end, unless one of them dies or gives up. A caller may still come, and nothing is found, if
//! * the call is one that others may join beside whatever they are in (`are_peers_pending`);
//! * operations wait for each other: another thread of either peer may begin the missing one;
//! * somebody was in the same call until its limit passed, and has gone on: whoever still waits in it, with a limit, is
//!   to follow. That is so of votes for the whole run only, as everything else ends for all when a limit passes.
//!
//! `form_group` has a limit always, and ends with it for all. A peer that waits for a larger world has counted its
//! peers at another moment than the others, which is no mistake: theirs ends so that they count again, and the wait
//! goes on.
//!
//! It is looked for when somebody beats that is in such a call. A crossing has to stand for a while: a peer that has
//! just learnt that one operation failed may be about to give up the next ones before it goes on.

use crate::state::MasterState;
use crate::state::groups::group::{Group, Op, Sync};
use crate::state::groups::losses::{GivenUp, WhyGivenUp};
use crate::state::membership::client::{CommonVote, Peer};
use crate::state::types::Timestamp;
use pccl_protocol::{
    CallKind, CollectiveId, GroupId, M2c, OpId, Operation, PeerId, Phase, RequestId, SyncId, Verdict,
    VoteWithdrawn,
};
use std::time::Duration;

/// For so long calls wait for each other before they fail.
const PATIENCE: Duration = Duration::from_secs(5);

/// That a peer's call and something that waits for the peer wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Crossing {
    call: CallKind,
    request: RequestId,
    with: With,
    /// The peer that waits for this one, and for which this one waits.
    waits: PeerId,
}

/// The operation that waits for a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum With {
    Collective(CollectiveId),
    /// The sync that was first voted for then.
    Sync(Timestamp),
    Optimize,
}

impl MasterState {
    /// Looks for what can never end because of the call that a peer is in.
    pub(crate) fn find_crossed(&mut self, id: PeerId, group_id: GroupId) {
        let (found, now) = (self.crossing(id, group_id), self.roll.now);
        let Some(peer) = self.roll.peers.get_mut(&id) else { return };
        let since = peer.crossed.filter(|(known, _)| Some(*known) == found).map_or(now, |(_, since)| since);
        peer.crossed = found.map(|found| (found, since));
        if let Some(found) = found.filter(|_| now.since(since) >= PATIENCE) {
            peer.crossed = None;
            self.fail_crossed(id, group_id, found);
        }
    }

    /// Something may have come about that has not been heard yet: the time that calls wait for each other begins anew.
    pub(crate) fn forget_crossings(&mut self) {
        self.roll.peers.values_mut().for_each(|peer| peer.crossed = None);
    }

    /// The crossing of a peer's call with another one that waits for the peer, if there is one. Of two calls that
    /// exclude each other the later one in the order of [`MasterState::excluding_call`] is the call.
    fn crossing(&self, id: PeerId, group_id: GroupId) -> Option<Crossing> {
        let (peer, group) = (self.roll.peers.get(&id)?, self.groups.get(&group_id)?);
        let (call, request) = self.excluding_call(id, peer, group)?;
        if !group.ring.contains(&id) {
            return None;
        }
        let who_waits =
            |voters: &mut dyn Iterator<Item = PeerId>| self.who_waits(voters, group, (call, peer));
        let operation = |(op, state): (&OpId, &Op)| {
            let Op::Voting { votes, missing, given_up: None, .. } = state else { return None };
            let is_open = op.epoch == group.epoch && missing.contains(&id);
            let waits = is_open.then(|| who_waits(&mut votes.keys().copied()))??;
            Some((With::Collective(state.named(*op)), waits))
        };
        let sync = || match &group.shared.sync {
            Some(Sync::Voting { since, epoch, votes, given_up: None })
                if call != CallKind::Sync && *epoch == group.epoch =>
            {
                Some((With::Sync(*since), who_waits(&mut votes.keys().copied())?))
            }
            _ => None,
        };
        let optimize = || {
            let is_after = matches!(call, CallKind::UpdateTopology | CallKind::WaitForWorld);
            // Those whose limits let them follow where the peer has gone.
            let follows = |other: &Peer| other.is_limited() && peer.took_back.contains(&CommonVote::Optimize);
            let votes =
                self.roll.peers.iter().filter(|(_, other)| other.optimize().is_some() && !follows(other));
            let is_open = is_after && !self.optimizer.is_running();
            let waits = is_open.then(|| who_waits(&mut votes.map(|(id, _)| *id)))??;
            Some((With::Optimize, waits))
        };
        let (with, waits) = group.work.ops.iter().find_map(operation).or_else(sync).or_else(optimize)?;
        Some(Crossing { call, request, with, waits })
    }

    /// Of those who have voted for one thing, somebody for whom a call waits; nobody if its caller may follow them.
    fn who_waits(
        &self,
        voters: &mut dyn Iterator<Item = PeerId>,
        group: &Group,
        (call, caller): (CallKind, &Peer),
    ) -> Option<PeerId> {
        let vote = match call {
            CallKind::OptimizeTopology => CommonVote::Optimize,
            _ => CommonVote::Topology,
        };
        let is_common = call != CallKind::Sync && caller.is_limited();
        let mut found = None;
        for (id, voter) in voters.filter_map(|id| Some((id, self.roll.peers.get(&id)?))) {
            if is_common && voter.took_back.contains(&vote) {
                return None;
            }
            // A peer that is away may have sent more than has arrived.
            let is_here = voter.accepted() && voter.away.is_none();
            found = found.or((is_here && !self.is_in(id, group, call)).then_some(id));
        }
        found
    }

    /// The call that a peer is in, if that excludes others and has not begun.
    fn excluding_call(&self, id: PeerId, peer: &Peer, group: &Group) -> Option<(CallKind, RequestId)> {
        let sync = match &group.shared.sync {
            Some(Sync::Voting { votes, given_up: None, .. }) => votes.get(&id).map(|vote| vote.request),
            _ => None,
        };
        let optimize = peer.optimize().filter(|_| !self.optimizer.is_running());
        let topology = peer.topology().filter(|vote| !vote.withdrawn);
        let topology = topology.filter(|_| self.admission.round.is_none());
        let sync = sync.map(|request| (CallKind::Sync, request));
        let optimize = optimize.map(|vote| (CallKind::OptimizeTopology, vote.request));
        let topology = topology.map(|vote| (vote.call(), vote.request));
        sync.or(optimize).or(topology)
    }

    /// Whether a peer has voted in the same call: then it is in nothing else any more.
    fn is_in(&self, id: PeerId, group: &Group, call: CallKind) -> bool {
        let peer = self.roll.peers.get(&id);
        match call {
            CallKind::Sync => group.shared.sync.as_ref().is_some_and(|sync| sync.involves(id)),
            CallKind::UpdateTopology | CallKind::WaitForWorld => {
                peer.is_some_and(|peer| peer.topology().is_some())
            }
            _ => peer.is_some_and(|peer| peer.optimize().is_some()),
        }
    }

    /// The call that waits for `by` fails, and so does the call that `by` is in, but for a wait for a larger world.
    fn fail_crossed(&mut self, by: PeerId, group_id: GroupId, crossing: Crossing) {
        let Crossing { call, with, waits, .. } = crossing;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        // A call that failed with the loss of a member sends one of the two to the sync, and the other one had no part
        // in it. After one such verdict they are together, or they make a mistake.
        let is_mistake = group.shared.together_in.is_none_or(|epoch| epoch >= group.net.since);
        if !is_mistake {
            group.shared.together_in = Some(group.epoch);
        }
        let elsewhere =
            |call, waits, by| GivenUp { by, why: WhyGivenUp::Elsewhere { call, waits, is_mistake } };
        let wish = elsewhere(call, waits, by);
        let operation = match with {
            With::Collective(id) => Operation::Collective(id),
            With::Sync(_) => Operation::Sync(SyncId(self.last_sync.0 + 1)),
            With::Optimize => Operation::Call(CallKind::OptimizeTopology),
        };
        let verdict = self.roll.verdict_of_giving_up((operation, Phase::Voting, 0), wish);
        let (epoch, now) = (group.epoch, self.roll.now);
        let sync_comes_to = match with {
            With::Sync(_) => Some(wish),
            With::Collective(CollectiveId { kind, .. }) => {
                group.work.ops.change_some(|op, state| {
                    let Op::Voting { since, votes, missing, given_up, .. } = state else { return false };
                    let of_both = votes.contains_key(&waits) && missing.contains(&by);
                    let is_crossed = of_both && op.epoch == epoch && now.since(*since) >= PATIENCE;
                    if is_crossed {
                        given_up.get_or_insert(wish);
                    }
                    is_crossed
                });
                (call == CallKind::Sync).then_some(elsewhere(CallKind::Collective(kind), by, waits))
            }
            With::Optimize => None,
        };
        if let (Some(wish), Some(Sync::Voting { given_up, .. })) = (sync_comes_to, &mut group.shared.sync) {
            given_up.get_or_insert(wish);
        }
        self.out.changed = true;
        if with == With::Optimize || call == CallKind::OptimizeTopology {
            self.end_votes(CallKind::OptimizeTopology, &verdict);
        }
        if call == CallKind::UpdateTopology {
            self.end_votes(call, &verdict);
        }
    }

    /// All who are in such a call wait for the same: their votes are gone.
    fn end_votes(&mut self, call: CallKind, verdict: &Verdict) {
        let mut gone = Vec::new();
        for (id, peer) in &mut self.roll.peers {
            let request = match call {
                CallKind::UpdateTopology => {
                    let its = peer.take_topology(|vote| vote.wait_for_world == 0 && !vote.withdrawn);
                    its.map(|vote| vote.request)
                }
                _ => peer.take_optimize(|_| true).map(|vote| vote.request),
            };
            gone.extend(request.map(|request| (*id, request)));
        }
        for (id, request) in gone {
            let (missing, verdict) = (verdict.detail.clone(), Some(verdict.clone()));
            let answer = VoteWithdrawn { request, missing, verdict };
            self.out.send_peer(&self.roll, id, M2c::VoteWithdrawn(answer));
        }
    }
}
