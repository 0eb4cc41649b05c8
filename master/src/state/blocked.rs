//! One sentence for everything that waits: for whom. Since when stands beside it: a sentence changes only with what it
//! says.

use super::MasterState;
use super::client::{Peer, Phase};
use super::group::{Group, Op, Sync, VoterReport};
use super::types::Timestamp;
use pccl_protocol::{GroupId, OpId, PeerId, Purpose, Text};

impl MasterState {
    /// What something that `id` voted for waits for, if anything does.
    pub(super) fn blocked_for(&self, id: PeerId) -> Option<Text> {
        let peer = self.peers.get(&id)?;
        let group = self.groups.get(&peer.group());
        let sentence = self.blocked_by_forming(id).or_else(|| self.blocked_round(id, peer)).or_else(|| {
            let group = group?;
            if group.sync.as_ref().is_some_and(|sync| sync.involves(id)) {
                return self.blocked_sync(peer.group(), group);
            }
            let (op, state) = group.ops.iter().find(|(_, op)| op.involves(id))?;
            Some(self.blocked_op(group, *op, state))
        });
        let pending = || peer.pending.as_ref().map(|_| self.blocked_pending());
        sentence.or_else(pending).map(Text::new)
    }

    fn blocked_round(&self, id: PeerId, peer: &Peer) -> Option<String> {
        match (peer.phase, &peer.topology) {
            (Phase::Pending, _) if peer.info.formed => None,
            (Phase::Pending, _) => Some(
                self.blocked_by_probation(peer)
                    .or_else(|| self.blocked_by_history(id))
                    .unwrap_or_else(|| format!("admission waits for {}", self.missing_for_world())),
            ),
            (Phase::Connecting, _) => Some(self.ring_sentences().join("; ")),
            (Phase::Accepted, Some(vote)) => Some(self.blocked_topology(vote.wait_for_world)),
            (Phase::Accepted, None) => peer.optimize.as_ref().map(|_| self.blocked_optimization()),
        }
    }

    fn blocked_topology(&self, wait_for_world: u32) -> String {
        let what = match wait_for_world {
            0 => "update_topology".to_owned(),
            want => format!("wait_for_world({want}) with {} accepted peers", self.accepted_count()),
        };
        let reason = match self.round {
            Some(_) => self.ring_sentences().join("; "),
            None => self.missing_for_world(),
        };
        format!("{what} waits for {reason}")
    }

    /// Who or what keeps the next round from beginning.
    pub(super) fn missing_for_world(&self) -> String {
        let silent =
            |(id, peer): (&PeerId, &Peer)| (peer.has_a_say() && peer.topology.is_none()).then_some(*id);
        let missing: Vec<PeerId> = self.peers.iter().filter_map(silent).collect();
        if missing.is_empty() {
            return "more peers to connect".to_owned();
        }
        format!("the topology vote of {}", self.list_peers(missing.into_iter()))
    }

    pub(super) fn ring_sentences(&self) -> Vec<String> {
        self.groups.iter().filter_map(|(id, group)| self.blocked_ring(*id, group)).collect()
    }

    fn blocked_ring(&self, id: GroupId, group: &Group) -> Option<String> {
        if self.ring_confirmed(group) {
            return None;
        }
        let missing = group.edges.missing(Purpose::Ring).into_iter();
        let faults: Vec<String> = group
            .edges
            .held()
            .map(|((from, to), fault)| format!(", edge {from} -> {to} failed ({})", fault.text))
            .collect();
        let who = self.list_peers(missing);
        if group.check.is_some() {
            let faults = faults.concat();
            let what =
                format!("ring {} of group {id} waits until its members know whom they reach", group.epoch);
            return Some(format!("{what}, and for {who}{faults}"));
        }
        Some(format!("ring {} of group {id} waits for {who}{}", group.epoch, faults.concat()))
    }

    fn blocked_pending(&self) -> String {
        format!("are_peers_pending waits for {}", self.missing_for_pending())
    }

