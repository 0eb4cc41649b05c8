//! The loop that moves bytes between clients and the state machine, on one thread. It decides nothing about the run: it
//! reads, decodes, hands over, writes, and tells the time.
//!
//! No client can stop it: every socket is non-blocking, each has a bounded number of bytes and packets per turn, and a
//! turn has a bounded time; what arrives from one, what waits for one, and both of all together are bounded; whoever
//! does not read is dropped; and a preamble has a deadline of its own. The bounds are in [`pccl_protocol::limits`],
//! how often a client may do what in the state, and what strangers may take in [`tinysockets::throttle`].

mod admin;
mod apply;
mod connections;
mod flight;
mod planner;
mod reach;
mod replication;
mod rotation;
mod tickets;

pub(crate) use admin::AdminSocket;
pub(crate) use replication::follower_side::Search;
pub(crate) use replication::replay::Recalled;

use crate::{
    journal::{Journal, Open},
    leadership::Leader,
    origin::Origin,
    relay::RelayNews,
    state::{Action, ClientKey, Input, MasterState, Options, Timestamp},
};
use admin::Admin;
use connections::conn::Conn;
use connections::descriptors::Room;
use connections::large_packets::LargePackets;
use pccl_flight::Recorder;
use pccl_protocol::{
    CopyId, RunId,
    limits::{MAX_PEERS, MAX_PENDING_PEERS},
};
use planner::Planner;
use reach::Reacher;
use replication::follower_side::{Following, draw_copy};
use replication::journal_writer::Replication;
use replication::standby::{Fresh, Own, Standing};
use replication::step_down::Departure;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tickets::TicketIssuer;
use tinysockets::{
    bucket::{Bucket, Lines, Rate},
    key::{RunKeys, RunName},
    reactor::{Reactor, Stopper},
    throttle::{Crowd, LINES_ABOUT_STRANGERS, MAX_HALF_OPEN_OF_NETWORK, Network, Throttle},
    ticket::Lock,
    write_queue::Gauge,
};

/// Connections whose preamble is complete. Room for clients that are being refused beside a full run.
const MAX_CLIENTS: usize = MAX_PEERS + MAX_PENDING_PEERS + 256;
/// A wake-up that is later than this is a gap: the clients' silence in that time says nothing about them.
const GAP: Duration = Duration::from_secs(1);
/// For so long after a gap it is found out who has taken this master for lost.
const AFTER_GAP: Duration = Duration::from_secs(5);
/// Rounds of reading before silence is judged. In each of them every connection has one turn, and one turn would do
/// for what is in the socket buffers of well-behaved clients.
const DRAIN_ROUNDS: usize = 2;
/// How often it is looked at whether connections that are being closed are through.
const LOOK_AT_CLOSING: Duration = Duration::from_millis(20);
/// Lines of the log about those who have registered.
const LINES: Rate = Rate { burst: 4096.0, per_second: 32.0 };
/// Time that a stopping loop spends on telling its clients.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that they have to close once all has been written to them.
const STOP_LINGER: Duration = Duration::from_secs(1);

/// The parts and settings that the loop runs with.
pub(crate) struct Setup {
    /// Whether a master that is asked to stop ends its run although others stand by.
    pub(crate) ends_run: Arc<AtomicBool>,
    pub(crate) listeners: Vec<std::net::TcpListener>,
    /// The operator's socket, if there is one.
    pub(crate) admin: Option<AdminSocket>,
    /// The knowledge of the master in whose place this one goes on, or a state that knows nothing.
    pub(crate) begin: Begin,
    pub(crate) origin: Origin,
    /// Where is written what happens, if it is.
    pub(crate) journal: Option<Journal>,
    /// Others may stand by for this master.
    pub(crate) accepts_standbys: bool,
    /// All clients have to prove that they have one of these, if there are any.
    pub(crate) keys: Option<RunKeys>,
    /// By which other keys become those of this run.
    pub(crate) run_name: RunName,
    /// The news of the relay, if there is one.
    pub(crate) relay: Option<RelayNews>,
    /// Keeps the last events.
    pub(crate) recorder: Arc<Recorder>,
    /// Time for a preamble.
    pub(crate) preamble_timeout: Duration,
    /// Bytes that may wait for one client.
    pub(crate) queue_limit_bytes: usize,
}

