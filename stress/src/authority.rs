//! The master's process, and those that follow it on the same port when it is killed.

use crate::{
    children::{Notice, Starter, Who, this_program},
    journal::Journal,
    oracle::{Check, Oracle},
    os,
    procfs::{self, Series},
    report::Survivor,
};
use pccl_testkit::process::{Process, Signal};
use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::Receiver,
    thread,
    time::{Duration, Instant},
};

/// Time in which a master has to say where it listens, and later to end.
const PATIENCE_US: u64 = 30_000_000;
/// How often an ending process is looked at.
const POLL: Duration = Duration::from_millis(10);
/// Logs of masters that are kept: the first one, and the last ones.
const LOGS_KEPT: usize = 20;

/// See the module's documentation.
pub(crate) struct Authority {
    process: Process,
    series: Series,
    address: String,
    peer_timeout_ms: u64,
    /// It goes on from what is written here.
    memory: Option<PathBuf>,
    folder: PathBuf,
    starter: Starter,
    /// Masters that were started.
    started: usize,
    /// Masters that were killed and whose output has not ended yet.
    dying: usize,
    /// When the next one is to be started, while there is none.
    restart_us: Option<u64>,
    /// When it is to go on, while it is stopped.
    resume_us: Option<u64>,
    /// When the last one was started, until it has said that it listens.
    restarted_us: Option<u64>,
}

