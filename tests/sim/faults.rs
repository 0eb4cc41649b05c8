//! Faults, and how they are put right again.

use crate::blame::{Deed, Harm, Who};
use crate::client::{Call, EdgeKey, Power};
use crate::swarm::{FAULTS, Fault, MS};
use crate::world::{Event, Wake, World};
use pccl_protocol::*;

impl World {
    /// The present life of a slot.
    pub(crate) fn who(&self, slot: usize) -> Who {
        (slot, self.clients[slot].life)
    }

    /// Writes down what is done to a slot for some time.
    pub(crate) fn blame(&mut self, slot: usize, deed: Deed, time: u64) {
        self.ledger.done(self.who(slot), deed, self.now, self.now.saturating_add(time));
    }

    pub(crate) fn pick(&mut self, wanted: impl Fn(&crate::client::Client) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.clients.len()).filter(|slot| wanted(&self.clients[*slot])).collect();
        (!all.is_empty()).then(|| all[self.rng.below(all.len() as u64) as usize])
    }

    /// One fault, and the time of the next.
    pub(crate) fn inject(&mut self) {
        if self.healing {
            return;
        }
        let gap = self.rng.range(50 * MS, self.swarm.fault_gap);
        self.at(gap, Event::Inject);
        let Some(index) = self.rng.weighted(&self.swarm.fault_weights) else { return };
        let fault = FAULTS[index];
        let slot = match fault {
            Fault::Join | Fault::Hostile => self.pick(|c| c.power == Power::Down),
            Fault::MasterGap | Fault::BreakEdge => Some(0),
            _ => self.pick(|c| c.power == Power::Up && c.conn.is_some()),
        };
        let Some(slot) = slot else { return };
        self.note(format_args!("! {fault:?} s{slot}"));
        match fault {
            Fault::Die => self.die(slot),
            Fault::Vanish => self.vanish(slot),
            Fault::Pause => self.pause(slot),
            Fault::Stall => self.stall(slot),
            Fault::Cut => self.cut(slot),
            Fault::Leave => self.leave(slot),
            Fault::Join => {
                let keeps_state = self.rng.percent(50);
                self.start(slot, keeps_state);
            }
            Fault::Block => self.block(slot),
            Fault::BreakEdge => self.break_some_edge(),
            Fault::MasterGap => {
                let time = self.rng.range(10 * MS, 20_000 * MS);
                self.stop_master(time);
            }
            Fault::Hostile => {
                self.start(slot, false);
                self.clients[slot].hostile = true;
                self.blame(slot, Deed::Hostile, u64::MAX);
                self.wake(slot, 100 * MS, Wake::Mischief);
            }
        }
    }

    pub(crate) fn die(&mut self, slot: usize) {
        self.break_edges_of(slot);
        self.blame(slot, Deed::Ended, 0);
        for deed in [Deed::Vanished, Deed::Paused] {
            self.ledger.over(self.who(slot), deed, self.now);
        }
        let client = &mut self.clients[slot];
        client.power = Power::Down;
        let Some(key) = client.conn.take() else { return };
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.closed_at_client = true;
        }
        if self.rng.percent(50) {
            self.lose_in_flight(key);
        }
        let delay = self.delay();
        self.send_later(key, delay, Event::EndAtMaster(key));
    }

    fn vanish(&mut self, slot: usize) {
        self.blame(slot, Deed::Vanished, u64::MAX);
        let client = &mut self.clients[slot];
        client.power = Power::Vanished;
        if let Some(key) = client.conn {
            self.lose_in_flight(key);
        }
    }

    fn pause(&mut self, slot: usize) {
        let time = self.rng.range(10 * MS, 14_000 * MS);
        self.blame(slot, Deed::Paused, time);
        let client = &mut self.clients[slot];
        client.power = Power::Paused;
        let life = client.life;
        self.at(time, Event::Resume(slot, life));
    }

    fn stall(&mut self, slot: usize) {
        let time = self.rng.range(10 * MS, 12_000 * MS);
        self.blame(slot, Deed::Unheard, time);
        self.blame(slot, Deed::Deaf, time);
        let until = self.now + time;
        // It may be that the connection has ended, and that the process makes another one.
        let another = self.clients[slot].conn.filter(|_| self.ends.percent(self.swarm.away));
        if let Some(key) = another {
            self.blame(slot, Deed::Ended, 0);
            self.send_later(key, 0, Event::AwayAtMaster(key));
        }
        if let Some(conn) = self.clients[slot].conn.and_then(|key| self.conns.get_mut(&key)) {
            conn.up_stalled_until = until;
            conn.down_stalled_until = until;
        }
        if let Some(key) = another {
            self.send_later(key, 0, Event::BackAtMaster(key));
        }
    }

    /// The control connection breaks. The process notices and ends its data connections, as the library does.
    pub(crate) fn cut(&mut self, slot: usize) {
        self.blame(slot, Deed::Ended, 0);
        let Some(key) = self.clients[slot].conn else { return };
        self.lose_in_flight(key);
        let delay = self.delay();
        self.send_later(key, delay, Event::EndAtMaster(key));
        self.connection_ended(slot);
    }

    fn leave(&mut self, slot: usize) {
        if self.clients[slot].peer.is_some() && self.clients[slot].call != Call::Leaving {
            self.blame(slot, Deed::Left, u64::MAX);
            self.clients[slot].call = Call::Leaving;
            self.clients[slot].work.clear();
            self.send(slot, C2m::Leave(Nothing {}));
        }
    }

    fn block(&mut self, slot: usize) {
        let other = self.rng.below(self.clients.len() as u64) as usize;
        let until = self.now + self.rng.range(100 * MS, 30_000 * MS);
        if other == slot {
            return;
        }
        self.blocked.insert((slot, other), until);
        self.ledger.harmed(slot, other, Harm::Blocked, self.now, until);
        if self.rng.percent(50) {
            let ends = (self.clients[slot].peer, self.clients[other].peer);
            let hit: Vec<EdgeKey> =
                self.edges_up.iter().filter(|e| (Some(e.0), Some(e.1)) == ends).copied().collect();
            for edge in hit {
                self.break_edge(edge, None);
            }
        }
    }

    fn break_some_edge(&mut self) {
        let all: Vec<EdgeKey> = self.edges_up.iter().copied().collect();
        if !all.is_empty() {
            let edge = all[self.rng.below(all.len() as u64) as usize];
            if let (Some(from), Some(to)) = (self.alive(edge.0), self.alive(edge.1)) {
                self.ledger.harmed(from, to, Harm::Broken, self.now, self.now);
            }
            self.break_edge(edge, None);
        }
    }

    /// A hostile client sends anything, with numbers that are sometimes right.
    pub(crate) fn mischief(&mut self, slot: usize) {
        if !self.clients[slot].running() {
            return;
        }
        let pause = self.rng.range(10 * MS, 1_500 * MS);
        self.wake(slot, pause, Wake::Mischief);
        let mut small = || self.rng.below(4);
        let (a, b, c, kind) = (small(), small(), small(), small() + 4 * small());
        let client = &self.clients[slot];
        let me = client.peer.unwrap_or_default();
        let epoch = GroupEpoch((client.epoch().0 + 1).saturating_sub(a.min(2)));
        let op = OpId { epoch, tag: b.into(), attempt: c as u32 / 2 };
        let part = PartDescriptor::new(100, pccl_quant::DataType::Float32, pccl_quant::ReduceOp::Sum);
        let descriptor = Descriptor::all_reduce(vec![part], Algorithm::Automatic);
        let request = RequestId(a);
        let packet = match kind {
            0 | 1 => C2m::VotePending(request),
            2 => C2m::VoteTopology(VoteTopology { request, wait_for_world: b as u32 }),
            3 => C2m::WithdrawVote(request),
            4 | 5 => {
                let up =
                    client.plan.iter().flat_map(|plan| plan.edges_of(me)).map(|(_, name)| name).collect();
                C2m::EdgeReport(EdgeReport { epoch, up, broken: vec![] })
            }
            6 | 7 => C2m::Initiate(Initiate { op, descriptor, has_begun: false }),
            8 => C2m::Complete(Complete { op, fault: None, moved_bytes: u64::MAX }),
            9 => C2m::SyncInitiate(SyncInitiate {
                request,
                epoch,
                revision: Revision([0, 1, u64::MAX, b][c as usize]),
                strategy: SyncStrategy::ALL[a as usize % 3],
                entries: vec![],
                offered: None,
            }),
            10 => {
                let report = SyncReport::Failed(Text::new("mischief"));
                C2m::SyncComplete(SyncComplete { sync: SyncId(a), report, failures: vec![], gave: vec![] })
            }
            11 => {
                let generation = LinkGeneration(b);
                let fault =
                    EdgeFault { from: me, to: me, generation, forgotten: false, text: Text::default() };
                C2m::EdgeReport(EdgeReport { epoch: GroupEpoch(0), up: vec![], broken: vec![fault] })
            }
            12 => C2m::Leave(Nothing {}),
            13 => C2m::VoteOptimize(request),
            14 => {
                let round = ProbeRound { optimization: b, round: c as u32 };
                let rate = ProbeRate { kbit_s: u64::MAX, latency_us: u32::MAX, connections: 1 };
                C2m::ProbeReport(ProbeReport { round, to: me, result: ProbeResult::Measured(rate) })
            }
            _ => C2m::Beat(Beat {
                call_ms: u64::MAX,
                moved_bytes: u64::MAX,
                stalled: vec![StalledEdge {
                    to: me,
                    generation: LinkGeneration(b),
                    stalled_ms: u64::MAX,
                    idle_ms: 0,
                    segment_bytes: u32::MAX,
                }],
                ..Beat::default()
            }),
        };
        let packet = self.mesh_mischief(slot, epoch).unwrap_or(packet);
        let packet = self.ahead_mischief().unwrap_or(packet);
        self.send(slot, packet);
    }

    /// The end of all faults: what is broken is put right, what cannot be goes, everybody else comes back.
    pub(crate) fn heal(&mut self) {
        self.healing = true;
        self.blocked.clear();
        self.cut.clear();
        for client in &mut self.clients {
            client.slow_until = 0;
        }
        self.open_state_ports();
        self.note(format_args!("! heal"));
        for slot in 0..self.clients.len() {
            let client = &self.clients[slot];
            if client.power == Power::Vanished || client.hostile || client.call == Call::Leaving {
                self.die(slot);
            }
        }
    }

    /// Starts a fresh process in every free slot.
    pub(crate) fn fill(&mut self) {
        for slot in 0..self.clients.len() {
            if self.clients[slot].power == Power::Down {
                self.start(slot, false);
            }
        }
    }
}
