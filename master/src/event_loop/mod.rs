//! The loop that moves bytes between clients and the state machine, on one thread. It decides nothing about the run: it
//! reads, decodes, hands over, writes, and tells the time.
//!
//! No client can stop it: every socket is non-blocking, each is read for a bounded number of bytes per turn, what waits
//! for one is bounded, and a preamble has a deadline of its own.

mod admin;
mod apply;
mod conn;
mod flight;
mod half_open;
mod inbox;
mod planner;
mod queue;
mod reach;
mod read;

pub(crate) use admin::AdminSocket;

use crate::state::{Action, Input, MasterState, Timestamp};
use admin::Admin;
use conn::Conn;
use mio::{Events, Interest, Poll, Token, Waker};
use pccl_flight::Recorder;
use pccl_protocol::{
    RunId,
    limits::{MAX_PEERS, MAX_PENDING_PEERS},
};
use planner::Planner;
use reach::Reacher;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
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
const ADMIN: Token = Token(usize::MAX - 2);
const EVENTS_PER_POLL: usize = 1024;
/// Connections whose preamble is incomplete; one more and the oldest is dropped.
const MAX_HALF_OPEN: usize = 256;
/// Connections whose preamble is complete. Room for clients that are being refused beside a full run.
const MAX_CLIENTS: usize = MAX_PEERS + MAX_PENDING_PEERS + 256;
/// The loop wakes up this often even if nothing happens, so that a time in which the process stood still is measured
/// to this accuracy.
const PULSE: Duration = Duration::from_millis(500);
/// A wake-up that is later than this is a gap: the clients' silence in that time says nothing about them.
const GAP: Duration = Duration::from_secs(1);
/// Shortest wait, so that a deadline that cannot be met never makes the loop spin.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// Rounds of reading before silence is judged. One would do for all that is in the socket buffers of well-behaved
/// clients; a client that sends without end must not hold up the judgement of others.
const DRAIN_ROUNDS: usize = 64;
/// Time that a stopping loop spends on telling its clients.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that they have to close once all has been written to them.
const STOP_LINGER: Duration = Duration::from_secs(1);

/// What the loop runs with.
pub(crate) struct Setup {
    pub(crate) listeners: Vec<std::net::TcpListener>,
    /// The operator's socket, if there is one.
    pub(crate) admin: Option<AdminSocket>,
    pub(crate) state: MasterState,
    pub(crate) run: RunId,
    /// Keeps the last events.
    pub(crate) recorder: Arc<Recorder>,
    /// Time for a preamble.
    pub(crate) preamble_timeout: Duration,
    /// Bytes that may wait for one client.
    pub(crate) queue_limit_bytes: usize,
}

/// The loop and everything that it owns.
pub(crate) struct EventLoop {
    poll: Poll,
    stop: Arc<AtomicBool>,
    /// Gone once the loop is stopping.
    listeners: Option<Listeners>,
    admin: Option<Admin>,
    state: MasterState,
    observer: flight::Observer,
    planner: Planner,
    reacher: Reacher,
    run: RunId,
    preamble_timeout: Duration,
    queue_limit_bytes: usize,
    started: Instant,
    /// When the loop last looked at its events, for the measurement of gaps.
    last_turn: Instant,
    stop_deadline: Option<Instant>,
    next_key: u64,
    conns: BTreeMap<u64, Conn>,
    half_open: BTreeSet<u64>,
    /// Connections that are being closed.
    closing: BTreeSet<u64>,
    /// Connections that may have bytes to read.
    readable: VecDeque<u64>,
    /// Connections to which something may be written.
    dirty: BTreeSet<u64>,
    /// The state has taken facts in whose consequences it has not drawn.
    unsettled: bool,
    actions: Vec<Action>,
    buffer: Vec<u8>,
}

/// Wakes the loop up to stop it.
#[derive(Clone)]
pub(crate) struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Asks the loop to stop. Takes no lock, allocates nothing.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // The flag is looked at every `PULSE` anyway, so a failed wake-up costs half a second and nothing else.
        let _ = self.waker.wake();
    }
}

