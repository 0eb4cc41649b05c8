//! Edges between two members that send to each other, where neither ring nor mesh has such an edge.
//!
//! They are planned when the first of the two votes for an operation between them, in a plan that keeps all other
//! edges, and stay as long as both are members and they do not fail. A member that has as many as it can have loses one
//! that is not in use.

use super::all_groups::Groups;
use super::connectivity::Net;
use super::edges::{Edge, EdgeEnds, Wanted};
use super::group::Group;
use super::losses::BrokenEdge;
use crate::state::membership::members::Roll;
use crate::state::operations::collective::Step;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_protocol::{
    Algorithm, Cause, CollectiveId, CollectiveKind, EdgeFault, OpId, Pair, PeerId, Purpose, Text, limits,
};
use std::collections::BTreeSet;

/// How it is with the edge from one member to another.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum PairState {
    /// Both ends have said that it stands.
    Stands,
    /// It is planned, or about to be.
    Coming,
    /// It failed a short time ago, or one end has as many of them as it can have.
    Failed(Text),
}

impl Net {
    /// The edges between pairs that a ring in this order keeps: all whose ends are in it, but for those that failed.
    pub(crate) fn kept_pairs(&self, order: &[PeerId]) -> Vec<Wanted> {
        let stays = |(ends, edge): (EdgeEnds, &Edge)| {
            let is_here = order.contains(&ends.0) && order.contains(&ends.1);
            (is_here && !self.pairs.failed.contains_key(&ends)).then_some(Wanted {
                ends,
                purpose: Purpose::Pair,
                connections: edge.connections,
                back: false,
            })
        };
        self.edges.all_for(Purpose::Pair).filter_map(stays).collect()
    }

    /// The edge between these members, whatever it is planned for. One of the mesh that has failed is built anew much
    /// later, and gives way to one for the two.
    pub(crate) fn usable_edge(&self, ends: EdgeEnds) -> Option<&Edge> {
        let is_lost = |edge: &Edge| edge.purpose == Purpose::Mesh && self.mesh.has_fault_of(ends);
        self.edges.get(ends).filter(|edge| !is_lost(edge))
    }
}

impl Group {
    /// Whether both peers are members, and each can have one more edge to a single other one.
    fn has_room_for(&self, ends: EdgeEnds) -> bool {
        let edges_of = |peer: PeerId| {
            let planned = self.net.edges.all_for(Purpose::Pair).map(|(ends, _)| ends);
            let stays = planned.filter(|ends| !self.net.pairs.unused.contains(ends));
            stays
                .chain(self.net.pairs.wanted.iter().copied())
                .filter(|it| it.0 == peer || it.1 == peer)
                .count()
        };
        let is_free = |peer: PeerId| self.ring.contains(&peer) && edges_of(peer) < limits::MAX_PAIRS_OF_PEER;
        ends.0 != ends.1 && is_free(ends.0) && is_free(ends.1)
    }

    /// Where a peer has as many edges to single other ones as it can have, one of them that no operation has in flight
    /// is to go.
    fn make_room_for(&mut self, ends: EdgeEnds) {
        let used: BTreeSet<EdgeEnds> =
            self.work.ops.keys().filter_map(|id| id.tag.pair).map(|pair| (pair.from, pair.to)).collect();
        for peer in [ends.0, ends.1] {
            let mine = |(from, to): &EdgeEnds| *from == peer || *to == peer;
            let planned = self.net.edges.all_for(Purpose::Pair).map(|(ends, _)| ends).filter(mine);
            let stays: Vec<EdgeEnds> = planned.filter(|ends| !self.net.pairs.unused.contains(ends)).collect();
            let wanted = self.net.pairs.wanted.iter().filter(|ends| mine(ends)).count();
            if stays.len() + wanted >= limits::MAX_PAIRS_OF_PEER {
                self.net.pairs.unused.extend(stays.into_iter().find(|ends| !used.contains(ends)));
            }
        }
    }

    /// How it is with the edge between these members.
    pub(crate) fn pair_state(&self, ends: EdgeEnds, now: Timestamp) -> PairState {
        match (self.net.usable_edge(ends), self.net.pairs.failed.get(&ends)) {
            (Some(edge), _) if edge.is_up() && edge.held().is_none() => PairState::Stands,
            (None, Some((until, text))) if *until > now => PairState::Failed(text.clone()),
            (None, _) if !self.net.pairs.wanted.contains(&ends) && !self.has_room_for(ends) => {
                let most = limits::MAX_PAIRS_OF_PEER;
                PairState::Failed(Text::new(format!("one of the two has {most} such edges, the limit")))
            }
            _ => PairState::Coming,
        }
    }