    /// Who keeps the pending query from being answered.
    pub(super) fn missing_for_pending(&self) -> String {
        let missing = self.peers.iter().filter(|(_, p)| p.has_a_say() && p.pending.is_none());
        self.list_peers(missing.map(|(id, _)| *id))
    }

    fn blocked_op(&self, group: &Group, id: OpId, op: &Op) -> String {
        match op {
            Op::Voting { votes, .. } => {
                let members = group.members_for(id.tag);
                let missing: Vec<PeerId> = members.filter(|peer| !votes.contains_key(peer)).collect();
                let reason = if !missing.is_empty() {
                    self.list_peers(missing.into_iter())
                } else if let Some(pair) = id.tag.pair {
                    format!("the connection of {}", self.name_of_edge((pair.from, pair.to)))
                } else if self.ring_ready(group) {
                    let open = self.list_peers(group.edges.missing(Purpose::Mesh).into_iter());
                    format!("the connections beside the ring of {open}")
                } else {
                    self.ring_sentences().join("; ")
                };
                format!("{} waits to begin for {reason}", op.named(id))
            }
            Op::Running { participants, .. } => {
                let open = participants.iter().filter(|(_, part)| part.complete.is_none()).map(|(id, _)| *id);
                format!("{} waits for the end at {}", op.named(id), self.list_peers(open))
            }
        }
    }

    fn blocked_sync(&self, id: GroupId, group: &Group) -> Option<String> {
        Some(match group.sync.as_ref()? {
            Sync::Voting { votes, .. } => {
                let members = group.ring.iter().copied();
                let missing = members.filter(|peer| !votes.contains_key(peer));
                format!("shared-state sync of group {id} waits to begin for {}", self.list_peers(missing))
            }
            Sync::Running { sync, voters, .. } => {
                let open = voters.iter().filter(|(_, v)| v.report == VoterReport::Awaited).map(|(id, _)| *id);
                format!("shared-state sync {sync} waits for the end at {}", self.list_peers(open))
            }
        })
    }

    /// One sentence for everything that waits, naming for whom.
    pub fn blocked_on(&self) -> Vec<String> {
        self.waits().into_iter().map(|(_, sentence)| sentence).collect()
    }

    /// Everything that waits: since when, and the sentence.
    pub(super) fn waits(&self) -> Vec<(Timestamp, String)> {
        let rings = self.groups.iter();
        let rings = rings.filter_map(|(id, group)| Some((group.planned_at, self.blocked_ring(*id, group)?)));
        let mut all: Vec<(Timestamp, String)> = rings.collect();
        let votes = || self.peers.values().filter_map(|peer| peer.topology.as_ref());
        if let Some(since) = votes().map(|vote| vote.since).min() {
            let want = votes().map(|vote| vote.wait_for_world).min().unwrap_or(0);
            all.push((since, self.blocked_topology(want)));
        }
        let first =
            self.peers.values().filter_map(|peer| peer.optimize.as_ref()).map(|vote| vote.since).min();
        all.extend(first.map(|since| (since, self.blocked_optimization())));
        let first = self.peers.values().filter_map(|peer| peer.pending.as_ref()).map(|vote| vote.since).min();
        all.extend(first.map(|since| (since, self.blocked_pending())));
        all.extend(self.forming_waits());
        all.extend(self.closed_waits());
        all.extend(self.revision_waits());
        for (id, group) in &self.groups {
            let sync = group.sync.as_ref().map(|sync| match sync {
                Sync::Voting { since, .. } | Sync::Running { since, .. } => *since,
            });
            all.extend(sync.and_then(|since| Some((since, self.blocked_sync(*id, group)?))));
            all.extend(group.ops.iter().map(|(op, state)| {
                let (Op::Voting { since, .. } | Op::Running { since, .. }) = state;
                (*since, self.blocked_op(group, *op, state))
            }));
        }
        if let Some(round) = &self.round {
            all.push((round.since, "admission round waits for the rings".to_owned()));
        }
        all
    }
}
