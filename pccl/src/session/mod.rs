//! One connected life of a communicator, from registration to the end: its threads and what they share.
//!
//! Threads, besides those of the links: the control connection's RX thread ([`control`]), one that sends beats
//! ([`beat`]), the conductor ([`conductor`]), which keeps the ring connected, and the acceptor. None of them waits for
//! the caller, and none holds a lock while it waits for the network, but for the one that serialises sends to the
//! master.

pub(crate) mod backups;
mod beat;
mod conductor;
mod control;
mod edges;
pub(crate) mod links;
mod listen;
mod probe;
mod reach;
mod stall;
pub(crate) mod status;
mod waiting;

use crate::{
    ConnectCause, Error, LossCause, Reason,
    collective::{op::Op, table::OpTable},
    config::Config,
    flight,
    state::{server::StateServer, source::SourceWatch},
    world::Known,
};
use backups::BackupPool;
use crossbeam_channel::Sender;
use links::Links;
use parking_lot::{Condvar, Mutex};
use pccl_flight::{Event, Recorder, What};
use pccl_protocol::{
    Algorithm, C2m, CallKind, KickReason, M2c, Nothing, PeerId, PreviousIdentity, Registered, RunId, limits,
};
use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use threadpark::Unparker;
use tinysockets::{
    acceptor::Acceptor,
    conn::Conn,
    preamble::{Preamble, Role},
    queued::{QueuedConfig, QueuedSocket, RecvError},
};

/// Stack of our threads.
pub(crate) const STACK_BYTES: usize = 256 << 10;
/// Packets of the master that may wait to be fetched by a caller.
const INBOX_LIMIT: usize = 1024;
/// How long a packet to the master may take to be written.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a polite leave waits for the master's answer.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The master dropped this peer, and said why.
    Kicked(KickReason),
    /// The connection to the master is gone.
    MasterLost(Reason<LossCause>),
    /// This side closed it.
    Closed,
}

impl End {
    pub(crate) fn to_error(&self) -> Error {
        match self {
            Self::Kicked(reason) => Error::Kicked(reason.clone()),
            Self::MasterLost(reason) => Error::MasterLost(reason.clone()),
            Self::Closed => Error::NotConnected,
        }
    }

    /// How the master was lost, for an operation whose outcome is so unknown.
    pub(crate) fn loss(&self) -> Reason<LossCause> {
        let kind = match self {
            Self::MasterLost(reason) => return reason.clone(),
            Self::Kicked(reason) => LossCause::Dropped(reason.code),
            Self::Closed => LossCause::Left,
        };
        Reason::new(kind, self.to_string())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_error())
    }
}

/// Who this peer is in the run, and what the master said about the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) run: RunId,
    pub(crate) peer: PeerId,
    /// A peer that is silent for this long is dropped.
    pub(crate) peer_timeout: Duration,
}

impl Identity {
    /// That of a peer that has been registered.
    fn new(registered: &Registered) -> Self {
        let peer_timeout = Duration::from_millis(registered.peer_timeout_ms.clamp(10, 86_400_000));
        Self { run: registered.run, peer: registered.peer, peer_timeout }
    }
}

/// What the caller's threads do at the moment.
#[derive(Debug)]
pub(crate) struct Activity {
    /// A call that must be alone, and since when.
    pub(crate) exclusive: Option<(CallKind, Instant)>,
    /// Operations that have been launched and not yet waited for.
    pub(crate) ops: Vec<Arc<Op>>,
    /// No call may begin any more: this peer is about to leave.
    pub(crate) draining: bool,
}

impl Activity {
    /// Refuses a new call of a peer that is about to leave.
    pub(crate) fn check_not_draining(&self) -> Result<(), Error> {
        if self.draining {
            return Err(Error::InvalidUsage("this communicator is being drained to leave the run".into()));
        }
        Ok(())
    }
}

/// What the threads of a session share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) flight: Arc<Recorder>,
    pub(crate) table: Arc<OpTable>,
    pub(crate) links: Links,
    pub(crate) backups: BackupPool,
    pub(crate) server: StateServer,
    pub(crate) source: SourceWatch,
    pub(crate) probes: probe::ProbeDesk,
    /// Questions for the status that have not been answered.
    pub(crate) status: status::StatusDesk,
    pub(crate) activity: Mutex<Activity>,
    /// A call that had to be alone is over; goes with `activity`.
    pub(crate) idle: Condvar,
    identity: OnceLock<Identity>,
    early: listen::Early,
    control: OnceLock<QueuedSocket<M2c>>,
    conductor: Sender<conductor::Event>,
    beat: OnceLock<Unparker>,
    world: Mutex<Arc<Known>>,
    /// The world with the answer to the last call that goes alone, until that call takes it.
    answer_world: Mutex<Option<Arc<Known>>>,
    heard: Mutex<Instant>,
    /// When the last operation of some size began.
    operation_began: Mutex<Option<Instant>>,
    waiting: Mutex<waiting::WaitLog>,
    end: Mutex<Option<End>>,
    requests: AtomicU64,
    moved_bytes: AtomicU64,
}

