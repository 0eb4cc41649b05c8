//! A connection whose packets are sorted: some are dealt with at once, the others wait for a caller that asks for them.
//!
//! One thread reads: one of its own, or one that [visits](QueuedSocket::read_until). Each packet is first shown to the
//! *tap* on that thread, which decodes it, once, and may deal with it; the others lie decoded in a bounded inbox, from
//! which any number of threads take what they wait for with [`recv_match`](QueuedSocket::recv_match).
//!
//! No wake is lost and no packet is taken twice, because looking through the inbox, taking from it, adding to it and
//! signing up to be woken all happen under one lock. A waiter looks at each packet once: it remembers the number of the
//! last one that it has seen. A new packet wakes all waiters and not one of them, since only each waiter itself can say
//! whether it is the one.

mod reading;
pub mod turns;

use std::{
    collections::VecDeque,
    fmt, io,
    net::{Shutdown, SocketAddr},
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

use parking_lot::Mutex;
use threadpark::{Parker, Unparker};

use crate::{conn::Conn, threads, wire::FrameParser};
use reading::Reading;

/// The treatment of a packet that the tap wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tap<T> {
    /// Nothing more: it has been dealt with.
    Consumed,
    /// This waits in the inbox for somebody to ask for it.
    Keep(T),
    /// It has no place here: the connection is closed, for the reason given.
    Close(String),
}

/// Sees every packet (kind and body) first, on the reading thread. While it runs nothing else is received.
pub type TapFn<T> = Box<dyn FnMut(u16, &[u8]) -> Tap<T> + Send>;
/// Is told once why the connection ended, on the reading thread, after all waiters have been woken.
pub type OnClose = Box<dyn FnOnce(&CloseReason) + Send>;

/// How a [`QueuedSocket`] is to be set up.
pub struct QueuedConfig {
    /// Name of the reading thread.
    pub name: String,
    /// Longest packet taken, kind and body, in bytes.
    pub max_frame_bytes: usize,
    /// Most packets that may wait in the inbox; one more closes the connection.
    pub inbox_limit: usize,
    /// Called when the connection has ended.
    pub on_close: Option<OnClose>,
}

/// Why a connection ended. The first cause is kept; a later one does not replace it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The other side closed the connection.
    #[error("the other side closed the connection")]
    Eof,
    /// The system reported an error.
    #[error("the connection broke: {0}")]
    Io(String),
    /// Packets came in that nobody asked for.
    #[error("more than {0} packets were waiting that nobody asked for")]
    InboxOverflow(usize),
    /// The connection ended in the middle of a packet, of which this number of bytes had come.
    #[error("the connection ended inside a packet, {0} bytes of it had arrived")]
    Cut(usize),
    /// The other side sent bytes that are no packet.
    #[error("the other side sent a malformed packet: {0}")]
    Malformed(String),
    /// The tap found a packet that has no place here.
    #[error("a packet was out of place: {0}")]
    Rejected(String),
    /// Closed on this side.
    #[error("closed on this side: {0}")]
    Local(String),
}

impl CloseReason {
    /// Whether it says nothing of either side: something between them may have ended the connection.
    #[must_use]
    pub const fn may_be_the_way(&self) -> bool {
        match self {
            Self::Eof | Self::Io(_) | Self::Cut(_) => true,
            Self::InboxOverflow(_) | Self::Malformed(_) | Self::Rejected(_) | Self::Local(_) => false,
        }
    }
}

/// Why there is no packet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// The deadline passed.
    #[error("no matching packet arrived in time")]
    TimedOut,
    /// The connection has ended, and none of the packets that came before is a match.
    #[error(transparent)]
    Closed(#[from] CloseReason),
}

/// A connection with a reading thread and an inbox of packets that are `T` once decoded. Shared by reference between
/// threads; dropping it closes it.
pub struct QueuedSocket<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    remote_addr: SocketAddr,
    local_addr: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<T> {
    conn: Conn,
    /// Held while a packet is being sent, so that packets do not mix.
    send_turn: Mutex<()>,
    state: Mutex<State<T>>,
    reading: Reading<T>,
}

struct State<T> {
    inbox: VecDeque<Packet<T>>,
    inbox_limit: usize,
    /// Number of the next packet.
    next_number: u64,
    waiters: Vec<(u64, Unparker)>,
    next_waiter: u64,
    closed: Option<CloseReason>,
}

struct Packet<T> {
    number: u64,
    /// Missing only while somebody looks at it, under the lock.
    content: Option<T>,
}

