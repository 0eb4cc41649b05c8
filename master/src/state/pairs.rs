//! Edges between two members that send to each other, where neither ring nor mesh has such an edge.
//!
//! They are planned when somebody asks for them, in a plan that continues the one before, and stay until the members of
//! the group change or they fail.

use super::edges::{Edge, EdgeEnds, Wanted};
use super::group::Group;
use super::{MasterState, Timestamp};
use pccl_protocol::{EdgeFault, GroupId, PeerId, Purpose, Text, limits};
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
    /// Edges that failed, until when that is remembered, and why.
    failed: BTreeMap<EdgeEnds, (Timestamp, Text)>,
}

impl Group {
    /// The edges between pairs that a ring in this order keeps: all, as long as the members are the same.
    pub(super) fn kept_pairs(&self, order: &[PeerId]) -> Vec<Wanted> {
        let stays = |(ends, edge): (EdgeEnds, &Edge)| {
            let has_failed = self.pairs.failed.contains_key(&ends);
            (!has_failed && self.has_members(order)).then_some(Wanted {
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
            self.edges.all_for(Purpose::Pair).filter(|((from, to), _)| *from == peer || *to == peer).count()
        };
        let is_free = |peer: PeerId| self.ring.contains(&peer) && edges_of(peer) < limits::MAX_PAIRS_OF_PEER;
        ends.0 != ends.1 && is_free(ends.0) && is_free(ends.1)
    }

    /// How it is with the edge between these members, whatever it is planned for.
    #[cfg_attr(not(test), expect(dead_code, reason = "for operations between two members"))]
    pub(super) fn pair_state(&self, ends: EdgeEnds) -> PairState {
        match (self.edges.get(ends), self.pairs.failed.get(&ends)) {
            (Some(edge), _) if edge.is_up() && edge.held.is_none() => PairState::Stands,
            (_, Some((_, text))) => PairState::Failed(text.clone()),
            (None, None) if !self.has_room_for(ends) => {
                PairState::Failed(Text::new("no edge can be planned"))
            }
            _ => PairState::Coming,
        }
    }
}

impl MasterState {
    /// Asks for an edge from one member of a group to another. Where there is one already, for whatever purpose, or
    /// where it failed a short time ago, nothing happens; [`Group::pair_state`] tells which.
    #[cfg_attr(not(test), expect(dead_code, reason = "for operations between two members"))]
    pub(super) fn want_pair(&mut self, group_id: GroupId, from: PeerId, to: PeerId) {
        let now = self.now;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        group.pairs.failed.retain(|_, (until, _)| *until > now);
        let ends = (from, to);
        let is_there = group.edges.get(ends).is_some() || group.pairs.failed.contains_key(&ends);
        if !is_there && group.has_room_for(ends) {
            self.changed |= group.pairs.wanted.insert(ends);
        }
    }

    /// An edge between a pair could not be built, broke, or stands still. The next plan does not have it.
    pub(super) fn pair_fault(&mut self, group_id: GroupId, fault: &EdgeFault) {
        let until = self.now + self.options.edge_grace;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        self.changed = true;
        group.pairs.failed.insert((fault.from, fault.to), (until, fault.text.clone()));
        let edge = self.name_of_edge((fault.from, fault.to));
        self.info(format!("{edge} failed: {}", fault.text));
    }

    /// Rule: edges that were asked for are planned, and those that failed are not any more. Everything else stays as it
    /// is.
    pub(super) fn plan_pairs(&mut self) -> bool {
        let mut due = Vec::new();
        for (id, group) in &mut self.groups {
            let Group { edges, pairs, ring, .. } = group;
            pairs.wanted.retain(|ends| {
                let are_members = ring.contains(&ends.0) && ring.contains(&ends.1);
                are_members && edges.get(*ends).is_none()
            });
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
                edges.change_pairs(wanted, |ends| pairs.failed.contains_key(&ends), *epoch);
            }
            self.push_ring(*id);
        }
        !due.is_empty()
    }
}
