//! What a caller sees of the run.

use pccl_protocol::{PeerId, RingPlan, WorldSizes};

/// The run as it was when the last call of this communicator that agrees with others returned (`connect`,
/// `update_topology`, `wait_for_world`, an all-reduce, a sync). It does not change between such calls, so that all peers
/// that branch on it branch alike. All sizes count accepted peers only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct World {
    /// Peers in the run.
    pub global_size: usize,
    /// Peers in the own group.
    pub group_size: usize,
    /// Groups with at least one peer.
    pub groups: usize,
    /// Size of the largest group.
    pub largest_group: usize,
    /// Peers that the run needs; below it collectives and syncs return `TooFewPeers`.
    pub min_world_size: usize,
    /// Own position in [`World::ring`].
    pub rank: usize,
    /// The own group in the order in which data flows; the index is the rank.
    pub ring: Vec<PeerId>,
}

impl World {
    pub(crate) fn apply_sizes(&mut self, sizes: &WorldSizes) {
        self.global_size = sizes.global as usize;
        self.group_size = sizes.group as usize;
        self.groups = sizes.groups as usize;
        self.largest_group = sizes.largest_group as usize;
        self.min_world_size = sizes.min_world as usize;
    }

    pub(crate) fn apply_plan(&mut self, plan: &RingPlan, rank: usize) {
        self.apply_sizes(&plan.sizes);
        self.ring = plan.ring.iter().map(|member| member.peer).collect();
        self.rank = rank;
    }
}
