//! Who is in the run, and the ring of a group.

use crate::{GroupEpoch, GroupId, Host, LinkGeneration, PeerId, WorldEpoch, limits};
use tinysockets::wire::ListItem;

wire_struct! {
    /// A body without fields.
    #[derive(Copy, Default)]
    pub struct Nothing {}
}

wire_struct! {
    /// Sizes of the run. All of them count accepted peers only.
    #[derive(Copy, Default)]
    pub struct WorldSizes {
        /// Epoch of the world that these sizes belong to.
        pub world_epoch: WorldEpoch,
        /// Peers in the run.
        pub global: u32,
        /// Peers in the group of the receiver.
        pub group: u32,
        /// Groups with at least one peer.
        pub groups: u32,
        /// Size of the largest group.
        pub largest_group: u32,
        /// Peers that the run needs; below it collectives and syncs fail with `TooFewPeers`.
        pub min_world: u32,
    }
}

wire_struct! {
    /// One member of a ring, as the receiver of the plan can reach it.
    pub struct RingMember {
        /// The peer.
        pub peer: PeerId,
        /// Host on which the receiver reaches it.
        pub host: Host,
        /// Port of its data listener.
        pub p2p_port: u16,
        /// Port of its shared-state listener.
        pub state_port: u16,
        /// Generation of the edge from this member to the next one.
        pub generation: LinkGeneration,
        /// Connections of the edge from this member to the next one; 0 leaves the number to this member.
        pub connections: u16,
        /// What this member owns of a tensor in [pairwise exchange](crate::Algorithm::Pairwise), in relation to the
        /// others; 0 for all members: equal chunks.
        pub share: u16,
    }
}

impl ListItem for RingMember {
    const LIST: &'static str = "ring";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_struct! {
    /// A directed edge beside the ring, for direct exchange. One connection.
    #[derive(Copy)]
    pub struct MeshEdge {
        /// Sending end.
        pub from: PeerId,
        /// Receiving end.
        pub to: PeerId,
        /// Generation of the edge.
        pub generation: LinkGeneration,
    }
}

impl ListItem for MeshEdge {
    const LIST: &'static str = "mesh";
    const MAX_ITEMS: usize = limits::MAX_MESH_RANKS * (limits::MAX_MESH_RANKS - 2);
}

wire_struct! {
    /// The ring of one group in one epoch: data flows from each member to the one behind it, from the last to the
    /// first.
    pub struct RingPlan {
        /// The group.
        pub group: GroupId,
        /// The epoch that this ring belongs to.
        pub epoch: GroupEpoch,
        /// Sizes to be shown to the caller from now on.
        pub sizes: WorldSizes,
        /// Members in ring order; the index is the rank.
        pub ring: Vec<RingMember>,
        /// All edges between members that are not edges of the ring, or none: nothing waits for them, and without them
        /// data goes around the ring.
        pub mesh: Vec<MeshEdge>,
        /// Large operations may go over the mesh, by [`Algorithm::Pairwise`](crate::Algorithm::Pairwise), if the caller
        /// has not chosen: all members prepare for it.
        pub pairwise: bool,
    }
}

impl RingPlan {
    /// What each rank owns in pairwise exchange, in relation to the others; empty: equal chunks.
    pub fn shares(&self) -> Vec<u16> {
        if self.ring.iter().all(|member| member.share == 0) {
            return Vec::new();
        }
        self.ring.iter().map(|member| member.share).collect()
    }

    /// Whether this ring and mesh are those of `before`, over the same connections, so that what runs on them goes on:
    /// only the epoch is another, since the counts of attempts begin anew with it.
    pub fn continues(&self, before: &Self) -> bool {
        let place = |member: &RingMember| (member.peer, member.generation, member.connections);
        self.group == before.group
            && self.mesh == before.mesh
            && self.ring.iter().map(place).eq(before.ring.iter().map(place))
    }

    /// Rank of `peer`, if it is a member.
    pub fn rank_of(&self, peer: PeerId) -> Option<usize> {
        self.ring.iter().position(|member| member.peer == peer)
    }

    /// Index of the member behind `rank`.
    pub fn next_of(&self, rank: usize) -> usize {
        (rank + 1) % self.ring.len()
    }

    /// Index of the member in front of `rank`.
    pub fn previous_of(&self, rank: usize) -> usize {
        (rank + self.ring.len() - 1) % self.ring.len()
    }
}

wire_struct! {
    /// A directed edge that could not be built or that broke.
    pub struct EdgeFault {
        /// Sending end.
        pub from: PeerId,
        /// Receiving end.
        pub to: PeerId,
        /// Generation of the edge.
        pub generation: LinkGeneration,
        /// Details, for instance "connection refused".
        pub text: crate::Text,
    }
}

impl ListItem for EdgeFault {
    const LIST: &'static str = "edge faults";
    const MAX_ITEMS: usize = 2;
}
