//! Faults that came later: what passes in one direction only, slow peers, doubles, calls that do not fit together.

use crate::blame::{Act, Deed, Harm};
use crate::client::{Call, Client, EdgeKey, Power, TagStage, TagWork, WrongCall};
use crate::rng::Rng;
use crate::swarm::{MS, STRIKES, Strike};
use crate::world::{Event, Wake, World};
use pccl_protocol::*;
use pccl_quant::DataType;
use std::collections::BTreeMap;

/// A master that is not heard for this long is given up.
const MASTER_TIMEOUT: u64 = limits::DEFAULT_MASTER_TIMEOUT_MS * MS;
/// Bytes that have not moved for this long are told to the master.
const STALL_REPORTED_AFTER: u64 = 1_000 * MS;
/// Two beats further apart than this: the process itself stood still.
const OWN_PAUSE: u64 = 2_000 * MS;

impl World {
    fn pick_for_strike(&mut self, wanted: impl Fn(&Client) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.clients.len()).filter(|slot| wanted(&self.clients[*slot])).collect();
        (!all.is_empty()).then(|| all[self.strikes.below(all.len() as u64) as usize])
    }

    /// One strike, and the time of the next.
    pub(crate) fn strike(&mut self) {
        if self.healing {
            return;
        }
        let gap = self.strikes.range(100 * MS, self.swarm.strike_gap);
        self.at(gap, Event::Strike);
        let Some(index) = self.strikes.weighted(&self.swarm.strike_weights) else { return };
        let strike = STRIKES[index];
        let slot = match strike {
            Strike::Twin => self.pick_for_strike(|c| c.power == Power::Down),
            _ => self.pick_for_strike(|c| c.running() && !c.hostile && c.peer.is_some()),
        };
        let Some(slot) = slot else { return };
        self.note(format_args!("! {strike:?} s{slot}"));
        match strike {
            Strike::CutData => self.cut_data(slot),
            Strike::Unheard => {
                let time = self.strikes.range(500 * MS, 14_000 * MS);
                self.blame(slot, Deed::Unheard, time);
                self.stall_control(slot, Some(time), None);
            }
            Strike::Deaf => {
                let time = self.strikes.range(500 * MS, 40_000 * MS);
                self.blame(slot, Deed::Deaf, time);
                self.stall_control(slot, None, Some(time));
            }
            Strike::Slow => self.slow_down(slot),
            Strike::Twin => self.start_twin(slot),
            Strike::Twice => {
                self.blame(slot, Deed::Twice, u64::MAX);
                let register = self.registration(slot);
                self.send(slot, C2m::Register(register));
            }
            Strike::WrongCall => {
                let call = &mut self.clients[slot].wrong_call;
                if *call == WrongCall::No {
                    *call = WrongCall::Due;
                }
            }
        }
    }

    /// Nothing passes from this process to the next one of its ring, or to any other. Where acknowledgements are lost
    /// as well, nothing passes in the other direction either.
    fn cut_data(&mut self, slot: usize) {
        let next = self.clients[slot].edges().and_then(|(_, out)| self.alive(out.1));
        let any = self.strikes.below(self.clients.len() as u64) as usize;
        let other = next.filter(|_| self.strikes.percent(80)).unwrap_or(any);
        let other = self.some_mesh_neighbour(slot).unwrap_or(other);
        if other == slot {
            return;
        }
        let until = self.now + self.strikes.range(500 * MS, 30_000 * MS);
        let both = self.strikes.percent(40);
        let swallows = self.strikes.percent(30);
        for (from, to) in [(slot, other), (other, slot)].into_iter().take(1 + usize::from(both)) {
            // One that goes on stays what it is.
            let now = self.now;
            let cut = self.cut.entry((from, to)).or_default();
            *cut = if cut.0 > now { (cut.0.max(until), cut.1) } else { (until, swallows) };
            self.ledger.harmed(from, to, Harm::Cut, self.now, until);
        }
    }

    fn stall_control(&mut self, slot: usize, up: Option<u64>, down: Option<u64>) {
        let now = self.now;
        let Some(conn) = self.clients[slot].conn.and_then(|key| self.conns.get_mut(&key)) else { return };
        if let Some(time) = up {
            conn.up_stalled_until = conn.up_stalled_until.max(now + time);
        }
        if let Some(time) = down {
            conn.down_stalled_until = conn.down_stalled_until.max(now + time);
        }
    }

    fn slow_down(&mut self, slot: usize) {
        let time = self.strikes.range(1_000 * MS, 20_000 * MS);
        self.clients[slot].slow_until = self.now + time;
    }

    /// A process in a free slot claims to be a peer that is in the run, with that peer's state.
    fn start_twin(&mut self, slot: usize) {
        let Some(original) = self.pick_for_strike(|c| c.peer.is_some() && c.power != Power::Down) else {
            return;
        };
        let of = &self.clients[original];
        let (peer, revision, content, group) = (of.peer, of.revision, of.content.clone(), of.group);
        // A group with another process may have more that nobody can dial than a ring can separate.
        if !self.hidden.is_empty() && group != self.clients[slot].group {
            return;
        }
        let client = &mut self.clients[slot];
        (client.peer, client.revision, client.content, client.group) = (peer, revision, content, group);
        client.life = client.life.max(1);
        self.start(slot, true);
    }

    /// A process that was dropped connects again, as the loop of a trainer does.
    pub(crate) fn come_back(&mut self, slot: usize) {
        let client = &self.clients[slot];
        if self.swarm.reconnects
            && client.power == Power::Down
            && !client.hostile
            && client.call != Call::Leaving
        {
            let pause = self.strikes.range(10 * MS, 3_000 * MS);
            self.wake(slot, pause, Wake::Reconnect);
        }
    }

    pub(crate) fn reconnect(&mut self, slot: usize) {
        if self.clients[slot].power == Power::Down {
            self.note(format_args!("s{slot} connects again"));
            self.start(slot, true);
        }
    }

    /// Gives the master up if it was silent for too long. Whether it did.
    pub(crate) fn watch_master(&mut self, slot: usize) -> bool {
        let client = &mut self.clients[slot];
        let stood_still = self.now.saturating_sub(client.beat_at + OWN_PAUSE);
        client.heard_at += stood_still;
        client.beat_at = self.now;
        let silent = self.now.saturating_sub(client.heard_at);
        if client.hostile || silent <= MASTER_TIMEOUT {
            return false;
        }
        self.note(format_args!("s{slot} gives the master up"));
        self.cut(slot);
        self.come_back(slot);
        true
    }

    /// Whether nothing passes along an edge now: it is cut, or its receiving end stands still.
    pub(crate) fn stands_still(&self, edge: EdgeKey) -> bool {
        let (Some(from), Some(to)) = (self.alive(edge.0), self.alive(edge.1)) else { return false };
        self.is_cut(from, to) || self.clients[to].power != Power::Up
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.get(&(from, to)).is_some_and(|(until, _)| *until > self.now)
    }

    /// Whether what does not pass is acknowledged all the same.
    pub(crate) fn is_swallowed(&self, edge: EdgeKey) -> bool {
        let ends = self.alive(edge.0).zip(self.alive(edge.1));
        ends.and_then(|ends| self.cut.get(&ends))
            .is_some_and(|(until, swallows)| *until > self.now && *swallows)
    }

    /// Whether a running attempt that goes around the ring has bytes for this edge.
    fn is_in_use(&self, slot: usize, edge: EdgeKey) -> bool {
        let uses = |work: &TagWork| {
            matches!(&work.stage, TagStage::Running { algorithm, edges, .. }
            if !algorithm.uses_mesh() && edges[1] == edge)
        };
        self.clients[slot].work.values().any(uses)
    }

    /// The counts of the next beat for the bytes of all edges: sent (where all are acknowledged), and received.
    pub(crate) fn edge_bytes(&mut self, slot: usize) -> (Vec<EdgeBytes>, Vec<EdgeBytes>) {
        let (edges, me) = (self.all_edges(slot), self.clients[slot].peer);
        for edge in edges.iter().copied() {
            let passes = !self.stands_still(edge);
            let slow = self.clients[slot].slow_until > self.now;
            let in_use = self.is_in_use(slot, edge);
            let flow = self.flows.entry(edge).or_default();
            if passes && slow {
                // It moves, but what is under way is always more than nothing.
                *flow = (flow.0 + 100, flow.0 + 50);
            } else if passes {
                flow.1 = flow.0;
            } else if in_use && flow.0 == flow.1 {
                // An attempt that is not over has bytes to send.
                flow.0 += 100;
            }
        }
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for edge in edges.into_iter().filter(|edge| self.edges_up.contains(edge)) {
            let flow = self.flows[&edge];
            let bytes = |peer, bytes| EdgeBytes { peer, generation: edge.2, bytes };
            if me == Some(edge.1) {
                received.push(bytes(edge.0, flow.1));
            } else if !self.clients[slot].stuck.contains_key(&edge) {
                sent.push(bytes(edge.1, flow.0));
            }
        }
        (sent, received)
    }

    /// The stalled outbound edges that the next beat reports, as `StallWatch` of the library finds them.
    pub(crate) fn look_at_outbound(&mut self, slot: usize) -> Vec<StalledEdge> {
        let client = &self.clients[slot];
        let paused = self.now > client.beat_at + OWN_PAUSE;
        let mut stuck = BTreeMap::new();
        for edge in self.all_edges(slot).into_iter().filter(|edge| Some(edge.0) == client.peer) {
            let known = client.stuck.get(&edge).copied();
            let waits = self.is_in_use(slot, edge) || known.is_some() || self.owes(edge);
            let unacknowledged = self.stands_still(edge) && !self.is_swallowed(edge);
            if waits && self.edges_up.contains(&edge) && unacknowledged {
                stuck.insert(edge, known.filter(|_| !paused).unwrap_or(self.now));
            }
        }
        self.clients[slot].stuck = stuck;
        let times = self.clients[slot].stuck.iter().map(|(edge, since)| (edge, self.now - since));
        let told = times.filter(|(_, time)| *time >= STALL_REPORTED_AFTER);
        told.map(|(edge, time)| StalledEdge {
            to: edge.1,
            generation: edge.2,
            stalled_ms: time / MS,
            idle_ms: 0,
            segment_bytes: 0,
        })
        .collect()
    }

    /// Whether an attempt among these peers gets on at all now: everything that still has to pass does, at a common
    /// speed.
    pub(crate) fn data_moves(&self, op: OpId, members: &[PeerId], mine: &[EdgeKey]) -> bool {
        let slots: Vec<usize> = members.iter().filter_map(|peer| self.alive(*peer)).collect();
        if slots.iter().any(|slot| self.clients[*slot].slow_until > self.now) {
            return false;
        }
        let outbound = |slot: usize| self.clients[slot].edges().map(|(_, outbound)| outbound);
        let next = |i: usize| slots[(i + 1) % slots.len()];
        let ring_cut = slots.len() == members.len()
            && (0..slots.len()).any(|i| {
                let is_through = outbound(slots[i]).is_some_and(|edge| self.is_through(op, edge));
                self.is_cut(slots[i], next(i)) && !is_through
            });
        !ring_cut && !mine.iter().any(|edge| self.stands_still(*edge) && !self.is_through(op, *edge))
    }

    /// Whether all that an attempt sends over an edge has arrived: the sending end is done, and no byte is missing.
    pub(crate) fn is_through(&self, op: OpId, edge: EdgeKey) -> bool {
        if let Some(arrived) = self.has_arrived(op, edge) {
            return arrived;
        }
        let Some(from) = self.alive(edge.0) else { return false };
        let work = self.clients[from].work.get(&op.tag).filter(|work| work.op == op);
        let is_done = work.is_some_and(|work| work.stage == TagStage::Completed(true));
        is_done && self.flows.get(&edge).is_some_and(|(sent, received)| sent == received)
    }

    /// The fault that a process meets by itself in an attempt, if any.
    pub(crate) fn local_fault(&mut self, op: OpId, me: PeerId) -> Option<OpFaultKind> {
        if self.healing || self.swarm.local == 0 || !self.strikes.percent(self.swarm.local) {
            return None;
        }
        self.ledger.acted(op, me, Act::Local);
        Some(OpFaultKind::Local)
    }

    /// The caller makes another call than the others, and is in it for some seconds. Whether it does.
    pub(crate) fn calls_something_else(&mut self, slot: usize, instead: WrongCall) -> bool {
        if self.healing || self.clients[slot].wrong_call != WrongCall::Due || !self.strikes.percent(50) {
            return false;
        }
        let patience = self.strikes.range(3_000 * MS, 8_000 * MS);
        self.wrong_until = self.wrong_until.max(self.now + patience + 10_000 * MS);
        let client = &mut self.clients[slot];
        client.wrong_call = instead;
        let request = client.request();
        let vote = VoteTopology { request, wait_for_world: 0 };
        let (call, vote) = match patience % 2 {
            0 => (Call::Topology(request, 0), C2m::VoteTopology(vote)),
            _ => (Call::Optimizing(request, false), C2m::VoteOptimize(request)),
        };
        client.call = call;
        self.blame(slot, Deed::Dozed, patience + 10_000 * MS);
        self.note(format_args!("s{slot} makes a wrong call, {instead:?}"));
        self.send(slot, vote);
        self.wake(slot, patience, Wake::Deadline(request));
        true
    }

    /// Makes the vote of a sync differ from what the others call.
    pub(crate) fn make_odd(&mut self, vote: &mut SyncInitiate) {
        let mut rng = Rng::new(self.strikes.next());
        match if self.swarm.odd_calls { rng.below(5) } else { 0 } {
            1 => vote.entries[0].data_type = DataType::Int32,
            2 => vote.entries[2].allow_inequality = true,
            3 => drop(vote.entries.remove(rng.below(3) as usize)),
            4 => vote.strategy = SyncStrategy::ALL[rng.below(3) as usize],
            _ => vote.entries.iter_mut().for_each(|entry| entry.count = 9),
        }
    }
}
