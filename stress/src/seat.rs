//! A place at which there is a master most of the time: the process of one, and of those that follow it on the same
//! port.

use crate::{
    children::{Starter, Who, this_program},
    procfs::{self, Series},
};
use pccl_testkit::process::{Process, Signal};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Logs of masters that are kept of each place: the first one, and the last ones.
const LOGS_KEPT: usize = 20;

/// Settings that the masters of all places have.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) peer_timeout_ms: u64,
    /// It goes on from what is written here.
    pub(crate) memory: Option<PathBuf>,
    pub(crate) accept_standbys: bool,
    /// Where logs go.
    pub(crate) folder: PathBuf,
    pub(crate) starter: Starter,
}

/// See the module's documentation.
pub(crate) struct Seat {
    place: usize,
    process: Process,
    pub(crate) series: Series,
    /// Where it listens, once it has said so.
    pub(crate) address: String,
    /// Masters that were started.
    started: usize,
    /// Masters that were killed and whose output has not ended yet.
    dying: usize,
    /// It was stopped: another one may have taken over, and then it ends when it finds out.
    may_end: bool,
    /// When the next one is to be started, while there is none.
    pub(crate) restart_us: Option<u64>,
    /// When it is to go on, while it is stopped.
    pub(crate) resume_us: Option<u64>,
    /// When the last one was started, until it has said that it listens.
    pub(crate) restarted_us: Option<u64>,
}

impl Seat {
    /// Starts the first master of a place, on any port.
    pub(crate) fn start(place: usize, settings: &Settings, standby_of: &[String]) -> io::Result<Self> {
        Ok(Self {
            place,
            process: start(place, "127.0.0.1:0", settings, standby_of, &log(&settings.folder, place, 0))?,
            series: Series::default(),
            address: String::new(),
            started: 1,
            dying: 0,
            may_end: false,
            restart_us: None,
            resume_us: None,
            restarted_us: None,
        })
    }

    /// Whether a master is here that is not stopped.
    pub(crate) fn is_at_work(&self) -> bool {
        self.restart_us.is_none() && self.restarted_us.is_none() && self.resume_us.is_none()
    }

    pub(crate) fn log(&self, settings: &Settings) -> PathBuf {
        log(&settings.folder, self.place, self.started - 1)
    }

    pub(crate) fn name(&self) -> String {
        if self.place == 0 { "master".into() } else { format!("master {}", self.place) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills it; another one is started at that time.
    pub(crate) fn kill(&mut self, restart_us: u64) -> io::Result<()> {
        self.dying += 1;
        self.restart_us = Some(restart_us);
        self.process.signal(Signal::Kill)
    }

    /// Stops it until then.
    pub(crate) fn stop(&mut self, resume_us: u64) -> io::Result<()> {
        self.resume_us = Some(resume_us);
        self.may_end = true;
        self.process.signal(Signal::Stop)
    }

    /// Lets it go on.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        self.resume_us = None;
        self.process.signal(Signal::Continue)
    }

    /// Its output has ended. Whether that was to be expected.
    pub(crate) fn closed(&mut self, has_successor: bool, now_us: u64) -> bool {
        if let Some(dying) = self.dying.checked_sub(1) {
            self.dying = dying;
            return true;
        }
        // A ghost; somebody else takes its place.
        self.restart_us = Some(now_us);
        self.may_end && has_successor
    }

    /// Starts the next master, if it is time for that. Its port is free only when the one before has ended.
    pub(crate) fn restart_due(
        &mut self,
        settings: &Settings,
        standby_of: &[String],
        now_us: u64,
    ) -> io::Result<bool> {
        if self.restart_us.is_none_or(|at| now_us < at) || self.process.ended()?.is_none() {
            return Ok(false);
        }
        let log_of = |number| log(&settings.folder, self.place, number);
        self.process = start(self.place, &self.address, settings, standby_of, &log_of(self.started))?;
        if let Some(old) = (self.started + 1).checked_sub(LOGS_KEPT).filter(|old| *old > 0) {
            // Somebody else may have tidied up.
            drop(std::fs::remove_file(log_of(old)));
        }
        self.started += 1;
        (self.restart_us, self.restarted_us, self.may_end) = (None, Some(now_us), false);
        self.series = Series::default();
        Ok(true)
    }

    /// Looks at the process.
    pub(crate) fn sample(&mut self, now_us: u64) {
        if let Ok(sample) = procfs::sample(self.process.pid(), now_us) {
            self.series.push(sample);
        }
    }

    /// Asks it to end.
    pub(crate) fn hang_up(&mut self) {
        if self.resume_us.is_some() {
            // Fails only if it has ended, which is seen below.
            drop(self.resume());
        }
        self.process.hang_up();
    }

    /// Whether its end is right, or what is wrong with it; `None` if it has not ended yet.
    pub(crate) fn ended(&mut self) -> Option<Result<(), String>> {
        match self.process.ended() {
            // Of one that was killed nothing is expected.
            Ok(Some(_)) if self.restart_us.is_some() => Some(Ok(())),
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(status)) => Some(Err(format!("the {} ended with {status}; see its log", self.name()))),
            Err(error) => Some(Err(format!("the {} cannot be waited for: {error}", self.name()))),
            Ok(None) => None,
        }
    }
}

fn log(folder: &Path, place: usize, number: usize) -> PathBuf {
    let place = if place == 0 { String::new() } else { format!("-at-{place}") };
    folder.join(if number == 0 {
        format!("master{place}.log")
    } else {
        format!("master{place}-{number}.log")
    })
}

fn start(
    place: usize,
    address: &str,
    settings: &Settings,
    standby_of: &[String],
    log: &Path,
) -> io::Result<Process> {
    let timeout = settings.peer_timeout_ms.to_string();
    let words = ["--role", "master", "--master", address, "--peer-timeout-ms", &timeout];
    let mut words = words.map(str::to_owned).to_vec();
    if let Some(memory) = &settings.memory {
        words.extend(["--memory".into(), memory.display().to_string()]);
    }
    if settings.accept_standbys {
        words.push("--accept-standbys".into());
    }
    if !standby_of.is_empty() {
        words.extend(["--standby-of".into(), standby_of.join(",")]);
    }
    settings.starter.start(Who::Master(place), this_program()?, &words, log)
}
