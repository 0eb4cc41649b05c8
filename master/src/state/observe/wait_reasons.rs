//! One sentence for everything that waits: for whom. Since when stands beside it: a sentence changes only with what it
//! says.

use crate::state::MasterState;
use crate::state::groups::all_groups::Groups;
use crate::state::groups::group::{Group, Op, Sync, VoterReport};
use crate::state::membership::client::{CommonVote, Peer};
use crate::state::membership::members::Roll;
use crate::state::membership::sender::Phase;
use crate::state::types::Timestamp;
use pccl_protocol::{GroupId, OpId, PeerId, Purpose, Text};
use std::collections::BTreeSet;

impl MasterState {
    /// As [`MasterState::blocked_for`]. Many ask as long as one is waited for, so who that is is remembered until
    /// something changes.
    pub(crate) fn blocked_for_beat(&mut self, id: PeerId) -> Option<Text> {
        let Self { roll, out, .. } = self;
        let is_given = |vote: &CommonVote| roll.peers.get(&id).is_some_and(|peer| vote.is_given(peer));
        let given = CommonVote::ALL.into_iter().filter(|vote| !out.changed && is_given(vote));
        given.collect::<Vec<_>>().into_iter().for_each(|vote| roll.remember_missing(vote));
        self.blocked_for(id)
    }

    /// A text about what something that `id` voted for waits for, if anything does.
    pub(crate) fn blocked_for(&self, id: PeerId) -> Option<Text> {
        let peer = self.roll.peers.get(&id)?;
        let forming = self.formings.sentence_for(&self.roll, id);
        let sentence = forming.or_else(|| self.blocked_round(id, peer)).or_else(|| {
            let (group_id, group) = self.groups.get_key_value(&peer.group())?;
            if group.shared.sync.as_ref().is_some_and(|sync| sync.involves(id)) {
                return group.sync_sentence(&self.roll, *group_id);
            }
            let (op, state) = group.work.ops.first_of(id)?;
            Some(self.groups.op_sentence(&self.roll, group, op, state))
        });
        let pending = || peer.query().map(|_| self.roll.pending_sentence());
        sentence.or_else(pending).map(Text::new)
    }

    fn blocked_round(&self, id: PeerId, peer: &Peer) -> Option<String> {
        match (peer.phase(), peer.topology()) {
            (Phase::Pending, _) if peer.info.formed => None,
            (Phase::Pending, _) => {
                let probation = self.admission.probation.blocks(&self.roll, peer);
                let history = || self.blocked_by_history(id);
                let ahead = || self.groups.ahead_sentence(&self.roll, peer);
                let outside = || self.roll.why_outside(id);
                let waits = || format!("admission waits for {}", self.roll.missing_for_world());
                Some(probation.or_else(history).or_else(outside).or_else(ahead).unwrap_or_else(waits))
            }
            (Phase::Connecting, _) => Some(self.groups.ring_sentences(&self.roll).join("; ")),
            (Phase::Accepted, Some(vote)) => Some(self.blocked_topology(vote.wait_for_world)),
            (Phase::Accepted, None) => {
                peer.optimize().map(|_| self.optimizer.sentence(&self.roll, &self.groups))
            }
        }
    }

    fn blocked_topology(&self, wait_for_world: u32) -> String {
        let what = match wait_for_world {
            0 => "update_topology".to_owned(),
            want => format!("wait_for_world({want}) with {} accepted peers", self.roll.accepted_count()),
        };
        let reason = match self.admission.round {
            Some(_) => self.groups.ring_sentences(&self.roll).join("; "),
            None => self.roll.missing_for_world(),
        };
        format!("{what} waits for {reason}")
    }

    /// One sentence for everything that waits, naming for whom.
    pub fn blocked_on(&self) -> Vec<String> {
        self.waits().into_iter().map(|(_, sentence)| sentence).collect()
    }

    /// Everything that waits: since when, and the sentence.
    pub(crate) fn waits(&self) -> Vec<(Timestamp, String)> {
        let (roll, groups) = (&self.roll, &self.groups);
        let ring =
            |(id, group): (&GroupId, &Group)| Some((group.net.planned_at, group.ring_sentence(roll, *id)?));
        let mut all: Vec<(Timestamp, String)> = groups.iter().filter_map(ring).collect();
        let votes = || roll.peers.values().filter_map(|peer| peer.topology());
        if let Some(since) = votes().map(|vote| vote.since).min() {
            let want = votes().map(|vote| vote.wait_for_world).min().unwrap_or(0);
            all.push((since, self.blocked_topology(want)));
        }
        let first = roll.peers.values().filter_map(|peer| peer.optimize()).map(|vote| vote.since).min();
        all.extend(first.map(|since| (since, self.optimizer.sentence(roll, groups))));
        let first = roll.peers.values().filter_map(|peer| peer.query()).map(|vote| vote.since).min();
        all.extend(first.map(|since| (since, roll.pending_sentence())));
        all.extend(self.formings.waits(roll));
        all.extend(roll.closed_waits());
        all.extend(roll.outside_waits());
        all.extend(self.revision_waits());
        all.extend(self.ahead_waits());
        for (id, group) in groups.iter() {
            let sync = group.shared.sync.as_ref().map(|sync| match sync {
                Sync::Voting { since, .. } | Sync::Running { since, .. } => *since,
            });
            all.extend(sync.and_then(|since| Some((since, group.sync_sentence(roll, *id)?))));
            all.extend(group.work.ops.iter().map(|(op, state)| {
                let (Op::Voting { since, .. } | Op::Running { since, .. }) = state;
                (*since, groups.op_sentence(roll, group, *op, state))
            }));
        }
        if let Some(round) = &self.admission.round {
            all.push((round.since, "admission round waits for the rings".to_owned()));
        }
        all
    }
}

