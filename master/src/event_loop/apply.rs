//! Carrying out what the state wants, and stopping.

use super::{
    EventLoop, STOP_LINGER, STOP_TIMEOUT,
    connections::conn::{Conn, Phase},
    connections::frame::frame,
};
use crate::state::{Action, ClientKey, Input, MasterState};
use log::Level;
use pccl_protocol::{
    M2c,
    limits::{MAX_QUEUES_BYTES, MAX_WAITING_QUEUE_BYTES, MIN_READ_BYTES, READER_WINDOW_MS},
};
use std::{
    mem,
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tinysockets::{preamble::Refusal, throttle::Network};

/// How often it is looked at whether clients read.
const LOOK_AT_READERS: Duration = Duration::from_secs(1);

impl EventLoop {
    /// Hands one input to the state and has it settle.
    pub(crate) fn input(&mut self, input: Input) {
        self.take(input);
        self.settle();
    }

    /// Hands one input to the state. Its consequences wait until the state settles, at the end of the turn at the
    /// latest. Inputs that come until then have their part in that. Nothing leaves before the end of a turn, so nobody
    /// can tell.
    pub(crate) fn take(&mut self, input: Input) {
        self.observer.input(&input);
        let now = self.now();
        self.at = now;
        self.record_input(&input);
        self.unsettled = true;
        self.act(|state, actions| state.take(now, input, actions));
    }

    /// Lets the state draw the consequences of what it has taken.
    pub(crate) fn settle(&mut self) {
        while mem::take(&mut self.unsettled) {
            self.record_settled();
            self.act(|state, actions| state.settle(actions));
        }
    }

    /// Carries out what the state wants. A client that has not read for too long becomes an input of the state.
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
    pub(crate) fn apply(&mut self, action: Action, slow: &mut Vec<ClientKey>) {
        if let Some(replication) = &mut self.replication {
            replication.note_asked(&action);
        }
        match action {
            Action::Send { client, mut packet } => {
                if let M2c::Status(status) = &mut packet {
                    status.run_keys = self.count_keys();
                    status.lead = self.lead();
                    status.relay = self.relay.as_ref().map(crate::relay::RelayNews::status);
                }
                self.send(&[client], &packet, slow);
            }
            Action::SendAll { clients, packet } => self.send(&clients, &packet, slow),
            Action::Close { client } => {
                self.observer.closed(client);
                self.close(client.0);
            }
            Action::Plan { plan, job, background } => self.planner.plan(plan, *job, background),
            Action::Reach { target, group, limit } => {
                let opener = self.tickets.as_ref().map(|issuer| issuer.opener_of(target.peer));
                let asker = self.state.asker(target.peer).and_then(|client| self.conns.get(&client.0));
                let asker = asker.map_or(Ipv4Addr::UNSPECIFIED.into(), Conn::origin);
                self.reacher.reach((target, asker), (group, limit), opener);
            }
            Action::DropPlan { plan } => self.planner.drop_plan(plan),
            Action::Log { level, text } => self.log(level, &text),
        }
    }

    /// Queues a packet, encoded once. Clients that are gone or being closed are passed over: the state may not know
    /// yet.
    pub(crate) fn send(&mut self, clients: &[ClientKey], packet: &M2c, slow: &mut Vec<ClientKey>) {
        let mut encoded = frame(packet).counted(&self.queued);
        // Answers to strangers say nothing that a peer would act on. Those to a peer count among its packets: a master
        // that takes over must know each of them.
        let is_answer = matches!(packet, M2c::Status(_) | M2c::Rates(_) | M2c::Examined(_));
        let is_open = is_answer && !clients.iter().any(|client| self.state.is_peer(*client));
        let held_until = if is_open { 0 } else { self.held_until() };
        if self.replication.is_some() {
            // Which packets leave must follow from what the state was given, not from who reads how fast.
            encoded = encoded.staying().held_until(held_until);
        }
        let copies = match packet {
            M2c::Registered(_) => self.copies_to_tell(),
            _ => None,
        };
        let now_ms = self.at.millis();
        for client in clients {
            let is_client = |conn: &&mut Conn| matches!(conn.phase, Phase::Client(_));
            let Some(conn) = self.conns.get_mut(&client.0).filter(is_client) else { continue };
            self.reactor.mark_dirty(client.0);
            self.observer.output(*client, packet);
            // Only who is in a ring is sent much.
            let is_full = conn.is_full(&encoded, self.queue_limit_bytes)
                || conn.is_full(&encoded, MAX_WAITING_QUEUE_BYTES) && self.state.is_outside(*client);
            if is_full && !matches!(packet, M2c::Kicked(_)) {
                conn.overflow();
                slow.push(*client);
                continue;
            }
            if let Some(issuer) = &mut self.tickets {
                for front in issuer.in_front_of(*client, packet, now_ms) {
                    conn.queue(&front, frame(&front).counted(&self.queued).held_until(held_until));
                }
            }
            conn.queue(packet, encoded.clone());
            if let Some(copies) = &copies {
                conn.queue(copies, frame(copies).held_until(held_until));
            }
            if let M2c::Registered(_) = packet {
                self.throttle.give_back(Network::of(conn.remote.ip()));
            }
        }
        drop(encoded);
        if self.queued.bytes() > MAX_QUEUES_BYTES {
            self.conns.values_mut().for_each(|conn| conn.queue.let_go());
        }
        if self.queued.bytes() > MAX_QUEUES_BYTES {
            slow.extend(self.drop_longest_queue());
        }
    }

    /// All queues together are too long: the client goes for which most waits.
    fn drop_longest_queue(&mut self) -> Option<ClientKey> {
        let (key, conn) = self.conns.iter_mut().max_by_key(|(_, conn)| conn.waiting_bytes())?;
        log::warn!(
            "{}: {} bytes wait for it, and {MAX_QUEUES_BYTES} for all together are the limit",
            conn.remote,
            conn.waiting_bytes()
        );
        conn.overflow();
        Some(ClientKey(*key))
    }

    /// Clients that have not read what waits for them for too long are a fact for the state.
    pub(crate) fn judge_readers(&mut self) {
        let now = Instant::now();
        if now < self.next_look_at_readers {
            return;
        }
        self.next_look_at_readers = now + LOOK_AT_READERS;
        let mut slow = Vec::new();
        for (key, conn) in &mut self.conns {
            if conn.reads_too_slowly(now) {
                log::info!(
                    "{}: took less than {MIN_READ_BYTES} bytes in {READER_WINDOW_MS} ms, and {} wait",
                    conn.remote,
                    conn.waiting_bytes()
                );
                conn.overflow();
                slow.push(ClientKey(*key));
            }
        }
        for client in slow {
            self.take(Input::SlowReader { client });
        }
        self.settle();
    }

    /// A line of the state. Errors are always written, and of the others not more than anybody can read.
    fn log(&mut self, level: Level, text: &str) {
        let counts = matches!(level, Level::Warn | Level::Info);
        let more = if counts { self.lines.next(Instant::now()) } else { Some(String::new()) };
        if let Some(more) = more {
            log::log!(target: "pccl_master", level, "{text}{more}");
        }
    }

    /// Begins to close a connection: what is queued is flushed first.
    pub(crate) fn close(&mut self, key: u64) {
        if self.conns.get(&key).is_some_and(|conn| conn.away) {
            self.remove(key);
        } else if let Some(conn) = self.conns.get_mut(&key) {
            conn.close(Instant::now());
            self.closing.insert(key);
            self.reactor.mark_dirty(key);
            self.give_room(key);
            // One that was not read is read and thrown away from now on.
            self.reactor.mark_readable(key);
        }
    }

    /// Writes to every connection for which something was queued.
    pub(crate) fn flush_dirty(&mut self) {
        let now = Instant::now();
        // Nobody takes over from a master that is stopped in order.
        let released = if self.stop_deadline.is_some() { u64::MAX } else { self.release() };
        for key in self.reactor.take_dirty() {
            let Some(conn) = self.conns.get_mut(&key) else { continue };
            if conn.flush_released(released, now) {
                self.reactor.mark_readable(key);
            }
            if conn.queue.is_held() {
                self.note_held(key);
            }
        }
    }

    /// Whether a loop that was asked to stop is through. A client that never closes its end does not hold it up for
    /// long.
    pub(crate) fn has_stopped(&mut self) -> bool {
        let Some(deadline) = self.stop_deadline else { return false };
        let now = Instant::now();
        if self.conns.values().all(Conn::is_flushed) {
            self.stop_deadline = Some(deadline.min(now + STOP_LINGER));
        }
        self.conns.is_empty() || deadline <= now
    }

    /// The run ends: no more connections, everybody is told, and the loop ends when all have been flushed.
    pub(crate) fn begin_stop(&mut self) {
        log::info!("stopping, {} connections are closed", self.conns.len());
        self.stop_deadline = Some(Instant::now() + STOP_TIMEOUT);
        self.reactor.stop_listening();
        let strangers: Vec<u64> = self.half_open.keys().collect();
        for key in strangers {
            self.turn_away(key, Some(Refusal::ShuttingDown), "the master is stopping");
        }
        self.input(Input::Stop);
        self.dismiss_standbys();
        // The state closes all of its clients; nothing may be left that would hold the end up.
        let keys: Vec<u64> = self.conns.keys().copied().collect();
        for key in keys {
            self.close(key);
        }
    }
}
