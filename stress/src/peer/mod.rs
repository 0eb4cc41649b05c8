//! A peer process: trains as a training program does, follows the remedy of every error, and reports each event.

mod segments;
mod state;
mod step;

use crate::{
    event::{Call, Event, Line},
    os,
    workload::{Buffer, Kind, Workload, random_buffer},
};
use pccl::{Cause, Communicator, Error, FrameChecksums, Remedy};
use pccl_testkit::random::Rng;
use std::{
    cell::Cell,
    io::{self, BufRead, Write},
    net::IpAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Line on standard input that asks the peer to leave.
pub(crate) const LEAVE: &str = "leave";
/// Exit status of a peer whose supervisor is gone.
const ORPHANED: i32 = 3;
/// A peer that waits for others looks this often whether it is to leave.
const GATHER_SLICE: Duration = Duration::from_millis(500);
/// Pause of a peer that is alone in its group before it asks again for others.
const ALONE_PAUSE: Duration = Duration::from_millis(10);
/// Pause before another attempt to reach the master.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Settings of a peer process.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) master: String,
    pub(crate) index: u64,
    pub(crate) workload: Workload,
    pub(crate) step_ms: u64,
    pub(crate) peer_timeout_ms: u64,
    pub(crate) group: u32,
    /// How many groups there are.
    pub(crate) groups: u32,
    /// Steps between two optimisations of the ring; 0: none.
    pub(crate) optimize_every: u64,
    pub(crate) place: Place,
    /// Bytes of shared state that no collective has to do with, and those that a fetch may take beside all of it.
    pub(crate) state: (usize, Option<usize>),
    pub(crate) gradients: Gradients,
}

/// How the gradients of a step are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gradients {
    /// In one operation.
    AtOnce,
    /// Each all-reduce is awaited while the next one is in flight.
    Pipelined,
    /// Segments that are done stay done when somebody dies.
    InSegments,
}

/// Where a peer listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) bind: IpAddr,
    /// Address under which others reach it, if that is another one.
    pub(crate) shown: Option<IpAddr>,
    pub(crate) ports: (u16, u16),
}

/// Why a membership of the run ends.
enum Halt {
    Leave,
    Reconnect,
    Fatal(String),
}

/// How a step ended.
enum StepEnd {
    Complete,
    /// All others are gone; the step begins again with a sync when somebody has come.
    Alone,
}

struct Peer {
    comm: Communicator,
    settings: Settings,
    leave: Arc<AtomicBool>,
    rng: Rng,
    me: u128,
    revision: u64,
    weights: Buffer,
    momentum: Buffer,
    /// Large, if it is there: each step changes some MiBs of it.
    ballast: Buffer,
    /// The end of the present membership has been reported; several calls may notice it.
    loss_reported: Cell<bool>,
    /// Answer of a question that was asked while all-reduces were in flight.
    pending: Option<bool>,
}

/// Runs until the peer is asked to leave or cannot go on.
pub(crate) fn run(settings: Settings) -> ExitCode {
    let leave = Arc::new(AtomicBool::new(false));
    let heard = leave.clone();
    // Detached on purpose: it ends with the process, or ends it.
    std::thread::spawn(move || listen(&heard));
    // The neighbour may be stopped: reaching it must have more time than the master needs to drop it.
    let dial_timeout = Duration::from_millis(settings.peer_timeout_ms + 2_000);
    let place = settings.place;
    let mut builder = Communicator::builder(&settings.master)
        .peer_group(settings.group)
        .bind(place.bind)
        .first_ports(place.ports.0, place.ports.1)
        .dial_timeout(dial_timeout)
        // One that the library chooses, or one, or two.
        .pool_size((settings.index % 3) as u16);
    if let Some(shown) = place.shown {
        // Bits are flipped on the way.
        builder = builder.advertised_host(&shown.to_string()).frame_checksums(FrameChecksums::Always);
    }
    if let Some(bytes) = settings.state.1 {
        builder = builder.state_memory(bytes);
    }
    let comm = match builder.build() {
        Ok(comm) => comm,
        Err(error) => return fatal(error.to_string()),
    };
    // Everybody begins with the same state, as training programs do that seed their weights: among peers that are all
    // at revision 0, any content could win the election, also over that of a peer that was there before.
    let mut initial = Rng::keyed(&[settings.workload.seed, 4]);
    let elements = settings.workload.elements;
    let weights = random_buffer(Kind::F32, elements, &mut initial);
    let momentum = random_buffer(Kind::F64, elements / 4 + 1, &mut initial);
    let ballast = random_buffer(Kind::I64, settings.state.0 / size_of::<i64>(), &mut initial);
    let rng = Rng::keyed(&[settings.workload.seed, 6, settings.index]);
    let mut peer = Peer {
        comm,
        settings,
        leave,
        rng,
        me: 0,
        revision: 0,
        weights,
        momentum,
        ballast,
        loss_reported: Cell::new(false),
        pending: None,
    };
    loop {
        match peer.join().and_then(|()| peer.train()) {
            Ok(never) => match never {},
            Err(Halt::Reconnect) => {}
            Err(Halt::Fatal(text)) => return fatal(text),
            Err(Halt::Leave) => {
                peer.comm.close();
                report(Event::Left);
                return ExitCode::SUCCESS;
            }
        }
    }
}

