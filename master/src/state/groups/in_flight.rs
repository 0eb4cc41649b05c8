//! Bytes that have left one end of an edge and never reach the other.
//!
//! The sending end alone cannot tell: something between the two (a proxy, a tunnel, an address translator) may have
//! taken the bytes in and acknowledged them before it failed. The counts of both ends tell. As long as bytes are not
//! even acknowledged, the sending end judges by itself, see `Beat::stalled`, and says nothing here.

use super::edges::Flow;
use super::group::Group;
use crate::state::membership::members::Roll;
use crate::state::types::Timestamp;
use pccl_protocol::{EdgeBytes, LinkGeneration, PeerId};
use std::time::Duration;

/// Bytes that are missing on an edge.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Missing {
    pub(crate) to: PeerId,
    pub(crate) generation: LinkGeneration,
    pub(crate) bytes: u64,
    /// For how long none has arrived.
    pub(crate) stalled: Duration,
}

impl Group {
    /// Looks at the edges from `id`, which has just sent a beat; the one before came `before`.
    pub(crate) fn look_at_flows(
        &mut self,
        roll: &Roll,
        id: PeerId,
        before: Option<Timestamp>,
    ) -> Vec<Missing> {
        let found = self.counts_of(roll, id);
        for (to, edge) in self.net.edges.leaving_mut(id) {
            edge.flow.take_if(|_| !found.iter().any(|(sent, ..)| sent.peer == to));
        }
        found.into_iter().filter_map(|counts| self.look_at_flow(roll, id, before, counts)).collect()
    }

    fn look_at_flow(
        &mut self,
        roll: &Roll,
        id: PeerId,
        before: Option<Timestamp>,
        (sent, received, heard_at): (EdgeBytes, EdgeBytes, Timestamp),
    ) -> Option<Missing> {
        let (now, patience) = (roll.now, roll.options.beat_interval * 2);
        let paused = |at: Timestamp| now.since(at) > patience;
        let counts = (sent.bytes, received.bytes);
        let fresh = || Flow { counts, since: now };
        let flow = &mut self.net.edges.named_mut((id, sent.peer), sent.generation)?.flow;
        let flow = flow.get_or_insert_with(fresh);
        // An end that stood still itself says nothing about the edge. More that is sent into it is no sign of life.
        let still = flow.counts.1 == counts.1
            && flow.counts.1 < flow.counts.0
            && received.bytes < sent.bytes
            && !paused(heard_at)
            && !before.is_none_or(paused);
        if !still {
            // The receiving end said so with its beat, a little earlier.
            let only_received = flow.counts.0 == counts.0;
            let since = if only_received && !paused(heard_at) { heard_at } else { now };
            *flow = Flow { since, ..fresh() };
            return None;
        }
        flow.counts = counts;
        let bytes = sent.bytes.saturating_sub(received.bytes);
        let (to, generation) = (sent.peer, sent.generation);
        Some(Missing { to, generation, bytes, stalled: now.since(flow.since) })
    }

    /// The bytes that `id` has sent to others, what these have received of them, and when they said so. Only where both
    /// speak of the same edge of the present ring or mesh.
    fn counts_of(&self, roll: &Roll, id: PeerId) -> Vec<(EdgeBytes, EdgeBytes, Timestamp)> {
        let beat_of = |id: PeerId| roll.peers.get(&id).and_then(|peer| peer.beat.as_ref());
        let Some((beat, _)) = beat_of(id) else { return Vec::new() };
        let counts = |sent: &EdgeBytes| {
            let (other, heard_at) = beat_of(sent.peer)?;
            let same = |r: &&EdgeBytes| r.peer == id && r.generation == sent.generation;
            let received = other.received.iter().find(same)?;
            let is_ours = self.net.edges.named((id, sent.peer), sent.generation).is_some();
            is_ours.then_some((*sent, *received, *heard_at))
        };
        beat.sent.iter().filter_map(counts).collect()
    }
}
