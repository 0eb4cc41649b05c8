//! A master that runs in this process.

use crate::{
    config::MasterConfig,
    error::MasterError,
    event_loop::{AdminSocket, Begin, EventLoop, Known, LoopEnd, Recalled, Setup},
    journal::Journal,
    origin::Origin,
    state::MasterState,
};
use parking_lot::{Condvar, Mutex};
use pccl_flight::{Event, Recorder, Role, What};
use pccl_protocol::{GroupId, RunId};
use std::{
    any::Any,
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tinysockets::{
    key::{RunKey, RunKeys, RunName},
    listeners,
    mode::WireMode,
    reactor::Stopper,
    relay::Relay,
};

/// How long a master waits for an address that another process has.
const ADDRESS_WAIT: Duration = Duration::from_secs(10);
/// How often it tries that address.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Time in which the name of the address to listen on must be resolved.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Events of operations that the flight recorder keeps: a master sees those of all peers.
const FLIGHT_EVENTS: usize = 16_384;
/// How long the end of a master waits for its last file.
const FLIGHT_WAIT: Duration = Duration::from_secs(2);

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
    stop_handle: StopHandle,
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
        let run_name = match config.run_name.take() {
            Some(name) => name,
            None => RunName::from_environment().map_err(MasterError::Setting)?,
        };
        run_name.check_key(config.run_key.is_some()).map_err(MasterError::Setting)?;
        config.run_name = Some(run_name.clone());
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
            Some((snapshot, _)) => snapshot.origin.clone(),
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
            None => {
                let state = Box::new(MasterState::new(options, Box::new(origin.identities())));
                match config.looks_for_others() {
                    true => Begin::StandBy(config.search(keys.clone(), local_addr)?, Known::Nothing(state)),
                    false => Begin::Fresh(state),
                }
            }
            Some((snapshot, entries)) => {
                let again =
                    catch_unwind(AssertUnwindSafe(|| Recalled::of(snapshot, entries, options, keys.clone())));
                let again = again.unwrap_or_else(|payload| Err(panic_text(&*payload)));
                let again = Box::new(again.map_err(|error| {
                    MasterError::Journal(format!("{error}: remove the journal to begin a new run"))
                })?);
                match again.is_sure_to_act() {
                    true => Begin::Again(again),
                    false => Begin::StandBy(config.search(keys.clone(), local_addr)?, Known::Copy(again)),
                }
            }
        };
        let ends_run = Arc::new(AtomicBool::new(false));
        let (event_loop, stopper) = EventLoop::new(Setup {
            ends_run: Arc::clone(&ends_run),
            listeners,
            admin,
            begin,
            origin,
            journal,
            accepts_standbys: config.accepts_standbys(),
            keys,
            run_name,
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
        let stop_handle = StopHandle { stopper, ends_run };
        Ok(Self { local_addr, run, stop_handle, ending, thread: Some(thread), _relay: relay })
    }

    /// The address that it listens on, with the real port. If it listens on several, the first of them.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Identity of the run that this master leads.
    pub fn run_id(&self) -> RunId {
        self.run
    }

    /// Asks the master to stop and returns at once; [`wait`](Self::wait) waits for its end. If others stand by with a
    /// complete copy, one of them goes on in its place, and no call of a peer notices more than a pause. Otherwise the
    /// run ends, and all clients are told. Takes no lock and allocates nothing. May be called any number of times.
    pub fn stop(&self) {
        self.stop_handle.stop();
    }

    /// The same, and the run ends although others stand by.
    pub fn end_run(&self) {
        self.stop_handle.end_run();
    }

    /// A handle with which another thread can stop this master.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop_handle.clone()
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
pub struct StopHandle {
    stopper: Stopper,
    ends_run: Arc<AtomicBool>,
}

impl StopHandle {
    /// As [`Master::stop`].
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// As [`Master::end_run`].
    pub fn end_run(&self) {
        self.ends_run.store(true, Ordering::Release);
        self.stopper.stop();
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
    let deadline = Instant::now() + ADDRESS_WAIT;
    let mut is_first = true;
    loop {
        match listeners::bind_all(&addresses) {
            // A master that is started again may find the one before, which is ending.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                if std::mem::take(&mut is_first) {
                    let seconds = ADDRESS_WAIT.as_secs();
                    log::warn!(
                        "another process listens on {listen}: waiting {seconds} s at most for its end"
                    );
                }
                thread::sleep(ADDRESS_INTERVAL);
            }
            bound => {
                let failed =
                    |error| MasterError::Listen { listen: listen.to_owned(), error: Arc::new(error) };
                return bound.map_err(failed);
            }
        }
    }
}

/// Says in the log where a master listens, and for whom.
fn announce(config: &MasterConfig, run: RunId, local_addr: SocketAddr) {
    let run = if config.looks_for_others() { "a master".to_owned() } else { format!("run {run}") };
    match &config.run_key {
        Some(_) => {
            let name = config.run_name.as_ref().filter(|name| !name.is_empty());
            let name = name.map_or(String::new(), |name| format!(" and the name {}", name.as_str()));
            log::info!("{run} listens on {local_addr}, with a run key{name}, wire mode {}", config.wire);
        }
        None if local_addr.ip().to_canonical().is_loopback() => {
            log::info!("{run} listens on {local_addr}, for this machine only: it has no run key");
        }
        None => log::warn!(
            "{run} listens on {local_addr} without a run key: whoever reaches that takes part, and nothing is \
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
            LoopEnd::Superseded(text) => MasterError::Superseded(text),
            LoopEnd::Outdated(text) => MasterError::Journal(text),
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
}
