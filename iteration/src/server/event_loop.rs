//! The loop that moves bytes between connections and the engine, on one thread.

use super::{
    ServerConfig,
    conn::{Conn, Held},
    engine::Engine,
    journal::Journal,
};
use crate::{
    data::Data,
    wire::{Code, STOP_WAITING},
};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    time::Instant,
};
use tinysockets::{
    reactor::{Reactor, Stopper},
    write_queue::Frame,
};

/// Bytes read from one connection in one turn.
const BUFFER_BYTES: usize = 64 * 1024;
/// Buffers of idle connections are given back when they are larger than this.
const IDLE_BYTES: usize = 4096;

/// Why the loop ended by itself.
#[derive(Debug)]
pub(super) enum Fatal {
    /// The file failed: what clients were told next could be forgotten.
    File(io::Error),
    /// The system's event queue failed.
    Poll(io::Error),
}

/// The loop and everything that it owns.
pub(super) struct EventLoop {
    reactor: Reactor,
    engine: Engine,
    journal: Option<Journal>,
    config: ServerConfig,
    conns: HashMap<u64, Conn>,
    /// Those that have not introduced themselves, oldest first.
    strangers: BTreeMap<u64, Instant>,
    /// Bytes that connections hold.
    held: Held,
    buffer: Vec<u8>,
    answer: Vec<u8>,
}

impl EventLoop {
    pub(super) fn new(
        listeners: Vec<std::net::TcpListener>,
        data: Data,
        journal: Option<Journal>,
        config: ServerConfig,
    ) -> io::Result<(Self, Stopper)> {
        let reactor = Reactor::new(listeners)?;
        let stopper = reactor.stopper();
        let engine = Engine::new(data, journal.is_some());
        let event_loop = Self {
            reactor,
            engine,
            journal,
            config,
            conns: HashMap::new(),
            strangers: BTreeMap::new(),
            held: Held::default(),
            buffer: vec![0; BUFFER_BYTES],
            answer: Vec::new(),
        };
        Ok((event_loop, stopper))
    }

    /// Runs until it is stopped.
    pub(super) fn run(mut self) -> Result<(), Fatal> {
        while !self.reactor.is_stopped() {
            let deadline = self.strangers.values().next().copied();
            self.reactor.wait(self.reactor.time_to_wait(deadline)).map_err(Fatal::Poll)?;
            self.accept();
            for key in self.reactor.take_readable() {
                self.read(key);
                self.tell_woken();
            }
            // Nobody is told of a change that the file does not hold.
            if let Some(journal) = &mut self.journal {
                journal.keep(&mut self.engine.changes, &self.engine.data).map_err(Fatal::File)?;
            }
            self.flush();
            self.expire();
        }
        Ok(())
    }

    fn accept(&mut self) {
        let now = Instant::now();
        for (key, mut stream, remote) in self.reactor.accept(now) {
            if self.conns.len() >= self.config.max_connections {
                log::warn!("{remote}: dropped, there are {} connections", self.conns.len());
                self.reactor.remove(key, &mut stream);
                continue;
            }
            let validate_by = now + self.config.handshake_timeout;
            self.conns.insert(key, Conn::new(stream, remote, validate_by));
            self.strangers.insert(key, validate_by);
        }
    }

    /// Reads once from a connection and carries out what is complete.
    fn read(&mut self, key: u64) {
        let Some(mut conn) = self.conns.remove(&key) else { return };
        let result = self.read_and_carry_out(key, &mut conn);
        self.held.note(&mut conn);
        let crowded = self.held.all() > self.config.max_buffer_bytes;
        let is_greedy = self.held.of_origin(&conn) > self.config.max_client_bytes;
        let reason = match result {
            Ok(()) if !crowded && !is_greedy => {
                if !conn.out.is_empty() {
                    self.reactor.mark_dirty(key);
                }
                self.conns.insert(key, conn);
                return;
            }
            Ok(()) if is_greedy => Some("the connections of its address hold too much".to_owned()),
            Ok(()) => Some("the connections hold too much".to_owned()),
            Err(reason) => reason,
        };
        if let Some(reason) = reason {
            log::info!("{}: disconnected, {reason}", conn.remote);
        }
        self.held.release(&mut conn);
        self.strangers.remove(&key);
        self.engine.forget(key);
        self.reactor.remove(key, &mut conn.stream);
    }

