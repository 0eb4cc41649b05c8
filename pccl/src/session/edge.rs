//! An edge of this peer, at one of its ends.

use tinysockets::{conn::Conn, preamble::Role};

/// One directed edge: the peer at the other end, and the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) peer: u128,
    pub(crate) generation: u64,
    /// Number of connections; 0 leaves it to the sending end.
    pub(crate) connections: u16,
}

impl Edge {
    /// Peer and generation: what names the edge.
    pub(crate) fn name(&self) -> (u128, u64) {
        (self.peer, self.generation)
    }
}

/// An edge at one of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) edge: Edge,
    /// This is the sending end.
    pub(crate) is_out: bool,
}

impl Side {
    /// The role with which the connections of an edge begin if this end dials them.
    pub(crate) fn dials_as(self) -> Role {
        if self.is_out { Role::Data } else { Role::DataBack }
    }

    /// The same, if the other end dials them.
    pub(crate) fn dialed_as(self) -> Role {
        if self.is_out { Role::DataBack } else { Role::Data }
    }
}

/// The result of a dial.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) side: Side,
    pub(crate) result: Result<Vec<Conn>, String>,
}