impl Roll {
    /// Voters that have not given a vote, in words.
    fn list_voters_without(&self, vote: CommonVote) -> String {
        self.list_peers(self.missing_for(vote).iter().copied())
    }

    /// The peers or facts that keep the next round from beginning.
    pub(crate) fn missing_for_world(&self) -> String {
        if self.missing_for(CommonVote::Topology).is_empty() {
            let outside = self.outside_waits().into_iter().next();
            let outside = outside.map_or(String::new(), |(_, text)| format!(" ({text})"));
            return format!("more peers to connect{outside}");
        }
        let who = self.list_voters_without(CommonVote::Topology);
        let why = if self.waits_for_another_group() {
            ", as newcomers are let in by all groups together"
        } else {
            ""
        };
        format!("the topology vote of {who}{why}")
    }

    /// Whether somebody is waited for whose group nobody wants to join.
    fn waits_for_another_group(&self) -> bool {
        let wanted: BTreeSet<GroupId> = self.newcomers().map(|(_, peer)| peer.group()).collect();
        let missing = self.missing_for(CommonVote::Topology);
        let mut groups = missing.iter().filter_map(|id| self.peers.get(id)).map(Peer::group);
        !wanted.is_empty() && groups.any(|group| !wanted.contains(&group))
    }

    /// The peers that keep the pending query from being answered.
    pub(crate) fn missing_for_pending(&self) -> String {
        self.list_voters_without(CommonVote::Pending)
    }

    /// The peers that keep an optimisation from beginning.
    pub(crate) fn missing_for_optimization(&self) -> String {
        format!("the vote of {}", self.list_voters_without(CommonVote::Optimize))
    }

    fn pending_sentence(&self) -> String {
        format!("are_peers_pending waits for {}", self.missing_for_pending())
    }
}

impl Group {
    /// A sentence about what its ring waits for, if it does not stand.
    pub(crate) fn ring_sentence(&self, roll: &Roll, id: GroupId) -> Option<String> {
        if self.ring_confirmed(roll) {
            return None;
        }
        let missing = self.net.edges.missing(Purpose::Ring).into_iter();
        let held = self.net.edges.held();
        let faults: String = held
            .map(|((from, to), fault)| format!(", edge {from} -> {to} failed ({})", fault.text))
            .collect();
        let (ring, who) = (format!("ring {} of group {id}", self.epoch), roll.list_peers(missing));
        if self.reach.check.is_some() {
            let what = format!("{ring} waits until its members know whom they reach");
            return Some(format!("{what}, and for {who}{faults}"));
        }
        Some(format!("{ring} waits for {who}{faults}"))
    }

    fn sync_sentence(&self, roll: &Roll, id: GroupId) -> Option<String> {
        Some(match self.shared.sync.as_ref()? {
            Sync::Voting { votes, .. } => {
                let missing = self.ring.iter().copied().filter(|peer| !votes.contains_key(peer));
                format!("shared-state sync of group {id} waits to begin for {}", roll.list_peers(missing))
            }
            Sync::Running { sync, voters, .. } => {
                let open = voters.iter().filter(|(_, v)| v.report == VoterReport::Awaited).map(|(id, _)| *id);
                let open: Vec<PeerId> = open.collect();
                if open.is_empty() {
                    let unheard: BTreeSet<PeerId> =
                        voters.values().flat_map(|voter| roll.unheard_sources(&voter.report)).collect();
                    if unheard.is_empty() {
                        return Some(format!("shared-state sync {sync} failed and is about to be judged"));
                    }
                    let unheard = roll.list_peers(unheard.into_iter());
                    return Some(format!(
                        "shared-state sync {sync} failed and waits for a sign of life of {unheard}"
                    ));
                }
                format!("shared-state sync {sync} waits for the end at {}", roll.list_peers(open.into_iter()))
            }
        })
    }
}

impl Groups {
    fn op_sentence(&self, roll: &Roll, group: &Group, id: OpId, op: &Op) -> String {
        match op {
            Op::Voting { missing, .. } => {
                let reason = if !missing.is_empty() {
                    roll.list_peers(missing.iter().copied())
                } else if let Some(pair) = id.tag.pair {
                    format!("the connection of {}", roll.name_of_edge((pair.from, pair.to)))
                } else if group.ring_ready(roll) {
                    let open = roll.list_peers(group.net.edges.missing(Purpose::Mesh).into_iter());
                    format!("the connections beside the ring of {open}")
                } else {
                    self.ring_sentences(roll).join("; ")
                };
                format!("{} waits to begin for {reason}", op.named(id))
            }
            Op::Running { open, .. } => {
                let open = roll.list_peers(open.iter().copied());
                format!("{} waits for the end at {open}", op.named(id))
            }
        }
    }
}