/// Follows the supervisor's orders. The end of the stream is the end of the supervisor.
fn listen(leave: &AtomicBool) {
    for line in io::stdin().lock().lines() {
        match line {
            Ok(line) if line == LEAVE => leave.store(true, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    std::process::exit(ORPHANED);
}

fn fatal(text: String) -> ExitCode {
    report(Event::Fatal { text });
    ExitCode::FAILURE
}

/// Writes an event in one piece, so that it is whole even if this process is killed right after.
fn report(event: Event) {
    let mut line = Line { at_us: os::monotonic_us(), event }.to_string();
    line.push('\n');
    let mut out = io::stdout().lock();
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(ORPHANED);
    }
}

impl Peer {
    fn is_to_leave(&self) -> bool {
        self.leave.load(Ordering::Relaxed)
    }

    fn join(&mut self) -> Result<(), Halt> {
        let ahead = loop {
            if self.is_to_leave() {
                return Err(Halt::Leave);
            }
            self.loss_reported.set(false);
            match self.connect() {
                Ok(ahead) => break ahead,
                Err(error) => match self.lost(&error) {
                    Halt::Reconnect => std::thread::sleep(RECONNECT_PAUSE),
                    halt => return Err(halt),
                },
            }
        };
        let world = self.comm.world();
        self.me = world.ring.get(world.rank).map_or(0, |peer| peer.0);
        self.pending = None;
        report(Event::Joined { peer: self.me });
        let whole = ahead.revision.map(|revision| (revision, self.state_hash()));
        report(Event::Ahead { whole, rx_bytes: ahead.rx_bytes });
        Ok(())
    }

    fn train(&mut self) -> Result<std::convert::Infallible, Halt> {
        // Nobody settles alone what the state of its group is: others may be on their way to a new master.
        self.gather()?;
        loop {
            if self.is_to_leave() {
                return Err(Halt::Leave);
            }
            // Nobody waits for one that has just come with the state: the others have computed meanwhile.
            if !self.sync(false)? {
                self.compute()?;
            }
            // Before the state changes, so that a newcomer holds it. Each sync is followed by this question, also that
            // of a newcomer, so that all make the same calls.
            while self.admit()? {
                self.sync(true)?;
            }
            self.optimize()?;
            if let StepEnd::Alone = self.step()? {
                self.gather()?;
            }
        }
    }

    /// Lets in those who wait; whether there was anybody.
    fn admit(&mut self) -> Result<bool, Halt> {
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => self.comm.are_peers_pending().map_err(|error| self.lost(&error))?,
        };
        if pending {
            self.comm.update_topology().map_err(|error| self.lost(&error))?;
        }
        Ok(pending)
    }

    /// Optimises the ring now and then. A committed sync has told all peers of the run the same revision, so all decide
    /// alike; with several groups there is nothing that tells all.
    fn optimize(&mut self) -> Result<(), Halt> {
        let every = self.settings.optimize_every;
        if self.settings.groups > 1 || every == 0 || self.revision % every != 1 % every {
            return Ok(());
        }
        let began = Instant::now();
        let result = self.comm.optimize_topology().map_err(|error| self.lost(&error))?;
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        report(Event::Optimized { changed: result.changed, took_ms });
        Ok(())
    }

    /// Waits until there is another peer in the group.
    fn gather(&mut self) -> Result<(), Halt> {
        while self.comm.world().group_size < 2 {
            if self.is_to_leave() {
                return Err(Halt::Leave);
            }
            if self.settings.groups > 1 {
                // The peers of the other groups ask and let in as they do in any step; this one goes along.
                self.admit()?;
                std::thread::sleep(ALONE_PAUSE);
                continue;
            }
            self.pending = None;
            match self.comm.wait_for_world(2, Some(GATHER_SLICE)) {
                Ok(_) | Err(Error::TimedOut { .. }) => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
        Ok(())
    }

    fn ring(&self) -> Vec<u128> {
        self.comm.world().ring.iter().map(|peer| peer.0).collect()
    }

    /// The way out of an error that is neither to be retried nor to be waited out; reports a loss of the connection.
    fn lost(&self, error: &Error) -> Halt {
        if error.remedy() != Remedy::Reconnect {
            return Halt::Fatal(format!("{error:?}"));
        }
        let kind = match error {
            Error::Kicked(reason) => format!("{:?}", reason.code),
            other => error_kind(other),
        };
        if !self.loss_reported.replace(true) {
            report(Event::Lost { kind, text: error.to_string() });
        }
        Halt::Reconnect
    }
}

fn failure(call: Call, step: u64, intact: bool, error: &Error) -> Event {
    let (cause, culprits) = match error.verdict() {
        Some(verdict) => (cause_name(verdict.cause), verdict.culprits.iter().map(|c| c.peer.0).collect()),
        None => (error_kind(error), Vec::new()),
    };
    Event::Failed { call, step, intact, cause, culprits, text: error.to_string() }
}

/// One word for a cause.
fn cause_name(cause: Cause) -> String {
    format!("{cause:?}")
}

/// One word for an error.
fn error_kind(error: &Error) -> String {
    match error {
        Error::NotConnected => "NotConnected",
        Error::ConnectFailed(_) => "ConnectFailed",
        Error::TooFewPeers { .. } => "TooFewPeers",
        Error::Kicked(_) => "Kicked",
        Error::MasterLost(_) => "MasterLost",
        Error::OutcomeUnknown(_) => "OutcomeUnknown",
        Error::TimedOut { .. } => "TimedOut",
        _ => "Unusable",
    }
    .to_owned()
}
