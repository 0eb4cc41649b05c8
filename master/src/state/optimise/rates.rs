//! The rates of edges as operations show them, read off the beats of both ends.
//!
//! All edges of a ring move the same bytes in the same time, so the pace of an operation says what the slowest one can
//! do. The slowest is the one on which bytes wait all the time. So an edge is judged only while operations run, and
//! only if its sending end had bytes on it at every look. Several operations show together what one is too short to
//! show.
//!
//! In pairwise exchange all edges of a host share its interface, so that each is slower than what was measured of it
//! alone. They are judged against the rate at which the exchange would be as fast as predicted, with the shares that
//! its members have.

use super::measured::Measured;
use crate::state::groups::edges::EdgeEnds;
use crate::state::groups::group::{Group, Op};
use crate::state::membership::members::Roll;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use core::time::Duration;
use pccl_protocol::{Algorithm, BusyEdge, EdgeBytes, LinkGeneration, OpId, PeerId, ProbeRate, ProbeResult};

/// An edge is much slower than planned below this part of the slowest rate of its ring, or of what pairwise exchange
/// needs.
const MUCH_SLOWER: f64 = 0.5;
/// An operation that reaches this fraction of the known rate confirms it.
const CONFIRMED: f64 = 0.9;
/// Times between two looks, in one operation or several, that have to agree.
const SPANS: usize = 3;
/// Over a shorter time the delays of beats count for too much.
const SHORTEST_SPAN: Duration = Duration::from_millis(80);
/// Round trips that a connection that was idle needs, about, to find its rate again.
const START_ROUND_TRIPS: u32 = 8;
/// A receiving end that has not got on with the bytes of an edge for this time holds the edge up, in milliseconds.
const AT_WORK_MS: u64 = 100;
/// The way back of an edge that has become slow is taken for at most this many times as fast, until it is measured:
/// most often it is slow as well, but where there is no third way it is worth trying.
const WAY_BACK: u64 = 2;

/// The result of one look.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
struct Look {
    op: OpId,
    at: Timestamp,
    bytes: u64,
}

/// Looks at an edge while operations by one algorithm keep it busy.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pace {
    algorithm: Algorithm,
    last: Option<Look>,
    /// Rates between two looks in a row at one operation, in kbit/s, the newest last.
    kbit_s: Vec<u64>,
}

impl Pace {
    fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, last: None, kbit_s: Vec::new() }
    }

    /// Adds a look. Once enough of them agree that the edge is busy: its lowest and highest rate.
    fn add(&mut self, look: Look, longest: Duration) -> Option<(u64, u64)> {
        let last = self.last.filter(|last| last.op == look.op);
        let span = last.map(|last| (look.at.since(last.at), look.bytes.saturating_sub(last.bytes)));
        if span.is_some_and(|(took, _)| took < SHORTEST_SPAN) {
            return None;
        }
        self.last = Some(look);
        let (took, bytes) = span?;
        if took > longest {
            self.kbit_s.clear();
            return None;
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.kbit_s.push(bytes.saturating_mul(8000) / micros.max(1));
        let extra = self.kbit_s.len().saturating_sub(SPANS);
        self.kbit_s.drain(..extra);
        let range = || Some((*self.kbit_s.iter().min()?, *self.kbit_s.iter().max()?));
        if self.kbit_s.len() == SPANS { range() } else { None }
    }
}

/// The finding from the beats of both ends of an edge.
enum Seen {
    /// Nothing about its rate: no operation runs, or one has only just begun.
    Nothing,
    /// It waits for others, or for its receiving end.
    Idle,
    /// Bytes of an operation by this algorithm wait on it.
    Busy(Algorithm, Look),
}

impl Group {
    /// Looks at an edge to `id`, which has just said how much it has received over it. Whether it has become so slow
    /// that a ring around it is to be planned.
    pub(crate) fn look_at_pace(
        &mut self,
        roll: &Roll,
        measured: &mut Measured,
        out: &mut Outbox,
        (edge, id): (EdgeBytes, PeerId),
    ) -> bool {
        let seen = self.look_at_edge(roll, measured, edge, id).unwrap_or(Seen::Nothing);
        let longest = roll.options.beat_interval * 2;
        let ends = (edge.peer, id);
        let Some(edge) = self.net.edges.named_mut(ends, edge.generation) else { return false };
        let pace = &mut edge.pace;
        let (algorithm, look) = match seen {
            Seen::Nothing => return false,
            Seen::Idle => {
                *pace = None;
                return false;
            }
            Seen::Busy(algorithm, look) => (algorithm, look),
        };
        pace.take_if(|pace| pace.algorithm != algorithm);
        let pace = pace.get_or_insert_with(|| Pace::new(algorithm));
        let Some(range) = pace.add(look, longest) else { return false };
        self.judge_pace(roll, measured, out, ends, algorithm, range)
    }