impl Authority {
    /// Starts the first master.
    pub(crate) fn start(
        peer_timeout_ms: u64,
        has_journal: bool,
        folder: &Path,
        starter: &Starter,
        heard: &Receiver<Notice>,
    ) -> io::Result<Self> {
        let memory = has_journal.then(|| folder.join("master-journal"));
        let of_master = (peer_timeout_ms, memory.as_deref());
        let process = start("127.0.0.1:0", of_master, &log(folder, 0), starter)?;
        let address = match heard.recv_timeout(Duration::from_micros(PATIENCE_US)) {
            Ok(Notice::Line(Who::Master, line)) if line.starts_with(crate::master::LISTENING) => {
                line[crate::master::LISTENING.len()..].to_owned()
            }
            other => {
                let log = log(folder, 0);
                let text = format!("the master did not start ({other:?}); see {}", log.display());
                return Err(io::Error::other(text));
            }
        };
        Ok(Self {
            process,
            series: Series::default(),
            address,
            peer_timeout_ms,
            memory,
            folder: folder.to_owned(),
            starter: starter.clone(),
            started: 1,
            dying: 0,
            restart_us: None,
            resume_us: None,
            restarted_us: None,
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills the master, unless it is dead already.
    pub(crate) fn kill(
        &mut self,
        down_us: u64,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        if !self.is_at_work() {
            return Ok(());
        }
        journal.event(now_us, &format!("kill the master; the next one comes in {} ms", down_us / 1000))?;
        match self.memory {
            // Whoever goes on knows all that it knew, so nobody may notice more than a pause.
            Some(_) => oracle.master_stopped(now_us),
            None => oracle.master_killed(now_us),
        }
        self.dying += 1;
        self.restart_us = Some(now_us + down_us);
        self.process.signal(Signal::Kill)
    }

    /// Stops the master for a while, unless there is none.
    pub(crate) fn stop(
        &mut self,
        for_us: u64,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        if !self.is_at_work() {
            return Ok(());
        }
        journal.event(now_us, &format!("stop the master for {} ms", for_us / 1000))?;
        oracle.master_stopped(now_us);
        self.resume_us = Some(now_us + for_us);
        self.process.signal(Signal::Stop)
    }

    fn is_at_work(&self) -> bool {
        self.restart_us.is_none() && self.restarted_us.is_none() && self.resume_us.is_none()
    }

    /// Lets the master go on, or starts the next one, when the time has come.
    pub(crate) fn continue_due(
        &mut self,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        if self.restarted_us.is_some_and(|since| now_us - since > PATIENCE_US) {
            self.restarted_us = None;
            oracle.violation(now_us, Check::Process, "a new master did not say that it listens".to_owned());
        }
        if self.resume_us.is_some_and(|at| at <= now_us) {
            self.resume_us = None;
            journal.event(now_us, "resume the master")?;
            oracle.master_resumed(now_us);
            self.process.signal(Signal::Continue)?;
        }
        // Its port is free only when it has ended.
        if self.restart_us.is_none_or(|at| now_us < at) || self.process.ended()?.is_none() {
            return Ok(());
        }
        let log = log(&self.folder, self.started);
        let of_master = (self.peer_timeout_ms, self.memory.as_deref());
        self.process = start(&self.address, of_master, &log, &self.starter)?;
        self.started += 1;
        if let Some(old) = self.started.checked_sub(LOGS_KEPT).filter(|old| *old > 0) {
            // Somebody else may have tidied up.
            drop(std::fs::remove_file(self::log(&self.folder, old)));
        }
        journal.event(now_us, &format!("start a new master, process {}", self.process.pid()))?;
        (self.restart_us, self.restarted_us) = (None, Some(now_us));
        self.series = Series::default();
        Ok(())
    }

    /// A master has written a line.
    pub(crate) fn line(&mut self, line: &str, oracle: &mut Oracle) {
        if line.starts_with(crate::master::LISTENING) {
            self.restarted_us = None;
            match self.memory {
                Some(_) => oracle.master_resumed(os::monotonic_us()),
                None => oracle.master_listens(os::monotonic_us()),
            }
        }
    }

    /// A master has closed its output.
    pub(crate) fn closed(&mut self, oracle: &mut Oracle, now_us: u64) {
        match self.dying.checked_sub(1) {
            Some(dying) => self.dying = dying,
            None => {
                let text = "the master ended by itself; see its log".to_owned();
                oracle.violation(now_us, Check::Process, text);
            }
        }
    }

    /// Looks at the process.
    pub(crate) fn sample(&mut self, now_us: u64) {
        if let Ok(sample) = procfs::sample(self.process.pid(), now_us) {
            self.series.push(sample);
        }
    }

    /// The present master, if it was observed for long enough.
    pub(crate) fn survivor(&self) -> Option<Survivor> {
        Survivor::of("master".into(), &self.series)
    }

    /// Ends the master; says what is wrong if it does not end in time and in order.
    pub(crate) fn end(&mut self, patience_us: u64) -> Option<String> {
        if self.resume_us.take().is_some() {
            // Fails only if it has ended, which is seen below.
            drop(self.process.signal(Signal::Continue));
        }
        self.process.hang_up();
        let deadline = Instant::now() + Duration::from_micros(patience_us);
        loop {
            match self.process.ended() {
                // Of one that was killed nothing is expected.
                Ok(Some(_)) if self.restart_us.is_some() => return None,
                Ok(Some(status)) if status.success() => return None,
                Ok(Some(status)) => return Some(format!("the master ended with {status}; see its log")),
                Err(error) => return Some(format!("the master cannot be waited for: {error}")),
                Ok(None) if Instant::now() >= deadline => {
                    return Some(format!("the master did not end within {} ms", patience_us / 1000));
                }
                Ok(None) => thread::sleep(POLL),
            }
        }
    }
}

fn log(folder: &Path, number: usize) -> PathBuf {
    folder.join(if number == 0 { "master.log".to_owned() } else { format!("master-{number}.log") })
}

fn start(
    address: &str,
    (peer_timeout_ms, memory): (u64, Option<&Path>),
    log: &Path,
    starter: &Starter,
) -> io::Result<Process> {
    let timeout = peer_timeout_ms.to_string();
    let words = ["--role", "master", "--master", address, "--peer-timeout-ms", &timeout];
    let mut words = words.map(str::to_owned).to_vec();
    if let Some(memory) = memory {
        words.extend(["--memory".into(), memory.display().to_string()]);
    }
    starter.start(Who::Master, this_program()?, &words, log)
}
