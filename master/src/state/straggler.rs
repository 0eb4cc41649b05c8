//! Who alone holds up a vote, and since when. Without [`Options::straggler_timeout`](super::Options) nobody is watched.
//!
//! Only a caller that has not made a call is blamed: never a peer that is part of a transfer (what it is late for then
//! is the transfer, which may be as slow as it likes), never one that may be dead or that waits for such a one, and
//! never one of several.

use super::client::Peer;
use super::group::{Group, Op, Sync};
use super::{MasterState, Timestamp};
use pccl_protocol::{CollectiveId, GroupId, KickCode, KickReason, PeerId};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A vote that a caller can hold up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Vote {
    Topology,
    Optimize,
    Pending,
    Collective(GroupId, CollectiveId),
    Sync(GroupId),
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topology => write!(f, "update_topology"),
            Self::Optimize => write!(f, "optimize_topology"),
            Self::Pending => write!(f, "are_peers_pending"),
            Self::Collective(_, id) => write!(f, "{id}"),
            Self::Sync(group) => write!(f, "the shared-state sync of group {group}"),
        }
    }
}

/// The one whose vote is missing, and since when it is the only one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Straggler {
    peer: PeerId,
    since: Timestamp,
}

impl MasterState {
    /// Notes who alone holds up which vote now. After every change of the facts.
    pub(super) fn watch_stragglers(&mut self) {
        if self.options.straggler_timeout.is_none() {
            return;
        }
        let now = self.now;
        let missing = self.missing_alone();
        let may_be_dead: Vec<(Vote, PeerId)> =
            missing.iter().filter(|(_, silent)| self.suspect(*silent)).copied().collect();
        let mut watched = BTreeMap::new();
        for (vote, peer) in &missing {
            // The time in which it waits itself for one that may be dead does not count.
            let waits =
                may_be_dead.iter().any(|(other, silent)| silent != peer && self.has_voted(*peer, *other));
            let known = self.stragglers.get(vote).filter(|known| known.peer == *peer && !waits);
            watched.insert(*vote, known.copied().unwrap_or(Straggler { peer: *peer, since: now }));
        }
        self.stragglers = watched;
    }

    /// Drops those who have held up a vote for too long: the one who began first, as long as there is one, since the
    /// loss of one may free the others.
    pub(super) fn judge_stragglers(&mut self) {
        let Some(timeout) = self.options.straggler_timeout else { return };
        loop {
            self.watch_stragglers();
            let due = |s: &Straggler| s.since + timeout <= self.now && !self.suspect(s.peer);
            let late =
                self.stragglers.iter().filter(|(_, s)| due(s)).min_by_key(|(vote, s)| (s.since, **vote));
            let Some((vote, straggler)) = late.map(|(vote, straggler)| (*vote, *straggler)) else { return };
            let held = self.now.since(straggler.since).as_secs_f64();
            let seen = self.peers.get(&straggler.peer).map(|peer| self.call_of(peer)).unwrap_or_default();
            let text = format!(
                "its caller alone held up {vote} for {held:.1} s, the limit is {:.1} s; it was last seen {seen}",
                timeout.as_secs_f64()
            );
            self.kick(straggler.peer, KickReason::new(KickCode::Straggler, text));
        }
    }

    fn has_voted(&self, id: PeerId, vote: Vote) -> bool {
        let peer = self.peers.get(&id);
        match vote {
            Vote::Topology => peer.is_some_and(|peer| peer.topology.is_some()),
            Vote::Optimize => peer.is_some_and(|peer| peer.optimize.is_some()),
            Vote::Pending => peer.is_some_and(|peer| peer.pending.is_some()),
            Vote::Collective(group, CollectiveId { op, .. }) => {
                self.groups.get(&group).and_then(|group| group.ops.get(&op)).is_some_and(|op| op.involves(id))
            }
            Vote::Sync(group) => self
                .groups
                .get(&group)
                .and_then(|group| group.sync.as_ref())
                .is_some_and(|sync| sync.involves(id)),
        }
    }

