//! The edges between the members of one group: what is planned, what members have said of it, and what is remembered
//! against pairs of members.
//!
//! Ring and mesh are lists of edges ([`ring_of`], [`mesh_of`]) and nothing more: an edge stands, fails and is built
//! anew in one way, whatever it is for. The purpose of an edge says only what follows from that.

use crate::state::membership::black_holes::BlackHoles;
use crate::state::optimise::rates::Pace;
use crate::state::types::Timestamp;
use pccl_protocol::{EdgeName, GroupEpoch, LinkGeneration, PeerId, PlanEdge, Purpose, Text};
use std::collections::{BTreeMap, BTreeSet};

/// A directed edge: sending end, receiving end.
pub(crate) type EdgeEnds = (PeerId, PeerId);

/// The edges of a ring in this order.
pub(crate) fn ring_of(order: &[PeerId]) -> impl Iterator<Item = EdgeEnds> {
    let n = order.len();
    (0..n).filter(move |_| n > 1).map(move |rank| (order[rank], order[(rank + 1) % n]))
}

/// All edges between members that are not edges of a ring in this order.
pub(crate) fn mesh_of(order: &[PeerId]) -> impl Iterator<Item = EdgeEnds> {
    let n = order.len();
    (0..n).flat_map(move |from| (2..n).map(move |steps| (order[from], order[(from + steps) % n])))
}

/// A report about an edge that is held back for a while.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct HeldFault {
    pub(crate) since: Timestamp,
    /// The edge could not be built (as opposed to: stood and broke).
    pub(crate) unbuildable: bool,
    /// For how long nothing had moved on it; 0 where that is not the report.
    pub(crate) stalled_ms: u64,
    /// Bytes of the long segments that were sent again in vain meanwhile; 0 where there were none.
    pub(crate) segment_bytes: u32,
    pub(crate) text: Text,
}

/// The complaint of an end against an edge.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub(crate) text: Text,
    /// See [`HeldFault`], as for the others.
    pub(crate) unbuildable: bool,
    pub(crate) stalled_ms: u64,
    pub(crate) segment_bytes: u32,
}

/// The knowledge that speaks against an edge.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Mark {
    /// Forgotten after this.
    pub(crate) until: Timestamp,
    pub(crate) severity: Severity,
    pub(crate) text: Text,
}

/// How bad an edge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(crate) enum Severity {
    /// Stood, and broke once; it is built anew.
    Broke,
    /// Could not be built once; it is tried again.
    Failed,
    /// Stood, and broke repeatedly: other rings are better, but nobody goes because of it.
    Avoided,
    /// Could not be built: no ring has it.
    Forbidden,
}

/// The counts of the two ends of an edge.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Flow {
    pub(crate) counts: (u64, u64),
    /// Since when bytes have been missing and none has arrived.
    pub(crate) since: Timestamp,
}

/// An edge of the present plan.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Edge {
    pub(crate) purpose: Purpose,
    /// Since when it is for that.
    pub(crate) since: GroupEpoch,
    pub(crate) generation: LinkGeneration,
    pub(crate) connections: u16,
    /// The receiving end dials.
    back: bool,
    /// Whether its sending end and its receiving end have said that it stands.
    up: (bool, bool),
    /// It is to have new connections in the next plan.
    pub(crate) rebuild: bool,
    held: Option<HeldFault>,
    pub(crate) flow: Option<Flow>,
    /// When its receiving end last said that it was at work on what had come.
    pub(crate) busy_at: Option<Timestamp>,
    /// The pace that it showed while one operation kept it busy.
    pub(crate) pace: Option<Pace>,
}

impl Edge {
    const fn new(wanted: &Wanted, epoch: GroupEpoch) -> Self {
        let Wanted { purpose, connections, back, .. } = *wanted;
        Self {
            purpose,
            since: epoch,
            generation: LinkGeneration(epoch.0),
            connections,
            back,
            up: (false, false),
            rebuild: false,
            held: None,
            flow: None,
            busy_at: None,
            pace: None,
        }
    }

    /// Both of its ends have said that it stands.
    pub(crate) const fn is_up(&self) -> bool {
        self.up.0 && self.up.1
    }

    /// As it goes on in a plan, unless it is built anew. An edge that stands may be for something else from now on;
    /// what an end has said against it was judged by what it is for.
    fn kept_as(mut self, wanted: &Wanted, epoch: GroupEpoch) -> Option<Self> {
        let is_same = self.purpose == wanted.purpose;
        let is_sound = self.is_up() && self.held.is_none();
        // The end that dialed does not matter any more to an edge that stands.
        let fits = self.connections == wanted.connections && (self.back == wanted.back || self.is_up());
        if self.rebuild || !fits || !(is_same || is_sound) {
            return None;
        }
        if !is_same {
            (self.purpose, self.since) = (wanted.purpose, epoch);
        }
        Some(self)
    }