    /// The finding from the last beats of `id` and of a peer that sends to it about the edge between them.
    fn look_at_edge(
        &self,
        roll: &Roll,
        measured: &Measured,
        received: EdgeBytes,
        id: PeerId,
    ) -> Option<Seen> {
        let (beat, heard_at) = roll.peers.get(&received.peer)?.beat.as_ref()?;
        let ends = (received.peer, id);
        // An operation between two members has a rate of its own, that no plan promises.
        let op = beat.operation.filter(|it| it.op.tag.pair.is_none())?.op;
        let Op::Running { since, participants, algorithm, .. } = self.work.ops.get(&op)? else { return None };
        let is_used = match algorithm {
            Algorithm::Pairwise | Algorithm::Sites => {
                self.net.edges.named(ends, received.generation).is_some()
            }
            _ => self.net.edges.ring_has(ends, received.generation),
        };
        let receives = participants.get(&id)?.complete.is_none();
        let latency_us = measured.rate(ends).map_or(0, |rate| rate.latency_us);
        let start = Duration::from_micros(u64::from(latency_us) * 2) * START_ROUND_TRIPS;
        let is_fresh = roll.now.since(*heard_at) <= roll.options.beat_interval * 2;
        if !is_used || !receives || !is_fresh || *heard_at < *since || roll.now.since(*since) < start {
            return None;
        }
        let its = |peer: PeerId, generation: LinkGeneration| generation == received.generation && peer == id;
        // An end that takes things a moment after they have come says nothing, either.
        let work = |it: &BusyEdge| it.from == received.peer && it.generation == received.generation;
        let (own, _) = roll.peers.get(&id)?.beat.as_ref()?;
        let is_at_work = own.busy.iter().any(|it| work(it) && it.busy_ms >= AT_WORK_MS);
        if is_at_work || beat.sent.iter().any(|sent| its(sent.peer, sent.generation)) {
            return Some(Seen::Idle);
        }
        let look = Look { op, at: roll.now, bytes: received.bytes };
        Some(Seen::Busy(*algorithm, look))
    }

    /// The rate that an edge has to have if an operation by this algorithm is to take as long as was planned, in
    /// kbit/s. Without a plan there is none.
    fn needed_kbit_s(
        &self,
        roll: &Roll,
        measured: &Measured,
        ends: EdgeEnds,
        algorithm: Algorithm,
    ) -> Option<u64> {
        if algorithm.uses_mesh() {
            return Some((self.exchange_mbit_s(roll, measured, ends, algorithm)? * 1000.0) as u64);
        }
        let rates: Option<Vec<u64>> =
            self.ring_ends().map(|ends| Some(measured.rate(ends)?.kbit_s)).collect();
        rates?.into_iter().min()
    }

    /// An edge has had bytes on it all the time, and moved them at a rate in this range. Whether it has become slow.
    fn judge_pace(
        &mut self,
        roll: &Roll,
        measured: &mut Measured,
        out: &mut Outbox,
        ends: EdgeEnds,
        algorithm: Algorithm,
        (low, high): (u64, u64),
    ) -> bool {
        let needed = self.needed_kbit_s(roll, measured, ends, algorithm);
        let (Some(needed), Some(known)) = (needed, measured.rate(ends)) else { return false };
        let note = |kbit_s: u64| ProbeResult::Measured(ProbeRate { kbit_s, ..known });
        if low as f64 >= known.kbit_s as f64 * CONFIRMED {
            measured.note(ends, &note(known.kbit_s.max(low)), roll.now);
            return false;
        }
        // One that moves nothing at all is judged as a fault.
        if low == 0 || high as f64 >= needed as f64 * MUCH_SLOWER {
            return false;
        }
        out.info(format!(
            "{} carries {high} kbit/s in operations ({algorithm}), {} were measured: a new ring is planned",
            roll.name_of_edge(ends),
            known.kbit_s
        ));
        measured.note(ends, &note(high), roll.now);
        measured.suspect((ends.1, ends.0), high.saturating_mul(WAY_BACK));
        self.net.edges.clear_paces();
        self.can_be_ordered()
    }
}