/// Where a loop begins.
pub(crate) enum Begin {
    /// A run begins.
    Fresh(Box<MasterState>),
    /// A run goes on.
    Again(Box<Recalled>),
    /// Another master acts, did, or will.
    StandBy(Search, Known),
}

/// The knowledge of a standby when it starts.
pub(crate) enum Known {
    /// No run: this one may come to begin with this.
    Nothing(Box<MasterState>),
    /// Its own knowledge from the time when it acted.
    Copy(Box<Recalled>),
}

/// Why a loop ended that was not stopped.
#[derive(Debug)]
pub(crate) enum LoopEnd {
    /// The event queue of the system failed.
    System(io::Error),
    /// Another master acts; which one.
    Superseded(String),
    /// The journal does not hold all that this master has told; what shows it.
    Outdated(String),
}

impl From<io::Error> for LoopEnd {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
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
    /// The lock that clients have to open with a key.
    lock: Option<Lock>,
    run_name: RunName,
    /// In a run with a key.
    tickets: Option<TicketIssuer>,
    relay: Option<RelayNews>,
    /// Nobody on another machine reaches this master, so nobody there has to reach its peers.
    is_here_only: bool,
    preamble_timeout: Duration,
    queue_limit_bytes: usize,
    started: Instant,
    /// The state's time when this loop was started.
    began_at: Timestamp,
    /// The state's time when it was last given something.
    at: Timestamp,
    replication: Option<Replication>,
    accepts_standbys: bool,
    /// While another master acts.
    standing: Option<Box<Standing>>,
    /// Why the loop ends without being stopped.
    ends_with: Option<LoopEnd>,
    ends_run: Arc<AtomicBool>,
    /// Others know a run that this one does not, and nobody is in that of this one.
    second_run: Option<replication::second_run::SecondRun>,
    /// Since when this master is to go.
    leaving: Option<Instant>,
    /// The operator's connection that waits for an answer.
    operator: Option<u64>,
    /// When the loop last looked at its events, for the measurement of gaps.
    last_turn: Instant,
    /// When the last gap ended.
    slept: Option<Instant>,
    stop_deadline: Option<Instant>,
    conns: BTreeMap<u64, Conn>,
    half_open: Crowd<u64>,
    room: Room,
    throttle: Throttle,
    /// The connection that was read last.
    last_read: u64,
    large: LargePackets,
    /// Clients that have sent more than they may, and when they are read again.
    paced: BTreeMap<u64, Instant>,
    thrown_away: Bucket<Instant>,
    /// Bytes that wait for clients.
    queued: Gauge,
    next_look_at_readers: Instant,
    next_look_at_closing: Instant,
    lines: Lines<Instant>,
    stranger_lines: Lines<Instant>,
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
        let is_loopback = |listener: &std::net::TcpListener| {
            listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
        };
        let is_here_only = setup.keys.is_none() && setup.listeners.iter().all(is_loopback);
        let mut reactor = Reactor::new(setup.listeners)?;
        let (waker, stopper) = (reactor.waker(), reactor.stopper());
        let admin = setup.admin.map(|socket| Admin::register(socket, &mut reactor)).transpose()?;
        let now = Instant::now();
        let run = setup.origin.run;
        let first = MasterState::new(Options::new(run), Box::new(setup.origin.identities()));
        let keeps = setup.journal.is_some() || setup.accepts_standbys;
        let mut event_loop = Self {
            reactor,
            admin,
            state: first,
            observer: flight::Observer::new(setup.recorder),
            planner: Planner::new(Arc::clone(&waker)),
            reacher: Reacher::new(run, waker),
            run,
            lock: setup.keys.clone().map(Lock::of_master),
            run_name: setup.run_name,
            tickets: None,
            relay: setup.relay,
            is_here_only,
            preamble_timeout: setup.preamble_timeout,
            queue_limit_bytes: setup.queue_limit_bytes,
            started: now,
            began_at: Timestamp::default(),
            at: Timestamp::default(),
            replication: None,
            accepts_standbys: setup.accepts_standbys,
            standing: None,
            ends_with: None,
            ends_run: setup.ends_run,
            second_run: None,
            leaving: None,
            operator: None,
            last_turn: now,
            slept: None,
            stop_deadline: None,
            conns: BTreeMap::new(),
            half_open: Crowd::default(),
            room: Room::here(),
            throttle: Throttle::new(now),
            last_read: 0,
            large: LargePackets::default(),
            paced: BTreeMap::new(),
            thrown_away: Bucket::full(&connections::reading::THROWN_AWAY, now),
            queued: Gauge::default(),
            next_look_at_readers: now,
            next_look_at_closing: now,
            lines: Lines::new(LINES, now),
            stranger_lines: Lines::new(LINES_ABOUT_STRANGERS, now),
            closing: BTreeSet::new(),
            unsettled: false,
            actions: Vec::new(),
            buffer: vec![0; connections::reading::BUFFER_BYTES],
        };
        match setup.begin {
            Begin::Fresh(state) => {
                let fresh = Fresh { state, origin: setup.origin };
                event_loop.begin_run(fresh, draw_copy()?, setup.keys, keeps.then_some(setup.journal));
            }
            Begin::Again(recalled) => {
                let leader = Leader::go_on(recalled.past.clone());
                event_loop.go_on_as(*recalled, leader, setup.journal, setup.keys);
                if let Some(replication) = &mut event_loop.replication {
                    replication.recalled = event_loop.conns.keys().copied().collect();
                }
            }
            Begin::StandBy(search, known) => {
                // Nothing is known of a run before that.
                let (known, fresh) = match known {
                    Known::Copy(recalled) => (Some(Following::of(recalled)), None),
                    Known::Nothing(state) => (None, Some(Fresh { state, origin: setup.origin })),
                };
                event_loop.run = known.as_ref().map_or(RunId(0), |known| known.recalled.run());
                let own = Own { fresh, journal: setup.journal, keys: setup.keys };
                event_loop.standing =
                    Some(Box::new(Standing::start(search, known, own, event_loop.reactor.waker())?));
            }
        }
        Ok((event_loop, stopper))
    }

    /// A run begins, led by this master with this copy. Without a place for it, nothing is kept for others.
    fn begin_run(
        &mut self,
        fresh: Fresh,
        copy: CopyId,
        keys: Option<RunKeys>,
        keeps: Option<Option<Journal>>,
    ) {
        let Fresh { state, origin } = fresh;
        self.state = *state;
        self.lead_run(origin.run);
        self.tickets = keys.map(|keys| TicketIssuer::open(&origin, keys));
        self.replication =
            keeps.map(|journal| Replication::new(journal, origin, Open::default(), Leader::new(copy)));
    }

    /// This master leads this run from now on.
    fn lead_run(&mut self, run: RunId) {
        self.run = run;
        self.reacher = Reacher::new(run, self.reactor.waker());
        self.observer.identify(run);
    }

    /// Runs until it is stopped and its clients are told, until another master acts, or until the system's event queue
    /// fails.
    pub(crate) fn run(mut self) -> Result<(), LoopEnd> {
        self.last_turn = Instant::now();
        self.go_on();
        loop {
            let wait = self.wait();
            self.reactor.wait(wait)?;
            self.notice_gap(wait);
            match self.departure() {
                Departure::Stays => {}
                Departure::HandsOver(successors) => {
                    self.hand_over(&successors);
                    return Ok(());
                }
                Departure::EndsRun => self.begin_stop(),
            }
            self.accept_turn();
            self.read_turn();
            self.planner.take_answers().into_iter().for_each(|answer| self.take(answer));
            self.reacher.take_answers().into_iter().for_each(|answer| self.take(answer));
            self.admin_turn();
            self.stand_turn();
            self.settle();
            self.tick()?;
            self.judge_readers();
            self.expire();
            self.judge_standbys();
            self.end_turn();
            self.flush_dirty();
            self.inquire();
            if let Some(end) = self.ends_with.take() {
                return Err(end);
            }
            if self.has_stopped() {
                if let Some(replication) = &mut self.replication {
                    replication.end();
                }
                return Ok(());
            }
        }
    }

    /// How long to wait for events at most.
    fn wait(&self) -> Duration {
        let of_state = self.state.next_deadline().map(|deadline| self.instant(deadline));
        let of_half_open = self.half_open.first().and_then(|key| self.conns.get(&key)?.deadline());
        let of_closing = (!self.closing.is_empty()).then_some(self.next_look_at_closing);
        let of_conns = of_half_open.into_iter().chain(of_closing).chain(self.standing_deadline());
        let of_admin = self.admin.as_ref().and_then(Admin::deadline);
        let of_paced = self.paced.values().min().copied();
        let earliest =
            of_conns.chain(of_paced).chain(of_state).chain(of_admin).chain(self.stop_deadline).min();
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
        self.excuse_standbys(late);
        self.slept = Some(now);
        self.input(Input::LoopGap(late));
    }

    /// Whether this process stood still a moment ago: peers may have taken it for lost.
    fn has_slept(&self) -> bool {
        self.slept.is_some_and(|at| at.elapsed() < AFTER_GAP)
    }

    /// Lets the state act if one of its deadlines has passed. Before that, everything that clients have sent is read:
    /// a sign of life that lies in a socket buffer counts.
    fn tick(&mut self) -> io::Result<()> {
        if !self.tick_is_due() {
            return Ok(());
        }
        for _ in 0..DRAIN_ROUNDS {
            self.reactor.wait(Duration::ZERO)?;
            self.read_all();
        }
        let unread: Vec<u64> = self.large.waiting().chain(self.paced.keys().copied()).collect();
        unread.into_iter().for_each(|key| self.take(Input::Unread { client: ClientKey(key) }));
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

    /// Drops connections whose time is over.
    fn expire(&mut self) {
        let now = Instant::now();
        let is_over = |conn: &Conn| conn.deadline().is_some_and(|deadline| deadline <= now);
        // All have the same time, so the oldest is over first.
        while let Some(key) = self.half_open.first().filter(|key| self.conns.get(key).is_none_or(is_over)) {
            self.log_stranger(key, "no complete preamble or proof of the run key in time, dropped");
            self.remove(key);
        }
        if now >= self.next_look_at_closing {
            self.next_look_at_closing = now + LOOK_AT_CLOSING;
            let over = self.closing.iter().filter(|key| self.conns.get(key).is_none_or(is_over));
            let over: Vec<u64> = over.copied().collect();
            over.into_iter().for_each(|key| drop(self.remove(key)));
        }
    }

    /// Accepts new connections.
    fn accept_turn(&mut self) {
        let now = Instant::now();
        for (key, mut stream, remote) in self.reactor.accept(now) {
            if !self.throttle.take(Network::of(remote.ip()), now) {
                if let Some(more) = self.stranger_lines.next(now) {
                    log::info!("{remote}: dropped, its network begins connections too often{more}");
                }
                self.reactor.remove(key, &mut stream);
                continue;
            }
            let conn = Conn::new(stream, remote, self.lock.clone(), now + self.preamble_timeout);
            self.conns.insert(key, conn);
            self.half_open.add(key, Network::of(remote.ip()));
            self.make_room();
        }
    }

    /// Drops a connection of a stranger if there are too many, after a look at what it has sent by now.
    fn make_room(&mut self) {
        while let Some(key) = self.half_open.one_too_many(self.room.half_open, MAX_HALF_OPEN_OF_NETWORK) {
            let had_opened = self.half_open.has_opened(key);
            self.read_and_remember(key);
            if self.half_open.contains(key) && self.half_open.has_opened(key) == had_opened {
                self.log_stranger(key, "dropped, too many connections have not said whose they are");
                self.remove(key);
            }
        }
    }

    /// A line about somebody of whom it is not known whose connection it is.
    fn log_stranger(&mut self, key: u64, what: &str) {
        if let (Some(more), Some(conn)) = (self.stranger_lines.next(Instant::now()), self.conns.get(&key)) {
            log::info!("{}: {what}{more}", conn.remote);
        }
    }

    /// Forgets a connection; its socket closes.
    fn remove(&mut self, key: u64) -> Option<Conn> {
        self.half_open.remove(key);
        self.closing.remove(&key);
        self.paced.remove(&key);
        if let Some(issuer) = &mut self.tickets {
            issuer.forget(ClientKey(key));
        }
        self.give_room(key);
        if let Some(replication) = &mut self.replication {
            replication.followers.dropped.remove(&key);
            replication.recalled.remove(&key);
        }
        let mut conn = self.conns.remove(&key)?;
        self.reactor.remove(key, &mut conn.stream);
        Some(conn)
    }

    /// The state's time.
    fn now(&self) -> Timestamp {
        self.began_at + self.started.elapsed()
    }

    /// The instant of a time of the state's.
    fn instant(&self, at: Timestamp) -> Instant {
        let far = Duration::from_secs(86_400 * 365);
        self.started + at.since(self.began_at).min(self.started.elapsed() + far)
    }
}
