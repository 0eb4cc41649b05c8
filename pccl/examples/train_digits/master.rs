//! The master of a run: within the supervisor, or a process of its own that is killed and started again.

use crate::Failure;
use pccl::{Master, MasterConfig};
use pccl_testkit::{process::Process, training::Progress};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Where peers find the first master; which port that is the system says.
const ANY_PORT: &str = "127.0.0.1:0";

/// What a run has for a master; it ends with this value.
pub(crate) enum Authority {
    /// Somebody else's.
    Given(String),
    /// Within this process.
    Own(Master),
    /// A process that dies again and again.
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

/// A master whose process is killed at an interval. The next one goes on from what it has written.
pub(crate) struct Killed {
    address: String,
    journal: PathBuf,
    /// Its end tells the thread to end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Killed {
    /// Starts the first process. The command starts this program.
    pub(crate) fn start(
        program: PathBuf,
        interval: Duration,
        progress: Progress<io::Stdout>,
    ) -> Result<Self, Failure> {
        let journal = std::env::temp_dir().join(format!("train-digits-master-{}", std::process::id()));
        fs::create_dir_all(&journal)?;
        let (first, address) = launch(&program, ANY_PORT, &journal)?;
        let (stop, stopped) = channel();
        let (again, written) = (address.clone(), journal.clone());
        let body = move || {
            let (mut process, mut kills) = (first, 0);
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                process.end();
                kills += 1;
                progress.line(&format!("  master killed, number {kills}"))?;
                process = launch(&program, &again, &written)?.0;
            }
            Ok(kills)
        };
        let thread = thread::Builder::new().name("master-killer".into()).spawn(body)?;
        Ok(Self { address, journal, stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the last process; how often one was killed.
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

/// Starts a process of this program as a master, and waits until it says where it listens.
fn launch(program: &Path, listen: &str, journal: &Path) -> io::Result<(Process, String)> {
    let mut command = Command::new(program);
    command.args(["--role", "master", "--master", listen]).arg("--journal").arg(journal);
    let mut process = Process::start(&mut command)?;
    let mut address = String::new();
    let output = process.output().ok_or_else(|| io::Error::other("a process without pipes"))?;
    BufReader::new(output).read_line(&mut address)?;
    if address.is_empty() {
        return Err(io::Error::other("the master could not be started, see above"));
    }
    Ok((process, address.trim().to_owned()))
}

/// A master process: says where it listens, and serves until its standard input ends.
pub(crate) fn run(listen: &str, journal: Option<PathBuf>) -> Result<bool, Failure> {
    let master = Master::launch(MasterConfig { listen: listen.into(), journal, ..MasterConfig::default() })?;
    println!("{}", master.local_addr());
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(true)
}
