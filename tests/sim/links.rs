//! Connections of a process to the master, and between peers: dialing, breaking, and what a process reports about them.

use crate::blame::{Act, Deed};
use crate::client::{Call, EdgeKey, Power, TagStage};
use crate::swarm::MS;
use crate::world::{Conn, Event, Wake, World};
use pccl_protocol::*;

/// A dial without an answer is given up after this.
const DIAL_TIMEOUT: u64 = 5_000 * MS;
/// An inbound edge that is not there after this is reported.
const INBOUND_TIMEOUT: u64 = 7_000 * MS;

impl World {
    /// A new process in a free slot connects.
    pub(crate) fn start(&mut self, slot: usize, keeps_state: bool) {
        let client = &mut self.clients[slot];
        let before = client.peer.map(|peer| PreviousIdentity { run: RunId(1), peer, proof: None });
        *client = client.reborn(keeps_state);
        client.before = before.filter(|_| keeps_state);
        if client.returned {
            let who = (slot, client.life);
            self.ledger.done(who, Deed::Returned, self.now, u64::MAX);
        }
        self.close_state_ports(slot);
        self.connect(slot);
    }

    /// The process of a slot connects.
    pub(crate) fn connect(&mut self, slot: usize) {
        self.clients[slot].power = Power::Up;
        self.clients[slot].heard_at = self.now;
        self.clients[slot].beat_at = self.now;
        let key = self.sequence + 1_000_000;
        self.sequence += 1;
        let client = &mut self.clients[slot];
        client.conn = Some(key);
        let life = client.life;
        let conn = Conn {
            slot,
            life,
            up_last: 0,
            down_last: 0,
            up_stalled_until: 0,
            down_stalled_until: 0,
            closed_at_master: false,
            closed_at_client: false,
            away: false,
        };
        self.conns.insert(key, conn);
        self.note(format_args!("+ s{slot} life {life} c{key}"));
        self.happen(Event::Connected(key));
        let register = self.registration(slot);
        self.send(slot, C2m::Register(register));
        self.wake(slot, 1_000 * MS, Wake::Beat);
    }

    pub(crate) fn registration(&self, slot: usize) -> Register {
        let client = &self.clients[slot];
        Register {
            group: client.group,
            advertised_host: None,
            addresses: Vec::new(),
            p2p_port: slot as u16,
            state_port: slot as u16,
            pool_connections: 1,
            name: Name::default(),
            previous: client.before.clone(),
            formed: false,
            alone: false,
            resume: client
                .returned
                .then_some(ResumeOffer { revision: Revision(client.revision), digest: None }),
            site: Name::new(["", "near", "far"][slot % 3]),
            outbound_only: match self.hidden.contains(&slot) {
                _ if !self.swarm.is_tested => Some(false),
                true if slot.is_multiple_of(2) => Some(true),
                _ => None,
            },
        }
    }

    pub(crate) fn take_plan(&mut self, slot: usize, plan: GroupPlan) {
        let epoch = plan.epoch;
        let client = &mut self.clients[slot];
        client.sizes = plan.sizes;
        if client.counted_since() != plan.counted_since {
            client.attempts.clear();
        }
        client.plan = Some(plan);
        let planned = self.all_edges(slot);
        let client = &mut self.clients[slot];
        // A report about an edge is not made again.
        client.said.retain(|edge, _| planned.contains(edge));
        let Some((inbound, outbound)) = client.edges() else { return };
        let running: Vec<OpId> = client.work.values().map(|work| work.op).collect();
        for edge in [outbound, inbound] {
            if self.dials(slot, edge) && !self.edges_up.contains(&edge) {
                let delay = self.delay();
                self.wake(slot, delay, Wake::Dialed(edge));
            }
        }
        if self.swarm.inbound_reports && !self.dials(slot, inbound) && !self.edges_up.contains(&inbound) {
            self.wake(slot, INBOUND_TIMEOUT, Wake::InboundDue(epoch));
        }
        self.close_unused(slot);
        self.dial_mesh(slot);
        for op in running {
            self.wake(slot, 10, Wake::Progress(op));
        }
        self.report_edges(slot);
    }

    /// Closes the connections of edges that are neither in the ring nor beside it any more.
    fn close_unused(&mut self, slot: usize) {
        let Some(me) = self.clients[slot].peer else { return };
        let wanted = self.all_edges(slot);
        let unwanted = |edge: &EdgeKey| (edge.0 == me || edge.1 == me) && !wanted.contains(edge);
        let gone: Vec<EdgeKey> = self.edges_up.iter().filter(|edge| unwanted(edge)).copied().collect();
        for edge in gone {
            self.break_edge(edge, Some(slot));
        }
    }

    fn report(&mut self, slot: usize, up: Vec<EdgeName>, broken: Vec<EdgeFault>) {
        let epoch = self.clients[slot].epoch();
        self.send(slot, C2m::EdgeReport(EdgeReport { epoch, up, broken }));
    }

