//! Measuring edges, and what a planned ring came to.

use crate::{Algorithm, GroupId, Hosts, Name, PeerId, RequestId, Text, WorldSizes, limits};
use tinysockets::wire::ListItem;

wire_struct! {
    /// Names a round of probes: a report of an earlier one is late, not wrong.
    #[derive(Copy, Default)]
    pub struct ProbeRound {
        /// Counts the optimisations of the run.
        pub optimization: u64,
        /// Counts the rounds of the optimisation.
        pub round: u32,
    }
}

wire_struct! {
    /// Measure the way to a peer, now. In one round nobody measures two peers, and nobody is measured by two, unless
    /// all measure all at the same time.
    pub struct ProbePlan {
        /// The round.
        pub round: ProbeRound,
        /// The receiving end.
        pub to: PeerId,
        /// Where the measuring peer reaches it.
        pub hosts: Hosts,
        /// Port of its data listener.
        pub port: u16,
        /// Connections to use, as an edge of the ring would have; 0 leaves the number to the measuring peer.
        pub connections: u16,
        /// Longest time for all of it, connecting included, in milliseconds.
        pub limit_ms: u32,
        /// Every member of the group measures every other in this round, to learn what they have at the same time: no
        /// probe ends early. One connection, as an edge of a mesh has.
        pub crowded: bool,
        /// The receiving end cannot be dialed: the measuring peer asks for its connections with
        /// [`C2m::CallMe`](crate::C2m::CallMe).
        pub back: bool,
    }
}

wire_struct! {
    /// The rate that a probe has measured.
    #[derive(Copy)]
    pub struct ProbeRate {
        /// Bytes that arrived, in kbit/s.
        pub kbit_s: u64,
        /// One way, in microseconds: half of the shortest round trip.
        pub latency_us: u32,
        /// Connections that were used.
        pub connections: u16,
    }
}

wire_union! {
    /// How a probe ended.
    pub enum ProbeResult {
        /// With figures.
        Measured(ProbeRate) = 1,
        /// Without; why.
        Failed(Text) = 2,
    }
}

wire_struct! {
    /// The result of a measurement that a peer was told to make.
    pub struct ProbeReport {
        /// The round.
        pub round: ProbeRound,
        /// The receiving end.
        pub to: PeerId,
        /// The result.
        pub result: ProbeResult,
    }
}

wire_struct! {
    /// The rate of one edge.
    #[derive(Copy)]
    pub struct EdgeRate {
        /// Sending end.
        pub from: PeerId,
        /// Receiving end.
        pub to: PeerId,
        /// Its rate in kbit/s.
        pub kbit_s: u64,
    }
}

impl EdgeRate {
    /// The rate for a text.
    pub fn rate(&self) -> String {
        format!("{:.1} Mbit/s", self.kbit_s as f64 / 1000.0)
    }
}

wire_struct! {
    /// A member of a group whose edges were measured.
    pub struct RatedPeer {
        /// The peer.
        pub peer: PeerId,
        /// Its name.
        pub name: Name,
    }
}

impl ListItem for RatedPeer {
    const LIST: &'static str = "rated peers";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_struct! {
    /// The last measurement of the edge between two of the members of a group.
    #[derive(Copy)]
    pub struct MeasuredEdge {
        /// Place of the sending end among the members.
        pub from: u16,
        /// Place of the receiving end among the members.
        pub to: u16,
        /// Rate in kbit/s.
        pub kbit_s: u64,
        /// One way, in microseconds.
        pub latency_us: u32,
    }
}

impl ListItem for MeasuredEdge {
    const LIST: &'static str = "measured edges";
    const MAX_ITEMS: usize = limits::MAX_RATES;
}

wire_struct! {
    /// The measurements of the edges of a group.
    pub struct Rates {
        /// The question.
        pub request: RequestId,
        /// The group, if it has a ring.
        pub group: Option<GroupId>,
        /// Its members in ring order.
        pub peers: Vec<RatedPeer>,
        /// Edges that have a rate.
        pub edges: Vec<MeasuredEdge>,
        /// Edges that have a rate and did not fit in here.
        pub left_out: u64,
    }
}

wire_struct! {
    /// Answer to the vote for an optimisation. The ring itself was sent before.
    pub struct OptimizeDone {
        /// The vote.
        pub request: RequestId,
        /// The world as it is now.
        pub sizes: WorldSizes,
        /// The ring of the receiver's group is another one than before.
        pub changed: bool,
        /// The slowest edge of the ring, if the ring was planned.
        pub slowest: Option<EdgeRate>,
        /// No ring has a faster slowest edge than this, in kbit/s; 0 if not known.
        pub bound_kbit_s: u64,
        /// No ring is better by what was measured.
        pub proven: bool,
        /// Edges of the group without a rate: they could not be measured, and no ring uses them.
        pub unmeasured: u32,
        /// How large operations of the receiver's group go while its mesh stands, unless the caller chooses: by
        /// [`Algorithm::Ring`], [`Algorithm::Pairwise`] or [`Algorithm::Sites`].
        pub schedule: Algorithm,
        /// Predicted speed of pairwise exchange, in per cent of the ring's; 0 if not known, or where there is no
        /// choice.
        pub pairwise_pct: u32,
        /// The same over sites.
        pub sites_pct: u32,
        /// Why nothing was planned, or who stands in the way of a ring; else empty.
        pub note: Text,
    }
}