    /// Asks for an edge from one member to another. Where there is one already, for whatever purpose, or where it
    /// failed a short time ago, nothing happens; [`Group::pair_state`] tells which. Whether it was asked for just now.
    pub(crate) fn want_pair(&mut self, pair: Pair, now: Timestamp) -> bool {
        self.net.pairs.failed.retain(|_, (until, _)| *until > now);
        let ends = (pair.from, pair.to);
        if self.net.usable_edge(ends).is_some() || self.net.pairs.failed.contains_key(&ends) {
            return false;
        }
        self.make_room_for(ends);
        self.has_room_for(ends) && self.net.pairs.wanted.insert(ends)
    }

    /// The next step of an operation between two members for which all have voted who are there.
    pub(crate) fn begin_between(&self, roll: &Roll, id: OpId, pair: Pair) -> Step {
        let id = CollectiveId { kind: CollectiveKind::SendRecv, op: id };
        let ends = (pair.from, pair.to);
        if let Some(gone) = [pair.from, pair.to].into_iter().find(|end| !self.ring.contains(end)) {
            let text = format!("{gone} is no member of the group");
            return Step::Decide(roll.refused(id, Cause::WorldChanged, &[gone], &text));
        }
        let apart = roll.why_apart(ends).map(|why| PairState::Failed(Text::new(why)));
        match apart.unwrap_or_else(|| self.pair_state(ends, roll.now)) {
            PairState::Stands => Step::Commence(Algorithm::Ring),
            PairState::Coming => Step::Wait,
            PairState::Failed(text) => {
                let text = format!("there is no connection from {} to {}: {text}", pair.from, pair.to);
                Step::Decide(roll.refused(id, Cause::EdgeBroken, &[pair.from, pair.to], &text))
            }
        }
    }

    /// An edge between a pair could not be built, broke, or stands still (`stalled_ms` is not 0 then). The next plan
    /// does not have it.
    pub(crate) fn pair_fault(&mut self, roll: &Roll, out: &mut Outbox, fault: &EdgeFault, stalled_ms: u64) {
        let until = roll.now + roll.options.edge_grace;
        out.changed = true;
        let ends = (fault.from, fault.to);
        self.net.pairs.failed.insert(ends, (until, fault.text.clone()));
        self.net.edges.note_failed(ends, fault.generation);
        if stalled_ms > 0 {
            let (generation, text) = (fault.generation, fault.text.clone());
            let broken = BrokenEdge { ends, generation, stalled_ms, is_final: true, text };
            self.work.note_broken(&broken, |_, _| false);
        }
        out.info(format!("{} failed: {}", roll.name_of_edge(ends), fault.text));
    }

    /// Forgets what cannot be built, or need not be any more. Whether edges are to be planned, or some to go.
    fn look_at_pairs(&mut self) -> bool {
        let mut wanted = std::mem::take(&mut self.net.pairs.wanted);
        wanted.retain(|(from, to)| {
            let are_members = self.ring.contains(from) && self.ring.contains(to);
            are_members && self.net.usable_edge((*from, *to)).is_none()
        });
        self.net.pairs.wanted = wanted;
        let Net { edges, pairs, .. } = &self.net;
        let has_failed = |(ends, _): (EdgeEnds, &Edge)| pairs.failed.contains_key(&ends);
        !self.next.is_due && (!pairs.wanted.is_empty() || edges.all_for(Purpose::Pair).any(has_failed))
    }

    fn change_pairs(&mut self, roll: &Roll) {
        self.begin_epoch();
        let Net { edges, pairs, .. } = &mut self.net;
        // One connection, as in the mesh.
        let wanted =
            |ends| Wanted { ends, purpose: Purpose::Pair, connections: 1, back: roll.dials_back(ends) };
        let is_over = |ends| pairs.failed.contains_key(&ends) || pairs.unused.contains(&ends);
        edges.change_pairs(pairs.wanted.iter().copied().map(wanted), is_over, self.epoch);
        pairs.wanted.clear();
        pairs.unused.clear();
        self.work.end_what_has_no_edge(edges);
    }
}

impl Groups {
    /// Rule: edges that were asked for are planned, and those that failed are not any more. Everything else stays as it
    /// is.
    pub(crate) fn plan_pairs(&mut self, roll: &mut Roll, out: &mut Outbox) -> bool {
        let mut fired = false;
        for (id, group) in self.iter_mut() {
            if group.look_at_pairs() {
                group.change_pairs(roll);
                group.push_ring(*id, roll, out);
                fired = true;
            }
        }
        fired
    }
}
