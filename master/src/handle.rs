//! A master that runs in this process.

use crate::{
    event_loop::{AdminSocket, Begin, EventLoop, LoopEnd, Recalled, Search, Setup},
    journal::Journal,
    origin::Origin,
    relay::RelayConfig,
    state::{MasterState, Options},
};
use parking_lot::{Condvar, Mutex};
use pccl_flight::{Event, Recorder, Role, What};
use pccl_protocol::{GroupId, Host, Name, Revision, RunId, limits};
use std::{
    any::Any,
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tinysockets::{
    key::{AcceptedKeys, RunAddress, RunKey, RunKeys},
    listeners,
    mode::WireMode,
    reactor::Stopper,
    relay::Relay,
};

/// Time in which the name of the address to listen on must be resolved.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Smallest limit for what waits for one client; a client that reads must never meet it between two small packets.
const SMALLEST_QUEUE_BYTES: usize = 4096;
/// Events of operations that the flight recorder keeps: a master sees those of all peers.
const FLIGHT_EVENTS: usize = 16_384;
/// How long the end of a master waits for its last file.
const FLIGHT_WAIT: Duration = Duration::from_secs(2);

/// Settings of a [`Master`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterConfig {
    /// `host:port` to listen on. Port 0 takes a free one. `[::]` means every address of the machine, of both families;
    /// `0.0.0.0` every IPv4 address; a name every address that it stands for. Without a `run_key` it has to be an
    /// address that only this machine reaches, unless the master is `insecure`. Default: port 48148 of this machine
    /// alone.
    pub listen: String,
    /// The key of the run: who does not prove that it has the same one is turned away, and everything that travels is
    /// encrypted. Default: that of the environment variable `PCCL_RUN_KEY`; if that is not set either, none.
    pub run_key: Option<RunKey>,
    /// A second key that is accepted beside `run_key`, as long as not everybody has that;
    /// [`rotate_key`](crate::rotate_key) changes both in a running master. Default: none.
    pub second_run_key: Option<RunKey>,
    /// With a key: how tensors and shared state travel between peers, and what measures their way. Everything else is
    /// always encrypted. Default: encrypted.
    pub wire: WireMode,
    /// With a key: only peers with these names ([`Register::name`](pccl_protocol::Register), `Builder::name` of a peer)
    /// give shared state to others, in syncs and before newcomers are let in. Who has such a name keeps it for as long
    /// as it is there. Default: none, and all may.
    pub trusted_seeders: Vec<String>,
    /// Without a key, lets other machines reach this master: whoever does so takes part, and whoever is on the way
    /// reads and changes what travels. Default false.
    pub insecure: bool,
    /// A peer that is silent for this long is dropped.
    pub peer_timeout: Duration,
    /// How long a peer whose connection ends is waited for, while nothing else says that it is dead: it may come back
    /// over another connection, and nobody notices. Shorter than the peer time-out; 0: it is lost at once. Default:
    /// half of the peer time-out.
    pub return_grace: Option<Duration>,
    /// Peers are told to send a sign of life this often. The default is a tenth of the peer time-out, a second at most.
    pub beat_interval: Option<Duration>,
    /// Time within which a peer must have connected to its neighbours in a new ring.
    pub ring_timeout: Duration,
    /// How long a report of a broken connection is held back until its cause is judged: the death of one end, which
    /// would explain it, may be noticed a little later.
    pub edge_grace: Duration,
    /// A connection between two living peers on which bytes wait and none moves counts as broken after this. Default 4
    /// s.
    pub edge_timeout: Duration,
    /// Longest time in which `optimize_topology` measures one edge. Default 2 s.
    pub probe_time: Duration,
    /// A peer whose caller alone holds up a vote for this long is dropped: it makes no call while all others wait for
    /// it. Never for a transfer, however slow. Off (`None`) by default.
    pub straggler_timeout: Option<Duration>,
    /// Collectives and syncs fail while the run has fewer peers.
    pub min_world_size: u32,
    /// The run goes on from this revision: as long as a group has committed nothing, it commits nothing below. Default:
    /// a group may begin with any.
    pub accept_revision: Option<u64>,
    /// Takes only peers that others can dial: who says that it is outbound-only is refused, and who fails the test of
    /// its ports is warned, and dropped if the others do not reach it either. Default false: such peers take part, and
    /// dial all of their connections themselves.
    pub require_reachable: bool,
    /// Offers a relay to peers that nobody can dial, for where there is no other way between two of them. All of their
    /// bytes pass this machine twice. Default: none, and such peers are never neighbours.
    pub relay: Option<RelayConfig>,
    /// Time that a new connection has for its preamble, and again for its registration.
    pub registration_timeout: Duration,
    /// Where to listen for an operator, see [`remove_peer`](crate::remove_peer): a Unix socket that only the owner of
    /// this process can open. Default: nowhere.
    pub admin: Option<PathBuf>,
    /// Directory of a journal, which is made if it is missing. A master that is started there after another one has
    /// died goes on in its place: the same run, and no call of a peer notices more than a pause, if it comes within
    /// `Builder::master_grace` of the peers. It outlives the process, not a new start of the machine. A master that is
    /// stopped in order ends its run. Default: none.
    pub journal: Option<PathBuf>,
    /// Lets other masters stand by for this one ([`MasterConfig::standby_of`]): they know all that it knows, and one of
    /// them goes on in its place when it is lost, with the consent of more than half of the members; no call of a peer
    /// notices more than a pause. Everything that peers hear waits for one round trip to each of them. In a run with a
    /// key, whoever has that may stand by, and so be told all secrets of the run. Default false; a master that stands
    /// by lets others do so, too.
    pub accept_standbys: bool,
    /// Stands by for the master at one of these places (`host:port`), whose settings it takes over with the run: of
    /// these only the addresses, the keys and the bounds of clients count. Default: nowhere, this master begins a run.
    pub standby_of: Vec<String>,
    /// Host under which peers and other masters reach this one, if it stands by. Default: the address from which the
    /// acting master sees it come.
    pub advertised_host: Option<String>,
    /// Bytes that may wait for a client that does not read; then it is dropped.
    pub client_queue_bytes: usize,
    /// Outcomes of operations that the master keeps for each group, by their tags. When there are more, a new epoch of
    /// the group begins on the same ring, and what runs goes on.
    pub tag_history: usize,
    /// Directory to which the flight recorder writes its file when a peer is lost or dropped, when an operation fails,
    /// and at the end. Default: the environment variable `PCCL_FLIGHT_DIR`; if that is not set either, nothing is
    /// written.
    pub flight_dir: Option<PathBuf>,
}