    /// When a straggler has to be judged. One that may be dead is judged when it is heard again, or dropped as silent.
    pub(super) fn straggler_deadline(&self) -> Option<Timestamp> {
        let timeout = self.options.straggler_timeout?;
        let deadlines = self.stragglers.values().map(|s| (s.since + timeout, s.peer));
        deadlines.filter(|(due, peer)| *due > self.now || !self.suspect(*peer)).map(|(due, _)| due).min()
    }

    /// Moves the beginnings by a time in which the caller of this machine stood still.
    pub(super) fn extend_stragglers(&mut self, gap: Duration) {
        let now = self.now;
        for straggler in self.stragglers.values_mut() {
            straggler.since = (straggler.since + gap).min(now);
        }
    }

    /// Votes of which exactly one is missing, with the peer whose it is.
    fn missing_alone(&self) -> Vec<(Vote, PeerId)> {
        let mut all = Vec::new();
        if self.topology_waits_for_votes() {
            all.extend(
                self.accepted_without(|peer| peer.topology.is_some()).map(|peer| (Vote::Topology, peer)),
            );
        }
        if self.round.is_none() {
            let missing = self.accepted_without(|peer| peer.optimize.is_some());
            all.extend(missing.map(|peer| (Vote::Optimize, peer)));
        }
        all.extend(self.accepted_without(|peer| peer.pending.is_some()).map(|peer| (Vote::Pending, peer)));
        for (id, group) in &self.groups {
            for (op, state) in group.ops.iter() {
                if let Op::Voting { votes, .. } = state
                    && votes.len() + 1 == group.ring.len()
                {
                    let missing = member_without(group, |peer| state.involves(peer));
                    all.extend(missing.map(|peer| (Vote::Collective(*id, state.named(*op)), peer)));
                }
            }
            if let Some(sync @ Sync::Voting { .. }) = &group.sync {
                let missing = member_without(group, |peer| sync.involves(peer));
                all.extend(missing.map(|peer| (Vote::Sync(*id), peer)));
            }
        }
        all.retain(|(_, peer)| self.is_free(*peer));
        all
    }

    /// Whether the next round would begin if all accepted peers voted for it.
    fn topology_waits_for_votes(&self) -> bool {
        let have = self.accepted_count();
        let votes = || self.peers.values().filter_map(|peer| peer.topology.as_ref());
        let somebody_waits = !self.admissible().is_empty();
        self.round.is_none() && (somebody_waits || votes().any(|vote| vote.wait_for_world <= have))
    }

    /// The only accepted peer that has not voted, if at least one other has.
    fn accepted_without(&self, voted: impl Fn(&Peer) -> bool) -> Option<PeerId> {
        let accepted = || self.peers.iter().filter(|(_, peer)| peer.has_a_say());
        let any = accepted().any(|(_, peer)| voted(peer));
        only(accepted().filter(|(_, peer)| !voted(peer)).map(|(id, _)| *id)).filter(|_| any)
    }

    /// Whether nothing but its caller keeps an accepted peer from voting: it takes part in no transfer.
    fn is_free(&self, id: PeerId) -> bool {
        let Some(peer) = self.peers.get(&id).filter(|peer| peer.accepted()) else { return false };
        let Some(group) = self.groups.get(&peer.group()) else { return false };
        let moves = group.ops.values().any(|op| matches!(op, Op::Running { .. }) && op.involves(id));
        let syncs = group.sync.as_ref().is_some_and(|s| matches!(s, Sync::Running { .. }) && s.involves(id));
        !moves && !syncs
    }
}

/// The only member of a ring that has not voted. Where there is a vote, at least one other has.
fn member_without(group: &Group, voted: impl Fn(PeerId) -> bool) -> Option<PeerId> {
    only(group.ring.iter().copied().filter(|peer| !voted(*peer)))
}

fn only(mut peers: impl Iterator<Item = PeerId>) -> Option<PeerId> {
    let first = peers.next();
    first.filter(|_| peers.next().is_none())
}
