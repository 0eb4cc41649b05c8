//! The loop that moves bytes between clients and the state machine, on one thread. It decides nothing about the run: it
//! reads, decodes, hands over, writes, and tells the time.
//!
//! No client can stop it: every socket is non-blocking, each is read for a bounded number of bytes per turn, what waits
//! for one is bounded, and a preamble has a deadline of its own.

mod admin;
mod apply;
mod conn;
mod flight;
mod frame;
mod half_open;
mod inbox;
mod planner;
mod reach;
mod read;

pub(crate) use admin::AdminSocket;

use crate::state::{Action, Input, MasterState, Timestamp};
use admin::Admin;
use conn::Conn;
use pccl_flight::Recorder;
use pccl_protocol::{
    RunId,
    limits::{MAX_PEERS, MAX_PENDING_PEERS},
};
use planner::Planner;
use reach::Reacher;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tinysockets::reactor::{Reactor, Stopper};

/// Connections whose preamble is incomplete; one more and the oldest is dropped.
const MAX_HALF_OPEN: usize = 256;
/// Connections whose preamble is complete. Room for clients that are being refused beside a full run.
const MAX_CLIENTS: usize = MAX_PEERS + MAX_PENDING_PEERS + 256;
/// A wake-up that is later than this is a gap: the clients' silence in that time says nothing about them.
const GAP: Duration = Duration::from_secs(1);
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
    reactor: Reactor,
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
    conns: BTreeMap<u64, Conn>,
    half_open: BTreeSet<u64>,
    /// Connections that are being closed.
    closing: BTreeSet<u64>,
    /// The state has taken facts in whose consequences it has not drawn.
    unsettled: bool,
    actions: Vec<Action>,
    buffer: Vec<u8>,
}

impl EventLoop {
    /// Prepares a loop; [`run`](Self::run) runs it.
    pub(crate) fn new(setup: Setup) -> io::Result<(Self, Stopper)> {
        let mut reactor = Reactor::new(setup.listeners)?;
        let (waker, stopper) = (reactor.waker(), reactor.stopper());
        let admin = setup.admin.map(|socket| Admin::register(socket, &mut reactor)).transpose()?;
        let now = Instant::now();
        let event_loop = Self {
            reactor,
            admin,
            state: setup.state,
            observer: flight::Observer::new(setup.recorder),
            planner: Planner::new(Arc::clone(&waker)),
            reacher: Reacher::new(setup.run, waker),
            run: setup.run,
            preamble_timeout: setup.preamble_timeout,
            queue_limit_bytes: setup.queue_limit_bytes,
            started: now,
            last_turn: now,
            stop_deadline: None,
            conns: BTreeMap::new(),
            half_open: BTreeSet::new(),
            closing: BTreeSet::new(),
            unsettled: false,
            actions: Vec::new(),
            buffer: vec![0; read::BUFFER_BYTES],
        };
        Ok((event_loop, stopper))
    }

    /// Runs until it is stopped and its clients are told, or until the system's event queue fails.
    pub(crate) fn run(mut self) -> io::Result<()> {
        self.last_turn = Instant::now();
        loop {
            let wait = self.wait();
            self.reactor.wait(wait)?;
            self.notice_gap(wait);
            self.begin_stop();
            self.accept_turn();
            self.read_turn();
            self.planner.take_answers().into_iter().for_each(|answer| self.take(answer));
            self.reacher.take_answers().into_iter().for_each(|answer| self.take(answer));
            self.admin_turn();
            self.settle();
            self.tick()?;
            self.expire();
            self.flush_dirty();
            if self.has_stopped() {
                return Ok(());
            }
        }
    }

    /// How long to wait for events at most.
    fn wait(&self) -> Duration {
        let of_state = self.state.next_deadline().map(|deadline| self.instant(deadline));
        let of_conns = self.limited().filter_map(|(_, conn)| conn.deadline());
        let of_admin = self.admin.as_ref().and_then(Admin::deadline);
        let earliest = of_conns.chain(of_state).chain(of_admin).chain(self.stop_deadline).min();
        self.reactor.time_to_wait(earliest)
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
    fn tick(&mut self) -> io::Result<()> {
        if !self.tick_is_due() {
            return Ok(());
        }
        for _ in 0..DRAIN_ROUNDS {
            self.reactor.wait(Duration::ZERO)?;
            if !self.reactor.has_readable() {
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
        for (key, stream, remote) in self.reactor.accept(now) {
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
        let mut conn = self.conns.remove(&key)?;
        self.reactor.remove(key, &mut conn.stream);
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
