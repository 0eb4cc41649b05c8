//! The ring of each group: plans, confirmations, faults of edges.

use super::client::Phase;
use super::edges::{EdgeEnds, HeldFault, Mark, Severity, Wanted, ring_of};
use super::flow::Missing;
use super::group::{BrokenEdge, Group, Op};
use super::{MasterState, Timestamp};
use crate::topology::ring_order;
use pccl_protocol::{
    EdgeFault, EdgeReport, GroupId, GroupPlan, KickCode, KickReason, M2c, Member, Paths, PeerId, Purpose,
    StalledEdge, Text, limits,
};
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of a held report when it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// One end may be dead, which would explain it: wait for a sign of life or for its end. Or it could not be built,
    /// and the members are asked whom they reach.
    Hold,
    /// One end has gone, and the edge with it.
    Obsolete,
    /// New connections; the mark says what is remembered against the edge.
    Rebuild(Severity),
}

impl MasterState {
    /// A report must name edges of the reporter, and of the plan that it works on.
    pub(super) fn admit_edge_report(
        &self,
        id: PeerId,
        group: GroupId,
        report: &EdgeReport,
    ) -> Result<(), KickReason> {
        let Some(group) = self.groups.get(&group) else { return Ok(()) };
        let refuse = |text: String| Err(KickReason::new(KickCode::Protocol, text));
        if report.epoch > group.epoch {
            return refuse(format!(
                "reported on plan {}, but the present one is {}",
                report.epoch, group.epoch
            ));
        }
        let broken = report.broken.iter().map(|fault| (fault.from, fault.to, fault.generation));
        for (from, to, generation) in
            report.up.iter().map(|name| (name.from, name.to, name.generation)).chain(broken)
        {
            let is_planned = || group.edges.named((from, to), generation).is_some();
            if (from != id && to != id) || (report.epoch == group.epoch && !is_planned()) {
                return refuse(format!(
                    "reported the edge {from} -> {to}, which is not its own edge of plan {}",
                    report.epoch
                ));
            }
        }
        Ok(())
    }

    pub(super) fn record_edge_report(&mut self, id: PeerId, group_id: GroupId, report: EdgeReport) {
        if let Some(group) = self.groups.get_mut(&group_id) {
            report.up.iter().for_each(|name| group.edges.note_up(id, name));
        }
        for fault in report.broken {
            self.record_fault(id, group_id, fault);
        }
    }

    fn record_fault(&mut self, id: PeerId, group_id: GroupId, fault: EdgeFault) {
        let now = self.now;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let ends = (fault.from, fault.to);
        let stood = group.edges.is_up_at(id, ends);
        let Some(edge) = group.edges.named_mut(ends, fault.generation) else { return };
        match edge.purpose {
            Purpose::Ring => edge.hold(fault.text, !stood, 0, now),
            Purpose::Mesh => self.mesh_fault(group_id, &fault, 0),
            Purpose::Pair => self.pair_fault(group_id, &fault),
        }
    }

