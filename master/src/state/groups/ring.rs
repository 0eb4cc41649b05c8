//! The ring of each group: which one is planned, and how its members learn of it.

use super::all_groups::Groups;
use super::edges::{EdgeEnds, Severity, Wanted, ring_of};
use super::group::Group;
use super::schedule::Large;
use crate::state::MasterState;
use crate::state::membership::client::Peer;
use crate::state::membership::members::Roll;
use crate::state::membership::sender::Phase;
use crate::state::optimise::measured::Measured;
use crate::state::outbox::Outbox;
use core::net::IpAddr;
use pccl_planner::ring_order;
use pccl_protocol::{Algorithm, GroupId, GroupPlan, M2c, Member, Paths, PeerId, Purpose, limits};
use std::collections::{BTreeMap, BTreeSet};

/// No ring goes with all members.
struct NoRing {
    members: Vec<PeerId>,
    forbidden: BTreeSet<EdgeEnds>,
}

impl Group {
    /// Whether the present ring has exactly these members, and no edge of it needs new connections.
    fn stands(&self, members: &BTreeSet<PeerId>) -> bool {
        !self.net.edges.any_to_rebuild()
            && self.ring.len() == members.len()
            && self.ring.iter().all(|peer| members.contains(peer))
    }

    /// The order of the next ring of these members: as the last one, with newcomers at its end, or as planned, as far
    /// as what is known against edges lets it.
    fn choose_order(&mut self, roll: &Roll, members: &BTreeSet<PeerId>) -> Result<Vec<PeerId>, NoRing> {
        let mut wanted: Vec<PeerId> = self.ring.iter().copied().filter(|id| members.contains(id)).collect();
        let mut newcomers: Vec<(u64, PeerId)> = members
            .iter()
            .filter(|id| !wanted.contains(id))
            .filter_map(|id| roll.peers.get(id).map(|peer| (peer.order, *id)))
            .collect();
        newcomers.sort_unstable();
        wanted.extend(newcomers.into_iter().map(|(_, id)| id));
        let planned = self.next.order.take();
        let is_here = |ends: &EdgeEnds| members.contains(&ends.0) && members.contains(&ends.1);
        self.net.edges.marks.retain(|ends, mark| mark.until > roll.now && is_here(ends));
        self.net.edges.black_holes.retain(|id| members.contains(&id));
        // A better ring may have become possible, but what runs on a ring that stands is not cut off for that.
        let keep = self.stands(members) && self.work.ops.any_runs();
        if let Some(order) = planned.filter(|order| !keep && is_order_of(order, members)) {
            wanted = order;
        }
        if keep {
            return Ok(wanted);
        }
        let dials = roll.dials(&wanted);
        let wanted = dials.separated(&wanted).unwrap_or(wanted);
        let barred = dials.barred(&wanted);
        let worse_than = |limit: Severity, barred: &BTreeSet<EdgeEnds>| -> BTreeSet<EdgeEnds> {
            let marks = self.net.edges.marks.iter().filter(|(_, mark)| mark.severity >= limit);
            marks.map(|(ends, _)| *ends).chain(barred.iter().copied()).collect()
        };
        let search = |barred: &BTreeSet<EdgeEnds>| {
            let (forbidden, avoided) =
                (worse_than(Severity::Forbidden, barred), worse_than(Severity::Avoided, barred));
            let order = ring_order(&wanted, &avoided).or_else(|_| ring_order(&wanted, &forbidden));
            order.map_err(|_| forbidden)
        };
        // The relay is for where there is no ring without it.
        let order = match roll.options.relay {
            Some(_) => search(&barred).or_else(|_| search(&BTreeSet::new())),
            None => search(&barred),
        };
        order.map_err(|forbidden| NoRing { members: wanted.clone(), forbidden })
    }

    /// Plans a ring in this order for its members, and tells them.
    pub(crate) fn install_ring(
        &mut self,
        id: GroupId,
        roll: &mut Roll,
        measured: &Measured,
        out: &mut Outbox,
        order: &[PeerId],
    ) {
        let now = roll.now;
        let wish = |id: &PeerId| roll.peers.get(id).map_or(0, |peer| peer.info.pool_connections);
        let ring: Vec<Wanted> = ring_of(order)
            // The relay is shared, and bounds the rate: more connections would only take more of its places.
            .map(|ends| (ends, if roll.is_relayed(ends) { 1 } else { wish(&ends.0) }))
            .map(|(ends, wish)| (ends, wish.min(limits::MAX_POOL_CONNECTIONS)))
            .map(|(ends, connections)| Wanted { ends, purpose: Purpose::Ring, connections, back: false })
            .collect();
        let large = self.schedule_for(roll, measured, order);
        let one_host = roll.are_on_one_host(order);
        self.begin_epoch();
        self.count_anew();
        (self.net.planned_at, self.net.stands_since) = (now, None);
        let dials = roll.dials(order);
        let partial = !dials.barred(order).is_empty();
        let is_wanted = large.is_worth_a_mesh() || order.len() <= limits::ALWAYS_MESH_RANKS;
        let (large, mesh) = match is_wanted {
            true => (large, self.net.plan_mesh(&dials, order, |id| wish(&id), now)),
            // Nobody exchanges anything.
            false => (Large::ring(), Vec::new()),
        };
        let pairs = self.net.kept_pairs(order);
        let mut planned: BTreeSet<EdgeEnds> = BTreeSet::new();
        let wanted = ring.into_iter().chain(mesh).chain(pairs).filter(|wanted| planned.insert(wanted.ends));
        let wanted = wanted.map(|wanted| Wanted { back: roll.dials_back(wanted.ends), ..wanted });
        let is_new = self.net.edges.plan(wanted.collect::<Vec<_>>(), self.epoch) || self.ring != order;
        if is_new {
            self.net.since = self.epoch;
        }
        self.work.end_what_has_no_edge(&self.net.edges);
        self.ring = order.to_vec();
        self.next.is_due = false;
        // A mesh that stands goes on, also as that of fewer members, and another one has yet to stand.
        let mesh = (self.net.paths.mesh && !is_new) || (self.ring_ready(roll) && self.net.mesh_stands());
        let (pairwise, by_sites) =
            (large.schedule == Algorithm::Pairwise, large.schedule == Algorithm::Sites);
        self.net.paths = Paths { mesh, one_host, pairwise, partial, sites: large.has_sites(), by_sites };
        (self.net.shares, self.net.sites) = (large.shares, large.sites);
        self.net.edges.clear_paces();
        self.log_ring(id, out);
        self.push_ring(id, roll, out);
    }

