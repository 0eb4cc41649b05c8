//! The members of the run, and the plan of a group.

use crate::{GroupEpoch, GroupId, Hosts, LinkGeneration, PeerId, WorldEpoch, limits};
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
    /// One member of a group, as the receiver of the plan can reach it.
    pub struct Member {
        /// The peer.
        pub peer: PeerId,
        /// Where the receiver reaches it.
        pub hosts: Hosts,
        /// Port of its data listener.
        pub p2p_port: u16,
        /// Port of its shared-state listener.
        pub state_port: u16,
        /// The share of a tensor that this member owns in [pairwise exchange](crate::Algorithm::Pairwise), in relation
        /// to the others; 0 for all members: equal chunks.
        pub share: u16,
        /// Its site; all members in one: there are no sites.
        pub site: Site,
    }
}

wire_struct! {
    /// Which members are near each other.
    #[derive(Copy, Default)]
    pub struct Site {
        /// Equal for members of one site.
        pub number: u16,
        /// The share that the site owns of a tensor that is reduced [over sites](crate::Algorithm::Sites), in relation
        /// to the others; 0 for all members: each member owns the same.
        pub share: u16,
    }
}

impl ListItem for Member {
    const LIST: &'static str = "members";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_code! {
    /// The purpose of an edge.
    pub enum Purpose {
        /// From each member to the next. Operations begin only when all of these edges stand.
        Ring = 1 => "ring",
        /// From each member of a small group to all others that are no neighbours. Nothing waits for these edges:
        /// without them data goes around the ring.
        Mesh = 2 => "mesh",
        /// Between two members that send to each other, where neither ring nor mesh has such an edge.
        Pair = 3 => "pair",
    }
}

wire_struct! {
    /// A directed edge of a plan. There is at most one from one member to another.
    #[derive(Copy)]
    pub struct PlanEdge {
        /// Rank of the sending end, which dials, unless it is said otherwise.
        pub from: u16,
        /// Rank of the receiving end.
        pub to: u16,
        /// Generation of its connections.
        pub generation: LinkGeneration,
        /// How many connections it has; 0 leaves the number to the end that dials.
        pub connections: u16,
        /// Its purpose.
        pub purpose: Purpose,
        /// The receiving end dials, since nobody can dial it.
        pub back: bool,
        /// Nobody can dial either end: they meet at the relay, where the sending end begins.
        pub relayed: bool,
        /// The path between the two drops large packets. Connections are opened with short segments, these and what
        /// else the two connect for.
        pub short_segments: bool,
    }
}

impl ListItem for PlanEdge {
    const LIST: &'static str = "edges";
    const MAX_ITEMS: usize = limits::MAX_PEERS * limits::MAX_EDGES_OF_PEER;
}

wire_struct! {
    /// How data may travel in one epoch of a group. With the number of ranks and the descriptor of a collective it
    /// decides the [algorithm](crate::Descriptor::algorithm_for), at each peer and at the master alike.
    #[derive(Copy, Default)]
    pub struct Paths {
        /// All members have said that their edges beside the ring stand.
        pub mesh: bool,
        /// All members are on one host, and share its processors.
        pub one_host: bool,
        /// Large operations go by [`Algorithm::Pairwise`](crate::Algorithm::Pairwise) while the mesh stands, if the
        /// caller has not chosen.
        pub pairwise: bool,
        /// The mesh lacks the edges between members that nobody can dial. These own nothing, and only what owners alone
        /// send to all goes over it.
        pub partial: bool,
        /// There are several sites, one of them with several members.
        pub sites: bool,
        /// Large operations go by [`Algorithm::Sites`](crate::Algorithm::Sites) while the mesh stands, if there are
        /// sites and the caller has not chosen.
        pub by_sites: bool,
    }
}

wire_struct! {
    /// The members of one group in one epoch, and the edges between them. In the ring data flows from each member to
    /// the one behind it, from the last to the first.
    pub struct GroupPlan {
        /// The group.
        pub group: GroupId,
        /// The epoch that this plan begins.
        pub epoch: GroupEpoch,
        /// The first of the epochs up to this one over which the attempts of a tag are counted on.
        pub counted_since: GroupEpoch,
        /// Sizes to be shown to the caller from now on.
        pub sizes: WorldSizes,
        /// Members in the order of the ring; the index is the rank.
        pub members: Vec<Member>,
        /// The edges. One that is in several plans in a row with the same generation keeps its connections, and what
        /// runs on it goes on.
        pub edges: Vec<PlanEdge>,
        /// How data may travel.
        pub paths: Paths,
    }
}

impl GroupPlan {
    /// The share that each rank owns in pairwise exchange, in relation to the others; empty: equal chunks.
    pub fn shares(&self) -> Vec<u16> {
        if self.members.iter().all(|member| member.share == 0) {
            return Vec::new();
        }
        self.members.iter().map(|member| member.share).collect()
    }

    /// The sites of all ranks.
    pub fn sites(&self) -> Vec<Site> {
        self.members.iter().map(|member| member.site).collect()
    }

    /// Rank of `peer`, if it is a member.
    pub fn rank_of(&self, peer: PeerId) -> Option<usize> {
        self.members.iter().position(|member| member.peer == peer)
    }

    /// Rank of the member behind `rank`.
    pub fn next_of(&self, rank: usize) -> usize {
        (rank + 1) % self.members.len()
    }

    /// The peers at both ends of an edge. `None`: no plan of a master has such an edge.
    pub fn name_of(&self, edge: &PlanEdge) -> Option<EdgeName> {
        let peer = |rank: u16| Some(self.members.get(usize::from(rank))?.peer);
        Some(EdgeName { from: peer(edge.from)?, to: peer(edge.to)?, generation: edge.generation })
    }

    /// Edges that touch a peer, with what they are for.
    pub fn edges_of(&self, peer: PeerId) -> impl Iterator<Item = (Purpose, EdgeName)> {
        let named = self.edges.iter().filter_map(|edge| Some((edge.purpose, self.name_of(edge)?)));
        named.filter(move |(_, name)| name.from == peer || name.to == peer)
    }

    /// Edges for one purpose.
    pub fn edges_for(&self, purpose: Purpose) -> impl Iterator<Item = EdgeName> {
        self.edges.iter().filter(move |edge| edge.purpose == purpose).filter_map(|edge| self.name_of(edge))
    }
}

wire_struct! {
    /// Names the connections between two peers in one direction.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct EdgeName {
        /// Sending end.
        pub from: PeerId,
        /// Receiving end.
        pub to: PeerId,
        /// Generation of the connections.
        pub generation: LinkGeneration,
    }
}

impl ListItem for EdgeName {
    const LIST: &'static str = "edges that stand";
    const MAX_ITEMS: usize = limits::MAX_EDGES_OF_PEER;
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
        /// It stood, and was lost while nothing was under way on it, as where a firewall forgets idle connections: that
        /// is no reason to do without it.
        pub forgotten: bool,
        /// Details, for instance "connection refused".
        pub text: crate::Text,
    }
}

impl ListItem for EdgeFault {
    const LIST: &'static str = "edge faults";
    const MAX_ITEMS: usize = limits::MAX_EDGES_OF_PEER;
}
