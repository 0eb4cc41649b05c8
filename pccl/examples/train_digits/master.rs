//! The master of a run: within the supervisor, or processes of their own that are killed and started again.

use crate::{Args, Failure};
use pccl::{Master, MasterConfig};
use pccl_master::query_status;
use pccl_testkit::{process::Process, training::Progress};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::Command,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Where peers find the first master; which port that is the system says.
const ANY_PORT: &str = "127.0.0.1:0";
/// Time for one answer of a master.
const PATIENCE: Duration = Duration::from_secs(2);

/// The master of a run; it ends with this value.
pub(crate) enum Authority {
    /// Somebody else's.
    Given(String),
    /// Within this process.
    Own(Master),
    /// Processes that die again and again.
    Killed(Killed),
}

impl Authority {
    /// One within this process.
    pub(crate) fn own() -> Result<Self, Failure> {
        Ok(Self::Own(Master::launch(MasterConfig { listen: ANY_PORT.into(), ..MasterConfig::default() })?))
    }

    /// Where its peers find it.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Given(address) => address.clone(),
            Self::Own(master) => master.local_addr().to_string(),
            Self::Killed(killed) => killed.address.clone(),
        }
    }
}

/// Masters, of which the one that acts is killed at an interval. If others stand by, one of them takes over, and who
/// was killed stands by when it is started again; a master without standbys goes on from what it has written.
pub(crate) struct Killed {
    address: String,
    journal: PathBuf,
    /// Its end tells the thread to end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Killed {
    /// Starts all processes. The command starts this program.
    pub(crate) fn start(
        program: PathBuf,
        (interval, standbys): (Duration, usize),
        progress: Progress<io::Stdout>,
    ) -> Result<Self, Failure> {
        let journal = std::env::temp_dir().join(format!("train-digits-master-{}", std::process::id()));
        fs::create_dir_all(&journal)?;
        let mut masters = Masters { program, journal: journal.clone(), standbys, all: Vec::new() };
        for _ in 0..=standbys {
            let first = masters.launch(ANY_PORT)?;
            masters.all.push(first);
        }
        let address = masters.addresses();
        let (stop, stopped) = channel();
        let body = move || {
            let mut kills = 0;
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let Some(at) = masters.acting(&stopped) else { break };
                let mut killed = masters.all.remove(at);
                killed.process.end();
                kills += 1;
                progress.line(&format!("  master killed, number {kills}"))?;
                let again = masters.launch(&killed.address)?;
                masters.all.push(again);
            }
            Ok(kills)
        };
        let thread = thread::Builder::new().name("master-killer".into()).spawn(body)?;
        Ok(Self { address, journal, stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the last processes; how often one was killed.
    pub(crate) fn end(mut self) -> io::Result<u64> {
        self.stop()
    }

    fn stop(&mut self) -> io::Result<u64> {
        self.stop = None;
        let thread = self.thread.take().ok_or_else(|| io::Error::other("ended before"))?;
        let kills =
            thread.join().map_err(|_| io::Error::other("the thread that kills the master panicked"))?;
        fs::remove_dir_all(&self.journal)?;
        kills
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        if self.thread.is_some()
            && let Err(error) = self.stop()
        {
            eprintln!("train_digits: {error}");
        }
    }
}

struct OneMaster {
    process: Process,
    address: String,
}

struct Masters {
    program: PathBuf,
    journal: PathBuf,
    standbys: usize,
    all: Vec<OneMaster>,
}

impl Masters {
    fn addresses(&self) -> String {
        self.all.iter().map(|master| master.address.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Which one acts, once all standbys stand by for it; `None`: the run has ended.
    fn acting(&self, stopped: &Receiver<()>) -> Option<usize> {
        if self.standbys == 0 {
            return Some(0);
        }
        loop {
            let acts = |master: &OneMaster| {
                query_status(&master.address, None, PATIENCE)
                    .is_ok_and(|status| status.lead.acts && status.lead.standbys.len() == self.standbys)
            };
            if let Some(at) = self.all.iter().position(acts) {
                return Some(at);
            }
            if stopped.recv_timeout(PATIENCE / 20) != Err(RecvTimeoutError::Timeout) {
                return None;
            }
        }
    }

    /// Starts a process of this program as a master, and waits until it says where it listens. It stands by for those
    /// that there are, if there are any.
    fn launch(&self, listen: &str) -> io::Result<OneMaster> {
        let mut command = Command::new(&self.program);
        command.args(["--role", "master", "--master", listen]);
        if self.standbys == 0 {
            command.arg("--journal").arg(&self.journal);
        } else {
            command.arg("--accept-standbys");
            if !self.all.is_empty() {
                command.args(["--standby-of", &self.addresses()]);
            }
        }
        let mut process = Process::start(&mut command)?;
        let mut address = String::new();
        let output = process.output().ok_or_else(|| io::Error::other("a process without pipes"))?;
        BufReader::new(output).read_line(&mut address)?;
        if address.is_empty() {
            return Err(io::Error::other("the master could not be started, see above"));
        }
        Ok(OneMaster { process, address: address.trim().to_owned() })
    }
}

/// A master process: says where it listens, and serves until its standard input ends.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let master = Master::launch(MasterConfig {
        listen: args.master.clone().unwrap_or_default(),
        journal: args.journal.clone(),
        accept_standbys: args.accept_standbys,
        standby_of: args.standby_of.clone(),
        ..MasterConfig::default()
    })?;
    println!("{}", master.local_addr());
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(true)
}
