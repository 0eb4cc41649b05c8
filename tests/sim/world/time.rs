//! Time goes on: events happen in their order, and wait for those who cannot take them now.

use super::{Event, Wake, World};
use crate::client::Power;
use pccl_master::state::{ClientKey, Input, MasterState};
use std::time::Duration;

impl World {
    /// Runs until `end`.
    pub(crate) fn run_until(&mut self, end: u64, done: impl Fn(&Self) -> bool) {
        loop {
            let event = self.queue.first_key_value().map(|((at, _), _)| *at);
            if self.unsettled && event.is_none_or(|at| at > self.turn_ends.min(end)) {
                self.now = self.now.max(self.turn_ends.min(end));
                self.settle();
                continue;
            }
            if !self.unsettled && done(self) {
                return;
            }
            let tick = Some(&self.master).filter(|_| !self.unsettled).and_then(MasterState::next_deadline);
            let tick = tick.map(|d| d.as_micros().max(self.now).max(self.master_busy_until));
            let wake = Some(self.master_busy_until).filter(|at| *at > 0);
            let next = [event, tick, wake].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            self.now = next;
            self.audit_time();
            if self.master_busy_until > 0 && self.now >= self.master_busy_until {
                self.wake_master();
            } else if event.is_none_or(|event| event > next) {
                // Everything that has arrived was read before; now deadlines are judged.
                self.ticks =
                    if self.ticks.0 == self.now { (self.now, self.ticks.1 + 1) } else { (self.now, 0) };
                assert!(self.ticks.1 < 100, "seed {}: ticks leave a deadline behind that is due", self.seed);
                self.input(Input::Tick);
            } else if let Some((_, event)) = self.queue.pop_first() {
                self.happen(event);
            }
        }
    }

    fn wake_master(&mut self) {
        let gap = self.master_busy_until.saturating_sub(self.last_master_input);
        self.master_busy_until = 0;
        self.audit.gap(self.now, gap);
        self.input(Input::LoopGap(Duration::from_micros(gap)));
        for event in std::mem::take(&mut self.master_backlog) {
            self.happen(event);
        }
    }