    /// Tells the master which edges have come to stand.
    pub(crate) fn report_edges(&mut self, slot: usize) {
        let edges = self.all_edges(slot).into_iter().filter(|edge| self.edges_up.contains(edge));
        let said = &self.clients[slot].said;
        let news: Vec<EdgeKey> = edges.filter(|edge| !said.contains_key(edge)).collect();
        if !news.is_empty() {
            self.clients[slot].said.extend(news.iter().map(|edge| (*edge, true)));
            let name = |(from, to, generation)| EdgeName { from, to, generation };
            self.report(slot, news.into_iter().map(name).collect(), Vec::new());
        }
    }

    /// Whether the process of a peer is still the one that had this identity.
    pub(crate) fn alive(&self, peer: PeerId) -> Option<usize> {
        let (slot, life) = *self.slots.get(&peer)?;
        let client = &self.clients[slot];
        (client.life == life && client.power != Power::Down).then_some(slot)
    }

    pub(crate) fn is_blocked(&self, from: usize, to: usize) -> bool {
        // A connection needs both directions.
        let blocked = self.blocked.get(&(from, to)).is_some_and(|until| *until > self.now);
        blocked || self.is_cut(from, to) || self.is_cut(to, from)
    }

    /// Whether a process makes the connections of an edge of its plan: who sends, or who receives if the plan says so.
    pub(crate) fn dials(&self, slot: usize, (from, to, generation): EdgeKey) -> bool {
        let client = &self.clients[slot];
        let Some(plan) = &client.plan else { return false };
        let name = EdgeName { from, to, generation };
        let back =
            plan.edges.iter().find(|edge| plan.name_of(edge) == Some(name)).is_some_and(|edge| edge.back);
        client.peer == Some(if back { to } else { from })
    }

    /// Whether the plan says that the ends of an edge meet at the relay.
    fn is_relayed(&self, slot: usize, (from, to, generation): EdgeKey) -> bool {
        let Some(plan) = &self.clients[slot].plan else { return false };
        let name = EdgeName { from, to, generation };
        plan.edges.iter().any(|edge| edge.relayed && plan.name_of(edge) == Some(name))
    }

    /// Whether a process has yet to connect an edge that it dials.
    fn is_dialing(&self, slot: usize, edge: EdgeKey) -> bool {
        self.dials(slot, edge)
            && self.all_edges(slot).contains(&edge)
            && !self.edges_up.contains(&edge)
            && !self.clients[slot].said.contains_key(&edge)
    }

    pub(crate) fn dialed(&mut self, slot: usize, edge: EdgeKey) {
        if !self.is_dialing(slot, edge) {
            return;
        }
        let me = self.clients[slot].peer;
        let other = if me == Some(edge.0) { edge.1 } else { edge.0 };
        let alive = self.alive(other);
        let is_hidden = alive.is_some_and(|to| self.hidden.contains(&to));
        let meets = self.swarm.relay && is_hidden && self.hidden.contains(&slot);
        assert!(!is_hidden || meets, "seed {}: nobody can dial it", self.seed);
        assert!(
            alive.is_none() || meets == self.is_relayed(slot, edge),
            "seed {}: where they meet",
            self.seed
        );
        match alive {
            None => self.edge_failed(slot, edge, "connection refused"),
            Some(to) if self.is_blocked(slot, to) && self.rng.percent(50) => {
                self.edge_failed(slot, edge, "no route to host");
            }
            Some(to) if self.is_blocked(slot, to) || self.clients[to].power != Power::Up => {
                self.wake(slot, DIAL_TIMEOUT, Wake::DialTimeout(edge));
            }
            Some(to) => {
                // The acceptor serves whoever presents a generation that it was told, so it may have to be asked again.
                if self.all_edges(to).contains(&edge) {
                    self.edges_up.insert(edge);
                    self.note(format_args!("s{slot} -> s{to} g{} up", edge.2));
                    self.wake(to, 10, Wake::EdgeUp);
                    self.report_edges(slot);
                } else {
                    self.wake(slot, 20 * MS, Wake::Dialed(edge));
                }
            }
        }
    }

    pub(crate) fn dial_timeout(&mut self, slot: usize, edge: EdgeKey) {
        if self.is_dialing(slot, edge) {
            self.edge_failed(slot, edge, "dial timed out");
        }
    }

    fn edge_failed(&mut self, slot: usize, edge: EdgeKey, text: &str) {
        let fault = EdgeFault {
            from: edge.0,
            to: edge.1,
            generation: edge.2,
            forgotten: false,
            text: Text::new(text),
        };
        if self.clients[slot].said.insert(edge, false) != Some(false) {
            self.report(slot, Vec::new(), vec![fault]);
        }
    }

