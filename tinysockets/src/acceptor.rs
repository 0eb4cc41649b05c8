//! One thread that takes the connections of all listeners of a peer and finds out who they are.
//!
//! A connection costs nothing but a descriptor and a few hundred bytes until it has shown a valid preamble and, in a
//! run with a key, has proven that it has that; and it has only so long to do so. Nobody can hold up the thread: it
//! never waits for one connection, only in `poll` for all.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    address::canonical,
    bucket::Lines,
    conn::Conn,
    handshake::{Door, Visit},
    listener::Listener,
    preamble::{Preamble, Refusal, Reply, Role},
    shm::Region,
    sys::{self, Interest, PollEntry, Waker},
    threads,
    throttle::{Crowd, LINES_ABOUT_STRANGERS, MAX_HALF_OPEN, MAX_HALF_OPEN_OF_NETWORK, Network, Throttle},
    ticket::Lock,
};

/// Connections taken from one listener before the others have their turn.
const ACCEPT_BURST: usize = 64;
/// The longest `preamble_timeout`: a longer one is cut to it, so that the clock can always name the deadline.
const LONGEST_PREAMBLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Limits of the resources that connections may take from us before they have shown a preamble.
#[derive(Debug, Clone)]
pub struct AcceptLimits {
    /// Connections that may be without a complete preamble at once; for the next one the oldest is dropped of the
    /// network that most of them come from.
    pub half_open_max: usize,
    /// The same of one network; the oldest of them is dropped.
    pub half_open_of_network_max: usize,
    /// Time for a preamble to arrive, from when the connection was taken.
    pub preamble_timeout: Duration,
    /// How long to leave the listeners alone when the system has no descriptor or memory for another connection.
    pub pause: Duration,
}

impl Default for AcceptLimits {
    fn default() -> Self {
        Self {
            half_open_max: MAX_HALF_OPEN,
            half_open_of_network_max: MAX_HALF_OPEN_OF_NETWORK,
            preamble_timeout: Duration::from_secs(5),
            pause: Duration::from_millis(100),
        }
    }
}

/// A connection with a valid preamble of the role that its listener serves, from somebody who has the run key if there
/// is one. Dropping it closes it without an answer.
#[derive(Debug)]
pub struct Incoming {
    /// The statement of the other side about itself.
    pub preamble: Preamble,
    /// The connection, in blocking mode, with `TCP_NODELAY`; nothing behind the preamble has been read.
    pub conn: Conn,
    /// Where it comes from.
    pub remote_addr: SocketAddr,
    /// The address of ours that it reached.
    pub local_addr: SocketAddr,
}

impl Incoming {
    /// Tells the other side that the connection is taken. Never blocks.
    pub fn accept(mut self) -> io::Result<Conn> {
        send_reply(&self.conn, Reply::Accepted)?;
        self.conn.replied();
        Ok(self.conn)
    }

    /// The same; the bytes of the connection go through the memory that its preamble offers, if this end can open that.
    pub fn accept_sharing(mut self) -> io::Result<Conn> {
        let Some(memory) = self.memory() else { return self.accept() };
        send_reply(&self.conn, Reply::AcceptedShared)?;
        self.conn.replied();
        self.conn.share(memory, self.preamble.role == Role::Data);
        Ok(self.conn)
    }

    /// The memory that the preamble offers.
    fn memory(&self) -> Option<Region> {
        let offer = self.preamble.memory?;
        let opened = match self.preamble.role {
            // The addresses as the socket has them: those of this value may be other ones.
            Role::Data | Role::DataBack => {
                self.conn.local_addr().and_then(|local| offer.open(local, self.conn.peer_addr()?))
            }
            _ => return None,
        };
        let why_not =
            |error| log::debug!("memory that {} would share is not used: {error}", self.remote_addr);
        opened.map_err(why_not).ok()
    }

    /// Tells the other side why not, and closes. Never blocks.
    pub fn refuse(self, reason: Refusal) {
        refuse(&self.conn, self.remote_addr, reason);
    }
}

/// Receives the connections. It may see the next connection even if it panicked over the last one. It runs on the
/// acceptor's thread and must not block, because nobody else is taken while it runs; long work belongs on another
/// thread, which can own the [`Incoming`] and answer later.
pub type Handler = Box<dyn FnMut(Incoming) + Send>;

/// The running thread. Dropping it is [`shutdown`](Self::shutdown).
#[derive(Debug)]
pub struct Acceptor {
    ports: Vec<u16>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread_id: thread::ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
    entrance: Entrance,
}

