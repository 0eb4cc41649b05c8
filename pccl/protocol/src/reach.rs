//! The peers that reach each other: the question of the master, and the answer of a peer.

use crate::{GroupEpoch, Hosts, PeerId, Text, limits};
use tinysockets::wire::ListItem;

wire_struct! {
    /// A peer to be reached by a connection of the role `Check` to each of its ports.
    pub struct ReachTarget {
        /// The peer.
        pub peer: PeerId,
        /// Where the receiver reaches it.
        pub hosts: Hosts,
        /// Port of its data listener.
        pub p2p_port: u16,
        /// Port of its shared-state listener.
        pub state_port: u16,
    }
}

impl ListItem for ReachTarget {
    const LIST: &'static str = "peers to be reached";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_struct! {
    /// Find out whom of these you reach, and tell.
    pub struct ReachPlan {
        /// Names the answer.
        pub check: u64,
        /// Longest time for one of them, in milliseconds.
        pub limit_ms: u32,
        /// The peers that are to be reached.
        pub targets: Vec<ReachTarget>,
    }
}

wire_struct! {
    /// A port that was not reached.
    pub struct Unreached {
        /// The owner of the port.
        pub peer: PeerId,
        /// It is that of the shared-state listener, not that of the data listener.
        pub is_state: bool,
        /// Why, in words.
        pub text: Text,
    }
}

impl ListItem for Unreached {
    const LIST: &'static str = "ports that were not reached";
    const MAX_ITEMS: usize = 2 * limits::MAX_PEERS;
}

wire_struct! {
    /// Answer to a [`ReachPlan`].
    pub struct ReachReport {
        /// The plan.
        pub check: u64,
        /// The newest ring plan that the sender has worked on.
        pub epoch: GroupEpoch,
        /// All that was not reached.
        pub unreached: Vec<Unreached>,
    }
}