impl Shared {
    /// Identity in the run; only after registration.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.identity.get().copied()
    }

    /// A number for a new request.
    pub(crate) fn next_request(&self) -> pccl_protocol::RequestId {
        pccl_protocol::RequestId(self.requests.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The world as the master last described it.
    pub(crate) fn world(&self) -> Arc<Known> {
        self.world.lock().clone()
    }

    /// The world with the answer to the call that goes alone; none if that call was not answered.
    pub(crate) fn take_answer_world(&self) -> Option<Arc<Known>> {
        self.answer_world.lock().take()
    }

    /// Why the session ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.lock().clone()
    }

    /// The error of a call that found the session ended.
    pub(crate) fn end_error(&self) -> Error {
        self.end().map_or(Error::NotConnected, |end| end.to_error())
    }

    /// Sends a packet to the master. If that is not possible, the session ends, and with it whatever waits for an
    /// answer.
    pub(crate) fn send(&self, packet: &C2m) {
        let Some(control) = self.control.get() else { return };
        log::trace!("to master: {}", packet.name());
        flight::sent(&self.flight, packet);
        if let Err(error) = control.send(&packet.to_frame(), Some(Instant::now() + SEND_TIMEOUT)) {
            let text = format!("cannot send {} to the master: {error}", packet.name());
            self.finish(End::MasterLost(Reason::new(LossCause::Broken, text).because(error)));
        }
    }

    /// As [`Shared::send`], for threads that must not wait: what cannot be written at once is left to the conductor.
    pub(crate) fn send_soon(&self, packet: C2m) {
        let Some(control) = self.control.get() else { return };
        log::trace!("to master: {}", packet.name());
        flight::sent(&self.flight, &packet);
        match control.send(&packet.to_frame(), Some(Instant::now())) {
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                let _ = self.conductor.send(conductor::Event::Send(packet));
            }
            // A connection that has ended tells everybody itself.
            _ => {}
        }
    }

    /// Reads what the master sends on the calling thread, until `done` or `deadline`. May return earlier: another
    /// thread may be at it, or there may be nothing more to read.
    pub(crate) fn read_until(&self, deadline: Option<Instant>, done: impl FnMut() -> bool) {
        if let Some(control) = self.control.get() {
            control.read_until(deadline, done);
        }
    }

    /// Has the thread in [`Shared::read_until`] look whether it is done.
    pub(crate) fn interrupt_reader(&self) {
        if let Some(control) = self.control.get() {
            control.interrupt();
        }
    }

    /// Operations go on while no thread waits for them: packets of the master are to be read without delay.
    pub(crate) fn recall_reader(&self) {
        if let Some(control) = self.control.get() {
            control.recall();
        }
    }

    /// Waits for a packet of the master that `pick` takes and does not give back. Bounded by the life of the session,
    /// which ends when the master is silent, and by `deadline`.
    pub(crate) fn receive<T>(
        &self,
        deadline: Option<Instant>,
        pick: impl FnMut(M2c) -> Result<T, M2c>,
    ) -> Result<T, Error> {
        let control = self.control.get().ok_or(Error::NotConnected)?;
        let found = control.recv_match(deadline, pick);
        found.map_err(|error| match self.end() {
            Some(end) => end.to_error(),
            None => match error {
                RecvError::TimedOut => Error::TimedOut {
                    call: CallKind::None,
                    text: "no answer from the master yet".into(),
                    verdict: None,
                },
                RecvError::Closed(reason) => Error::MasterLost(Reason::from(&reason)),
            },
        })
    }

    /// Waits until this peer is a full member of the ring. Before that no other call is possible.
    pub(crate) fn wait_for_admission(&self, deadline: Option<Instant>) -> Result<(), Error> {
        let admitted = self.receive(deadline, |packet| match packet {
            M2c::Admitted(_) => Ok(()),
            other => Err(other),
        });
        self.activity.lock().exclusive = None;
        self.idle.notify_all();
        admitted
    }

    /// This peer is registered, and nobody lets it in: other calls are possible.
    pub(crate) fn enter_without_admission(&self) {
        self.activity.lock().exclusive = None;
        self.idle.notify_all();
        *self.answer_world.lock() = Some(self.world());
    }

    /// Whether this peer still waits for admission.
    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.activity.lock().exclusive, Some((CallKind::Connect, _)))
    }

    /// Throws away answers that nobody waits for any more. Only between calls.
    pub(crate) fn forget_answers(&self) {
        if let Some(control) = self.control.get() {
            while control.recv_match(Instant::now(), |_| Ok(())).is_ok() {}
        }
    }

    /// Ends the session, once: every operation gets its result, every wait ends. Callable from any thread.
    pub(crate) fn finish(&self, end: End) {
        {
            let mut slot = self.end.lock();
            if slot.is_some() {
                return;
            }
            *slot = Some(end.clone());
        }
        match &end {
            End::Closed => log::info!("left the run"),
            other => log::warn!("{other}"),
        }
        flight::ended(&self.flight, &end);
        // Before any operation takes its memory back: a frame that is half sent would be completed with filler, and
        // while the others have not heard of this end, they could take it for data.
        self.links.break_off("the session ended");
        // Also those that are between two votes, and so not in the table.
        let ops = self.activity.lock().ops.clone();
        for op in ops {
            op.ended(&end);
        }
        let _ = self.conductor.send(conductor::Event::Stop);
        if let Some(beat) = self.beat.get() {
            beat.unpark();
        }
        self.server.stop();
        self.probes.stop();
        self.source.keep(|_| false);
        self.status.close();
        if let Some(control) = self.control.get() {
            control.close(&end.to_string());
        }
    }

    /// An operation has begun: the beats that go with it follow. Small ones show nothing of rates, and are in a hurry.
    fn operation_begins(&self, algorithm: Algorithm) {
        if !matches!(algorithm, Algorithm::Ring | Algorithm::Pairwise) {
            return;
        }
        *self.operation_began.lock() = Some(Instant::now());
        if let Some(beat) = self.beat.get() {
            beat.unpark();
        }
    }

    /// Bytes that all operations of this session have moved.
    pub(crate) fn moved_bytes(&self) -> u64 {
        let running: u64 = self.activity.lock().ops.iter().map(|op| op.moved_bytes()).sum();
        self.moved_bytes.load(Ordering::Relaxed) + running
    }

    /// Books the bytes of an operation that is over.
    pub(crate) fn add_moved_bytes(&self, bytes: u64) {
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Why an attempt to register came to nothing.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Another attempt may succeed.
    ForNow(Reason<ConnectCause>),
    /// No attempt will.
    ForGood(Error),
}