    /// The report about it that is held back.
    pub(crate) const fn held(&self) -> Option<&HeldFault> {
        self.held.as_ref()
    }

    /// Notes a report; it may add to one that is held back.
    fn hold(&mut self, complaint: Complaint, now: Timestamp) {
        let Complaint { text, unbuildable, stalled_ms, segment_bytes } = complaint;
        let fresh = || HeldFault { since: now, unbuildable, stalled_ms, segment_bytes, text: text.clone() };
        let held = self.held.get_or_insert_with(fresh);
        if unbuildable && !held.unbuildable {
            // The other end may have taken a half-built connection for one that stood, and broke.
            (held.unbuildable, held.stalled_ms, held.text) = (true, 0, text);
        } else if stalled_ms == 0 && held.stalled_ms > 0 {
            // A standstill may end, and is forgotten then; a break is not.
            (held.stalled_ms, held.text) = (0, text);
        } else if held.stalled_ms > 0 {
            // It lasts.
            (held.stalled_ms, held.segment_bytes, held.text) = (stalled_ms, segment_bytes, text);
        }
    }
}

/// An edge as a plan is to have it.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct Wanted {
    pub(crate) ends: EdgeEnds,
    pub(crate) purpose: Purpose,
    pub(crate) connections: u16,
    /// The receiving end dials.
    pub(crate) back: bool,
}

/// See the module's documentation.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Edges {
    planned: BTreeMap<EdgeEnds, Edge>,
    /// Those of which not both ends have said that they stand, by what they are for.
    open: BTreeMap<Purpose, BTreeSet<EdgeEnds>>,
    /// Those about which a report is held back.
    held: BTreeSet<EdgeEnds>,
    pub(crate) marks: BTreeMap<EdgeEnds, Mark>,
    pub(crate) black_holes: BlackHoles,
}

impl Edges {
    /// Plans these edges. One that was planned before stays, unless it is to be built anew, if it was for the same
    /// purpose or stands. Whether anything has changed.
    pub(crate) fn plan(&mut self, wanted: impl IntoIterator<Item = Wanted>, epoch: GroupEpoch) -> bool {
        let mut old = std::mem::take(&mut self.planned);
        let (before, mut kept) = (old.len(), 0);
        for wanted in wanted {
            let known = old.remove(&wanted.ends).and_then(|edge| edge.kept_as(&wanted, epoch));
            kept += usize::from(known.as_ref().is_some_and(|edge| edge.since < epoch));
            self.planned.insert(wanted.ends, known.unwrap_or_else(|| Edge::new(&wanted, epoch)));
        }
        self.note_plan();
        (before, self.planned.len()) != (kept, kept)
    }

    /// Adds edges between pairs, each in place of one that there was, and takes those of pairs away that are `over`.
    /// All others stay.
    pub(crate) fn change_pairs(
        &mut self,
        more: impl IntoIterator<Item = Wanted>,
        over: impl Fn(EdgeEnds) -> bool,
        epoch: GroupEpoch,
    ) {
        self.planned.retain(|ends, edge| edge.purpose != Purpose::Pair || !over(*ends));
        for wanted in more {
            self.planned.insert(wanted.ends, Edge::new(&wanted, epoch));
        }
        self.note_plan();
    }

    /// There are other edges now.
    fn note_plan(&mut self) {
        (self.open, self.held) = (BTreeMap::new(), BTreeSet::new());
        for (ends, edge) in &self.planned {
            if !edge.is_up() {
                self.open.entry(edge.purpose).or_default().insert(*ends);
            }
            if edge.held.is_some() {
                self.held.insert(*ends);
            }
        }
    }

    /// As plans carry them, for members in this order.
    pub(crate) fn listed(&self, order: &[PeerId], is_relayed: impl Fn(EdgeEnds) -> bool) -> Vec<PlanEdge> {
        let ranks: BTreeMap<PeerId, u16> = order.iter().copied().zip(0..).collect();
        let listed = self.planned.iter().filter_map(|(ends, edge)| {
            let Edge { purpose, generation, connections, back, .. } = *edge;
            let (from, to) = (*ranks.get(&ends.0)?, *ranks.get(&ends.1)?);
            let (relayed, short_segments) = (is_relayed(*ends), self.black_holes.has(*ends));
            Some(PlanEdge { from, to, generation, connections, purpose, back, relayed, short_segments })
        });
        listed.collect()
    }

    /// An edge of the plan.
    pub(crate) fn get(&self, ends: EdgeEnds) -> Option<&Edge> {
        self.planned.get(&ends)
    }

