//! Hosts that are far apart, on this machine: a laboratory of network namespaces made by the program `wanlab`, which
//! delays, limits and loses packets between them. Needs root.

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// What lies between two hosts, in each direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) delay_ms: f64,
    pub(crate) rate_mbit: f64,
    pub(crate) loss_pct: f64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Lab {
    prefix: String,
    description: PathBuf,
    wanlab: Child,
    controls: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Lab {
    /// Makes `peers` hosts with `route` between any two of them, and one for the master, which is 1 ms away from all.
    /// `slow` is the rate of all that host 0 sends to the other peers, if it is another: one edge of any ring.
    pub(crate) fn up(program: &Path, peers: usize, route: Route, slow: Option<f64>) -> io::Result<Self> {
        let prefix = format!("b{}h", std::process::id() % 100_000);
        let Route { delay_ms, rate_mbit, loss_pct } = route;
        let mut text = format!(
            "hosts = {}\nprefix = \"{prefix}\"\n[default]\ndelay_ms = {delay_ms:?}\nrate_mbit = {rate_mbit:?}\n\
             loss_pct = {loss_pct:?}\n",
            peers + 1
        );
        if let Some(rate) = slow {
            for to in 1..peers {
                text += &format!("[[link]]\nfrom = 0\nto = {to}\nrate_mbit = {rate:?}\n");
            }
        }
        for host in 0..peers {
            text += &format!(
                "[[link]]\nfrom = {host}\nto = {peers}\nboth = true\ndelay_ms = 1.0\nrate_mbit = 1000.0\n\
                 loss_pct = 0.0\n"
            );
        }
        let description = std::env::temp_dir().join(format!("pccl-bench-{prefix}.toml"));
        fs::write(&description, text)?;
        let mut wanlab = Command::new(program)
            .arg("up")
            .arg(&description)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = wanlab.stdin.take().zip(wanlab.stdout.take());
        let (controls, answers) = pipes.ok_or_else(|| io::Error::other("a process without pipes"))?;
        let mut lab = Self { prefix, description, wanlab, controls, answers: BufReader::new(answers) };
        let mut line = String::new();
        lab.answers.read_line(&mut line)?;
        if line.contains("ready") {
            Ok(lab)
        } else {
            Err(io::Error::other(format!("wanlab says {line:?}; it needs root")))
        }
    }

    /// Sets the rate from one host to another.
    pub(crate) fn set_rate(&mut self, from: usize, to: usize, rate_mbit: f64) -> io::Result<()> {
        writeln!(self.controls, "set {from} {to} rate={rate_mbit}")?;
        self.controls.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.trim() == "ok" { Ok(()) } else { Err(io::Error::other(format!("wanlab says {line:?}"))) }
    }

    /// A program on a host.
    pub(crate) fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}{host}", self.prefix)]).arg(program);
        command
    }

    /// Address of a host.
    pub(crate) fn address(host: usize) -> String {
        format!("10.77.{host}.1")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // It takes its hosts down before it ends. Failures leave nothing that the next start would not clear away.
        drop(Command::new("kill").args(["-INT", &self.wanlab.id().to_string()]).status());
        drop(self.wanlab.wait());
        drop(fs::remove_file(&self.description));
    }
}

/// Rate of the slowest edge of the best ring of `hosts`, by trying all.
pub(crate) fn best_ring(hosts: usize, rate: &dyn Fn(usize, usize) -> f64) -> f64 {
    fn try_all(path: &mut Vec<usize>, lowest: f64, hosts: usize, rate: &dyn Fn(usize, usize) -> f64) -> f64 {
        let last = path[path.len() - 1];
        if path.len() == hosts {
            return lowest.min(rate(last, path[0]));
        }
        let mut best: f64 = 0.0;
        for next in 0..hosts {
            if !path.contains(&next) {
                path.push(next);
                best = best.max(try_all(path, lowest.min(rate(last, next)), hosts, rate));
                path.pop();
            }
        }
        best
    }
    try_all(&mut vec![0], f64::INFINITY, hosts, rate)
}
