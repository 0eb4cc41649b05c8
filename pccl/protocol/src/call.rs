//! The calls that a caller's thread can be in.

use crate::CollectiveKind;
use std::fmt;
use tinysockets::wire::{Decode, Encode, Reader, WireError};

/// The present call of the caller's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum CallKind {
    /// Not in any call.
    #[default]
    None,
    /// `connect`.
    Connect,
    /// `update_topology`.
    UpdateTopology,
    /// `are_peers_pending`.
    ArePeersPending,
    /// `wait_for_world`.
    WaitForWorld,
    /// A collective, or waiting for an asynchronous one.
    Collective(CollectiveKind),
    /// `sync_shared_state`.
    Sync,
    /// `optimize_topology`.
    OptimizeTopology,
    /// `form_group`.
    FormGroup,
}

/// The code of a call that is a collective is this plus that of its kind.
const COLLECTIVES: u8 = 0x40;

impl CallKind {
    /// The calls that are no collectives.
    const OTHERS: [(Self, u8, &'static str); 8] = [
        (Self::None, 0, "no call"),
        (Self::Connect, 1, "connect"),
        (Self::UpdateTopology, 2, "update_topology"),
        (Self::ArePeersPending, 3, "are_peers_pending"),
        (Self::WaitForWorld, 4, "wait_for_world"),
        (Self::Sync, 6, "sync_shared_state"),
        (Self::OptimizeTopology, 7, "optimize_topology"),
        (Self::FormGroup, 8, "form_group"),
    ];

    /// Every call.
    pub fn all() -> impl Iterator<Item = Self> {
        let collectives = CollectiveKind::ALL.iter().map(|kind| Self::Collective(*kind));
        Self::OTHERS.into_iter().map(|(call, ..)| call).chain(collectives)
    }

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Collective(kind) => kind.call(),
            other => other.entry().2,
        }
    }

    fn entry(self) -> (Self, u8, &'static str) {
        Self::OTHERS.into_iter().find(|(call, ..)| *call == self).unwrap_or(Self::OTHERS[0])
    }
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Encode for CallKind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Collective(kind) => COLLECTIVES + kind.code(),
            other => other.entry().1,
        });
    }
}

impl Decode for CallKind {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let code = u8::decode(reader)?;
        let kind = code.checked_sub(COLLECTIVES).and_then(CollectiveKind::from_code).map(Self::Collective);
        let other = Self::OTHERS.into_iter().find(|(_, other, _)| *other == code).map(|(call, ..)| call);
        kind.or(other).ok_or(WireError::BadValue { what: "CallKind", value: code.into() })
    }
}

serialized_as_wire!(CallKind);
