//! What a caller sees of the run.

use pccl_protocol::{GroupPlan, PeerId, WorldSizes};

/// The run as it was when the master answered the last call of this communicator that agrees with others (`connect`,
/// `update_topology`, `wait_for_world`, an all-reduce, a sync). What happened after that answer shows only after the
/// next call, so that all peers that got the same answer see the same, and those that branch on it branch alike. All
/// sizes count accepted peers only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
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

/// A world, and how many pieces of news led to it: of two of one session, the one with more is newer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) world: World,
    news: u64,
}

impl Known {
    pub(crate) fn apply_sizes(&mut self, sizes: &WorldSizes) {
        self.world.apply_sizes(sizes);
        self.news += 1;
    }

    pub(crate) fn apply_plan(&mut self, plan: &GroupPlan, rank: usize) {
        self.world.apply_plan(plan, rank);
        self.news += 1;
    }

    /// Whether this is what came out of `other` by more news.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        self.news > other.news
    }
}

impl World {
    fn apply_sizes(&mut self, sizes: &WorldSizes) {
        self.global_size = sizes.global as usize;
        self.group_size = sizes.group as usize;
        self.groups = sizes.groups as usize;
        self.largest_group = sizes.largest_group as usize;
        self.min_world_size = sizes.min_world as usize;
    }

    fn apply_plan(&mut self, plan: &GroupPlan, rank: usize) {
        self.apply_sizes(&plan.sizes);
        self.ring = plan.members.iter().map(|member| member.peer).collect();
        self.rank = rank;
    }
}
