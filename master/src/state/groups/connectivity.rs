//! How the members of a group are connected: the edges of the present plan, what is remembered of those that failed,
//! and how data may travel.

use super::edges::Edges;
use super::mesh::Mesh;
use super::point_to_point::Pairs;
use crate::state::types::Timestamp;
use pccl_planner::Sites;
use pccl_protocol::{Algorithm, GroupEpoch, LinkGeneration, Pair, Paths, PeerId, Site, Tag};
use std::collections::BTreeMap;

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