impl From<Reason<ConnectCause>> for Refused {
    fn from(reason: Reason<ConnectCause>) -> Self {
        if reason.kind().is_permanent() {
            Self::ForGood(Error::Refused(reason))
        } else {
            Self::ForNow(reason)
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::ForGood(error)
    }
}

/// Connects to the master and introduces itself.
fn dial_master(config: &Config, deadline: Instant) -> Result<Conn, Refused> {
    let preamble = Preamble { group: config.group.0, ..Preamble::new(Role::Control) };
    let dialled = tinysockets::dial::dial_with_preamble(&config.master, &preamble, deadline);
    dialled.map_err(|error| Reason::from(error).into())
}

/// A session and its threads. Dropping it ends the session and joins them.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    acceptor: Acceptor,
    threads: Vec<JoinHandle<()>>,
}

impl Session {
    /// Reaches the master and registers. The peer is not a member yet, see [`Shared::wait_for_admission`].
    pub(crate) fn connect(
        config: Config,
        previous: Option<PreviousIdentity>,
        flight: Arc<Recorder>,
        deadline: Instant,
    ) -> Result<Self, Refused> {
        // First of all: nobody is to take the ports of a peer that is not yet in any run.
        let conn = dial_master(&config, deadline)?;
        flight.record_with(|| Event::new(What::SessionBegan).text(config.master.to_string()));
        let (events, event_source) = crossbeam_channel::unbounded();
        let listeners = listen::bind(&config)?;
        let shared = Arc::new(Shared {
            flight,
            table: Arc::new(OpTable::default()),
            links: Links::default(),
            backups: BackupPool::default(),
            server: StateServer::default(),
            source: SourceWatch::default(),
            probes: probe::ProbeDesk::default(),
            status: status::StatusDesk::default(),
            activity: Mutex::new(Activity {
                exclusive: Some((CallKind::Connect, Instant::now())),
                ops: Vec::new(),
                draining: false,
            }),
            idle: Condvar::new(),
            identity: OnceLock::new(),
            early: listen::Early::default(),
            control: OnceLock::new(),
            conductor: events,
            beat: OnceLock::new(),
            world: Mutex::new(Arc::default()),
            answer_world: Mutex::new(None),
            operation_began: Mutex::new(None),
            heard: Mutex::new(Instant::now()),
            waiting: Mutex::default(),
            end: Mutex::new(None),
            requests: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            config,
        });
        let acceptor = listen::spawn(listeners, &shared)?;
        let mut session = Self { shared, acceptor, threads: Vec::new() };
        session.open_control(conn)?;
        let registered = session.register(deadline, previous)?;
        session.start_threads(&registered, event_source)?;
        Ok(session)
    }

