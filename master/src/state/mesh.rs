//! Edges between all members of a small group, beside its ring.
//!
//! They save a small collective the way around the ring. Nothing depends on them: a ring is confirmed without them, and
//! as long as one of them does not stand, data goes around the ring. So a fault of a mesh edge costs nobody its place.
//! It takes the mesh away as long as it is remembered, if its ends stay; then the same ring is planned again, with a
//! mesh.

use super::group::{BrokenEdge, EdgeEnds, Group, Op};
use super::{MasterState, Timestamp};
use pccl_protocol::{
    Algorithm, Descriptor, EdgeFault, GroupEpoch, GroupId, KickCode, KickReason, LinkGeneration, MeshEdge,
    MeshReport, PeerId, Text, limits,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Who asks for pairwise exchange by name waits for the mesh for so long after the ring stands. Its edges are built at
/// the same time, and take a few round trips more.
const MESH_PATIENCE: Duration = Duration::from_secs(2);
/// How often a fault that comes back is remembered for twice as long as the one before: to an hour, from a minute.
const DOUBLINGS_MAX: u32 = 6;

/// The mesh of one group.
#[derive(Debug, Default)]
pub(super) struct Mesh {
    edges: BTreeMap<EdgeEnds, LinkGeneration>,
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

    /// Plans the edges for a ring in this order. Those that stay keep their generation, but for one that failed: its
    /// connections are not to be used again, even if one of its ends has not noticed.
    pub(super) fn plan(&mut self, order: &[PeerId], epoch: GroupEpoch, now: Timestamp) {
        let mut old = std::mem::take(&mut self.edges);
        old.retain(|ends, _| !self.faults.contains_key(ends));
        let is_possible = self.is_possible(order, now);
        self.faults.retain(|ends, until| *until > now && order.contains(&ends.0) && order.contains(&ends.1));
        if !is_possible {
            return;
        }
        let n = order.len();
        for from in 0..n {
            for to in (2..n).map(|steps| (from + steps) % n) {
                let ends = (order[from], order[to]);
                let generation = old.get(&ends).copied().unwrap_or(LinkGeneration(epoch.0));
                self.edges.insert(ends, generation);
            }
        }
    }

    /// Whether a fault of one of its edges is remembered.
    pub(super) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Whether the present ring has one.
    pub(super) fn is_planned(&self) -> bool {
        !self.edges.is_empty()
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

    /// Whether it has this edge in this generation.
    pub(super) fn has_edge(&self, ends: EdgeEnds, generation: LinkGeneration) -> bool {
        self.edges.get(&ends) == Some(&generation)
    }

    /// Whether it has an edge between these ends.
    pub(super) fn joins(&self, ends: EdgeEnds) -> bool {
        self.edges.contains_key(&ends)
    }

    /// As ring plans carry it.
    pub(super) fn edges(&self) -> Vec<MeshEdge> {
        let edge = |(ends, generation): (&EdgeEnds, &LinkGeneration)| MeshEdge {
            from: ends.0,
            to: ends.1,
            generation: *generation,
        };
        self.edges.iter().map(edge).collect()
    }
}

impl Group {
    /// Whether it is of a size for which there is a mesh.
    fn can_have_mesh(&self) -> bool {
        (3..=limits::MAX_MESH_RANKS).contains(&self.ring.len())
    }
}

impl MasterState {
    /// A report about the present mesh must name an edge of the reporter.
    pub(super) fn admit_mesh_report(
        &self,
        id: PeerId,
        group: GroupId,
        report: &MeshReport,
    ) -> Result<(), KickReason> {
        let refuse = |text: String| Err(KickReason::new(KickCode::Protocol, text));
        if let Some(fault) = report.fault.as_ref().filter(|fault| fault.from != id && fault.to != id) {
            return refuse(format!("reported the edge {} -> {}, which is not its own", fault.from, fault.to));
        }
        match self.groups.get(&group) {
            Some(group) if report.epoch > group.epoch => refuse(format!(
                "reported on the mesh of {}, but the present ring is {}",
                report.epoch, group.epoch
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn record_mesh_report(&mut self, id: PeerId, group_id: GroupId, report: MeshReport) {
        match report.fault {
            Some(fault) => self.mesh_fault(group_id, &fault, 0),
            None => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.meshed = Some(report.epoch);
                }
            }
        }
    }

    /// An edge of the mesh has failed; `stalled_ms` is 0 if its ends saw it break. What stands still ends the attempts
    /// that run on it, for nobody else would.
    pub(super) fn mesh_fault(&mut self, group_id: GroupId, fault: &EdgeFault, stalled_ms: u64) {
        let (now, memory) = (self.now, self.options.forbidden_expiry);
        let (ends, generation) = ((fault.from, fault.to), fault.generation);
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        if !group.mesh.has_edge(ends, generation) {
            return;
        }
        self.changed = true;
        let is_new = group.mesh.add_fault(ends, now, memory);
        if stalled_ms > 0 {
            group.ops.change_some(|_, op| {
                let Op::Running { algorithm, broken, .. } = op else { return false };
                if algorithm.uses_mesh() {
                    let text = Text::new(fault.text.as_str());
                    broken.push(BrokenEdge { ends, generation, stalled_ms, text });
                }
                algorithm.uses_mesh()
            });
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

    /// The algorithm of a collective that all members have prepared for `prepared`. The mesh is used if it stands.
    /// Small ones between peers on one host share its processors, and few messages are what counts; else it is few
    /// hops.
    pub(super) fn algorithm_by_mesh(&self, group: &Group, prepared: Algorithm) -> Algorithm {
        match prepared {
            Algorithm::AllGather if self.mesh_stands(group) => {
                if self.is_on_one_host(group) {
                    Algorithm::ReduceBroadcast
                } else {
                    Algorithm::Direct
                }
            }
            Algorithm::Pairwise if !self.mesh_stands(group) => Algorithm::Ring,
            _ => prepared,
        }
    }

    /// Every member has said that all of its edges stand, and none has failed since.
    fn mesh_stands(&self, group: &Group) -> bool {
        group.mesh.is_planned() && group.mesh.faults.is_empty() && self.unmeshed(group).is_empty()
    }

    /// Until when a collective waits for the mesh that all of its callers have asked for: not if it stands, or cannot
    /// be used.
    pub(super) fn mesh_wait(&self, group: &Group, descriptor: &Descriptor) -> Option<Timestamp> {
        let wants = descriptor.algorithm == Algorithm::Pairwise
            && descriptor.algorithm_for(group.ring.len(), group.pairwise) == Algorithm::Pairwise;
        let due = group.stands_since? + MESH_PATIENCE;
        (wants && self.mesh_is_coming(group) && due > self.tick).then_some(due)
    }

    /// Whether the mesh does not stand yet, and may soon.
    pub(super) fn mesh_is_coming(&self, group: &Group) -> bool {
        group.mesh.is_planned() && group.mesh.faults.is_empty() && !self.unmeshed(group).is_empty()
    }

    /// Members that have not said yet that their edges of the mesh stand.
    pub(super) fn unmeshed(&self, group: &Group) -> Vec<PeerId> {
        let meshed = |id: PeerId| self.peers.get(&id).is_some_and(|peer| peer.meshed == Some(group.epoch));
        group.ring.iter().map(|place| place.peer).filter(|id| !meshed(*id)).collect()
    }

    fn is_on_one_host(&self, group: &Group) -> bool {
        let hosts: Vec<_> = group
            .ring
            .iter()
            .filter_map(|place| Some(self.peers.get(&place.peer)?.remote.to_canonical()))
            .collect();
        hosts.windows(2).all(|pair| pair[0] == pair[1])
    }
}
