//! Edges between all members of a small group, beside its ring.
//!
//! They save a small collective the way around the ring. Nothing depends on them: a ring is confirmed without them, and
//! as long as one of them does not stand, data goes around the ring. So a fault of a mesh edge costs nobody its place.
//! It takes the mesh away as long as it is remembered, if its ends stay; then the same ring is planned again, with a
//! mesh.

use super::edges::{EdgeEnds, Wanted, mesh_of};
use super::group::{BrokenEdge, Group};
use super::{MasterState, Timestamp};
use pccl_protocol::{Descriptor, EdgeFault, GroupId, PeerId, Purpose, Text, limits};
use std::collections::BTreeMap;
use std::time::Duration;

/// Who asks for pairwise exchange by name waits for the mesh for so long after the ring stands. Its edges are built at
/// the same time, and take a few round trips more.
const MESH_PATIENCE: Duration = Duration::from_secs(2);
/// How often a fault that comes back is remembered for twice as long as the one before: to an hour, from a minute.
const DOUBLINGS_MAX: u32 = 6;

/// What is remembered of the faults of the mesh of one group.
#[derive(Debug, Default)]
pub(super) struct Mesh {
    /// Edges that failed, and until when that is remembered.
    faults: BTreeMap<EdgeEnds, Timestamp>,
    /// When it was last planned again because its faults were over, and for how long those were remembered.
    renewed: Option<(Timestamp, Duration)>,
    /// For how long the latest fault is remembered.
    memory: Duration,
}

impl Mesh {
    /// Whether a ring in this order would have a mesh if it were planned now.
    pub(super) fn is_possible(&self, order: &[PeerId], now: Timestamp) -> bool {
        let is_remembered = |ends: &EdgeEnds, until: Timestamp| {
            until > now && order.contains(&ends.0) && order.contains(&ends.1)
        };
        (3..=limits::MAX_MESH_RANKS).contains(&order.len())
            && !self.faults.iter().any(|(ends, until)| is_remembered(ends, *until))
    }

    /// Whether a fault of one of its edges is remembered.
    pub(super) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Whether a fault of this edge is remembered.
    pub(super) fn has_fault_of(&self, ends: EdgeEnds) -> bool {
        self.faults.contains_key(&ends)
    }

    /// When the last of its faults is over, if there were any.
    fn faults_end(&self) -> Option<Timestamp> {
        self.faults.values().max().copied()
    }

    /// Notes that an edge failed: for how long, and whether that is news. One that fails again soon after the mesh was
    /// planned anew is remembered for longer, so that a pair which never connects costs few plans.
    fn add_fault(&mut self, ends: EdgeEnds, now: Timestamp, shortest: Duration) -> bool {
        self.memory = match self.renewed {
            Some((at, before)) if now.since(at) < before * 2 => {
                (before * 2).min(shortest * (1 << DOUBLINGS_MAX))
            }
            _ => shortest,
        };
        self.faults.insert(ends, now + self.memory).is_none()
    }
}

impl Group {
    /// The edges of the mesh for a ring in this order: none while a fault between two of its members is remembered. An
    /// edge that failed is built anew: its connections are not to be used again, even if one of its ends has not
    /// noticed.
    pub(super) fn plan_mesh(&mut self, order: &[PeerId], now: Timestamp) -> Vec<Wanted> {
        for ends in self.mesh.faults.keys() {
            if let Some(edge) = self.edges.get_mut(*ends).filter(|edge| edge.purpose == Purpose::Mesh) {
                edge.rebuild = true;
            }
        }
        let is_possible = self.mesh.is_possible(order, now);
        let is_here = |ends: &EdgeEnds| order.contains(&ends.0) && order.contains(&ends.1);
        self.mesh.faults.retain(|ends, until| *until > now && is_here(ends));
        // One connection: what goes over it is small, or one of many at the same time.
        let wanted = |ends| Wanted { ends, purpose: Purpose::Mesh, connections: 1 };
        if is_possible { mesh_of(order).map(wanted).collect() } else { Vec::new() }
    }

    /// Whether the present plan has a mesh.
    pub(super) fn has_mesh(&self) -> bool {
        self.edges.all_for(Purpose::Mesh).next().is_some()
    }

    /// Whether it is of a size for which there is a mesh.
    fn can_have_mesh(&self) -> bool {
        (3..=limits::MAX_MESH_RANKS).contains(&self.ring.len())
    }
}

