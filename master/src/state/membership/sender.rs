//! Clients as senders of packets: how far a peer has come, and who sends.

use pccl_protocol::{GroupId, PeerId, Senders};

/// How far a peer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(crate) enum Phase {
    /// Waits for a round that admits it.
    Pending,
    /// Member of a ring that is being connected in a running round.
    Connecting,
    /// Full member: votes and is counted.
    Accepted,
}

/// Where the sender of a packet stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Sender {
    /// Connected, not registered; how often it has asked for the status.
    Stranger(u32),
    /// Registered.
    Peer(PeerId, GroupId, Phase),
}

impl Sender {
    pub(crate) const fn phases(self) -> Senders {
        match self {
            Self::Stranger(_) => Senders::STRANGER,
            Self::Peer(_, _, Phase::Pending) => Senders::PENDING,
            Self::Peer(_, _, Phase::Connecting) => Senders::CONNECTING,
            Self::Peer(_, _, Phase::Accepted) => Senders::ACCEPTED,
        }
    }

    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Stranger(_) => "a client that has not registered",
            Self::Peer(_, _, Phase::Pending) => "a peer that waits for admission",
            Self::Peer(_, _, Phase::Connecting) => "a peer that is being admitted",
            Self::Peer(_, _, Phase::Accepted) => "an accepted peer",
        }
    }
}
