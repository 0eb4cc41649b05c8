//! Edges between all members of a small group, beside its ring.
//!
//! They save a small collective the way around the ring. Nothing depends on them: a ring is confirmed without them, and
//! as long as one of them does not stand, data goes around the ring. So a fault of a mesh edge costs nobody its place.
//! It takes the mesh away as long as it is remembered, if its ends stay; then the same ring is planned again, with a
//! mesh.

use super::all_groups::Groups;
use super::connectivity::Net;
use super::edges::{EdgeEnds, Wanted, mesh_of};
use super::group::Group;
use super::losses::BrokenEdge;
use crate::state::membership::members::Roll;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_planner::Dials;
use pccl_protocol::{Descriptor, EdgeFault, PeerId, Purpose, Text, limits};
use std::time::Duration;

/// A caller that asks for pairwise exchange by name waits for the mesh for this time after the ring stands. The edges
/// of the mesh are built at the same time, and take a few round trips more.
const MESH_PATIENCE: Duration = Duration::from_secs(2);
impl Net {
    /// The edges of the mesh for a ring in this order, but for those that nobody can dial: none while a fault between
    /// two of its members is remembered, or if even the ring needs the relay. `wish` says how many connections the ring
    /// would have from a member, for a ring that takes an edge of the mesh over when somebody has gone.
    pub(crate) fn plan_mesh(
        &mut self,
        dials: &Dials,
        order: &[PeerId],
        wish: impl Fn(PeerId) -> u16,
        now: Timestamp,
    ) -> Vec<Wanted> {
        let is_possible = self.mesh.is_possible(order, now);
        let is_here = |ends: &EdgeEnds| order.contains(&ends.0) && order.contains(&ends.1);
        self.mesh.faults.retain(|ends, until| *until > now && is_here(ends));
        // As many as the path asks for, or one: what goes over it is small, or one of many at the same time.
        let is_small = order.len() <= limits::ALWAYS_MESH_RANKS;
        let wanted = |ends: EdgeEnds| {
            let connections = u16::from(!is_small || wish(ends.0) != 0);
            Wanted { ends, purpose: Purpose::Mesh, connections, back: false }
        };
        let may_meet =
            |ends: &EdgeEnds| !dials.is_relayed(ends.0, ends.1) && dials.dialer(ends.0, ends.1).is_some();
        if is_possible && !dials.need_relay(order) {
            mesh_of(order).filter(may_meet).map(wanted).collect()
        } else {
            Vec::new()
        }
    }

    /// Whether the present plan has a mesh.
    pub(crate) fn has_mesh(&self) -> bool {
        self.edges.all_for(Purpose::Mesh).next().is_some()
    }

    /// Every member has said that all of its edges stand, and none has failed since.
    pub(crate) fn mesh_stands(&self) -> bool {
        self.has_mesh() && self.mesh.faults.is_empty() && self.edges.all_up(Purpose::Mesh)
    }

    /// Whether the mesh does not stand yet, and may soon.
    pub(crate) fn mesh_is_coming(&self) -> bool {
        self.has_mesh() && self.mesh.faults.is_empty() && !self.paths.mesh
    }
}

impl Group {
    /// Whether it is of a size for which there is a mesh.
    fn can_have_mesh(&self) -> bool {
        (3..=limits::MAX_MESH_RANKS).contains(&self.ring.len())
    }

    /// An edge of the mesh has failed; `stalled_ms` is 0 if its ends saw it break. An edge that stands still ends the
    /// attempts that run on it, for nobody else would.
    pub(crate) fn mesh_fault(&mut self, roll: &Roll, out: &mut Outbox, fault: &EdgeFault, stalled_ms: u64) {
        let (ends, generation) = ((fault.from, fault.to), fault.generation);
        out.changed = true;
        let is_new = self.net.mesh.add_fault(ends, roll.now, roll.options.forbidden_expiry);
        self.net.edges.note_failed(ends, generation);
        if stalled_ms > 0 {
            let text = Text::new(fault.text.as_str());
            let broken = BrokenEdge { ends, generation, stalled_ms, is_final: true, text };
            self.work.note_broken(&broken, |id, algorithm| id.tag.pair.is_none() && algorithm.uses_mesh());
        }
        if is_new {
            let text = &fault.text;
            out.info(format!(
                "direct edge {} -> {} failed, data goes around the ring: {text}",
                ends.0, ends.1
            ));
        }
    }

    /// When a mesh may be planned again; in the past, the next quiet moment will do.
    pub(crate) fn mesh_deadline(&self, tick: Timestamp) -> Option<Timestamp> {
        self.net.mesh.faults_end().filter(|end| *end > tick && self.can_have_mesh())
    }

    /// Until when a collective waits for the mesh that all of its callers have asked for: not if it stands, or cannot
    /// be used.
    pub(crate) fn mesh_wait(&self, tick: Timestamp, descriptor: &Descriptor) -> Option<Timestamp> {
        let due = self.net.stands_since? + MESH_PATIENCE;
        let waits = descriptor.asks_for_mesh(self.ring.len()) && self.net.mesh_is_coming();
        (waits && due > tick).then_some(due)
    }
}

impl Groups {
    /// Rule: once the faults of a mesh are over, the same ring is planned again, with a mesh, when nothing runs in the
    /// group.
    pub(crate) fn renew_meshes(&mut self, roll: &Roll, out: &mut Outbox) -> bool {
        let is_over = |group: &Group| {
            let runs = group.work.ops.any_runs() || group.shared.sync.is_some();
            let is_over = group.net.mesh.faults_end().is_some_and(|end| end <= roll.tick);
            is_over && !runs && !group.next.is_due && group.can_have_mesh() && group.ring_ready(roll)
        };
        let due = self.which(is_over);
        for id in &due {
            if let Some(group) = self.get_mut(id) {
                group.next.is_due = true;
                group.net.mesh.renewed = Some((roll.now, group.net.mesh.memory));
                out.info(format!("group {id}: direct edges are tried again"));
            }
        }
        !due.is_empty()
    }

    /// Rule: plans say whether the mesh stands, so that all know the algorithm of an operation when they vote for it.
    /// When that changes, an epoch with the same edges begins: what runs goes on, and what waits for votes is voted for
    /// again.
    pub(crate) fn announce_meshes(&mut self, roll: &mut Roll, out: &mut Outbox) -> bool {
        let is_due = |group: &Group| {
            let stands = group.net.mesh_stands();
            let is_news = group.net.paths.mesh != stands && !group.next.is_due;
            is_news && (!stands || group.ring_ready(roll))
        };
        let due = self.which(is_due);
        for id in &due {
            let Some(group) = self.get_mut(id) else { continue };
            group.begin_epoch();
            let stands = group.net.mesh_stands();
            group.net.paths.mesh = stands;
            let (epoch, what) = (group.epoch, if stands { "stand" } else { "are not used" });
            out.debug(format!("group {id}: direct edges {what} from epoch {epoch} on"));
            group.push_ring(*id, roll, out);
        }
        !due.is_empty()
    }
}