impl<T: Send + 'static> QueuedSocket<T> {
    /// Starts reading from `conn`.
    pub fn start(conn: Conn, config: QueuedConfig, tap: TapFn<T>) -> io::Result<Self> {
        Self::start_after(conn, config, tap, None)
    }

    /// As [`QueuedSocket::start`], for a connection that takes the place of one that has ended: what waits in its inbox
    /// is moved to this one.
    pub fn start_after(
        conn: Conn,
        config: QueuedConfig,
        tap: TapFn<T>,
        before: Option<&Self>,
    ) -> io::Result<Self> {
        let QueuedConfig { name, max_frame_bytes, inbox_limit, on_close } = config;
        let (remote_addr, local_addr) = (conn.peer_addr()?, conn.local_addr()?);
        let parker = Parker::new();
        let parser = FrameParser::new(max_frame_bytes);
        let reading = Reading::new(parker.unparker(), parser, tap, on_close)?;
        let inbox = before.map(|before| std::mem::take(&mut before.shared.state.lock().inbox));
        let state = Mutex::new(State::new(inbox.unwrap_or_default(), inbox_limit));
        let shared = Arc::new(Shared { conn, send_turn: Mutex::new(()), state, reading });
        let own = Arc::clone(&shared);
        let thread = threads::spawn(&name, move || own.reading.run(&own, &parker))?;
        Ok(Self { shared, remote_addr, local_addr, thread: Mutex::new(Some(thread)) })
    }

    /// Reads on the calling thread, which so need not be woken by another one, until `done` says that what it waits for
    /// is there, `deadline` has passed, or the connection has ended; the tap runs on this thread meanwhile. Returns at
    /// once if another thread does so already. `done` is asked after everything that arrives and after each
    /// [`interrupt`](Self::interrupt).
    ///
    /// For a few milliseconds afterwards nobody reads, in expectation of the next such call, unless somebody calls
    /// [`recall`](Self::recall) or waits in [`recv_match`](Self::recv_match).
    pub fn read_until(&self, deadline: impl Into<Option<Instant>>, done: impl FnMut() -> bool) {
        self.shared.reading.visit(&self.shared, deadline.into(), done);
    }

    /// Has the thread in [`read_until`](Self::read_until), if there is one, ask whether it is done.
    pub fn interrupt(&self) {
        self.shared.reading.interrupt();
    }

    /// Has the socket's own thread read again, if no thread is in [`read_until`](Self::read_until).
    pub fn recall(&self) {
        self.shared.reading.recall();
    }

    /// Sends `bytes`, which are one or more whole frames, undivided by what other threads send. Waits while the socket
    /// buffer is full or somebody else sends, until `deadline` (`None`: for ever).
    ///
    /// `TimedOut` before the first byte leaves the connection as it was; in the middle of the frames it closes it,
    /// since nothing behind half a frame could be understood. After the end of the connection the error is
    /// `NotConnected` and carries the [`CloseReason`].
    ///
    /// If the other side has gone, what it sent before is still read, and the end is known when that has come.
    pub fn send(&self, bytes: &[u8], deadline: impl Into<Option<Instant>>) -> io::Result<()> {
        let deadline = deadline.into();
        let turn = match deadline {
            Some(deadline) => self.shared.send_turn.try_lock_until(deadline),
            None => Some(self.shared.send_turn.lock()),
        };
        let Some(_turn) = turn else {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for other senders"));
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some(reason) = self.close_reason() {
                return Err(io::Error::new(io::ErrorKind::NotConnected, reason));
            }
            match self.shared.conn.send_some(rest, deadline) {
                Ok(n) => rest = &rest[n..],
                Err(error)
                    if error.kind() == io::ErrorKind::TimedOut
                        && rest.len() == bytes.len()
                        && !self.shared.conn.is_within_record() =>
                {
                    return Err(error);
                }
                Err(error) => {
                    let reason = CloseReason::Io(format!("sending failed: {error}"));
                    if is_gone(&error) && self.close_reason().is_none() {
                        // Packets that the other side sent before can still be read; behind it is the end.
                        self.recall();
                        return Err(io::Error::new(error.kind(), reason));
                    }
                    return Err(io::Error::new(error.kind(), self.shared.end(reason)));
                }
            }
        }
        Ok(())
    }

    /// Takes the first waiting packet of which `pick` makes something, and waits for one until `deadline` (`None`: for
    /// ever). A packet that `pick` gives back stays for others, in its order. May be called from several threads at
    /// once; each packet goes to one of them.
    ///
    /// `pick` sees each packet once. It runs under the lock of the inbox, so it must be quick and must not use this
    /// socket. Packets that had arrived before the other side closed can still be taken; after [`close`](Self::close)
    /// nothing can.
    pub fn recv_match<R>(
        &self,
        deadline: impl Into<Option<Instant>>,
        mut pick: impl FnMut(T) -> Result<R, T>,
    ) -> Result<R, RecvError> {
        let deadline = deadline.into();
        let mut first_unseen = 0;
        let mut waiting: Option<Waiting<'_, T>> = None;
        loop {
            let mut state = self.shared.state.lock();
            if let Some(found) = state.take_match(&mut first_unseen, &mut pick) {
                drop(state);
                return Ok(found);
            }
            if let Some(reason) = &state.closed {
                return Err(RecvError::Closed(reason.clone()));
            }
            let is_first = waiting.is_none();
            let waiting = waiting.get_or_insert_with(|| Waiting::sign_up(&self.shared, &mut state));
            drop(state);
            if is_first {
                self.recall();
            }
            match deadline {
                None => waiting.parker.park(),
                Some(deadline) => {
                    // A wake that comes together with the deadline still gets its look at the inbox.
                    if !waiting.parker.park_until(deadline) {
                        return Err(RecvError::TimedOut);
                    }
                }
            }
        }
    }

    /// Ends the connection, wakes everybody who waits on it, drops what lies in the inbox, and waits until nobody reads
    /// any more; called on a thread that reads (from the tap or `on_close`) it does not wait. May be called repeatedly.
    ///
    /// The caller must not hold a lock that the tap or `on_close` needs.
    pub fn close(&self, reason: &str) {
        self.shared.end(CloseReason::Local(reason.to_owned()));
        self.shared.state.lock().inbox.clear();
        if self.shared.reading.is_read_here() {
            return;
        }
        // The lock is kept while joining, so that a second caller waits too. The thread catches all panics.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
        self.shared.reading.wait_until_over();
    }

    /// Ends the connection as the system would if it broke, and does not wait for the reader.
    pub fn break_off(&self, why: &str) {
        self.shared.end(CloseReason::Io(why.to_owned()));
    }

    /// Why the connection ended; `None` while it has not.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.shared.state.lock().closed.clone()
    }

    /// Number of packets in the inbox.
    #[must_use]
    pub fn waiting_packets(&self) -> usize {
        self.shared.state.lock().inbox.len()
    }

    /// The address of the other side.
    #[must_use]
    pub fn remote_addr(&self) -> SocketAddr {
        self.remote_addr
    }

    /// The address of this side.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

