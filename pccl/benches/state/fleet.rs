//! Processes that sync with each other: sources, and one receiver.

use crate::{Args, Result};
use pccl::{Master, MasterConfig};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

/// What the receiver measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Synced {
    pub(crate) time: Duration,
    pub(crate) rx_bytes: u64,
    /// Memory that it took at most, beside what it had before.
    pub(crate) peak_kib: u64,
}

/// One process of this program.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(args: &Args, role: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--child", role, "--mib", &args.mib.to_string()])
            .args(["--memory-mib", &args.memory_mib.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no standard input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        Ok(Self { child, input, output })
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}")?;
        Ok(self.input.flush()?)
    }

    pub(crate) fn hear(&mut self) -> Result<Vec<String>> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return Err("a process of the benchmark ended".into());
        }
        Ok(line.split_whitespace().map(str::to_owned).collect())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// See the module's documentation.
pub(crate) struct Fleet {
    /// The receiver is the last.
    peers: Vec<Process>,
    revision: u64,
    _master: Master,
}

impl Fleet {
    pub(crate) fn new(args: &Args, sources: usize) -> Result<Self> {
        let config = MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() };
        let master = Master::launch(config)?;
        let role = format!("{}/{}", master.local_addr(), sources + 1);
        let mut peers =
            (0..=sources).map(|_| Process::start(args, &role)).collect::<Result<Vec<Process>>>()?;
        for peer in &mut peers {
            peer.hear()?;
        }
        Ok(Self { peers, revision: 0, _master: master })
    }

    /// One sync, before which so many MiB differ.
    pub(crate) fn sync(&mut self, changed: usize) -> Result<Synced> {
        self.begin(changed)?;
        self.end()
    }

    pub(crate) fn begin(&mut self, changed: usize) -> Result<()> {
        self.revision += 1;
        let receiver = self.peers.len() - 1;
        for (number, peer) in self.peers.iter_mut().enumerate() {
            let (revision, changed) = if number == receiver { (0, changed) } else { (self.revision, 0) };
            peer.say(&format!("prepare {revision} {changed}"))?;
        }
        for peer in &mut self.peers {
            peer.hear()?;
        }
        self.peers.iter_mut().try_for_each(|peer| peer.say("sync"))
    }

    pub(crate) fn end(&mut self) -> Result<Synced> {
        let mut last = Vec::new();
        for peer in &mut self.peers {
            last = peer.hear()?;
        }
        let number = |at: usize| -> Result<u64> { Ok(last.get(at).ok_or("a short answer")?.parse()?) };
        Ok(Synced { time: Duration::from_micros(number(0)?), rx_bytes: number(1)?, peak_kib: number(2)? })
    }

    pub(crate) fn kill_source(&mut self) {
        drop(self.peers.remove(0));
    }
}
