//! Hosts that are far apart, on this machine: a laboratory of network namespaces made by the program `wanlab`, which
//! delays, limits and loses packets between them. Needs root.

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// The path between two hosts, in each direction.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// One way, in milliseconds.
    pub delay_ms: f64,
    /// Rate in Mbit/s, headers of packets included.
    pub rate_mbit: f64,
    /// Packets that are lost, in percent.
    pub loss_pct: f64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    description: PathBuf,
    wanlab: Child,
    controls: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Lab {
    /// Makes `peers` hosts with `route` between any two of them, and one for the master, which is 1 ms away from all.
    /// `slow` is the rate of all that host 0 sends to the other peers, if it is another: one edge of any ring.
    ///
    /// # Errors
    /// If the program cannot be started, or does not make the hosts.
    pub fn up(program: &Path, peers: usize, route: Route, slow: Option<f64>) -> io::Result<Self> {
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
    ///
    /// # Errors
    /// If the program refuses.
    pub fn set_rate(&mut self, from: usize, to: usize, rate_mbit: f64) -> io::Result<()> {
        self.set(&format!("{from} {to} rate={rate_mbit}"))
    }

    /// Sets what lies between two hosts, from one to the other, with the queue that goes with it.
    ///
    /// # Errors
    /// If the program refuses.
    pub fn set_route(&mut self, from: usize, to: usize, route: Route) -> io::Result<()> {
        let Route { delay_ms, rate_mbit, loss_pct } = route;
        self.set(&format!("{from} {to} delay={delay_ms} rate={rate_mbit} loss={loss_pct} queue=auto"))
    }

    fn set(&mut self, what: &str) -> io::Result<()> {
        writeln!(self.controls, "set {what}")?;
        self.controls.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.trim() == "ok" { Ok(()) } else { Err(io::Error::other(format!("wanlab says {line:?}"))) }
    }

    /// Limits all that a host sends, to whomever, by a token bucket (`tc`) on its interface; routes limit only what
    /// goes to one host. A tenth of a second of it may wait.
    ///
    /// # Errors
    /// If the system has no such limit.
    pub fn cap_uplink(&self, host: usize, rate_mbit: f64) -> io::Result<()> {
        let bytes_per_second = rate_mbit * 1e6 / 8.0;
        let (rate, limit) = (format!("{rate_mbit}mbit"), format!("{:.0}", bytes_per_second / 10.0));
        // Room for two of the largest packets that the system hands over in one, or 5 ms.
        let burst = format!("{:.0}", (bytes_per_second * 0.005).max(131_072.0));
        let words = ["qdisc", "replace", "dev", "tun0", "root", "tbf", "rate", &rate, "burst", &burst];
        let made = self.command(host, "tc").args(words).args(["limit", &limit]).status()?;
        match made.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("tc cannot limit what host {host} sends"))),
        }
    }

    /// A program on a host.
    #[must_use]
    pub fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}{host}", self.prefix)]).arg(program);
        command
    }

    /// Address of a host.
    #[must_use]
    pub fn address(host: usize) -> String {
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
