//! Reading: from bytes of a connection to inputs of the state.

use super::{
    EventLoop, MAX_CLIENTS,
    conn::{Phase, Received},
    half_open::Judgement,
    inbox::Inbox,
};
use crate::state::{ClientKey, Input};
use pccl_protocol::{C2m, WireError};
use std::time::Instant;
use tinysockets::preamble::{Refusal, Reply};

/// Bytes read by one system call.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// Bytes read from one connection in one turn; then it is the next one's turn.
const TURN_BYTES: usize = 256 << 10;
/// Bytes read at once from a connection whose preamble is incomplete; all that it can make the master hold.
const HALF_OPEN_BYTES: usize = 1 << 10;

/// What reading from one connection led to.
enum Progress {
    /// Read more.
    More(usize),
    /// Nothing left to read, or nobody left to read from.
    Drained,
}

impl EventLoop {
    /// Gives every connection that may have bytes one turn.
    pub(super) fn read_turn(&mut self) {
        for key in self.reactor.take_readable() {
            if !self.read_from(key) {
                self.reactor.mark_readable(key);
            }
        }
    }

    /// Reads from one connection until nothing is left (`true`) or its turn is over (`false`).
    fn read_from(&mut self, key: u64) -> bool {
        let mut left = TURN_BYTES;
        while left > 0 {
            match self.read_once(key) {
                Progress::More(bytes) => left = left.saturating_sub(bytes),
                Progress::Drained => return true,
            }
        }
        false
    }

    fn read_once(&mut self, key: u64) -> Progress {
        let Some(conn) = self.conns.get_mut(&key) else { return Progress::Drained };
        let limit = if matches!(conn.phase, Phase::HalfOpen(..)) { HALF_OPEN_BYTES } else { BUFFER_BYTES };
        match conn.receive(&mut self.buffer[..limit]) {
            Received::Nothing => Progress::Drained,
            Received::End(text) => {
                self.ended(key, text);
                Progress::Drained
            }
            Received::Bytes(n) => {
                match &mut conn.phase {
                    Phase::HalfOpen(half_open, _) => {
                        let judgement = half_open.feed(&self.buffer[..n], self.run);
                        self.judged(key, judgement);
                    }
                    Phase::Client(inbox) => {
                        inbox.feed(&self.buffer[..n]);
                        self.hand_over_packets(key);
                    }
                    Phase::Closing { .. } => {}
                }
                Progress::More(n)
            }
        }
    }

    /// The stream of a connection has ended.
    fn ended(&mut self, key: u64, text: String) {
        let Some(conn) = self.remove(key) else { return };
        match conn.phase {
            Phase::HalfOpen(..) => log::debug!("{}: {text} before its preamble was complete", conn.remote),
            Phase::Client(_) => self.take(Input::Disconnected { client: ClientKey(key), text }),
            Phase::Closing { .. } => {}
        }
    }

    /// Acts on what the first bytes of a connection say.
    fn judged(&mut self, key: u64, judgement: Judgement) {
        match judgement {
            Judgement::Incomplete => {}
            Judgement::Unwanted(refusal, why) => self.turn_away(key, refusal, &why),
            Judgement::Client(rest) => self.connected(key, &rest),
        }
    }

    /// Closes a connection that is not a client, with an answer if it speaks the protocol.
    pub(super) fn turn_away(&mut self, key: u64, refusal: Option<Refusal>, why: &str) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        log::info!("{}: connection refused: {why}", conn.remote);
        match refusal {
            Some(refusal) => {
                conn.queue_raw(&Reply::Refused(refusal).encode());
                conn.close(Instant::now());
                self.closing.insert(key);
                self.half_open.remove(&key);
                self.reactor.mark_dirty(key);
            }
            None => {
                self.remove(key);
            }
        }
    }

    /// A preamble is complete and good.
    fn connected(&mut self, key: u64, rest: &[u8]) {
        if self.conns.len() - self.half_open.len() >= MAX_CLIENTS {
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
        conn.queue_raw(&Reply::Accepted.encode());
        let mut inbox = Inbox::new();
        inbox.feed(rest);
        conn.phase = Phase::Client(inbox);
        self.half_open.remove(&key);
        self.reactor.mark_dirty(key);
        self.take(Input::Connected { client: ClientKey(key), remote, local });
        self.hand_over_packets(key);
    }

    /// Hands all whole packets of a client to the state, as long as it is one.
    fn hand_over_packets(&mut self, key: u64) {
        while let Some(next) = self.next_packet(key) {
            let client = ClientKey(key);
            match next {
                Ok(packet) => self.take(Input::Packet { client, packet }),
                Err(error) => {
                    self.take(Input::Malformed { client, error: error.to_string() });
                    // Its stream has no frame boundaries any more, whatever the state thinks of it.
                    self.close(key);
                }
            }
        }
    }

    fn next_packet(&mut self, key: u64) -> Option<Result<C2m, WireError>> {
        match &mut self.conns.get_mut(&key)?.phase {
            Phase::Client(inbox) => inbox.next_packet().transpose(),
            Phase::HalfOpen(..) | Phase::Closing { .. } => None,
        }
    }
}