/// A way in beside the listeners, for connections that this side has made and that the other end begins, as one that
/// somebody has come over: the same limits and proofs hold for them.
#[derive(Debug, Clone)]
pub struct Entrance {
    brought: Arc<Mutex<Vec<(Role, Conn)>>>,
    waker: Waker,
}

impl Entrance {
    /// Treats a connection as one that has come to the listener of this role. Never blocks; when the acceptor
    /// has ended, nothing follows.
    pub fn bring(&self, listener: Role, conn: Conn) {
        let mut brought = self.brought.lock();
        if brought.len() < ACCEPT_BURST {
            brought.push((listener, conn));
        }
        drop(brought);
        self.waker.wake();
    }
}

impl Acceptor {
    /// Starts to take connections from `listeners`, each of which serves one role, from whichever side it is dialed,
    /// and checks; that for data takes probes, too. A connection of another role is refused, and what is no preamble is
    /// closed, without `handler` seeing it; nor does it see a dialer that does not have what the lock wants, if there
    /// is one.
    pub fn spawn(
        listeners: Vec<(Role, Listener)>,
        limits: AcceptLimits,
        lock: Option<Lock>,
        handler: Handler,
    ) -> io::Result<Self> {
        let ports = listeners.iter().map(|(_, listener)| listener.local_port()).collect();
        let waker = Waker::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        let entrance = Entrance { brought: Arc::default(), waker: waker.clone() };
        let mut work = Work {
            brought: Arc::clone(&entrance.brought),
            listeners,
            limits,
            lock,
            handler,
            waker: waker.clone(),
            stop: Arc::clone(&stop),
            half_open: BTreeMap::new(),
            next_key: 0,
            crowd: Crowd::default(),
            throttle: Throttle::new(Instant::now()),
            lines: Lines::new(LINES_ABOUT_STRANGERS, Instant::now()),
            paused_until: None,
        };
        let thread = threads::spawn("acceptor", move || work.run())?;
        Ok(Self {
            ports,
            waker,
            stop,
            thread_id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
            entrance,
        })
    }

    /// A way in beside the listeners.
    #[must_use]
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// The port of the listener that was given at `index`.
    #[must_use]
    pub fn local_port(&self, index: usize) -> Option<u16> {
        self.ports.get(index).copied()
    }

