//! The place of a new attempt: its identity, and the members of the ring that it runs on.

use pccl_protocol::{GroupPlan, OpId, Paths, PeerId};
use std::sync::Arc;

/// Ring and identity for a new attempt.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) id: OpId,
    /// The peers that take part, by rank.
    pub(crate) ring: Vec<PeerId>,
    pub(crate) rank: usize,
    /// How data may travel.
    pub(crate) paths: Paths,
    /// The ring of the whole group.
    pub(crate) plan: Arc<GroupPlan>,
}
