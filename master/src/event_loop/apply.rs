//! Carrying out what the state wants, and stopping.

use super::{
    EventLoop, STOP_LINGER, STOP_TIMEOUT,
    conn::{Conn, Phase},
};
use crate::state::{Action, ClientKey, Input};
use std::{collections::VecDeque, mem, sync::atomic::Ordering, time::Instant};
use tinysockets::preamble::Refusal;

impl EventLoop {
    /// Hands one input to the state and carries out its actions, and those of the inputs that follow from them.
    pub(super) fn input(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.observer.input(&input);
            let now = self.now();
            let mut actions = mem::take(&mut self.actions);
            self.state.handle(now, input, &mut actions);
            for action in actions.drain(..) {
                if let Some(slow) = self.apply(action) {
                    inputs.push_back(Input::SlowReader { client: slow });
                }
            }
            self.actions = actions;
        }
    }

    /// Carries out one action. Returns the client if it has not read what the master sent for too long. Clients that
    /// are gone or being closed are passed over: the state may not know yet.
    fn apply(&mut self, action: Action) -> Option<ClientKey> {
        match action {
            Action::Send { client, packet } => {
                let conn = self.conns.get_mut(&client.0)?;
                if !matches!(conn.phase, Phase::Client(_)) {
                    return None;
                }
                self.dirty.insert(client.0);
                self.observer.output(client, &packet);
                (!conn.queue(&packet, self.queue_limit_bytes)).then_some(client)
            }
            Action::Close { client } => {
                self.observer.closed(client);
                self.close(client.0);
                None
            }
            Action::Plan { plan, job, background } => {
                self.planner.plan(plan, *job, background);
                None
            }
            Action::Reach { target, group, limit } => {
                self.reacher.reach(target, group, limit);
                None
            }
            Action::DropPlan { plan } => {
                self.planner.drop_plan(plan);
                None
            }
            Action::Log { level, text } => {
                log::log!(target: "pccl_master", level, "{text}");
                None
            }
        }
    }

    /// Begins to close a connection: what is queued is flushed first.
    pub(super) fn close(&mut self, key: u64) {
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.close(Instant::now());
            self.dirty.insert(key);
        }
    }

    /// Writes to every connection for which something was queued.
    pub(super) fn flush_dirty(&mut self) {
        let now = Instant::now();
        for key in mem::take(&mut self.dirty) {
            if let Some(conn) = self.conns.get_mut(&key)
                && conn.flush(now)
            {
                self.mark_readable(key);
            }
        }
    }

    /// Whether a loop that was asked to stop is through. A client that never closes its end does not hold it up for long.
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
        if self.stop_deadline.is_some() || !self.stop.load(Ordering::Acquire) {
            return;
        }
        log::info!("stopping, {} connections are closed", self.conns.len());
        self.stop_deadline = Some(Instant::now() + STOP_TIMEOUT);
        self.listeners = None;
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
