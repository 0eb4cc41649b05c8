//! Reasons for which an operation comes to nothing: a broken edge, the loss of a peer, a caller that gave it up.

use super::edges::EdgeEnds;
use pccl_protocol::{CallKind, Cause, Culprit, LinkGeneration, PeerId, Text};

/// An edge that was judged broken, as operations know it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct BrokenEdge {
    pub(crate) ends: EdgeEnds,
    pub(crate) generation: LinkGeneration,
    /// For how long it had stood still; 0 if its ends saw it break.
    pub(crate) stalled_ms: u64,
    /// Nobody else will end the attempt.
    pub(crate) is_final: bool,
    pub(crate) text: Text,
}

/// The loss of a peer, as far as operations are concerned.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Loss {
    pub(crate) cause: Cause,
    pub(crate) culprit: Culprit,
    pub(crate) silent_ms: u64,
    pub(crate) detail: Text,
}

/// A vote will come to nothing because of one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct GivenUp {
    pub(crate) by: PeerId,
    pub(crate) why: WhyGivenUp,
}

/// The reason why a vote comes to nothing because of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum WhyGivenUp {
    /// The limit of its call has passed, in milliseconds.
    Limit(u64),
    /// Its caller wants no result.
    Unwanted,
    /// It is in another call, which waits for `waits`, which waits for it. That is no mistake of either if the members
    /// have changed since all of them were last at the same place of the program.
    Elsewhere { call: CallKind, waits: PeerId, is_mistake: bool },
}

impl WhyGivenUp {
    pub(crate) fn of_caller(limit_ms: Option<u64>) -> Self {
        limit_ms.map_or(Self::Unwanted, Self::Limit)
    }
}
