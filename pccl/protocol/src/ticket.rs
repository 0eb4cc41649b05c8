//! Tickets: a peer of a run with a key needs them to connect to others, and to know those whom the master has let
//! connect to it.

use crate::{GroupEpoch, Hosts, PeerId, limits};
use tinysockets::{key::SecretKey, preamble::Role, wire::ListItem};

wire_code! {
    /// The purpose of a ticket. Numbers as those of the roles.
    pub enum TicketRole {
        /// Frames of collective operations.
        Data = 2 => "data",
        /// Shared state.
        State = 3 => "state",
        /// Measurements.
        Probe = 4 => "probe",
        /// As [`TicketRole::Data`], dialed by the receiving end of the edge.
        DataBack = 6 => "data, dialed back",
        /// As [`TicketRole::State`], dialed by the source.
        StateBack = 7 => "state, dialed back",
        /// As [`TicketRole::Probe`], dialed by the peer that is measured.
        ProbeBack = 8 => "probe, dialed back",
    }
}

impl TicketRole {
    /// The role of the connections.
    pub const fn role(self) -> Role {
        match self {
            Self::Data => Role::Data,
            Self::State => Role::State,
            Self::Probe => Role::Probe,
            Self::DataBack => Role::DataBack,
            Self::StateBack => Role::StateBack,
            Self::ProbeBack => Role::ProbeBack,
        }
    }
}

wire_struct! {
    /// Lets the receiver connect to another peer. The secret is that of a [ticket](tinysockets::ticket) for a preamble
    /// with all of these.
    pub struct Ticket {
        /// The peer that is called.
        pub to: PeerId,
        /// Its purpose.
        pub role: TicketRole,
        /// The epoch of the group in which the receiver is, 0 before it is in any.
        pub epoch: GroupEpoch,
        /// The generation of an edge; for state and probes, until when the ticket is good, in milliseconds of the
        /// master's life.
        pub generation: u64,
        /// The secret that both ends prove that they have.
        pub secret: SecretKey,
    }
}

wire_struct! {
    /// Asks for a connection by which shared state is fetched or the way to a peer is measured, and which that peer has
    /// to make, since it cannot be dialed. The master hands it on as a [`Call`].
    #[derive(Copy)]
    pub struct CallMe {
        /// The peer that is to dial.
        pub peer: PeerId,
        /// The purpose: [`TicketRole::StateBack`] or [`TicketRole::ProbeBack`].
        pub role: TicketRole,
        /// Which of several connections.
        pub index: u16,
        /// How many connections are to be made together; 0 leaves the number to the end that dials.
        pub count: u16,
    }
}

wire_struct! {
    /// Connect to a peer, which waits for it.
    pub struct Call {
        /// Whom to dial.
        pub peer: PeerId,
        /// Where the receiver reaches it.
        pub hosts: Hosts,
        /// Port of its listener for this role.
        pub port: u16,
        /// The purpose.
        pub role: TicketRole,
        /// As in the [`CallMe`].
        pub index: u16,
        /// As in the [`CallMe`].
        pub count: u16,
        /// It cannot be dialed either, and waits at the relay.
        pub relayed: bool,
    }
}

impl ListItem for Ticket {
    const LIST: &'static str = "tickets";
    const MAX_ITEMS: usize = limits::MAX_EDGES_OF_PEER + limits::MAX_SYNC_SOURCES;
}

wire_struct! {
    /// Tickets for the receiver, in front of the packet that it needs them for. Those for state are renewed as long as
    /// they may be needed. One for the same peer and role takes the place of the one before.
    pub struct Tickets {
        /// How long the master has been running, in milliseconds.
        pub now_ms: u64,
        /// The tickets.
        pub tickets: Vec<Ticket>,
    }
}

wire_struct! {
    /// The secrets for tickets in a run with a key. They come in front of the answer to the registration, and when the
    /// keys change.
    pub struct Keys {
        /// How long the master has been running, in milliseconds.
        pub now_ms: u64,
        /// By what the receiver knows tickets that were made for connections to it, and proves later who it was. Only
        /// the master and the receiver have it.
        pub service_key: SecretKey,
        /// The run keys that are accepted, first the one that is used; empty for a newcomer, which has one of them.
        pub run: Vec<SecretKey>,
    }
}
