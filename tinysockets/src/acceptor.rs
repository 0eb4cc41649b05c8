//! One thread that takes the connections of all listeners of a peer and reads their preambles.
//!
//! A connection costs nothing but a descriptor and a hundred bytes until it has shown a valid preamble, and it has only
//! so long to do that. Nobody can hold up the thread: it never waits for one connection, only in `poll` for all.

use std::{
    collections::VecDeque,
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
    conn::Conn,
    listener::Listener,
    preamble::{PREAMBLE_BYTES, Preamble, PreambleError, Refusal, Reply, Role, could_be_preamble},
    sys::{self, Interest, PollEntry, Waker},
    threads,
};

/// Connections taken from one listener before the others have their turn.
const ACCEPT_BURST: usize = 64;
/// What `preamble_timeout` is cut to, so that the clock can always name the deadline.
const LONGEST_PREAMBLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// What connections may take from us before they have shown a preamble.
#[derive(Debug, Clone)]
pub struct AcceptLimits {
    /// Connections that may be without a complete preamble at once; the oldest is dropped for the next one.
    pub half_open_max: usize,
    /// Time for a preamble to arrive, from when the connection was taken.
    pub preamble_timeout: Duration,
    /// How long to leave the listeners alone when the system has no descriptor or memory for another connection.
    pub pause: Duration,
}

impl Default for AcceptLimits {
    fn default() -> Self {
        Self {
            half_open_max: 256,
            preamble_timeout: Duration::from_secs(5),
            pause: Duration::from_millis(100),
        }
    }
}