    pub(crate) fn happen(&mut self, event: Event) {
        match event {
            Event::Planned(..) | Event::Tried(_) if self.master_busy_until > self.now => {
                self.master_backlog.push(event)
            }
            Event::Planned(plan, result) => self.input(Input::Planned { plan, result }),
            // Whether the listeners of a peer are reached says nothing about the faults of a run.
            Event::Tried(peer) => {
                let is_hidden = self.slots.get(&peer).is_some_and(|(slot, _)| self.hidden.contains(slot));
                let closed = is_hidden.then(|| (false, "no answer".to_owned())).into_iter().collect();
                self.input(Input::Reached { peer, closed, unix_us: 0 });
            }
            Event::Connected(key)
            | Event::ToMaster(key, _)
            | Event::EndAtMaster(key)
            | Event::AwayAtMaster(key)
            | Event::BackAtMaster(key)
                if self.master_busy_until > self.now =>
            {
                self.note(format_args!("c{key} waits for the master"));
                self.master_backlog.push(event);
            }
            Event::Connected(key) => {
                let host = if self.swarm.one_host { 0 } else { self.conns[&key].slot };
                let remote = core::net::IpAddr::from([10, 0, 0, host as u8 + 1]);
                let local = core::net::IpAddr::from([10, 0, 0, 200]);
                self.input(Input::Connected { client: ClientKey(key), remote, local });
            }
            Event::ToMaster(key, packet) => {
                if self.conns.get(&key).is_some_and(|conn| !conn.closed_at_master) {
                    self.input(Input::Packet { client: ClientKey(key), packet });
                }
            }
            Event::AwayAtMaster(key) => drop(self.away(key)),
            Event::BackAtMaster(key) => {
                if let Some(conn) =
                    self.conns.get_mut(&key).filter(|conn| conn.away && !conn.closed_at_master)
                {
                    conn.away = false;
                    self.returns.1 += 1;
                    self.audit.heard(key, self.now);
                    self.input(Input::Returned { client: ClientKey(key) });
                }
            }
            // The master does not know whether it comes back.
            Event::EndAtMaster(key) if self.ends.percent(self.swarm.away) && self.away(key) => {}
            Event::EndAtMaster(key) => {
                if let Some(conn) = self.conns.get_mut(&key).filter(|conn| !conn.closed_at_master) {
                    conn.closed_at_master = true;
                    let text = "connection reset".to_owned();
                    self.input(Input::Disconnected { client: ClientKey(key), text });
                }
            }
            Event::ToClient(key, ref packet) => {
                if let Some(slot) = self.receiver(key, &event) {
                    let packet = packet.clone();
                    self.clients[slot].heard_at = self.now;
                    self.receive(slot, packet);
                }
            }
            Event::EndAtClient(key) => {
                if let Some(slot) = self.receiver(key, &event) {
                    let client = &self.clients[slot];
                    let told = client.told || client.hostile;
                    assert!(told, "seed {}: s{slot} was dropped and never learned why", self.seed);
                    self.connection_ended(slot);
                    self.come_back(slot);
                }
            }
            Event::Wake(slot, life, Wake::Reconnect) => {
                if self.clients[slot].life == life {
                    self.reconnect(slot);
                }
            }
            Event::Wake(slot, life, ref wake) => {
                if self.clients[slot].life != life || !self.postponed(slot, &event) {
                    return;
                }
                let wake = wake.clone();
                self.woken(slot, wake);
            }
            Event::Resume(slot, life) => {
                if self.clients[slot].life == life && self.clients[slot].power == Power::Paused {
                    self.note(format_args!("s{slot} goes on"));
                    self.clients[slot].power = Power::Up;
                    // Events that wait in its socket come first, before it judges the master.
                    self.clients[slot].heard_at = self.now;
                }
                for event in self.backlogs.remove(&slot).unwrap_or_default() {
                    self.happen(event);
                }
            }
            Event::Inject => self.inject(),
            Event::Strike => self.strike(),
        }
    }

    /// The master sees the end of a connection. Whether it keeps the place.
    fn away(&mut self, key: u64) -> bool {
        let client = ClientKey(key);
        let conn = self.conns.get_mut(&key).filter(|conn| !conn.closed_at_master);
        let Some(conn) = conn.filter(|_| self.master.may_return(client)) else { return false };
        self.returns.0 += 1;
        if !std::mem::replace(&mut conn.away, true) {
            let with_master = goes_with_master(client.0);
            self.input(Input::Away { client, text: "connection reset".to_owned(), with_master });
        }
        true
    }

    /// Whether a client is away, and waited for as when another master goes on.
    pub(crate) fn has_more_time(&self, key: u64) -> bool {
        goes_with_master(key) && self.conns.get(&key).is_some_and(|conn| conn.away)
    }

    /// The slot that takes an event of a connection now.
    fn receiver(&mut self, key: u64, event: &Event) -> Option<usize> {
        let (slot, life) = self.conns.get(&key).filter(|c| !c.closed_at_client).map(|c| (c.slot, c.life))?;
        (self.clients[slot].life == life && self.postponed(slot, event)).then_some(slot)
    }

    /// Whether a process can act now. Events of a stopped one wait until it goes on, in order.
    fn postponed(&mut self, slot: usize, event: &Event) -> bool {
        match self.clients[slot].power {
            Power::Up => true,
            Power::Paused => {
                self.backlogs.entry(slot).or_default().push(event.clone());
                false
            }
            Power::Down | Power::Vanished => false,
        }
    }
}

/// Whether the connection of a client ends as when another master goes on: that of some.
fn goes_with_master(key: u64) -> bool {
    key.is_multiple_of(4)
}
