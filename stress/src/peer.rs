//! A peer process: trains as a training program does, follows the remedy of every error, and reports each event.

use crate::{
    event::{Call, Event, Line, Reduced},
    os,
    rng::Rng,
    tasks::{self, Task},
    workload::{Buffer, Kind, MANY_TAG, PIPELINED_TAGS, Workload, checksum, random_buffer},
};
use pccl::{
    AsyncReduce, Cause, Communicator, Error, FrameChecksums, ManyOptions, ReduceInfo, Remedy, SharedState,
    SyncStrategy,
};
use std::{
    cell::Cell,
    io::{self, BufRead, Write},
    net::IpAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
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
    pub(crate) place: Place,
    /// Each all-reduce of gradients is awaited while the next one is in flight.
    pub(crate) pipelined: bool,
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
    let comm = match builder.build() {
        Ok(comm) => comm,
        Err(error) => return fatal(error.to_string()),
    };
    // Everybody begins with the same state, as training programs do that seed their weights: among peers that are all at
    // revision 0, any content could win the election, also over that of a peer that was there before.
    let mut initial = Rng::keyed(&[settings.workload.seed, 4]);
    let elements = settings.workload.elements;
    let weights = random_buffer(Kind::F32, elements, &mut initial);
    let momentum = random_buffer(Kind::F64, elements / 4 + 1, &mut initial);
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
        loop {
            if self.is_to_leave() {
                return Err(Halt::Leave);
            }
            self.loss_reported.set(false);
            match self.comm.connect() {
                Ok(()) => break,
                Err(error) => match self.lost(&error) {
                    Halt::Reconnect => std::thread::sleep(RECONNECT_PAUSE),
                    halt => return Err(halt),
                },
            }
        }
        let world = self.comm.world();
        self.me = world.ring.get(world.rank).map_or(0, |peer| peer.0);
        self.pending = None;
        report(Event::Joined { peer: self.me });
        Ok(())
    }

    fn train(&mut self) -> Result<std::convert::Infallible, Halt> {
        // Nobody settles alone what the state of its group is: others may be on their way to a new master.
        self.gather()?;
        // Whoever has just been let in goes on with the sync, as those do who let it in.
        let mut let_in = true;
        loop {
            if self.is_to_leave() {
                return Err(Halt::Leave);
            }
            if !let_in {
                self.admit()?;
            }
            self.sync()?;
            self.compute();
            let_in = match self.step()? {
                StepEnd::Complete => false,
                StepEnd::Alone => {
                    self.gather()?;
                    true
                }
            };
        }
    }

    /// Lets in those who wait.
    fn admit(&mut self) -> Result<(), Halt> {
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => self.comm.are_peers_pending().map_err(|error| self.lost(&error))?,
        };
        if pending {
            self.comm.update_topology().map_err(|error| self.lost(&error))?;
        }
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
                Ok(_) | Err(Error::TimedOut(_)) => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        checksum([&self.weights, &self.momentum])
    }

    fn sync(&mut self) -> Result<(), Halt> {
        loop {
            let hash_before = self.state_hash();
            match self.sync_once() {
                Ok((revision, rx_bytes)) => {
                    self.revision = revision;
                    report(Event::Synced { revision, hash: self.state_hash(), rx_bytes });
                    return Ok(());
                }
                Err(error) => {
                    let intact = self.state_hash() == hash_before;
                    report(failure(Call::Sync, self.revision, intact, &error));
                    match error.remedy() {
                        Remedy::Retry => {}
                        Remedy::WaitForPeers => self.gather()?,
                        _ => return Err(self.lost(&error)),
                    }
                }
            }
        }
    }

    fn sync_once(&mut self) -> Result<(u64, u64), Error> {
        let (Buffer::F32(weights), Buffer::F64(momentum)) = (&mut self.weights, &mut self.momentum) else {
            return Err(Error::InvalidArgument("the state has other types than it was made with".into()));
        };
        let mut state = SharedState::new(self.revision);
        state.tensor("weights", weights)?.tensor("momentum", momentum)?;
        let info = self.comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
        Ok((info.revision, info.rx_bytes))
    }

    /// The time that training spends on other things.
    fn compute(&mut self) {
        let most_us = self.settings.step_ms * 1000;
        std::thread::sleep(Duration::from_micros(self.rng.between(most_us / 2, most_us)));
    }

    fn step(&mut self) -> Result<StepEnd, Halt> {
        let (workload, step) = (self.settings.workload, self.revision);
        let jobs = workload.concurrent_jobs(step);
        let mut tasks: Vec<Task> =
            jobs.into_iter().map(|job| Task::new(&workload, self.me, step, job)).collect();
        let mut ask = step.is_multiple_of(2);
        while tasks.iter().any(|task| !task.is_done()) {
            if let StepEnd::Alone = self.round(&mut tasks, ask)? {
                return Ok(StepEnd::Alone);
            }
            ask = false;
        }
        let end =
            if self.settings.pipelined { self.pipeline(&mut tasks)? } else { self.reduce_many(&mut tasks)? };
        if let StepEnd::Complete = end {
            self.update(&tasks);
        }
        Ok(end)
    }

    /// One operation with many tensors. Sometimes the library tries again by itself, sometimes this loop does.
    fn reduce_many(&self, tasks: &mut Vec<Task>) -> Result<StepEnd, Halt> {
        let (workload, step) = (self.settings.workload, self.revision);
        let retries = if step.is_multiple_of(5) { 0 } else { u32::MAX };
        let mut many = Task::new(&workload, self.me, step, workload.many_job(step, MANY_TAG));
        while !many.is_done() {
            let before = self.ring();
            let result =
                self.comm.all_reduce_many(&mut many.tensors(), ManyOptions { tag: MANY_TAG, retries });
            if let StepEnd::Alone = self.conclude(&mut many, &before, result)? {
                return Ok(StepEnd::Alone);
            }
        }
        tasks.push(many);
        Ok(StepEnd::Complete)
    }

    /// Inner steps: the gradients of each are on their way while the next one computes, and are awaited in it.
    fn pipeline(&self, tasks: &mut Vec<Task>) -> Result<StepEnd, Halt> {
        let (workload, step) = (self.settings.workload, self.revision);
        let jobs = PIPELINED_TAGS.map(|tag| workload.many_job(step, tag));
        let mut inner: Vec<Task> = jobs.map(|job| Task::new(&workload, self.me, step, job)).collect();
        let compute = Duration::from_millis(self.settings.step_ms) / 8;
        while inner.iter().any(|task| !task.is_done()) {
            let before = self.ring();
            let results = self.comm.scope(|scope| {
                let (mut results, mut flying) = (Vec::new(), None);
                let mut land = |flight: Option<(usize, Result<AsyncReduce<'_>, Error>)>| {
                    results.extend(flight.map(|(index, one)| (index, one.and_then(AsyncReduce::wait))));
                };
                for (index, task) in inner.iter_mut().enumerate().filter(|(_, task)| !task.is_done()) {
                    let tag = task.tag();
                    let launched = scope.all_reduce_many(task.tensors(), tag);
                    std::thread::sleep(compute);
                    land(flying.replace((index, launched)));
                }
                land(flying);
                results
            });
            if let StepEnd::Alone = self.conclude_all(&mut inner, &before, results)? {
                return Ok(StepEnd::Alone);
            }
        }
        tasks.append(&mut inner);
        Ok(StepEnd::Complete)
    }

    /// Runs all tasks that are not done yet at the same time. With `ask`, asks meanwhile whether peers are pending.
    fn round(&mut self, tasks: &mut [Task], ask: bool) -> Result<StepEnd, Halt> {
        let before = self.ring();
        let comm = &self.comm;
        let (results, pending) = comm.scope(|scope| {
            let open = tasks.iter_mut().enumerate().filter(|(_, task)| !task.is_done());
            let launched: Vec<_> = open.map(|(index, task)| (index, tasks::launch(scope, task))).collect();
            let pending = ask.then(|| comm.are_peers_pending());
            let wait = |(index, launched): (usize, Result<AsyncReduce<'_>, Error>)| {
                (index, launched.and_then(AsyncReduce::wait))
            };
            (launched.into_iter().map(wait).collect::<Vec<_>>(), pending)
        });
        let end = self.conclude_all(tasks, &before, results);
        match (end, pending) {
            (Ok(end), Some(Ok(pending))) => {
                self.pending = Some(pending);
                Ok(end)
            }
            (Ok(_), Some(Err(error))) => Err(self.lost(&error)),
            (end, _) => end,
        }
    }

    /// Reports the results of calls that ran at the same time. All are reported; the first reason to stop counts.
    fn conclude_all(
        &self,
        tasks: &mut [Task],
        before: &[u128],
        results: Vec<(usize, Result<ReduceInfo, Error>)>,
    ) -> Result<StepEnd, Halt> {
        let mut end = Ok(StepEnd::Complete);
        for (index, result) in results {
            match (self.conclude(&mut tasks[index], before, result), &end) {
                (_, Err(_)) | (Ok(StepEnd::Complete), _) => {}
                (other, Ok(_)) => end = other,
            }
        }
        end
    }

    /// Reports the result of a call and says how to go on.
    fn conclude(
        &self,
        task: &mut Task,
        before: &[u128],
        result: Result<ReduceInfo, Error>,
    ) -> Result<StepEnd, Halt> {
        match result {
            Ok(info) => {
                if !task.has_kept_input() {
                    return Err(Halt::Fatal(format!(
                        "tag {}: a success changed the send buffer",
                        task.tag()
                    )));
                }
                let hash = task.complete();
                report(Event::Reduced(Reduced {
                    step: self.revision,
                    tag: task.tag(),
                    world: info.world_size,
                    rank: info.rank,
                    hash,
                    before: before.to_vec(),
                    after: self.ring(),
                }));
                Ok(StepEnd::Complete)
            }
            Err(error) => {
                // With an unknown outcome the buffer holds the result; the supervisor is told which.
                let intact = matches!(error, Error::OutcomeUnknown(_)) || task.is_intact();
                report(failure(Call::Reduce(task.tag()), self.revision, intact, &error));
                if let Error::OutcomeUnknown(_) = error {
                    report(Event::Unresolved(Reduced {
                        step: self.revision,
                        tag: task.tag(),
                        world: before.len(),
                        rank: before.iter().position(|peer| *peer == self.me).unwrap_or(0),
                        hash: task.output_hash(),
                        before: before.to_vec(),
                        after: self.ring(),
                    }));
                }
                match error.remedy() {
                    Remedy::Retry => Ok(StepEnd::Complete),
                    Remedy::WaitForPeers => Ok(StepEnd::Alone),
                    _ => Err(self.lost(&error)),
                }
            }
        }
    }

    /// Element-wise and deterministic: equal results keep equal states equal. The last task has the gradient.
    fn update(&mut self, tasks: &[Task]) {
        let noise = tasks.iter().map(Task::result_hash).fold(0, |all, hash| all ^ hash);
        if let (Buffer::F32(weights), Some(Buffer::F32(gradient))) =
            (&mut self.weights, tasks.last().and_then(|task| task.result().first()))
        {
            for (weight, &slope) in weights.iter_mut().zip(gradient.iter().cycle()) {
                *weight = *weight * 0.9 + slope;
            }
        }
        if let Buffer::F64(momentum) = &mut self.momentum {
            for (index, value) in momentum.iter_mut().enumerate() {
                *value = *value * 0.5 + (noise.rotate_left(index as u32) >> 32) as f64;
            }
        }
        self.revision += 1;
    }

    fn ring(&self) -> Vec<u128> {
        self.comm.world().ring.iter().map(|peer| peer.0).collect()
    }

    /// What to do about an error that is neither to be retried nor to be waited out; reports a loss of the connection.
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
        Error::TimedOut(_) => "TimedOut",
        _ => "Unusable",
    }
    .to_owned()
}
