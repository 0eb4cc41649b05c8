//! Carrying out what the state wants, and stopping.

use super::{
    EventLoop, STOP_LINGER, STOP_TIMEOUT,
    conn::{Conn, Phase},
    frame::frame,
};
use crate::state::{Action, ClientKey, Input, MasterState};
use pccl_protocol::M2c;
use std::{mem, time::Instant};
use tinysockets::preamble::Refusal;

impl EventLoop {
    /// Hands one input to the state and has it settle.
    pub(super) fn input(&mut self, input: Input) {
        self.take(input);
        self.settle();
    }

    /// Hands one input to the state. What follows from it waits until the state settles, at the end of the turn at the
    /// latest, and what comes with it has its part in that. Nothing leaves before the end of a turn, so nobody can
    /// tell.
    pub(super) fn take(&mut self, input: Input) {
        self.observer.input(&input);
        let now = self.now();
        self.unsettled = true;
        self.act(|state, actions| state.take(now, input, actions));
    }

    /// Lets the state draw the consequences of what it has taken.
    pub(super) fn settle(&mut self) {
        while mem::take(&mut self.unsettled) {
            self.act(|state, actions| state.settle(actions));
        }
    }

    /// Carries out what the state wants. Who has not read what the master sent for too long is a fact for it.
    fn act(&mut self, ask: impl FnOnce(&mut MasterState, &mut Vec<Action>)) {
        let mut actions = mem::take(&mut self.actions);
        ask(&mut self.state, &mut actions);
        let mut slow = Vec::new();
        for action in actions.drain(..) {
            self.apply(action, &mut slow);
        }
        self.actions = actions;
        for client in slow {
            self.take(Input::SlowReader { client });
        }
    }

    /// Carries out one action. Notes clients that have not read for too long.
    fn apply(&mut self, action: Action, slow: &mut Vec<ClientKey>) {
        match action {
            Action::Send { client, packet } => self.send(&[client], &packet, slow),
            Action::SendAll { clients, packet } => self.send(&clients, &packet, slow),
            Action::Close { client } => {
                self.observer.closed(client);
                self.close(client.0);
            }
            Action::Plan { plan, job, background } => self.planner.plan(plan, *job, background),
            Action::Reach { target, group, limit } => self.reacher.reach(target, group, limit),
            Action::DropPlan { plan } => self.planner.drop_plan(plan),
            Action::Log { level, text } => log::log!(target: "pccl_master", level, "{text}"),
        }
    }

    /// Queues a packet, encoded once. Clients that are gone or being closed are passed over: the state may not know
    /// yet.
    fn send(&mut self, clients: &[ClientKey], packet: &M2c, slow: &mut Vec<ClientKey>) {
        let frame = frame(packet);
        for client in clients {
            let is_client = |conn: &&mut Conn| matches!(conn.phase, Phase::Client(_));
            let Some(conn) = self.conns.get_mut(&client.0).filter(is_client) else { continue };
            self.reactor.mark_dirty(client.0);
            self.observer.output(*client, packet);
            if !conn.queue(packet, frame.clone(), self.queue_limit_bytes) {
                slow.push(*client);
            }
        }
    }

    /// Begins to close a connection: what is queued is flushed first.
    pub(super) fn close(&mut self, key: u64) {
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.close(Instant::now());
            self.closing.insert(key);
            self.reactor.mark_dirty(key);
        }
    }

    /// Writes to every connection for which something was queued.
    pub(super) fn flush_dirty(&mut self) {
        let now = Instant::now();
        for key in self.reactor.take_dirty() {
            if let Some(conn) = self.conns.get_mut(&key)
                && conn.flush(now)
            {
                self.reactor.mark_readable(key);
            }
        }
    }

    /// Whether a loop that was asked to stop is through. A client that never closes its end does not hold it up for
    /// long.
    pub(super) fn has_stopped(&mut self) -> bool {
        let Some(deadline) = self.stop_deadline else { return false };
        let now = Instant::now();
        if self.conns.values().all(Conn::is_flushed) {
            self.stop_deadline = Some(deadline.min(now + STOP_LINGER));
        }
        self.conns.is_empty() || deadline <= now
    }

    /// If asked to stop: no more connections, everybody is told, and the loop ends when all have been flushed.
    pub(super) fn begin_stop(&mut self) {
        if self.stop_deadline.is_some() || !self.reactor.is_stopped() {
            return;
        }
        log::info!("stopping, {} connections are closed", self.conns.len());
        self.stop_deadline = Some(Instant::now() + STOP_TIMEOUT);
        self.reactor.stop_listening();
        for key in mem::take(&mut self.half_open) {
            self.turn_away(key, Some(Refusal::ShuttingDown), "the master is stopping");
        }
        self.input(Input::Stop);
        // The state closes all of its clients; nothing may be left that would hold the end up.
        let keys: Vec<u64> = self.conns.keys().copied().collect();
        for key in keys {
            self.close(key);
        }
    }
}