impl EventLoop {
    /// Prepares a loop; [`run`](Self::run) runs it.
    pub(crate) fn new(setup: Setup) -> io::Result<(Self, Stopper)> {
        let poll = Poll::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let listeners = Listeners::register(setup.listeners, poll.registry(), LISTENERS)?;
        let admin = setup.admin.map(|socket| Admin::register(socket, poll.registry(), ADMIN)).transpose()?;
        let now = Instant::now();
        let event_loop = Self {
            poll,
            stop: Arc::clone(&stop),
            listeners: Some(listeners),
            admin,
            state: setup.state,
            observer: flight::Observer::new(setup.recorder),
            planner: Planner::new(Arc::clone(&waker)),
            reacher: Reacher::new(setup.run, Arc::clone(&waker)),
            run: setup.run,
            preamble_timeout: setup.preamble_timeout,
            queue_limit_bytes: setup.queue_limit_bytes,
            started: now,
            last_turn: now,
            stop_deadline: None,
            next_key: 1,
            conns: BTreeMap::new(),
            half_open: BTreeSet::new(),
            closing: BTreeSet::new(),
            readable: VecDeque::new(),
            dirty: BTreeSet::new(),
            unsettled: false,
            actions: Vec::new(),
            buffer: vec![0; read::BUFFER_BYTES],
        };
        Ok((event_loop, Stopper { stop, waker }))
    }