impl MasterState {
    /// An edge of the mesh has failed; `stalled_ms` is 0 if its ends saw it break. What stands still ends the attempts
    /// that run on it, for nobody else would.
    pub(super) fn mesh_fault(&mut self, group_id: GroupId, fault: &EdgeFault, stalled_ms: u64) {
        let (now, memory) = (self.now, self.options.forbidden_expiry);
        let (ends, generation) = ((fault.from, fault.to), fault.generation);
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        self.changed = true;
        let is_new = group.mesh.add_fault(ends, now, memory);
        if stalled_ms > 0 {
            let text = Text::new(fault.text.as_str());
            let broken = BrokenEdge { ends, generation, stalled_ms, is_final: true, text };
            group.note_broken(&broken, |id, algorithm| id.tag.pair.is_none() && algorithm.uses_mesh());
        }
        if is_new {
            let text = &fault.text;
            self.info(format!(
                "direct edge {} -> {} failed, data goes around the ring: {text}",
                ends.0, ends.1
            ));
        }
    }

    /// Rule: once the faults of a mesh are over, the same ring is planned again, with a mesh, when nothing runs in the
    /// group.
    pub(super) fn renew_meshes(&mut self) -> bool {
        if self.round.is_some() || self.optimization.is_some() {
            return false;
        }
        let now = self.now;
        let is_over = |group: &Group| {
            let runs = group.ops.any_runs() || group.sync.is_some();
            let is_over = group.mesh.faults_end().is_some_and(|end| end <= self.tick);
            is_over && !runs && !group.replan && group.can_have_mesh() && self.ring_ready(group)
        };
        let due: Vec<GroupId> =
            self.groups.iter().filter(|(_, group)| is_over(group)).map(|(id, _)| *id).collect();
        for id in &due {
            if let Some(group) = self.groups.get_mut(id) {
                group.replan = true;
                group.mesh.renewed = Some((now, group.mesh.memory));
                self.info(format!("group {id}: direct edges are tried again"));
            }
        }
        !due.is_empty()
    }

    /// When a mesh may be planned again; in the past, the next quiet moment will do.
    pub(super) fn mesh_deadline(&self, group: &Group) -> Option<Timestamp> {
        group.mesh.faults_end().filter(|end| *end > self.tick && group.can_have_mesh())
    }

    /// Every member has said that all of its edges stand, and none has failed since.
    fn mesh_stands(&self, group: &Group) -> bool {
        group.has_mesh()
            && group.mesh.faults.is_empty()
            && group.edges.all_for(Purpose::Mesh).all(|(_, edge)| edge.is_up())
    }

    /// Rule: plans say whether the mesh stands, so that all know the algorithm of an operation when they vote for it.
    /// When that changes, an epoch with the same edges begins: what runs goes on, and what waits for votes is voted for
    /// again.
    pub(super) fn announce_meshes(&mut self) -> bool {
        let news = |group: &Group| {
            let stands = self.mesh_stands(group);
            let is_news = group.paths.mesh != stands && !group.replan;
            (is_news && (!stands || self.ring_ready(group))).then_some(stands)
        };
        let due: Vec<(GroupId, bool)> =
            self.groups.iter().filter_map(|(id, group)| Some((*id, news(group)?))).collect();
        for (id, stands) in &due {
            if let Some(group) = self.groups.get_mut(id) {
                group.begin_epoch();
                group.paths.mesh = *stands;
                let (epoch, what) = (group.epoch, if *stands { "stand" } else { "are not used" });
                self.debug(format!("group {id}: direct edges {what} from epoch {epoch} on"));
            }
            self.push_ring(*id);
        }
        !due.is_empty()
    }

    /// Until when a collective waits for the mesh that all of its callers have asked for: not if it stands, or cannot
    /// be used.
    pub(super) fn mesh_wait(&self, group: &Group, descriptor: &Descriptor) -> Option<Timestamp> {
        let due = group.stands_since? + MESH_PATIENCE;
        let waits = descriptor.asks_for_mesh(group.ring.len()) && self.mesh_is_coming(group);
        (waits && due > self.tick).then_some(due)
    }

    /// Whether the mesh does not stand yet, and may soon.
    pub(super) fn mesh_is_coming(&self, group: &Group) -> bool {
        group.has_mesh() && group.mesh.faults.is_empty() && !group.paths.mesh
    }

    /// Whether peers reach the master from one address.
    pub(super) fn are_on_one_host(&self, peers: &[PeerId]) -> bool {
        let hosts: Vec<_> =
            peers.iter().filter_map(|id| Some(self.peers.get(id)?.remote.to_canonical())).collect();
        hosts.windows(2).all(|pair| pair[0] == pair[1])
    }
}