/// A connection with a valid preamble of the role that its listener serves. Dropping it closes it without an answer.
#[derive(Debug)]
pub struct Incoming {
    /// What the other side said about itself.
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
    pub fn accept(self) -> io::Result<Conn> {
        send_reply(&self.conn, Reply::Accepted)?;
        Ok(self.conn)
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
}

impl Acceptor {
    /// Starts to take connections from `listeners`, each of which serves one role and checks; that for data takes
    /// probes, too. A connection of another role is refused, and what is no preamble is closed, without `handler`
    /// seeing it.
    pub fn spawn(
        listeners: Vec<(Role, Listener)>,
        limits: AcceptLimits,
        handler: Handler,
    ) -> io::Result<Self> {
        let ports = listeners.iter().map(|(_, listener)| listener.local_port()).collect();
        let waker = Waker::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut work = Work {
            listeners,
            limits,
            handler,
            waker: waker.clone(),
            stop: Arc::clone(&stop),
            half_open: VecDeque::new(),
            paused_until: None,
        };
        let thread = threads::spawn("acceptor", move || work.run())?;
        Ok(Self { ports, waker, stop, thread_id: thread.thread().id(), thread: Mutex::new(Some(thread)) })
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

/// A connection whose preamble is not complete.
struct HalfOpen {
    conn: Conn,
    remote_addr: SocketAddr,
    role: Role,
    deadline: Instant,
    bytes: [u8; PREAMBLE_BYTES],
    have: usize,
}

enum Progress {
    Waiting,
    Complete,
    Hopeless(&'static str),
}

struct Work {
    listeners: Vec<(Role, Listener)>,
    limits: AcceptLimits,
    handler: Handler,
    waker: Waker,
    stop: Arc<AtomicBool>,
    /// In the order in which they came, which is also the order of their deadlines.
    half_open: VecDeque<HalfOpen>,
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
            self.read_preambles(&ready.half_open);
            self.drop_expired();
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
        entries.extend(self.half_open.iter().map(|half| half.conn.poll_entry(Interest::Read)));
        let first_to_expire = self.half_open.front().map(|half| half.deadline);
        let deadline = [first_to_expire, self.paused_until].into_iter().flatten().min();
        sys::poll_many(&mut entries, deadline)?;
        let mut flags = entries.iter().map(|entry| entry.readiness().any());
        let woken = flags.next().unwrap_or(false);
        let listeners = flags.by_ref().take(listening.len()).enumerate();
        let listeners = listeners.filter_map(|(i, ready)| ready.then_some(i)).collect();
        Ok(Ready { woken, listeners, half_open: flags.collect() })
    }

    /// Reads from those half-open connections for which `ready` is set.
    fn read_preambles(&mut self, ready: &[bool]) {
        let mut waiting = VecDeque::with_capacity(self.half_open.len());
        for (i, mut half) in std::mem::take(&mut self.half_open).into_iter().enumerate() {
            if !ready.get(i).copied().unwrap_or(false) {
                waiting.push_back(half);
                continue;
            }
            match half.read() {
                Progress::Waiting => waiting.push_back(half),
                Progress::Complete => self.finish(half),
                Progress::Hopeless(why) => log::debug!("closing connection from {}: {why}", half.remote_addr),
            }
        }
        self.half_open = waiting;
    }

    fn drop_expired(&mut self) {
        let now = Instant::now();
        while self.half_open.front().is_some_and(|half| half.deadline <= now) {
            if let Some(half) = self.half_open.pop_front() {
                log::debug!("closing connection from {}: no complete preamble in time", half.remote_addr);
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
        let deadline = Instant::now() + self.limits.preamble_timeout.min(LONGEST_PREAMBLE_TIMEOUT);
        let mut half = HalfOpen { conn, remote_addr, role, deadline, bytes: [0; PREAMBLE_BYTES], have: 0 };
        // Often the preamble has come along with the connection.
        match half.read() {
            Progress::Waiting => {}
            Progress::Complete => return self.finish(half),
            Progress::Hopeless(why) => return log::debug!("closing connection from {remote_addr}: {why}"),
        }
        if self.half_open.len() >= self.limits.half_open_max.max(1)
            && let Some(oldest) = self.half_open.pop_front()
        {
            log::debug!("closing connection from {}: too many without a preamble", oldest.remote_addr);
        }
        self.half_open.push_back(half);
    }

    fn finish(&mut self, half: HalfOpen) {
        if self.stop.load(Ordering::Acquire) {
            return refuse(&half.conn, half.remote_addr, Refusal::ShuttingDown);
        }
        let preamble = match Preamble::decode(&half.bytes) {
            Ok(preamble) if serves(half.role, preamble.role) => preamble,
            Ok(_) => return refuse(&half.conn, half.remote_addr, Refusal::WrongRole),
            Err(error) => return half.reject(error),
        };
        let Ok(local_addr) = half.conn.local_addr() else { return };
        let HalfOpen { conn, remote_addr, .. } = half;
        let incoming = Incoming { preamble, conn, remote_addr, local_addr: canonical(local_addr) };
        // One connection that the handler cannot cope with must not end the service for all others.
        if catch_unwind(AssertUnwindSafe(|| (self.handler)(incoming))).is_err() {
            log::error!("the handler of incoming connections panicked over the one from {remote_addr}");
        }
    }
}

/// Probes measure the way that data takes, so they come to the same port. Every port tells who listens there.
fn serves(listener: Role, role: Role) -> bool {
    role == listener || role == Role::Check || (listener, role) == (Role::Data, Role::Probe)
}

struct Ready {
    woken: bool,
    listeners: Vec<usize>,
    half_open: Vec<bool>,
}

impl HalfOpen {
    /// Reads what has arrived, never more than the preamble.
    fn read(&mut self) -> Progress {
        loop {
            match self.conn.try_recv(&mut self.bytes[self.have..]) {
                Ok(0) => return Progress::Hopeless("it ended inside the preamble"),
                Ok(n) => self.have += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Waiting,
                Err(_) => return Progress::Hopeless("it broke inside the preamble"),
            }
            if !could_be_preamble(&self.bytes[..self.have]) {
                return Progress::Hopeless("it does not speak this protocol");
            }
            if self.have == PREAMBLE_BYTES {
                return Progress::Complete;
            }
        }
    }

    fn reject(&self, error: PreambleError) {
        match error.refusal() {
            Some(reason) => refuse(&self.conn, self.remote_addr, reason),
            None => log::debug!("closing connection from {}: {error}", self.remote_addr),
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
