//! The loop that moves bytes between connections and the engine, on one thread.

use super::{ServerConfig, conn::Conn, engine::Engine, journal::Journal};
use crate::{
    data::Data,
    wire::{Code, STOP_WAITING},
};
use mio::{Events, Interest, Poll, Token, Waker};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tinysockets::listeners::Listeners;

const WAKER: Token = Token(usize::MAX);
const LISTENERS: Token = Token(usize::MAX - 1);
const EVENTS_PER_POLL: usize = 1024;
/// Bytes read from one connection in one turn.
const BUFFER_BYTES: usize = 64 * 1024;
/// Longest sleep.
const PULSE: Duration = Duration::from_millis(500);
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
    poll: Poll,
    stop: Arc<AtomicBool>,
    listeners: Listeners,
    engine: Engine,
    journal: Option<Journal>,
    config: ServerConfig,
    conns: HashMap<u64, Conn>,
    /// Those that have not introduced themselves, oldest first.
    strangers: BTreeMap<u64, Instant>,
    /// Those that may have something to read.
    readable: VecDeque<u64>,
    /// Those to which something may be written.
    dirty: HashSet<u64>,
    next_key: u64,
    /// Bytes that connections hold.
    held: usize,
    buffer: Vec<u8>,
    answer: Vec<u8>,
}

/// Wakes the loop up to stop it.
#[derive(Clone)]
pub(super) struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Asks the loop to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // The flag is looked at every `PULSE` anyway.
        let _ = self.waker.wake();
    }
}

impl EventLoop {
    pub(super) fn new(
        listeners: Vec<std::net::TcpListener>,
        data: Data,
        journal: Option<Journal>,
        config: ServerConfig,
    ) -> io::Result<(Self, Stopper)> {
        let poll = Poll::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let listeners = Listeners::register(listeners, poll.registry(), LISTENERS)?;
        let engine = Engine::new(data, journal.is_some());
        let event_loop = Self {
            poll,
            stop: Arc::clone(&stop),
            listeners,
            engine,
            journal,
            config,
            conns: HashMap::new(),
            strangers: BTreeMap::new(),
            readable: VecDeque::new(),
            dirty: HashSet::new(),
            next_key: 1,
            held: 0,
            buffer: vec![0; BUFFER_BYTES],
            answer: Vec::new(),
        };
        Ok((event_loop, Stopper { stop, waker }))
    }

    /// Runs until it is stopped.
    pub(super) fn run(mut self) -> Result<(), Fatal> {
        let mut events = Events::with_capacity(EVENTS_PER_POLL);
        while !self.stop.load(Ordering::Acquire) {
            let wait = self.wait();
            match self.poll.poll(&mut events, Some(wait)) {
                Ok(()) => self.sort(&events),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fatal::Poll(error)),
            }
            self.accept();
            for _ in 0..self.readable.len() {
                if let Some(key) = self.readable.pop_front() {
                    self.read(key);
                    self.tell_woken();
                }
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

    fn wait(&self) -> Duration {
        if self.listeners.is_ready() || !self.readable.is_empty() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let earliest =
            self.strangers.values().next().copied().into_iter().chain(self.listeners.deadline()).min();
        earliest.map_or(PULSE, |deadline| deadline.saturating_duration_since(now)).min(PULSE)
    }

    fn sort(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                WAKER => {}
                LISTENERS => self.listeners.set_ready(),
                Token(token) => {
                    let key = token as u64;
                    if event.is_writable() && self.conns.get(&key).is_some_and(|conn| !conn.out.is_empty()) {
                        self.dirty.insert(key);
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.list(key);
                    }
                }
            }
        }
    }

    /// Puts a connection into the list of those that may have something to read.
    fn list(&mut self, key: u64) {
        if let Some(conn) = self.conns.get_mut(&key)
            && !conn.listed
        {
            conn.listed = true;
            self.readable.push_back(key);
        }
    }

    fn accept(&mut self) {
        let now = Instant::now();
        for (mut stream, remote) in self.listeners.accept(now) {
            let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
            if self.conns.len() >= self.config.max_connections {
                log::warn!("{remote}: dropped, there are {} connections", self.conns.len());
                continue;
            }
            let key = self.next_key;
            self.next_key += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registered = stream
                .send_at_once()
                .and_then(|()| self.poll.registry().register(&mut stream, Token(key as usize), interest));
            if let Err(error) = registered {
                log::debug!("{remote}: lost right after it was accepted: {error}");
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
        conn.listed = false;
        let result = self.read_and_carry_out(key, &mut conn);
        let now_held = conn.holds();
        self.held = self.held - conn.held + now_held;
        conn.held = now_held;
        let crowded = self.held > self.config.max_buffer_bytes;
        let reason = match result {
            Ok(()) if !crowded => {
                if !conn.out.is_empty() {
                    self.dirty.insert(key);
                }
                let is_listed = conn.listed;
                self.conns.insert(key, conn);
                if is_listed {
                    self.readable.push_back(key);
                }
                return;
            }
            Ok(()) => Some("the connections hold too much".to_owned()),
            Err(reason) => reason,
        };
        if let Some(reason) = reason {
            log::info!("{}: disconnected, {reason}", conn.remote);
        }
        self.held -= conn.held;
        self.strangers.remove(&key);
        self.dirty.remove(&key);
        self.engine.forget(key);
        let _ = self.poll.registry().deregister(&mut conn.stream);
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
                conn.listed = true;
                self.received(key, conn, &buffer[..bytes])
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                conn.listed = true;
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
            conn.out.push(std::mem::take(&mut self.answer));
        }
        result.map(|()| done)
    }

    /// Tells those whose wait is over.
    fn tell_woken(&mut self) {
        for key in std::mem::take(&mut self.engine.woken) {
            if let Some(conn) = self.conns.get_mut(&key) {
                conn.wait_bytes = 0;
                conn.out.push(vec![STOP_WAITING]);
                self.dirty.insert(key);
            }
        }
    }

    fn flush(&mut self) {
        for key in std::mem::take(&mut self.dirty) {
            let Some(conn) = self.conns.get_mut(&key) else { continue };
            let was_clogged = conn.is_clogged();
            // A connection that cannot be written to is found out when it is read.
            let failed = conn.out.write_to(|bytes| conn.stream.try_send(bytes)).is_err();
            let now_held = conn.holds();
            self.held = self.held - conn.held + now_held;
            conn.held = now_held;
            if failed || (was_clogged && !conn.is_clogged()) || (!conn.is_clogged() && !conn.input.is_empty())
            {
                self.list(key);
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
                self.held -= conn.held;
                let _ = self.poll.registry().deregister(&mut conn.stream);
            }
        }
    }
}
