//! One connected life of a communicator, from registration to the end: its threads and what they share.
//!
//! Threads, besides those of the links: the control connection's RX thread ([`tap`]), one that sends beats
//! ([`beat`]), the conductor ([`conductor`]), which keeps the ring connected, and the acceptor. None of them waits for
//! the caller, and none holds a lock while it waits for the network, but for the one that serialises sends to the
//! master.

mod beat;
mod called;
pub(crate) mod calls;
mod conductor;
mod edge;
mod edges;
mod event;
pub(crate) mod figures;
mod gather;
mod listen;
mod probe;
mod reach;
mod seek;
mod stall;
pub(crate) mod status;
mod tap;
mod waiting;

use crate::{
    ConnectCause, Error, Reason,
    backups::BackupPool,
    collective::{algorithm::Programs, links::Links, op::Op, operations::Operations, table::OpTable},
    config::Config,
    control::{Callbacks, Control},
    dial_back::DialBacks,
    error::End,
    flight,
    relay::Relay,
    state::syncs::Syncs,
    threads::spawn,
    world::{Identity, Told},
};
use calls::Calls;
use crossbeam_channel::Sender;
use figures::Figures;
use pccl_flight::{Event, Recorder, What};
use pccl_protocol::{AheadStep, C2m, M2c, Nothing, PreviousIdentity, Registered, RunId, limits};
use std::{
    net::IpAddr,
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tinysockets::{
    acceptor::Acceptor,
    address::HostPort,
    conn::Conn,
    key::{RunKey, RunKeys},
    place::why_unusable,
    preamble::{Preamble, Role},
    queued::QueuedConfig,
};

/// Packets of the master that may wait to be fetched by a caller.
const INBOX_LIMIT: usize = 1024;
/// How long a polite leave waits for the master's answer.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The state that the threads of a session share, by subject.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) flight: Arc<Recorder>,
    figures: Arc<Figures>,
    pub(crate) control: Arc<Control>,
    pub(crate) told: Arc<Told>,
    pub(crate) operations: Arc<Operations>,
    pub(crate) syncs: Arc<Syncs>,
    pub(crate) calls: Calls,
    /// Questions for the status that have not been answered.
    pub(crate) status: status::StatusDesk,
    probes: probe::ProbeDesk,
    called: called::CallDesk,
    /// Connections that others are to make.
    dial_backs: Arc<DialBacks>,
    conductor: Sender<event::Event>,
    bell: beat::Bell,
}

impl Shared {
    fn new(
        config: Config,
        (flight, figures): (Arc<Recorder>, Arc<Figures>),
        conductor: Sender<event::Event>,
    ) -> Arc<Self> {
        let config = Arc::new(config);
        let (told, table) = (Arc::new(Told::default()), Arc::new(OpTable::default()));
        Arc::new_cyclic(|me: &Weak<Self>| {
            let control = Arc::new(Control::new(flight.clone(), callbacks(me, &conductor)));
            let operations = Arc::new(Operations {
                flight: flight.clone(),
                control: control.clone(),
                told: told.clone(),
                table: table.clone(),
                links: Links::default(),
                backups: BackupPool::default(),
                programs: Programs::default(),
                early: Arc::default(),
            });
            let dial_backs = Arc::new(DialBacks::default());
            let with = (control.clone(), told.clone(), dial_backs.clone());
            let syncs = Syncs::new(config.clone(), with, table, flight.clone());
            Self {
                config,
                flight,
                figures,
                control,
                told,
                operations,
                syncs: Arc::new(syncs),
                calls: Calls::connecting(),
                status: status::StatusDesk::default(),
                probes: probe::ProbeDesk::default(),
                called: called::CallDesk::default(),
                dial_backs,
                conductor,
                bell: beat::Bell::default(),
            }
        })
    }

    /// Waits until this peer is a full member of the ring. Before that no other call is possible.
    pub(crate) fn wait_for_admission(&self, deadline: Option<Instant>) -> Result<(), Error> {
        self.control.receive(deadline, |packet| match packet {
            M2c::Admitted(_) => Ok(()),
            other => Err(other),
        })
    }

    /// This peer is registered, and nobody lets it in: other calls are possible.
    pub(crate) fn enter_without_admission(&self) {
        self.calls.end_exclusive();
        self.told.answered();
    }

    /// How long a master may still be looked for that takes the place of the one that was lost. `None`: none comes.
    pub(crate) fn master_grace_left(&self) -> Option<Duration> {
        seek::grace_left(self)
    }