    pub(crate) fn inbound_due(&mut self, slot: usize, epoch: GroupEpoch) {
        let client = &self.clients[slot];
        if client.epoch() != epoch {
            return;
        }
        let awaited =
            |edge: &EdgeKey| !self.edges_up.contains(edge) && !self.clients[slot].said.contains_key(edge);
        if let Some((inbound, _)) = client.edges().filter(|(inbound, _)| awaited(inbound)) {
            self.edge_failed(slot, inbound, "nobody dialed");
        }
    }

    /// An established edge ends; `by` closed it on purpose and needs no news.
    pub(crate) fn break_edge(&mut self, edge: EdgeKey, by: Option<usize>) {
        if !self.edges_up.remove(&edge) {
            return;
        }
        for end in [edge.0, edge.1] {
            if let Some(slot) = self.alive(end).filter(|slot| Some(*slot) != by) {
                let delay = self.delay();
                self.wake(slot, delay, Wake::EdgeLost(edge));
            }
        }
    }

    /// Every connection of a process ends.
    pub(crate) fn break_edges_of(&mut self, slot: usize) {
        let Some(me) = self.clients[slot].peer else { return };
        let mine: Vec<EdgeKey> =
            self.edges_up.iter().filter(|edge| edge.0 == me || edge.1 == me).copied().collect();
        for edge in mine {
            self.break_edge(edge, Some(slot));
        }
    }

    pub(crate) fn edge_lost(&mut self, slot: usize, edge: EdgeKey) {
        let client = &self.clients[slot];
        let running: Vec<OpId> = client
            .work
            .values()
            .filter(|work| matches!(&work.stage, TagStage::Running { edges, .. } if edges.contains(&edge)))
            .map(|work| work.op)
            .collect();
        if self.all_edges(slot).contains(&edge) && !self.edges_up.contains(&edge) {
            self.edge_failed(slot, edge, "reset");
        }
        for op in running {
            self.progress(slot, op);
        }
    }

    /// A running collective looks at its connections: done, failed, or still at it.
    pub(crate) fn progress(&mut self, slot: usize, op: OpId) {
        let client = &self.clients[slot];
        let Some(me) = client.peer else { return };
        let Some(work) = client.work.get(&op.tag).filter(|work| work.op == op) else { return };
        let TagStage::Running { algorithm, edges, members } = work.stage.clone() else { return };
        let lost = |edge: &EdgeKey| match edge.0 == me {
            true => (OpFaultKind::OutboundLost, Some(edge.1), edge.2),
            false => (OpFaultKind::InboundLost, Some(edge.0), edge.2),
        };
        let mut fault = edges.iter().find(|edge| !self.edges_up.contains(edge)).map(lost);
        if fault.is_none() && self.rng.percent(self.swarm.corrupt) && !self.healing {
            let inbound = self.some_inbound(me, &edges);
            fault = Some((OpFaultKind::Corrupt, Some(inbound.0), inbound.2));
            self.ledger.acted(op, me, Act::Corrupt);
        }
        if fault.is_none() {
            fault = self.local_fault(op, me).map(|kind| (kind, None, LinkGeneration(0)));
        }
        if fault.is_none() && self.rng.percent(20) {
            let vanished = |slot: usize| self.clients[slot].power == Power::Vanished;
            let is_dead = |edge: &&EdgeKey| {
                [edge.0, edge.1].into_iter().any(|end| self.alive(end).is_some_and(vanished))
            };
            fault = edges.iter().find(is_dead).map(lost);
        }
        let all_run = members.iter().all(|member| self.started.contains(&(op, *member)));
        let moves = all_run
            && match algorithm.uses_mesh() {
                true => self.all_arrive(op, algorithm, me, &members, &edges),
                false => self.data_moves(op, &members, &edges),
            };
        if fault.is_none() && !moves {
            let delay = self.rng.range(5 * MS, 60 * MS);
            self.wake(slot, delay, Wake::Progress(op));
            return;
        }
        let fault =
            fault.map(|(kind, peer, generation)| OpFault { kind, peer, generation, text: Text::default() });
        self.complete(slot, op, fault);
    }

    pub(crate) fn complete(&mut self, slot: usize, op: OpId, fault: Option<OpFault>) {
        if let Some(work) = self.clients[slot].work.get_mut(&op.tag) {
            work.stage = TagStage::Completed(fault.is_none());
            self.send(slot, C2m::Complete(Complete { op, fault, moved_bytes: 10 }));
        }
    }

    /// The control connection ended: what a process does then depends on whether it meant to leave.
    pub(crate) fn connection_ended(&mut self, slot: usize) {
        self.note(format_args!("s{slot} is off"));
        self.break_edges_of(slot);
        let client = &mut self.clients[slot];
        let meant = client.call == Call::Leaving;
        client.power = Power::Down;
        if let Some(conn) = client.conn.take().and_then(|key| self.conns.get_mut(&key)) {
            conn.closed_at_client = true;
        }
        if !meant {
            self.note(format_args!("s{slot} was dropped"));
        }
    }
}