    /// `Err(None)`: the other end has closed.
    fn read_and_carry_out(&mut self, key: u64, conn: &mut Conn) -> Result<(), Option<String>> {
        if conn.is_clogged() {
            // It is looked at again when it has taken its answers.
            return Ok(());
        }
        if !conn.input.is_empty() {
            self.carry_out_input(key, conn)?;
            if conn.is_clogged() {
                return Ok(());
            }
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = match conn.stream.try_recv(&mut buffer) {
            Ok(0) => Err(None),
            Ok(bytes) => {
                self.reactor.mark_readable(key);
                self.received(key, conn, &buffer[..bytes])
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.reactor.mark_readable(key);
                Ok(())
            }
            Err(error) => Err(Some(error.to_string())),
        };
        self.buffer = buffer;
        result
    }

    fn received(&mut self, key: u64, conn: &mut Conn, bytes: &[u8]) -> Result<(), Option<String>> {
        if conn.input.is_empty() {
            let done = self.carry_out(key, conn, bytes)?;
            conn.input.extend_from_slice(&bytes[done..]);
            return Ok(());
        }
        conn.input.extend_from_slice(bytes);
        self.carry_out_input(key, conn)
    }

    fn carry_out_input(&mut self, key: u64, conn: &mut Conn) -> Result<(), Option<String>> {
        let mut input = std::mem::take(&mut conn.input);
        let done = self.carry_out(key, conn, &input)?;
        input.drain(..done);
        if input.is_empty() && input.capacity() > IDLE_BYTES {
            input = Vec::new();
        }
        conn.input = input;
        Ok(())
    }

    /// Carries out all complete commands, until the connection takes no more answers. Returns how many bytes are done.
    fn carry_out(&mut self, key: u64, conn: &mut Conn, bytes: &[u8]) -> Result<usize, Option<String>> {
        let mut done = 0;
        self.answer.clear();
        let result = loop {
            if conn.out.waiting_bytes() + self.answer.len() > super::conn::MAX_WAITING_BYTES {
                break Ok(());
            }
            let rest = &bytes[done..];
            let (code, length) = match conn.scanner.scan(rest) {
                Ok(Some(found)) => found,
                Ok(None) => break Ok(()),
                Err(reason) => break Err(Some(reason)),
            };
            if conn.validate_by.is_some() {
                if code != Code::Validate {
                    break Err(Some("it did not introduce itself".into()));
                }
                conn.validate_by = None;
                self.strangers.remove(&key);
            }
            if let Err(reason) = self.engine.carry_out(key, code, &rest[..length], &mut self.answer) {
                break Err(Some(reason));
            }
            // Its own command has ended its own wait: the answer goes in front of those to what it says next.
            if let Some(at) = self.engine.woken.iter().position(|woken| *woken == key) {
                self.engine.woken.swap_remove(at);
                self.answer.push(STOP_WAITING);
            }
            conn.wait_bytes = if self.engine.is_waiting(key) { length } else { 0 };
            done += length;
        };
        if !self.answer.is_empty() {
            conn.out.push(Frame::new(std::mem::take(&mut self.answer)));
        }
        result.map(|()| done)
    }

    /// Tells those whose wait is over.
    fn tell_woken(&mut self) {
        for key in std::mem::take(&mut self.engine.woken) {
            if let Some(conn) = self.conns.get_mut(&key) {
                conn.wait_bytes = 0;
                conn.out.push(Frame::new(vec![STOP_WAITING]));
                self.reactor.mark_dirty(key);
            }
        }
    }

    fn flush(&mut self) {
        for key in self.reactor.take_dirty() {
            let Some(conn) = self.conns.get_mut(&key) else { continue };
            let was_clogged = conn.is_clogged();
            // A connection that cannot be written to is found out when it is read.
            let failed = conn.out.write_to(|parts| conn.stream.try_send_many(parts)).is_err();
            self.held.note(conn);
            if failed || (was_clogged && !conn.is_clogged()) || (!conn.is_clogged() && !conn.input.is_empty())
            {
                self.reactor.mark_readable(key);
            }
        }
    }

    /// Drops those that have not introduced themselves in time.
    fn expire(&mut self) {
        let now = Instant::now();
        while let Some((key, deadline)) = self.strangers.first_key_value().map(|(key, at)| (*key, *at)) {
            if deadline > now {
                return;
            }
            self.strangers.remove(&key);
            if let Some(mut conn) = self.conns.remove(&key) {
                log::info!("{}: dropped, it did not introduce itself", conn.remote);
                self.held.release(&mut conn);
                self.reactor.remove(key, &mut conn.stream);
            }
        }
    }
}