    /// The first vote for an operation: at once, or when it is known whether an edge has been lost in a rest before it.
    pub(crate) fn begin(&self, op: &Arc<Op>) {
        if !self.operations.links.may_be_deaf() {
            return op.vote();
        }
        let _ = self.conductor.send(event::Event::Begin(op.clone()));
        // The conductor may have gone before this came.
        if let Some(end) = self.control.end() {
            op.ended(&end);
        }
    }

    /// Ends the session, once: every operation gets its result, every wait ends. Callable from any thread.
    pub(crate) fn finish(&self, end: End) {
        if !self.control.note_end(&end) {
            return;
        }
        match &end {
            End::Closed => log::info!("left the run"),
            // The caller that registers says it, and knows more: a standby that sends a newcomer on closes its
            // connection.
            End::MasterLost(_) if self.told.identity().is_none() => log::debug!("{end}"),
            other => log::warn!("{other}"),
        }
        flight::ended(&self.flight, &end);
        // Before any operation takes its memory back: a frame that is half sent would be completed with filler, and
        // while the others have not heard of this end, they could take it for data.
        self.operations.links.break_off("the session ended");
        // Also those that are between two votes, and so not in the table.
        let ops = self.calls.activity().ops.clone();
        for op in ops {
            op.ended(&end);
        }
        let _ = self.conductor.send(event::Event::Stop);
        self.bell.ring();
        self.syncs.stop_serving();
        self.probes.stop();
        self.syncs.source.keep(|_| false);
        self.status.close();
        self.control.close(&end.to_string());
    }
}

/// The requests of the connection to the master to its session.
fn callbacks(shared: &Weak<Shared>, conductor: &Sender<event::Event>) -> Callbacks {
    let (shared, conductor) = (shared.clone(), conductor.clone());
    Callbacks {
        finish: Box::new(move |end| {
            if let Some(shared) = shared.upgrade() {
                shared.finish(end);
            }
        }),
        send_later: Box::new(move |packet| drop(conductor.send(event::Event::Send(packet)))),
    }
}

/// Why an attempt to register came to nothing.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Another attempt may succeed.
    ForNow(Reason<ConnectCause>),
    /// The master acts here.
    Elsewhere(HostPort, Reason<ConnectCause>),
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

/// Connects to the master, to that of a run if there is one, and introduces itself.
fn dial_master(
    config: &Config,
    master: &HostPort,
    run: Option<RunId>,
    deadline: Instant,
) -> Result<Conn, Reason<ConnectCause>> {
    let run = run.map_or(0, |run| run.0);
    let preamble = Preamble { group: config.group.0, run, ..Preamble::new(Role::Control) };
    let key = config.run_keys.as_ref().map(RunKeys::used);
    let key = key.as_ref().map(RunKey::secret);
    let dialled = tinysockets::dial::dial_with_preamble(master, &preamble, key, deadline);
    dialled.map_err(Reason::from)
}

/// Refuses a connection over which the run could not reach this peer.
fn check_ends(config: &Config, conn: &Conn) -> Result<(), Error> {
    let Ok(there) = conn.peer_addr() else { return Ok(()) };
    let there = there.ip().to_canonical();
    if let Some(why) = why_unusable(&there.to_string()) {
        return Err(Error::InvalidArgument(format!("{} leads to {why}", config.master)));
    }
    let shown = config.advertised_host.as_ref().map(|host| host.as_str());
    let is_here = |host: &str| {
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
    };
    match shown.filter(|host| is_here(host) && !there.is_loopback()) {
        Some(host) => Err(Error::InvalidArgument(format!(
            "advertised host {host}: that is each machine to itself, and the master is on another one ({there}); give \
             an address under which others reach this machine, or leave it out"
        ))),
        None => Ok(()),
    }
}

/// Takes a connection to the master into use, which has got this number of packets over the ones before.
fn open_control(shared: &Arc<Shared>, conn: Conn, master_has: u64) -> Result<(), Error> {
    let (tap, on_close) = tap::callbacks(shared);
    let config = QueuedConfig {
        name: "control".into(),
        max_frame_bytes: limits::MAX_PACKET_BYTES,
        inbox_limit: INBOX_LIMIT,
        on_close: Some(on_close),
    };
    let opened = shared.control.open(conn, config, tap, master_has);
    opened.map_err(|error| Error::System(Reason::system("control connection", error)))
}

/// A session and its threads. Dropping it ends the session and joins them.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    acceptor: Option<Acceptor>,
    threads: Vec<JoinHandle<()>>,
}

