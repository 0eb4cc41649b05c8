//! Bytes that have left one end of an edge and never reach the other.
//!
//! The sending end alone cannot tell: something between the two (a proxy, a tunnel, an address translator) may have taken
//! the bytes in and acknowledged them before it failed. What both ends have counted tells. As long as bytes are not even
//! acknowledged, the sending end judges by itself, see `Beat::stalled`, and says nothing here.

use super::group::EdgeEnds;
use super::{MasterState, Timestamp};
use pccl_protocol::{EdgeBytes, GroupId, LinkGeneration, PeerId};
use std::time::Duration;

/// What the two ends of an edge have counted.
#[derive(Debug)]
pub(super) struct Flow {
    generation: LinkGeneration,
    counts: (u64, u64),
    /// Since when bytes have been missing and none has arrived.
    pub(super) since: Timestamp,
}

/// Bytes that are missing on an edge.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) to: PeerId,
    pub(super) generation: LinkGeneration,
    pub(super) bytes: u64,
    /// For how long none has arrived.
    pub(super) stalled: Duration,
}

impl MasterState {
    /// Looks at the edge behind `id`, which has just sent a beat; the one before came `before`.
    pub(super) fn look_at_flow(
        &mut self,
        id: PeerId,
        group_id: GroupId,
        before: Option<Timestamp>,
    ) -> Option<Missing> {
        let (now, patience) = (self.now, self.options.beat_interval * 2);
        let paused = |at: Timestamp| now.since(at) > patience;
        let found = self.counts_of(id, group_id);
        let group = self.groups.get_mut(&group_id)?;
        let Some((sent, received, heard_at)) = found else {
            group.flows.retain(|ends, _| ends.0 != id);
            return None;
        };
        let (ends, counts): (EdgeEnds, _) = ((id, sent.peer), (sent.bytes, received.bytes));
        let fresh = || Flow { generation: sent.generation, counts, since: now };
        let flow = group.flows.entry(ends).or_insert_with(fresh);
        // An end that stood still itself says nothing about the edge. More that is sent into it is no sign of life.
        let still = flow.generation == sent.generation
            && flow.counts.1 == counts.1
            && flow.counts.1 < flow.counts.0
            && received.bytes < sent.bytes
            && !paused(heard_at)
            && !before.is_none_or(paused);
        if !still {
            // The receiving end said so with its beat, a little earlier.
            let only_received = flow.generation == sent.generation && flow.counts.0 == counts.0;
            let since = if only_received && !paused(heard_at) { heard_at } else { now };
            *flow = Flow { since, ..fresh() };
            return None;
        }
        flow.counts = counts;
        let bytes = sent.bytes.saturating_sub(received.bytes);
        let (to, generation) = (sent.peer, sent.generation);
        Some(Missing { to, generation, bytes, stalled: now.since(flow.since) })
    }

    /// What `id` has sent to the next peer, what that one has received of it, and when it said so, if both speak of the
    /// same edge of the present ring.
    fn counts_of(&self, id: PeerId, group_id: GroupId) -> Option<(EdgeBytes, EdgeBytes, Timestamp)> {
        let (beat, _) = self.peers.get(&id)?.beat.as_ref()?;
        let sent = beat.sent?;
        let (next, heard_at) = self.peers.get(&sent.peer)?.beat.as_ref()?;
        let received = next.received.filter(|r| r.peer == id && r.generation == sent.generation)?;
        let group = self.groups.get(&group_id)?;
        group.has_edge((id, sent.peer), sent.generation).then_some((sent, received, *heard_at))
    }
}