    /// An edge of the plan in this generation.
    pub(crate) fn named(&self, ends: EdgeEnds, generation: LinkGeneration) -> Option<&Edge> {
        self.get(ends).filter(|edge| edge.generation == generation)
    }

    /// As [`Edges::named`], to change what is known of it.
    pub(crate) fn named_mut(&mut self, ends: EdgeEnds, generation: LinkGeneration) -> Option<&mut Edge> {
        self.planned.get_mut(&ends).filter(|edge| edge.generation == generation)
    }

    /// An edge of the plan, to change what is known of it.
    pub(crate) fn get_mut(&mut self, ends: EdgeEnds) -> Option<&mut Edge> {
        self.planned.get_mut(&ends)
    }

    /// Edges for one purpose.
    pub(crate) fn all_for(&self, purpose: Purpose) -> impl Iterator<Item = (EdgeEnds, &Edge)> {
        self.planned.iter().filter(move |(_, edge)| edge.purpose == purpose).map(|(ends, edge)| (*ends, edge))
    }

    /// The edges that `from` sends over, by who receives.
    pub(crate) fn leaving_mut(&mut self, from: PeerId) -> impl Iterator<Item = (PeerId, &mut Edge)> {
        let ends = (from, PeerId(0))..=(from, PeerId(u128::MAX));
        self.planned.range_mut(ends).map(|(ends, edge)| (ends.1, edge))
    }

