//! Stragglers: a peer that alone holds up a vote, and since when. Without
//! [`Options::straggler_timeout`](crate::state::Options) no peer is watched.
//!
//! Only a caller that has not made a call is blamed: never a peer that is part of a transfer (what it is late for then
//! is the transfer, which may be as slow as it likes), never one that may be dead or that waits for such a one, and
//! never one of several.

use crate::state::groups::all_groups::Groups;
use crate::state::groups::group::{Group, Op, Sync};
use crate::state::membership::admission::Admission;
use crate::state::membership::client::Peer;
use crate::state::membership::members::Roll;
use crate::state::types::Timestamp;
use pccl_protocol::{CollectiveId, GroupId, KickCode, KickReason, PeerId};
use std::collections::BTreeMap;
use std::fmt;

/// A vote that a caller can hold up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(crate) enum Vote {
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
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct Straggler {
    peer: PeerId,
    since: Timestamp,
}

/// The peers each of which alone holds up a vote.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Stragglers(BTreeMap<Vote, Straggler>);

impl Stragglers {
    /// Notes who alone holds up which vote now. After every change of the facts.
    pub(crate) fn watch(&mut self, roll: &Roll, groups: &Groups, admission: &Admission) {
        if roll.options.straggler_timeout.is_none() {
            return;
        }
        let missing = missing_alone(roll, groups, admission);
        let may_be_dead: Vec<(Vote, PeerId)> =
            missing.iter().filter(|(_, silent)| roll.suspect(*silent)).copied().collect();
        let mut watched = BTreeMap::new();
        for (vote, peer) in &missing {
            // The time in which it waits itself for one that may be dead does not count.
            let waits = may_be_dead
                .iter()
                .any(|(other, silent)| silent != peer && has_voted(roll, groups, *peer, *other));
            let known = self.0.get(vote).filter(|known| known.peer == *peer && !waits);
            let fresh = Straggler { peer: *peer, since: roll.now };
            watched.insert(*vote, known.copied().unwrap_or(fresh));
        }
        self.0 = watched;
    }

    /// The peer that has held up a vote for too long, and why it has to go: the one that began first, since the loss of
    /// one may free the others.
    pub(crate) fn late(&self, roll: &Roll) -> Option<(PeerId, KickReason)> {
        let timeout = roll.options.straggler_timeout?;
        let due = |s: &Straggler| s.since + timeout <= roll.now && !roll.suspect(s.peer);
        let late = self.0.iter().filter(|(_, s)| due(s)).min_by_key(|(vote, s)| (s.since, **vote));
        let (vote, straggler) = late?;
        let held = roll.now.since(straggler.since).as_secs_f64();
        let seen = roll.peers.get(&straggler.peer).map(|peer| roll.call_of(peer)).unwrap_or_default();
        let text = format!(
            "its caller alone held up {vote} for {held:.1} s, the limit is {:.1} s; it was last seen {seen}",
            timeout.as_secs_f64()
        );
        Some((straggler.peer, KickReason::new(KickCode::Straggler, text)))
    }

    /// When a straggler has to be judged. One that may be dead is judged when it is heard again, or dropped as silent.
    pub(crate) fn deadline(&self, roll: &Roll) -> Option<Timestamp> {
        let timeout = roll.options.straggler_timeout?;
        let deadlines = self.0.values().map(|s| (s.since + timeout, s.peer));
        deadlines.filter(|(due, peer)| *due > roll.now || !roll.suspect(*peer)).map(|(due, _)| due).min()
    }

    /// Moves the beginnings by a time in which the caller of this machine stood still.
    pub(crate) fn extend(&mut self, past: impl Fn(&mut Timestamp)) {
        self.0.values_mut().for_each(|straggler| past(&mut straggler.since));
    }
}

fn has_voted(roll: &Roll, groups: &Groups, id: PeerId, vote: Vote) -> bool {
    let peer = roll.peers.get(&id);
    match vote {
        Vote::Topology => peer.is_some_and(|peer| peer.topology().is_some()),
        Vote::Optimize => peer.is_some_and(|peer| peer.optimize().is_some()),
        Vote::Pending => peer.is_some_and(|peer| peer.query().is_some()),
        Vote::Collective(group, CollectiveId { op, .. }) => {
            groups.get(&group).and_then(|group| group.work.ops.get(&op)).is_some_and(|op| op.involves(id))
        }
        Vote::Sync(group) => groups
            .get(&group)
            .and_then(|group| group.shared.sync.as_ref())
            .is_some_and(|sync| sync.involves(id)),
    }
}

/// Votes of which exactly one is missing, with the peer whose it is.
fn missing_alone(roll: &Roll, groups: &Groups, admission: &Admission) -> Vec<(Vote, PeerId)> {
    let mut all = Vec::new();
    if admission.waits_for_votes(roll, groups) {
        all.extend(voter_without(roll, |peer| peer.topology().is_some()).map(|peer| (Vote::Topology, peer)));
    }
    if admission.round.is_none() {
        all.extend(voter_without(roll, |peer| peer.optimize().is_some()).map(|peer| (Vote::Optimize, peer)));
    }
    all.extend(voter_without(roll, |peer| peer.query().is_some()).map(|peer| (Vote::Pending, peer)));
    for (id, group) in groups.iter() {
        for (op, state) in group.work.ops.iter() {
            // A peer that sends or receives waits for nobody but the other one, whose turn may be much later.
            if let Op::Voting { votes, .. } = state
                && op.tag.pair.is_none()
                && votes.len() + 1 == group.ring.len()
            {
                let missing = member_without(group, |peer| state.involves(peer));
                all.extend(missing.map(|peer| (Vote::Collective(*id, state.named(*op)), peer)));
            }
        }
        if let Some(sync @ Sync::Voting { .. }) = &group.shared.sync {
            let missing = member_without(group, |peer| sync.involves(peer));
            all.extend(missing.map(|peer| (Vote::Sync(*id), peer)));
        }
    }
    all.retain(|(_, peer)| is_free(roll, groups, *peer));
    all
}

/// The only accepted peer that has not voted, if at least one other has.
fn voter_without(roll: &Roll, voted: impl Fn(&Peer) -> bool) -> Option<PeerId> {
    let any = roll.voters().any(|(_, peer)| voted(peer));
    only(roll.voters().filter(|(_, peer)| !voted(peer)).map(|(id, _)| id)).filter(|_| any)
}

/// Whether nothing but its caller keeps an accepted peer from voting: it takes part in no transfer.
fn is_free(roll: &Roll, groups: &Groups, id: PeerId) -> bool {
    let Some(peer) = roll.peers.get(&id).filter(|peer| peer.accepted()) else { return false };
    let Some(group) = groups.get(&peer.group()) else { return false };
    let moves = group.work.ops.values().any(|op| matches!(op, Op::Running { .. }) && op.involves(id));
    let sync = group.shared.sync.as_ref();
    let syncs = sync.is_some_and(|s| matches!(s, Sync::Running { .. }) && s.involves(id));
    !moves && !syncs
}

/// The only member of a ring that has not voted. Where there is a vote, at least one other has.
fn member_without(group: &Group, voted: impl Fn(PeerId) -> bool) -> Option<PeerId> {
    only(group.ring.iter().copied().filter(|peer| !voted(*peer)))
}

fn only(mut peers: impl Iterator<Item = PeerId>) -> Option<PeerId> {
    let first = peers.next();
    first.filter(|_| peers.next().is_none())
}