    /// Runs until it is stopped and its clients are told, or until the system's event queue fails.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_POLL);
        self.last_turn = Instant::now();
        loop {
            let wait = self.wait();
            self.wait_for_events(&mut events, wait)?;
            self.notice_gap(wait);
            self.begin_stop();
            self.accept_turn();
            self.read_turn();
            self.planner.take_answers().into_iter().for_each(|answer| self.take(answer));
            self.reacher.take_answers().into_iter().for_each(|answer| self.take(answer));
            self.admin_turn();
            self.settle();
            self.tick(&mut events)?;
            self.expire();
            self.flush_dirty();
            if self.has_stopped() {
                return Ok(());
            }
        }
    }

    /// How long to wait for events at most.
    fn wait(&self) -> Duration {
        let can_accept = self.listeners.as_ref().is_some_and(Listeners::is_ready);
        if can_accept || !self.readable.is_empty() || !self.dirty.is_empty() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let of_state = self.state.next_deadline().map(|deadline| self.instant(deadline));
        let of_conns = self.limited().filter_map(|(_, conn)| conn.deadline());
        let of_admin = self.admin.as_ref().and_then(Admin::deadline);
        let of_accept = self.listeners.as_ref().and_then(Listeners::deadline);
        let earliest =
            of_conns.chain(of_state).chain(of_accept).chain(of_admin).chain(self.stop_deadline).min();
        earliest.map_or(PULSE, |deadline| deadline.saturating_duration_since(now)).clamp(SHORTEST_WAIT, PULSE)
    }

    /// Waits and sorts what happened. A signal handler of the host program that interrupts the wait ends it early.
    fn wait_for_events(&mut self, events: &mut Events, wait: Duration) -> io::Result<()> {
        match self.poll.poll(events, Some(wait)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        for event in events.iter() {
            match event.token() {
                // The operator's socket is looked at in every turn.
                WAKER | ADMIN => {}
                LISTENERS => {
                    if let Some(listeners) = &mut self.listeners {
                        listeners.set_ready();
                    }
                }
                Token(token) => {
                    let key = token as u64;
                    if event.is_writable() {
                        self.dirty.insert(key);
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.mark_readable(key);
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts a connection into the list of those that may have bytes to read.
    fn mark_readable(&mut self, key: u64) {
        if let Some(conn) = self.conns.get_mut(&key)
            && !conn.listed
        {
            conn.listed = true;
            self.readable.push_back(key);
        }
    }

    /// Tells the state if the loop stood still, be it that the process was stopped or that the machine was busy.
    fn notice_gap(&mut self, waited: Duration) {
        let now = Instant::now();
        let due = self.last_turn + waited;
        self.last_turn = now;
        let late = now.saturating_duration_since(due);
        if late <= GAP {
            return;
        }
        log::warn!("the master stood still for {} ms; no client is blamed for that time", late.as_millis());
        for conn in self.conns.values_mut() {
            conn.extend_deadline(late);
        }
        self.input(Input::LoopGap(late));
    }

    /// Lets the state act if one of its deadlines has passed. Before that, everything that clients have sent is read:
    /// a sign of life that lies in a socket buffer counts.
    fn tick(&mut self, events: &mut Events) -> io::Result<()> {
        if !self.tick_is_due() {
            return Ok(());
        }
        for _ in 0..DRAIN_ROUNDS {
            self.wait_for_events(events, Duration::ZERO)?;
            if self.readable.is_empty() {
                break;
            }
            self.read_turn();
        }
        self.settle();
        // Packets may have moved the deadline.
        if self.tick_is_due() {
            self.input(Input::Tick);
        }
        Ok(())
    }

    fn tick_is_due(&self) -> bool {
        self.state.next_deadline().is_some_and(|deadline| deadline <= self.now())
    }

    /// Connections whose time is limited: before they are clients, and after.
    fn limited(&self) -> impl Iterator<Item = (u64, &Conn)> {
        let keys = self.half_open.iter().chain(&self.closing);
        keys.filter_map(|key| Some((*key, self.conns.get(key)?)))
    }

    /// Drops connections whose time is over.
    fn expire(&mut self) {
        let now = Instant::now();
        let over = |conn: &Conn| conn.deadline().is_some_and(|deadline| deadline <= now);
        let keys: Vec<u64> = self.limited().filter(|(_, conn)| over(conn)).map(|(key, _)| key).collect();
        for key in keys {
            if self.half_open.contains(&key) {
                log::info!("{}: no complete preamble in time, dropped", self.conns[&key].remote);
            }
            self.remove(key);
        }
    }

    /// Accepts new connections.
    fn accept_turn(&mut self) {
        let now = Instant::now();
        let Some(listeners) = &mut self.listeners else { return };
        for (mut stream, remote) in listeners.accept(now) {
            // A socket of both families shows IPv4 addresses in their IPv6 form.
            let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
            let key = self.next_key;
            self.next_key += 1;
            let registered = stream.send_at_once().and_then(|()| {
                // Both at once: events are edges here, and each edge is remembered in `readable` or `dirty`.
                self.poll.registry().register(
                    &mut stream,
                    Token(key as usize),
                    Interest::READABLE | Interest::WRITABLE,
                )
            });
            if let Err(error) = registered {
                log::debug!("{remote}: connection lost right after it was accepted: {error}");
                continue;
            }
            self.conns.insert(key, Conn::new(stream, remote, now + self.preamble_timeout));
            self.half_open.insert(key);
            if self.half_open.len() > MAX_HALF_OPEN
                && let Some(oldest) = self.half_open.first().copied()
            {
                log::info!(
                    "{}: dropped, too many connections without a preamble",
                    self.conns[&oldest].remote
                );
                self.remove(oldest);
            }
        }
    }

    /// Forgets a connection; its socket closes.
    fn remove(&mut self, key: u64) -> Option<Conn> {
        self.half_open.remove(&key);
        self.closing.remove(&key);
        self.dirty.remove(&key);
        let mut conn = self.conns.remove(&key)?;
        // Closing the socket takes it out of the event queue as well, so a failure here changes nothing.
        let _ = self.poll.registry().deregister(&mut conn.stream);
        Some(conn)
    }

    /// The state's time.
    fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// The instant of a time of the state's.
    fn instant(&self, at: Timestamp) -> Instant {
        let far = Duration::from_secs(86_400 * 365);
        self.started + Duration::from_micros(at.0).min(self.started.elapsed() + far)
    }
}