    /// All edges of the plan.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = (EdgeEnds, &mut Edge)> {
        self.planned.iter_mut().map(|(ends, edge)| (*ends, edge))
    }

    /// Whether the ring has this edge in this generation.
    pub(crate) fn ring_has(&self, ends: EdgeEnds, generation: LinkGeneration) -> bool {
        self.named(ends, generation).is_some_and(|edge| edge.purpose == Purpose::Ring)
    }

    /// Whether the ring has an edge with these ends.
    pub(crate) fn ring_has_ends(&self, ends: EdgeEnds) -> bool {
        self.get(ends).is_some_and(|edge| edge.purpose == Purpose::Ring)
    }

    /// Notes that an edge stands at the end that says so. Whether all edges for its purpose stand since then.
    pub(crate) fn note_up(&mut self, by: PeerId, name: &EdgeName) -> bool {
        let ends = (name.from, name.to);
        let Some(edge) = self.named_mut(ends, name.generation) else { return false };
        edge.up.0 |= by == name.from;
        edge.up.1 |= by == name.to;
        let (is_up, purpose) = (edge.is_up(), edge.purpose);
        let is_new = is_up && self.open.get_mut(&purpose).is_some_and(|open| open.remove(&ends));
        is_new && self.all_up(purpose)
    }

    /// Whether all edges for this purpose stand.
    pub(crate) fn all_up(&self, purpose: Purpose) -> bool {
        self.open_for(purpose).next().is_none()
    }

    /// Edges for this purpose that do not stand.
    fn open_for(&self, purpose: Purpose) -> impl Iterator<Item = (EdgeEnds, &Edge)> {
        let open = self.open.get(&purpose).into_iter().flatten();
        open.filter_map(|ends| Some((*ends, self.get(*ends)?)))
    }

    /// Whether a peer has said of its edge that it stands.
    pub(crate) fn is_up_at(&self, by: PeerId, ends: EdgeEnds) -> bool {
        self.get(ends).is_some_and(|edge| (edge.up.0 && by == ends.0) || (edge.up.1 && by == ends.1))
    }

    /// Members that have not said of all of their edges for this purpose that they stand.
    pub(crate) fn missing(&self, purpose: Purpose) -> BTreeSet<PeerId> {
        self.missing_ends(purpose).collect()
    }

    /// Whether one of them is such a peer.
    pub(crate) fn any_missing(&self, purpose: Purpose, is_it: impl FnMut(PeerId) -> bool) -> bool {
        self.missing_ends(purpose).any(is_it)
    }

    fn missing_ends(&self, purpose: Purpose) -> impl Iterator<Item = PeerId> {
        self.open_for(purpose).flat_map(|(ends, edge)| {
            let from = (!edge.up.0).then_some(ends.0);
            from.into_iter().chain((!edge.up.1).then_some(ends.1))
        })
    }

    /// Notes a report about an edge of this generation; it may add to one that is held back. Whether there is such an
    /// edge.
    pub(crate) fn hold(
        &mut self,
        ends: EdgeEnds,
        generation: LinkGeneration,
        complaint: Complaint,
        now: Timestamp,
    ) -> bool {
        let Some(edge) = self.named_mut(ends, generation) else { return false };
        edge.hold(complaint, now);
        self.held.insert(ends);
        true
    }

    /// An edge has failed: its connections are not to be used again, even if one of its ends has not noticed.
    pub(crate) fn note_failed(&mut self, ends: EdgeEnds, generation: LinkGeneration) {
        if let Some(edge) = self.named_mut(ends, generation) {
            edge.rebuild = true;
        }
    }

    /// Takes the report about an edge that is held back, if it is one of these.
    pub(crate) fn take_held(
        &mut self,
        ends: EdgeEnds,
        is_it: impl FnOnce(&mut HeldFault) -> bool,
    ) -> Option<HeldFault> {
        let fault = self.planned.get_mut(&ends)?.held.take_if(is_it)?;
        self.held.remove(&ends);
        Some(fault)
    }

    /// Reports that are held back.
    pub(crate) fn held(&self) -> impl Iterator<Item = (EdgeEnds, &HeldFault)> {
        self.held.iter().filter_map(|ends| Some((*ends, self.get(*ends)?.held.as_ref()?)))
    }

    /// The same, to change when they came.
    pub(crate) fn held_mut(&mut self) -> impl Iterator<Item = &mut HeldFault> {
        self.planned.values_mut().filter_map(|edge| edge.held.as_mut())
    }

    /// When the receiving ends that were at work last said so.
    pub(crate) fn busy_at_mut(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.planned.values_mut().filter_map(|edge| edge.busy_at.as_mut())
    }

    /// How many there are.
    pub(crate) fn count_held(&self) -> usize {
        self.held.len()
    }

    /// Whether a report is held back.
    pub(crate) fn any_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether a report about an edge of the ring is held back.
    pub(crate) fn ring_is_doubtful(&self) -> bool {
        self.held.iter().any(|ends| self.ring_has_ends(*ends))
    }

    /// The paces that edges have shown do not count any more.
    pub(crate) fn clear_paces(&mut self) {
        self.planned.values_mut().for_each(|edge| edge.pace = None);
    }

    /// Whether an edge of the ring is to be built anew.
    pub(crate) fn any_to_rebuild(&self) -> bool {
        self.all_for(Purpose::Ring).any(|(_, edge)| edge.rebuild)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(n: u128) -> Vec<PeerId> {
        (1..=n).map(PeerId).collect()
    }

    #[test]
    fn ring_and_mesh_join_everybody_with_everybody_once() {
        assert_eq!((ring_of(&peers(1)).count(), mesh_of(&peers(1)).count()), (0, 0));
        for n in 2..=8 {
            let order = peers(n as u128);
            let all: Vec<EdgeEnds> = ring_of(&order).chain(mesh_of(&order)).collect();
            assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (n * (n - 1), n * (n - 1)));
            assert!(all.iter().all(|(from, to)| from != to));
        }
    }

    #[test]
    fn an_edge_keeps_what_is_known_of_it_as_long_as_it_is_planned() {
        let (a, b) = (PeerId(1), PeerId(2));
        let wanted = |ends, purpose| Wanted { ends, purpose, connections: 1, back: false };
        let mut edges = Edges::default();
        assert!(edges.plan([wanted((a, b), Purpose::Mesh)], GroupEpoch(1)));
        let name = EdgeName { from: a, to: b, generation: LinkGeneration(1) };
        edges.note_up(a, &name);
        assert_eq!(edges.missing(Purpose::Mesh), BTreeSet::from([b]));
        edges.note_up(b, &EdgeName { generation: LinkGeneration(9), ..name });
        assert!(!edges.get((a, b)).unwrap().is_up(), "that was another edge");
        assert!(!edges.plan([wanted((a, b), Purpose::Mesh)], GroupEpoch(2)));
        edges.note_up(b, &name);
        assert!(edges.get((a, b)).unwrap().is_up());
        assert!(edges.plan([wanted((a, b), Purpose::Ring)], GroupEpoch(3)), "it is for something else");
        assert!(edges.ring_has((a, b), LinkGeneration(1)) && edges.get((a, b)).unwrap().is_up());
        assert!(edges.plan([Wanted { connections: 2, ..wanted((a, b), Purpose::Mesh) }], GroupEpoch(3)));
        assert!(!edges.get((a, b)).unwrap().is_up(), "it has another number of connections");
        assert!(edges.plan([wanted((a, b), Purpose::Ring)], GroupEpoch(3)));
        assert!(edges.ring_has((a, b), LinkGeneration(3)), "it did not stand");
        edges.get_mut((a, b)).unwrap().rebuild = true;
        assert!(edges.plan([wanted((a, b), Purpose::Ring)], GroupEpoch(4)));
        assert!(edges.ring_has((a, b), LinkGeneration(4)));
        assert!(edges.plan([], GroupEpoch(5)) && edges.get((a, b)).is_none());
    }
}