    pub(crate) fn log_ring(&self, id: GroupId, out: &mut Outbox) {
        let order: Vec<String> = self.ring.iter().map(ToString::to_string).collect();
        let large = self.describe_schedule();
        out.info(format!("group {id}: ring {} is {}{large}", self.epoch, order.join(" -> ")));
    }

    /// Tells the members their plan, and with it the sizes of the world.
    pub(crate) fn push_ring(&self, id: GroupId, roll: &mut Roll, out: &mut Outbox) {
        let sizes = roll.sizes(id);
        // Hosts are all that can differ between plans: who sees the same gets the same.
        let peers = || self.ring.iter().filter_map(|id| roll.peers.get(id));
        let differ = peers().any(Peer::host_depends_on_viewer);
        let mut views: BTreeMap<Option<IpAddr>, Vec<&Peer>> = BTreeMap::new();
        for viewer in peers() {
            views.entry(viewer.view().filter(|_| differ)).or_default().push(viewer);
        }
        let edges = self.net.edges.listed(&self.ring, |ends| roll.is_relayed(ends));
        for viewers in views.into_values() {
            let viewer = viewers[0];
            let member = |id: &PeerId| {
                let peer = roll.peers.get(id)?;
                Some(Member {
                    peer: *id,
                    hosts: peer.hosts_for(viewer),
                    p2p_port: peer.info.p2p_port,
                    state_port: peer.info.state_port,
                    share: self.net.shares.get(id).copied().unwrap_or(0),
                    site: self.net.sites.get(id).copied().unwrap_or_default(),
                })
            };
            let members = self.ring.iter().filter_map(member).collect();
            let (epoch, counted_since, paths) = (self.epoch, self.work.counted_since, self.net.paths);
            let edges = edges.clone();
            let plan = GroupPlan { group: id, epoch, counted_since, sizes, members, edges, paths };
            out.send_all(viewers.iter().map(|viewer| viewer.client).collect(), M2c::GroupPlan(plan));
        }
        for id in &self.ring {
            if let Some(peer) = roll.peers.get_mut(id) {
                peer.sizes_told = Some(sizes);
            }
        }
    }
}

impl Groups {
    /// Rule: it is known since when a ring stands. Then the data ports of its members were reached.
    pub(crate) fn note_standing_rings(&mut self, roll: &mut Roll) -> bool {
        let due = self.which(|group| group.net.stands_since.is_none() && group.ring_confirmed(roll));
        for id in &due {
            let Some(group) = self.get_mut(id) else { continue };
            group.net.stands_since = Some(roll.now);
            if group.ring.len() > 1 {
                group.ring.iter().for_each(|id| roll.note_reached(*id, false));
            }
        }
        !due.is_empty()
    }
}

impl MasterState {
    /// Rule: every group has a ring of exactly its members.
    pub(crate) fn plan_rings(&mut self) -> bool {
        let mut members: BTreeMap<GroupId, BTreeSet<PeerId>> = BTreeMap::new();
        for (id, peer) in self.roll.peers.iter().filter(|(_, peer)| peer.phase() != Phase::Pending) {
            members.entry(peer.group()).or_default().insert(*id);
        }
        let before = self.groups.len();
        self.groups.retain(|id, _| members.contains_key(id));
        let forgotten = self.groups.len() != before;
        self.plans.drop_of_missing_groups(&mut self.groups, &mut self.out);
        let mut stale = Vec::new();
        for (id, set) in members {
            let group = self.groups.entry(id).or_default();
            // One of given members is whole, or there is no ring of it.
            if !group.is_broken() && (!group.stands(&set) || group.next.is_due) {
                stale.push((id, set));
            }
        }
        for (id, set) in &stale {
            self.plan_ring(*id, set);
        }
        forgotten || !stale.is_empty()
    }

    fn plan_ring(&mut self, group_id: GroupId, members: &BTreeSet<PeerId>) {
        if self.groups.members(group_id) != *members {
            self.plans.drop(&mut self.groups, &mut self.out, group_id);
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        group.shared.holders.retain(|id| members.contains(id));
        if group.formed.is_some() {
            return group.plan_formed_ring(group_id, &mut self.roll, &self.measured, &mut self.out);
        }
        let list: Vec<PeerId> = members.iter().copied().collect();
        if self.drop_who_cannot_be_separated(group_id, &list) {
            return;
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        match group.choose_order(&self.roll, members) {
            Ok(order) => {
                group.install_ring(group_id, &mut self.roll, &self.measured, &mut self.out, &order);
            }
            Err(NoRing { members, forbidden }) => self.make_room_for_a_ring(group_id, &members, &forbidden),
        }
    }
}

fn is_order_of(order: &[PeerId], members: &BTreeSet<PeerId>) -> bool {
    order.len() == members.len() && order.iter().all(|id| members.contains(id))
}