impl Session {
    /// Reaches the master and registers. The peer is not a member yet, see [`Shared::wait_for_admission`].
    pub(crate) fn connect(
        config: Config,
        previous: Option<PreviousIdentity>,
        (flight, figures): (Arc<Recorder>, Arc<Figures>),
        deadline: Instant,
    ) -> Result<Self, Refused> {
        // First of all: nobody is to take the ports of a peer that is not yet in any run.
        let conn = dial_master(&config, &config.master, None, deadline)?;
        config.masters.note_address(&config.master, conn.peer_addr().ok());
        let near = conn.local_addr().ok().map(|address| address.ip());
        check_ends(&config, &conn)?;
        let security =
            conn.suite().map_or("no run key, not encrypted".to_owned(), |suite| format!("run key, {suite}"));
        log::info!("connected to the master at {} ({security})", config.master);
        flight.record_with(|| Event::new(What::SessionBegan).text(config.master.to_string()));
        let (events, event_source) = crossbeam_channel::unbounded();
        let listeners = listen::bind(&config, near.filter(|_| conn.is_here_only()))?;
        let shared = Shared::new(config, (flight, figures), events);
        let ports = [listen::P2P, listen::STATE].map(|index| listeners[index].1.local_port());
        let addresses = listen::announced(&shared.config, &listeners, near);
        let mut session = Self { shared, acceptor: None, threads: Vec::new() };
        open_control(&session.shared, conn, 0)?;
        let registered = session.register(deadline, previous, ports, addresses)?;
        session.acceptor = Some(listen::spawn(listeners, &session.shared)?);
        session.find_relay(&registered);
        session.start_threads(&registered, event_source)?;
        Ok(session)
    }

    fn register(
        &self,
        deadline: Instant,
        previous: Option<PreviousIdentity>,
        [p2p_port, state_port]: [u16; 2],
        addresses: Vec<pccl_protocol::Address>,
    ) -> Result<Registered, Refused> {
        let shared = &self.shared;
        let register = C2m::Register(pccl_protocol::Register {
            group: shared.config.group,
            advertised_host: shared.config.advertised_host.clone(),
            addresses,
            p2p_port,
            state_port,
            pool_connections: shared.config.settings.pool_size,
            name: shared.config.name.clone(),
            previous,
            formed: shared.config.settings.formed_groups,
            alone: shared.config.settings.world_of_one,
            resume: shared.config.offer,
            outbound_only: shared.config.outbound_only,
            site: shared.config.site.clone(),
        });
        // In one go: a newcomer that wants to fetch ahead is none that the others wait for, not even for a moment.
        match shared.config.ahead {
            true => shared.control.send_all(&[register, C2m::Ahead(AheadStep::Wanted(Nothing {}))]),
            false => shared.control.send(&register),
        }
        shared
            .control
            .receive(Some(deadline), |packet| match packet {
                M2c::Registered(registered) => Ok(Ok(registered)),
                M2c::StandsBy(answer) => Ok(Err(answer)),
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
            })?
            .map_err(|answer| {
                let text = format!("{} does not act: {}", shared.config.master, answer.text);
                let reason = Reason::new(ConnectCause::NotReady, text);
                match answer.acting.and_then(|place| place.as_str().parse().ok()) {
                    Some(place) => Refused::Elsewhere(place, reason),
                    None => Refused::ForNow(reason),
                }
            })
    }

    /// Notes the way to the relay, if the master has one: on its machine.
    fn find_relay(&self, registered: &Registered) {
        let (Some(offer), Some(acceptor)) = (registered.relay, &self.acceptor) else { return };
        let (config, told) = (&self.shared.config, &self.shared.told);
        let relay = Relay {
            place: HostPort::new(&config.master.host, offer.port).into(),
            run: registered.run.0,
            me: registered.peer.0,
            token: offer.token,
            keys: config.run_keys.clone(),
            entrance: acceptor.entrance(),
            timeout: config.settings.dial_timeout,
        };
        let _ = told.relay.set(relay);
    }

    fn start_threads(
        &mut self,
        registered: &Registered,
        events: crossbeam_channel::Receiver<event::Event>,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        let name = &shared.config.name;
        log::info!("registered as peer {} ({name}) in run {}", registered.peer, registered.run);
        let interval = Duration::from_millis(registered.beat_interval_ms.clamp(10, 60_000));
        let parker = threadpark::Parker::new();
        shared.bell.wakes(parker.unparker());
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
        let control = &self.shared.control;
        if control.end().is_none() {
            control.send(&C2m::Leave(Nothing {}));
            let deadline = Some(Instant::now() + LEAVE_TIMEOUT);
            // The answer ends the session, and with it this wait.
            let _ = control.receive(deadline, Err::<(), _>);
        }
        self.shared.finish(End::Closed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.finish(End::Closed);
        self.acceptor = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of the session panicked");
            }
        }
        self.shared.control.close("session over");
        self.shared.syncs.server.join();
        self.shared.probes.join();
    }
}