    fn open_control(&self, conn: Conn) -> Result<(), Error> {
        let shared = &self.shared;
        let (tap, on_close) = control::callbacks(shared);
        let config = QueuedConfig {
            name: "control".into(),
            max_frame_bytes: limits::MAX_PACKET_BYTES,
            inbox_limit: INBOX_LIMIT,
            on_close: Some(on_close),
        };
        let socket = QueuedSocket::start(conn, config, tap)
            .map_err(|error| Error::System(Reason::system("control connection", error)))?;
        let _ = shared.control.set(socket);
        // The connection may have ended before it was visible to `finish`.
        if let (Some(end), Some(control)) = (shared.end(), shared.control.get()) {
            control.close(&end.to_string());
        }
        Ok(())
    }

    fn register(&self, deadline: Instant, previous: Option<PreviousIdentity>) -> Result<Registered, Refused> {
        let shared = &self.shared;
        let port = |index| {
            self.acceptor
                .local_port(index)
                .ok_or_else(|| Error::System("a listener has no port".to_owned().into()))
        };
        shared.send(&C2m::Register(pccl_protocol::Register {
            group: shared.config.group,
            advertised_host: shared.config.advertised_host.clone(),
            p2p_port: port(listen::P2P)?,
            state_port: port(listen::STATE)?,
            pool_connections: shared.config.pool_connections,
            name: shared.config.name.clone(),
            previous,
            formed: shared.config.formed,
            alone: shared.config.alone,
            resume: shared.config.offer,
        }));
        shared
            .receive(Some(deadline), |packet| match packet {
                M2c::Registered(registered) => Ok(registered),
                other => Err(other),
            })
            .map_err(|error| match error {
                Error::TimedOut { .. } => {
                    let text =
                        format!("the master at {} does not answer the registration", shared.config.master);
                    Refused::ForNow(Reason::new(ConnectCause::NoAnswer, text))
                }
                Error::Kicked(reason) => Reason::from(&reason).into(),
                Error::MasterLost(reason) => {
                    let master = &shared.config.master;
                    let text = format!(
                        "the connection to the master at {master} broke during the registration: {reason}"
                    );
                    Refused::ForNow(Reason::new(ConnectCause::Broken, text).because(reason))
                }
                other => Refused::ForGood(other),
            })
    }

    fn start_threads(
        &mut self,
        registered: &Registered,
        events: crossbeam_channel::Receiver<conductor::Event>,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        let name = &shared.config.name;
        log::info!("registered as peer {} ({name}) in run {}", registered.peer, registered.run);
        let interval = Duration::from_millis(registered.beat_interval_ms.clamp(10, 60_000));
        let parker = threadpark::Parker::new();
        let _ = shared.beat.set(parker.unparker());
        let for_beat = shared.clone();
        self.threads.push(spawn("pccl-beat", move || beat::run(&for_beat, &parker, interval))?);
        let for_conductor = Arc::downgrade(shared);
        let identity = Identity::new(registered);
        self.threads
            .push(spawn("pccl-conductor", move || conductor::run(&for_conductor, identity, &events))?);
        Ok(())
    }

    /// Leaves the run: tells the master, then ends the session.
    pub(crate) fn leave(&self) {
        if self.shared.end().is_none() {
            self.shared.send(&C2m::Leave(Nothing {}));
            let deadline = Some(Instant::now() + LEAVE_TIMEOUT);
            // The answer ends the session, and with it this wait.
            let _ = self.shared.receive(deadline, Err::<(), _>);
        }
        self.shared.finish(End::Closed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.finish(End::Closed);
        self.acceptor.shutdown();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of the session panicked");
            }
        }
        if let Some(control) = self.shared.control.get() {
            control.close("session over");
        }
        self.shared.server.join();
        self.shared.probes.join();
    }
}

/// Starts one of our threads.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(run)
        .map_err(|error| Error::System(Reason::system(format_args!("cannot start thread {name}"), error)))
}