    /// A peer says on which of its edges bytes wait and do not move, or bytes are missing at the other end. If that
    /// lasts, while both ends live, the edge counts as broken.
    pub(super) fn record_stalls(
        &mut self,
        id: PeerId,
        group_id: GroupId,
        stalled: &[StalledEdge],
        missing: &[Missing],
    ) {
        let waiting = stalled.iter().map(|stall| {
            let text = format!("bytes wait on it and none moved for {} ms", stall.stalled_ms);
            (stall.to, stall.generation, stall.stalled_ms, text)
        });
        let missing = missing.iter().map(|missing| {
            let stalled_ms = u64::try_from(missing.stalled.as_millis()).unwrap_or(u64::MAX);
            let text = format!(
                "{} bytes that were sent have not arrived, and none moved for {stalled_ms} ms",
                missing.bytes
            );
            (missing.to, missing.generation, stalled_ms, text)
        });
        let (limit, patience, now) =
            (self.options.edge_timeout.as_millis(), self.options.beat_interval * 2, self.now);
        let mut stuck_in_ring = None;
        for (to, generation, stalled_ms, text) in waiting.chain(missing) {
            let (ends, is_long) = ((id, to), u128::from(stalled_ms) >= limit);
            let Some(group) = self.groups.get(&group_id).filter(|_| is_long && !self.suspect(to)) else {
                continue;
            };
            let fault = EdgeFault { from: id, to, generation, text: Text::new(text) };
            // One that may have stopped itself is no evidence; the next beat says it again.
            let is_heard = self.peers.get(&to).is_some_and(|peer| now.since(peer.heard_at) <= patience);
            match group.edges.named(ends, generation).map(|edge| edge.purpose) {
                Some(Purpose::Ring) => drop(stuck_in_ring.get_or_insert((fault, stalled_ms))),
                Some(Purpose::Mesh) if is_heard => self.mesh_fault(group_id, &fault, stalled_ms),
                Some(Purpose::Pair) if is_heard => self.pair_fault(group_id, &fault),
                Some(_) | None => {}
            }
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        match stuck_in_ring {
            Some((fault, stalled_ms)) => {
                if let Some(edge) = group.edges.named_mut((fault.from, fault.to), fault.generation) {
                    edge.hold(fault.text, false, stalled_ms, now);
                }
            }
            // Whatever stood still moves again, or is explained by the silence of the other end.
            None => {
                for (_, edge) in group.edges.all_mut().filter(|(ends, _)| ends.0 == id) {
                    edge.held.take_if(|fault| fault.stalled_ms > 0);
                }
            }
        }
    }

    /// Whether all edges of the ring stand, at newcomers too, and nothing is held against any of them.
    pub(super) fn ring_confirmed(&self, group: &Group) -> bool {
        group.edges.all_for(Purpose::Ring).all(|(_, edge)| edge.is_up() && edge.held.is_none())
            && group.ring.iter().all(|peer| self.peers.contains_key(peer))
    }

    /// Rule: it is known since when a ring stands.
    pub(super) fn note_standing_rings(&mut self) -> bool {
        let stands = |group: &Group| group.stands_since.is_none() && self.ring_confirmed(group);
        let fresh: Vec<GroupId> =
            self.groups.iter().filter(|(_, group)| stands(group)).map(|(id, _)| *id).collect();
        for id in &fresh {
            if let Some(group) = self.groups.get_mut(id) {
                group.stands_since = Some(self.now);
                if group.ring.len() > 1 {
                    self.note_reached_members(*id);
                }
            }
        }
        !fresh.is_empty()
    }

    /// Whether a collective may begin: the ring stands and consists of voters only.
    pub(super) fn ring_ready(&self, group: &Group) -> bool {
        self.ring_confirmed(group) && self.all_accepted(group)
    }

    /// Whether no newcomer is in the ring.
    pub(super) fn all_accepted(&self, group: &Group) -> bool {
        group.ring.iter().all(|id| self.peers.get(id).is_some_and(|peer| peer.accepted()))
    }

    /// Rule: reports that were held long enough are judged.
    pub(super) fn judge_faults(&mut self) -> bool {
        let mut due = Vec::new();
        for (group_id, group) in &self.groups {
            for (ends, fault) in group.edges.held() {
                let judgement = self.judge(group, ends, fault);
                if judgement != Judgement::Hold && fault.since + self.options.edge_grace <= self.tick {
                    due.push((*group_id, ends, judgement));
                }
            }
        }
        for (group_id, ends, judgement) in &due {
            self.apply_judgement(*group_id, *ends, *judgement);
        }
        !due.is_empty()
    }

    /// When the report about an edge can be judged; `None` while only news from one of its ends can tell.
    pub(super) fn fault_deadline(&self, group: &Group, ends: EdgeEnds) -> Option<Timestamp> {
        let fault = group.edges.get(ends)?.held.as_ref()?;
        let due = fault.since + self.options.edge_grace;
        if fault.unbuildable {
            return group.check.is_none().then_some(due);
        }
        (due > self.now || self.judge(group, ends, fault) != Judgement::Hold).then_some(due)
    }

    fn judge(&self, group: &Group, ends: EdgeEnds, fault: &HeldFault) -> Judgement {
        let (Some(_), Some(to)) = (self.peers.get(&ends.0), self.peers.get(&ends.1)) else {
            return Judgement::Obsolete;
        };
        let before =
            group.edges.marks.get(&ends).filter(|mark| mark.until > self.now).map(|mark| mark.severity);
        if fault.stalled_ms > 0 {
            // The receiving end may have stopped: then it is not the edge, and its silence will tell.
            if self.suspect(ends.0) || self.suspect(ends.1) || to.heard_at < fault.since {
                return Judgement::Hold;
            }
            // It is built anew once. If that fails too, no ring has it.
            return Judgement::Rebuild(before.map_or(Severity::Failed, |s| s.max(Severity::Avoided)));
        }
        if fault.unbuildable {
            return Judgement::Hold;
        }
        Judgement::Rebuild(before.map_or(Severity::Broke, |_| Severity::Avoided))
    }

    /// An edge that could not be built. If nobody finds anything wrong with it, it is tried once more.
    pub(super) fn give_up_edge(&mut self, group_id: GroupId, ends: EdgeEnds, is_known: bool) {
        let Some(group) = self.groups.get(&group_id) else { return };
        let before =
            group.edges.marks.get(&ends).filter(|mark| mark.until > self.now).map(|mark| mark.severity);
        let again = !is_known && before < Some(Severity::Failed);
        let severity = if again { Severity::Failed } else { Severity::Forbidden };
        self.apply_judgement(group_id, ends, Judgement::Rebuild(severity));
    }

    fn apply_judgement(&mut self, group_id: GroupId, ends: EdgeEnds, judgement: Judgement) {
        let until = self.now + self.options.forbidden_expiry;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let Some(edge) = group.edges.get_mut(ends) else { return };
        let Some(fault) = edge.held.take() else { return };
        let Judgement::Rebuild(severity) = judgement else { return };
        edge.rebuild = true;
        let edge_generation = edge.generation;
        let text = fault.text.to_string();
        let severity = group.edges.marks.get(&ends).map_or(severity, |mark| mark.severity.max(severity));
        group.edges.marks.insert(ends, Mark { until, severity, text: fault.text });
        // An attempt runs on this edge if the edge is as old as the attempt's ring: an edge stays from ring to ring or
        // is built anew.
        let (generation, stalled_ms) = (edge_generation, fault.stalled_ms);
        group.ops.change_some(|id, op| match op {
            Op::Running { broken, .. } if generation.0 <= id.epoch.0 => {
                broken.push(BrokenEdge { ends, generation, stalled_ms, text: Text::new(text.clone()) });
                true
            }
            Op::Running { .. } | Op::Voting { .. } => false,
        });
        group.replan = true;
        let edge = self.name_of_edge(ends);
        self.warn(format!("{edge} failed ({severity:?}): {text}"));
    }

    /// Rule: every group has a ring of exactly its members.
    pub(super) fn plan_rings(&mut self) -> bool {
        let mut members: BTreeMap<GroupId, BTreeSet<PeerId>> = BTreeMap::new();
        for (id, peer) in self.peers.iter().filter(|(_, peer)| peer.phase != Phase::Pending) {
            members.entry(peer.group()).or_default().insert(*id);
        }
        let before = self.groups.len();
        self.groups.retain(|id, _| members.contains_key(id));
        let forgotten = self.groups.len() != before;
        self.drop_plans_of_missing_groups();
        let mut stale = Vec::new();
        for (id, set) in members {
            let group = self.groups.entry(id).or_default();
            // One of given members is whole, or there is no ring of it.
            if !group.is_broken() && (!group.stands(&set) || group.replan) {
                stale.push((id, set));
            }
        }
        for (id, set) in &stale {
            self.plan_ring(*id, set);
        }
        forgotten || !stale.is_empty()
    }

    fn plan_ring(&mut self, group_id: GroupId, members: &BTreeSet<PeerId>) {
        let now = self.now;
        if self.ring_members(group_id) != *members {
            self.drop_plan(group_id);
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        group.holders.retain(|id| members.contains(id));
        if group.formed.is_some() {
            return self.plan_formed_ring(group_id);
        }
        let mut wanted: Vec<PeerId> = group.ring.iter().copied().filter(|id| members.contains(id)).collect();
        let mut newcomers: Vec<(u64, PeerId)> = members
            .iter()
            .filter(|id| !wanted.contains(id))
            .filter_map(|id| self.peers.get(id).map(|peer| (peer.order, *id)))
            .collect();
        newcomers.sort_unstable();
        wanted.extend(newcomers.into_iter().map(|(_, id)| id));
        let planned = group.next_order.take();
        group
            .edges
            .marks
            .retain(|ends, mark| mark.until > now && members.contains(&ends.0) && members.contains(&ends.1));
        // A better ring may have become possible, but what runs on a ring that stands is not cut off for that.
        let keep = group.stands(members) && group.ops.any_runs();
        if let Some(order) = planned.filter(|order| !keep && is_order_of(order, members)) {
            wanted = order;
        }
        let worse_than = |limit: Severity| -> BTreeSet<EdgeEnds> {
            group
                .edges
                .marks
                .iter()
                .filter(|(_, mark)| mark.severity >= limit)
                .map(|(ends, _)| *ends)
                .collect()
        };
        let forbidden = worse_than(Severity::Forbidden);
        let avoided = worse_than(Severity::Avoided);
        let order = if keep {
            Ok(wanted.clone())
        } else {
            ring_order(&wanted, &avoided).or_else(|_| ring_order(&wanted, &forbidden))
        };
        match order {
            Ok(order) => self.install_ring(group_id, &order),
            Err(_) => self.make_room_for_a_ring(group_id, &wanted, &forbidden),
        }
    }

    pub(super) fn install_ring(&mut self, group_id: GroupId, order: &[PeerId]) {
        let now = self.now;
        let wish = |id: &PeerId| self.peers.get(id).map_or(0, |peer| peer.info.pool_connections);
        let ring: Vec<Wanted> = ring_of(order)
            .map(|ends| (ends, wish(&ends.0).min(limits::MAX_POOL_CONNECTIONS)))
            .map(|(ends, connections)| Wanted { ends, purpose: Purpose::Ring, connections })
            .collect();
        let schedule = self.groups.get(&group_id).map(|group| self.schedule_for(group, order));
        let one_host = self.are_on_one_host(order);
        let (Some(group), Some((pairwise, shares))) = (self.groups.get_mut(&group_id), schedule) else {
            return;
        };
        group.begin_epoch();
        group.count_anew();
        (group.planned_at, group.stands_since) = (now, None);
        let mesh = group.plan_mesh(order, now);
        let pairs = group.kept_pairs(order);
        let mut planned: BTreeSet<EdgeEnds> = BTreeSet::new();
        let wanted = ring.into_iter().chain(mesh).chain(pairs).filter(|wanted| planned.insert(wanted.ends));
        let is_new = group.edges.plan(wanted.collect::<Vec<_>>(), group.epoch) || group.ring != order;
        if is_new {
            group.edges_since = group.epoch;
        }
        group.ring = order.to_vec();
        group.replan = false;
        // A mesh that stands goes on, and another one has yet to stand.
        let mesh = group.paths.mesh && !is_new;
        (group.paths, group.shares) = (Paths { mesh, one_host, pairwise }, shares);
        group.edges.clear_paces();
        self.log_ring(group_id);
        self.push_ring(group_id);
    }

    pub(super) fn log_ring(&mut self, group_id: GroupId) {
        let Some(group) = self.groups.get(&group_id) else { return };
        let order: Vec<String> = group.ring.iter().map(ToString::to_string).collect();
        let large = group.describe_schedule();
        self.info(format!("group {group_id}: ring {} is {}{large}", group.epoch, order.join(" -> ")));
    }

    pub(super) fn push_ring(&mut self, group_id: GroupId) {
        let sizes = self.sizes(group_id);
        let Some(group) = self.groups.get(&group_id) else { return };
        // Hosts are all that can differ between plans: who sees the same gets the same.
        let peers = || group.ring.iter().filter_map(|id| self.peers.get(id));
        let differ = peers().any(super::client::Peer::host_depends_on_viewer);
        let mut views: BTreeMap<Option<core::net::IpAddr>, Vec<&super::client::Peer>> = BTreeMap::new();
        for viewer in peers() {
            views.entry(viewer.view().filter(|_| differ)).or_default().push(viewer);
        }
        let mut plans = Vec::with_capacity(views.len());
        let edges = group.edges.listed(&group.ring);
        for viewers in views.into_values() {
            let viewer = viewers[0];
            let member = |id: &PeerId| {
                let peer = self.peers.get(id)?;
                Some(Member {
                    peer: *id,
                    host: peer.host_for(viewer),
                    p2p_port: peer.info.p2p_port,
                    state_port: peer.info.state_port,
                    share: group.shares.get(id).copied().unwrap_or(0),
                })
            };
            let members = group.ring.iter().filter_map(member).collect();
            let (epoch, counted_since, paths) = (group.epoch, group.counted_since, group.paths);
            let edges = edges.clone();
            let plan = GroupPlan { group: group_id, epoch, counted_since, sizes, members, edges, paths };
            let clients: Vec<_> = viewers.iter().map(|viewer| viewer.client).collect();
            plans.push((clients, plan));
        }
        let members = group.ring.clone();
        for (clients, plan) in plans {
            self.send_all(clients, M2c::GroupPlan(plan));
        }
        for id in members {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.sizes_told = Some(sizes);
            }
        }
    }
}

fn is_order_of(order: &[PeerId], members: &BTreeSet<PeerId>) -> bool {
    order.len() == members.len() && order.iter().all(|id| members.contains(id))
}

impl Group {
    /// Whether the present ring has exactly these members, and no edge of it needs new connections.
    fn stands(&self, members: &BTreeSet<PeerId>) -> bool {
        !self.edges.any_to_rebuild()
            && self.ring.len() == members.len()
            && self.ring.iter().all(|peer| members.contains(peer))
    }
}