impl Default for MasterConfig {
    fn default() -> Self {
        let options = Options::new(RunId(0));
        Self {
            listen: format!("127.0.0.1:{}", limits::DEFAULT_MASTER_PORT),
            run_key: None,
            second_run_key: None,
            wire: WireMode::Encrypt,
            trusted_seeders: Vec::new(),
            insecure: false,
            peer_timeout: options.peer_timeout,
            return_grace: None,
            beat_interval: None,
            ring_timeout: options.ring_timeout,
            edge_grace: options.edge_grace,
            edge_timeout: options.edge_timeout,
            probe_time: options.probe_time,
            straggler_timeout: options.straggler_timeout,
            min_world_size: options.min_world_size,
            accept_revision: None,
            require_reachable: options.require_reachable,
            relay: None,
            registration_timeout: options.registration_timeout,
            admin: None,
            journal: None,
            accept_standbys: false,
            standby_of: Vec::new(),
            advertised_host: None,
            client_queue_bytes: limits::MAX_CLIENT_QUEUE_BYTES,
            tag_history: options.max_tag_history,
            flight_dir: None,
        }
    }
}

impl MasterConfig {
    fn options(&self, run: RunId) -> Options {
        let defaults = Options::new(run);
        Options {
            peer_timeout: self.peer_timeout,
            beat_interval: self
                .beat_interval
                .unwrap_or_else(|| (self.peer_timeout / 10).min(defaults.beat_interval)),
            return_grace: self.return_grace.unwrap_or(self.peer_timeout / 2),
            registration_timeout: self.registration_timeout,
            ring_timeout: self.ring_timeout,
            edge_grace: self.edge_grace,
            edge_timeout: self.edge_timeout,
            probe_time: self.probe_time,
            straggler_timeout: self.straggler_timeout,
            min_world_size: self.min_world_size,
            accept_revision: self.accept_revision.map(Revision),
            require_reachable: self.require_reachable,
            max_tag_history: self.tag_history,
            wire: self.run_key.is_some().then_some(self.wire),
            comes_back: self.journal.is_some() || self.accepts_standbys(),
            trusted_seeders: self.trusted_seeders.iter().map(|name| Name::new(name)).collect(),
            ..defaults
        }
    }

