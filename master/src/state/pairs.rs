//! Edges between two members that send to each other, where neither ring nor mesh has such an edge.
//!
//! They are planned when the first of the two votes for an operation between them, in a plan that keeps all other
//! edges, and stay as long as both are members and they do not fail. Who has as many as it can have loses one that is
//! not in use.

use super::collective::Step;
use super::edges::{Edge, EdgeEnds, Wanted};
use super::group::{BrokenEdge, Group, Op};
use super::{MasterState, Timestamp};
use pccl_protocol::{
    Algorithm, Cause, CollectiveId, CollectiveKind, EdgeFault, GroupId, LinkGeneration, OpId, Pair, PeerId,
    Purpose, Tag, Text, limits,
};
use std::collections::{BTreeMap, BTreeSet};

/// How it is with the edge from one member to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PairState {
    /// Both ends have said that it stands.
    Stands,
    /// It is planned, or about to be.
    Coming,
    /// It failed a short time ago, or one end has as many of them as it can have.
    Failed(Text),
}

/// What is asked for, and what has failed.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    wanted: BTreeSet<EdgeEnds>,
    /// Edges that make room for others.
    unused: BTreeSet<EdgeEnds>,
    /// Edges that failed, until when that is remembered, and why.
    failed: BTreeMap<EdgeEnds, (Timestamp, Text)>,
}

impl Group {
    /// The edges between pairs that a ring in this order keeps: all whose ends are in it, but for those that failed.
    pub(super) fn kept_pairs(&self, order: &[PeerId]) -> Vec<Wanted> {
        let stays = |(ends, edge): (EdgeEnds, &Edge)| {
            let is_here = order.contains(&ends.0) && order.contains(&ends.1);
            (is_here && !self.pairs.failed.contains_key(&ends)).then_some(Wanted {
                ends,
                purpose: Purpose::Pair,
                connections: edge.connections,
            })
        };
        self.edges.all_for(Purpose::Pair).filter_map(stays).collect()
    }

    /// Whether both peers are members, and each can have one more edge to a single other one.
    fn has_room_for(&self, ends: EdgeEnds) -> bool {
        let edges_of = |peer: PeerId| {
            let planned = self.edges.all_for(Purpose::Pair).map(|(ends, _)| ends);
            let stays = planned.filter(|ends| !self.pairs.unused.contains(ends));
            stays.chain(self.pairs.wanted.iter().copied()).filter(|it| it.0 == peer || it.1 == peer).count()
        };
        let is_free = |peer: PeerId| self.ring.contains(&peer) && edges_of(peer) < limits::MAX_PAIRS_OF_PEER;
        ends.0 != ends.1 && is_free(ends.0) && is_free(ends.1)
    }

    /// Where a peer has as many edges to single other ones as it can have, one of them that no operation has in flight
    /// is to go.
    fn make_room_for(&mut self, ends: EdgeEnds) {
        let used: BTreeSet<EdgeEnds> =
            self.ops.keys().filter_map(|id| id.tag.pair).map(|pair| (pair.from, pair.to)).collect();
        for peer in [ends.0, ends.1] {
            let mine = |(from, to): &EdgeEnds| *from == peer || *to == peer;
            let planned = self.edges.all_for(Purpose::Pair).map(|(ends, _)| ends).filter(mine);
            let stays: Vec<EdgeEnds> = planned.filter(|ends| !self.pairs.unused.contains(ends)).collect();
            let wanted = self.pairs.wanted.iter().filter(|ends| mine(ends)).count();
            if stays.len() + wanted >= limits::MAX_PAIRS_OF_PEER {
                self.pairs.unused.extend(stays.into_iter().find(|ends| !used.contains(ends)));
            }
        }
    }

    /// The edge between these members, whatever it is planned for. One of the mesh that has failed is built anew much
    /// later, and gives way to one for the two.
    fn usable_edge(&self, ends: EdgeEnds) -> Option<&Edge> {
        let is_lost = |edge: &Edge| edge.purpose == Purpose::Mesh && self.mesh.has_fault_of(ends);
        self.edges.get(ends).filter(|edge| !is_lost(edge))
    }

    /// How it is with the edge between these members.
    pub(super) fn pair_state(&self, ends: EdgeEnds, now: Timestamp) -> PairState {
        match (self.usable_edge(ends), self.pairs.failed.get(&ends)) {
            (Some(edge), _) if edge.is_up() && edge.held.is_none() => PairState::Stands,
            (None, Some((until, text))) if *until > now => PairState::Failed(text.clone()),
            (None, _) if !self.pairs.wanted.contains(&ends) && !self.has_room_for(ends) => {
                let most = limits::MAX_PAIRS_OF_PEER;
                PairState::Failed(Text::new(format!("one of the two has {most} such edges, the limit")))
            }
            _ => PairState::Coming,
        }
    }

    /// The generation of the edge that an operation with this tag runs on, if it is between two members.
    pub(super) fn edge_of(&self, tag: Tag) -> Option<LinkGeneration> {
        let Pair { from, to } = tag.pair?;
        Some(self.edges.get((from, to))?.generation)
    }

