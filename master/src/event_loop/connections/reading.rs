//! Reading: from bytes of a connection to inputs of the state.

use super::conn::{Conn, Phase, Received};
use super::half_open::Judgement;
use super::inbox::LENGTH_BYTES as FRAME_LENGTH_BYTES;
use crate::event_loop::EventLoop;
use crate::state::{ClientKey, Input};
use pccl_protocol::{
    C2m, WireError,
    limits::{MAX_SMALL_PACKET_BYTES, MAX_WAITING_PACKET_BYTES, TURN_BYTES, TURN_MS, TURN_PACKETS},
};
use std::time::{Duration, Instant};
use tinysockets::{
    bucket::Rate,
    preamble::{Refusal, Reply},
    seal::Seal,
};

/// Bytes read by one system call.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Bytes that are read and thrown away, of all clients that were dropped and go on sending.
pub(crate) const THROWN_AWAY: Rate = Rate { burst: (64 << 20) as f64, per_second: (64 << 20) as f64 };
/// Time for one turn through all connections.
const TURN: Duration = Duration::from_millis(TURN_MS);

/// The rest of the turn of one connection.
struct Share {
    bytes: usize,
    packets: usize,
    /// All that had come has been read.
    is_drained: bool,
}

/// The result of a look at one connection.
pub(crate) enum Progress {
    /// Go on.
    More,
    /// Nothing is left for now, or nobody.
    Drained,
    /// It has used up its turn.
    Over,
}

impl EventLoop {
    /// Gives connections that may have bytes one turn each, as far as there is time; the next turn begins with those
    /// that it was not enough for.
    pub(crate) fn read_turn(&mut self) {
        let now = Instant::now();
        let due: Vec<u64> =
            self.paced.iter().filter(|(_, after)| **after <= now).map(|(key, _)| *key).collect();
        for key in due {
            self.paced.remove(&key);
            self.reactor.mark_readable(key);
        }
        let until = now + TURN;
        let readable = self.reactor.take_readable();
        let (behind, before): (Vec<u64>, Vec<u64>) =
            readable.into_iter().partition(|key| *key > self.last_read);
        for key in behind.into_iter().chain(before) {
            if Instant::now() < until {
                self.last_read = key;
                self.read_and_remember(key);
            } else {
                self.reactor.mark_readable(key);
            }
        }
    }

    /// Gives every connection that may have bytes one turn.
    pub(crate) fn read_all(&mut self) {
        for key in self.reactor.take_readable() {
            self.read_and_remember(key);
        }
    }

    pub(crate) fn read_and_remember(&mut self, key: u64) {
        if !self.read_from(key) {
            self.reactor.mark_readable(key);
        }
    }

    /// Reads from one connection until nothing is left (`true`) or its turn is over (`false`).
    fn read_from(&mut self, key: u64) -> bool {
        let mut share = Share { bytes: TURN_BYTES, packets: TURN_PACKETS, is_drained: false };
        loop {
            // Packets that were read before and not looked at come first; as long as there are some, nothing is read.
            let mut progress = self.hand_over_packets(key, &mut share);
            if let Progress::More = progress {
                progress = match share {
                    Share { is_drained: true, .. } => Progress::Drained,
                    Share { bytes: 0, .. } => Progress::Over,
                    _ => self.read_once(key, &mut share),
                };
            }
            match progress {
                Progress::More => {}
                Progress::Drained => return true,
                Progress::Over => return false,
            }
        }
    }

    fn read_once(&mut self, key: u64, share: &mut Share) -> Progress {
        let Some(conn) = self.conns.get_mut(&key).filter(|conn| !conn.away) else { return Progress::Drained };
        let bytes = match conn.receive(&mut self.buffer) {
            Received::Nothing => return Progress::Drained,
            Received::End(text) => {
                self.ended(key, text);
                return Progress::Drained;
            }
            Received::Bytes(bytes) => bytes,
        };
        share.bytes = share.bytes.saturating_sub(bytes);
        let may_go_on = conn.throw_away(bytes)
            && (!self.closing.contains(&key)
                || self.thrown_away.take(&THROWN_AWAY, Instant::now(), bytes as f64));
        match &mut conn.phase {
            Phase::HalfOpen(half_open, _) => {
                let judgement = half_open.received(bytes, self.run);
                self.judged(key, judgement);
            }
            Phase::Client(inbox) => {
                inbox.feed(&self.buffer[..bytes]);
                let is_less = conn.gives_all() && bytes < self.buffer.len();
                share.is_drained = is_less && !self.reactor.may_be_over(key);
            }
            Phase::Closing { .. } if may_go_on => {}
            Phase::Closing { .. } => {
                log::debug!("{}: goes on sending although it was dropped", conn.remote);
                self.remove(key);
            }
        }
        Progress::More
    }

    /// The stream of a connection has ended.
    fn ended(&mut self, key: u64, text: String) {
        if self.keep_place(key, &text) {
            return;
        }
        let is_guest = self.guest_has_gone(key);
        let is_standby = self.is_standby(key);
        self.lose_standby(key, &text);
        let Some(conn) = self.remove(key) else { return };
        match conn.phase {
            Phase::HalfOpen(..) => log::debug!("{}: {text} before it was known whose it is", conn.remote),
            Phase::Client(_) if is_guest || is_standby => {}
            Phase::Client(_) => self.take(Input::Disconnected { client: ClientKey(key), text }),
            Phase::Closing { .. } => {}
        }
    }