    /// Closes the listeners and all connections without a complete preamble, and waits for the thread to end; called
    /// from within the handler it does not wait. The handler is not called again afterwards.
    pub fn shutdown(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if thread::current().id() == self.thread_id {
            return;
        }
        // The lock is kept while joining, so that a second caller waits too.
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("the thread that takes connections had panicked");
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A connection of which it is not known yet whose it is.
struct HalfOpen {
    conn: Conn,
    remote_addr: SocketAddr,
    role: Role,
    deadline: Instant,
    door: Door,
}

enum Progress {
    Waiting,
    Known(Preamble),
    Unwanted(Option<Refusal>, String),
}

struct Work {
    brought: Arc<Mutex<Vec<(Role, Conn)>>>,
    listeners: Vec<(Role, Listener)>,
    limits: AcceptLimits,
    lock: Option<Lock>,
    handler: Handler,
    waker: Waker,
    stop: Arc<AtomicBool>,
    /// In the order in which they came, which is also the order of their deadlines.
    half_open: BTreeMap<u64, HalfOpen>,
    next_key: u64,
    crowd: Crowd<u64>,
    throttle: Throttle,
    /// About strangers that a limit turns away.
    lines: Lines<Instant>,
    paused_until: Option<Instant>,
}

impl Work {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    // Out of kernel memory, say. The same call at once would fail again.
                    log::warn!("waiting for connections: {error}");
                    thread::park_timeout(self.limits.pause);
                    continue;
                }
            };
            if ready.woken {
                self.waker.clear();
            }
            self.read_half_open(&ready.half_open);
            self.drop_expired();
            self.take_brought();
            if self.paused_until.is_some_and(|until| until <= Instant::now()) {
                self.paused_until = None;
            }
            for index in ready.listeners {
                if self.paused_until.is_none() && !self.stop.load(Ordering::Acquire) {
                    self.take_connections(index);
                }
            }
        }
    }

    fn wait(&self) -> io::Result<Ready> {
        let listening = if self.paused_until.is_none() { self.listeners.as_slice() } else { &[] };
        let mut entries = Vec::with_capacity(1 + listening.len() + self.half_open.len());
        entries.push(PollEntry::new(self.waker.as_fd(), Interest::Read));
        entries
            .extend(listening.iter().map(|(_, listener)| PollEntry::new(listener.as_fd(), Interest::Read)));
        entries.extend(self.half_open.values().map(|half| half.conn.poll_entry(Interest::Read)));
        let first_to_expire = self.half_open.values().next().map(|half| half.deadline);
        let deadline = [first_to_expire, self.paused_until].into_iter().flatten().min();
        sys::poll_many(&mut entries, deadline)?;
        let mut flags = entries.iter().map(|entry| entry.readiness().any());
        let woken = flags.next().unwrap_or(false);
        let listeners = flags.by_ref().take(listening.len()).enumerate();
        let listeners = listeners.filter_map(|(i, ready)| ready.then_some(i)).collect();
        Ok(Ready { woken, listeners, half_open: flags.collect() })
    }

    /// Reads from those half-open connections for which `ready` is set.
    fn read_half_open(&mut self, ready: &[bool]) {
        let keys = self.half_open.keys().copied().zip(ready).filter(|(_, ready)| **ready);
        let keys: Vec<u64> = keys.map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.read_one(key));
    }

    fn read_one(&mut self, key: u64) {
        let Some(half) = self.half_open.get_mut(&key) else { return };
        let progress = half.read();
        if half.door.is_open() {
            self.crowd.open(key);
        }
        if matches!(progress, Progress::Waiting) {
            return;
        }
        let Some(half) = self.forget(key) else { return };
        match progress {
            Progress::Waiting => {}
            Progress::Known(preamble) => self.finish(half, preamble),
            Progress::Unwanted(answer, why) => self.reject(&half, answer, &why),
        }
    }

    fn drop_expired(&mut self) {
        let now = Instant::now();
        while let Some((key, _)) = self.half_open.first_key_value().filter(|(_, half)| half.deadline <= now) {
            if let Some(half) = self.forget(*key) {
                log::debug!(
                    "closing connection from {}: no complete preamble or proof in time",
                    half.remote_addr
                );
            }
        }
    }

    /// Those that come over the entrance. After those that are half open were read, whose order is known by then.
    fn take_brought(&mut self) {
        let brought = std::mem::take(&mut *self.brought.lock());
        for (role, conn) in brought {
            // Without an address it is broken already.
            if let Ok(remote_addr) = conn.peer_addr() {
                self.admit(conn, canonical(remote_addr), role);
            }
        }
    }

    fn take_connections(&mut self, index: usize) {
        for _ in 0..ACCEPT_BURST {
            let (role, listener) = &self.listeners[index];
            match listener.accept() {
                Ok(None) => return,
                Ok(Some((conn, remote_addr))) => {
                    let role = *role;
                    self.admit(conn, remote_addr, role);
                }
                Err(error) if concerns_one_connection(&error) => {
                    log::debug!("a connection was lost before it was taken: {error}");
                }
                Err(error) => {
                    log::warn!("cannot take connections for a moment: {error}");
                    self.paused_until = sys::deadline_after(self.limits.pause);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, conn: Conn, remote_addr: SocketAddr, role: Role) {
        let now = Instant::now();
        if !self.throttle.take(Network::of(remote_addr.ip()), now) {
            return self.say(remote_addr, "its network begins connections too often");
        }
        let deadline = now + self.limits.preamble_timeout.min(LONGEST_PREAMBLE_TIMEOUT);
        let mut half = HalfOpen { conn, remote_addr, role, deadline, door: Door::new(self.lock.clone()) };
        // Often the preamble has come along with the connection.
        match half.read() {
            Progress::Waiting => {}
            Progress::Known(preamble) => return self.finish(half, preamble),
            Progress::Unwanted(answer, why) => return self.reject(&half, answer, &why),
        }
        self.next_key += 1;
        self.crowd.add(self.next_key, Network::of(remote_addr.ip()));
        if half.door.is_open() {
            self.crowd.open(self.next_key);
        }
        self.half_open.insert(self.next_key, half);
        self.make_room();
    }

    /// Drops one if there are too many, after a look at what it has sent by now.
    fn make_room(&mut self) {
        let (total, network) = (self.limits.half_open_max, self.limits.half_open_of_network_max);
        while let Some(key) = self.crowd.one_too_many(total.max(1), network.max(1)) {
            let had_opened = self.crowd.has_opened(key);
            self.read_one(key);
            if self.crowd.contains(key)
                && self.crowd.has_opened(key) == had_opened
                && let Some(dropped) = self.forget(key)
            {
                self.say(dropped.remote_addr, "too many that have not said whose they are");
            }
        }
    }

    fn forget(&mut self, key: u64) -> Option<HalfOpen> {
        self.crowd.remove(key);
        self.half_open.remove(&key)
    }

    /// Says that a limit turned somebody away.
    fn say(&mut self, remote_addr: SocketAddr, why: &str) {
        if let Some(more) = self.lines.next(Instant::now()) {
            log::info!("closing connection from {remote_addr}: {why}{more}");
        }
    }

    /// Closes a connection to nobody; with an answer, if it is to have one.
    fn reject(&mut self, half: &HalfOpen, answer: Option<Refusal>, why: &str) {
        let remote = half.remote_addr;
        match answer {
            Some(reason) => {
                if reason == Refusal::WrongTicket
                    && let Some(more) = self.lines.next(Instant::now())
                {
                    log::warn!("refusing connection from {remote}: {why}{more}");
                }
                refuse(&half.conn, remote, reason);
            }
            None => log::debug!("closing connection from {remote}: {why}"),
        }
    }

    fn finish(&mut self, half: HalfOpen, preamble: Preamble) {
        self.throttle.give_back(Network::of(half.remote_addr.ip()));
        if self.stop.load(Ordering::Acquire) {
            return refuse(&half.conn, half.remote_addr, Refusal::ShuttingDown);
        }
        if !serves(half.role, preamble.role) {
            return refuse(&half.conn, half.remote_addr, Refusal::WrongRole);
        }
        let Ok(local_addr) = half.conn.local_addr() else { return };
        let HalfOpen { conn, remote_addr, .. } = half;
        let incoming = Incoming { preamble, conn, remote_addr, local_addr: canonical(local_addr) };
        // One connection that the handler cannot cope with must not end the service for all others.
        if catch_unwind(AssertUnwindSafe(|| (self.handler)(incoming))).is_err() {
            log::error!("the handler of incoming connections panicked over the one from {remote_addr}");
        }
    }
}

/// Probes measure the way that data takes, so they come to the same port. A connection that is dialed back comes to the
/// port of its kind. Every port tells who listens there.
fn serves(listener: Role, role: Role) -> bool {
    role == listener
        || match role {
            Role::Check => true,
            Role::Probe | Role::DataBack | Role::ProbeBack => listener == Role::Data,
            Role::StateBack => listener == Role::State,
            Role::Control | Role::Data | Role::State | Role::Relay => false,
        }
}

struct Ready {
    woken: bool,
    listeners: Vec<usize>,
    half_open: Vec<bool>,
}

impl HalfOpen {
    /// Reads what has arrived, never more than what is needed to know whose it is.
    fn read(&mut self) -> Progress {
        let hopeless = |why: &str| Progress::Unwanted(None, why.to_owned());
        loop {
            let visit = match self.conn.try_recv(self.door.missing()) {
                Ok(0) => return hopeless("it ended before it was known whose it is"),
                Ok(count) => self.door.received(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Waiting,
                Err(_) => return hopeless("it broke before it was known whose it is"),
            };
            match visit {
                Visit::Nothing => {}
                Visit::Answer(bytes) => {
                    // Few bytes, as those of a reply.
                    if let Err(error) = self.conn.send_all(&bytes, Some(Instant::now())) {
                        return hopeless(&format!("it could not be answered: {error}"));
                    }
                }
                Visit::Known(preamble, seal) => {
                    if let Some(seal) = seal {
                        self.conn.protect(*seal);
                    }
                    return Progress::Known(preamble);
                }
                Visit::Unwanted(answer, why) => return Progress::Unwanted(answer, why),
            }
        }
    }
}

/// Whether an error of `accept` is about the connection that was to be taken, and the next one may well work.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EPROTO | libc::EPERM))
        || error.kind() == io::ErrorKind::Interrupted
}

fn send_reply(conn: &Conn, reply: Reply) -> io::Result<()> {
    // The send buffer of a connection that has never been written to holds these few bytes, so no waiting is needed.
    conn.send_all(&reply.encode(), Some(Instant::now()))
}

fn refuse(conn: &Conn, remote_addr: SocketAddr, reason: Refusal) {
    log::debug!("refusing connection from {remote_addr}: {reason}");
    if send_reply(conn, Reply::Refused(reason)).is_ok() {
        // Closing a connection with unread bytes in it resets it, and then a reply that is lost on its way is not sent
        // again. So take what somebody sent too early.
        let _ = conn.shutdown(std::net::Shutdown::Write);
        let _ = conn.try_recv(&mut [0; 1024]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_one_connection_do_not_pause_the_listeners() {
        for code in [libc::ECONNABORTED, libc::EPROTO, libc::EPERM, libc::EINTR] {
            assert!(concerns_one_connection(&io::Error::from_raw_os_error(code)));
        }
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EBADF] {
            assert!(!concerns_one_connection(&io::Error::from_raw_os_error(code)));
        }
    }
}
