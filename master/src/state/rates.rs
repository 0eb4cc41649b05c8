//! What operations show of the rates of edges, read off the beats of both ends.
//!
//! All edges of a ring move the same bytes in the same time, so the pace of an operation says what the slowest one can
//! do. The slowest is the one on which bytes wait all the time. So an edge is judged only while one and the same
//! operation runs, and only if its sending end had bytes on it at every look.

use super::group::EdgeEnds;
use super::plans::{Purpose, SMALLEST_PLANNED};
use super::{MasterState, Timestamp};
use pccl_protocol::{EdgeBytes, GroupId, LinkGeneration, OpId, PeerId, ProbeRate, ProbeResult};

/// An edge is much slower than planned below this part of the slowest rate of its ring.
const MUCH_SLOWER: f64 = 0.5;
/// A rate that operations come this close to is as good as measured anew.
const CONFIRMED: f64 = 0.9;
/// Looks in a row that have to agree.
const LOOKS: usize = 3;

/// What one look has shown.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Timestamp,
    bytes: u64,
}

/// Looks at an edge while one operation keeps it busy.
#[derive(Debug)]
pub(super) struct Pace {
    generation: LinkGeneration,
    op: OpId,
    /// The newest last.
    looks: Vec<Look>,
}

impl Pace {
    /// Lowest and highest rate between two looks in a row, in kbit/s, once there are enough of them.
    fn range(&self) -> Option<(u64, u64)> {
        if self.looks.len() < LOOKS {
            return None;
        }
        let rate = |pair: &[Look]| {
            let micros = u64::try_from(pair[1].at.since(pair[0].at).as_micros()).unwrap_or(u64::MAX);
            pair[1].bytes.saturating_sub(pair[0].bytes).saturating_mul(8000) / micros.max(1)
        };
        let rates: Vec<u64> = self.looks.windows(2).map(rate).collect();
        Some((rates.iter().copied().min()?, rates.iter().copied().max()?))
    }
}

impl MasterState {
    /// Looks at the edge in front of `id`, which has just said how much it has received.
    pub(super) fn look_at_pace(&mut self, id: PeerId, group_id: GroupId) {
        let found = self.busy_edge(id, group_id);
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let Some((ends, generation, op, look)) = found else {
            return group.paces.retain(|ends, _| ends.1 != id);
        };
        let patience = self.options.beat_interval * 2;
        let fresh = || Pace { generation, op, looks: Vec::new() };
        let pace = group.paces.entry(ends).or_insert_with(fresh);
        let last = pace.looks.last().map(|last| last.at);
        let goes_on = last.is_none_or(|last| look.at.since(last) <= patience);
        if (pace.generation, pace.op) != (generation, op) || !goes_on {
            *pace = fresh();
        }
        pace.looks.push(look);
        if pace.looks.len() > LOOKS {
            pace.looks.remove(0);
        }
        if let Some(range) = pace.range() {
            self.judge_pace(group_id, ends, range);
        }
    }

    /// The edge in front of `id`, if its sending end says that bytes wait on it, and in which operation.
    fn busy_edge(&self, id: PeerId, group_id: GroupId) -> Option<(EdgeEnds, LinkGeneration, OpId, Look)> {
        let group = self.groups.get(&group_id)?;
        let in_ring = |edge: &&EdgeBytes| group.has_edge((edge.peer, id), edge.generation);
        let received = self.peers.get(&id)?.beat.as_ref()?.0.received.iter().find(in_ring)?;
        let (beat, heard_at) = self.peers.get(&received.peer)?.beat.as_ref()?;
        let ends = (received.peer, id);
        let is_busy = !beat.sent.iter().any(|sent| sent.peer == id && sent.generation == received.generation)
            && self.now.since(*heard_at) <= self.options.beat_interval * 2;
        let look = Look { at: self.now, bytes: received.bytes };
        beat.operation.filter(|_| is_busy).map(|op| (ends, received.generation, op, look))
    }

    /// An edge has had bytes on it all the time, and moved them at a rate in this range.
    fn judge_pace(&mut self, group_id: GroupId, ends: EdgeEnds, (low, high): (u64, u64)) {
        let now = self.now;
        let Some(group) = self.groups.get(&group_id) else { return };
        let rates: Option<Vec<u64>> =
            group.edges().map(|(ends, _)| Some(self.measured.rate(ends)?.kbit_s)).collect();
        // Without a plan there is nothing to compare with.
        let (Some(planned), Some(known)) =
            (rates.and_then(|rates| rates.into_iter().min()), self.measured.rate(ends))
        else {
            return;
        };
        let note = |kbit_s: u64| ProbeResult::Measured(ProbeRate { kbit_s, ..known });
        if low as f64 >= known.kbit_s as f64 * CONFIRMED {
            return self.measured.note(ends, &note(known.kbit_s.max(low)), now);
        }
        // One that moves nothing at all is judged as a fault.
        if low == 0 || high as f64 >= planned as f64 * MUCH_SLOWER {
            return;
        }
        let (from, to) = (ends.0, ends.1);
        self.info(format!(
            "edge {from} -> {to} carries {high} kbit/s in operations, {} were measured: a new ring is planned",
            known.kbit_s
        ));
        self.measured.note(ends, &note(high), now);
        if let Some(group) = self.groups.get_mut(&group_id) {
            group.paces.clear();
        }
        if self.optimization.is_none() && self.ring_members(group_id).len() >= SMALLEST_PLANNED {
            self.start_plan(group_id, Purpose::Repair);
        }
    }
}