    /// Acts on what the first bytes of a connection say.
    fn judged(&mut self, key: u64, judgement: Judgement) {
        match judgement {
            Judgement::Incomplete => {}
            Judgement::Answer(bytes) => {
                self.half_open.open(key);
                if let Some(conn) = self.conns.get_mut(&key) {
                    conn.queue_raw(&bytes);
                    self.reactor.mark_dirty(key);
                }
            }
            Judgement::Unwanted(refusal, why) => self.turn_away(key, refusal, &why),
            Judgement::Known(seal, objection) => {
                self.protect(key, seal);
                match objection.or_else(|| self.objection_to_key(key)) {
                    Some((refusal, why)) => self.turn_away(key, Some(refusal), &why),
                    None => self.connected(key),
                }
            }
        }
    }

    /// From here on the bytes of a connection travel under this seal, if there is one. Everything that was queued
    /// before has left, since the other end has answered it.
    fn protect(&mut self, key: u64, seal: Option<Box<Seal>>) {
        if let (Some(conn), Some(seal)) = (self.conns.get_mut(&key), seal) {
            log::debug!("{}: has the run key, {seal:?}", conn.remote);
            conn.stream.protect(*seal);
        }
    }

    /// Closes a connection that is not a client, with an answer if it speaks the protocol.
    pub(crate) fn turn_away(&mut self, key: u64, refusal: Option<Refusal>, why: &str) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        if let Some(more) = self.stranger_lines.next(Instant::now()) {
            log::info!("{}: connection refused: {why}{more}", conn.remote);
        }
        match refusal {
            Some(refusal) => {
                conn.queue_raw(&Reply::Refused(refusal).encode());
                conn.close(Instant::now());
                self.closing.insert(key);
                self.half_open.remove(key);
                self.reactor.mark_dirty(key);
            }
            None => {
                self.remove(key);
            }
        }
    }

    /// It is known whose a connection is, and that it is for this master.
    fn connected(&mut self, key: u64) {
        if self.conns.len() - self.half_open.len() >= self.room.clients {
            self.turn_away(key, Some(Refusal::Full), "this master has as many clients as it can serve");
            return;
        }
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let local = match conn.stream.local_addr() {
            Ok(local) => local.ip().to_canonical(),
            Err(error) => {
                self.turn_away(key, None, &format!("its local address is unknown: {error}"));
                return;
            }
        };
        let remote = conn.remote.ip();
        let reply = if self.is_here_only { Reply::AcceptedHere } else { Reply::Accepted };
        conn.queue_raw(&reply.encode());
        conn.begin();
        self.half_open.remove(key);
        self.reactor.mark_dirty(key);
        if self.standing.is_some() {
            return self.greet(key);
        }
        self.take(Input::Connected { client: ClientKey(key), remote, local });
    }

    /// Hands whole packets of a client to the state, as long as it is one and has not used up its turn.
    fn hand_over_packets(&mut self, key: u64, share: &mut Share) -> Progress {
        let client = ClientKey(key);
        loop {
            if self.is_paced(key) {
                return Progress::Drained;
            }
            match self.next_packet(key) {
                Next::Packet(packet) => {
                    let packet = match self.take_about_connection(key, packet) {
                        Ok(packet) => packet,
                        Err(Progress::More) => continue,
                        Err(over) => return over,
                    };
                    let objection = self.tickets.as_ref().and_then(|issuer| issuer.objection(&packet));
                    self.take(match objection {
                        Some(error) => Input::Malformed { client, error },
                        None => Input::Packet { client, packet },
                    });
                }
                Next::Malformed(error) => {
                    self.take(Input::Malformed { client, error: error.to_string() });
                    // Its stream has no frame boundaries any more, whatever the state thinks of it.
                    self.close(key);
                }
                Next::Missing => return Progress::More,
                Next::NoMemory => return Progress::Drained,
            }
            share.packets -= 1;
            if share.packets == 0 {
                return Progress::Over;
            }
        }
    }

    /// Whether a client is not to be read now: it has sent more than it may. Its next packets are in its own way, and
    /// in nobody else's.
    fn is_paced(&mut self, key: u64) -> bool {
        let after = self.state.read_after(ClientKey(key)).map(|after| self.instant(after));
        let Some(after) = after.filter(|after| *after > Instant::now()) else { return false };
        self.paced.insert(key, after);
        true
    }

    fn next_packet(&mut self, key: u64) -> Next {
        let Some(Conn { phase: Phase::Client(inbox), .. }) = self.conns.get_mut(&key) else {
            return Next::Missing;
        };
        let bytes = inbox.next_bytes().unwrap_or(0);
        if bytes > MAX_WAITING_PACKET_BYTES {
            let max = self.state.largest_packet_bytes(ClientKey(key));
            if bytes > FRAME_LENGTH_BYTES + max {
                let len = (bytes - FRAME_LENGTH_BYTES) as u64;
                return Next::Malformed(WireError::TooLong { what: "packet", len, max });
            }
            if bytes > MAX_SMALL_PACKET_BYTES && !self.large.grant(key, bytes) {
                return Next::NoMemory;
            }
        }
        match inbox.next_packet() {
            Ok(None) => Next::Missing,
            Ok(Some(packet)) => {
                if bytes > MAX_SMALL_PACKET_BYTES {
                    self.give_room(key);
                }
                Next::Packet(packet)
            }
            Err(error) => Next::Malformed(error),
        }
    }

    /// A large packet of this connection has arrived, or will not: others may have its memory.
    pub(crate) fn give_room(&mut self, key: u64) {
        if self.large.release(key)
            && let Some(next) = self.large.next()
        {
            self.reactor.mark_readable(next);
        }
    }
}

/// The front of a connection's bytes.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, which is taken apart at once")]
enum Next {
    Packet(C2m),
    Malformed(WireError),
    /// No whole packet, or nobody whose packets count.
    Missing,
    /// A large packet, for which there is no memory now.
    NoMemory,
}
