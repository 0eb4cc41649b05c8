//! How the members of a group are connected: the edges of the present plan, what is remembered of those that failed,
//! and how data may travel.

use super::edges::{EdgeEnds, Edges};
use crate::state::types::Timestamp;
use pccl_planner::Sites;
use pccl_protocol::{Algorithm, GroupEpoch, LinkGeneration, Pair, Paths, PeerId, Site, Tag, Text, limits};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often a fault that comes back is remembered for twice as long as the one before: to an hour, from a minute.
const DOUBLINGS_MAX: u32 = 6;

/// See the module's documentation.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Net {
    pub(crate) edges: Edges,
    pub(crate) pairs: Pairs,
    /// The remembered faults of the mesh.
    pub(crate) mesh: Mesh,
    /// The first of the epochs up to the present one that have the same ring and mesh over the same connections, and so
    /// the same members.
    pub(crate) since: GroupEpoch,
    /// How data may travel, as the plan says.
    pub(crate) paths: Paths,
    /// The shares of members in pairwise exchange, in relation to each other; empty: equal chunks.
    pub(crate) shares: BTreeMap<PeerId, u16>,
    /// The sites of members; empty if there are none, or all are in one.
    pub(crate) sites: BTreeMap<PeerId, Site>,
    /// When the plan was sent.
    pub(crate) planned_at: Timestamp,
    /// When the ring was first confirmed by all members.
    pub(crate) stands_since: Option<Timestamp>,
}

impl Net {
    /// The generation of the edge that an operation with this tag runs on, if it is between two members.
    pub(crate) fn edge_of(&self, tag: Tag) -> Option<LinkGeneration> {
        let Pair { from, to } = tag.pair?;
        Some(self.edges.get((from, to))?.generation)
    }

    /// By what large operations go whose callers leave it open.
    pub(crate) fn large(&self) -> Algorithm {
        match self.paths {
            Paths { by_sites: true, .. } => Algorithm::Sites,
            Paths { pairwise: true, .. } => Algorithm::Pairwise,
            _ => Algorithm::Ring,
        }
    }

    /// The sites of these members, and what they own; none if there are none.
    pub(crate) fn sites_of(&self, peers: &[PeerId]) -> Option<Sites> {
        let of: Option<Vec<Site>> = peers.iter().map(|peer| self.sites.get(peer).copied()).collect();
        let of = of.filter(|of| !of.is_empty())?;
        let mut sites = Sites::new(&of.iter().map(|site| site.number).collect::<Vec<_>>());
        let share = |number: usize| {
            let first = sites.of.iter().position(|site| usize::from(*site) == number)?;
            Some(of[first].share)
        };
        let shares: Vec<u16> = (0..sites.count()).filter_map(share).collect();
        sites.shares = if shares.iter().any(|share| *share > 0) { shares } else { Vec::new() };
        Some(sites)
    }

    /// The shares of these members in pairwise exchange; empty: equal chunks.
    pub(crate) fn shares_of(&self, peers: &[PeerId]) -> Vec<u16> {
        if self.shares.is_empty() {
            return Vec::new();
        }
        peers.iter().map(|peer| self.shares.get(peer).copied().unwrap_or(0)).collect()
    }
}

/// The remembered faults of the mesh of one group.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Mesh {
    /// Edges that failed, and until when that is remembered.
    pub(crate) faults: BTreeMap<EdgeEnds, Timestamp>,
    /// When it was last planned again because its faults were over, and for how long those were remembered.
    pub(crate) renewed: Option<(Timestamp, Duration)>,
    /// For how long the latest fault is remembered.
    pub(crate) memory: Duration,
}

impl Mesh {
    /// Whether a ring in this order would have a mesh if it were planned now.
    pub(crate) fn is_possible(&self, order: &[PeerId], now: Timestamp) -> bool {
        let is_remembered = |ends: &EdgeEnds, until: Timestamp| {
            until > now && order.contains(&ends.0) && order.contains(&ends.1)
        };
        (3..=limits::MAX_MESH_RANKS).contains(&order.len())
            && !self.faults.iter().any(|(ends, until)| is_remembered(ends, *until))
    }

    /// Whether a fault of one of its edges is remembered.
    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Whether a fault of this edge is remembered.
    pub(crate) fn has_fault_of(&self, ends: EdgeEnds) -> bool {
        self.faults.contains_key(&ends)
    }

    /// When the last of its faults is over, if there were any.
    pub(crate) fn faults_end(&self) -> Option<Timestamp> {
        self.faults.values().max().copied()
    }

    /// Notes that an edge failed: for how long, and whether that is news. One that fails again soon after the mesh was
    /// planned anew is remembered for longer, so that a pair which never connects costs few plans.
    pub(crate) fn add_fault(&mut self, ends: EdgeEnds, now: Timestamp, shortest: Duration) -> bool {
        self.memory = match self.renewed {
            Some((at, before)) if now.since(at) < before * 2 => {
                (before * 2).min(shortest * (1 << DOUBLINGS_MAX))
            }
            _ => shortest,
        };
        self.faults.insert(ends, now + self.memory).is_none()
    }
}

/// The edges that are asked for, and those that have failed.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pairs {
    pub(crate) wanted: BTreeSet<EdgeEnds>,
    /// Edges that make room for others.
    pub(crate) unused: BTreeSet<EdgeEnds>,
    /// Edges that failed, until when that is remembered, and why.
    pub(crate) failed: BTreeMap<EdgeEnds, (Timestamp, Text)>,
}