    fn accepts_standbys(&self) -> bool {
        self.accept_standbys || !self.standby_of.is_empty()
    }

    /// Where masters are that this one may stand by for, and how others reach it.
    fn search(&self, keys: Option<RunKeys>, local_addr: SocketAddr) -> Result<Search, MasterError> {
        let master = |text: &String| {
            let error = |error| MasterError::Setting(format!("a master to stand by for: {error}"));
            text.parse::<RunAddress>().map(|address| address.master).map_err(error)
        };
        let masters = self.standby_of.iter().map(master).collect::<Result<_, _>>()?;
        let advertised_host = self.advertised_host.as_ref().map(|host| Host::new(host.as_str()));
        Ok(Search { masters, keys, advertised_host, port: local_addr.port() })
    }

    /// What clients have to prove that they have.
    fn accepted_keys(&self) -> Result<Option<AcceptedKeys>, MasterError> {
        match (self.run_key.clone(), self.second_run_key.clone()) {
            (Some(used), second) => Ok(Some(AcceptedKeys { used, second })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(MasterError::Setting("a second run key needs a first one".into())),
        }
    }

    /// Refuses settings with which no run could work.
    fn check(&self) -> Result<(), MasterError> {
        let shortest = Duration::from_millis(10);
        let times = [
            ("peer time-out", self.peer_timeout),
            ("ring time-out", self.ring_timeout),
            ("edge time-out", self.edge_timeout),
            ("registration time-out", self.registration_timeout),
            ("probe time", self.probe_time),
        ];
        if let Some((name, time)) = times.into_iter().find(|(_, time)| *time < shortest) {
            return Err(MasterError::Setting(format!(
                "the {name} of {time:?} is too short, use at least {shortest:?}"
            )));
        }
        if let Some(time) = self.straggler_timeout.filter(|time| *time < shortest) {
            return Err(MasterError::Setting(format!(
                "the straggler time-out of {time:?} is too short, use at least {shortest:?}"
            )));
        }
        if let Some(grace) = self.return_grace.filter(|grace| *grace >= self.peer_timeout) {
            return Err(MasterError::Setting(format!(
                "a return grace of {grace:?} is no shorter than the peer time-out of {:?}",
                self.peer_timeout
            )));
        }
        if (self.journal.is_some() || self.accepts_standbys()) && self.return_grace == Some(Duration::ZERO) {
            let text = "with a journal or with standbys peers have to come back, which a return grace of nothing does \
                        not let them";
            return Err(MasterError::Setting(text.into()));
        }
        if self.relay.is_some_and(|relay| relay.mbit_per_s == 0) {
            return Err(MasterError::Setting("a relay needs a rate of at least 1 Mbit/s".into()));
        }
        if self.client_queue_bytes < SMALLEST_QUEUE_BYTES {
            return Err(MasterError::Setting(format!(
                "a queue of {} bytes per client is too small, use at least {SMALLEST_QUEUE_BYTES}",
                self.client_queue_bytes
            )));
        }
        let is_name = |name: &&String| !name.is_empty() && Name::new(name.as_str()).as_str() == name.as_str();
        if let Some(name) = self.trusted_seeders.iter().find(|name| !is_name(name)) {
            return Err(MasterError::Setting(format!(
                "{name:?} is not the name of a peer, so it cannot be that of a trusted seeder"
            )));
        }
        if self.trusted_seeders.len() > limits::MAX_TRUSTED_SEEDERS {
            return Err(MasterError::Setting(format!(
                "{} trusted seeders are more than {}",
                self.trusted_seeders.len(),
                limits::MAX_TRUSTED_SEEDERS
            )));
        }
        match self.beat_interval {
            Some(beat) if beat.is_zero() || beat > self.peer_timeout / 2 => {
                Err(MasterError::Setting(format!(
                    "a beat interval of {beat:?} does not fit a peer time-out of {:?}: use more than nothing and at \
                     most half of it",
                    self.peer_timeout
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Why a master could not start, or why it ended by itself.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MasterError {
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
    /// The address to listen on cannot be understood or resolved.
    #[error("cannot listen on {listen:?}: {reason}")]
    Address {
        /// The address as given.
        listen: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Other machines would reach a master that has no key.
    #[error(
        "a master without a run key listens for this machine only, not on {listen}: make a key with `pccl-master \
         --new-key` and give it to the master and to all peers (PCCL_RUN_KEY), or let everybody in (--insecure)"
    )]
    NoKey {
        /// The address as given.
        listen: String,
    },
    /// The address is fine, but the system does not let this process listen on it.
    #[error("cannot listen on {listen:?}: {error}{}", hint(error))]
    Listen {
        /// The address as given.
        listen: String,
        /// The system's error.
        error: Arc<io::Error>,
    },
    /// The relay cannot be started.
    #[error("the relay cannot listen on port {port}: {error}{}", hint(error))]
    Relay {
        /// The port as given.
        port: u16,
        /// The system's error.
        error: Arc<io::Error>,
    },
    /// The operator's socket cannot be made.
    #[error("cannot listen for an operator at {path:?}: {error}")]
    Admin {
        /// The path as given.
        path: PathBuf,
        /// The system's error.
        error: Arc<io::Error>,
    },
    /// The journal cannot be used, or is of another run than this master is to lead.
    #[error("the journal of the master: {0}")]
    Journal(String),
    /// Another master acts in the place of this one, which was stopped or could not be reached for a while.
    #[error("this master acts no more: {0}")]
    Deposed(String),
    /// The system has no random numbers for identities.
    #[error("no random numbers: {0}")]
    Random(Arc<io::Error>),
    /// The system refused what the event loop needs.
    #[error("the master's event loop cannot run: {0}")]
    EventLoop(Arc<io::Error>),
    /// A defect of the master: its thread panicked. All clients have lost their connection.
    #[error("the master ended by an internal error, please report it: {0}")]
    Panicked(String),
}

/// What to do about the usual reasons not to be able to listen.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process listens there (another master?): stop it or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges, choose a higher one",
        _ => "",
    }
}

/// How the thread of a master ended, once it has.
#[derive(Default)]
struct Ending {
    result: Mutex<Option<Result<(), MasterError>>>,
    ended: Condvar,
}

/// A running master. It listens and serves on a thread of its own until it is stopped; dropping it stops it.
pub struct Master {
    local_addr: SocketAddr,
    run: RunId,
    stopper: Stopper,
    ending: Arc<Ending>,
    thread: Option<JoinHandle<()>>,
    /// Ends with this handle.
    _relay: Option<Relay>,
}

impl Master {
    /// Starts a master. When this returns, clients can connect.
    pub fn launch(mut config: MasterConfig) -> Result<Self, MasterError> {
        config.check()?;
        if config.run_key.is_none() {
            config.run_key = RunKey::from_environment().map_err(MasterError::Setting)?;
        }
        if config.run_key.is_none() && config.wire != WireMode::Encrypt {
            let text = format!("the wire mode `{}` is for runs with a key, and there is none", config.wire);
            return Err(MasterError::Setting(text));
        }
        if config.run_key.is_none() && !config.trusted_seeders.is_empty() {
            let text = "trusted seeders are for runs with a key: without one anybody can take any name";
            return Err(MasterError::Setting(text.into()));
        }
        let opened = config.journal.as_deref().map(Journal::open).transpose();
        let opened = opened.map_err(|error| MasterError::Journal(error.to_string()))?;
        let (journal, past) = opened.map_or((None, None), |(journal, past)| (Some(journal), past));
        let origin = match &past {
            Some((chapter, _)) => chapter.origin.clone(),
            None => Origin::draw().map_err(|error| MasterError::Random(Arc::new(error)))?,
        };
        let run = origin.run;
        let listeners = listen(&config)?;
        let event_loop_error = |error| MasterError::EventLoop(Arc::new(error));
        let first = listeners.first().ok_or_else(|| event_loop_error(io::ErrorKind::NotFound.into()))?;
        let local_addr = first.local_addr().map_err(event_loop_error)?;
        let admin = config.admin.as_deref().map(listen_admin).transpose()?;
        let recorder = Arc::new(recorder(&config, run, local_addr));
        let mut options = config.options(run);
        if config.run_key.is_some() {
            options.state_key = Some(origin.state_key());
        }
        let keys = config.accepted_keys()?.map(RunKeys::new);
        let (mut relay, mut news) = (None, None);
        if let Some(wanted) = config.relay {
            let started =
                crate::relay::start(wanted, local_addr.ip(), (run, origin.relay_token()), keys.clone());
            let failed = |error| MasterError::Relay { port: wanted.port, error: Arc::new(error) };
            let (running, offer, told) = started.map_err(failed)?;
            (relay, news, options.relay) = (Some(running), Some(told), Some(offer));
        }
        let begin = match past {
            None if !config.standby_of.is_empty() => {
                Begin::StandBy(config.search(keys.clone(), local_addr)?, None)
            }
            None => Begin::Fresh(Box::new(MasterState::new(options, Box::new(origin.identities())))),
            Some((chapter, entries)) => {
                let again =
                    catch_unwind(AssertUnwindSafe(|| Recalled::of(chapter, entries, options, keys.clone())));
                let again = again.unwrap_or_else(|payload| Err(panic_text(&*payload)));
                let again = Box::new(again.map_err(|error| {
                    MasterError::Journal(format!("{error}: remove the journal to begin a new run"))
                })?);
                match again.is_sure_to_act() {
                    true => Begin::Again(again),
                    false => Begin::StandBy(config.search(keys.clone(), local_addr)?, Some(again)),
                }
            }
        };
        let (event_loop, stopper) = EventLoop::new(Setup {
            listeners,
            admin,
            begin,
            origin,
            journal,
            accepts_standbys: config.accepts_standbys(),
            keys,
            relay: news,
            recorder: Arc::clone(&recorder),
            preamble_timeout: config.registration_timeout,
            queue_limit_bytes: config.client_queue_bytes,
        })
        .map_err(event_loop_error)?;
        let ending = Arc::new(Ending::default());
        let for_thread = Arc::clone(&ending);
        let thread = thread::Builder::new()
            .name("pccl-master".into())
            .spawn(move || {
                let result = run_caught(|| event_loop.run());
                if let Err(error) = &result {
                    log::error!("{error}");
                }
                let how = result.as_ref().map_or_else(ToString::to_string, |()| "stopped".to_owned());
                recorder.record(Event::new(What::MasterEnded).text(how.as_str()));
                recorder.fail(|| format!("the master ended: {how}"));
                recorder.flush(FLIGHT_WAIT);
                *for_thread.result.lock() = Some(result);
                for_thread.ended.notify_all();
            })
            .map_err(event_loop_error)?;
        announce(&config, run, local_addr);
        Ok(Self { local_addr, run, stopper, ending, thread: Some(thread), _relay: relay })
    }

    /// The address that it listens on, with the real port. If it listens on several, the first of them.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Identity of the run that this master leads.
    pub fn run_id(&self) -> RunId {
        self.run
    }

    /// Asks the master to stop and returns at once: it tells all clients, then ends (see [`wait`](Self::wait)). Takes
    /// no lock and allocates nothing. May be called any number of times.
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// A handle with which another thread can stop this master.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.stopper.clone())
    }

    /// Waits until the master has ended: `Ok` if it was stopped. May be called from several threads.
    pub fn wait(&self) -> Result<(), MasterError> {
        let mut result = self.ending.result.lock();
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            self.ending.ended.wait(&mut result);
        }
    }

    /// Whether the master has ended; [`wait`](Self::wait) returns at once then.
    pub fn has_ended(&self) -> bool {
        self.ending.result.lock().is_some()
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics and stores its result, so nothing is lost here.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Master")
            .field("local_addr", &self.local_addr)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

/// Stops a [`Master`] from elsewhere.
#[derive(Clone)]
pub struct StopHandle(Stopper);

impl StopHandle {
    /// As [`Master::stop`].
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl std::fmt::Debug for StopHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StopHandle")
    }
}

fn listen_admin(path: &Path) -> Result<AdminSocket, MasterError> {
    AdminSocket::bind(path)
        .map_err(|error| MasterError::Admin { path: path.to_owned(), error: Arc::new(error) })
}

fn listen(config: &MasterConfig) -> Result<Vec<std::net::TcpListener>, MasterError> {
    let listen = config.listen.as_str();
    let address_error = |reason: String| MasterError::Address { listen: listen.to_owned(), reason };
    let addresses = listeners::resolve(listen, Instant::now() + RESOLVE_TIMEOUT).map_err(address_error)?;
    let is_open = config.run_key.is_some() || config.insecure;
    if !is_open && !addresses.iter().all(|address| address.ip().to_canonical().is_loopback()) {
        return Err(MasterError::NoKey { listen: listen.to_owned() });
    }
    listeners::bind_all(&addresses)
        .map_err(|error| MasterError::Listen { listen: listen.to_owned(), error: Arc::new(error) })
}

/// Says in the log where a master listens, and for whom.
fn announce(config: &MasterConfig, run: RunId, local_addr: SocketAddr) {
    match &config.run_key {
        Some(_) => log::info!("run {run} listens on {local_addr}, with a run key, wire mode {}", config.wire),
        None if local_addr.ip().to_canonical().is_loopback() => {
            log::info!("run {run} listens on {local_addr}, for this machine only: it has no run key");
        }
        None => log::warn!(
            "run {run} listens on {local_addr} without a run key: whoever reaches that takes part, and nothing is \
             encrypted; `pccl-master --new-key` makes a key"
        ),
    }
}

fn recorder(config: &MasterConfig, run: RunId, local_addr: SocketAddr) -> Recorder {
    let directory = config.flight_dir.clone().or_else(pccl_flight::directory_from_environment);
    let settings = pccl_flight::Settings { directory, capacity: FLIGHT_EVENTS };
    let recorder = Recorder::new(Role::Master, GroupId(0), settings);
    recorder.identify(run, None);
    recorder.record_with(|| Event::new(What::MasterBegan).text(local_addr.to_string()));
    recorder
}

/// Runs `body`; a panic of it becomes an error. Nothing of what `body` owned is used afterwards.
fn run_caught(body: impl FnOnce() -> Result<(), LoopEnd>) -> Result<(), MasterError> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result.map_err(|end| match end {
            LoopEnd::System(error) => MasterError::EventLoop(Arc::new(error)),
            LoopEnd::Deposed(text) => MasterError::Deposed(text),
        }),
        Err(payload) => Err(MasterError::Panicked(panic_text(&*payload))),
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panic without a text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_can_be_shared_between_threads() {
        fn check<T: Send + Sync>() {}
        check::<Master>();
        check::<StopHandle>();
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let error = run_caught(|| panic!("rule {} failed", 3)).unwrap_err();
        assert!(error.to_string().contains("rule 3 failed"), "{error}");
        let error = run_caught(|| Err(io::Error::other("no queue").into())).unwrap_err();
        assert!(error.to_string().contains("no queue"), "{error}");
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let config = MasterConfig { peer_timeout: Duration::ZERO, ..MasterConfig::default() };
        assert!(matches!(config.check(), Err(MasterError::Setting(_))));
        let config = MasterConfig { beat_interval: Some(Duration::from_secs(9)), ..MasterConfig::default() };
        assert!(matches!(config.check(), Err(MasterError::Setting(_))));
        let config =
            MasterConfig { second_run_key: Some(RunKey::from_bytes([1; 32])), ..MasterConfig::default() };
        assert!(matches!(config.accepted_keys(), Err(MasterError::Setting(_))));
        let config = MasterConfig { client_queue_bytes: 10, ..MasterConfig::default() };
        assert!(matches!(config.check(), Err(MasterError::Setting(_))));
        let config = MasterConfig { peer_timeout: Duration::from_secs(2), ..MasterConfig::default() };
        config.check().unwrap();
        assert_eq!(config.options(RunId(1)).beat_interval, Duration::from_millis(200));
    }
}