impl<T: Send + 'static> Drop for QueuedSocket<T> {
    fn drop(&mut self) {
        self.close("no longer in use");
    }
}

impl<T: Send + 'static> fmt::Debug for QueuedSocket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedSocket").field("remote_addr", &self.remote_addr).finish_non_exhaustive()
    }
}

/// Whether a failed send says that the other side has closed the connection, or that the way to it is broken: then no
/// more than what has come already can be read.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
    )
}

/// A waiter on the list of those to be woken; dropping it takes it off.
struct Waiting<'a, T> {
    shared: &'a Shared<T>,
    id: u64,
    parker: Parker,
}

impl<'a, T> Waiting<'a, T> {
    fn sign_up(shared: &'a Shared<T>, state: &mut State<T>) -> Self {
        let parker = Parker::new();
        let id = state.next_waiter;
        state.next_waiter += 1;
        state.waiters.push((id, parker.unparker()));
        Self { shared, id, parker }
    }
}

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.shared.state.lock().waiters.retain(|(id, _)| *id != self.id);
    }
}

impl<T> State<T> {
    fn new(inbox: VecDeque<Packet<T>>, inbox_limit: usize) -> Self {
        Self {
            next_number: inbox.back().map_or(0, |last| last.number + 1),
            inbox,
            inbox_limit,
            waiters: Vec::new(),
            next_waiter: 0,
            closed: None,
        }
    }

    fn take_match<R>(
        &mut self,
        first_unseen: &mut u64,
        pick: &mut impl FnMut(T) -> Result<R, T>,
    ) -> Option<R> {
        let start = self.inbox.partition_point(|packet| packet.number < *first_unseen);
        *first_unseen = self.next_number;
        for index in start..self.inbox.len() {
            let slot = &mut self.inbox[index].content;
            let Some(packet) = slot.take() else { continue };
            match pick(packet) {
                Ok(found) => {
                    self.inbox.remove(index);
                    return Some(found);
                }
                Err(packet) => *slot = Some(packet),
            }
        }
        None
    }

    fn wake_all(&self) {
        for (_, unparker) in &self.waiters {
            unparker.unpark();
        }
    }
}

impl<T> Shared<T> {
    /// Ends the connection unless it has ended already. Returns the first cause.
    fn end(&self, reason: CloseReason) -> CloseReason {
        let mut state = self.state.lock();
        let first = state.closed.get_or_insert(reason).clone();
        state.wake_all();
        drop(state);
        // Wakes the reader and a sender that waits for room. Fails only if the connection is gone.
        let _ = self.conn.shutdown(Shutdown::Both);
        self.reading.wake_all();
        first
    }

    /// Puts a packet into the inbox.
    fn keep(&self, content: T) -> Result<(), CloseReason> {
        let mut state = self.state.lock();
        // One that has come before the end can still be taken.
        if let Some(reason @ CloseReason::Local(_)) = &state.closed {
            return Err(reason.clone());
        }
        if state.inbox.len() >= state.inbox_limit {
            return Err(CloseReason::InboxOverflow(state.inbox_limit));
        }
        let number = state.next_number;
        state.next_number += 1;
        state.inbox.push_back(Packet { number, content: Some(content) });
        state.wake_all();
        Ok(())
    }
}
