//! Calls that wait for each other: one member is in a call that excludes all others until it is answered, and somebody
//! for whom that waits is in an operation that waits for the first.
//!
//! Such a call is a sync, `update_topology` or `optimize_topology`: its peer has no operation in flight and can begin
//! none, and whoever has one in flight cannot join the call before that is over. So neither can end, unless one of them
//! dies or gives up. A call that others may join beside operations (`are_peers_pending`), or that ends by itself when
//! somebody comes (`wait_for_world`), is none of these. Operations that wait for each other are none either: another
//! thread of either peer may still begin the missing one.
//!
//! It is looked for when somebody beats that is in such a call. What is found has to stand for a while: who has just
//! learnt that one operation failed may be about to give up the next ones before it goes on.

use super::MasterState;
use super::client::Peer;
use super::group::{GivenUp, Group, Op, Sync, WhyGivenUp};
use super::types::Timestamp;
use pccl_protocol::{
    CallKind, CollectiveId, GroupId, M2c, OpId, Operation, PeerId, Phase, RequestId, SyncId, Verdict,
    VoteWithdrawn,
};
use std::time::Duration;

/// For so long calls wait for each other before they fail.
const PATIENCE: Duration = Duration::from_secs(5);

/// That a peer's call and something that waits for the peer wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Crossing {
    call: CallKind,
    request: RequestId,
    with: With,
    /// Who waits for the peer, and for whom the peer waits.
    waits: PeerId,
}

/// What waits for a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum With {
    Collective(CollectiveId),
    /// The sync that was first voted for then.
    Sync(Timestamp),
}

impl MasterState {
    /// Looks for what can never end because of the call that a peer is in.
    pub(super) fn find_crossed(&mut self, id: PeerId, group_id: GroupId) {
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
    pub(super) fn forget_crossings(&mut self) {
        self.roll.peers.values_mut().for_each(|peer| peer.crossed = None);
    }

    /// What a peer's call and what waits for the peer have to do with each other.
    fn crossing(&self, id: PeerId, group_id: GroupId) -> Option<Crossing> {
        let (peer, group) = (self.roll.peers.get(&id)?, self.groups.get(&group_id)?);
        let (call, request) = self.excluding_call(id, peer, group)?;
        if !group.ring.contains(&id) {
            return None;
        }
        // Who is away may have sent more than has arrived.
        let is_here = |peer: &Peer| peer.accepted() && peer.away.is_none();
        let waits = |voter: &PeerId| {
            let voter_here = self.roll.peers.get(voter).is_some_and(is_here);
            voter_here && group.ring.contains(voter) && !self.is_in(*voter, group, call)
        };
        let operation = |(op, state): (&OpId, &Op)| {
            let Op::Voting { votes, missing, given_up: None, .. } = state else { return None };
            let is_open = op.epoch == group.epoch && missing.contains(&id);
            let waits = votes.keys().copied().find(waits).filter(|_| is_open)?;
            Some((With::Collective(state.named(*op)), waits))
        };
        let sync = || match &group.shared.sync {
            Some(Sync::Voting { since, epoch, votes, given_up: None }) if call != CallKind::Sync => {
                let waits = votes.keys().copied().find(waits).filter(|_| *epoch == group.epoch)?;
                Some((With::Sync(*since), waits))
            }
            _ => None,
        };
        let (with, waits) = group.work.ops.iter().find_map(operation).or_else(sync)?;
        Some(Crossing { call, request, with, waits })
    }

    /// The call that a peer is in, if that excludes others and has not begun.
    fn excluding_call(&self, id: PeerId, peer: &Peer, group: &Group) -> Option<(CallKind, RequestId)> {
        let sync = match &group.shared.sync {
            Some(Sync::Voting { votes, given_up: None, .. }) => votes.get(&id).map(|vote| vote.request),
            _ => None,
        };
        let topology = peer.topology.as_ref().filter(|vote| vote.wait_for_world == 0 && !vote.withdrawn);
        let topology = topology.filter(|_| self.admission.round.is_none()).map(|vote| vote.request);
        let optimize =
            peer.optimize.as_ref().filter(|_| !self.optimizer.is_running()).map(|vote| vote.request);
        let sync = sync.map(|request| (CallKind::Sync, request));
        let topology = topology.map(|request| (CallKind::UpdateTopology, request));
        let optimize = optimize.map(|request| (CallKind::OptimizeTopology, request));
        sync.or(topology).or(optimize)
    }

    /// Whether a peer has voted in the same call: then it is in nothing else any more.
    fn is_in(&self, id: PeerId, group: &Group, call: CallKind) -> bool {
        let peer = self.roll.peers.get(&id);
        match call {
            CallKind::Sync => group.shared.sync.as_ref().is_some_and(|sync| sync.involves(id)),
            CallKind::UpdateTopology => peer.is_some_and(|peer| peer.topology.is_some()),
            _ => peer.is_some_and(|peer| peer.optimize.is_some()),
        }
    }

    /// What waits for `by` comes to nothing, and so does the call that `by` is in.
    fn fail_crossed(&mut self, by: PeerId, group_id: GroupId, crossing: Crossing) {
        let Crossing { call, with, waits, .. } = crossing;
        let wish = GivenUp { by, why: WhyGivenUp::Elsewhere { call, waits } };
        let operation = match with {
            With::Collective(id) => Operation::Collective(id),
            With::Sync(_) => Operation::Sync(SyncId(self.last_sync.0 + 1)),
        };
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let (epoch, now) = (group.epoch, self.roll.now);
        let sync_comes_to = match with {
            With::Sync(_) => Some(wish),
            With::Collective(CollectiveId { kind, .. }) => {
                group.work.ops.change_some(|op, state| {
                    let Op::Voting { since, votes, missing, given_up } = state else { return false };
                    let of_both = votes.contains_key(&waits) && missing.contains(&by);
                    let is_crossed = of_both && op.epoch == epoch && now.since(*since) >= PATIENCE;
                    if is_crossed {
                        given_up.get_or_insert(wish);
                    }
                    is_crossed
                });
                let why = WhyGivenUp::Elsewhere { call: CallKind::Collective(kind), waits: by };
                (call == CallKind::Sync).then_some(GivenUp { by: waits, why })
            }
        };
        if let (Some(wish), Some(Sync::Voting { given_up, .. })) = (sync_comes_to, &mut group.shared.sync) {
            given_up.get_or_insert(wish);
        }
        self.out.changed = true;
        if call != CallKind::Sync {
            let verdict = self.roll.verdict_of_giving_up((operation, Phase::Voting, 0), wish);
            self.end_votes(call, &verdict);
        }
    }

    /// All who are in such a call wait for the same: their votes are gone.
    fn end_votes(&mut self, call: CallKind, verdict: &Verdict) {
        let mut gone = Vec::new();
        for (id, peer) in &mut self.roll.peers {
            let request = match call {
                CallKind::UpdateTopology => {
                    let its = peer.topology.take_if(|vote| vote.wait_for_world == 0 && !vote.withdrawn);
                    its.map(|vote| vote.request)
                }
                _ => peer.optimize.take().map(|vote| vote.request),
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