    /// After a new plan: what runs between two members ends if its edge is planned no more, for nobody else would end
    /// it.
    pub(super) fn end_what_has_no_edge(&mut self) {
        let edges = &self.edges;
        self.ops.change_some(|id, op| {
            let (Op::Running { broken, edge: Some(generation), .. }, Some(pair)) = (op, id.tag.pair) else {
                return false;
            };
            let (ends, generation) = ((pair.from, pair.to), *generation);
            let is_gone = edges.named(ends, generation).is_none();
            if is_gone {
                let text = Text::new("a new plan of the group replaced its connections");
                broken.push(BrokenEdge { ends, generation, stalled_ms: 0, is_final: true, text });
            }
            is_gone
        });
    }
}

impl MasterState {
    /// Asks for an edge from one member of a group to another. Where there is one already, for whatever purpose, or
    /// where it failed a short time ago, nothing happens; [`Group::pair_state`] tells which.
    pub(super) fn want_pair(&mut self, group_id: GroupId, pair: Pair) {
        let now = self.now;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        group.pairs.failed.retain(|_, (until, _)| *until > now);
        let ends = (pair.from, pair.to);
        let is_there = group.usable_edge(ends).is_some() || group.pairs.failed.contains_key(&ends);
        if is_there {
            return;
        }
        group.make_room_for(ends);
        if group.has_room_for(ends) {
            self.changed |= group.pairs.wanted.insert(ends);
        }
    }

    /// What is to be done about an operation between two members for which all have voted who are there.
    pub(super) fn begin_between(&self, group: &Group, id: OpId, pair: Pair) -> Step {
        let id = CollectiveId { kind: CollectiveKind::SendRecv, op: id };
        let ends = (pair.from, pair.to);
        if let Some(gone) = [pair.from, pair.to].into_iter().find(|end| !group.ring.contains(end)) {
            let text = format!("{gone} is no member of the group");
            return Step::Decide(self.refused(id, Cause::WorldChanged, &[gone], &text));
        }
        match group.pair_state(ends, self.now) {
            PairState::Stands => Step::Commence(Algorithm::Ring),
            PairState::Coming => Step::Wait,
            PairState::Failed(text) => {
                let text = format!("there is no connection from {} to {}: {text}", pair.from, pair.to);
                Step::Decide(self.refused(id, Cause::EdgeBroken, &[pair.from, pair.to], &text))
            }
        }
    }

    /// An edge between a pair could not be built, broke, or stands still (`stalled_ms` is not 0 then). The next plan
    /// does not have it.
    pub(super) fn pair_fault(&mut self, group_id: GroupId, fault: &EdgeFault, stalled_ms: u64) {
        let until = self.now + self.options.edge_grace;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        self.changed = true;
        let ends = (fault.from, fault.to);
        group.pairs.failed.insert(ends, (until, fault.text.clone()));
        if stalled_ms > 0 {
            let (generation, text) = (fault.generation, fault.text.clone());
            let broken = BrokenEdge { ends, generation, stalled_ms, is_final: true, text };
            group.note_broken(&broken, |_, _| false);
        }
        let edge = self.name_of_edge(ends);
        self.info(format!("{edge} failed: {}", fault.text));
    }

    /// Rule: edges that were asked for are planned, and those that failed are not any more. Everything else stays as it
    /// is.
    pub(super) fn plan_pairs(&mut self) -> bool {
        let mut due = Vec::new();
        for (id, group) in &mut self.groups {
            let is_due = |ends: &EdgeEnds| {
                let are_members = group.ring.contains(&ends.0) && group.ring.contains(&ends.1);
                are_members && group.usable_edge(*ends).is_none()
            };
            let wanted: BTreeSet<EdgeEnds> = group.pairs.wanted.iter().copied().filter(is_due).collect();
            group.pairs.wanted = wanted;
            let Group { edges, pairs, .. } = group;
            let has_failed = |(ends, _): (EdgeEnds, &Edge)| pairs.failed.contains_key(&ends);
            if !group.replan && (!pairs.wanted.is_empty() || edges.all_for(Purpose::Pair).any(has_failed)) {
                due.push(*id);
            }
        }
        for id in &due {
            if let Some(group) = self.groups.get_mut(id) {
                group.begin_epoch();
                let wanted = std::mem::take(&mut group.pairs.wanted).into_iter();
                // One connection, as in the mesh.
                let wanted: Vec<Wanted> =
                    wanted.map(|ends| Wanted { ends, purpose: Purpose::Pair, connections: 1 }).collect();
                let Group { edges, pairs, epoch, .. } = group;
                let is_over = |ends| pairs.failed.contains_key(&ends) || pairs.unused.contains(&ends);
                edges.change_pairs(wanted, is_over, *epoch);
                pairs.unused.clear();
                group.end_what_has_no_edge();
            }
            self.push_ring(*id);
        }
        !due.is_empty()
    }
}
