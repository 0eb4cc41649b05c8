//! Words and numbers that answers and verdicts are made of.

use super::MasterState;
use super::client::Peer;
use super::edges::EdgeEnds;
use pccl_protocol::{CallKind, Culprit, GroupId, Host, Name, PeerId, WorldSizes};
use std::collections::BTreeMap;

/// Names listed in one sentence; the rest is counted.
const NAMES_MAX: usize = 4;

impl MasterState {
    /// Identity and address of a peer, or its identity alone if it has gone.
    pub(super) fn name_of(&self, id: PeerId) -> String {
        self.peers.get(&id).map_or_else(|| id.to_string(), |peer| peer.name(id))
    }

    /// Both ends of an edge, for sentences.
    pub(super) fn name_of_edge(&self, (from, to): EdgeEnds) -> String {
        format!("edge {} -> {}", self.name_of(from), self.name_of(to))
    }

    pub(super) fn culprit_of(&self, id: PeerId) -> Culprit {
        self.peers.get(&id).map_or_else(
            || Culprit { peer: id, host: Host::default(), name: Name::default() },
            |peer| peer.culprit(id),
        )
    }

    /// Accepted peers in the world.
    pub(super) fn accepted_count(&self) -> u32 {
        count(self.peers.values().filter(|peer| peer.accepted()).count())
    }

    /// Accepted peers of each group that has any.
    pub(super) fn group_counts(&self) -> BTreeMap<GroupId, u32> {
        let mut counts = BTreeMap::new();
        for peer in self.peers.values().filter(|peer| peer.accepted()) {
            *counts.entry(peer.group()).or_insert(0) += 1;
        }
        counts
    }

    /// The sizes of the world as a member of `group` sees them.
    pub(super) fn sizes(&self, group: GroupId) -> WorldSizes {
        self.sizes_from(&self.group_counts(), group)
    }

    pub(super) fn sizes_from(&self, counts: &BTreeMap<GroupId, u32>, group: GroupId) -> WorldSizes {
        WorldSizes {
            world_epoch: self.world_epoch,
            global: counts.values().sum(),
            group: counts.get(&group).copied().unwrap_or(0),
            groups: count(counts.len()),
            largest_group: counts.values().copied().max().unwrap_or(0),
            min_world: self.options.min_world_size,
        }
    }

    /// "peer A, last seen in call X for 12 s, peer B, ... and 3 more".
    pub(super) fn list_peers(&self, ids: impl Iterator<Item = PeerId>) -> String {
        let ids: Vec<PeerId> = ids.collect();
        let mut text: Vec<String> = ids.iter().take(NAMES_MAX).map(|id| self.last_seen(*id)).collect();
        if ids.len() > NAMES_MAX {
            text.push(format!("{} more", ids.len() - NAMES_MAX));
        }
        text.join("; ")
    }

    fn last_seen(&self, id: PeerId) -> String {
        let Some(peer) = self.peers.get(&id) else { return id.to_string() };
        let Some((beat, at)) = &peer.beat else { return format!("peer {}, no beat yet", peer.name(id)) };
        let call = if beat.call == CallKind::None { "no call".to_owned() } else { beat.call.to_string() };
        let late = self.now.since(*at) > self.options.suspicion();
        format!("peer {}, in {call}{}", peer.name(id), if late { ", no beat lately" } else { "" })
    }

    pub(super) fn call_of(&self, peer: &Peer) -> String {
        let Some((beat, at)) = &peer.beat else { return "no beat yet".to_owned() };
        let ago = self.now.since(*at);
        let in_call = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX).saturating_add(beat.call_ms);
        let silent = if ago > self.options.suspicion() {
            format!(", no beat for {:.1} s", ago.as_secs_f64())
        } else {
            String::new()
        };
        if beat.call == CallKind::None {
            // How long a caller has been in no call is not known.
            return format!("in no call{silent}");
        }
        format!("in {} for {} s{silent}", beat.call, Seconds(in_call))
    }
}

/// Milliseconds that are shown as seconds.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 100)
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
