//! A laboratory: each peer is a host of its own, in a network namespace, and so is the master. Needs root and the
//! program `wanlab`, whose path `PCCL_WANLAB` gives; it carries real packets with a delay, at a rate, or not at all.

use crate::{
    network::Node,
    peer::{Peer, give_key},
};
use pccl::RunKey;
use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// The host of the master; the peers have those before it.
const MASTER_HOST: usize = 4;
const MASTER_PORT: u16 = 20_100;
const P2P_PORT: u16 = 20_000;
const STATE_PORT: u16 = 20_001;

/// The program, if the tests are to use it.
pub(crate) fn program() -> Option<PathBuf> {
    std::env::var_os("PCCL_WANLAB").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// See the module's documentation.
pub(crate) struct Lab {
    prefix: String,
    dir: PathBuf,
    key: Option<RunKey>,
    wanlab: Child,
    controls: ChildStdin,
    answers: BufReader<ChildStdout>,
    master: Child,
}

impl Lab {
    /// Hosts for four peers, 2 ms apart, and a master.
    pub(crate) fn new(program: &PathBuf, peer_timeout: Duration, key: Option<&RunKey>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The name of a namespace's device is short.
        let prefix = format!("f{}x{}h", std::process::id() % 10_000, NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(format!("pccl-lab-{prefix}"));
        std::fs::create_dir_all(&dir).expect("a directory");
        let description = dir.join("lab.toml");
        let text = format!("hosts = {}\nprefix = \"{prefix}\"\n[default]\ndelay_ms = 2\n", MASTER_HOST + 1);
        std::fs::write(&description, text).expect("a file");
        let mut wanlab = Command::new(program)
            .arg("up")
            .arg(&description)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("wanlab starts");
        let controls = wanlab.stdin.take().expect("piped");
        let mut answers = BufReader::new(wanlab.stdout.take().expect("piped"));
        let ready = line(&mut answers);
        assert!(ready.contains("ready"), "wanlab says {ready:?}; it needs root");
        let mut master = inside(&prefix, MASTER_HOST, key)
            .args(["master", &format!("0.0.0.0:{MASTER_PORT}"), &peer_timeout.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the master process starts");
        let said = line(&mut BufReader::new(master.stdout.take().expect("piped")));
        assert!(said.contains(':'), "the master did not start");
        Self { prefix, dir, key: key.cloned(), wanlab, controls, answers, master }
    }

    /// Where the peers find the master.
    pub(crate) fn master_address() -> String {
        format!("10.77.{MASTER_HOST}.1:{MASTER_PORT}")
    }

    /// Starts a peer on its host.
    pub(crate) fn spawn(&self, node: Node, settings: &[String]) -> Peer {
        assert!(node < MASTER_HOST);
        let ports = format!("ports={P2P_PORT},{STATE_PORT}");
        let mut settings: Vec<_> = settings.iter().map(String::as_str).collect();
        settings.push(&ports);
        let command = inside(&self.prefix, node, self.key.as_ref());
        Peer::start(command, &self.dir, node, &Self::master_address(), &settings)
    }

    /// One line of control.
    pub(crate) fn control(&mut self, command: &str) {
        writeln!(self.controls, "{command}").and_then(|()| self.controls.flush()).expect("wanlab lives");
        let answer = line(&mut self.answers);
        assert_eq!(answer.trim(), "ok", "{command}");
    }

    /// Hosts that have a connection to the shared-state listener of `listener`, by its kernel's list of connections.
    pub(crate) fn fetchers(&self, listener: Node) -> Vec<Node> {
        let list = Command::new("ip")
            .args([
                "netns",
                "exec",
                &format!("{}{listener}", self.prefix),
                "cat",
                "/proc/net/tcp",
                "/proc/net/tcp6",
            ])
            .output()
            .expect("ip runs");
        let port = format!(":{STATE_PORT:04X}");
        let peer = |line: &str| -> Option<Node> {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [_, local, remote, state, ..] = fields[..] else { return None };
            // 01: established. Each word is in the order of this machine's bytes; the last one is the IPv4 address.
            let address = remote.split(':').next()?;
            let last = address.get(address.len().checked_sub(8)?..)?;
            let address = u32::from_str_radix(last, 16).ok()?.to_ne_bytes();
            (state == "01" && local.ends_with(&port)).then(|| usize::from(address[2]))
        };
        String::from_utf8_lossy(&list.stdout).lines().filter_map(peer).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.master.kill();
        let _ = self.master.wait();
        // It takes its hosts down before it ends.
        let _ = Command::new("kill").args(["-INT", &self.wanlab.id().to_string()]).status();
        let _ = self.wanlab.wait();
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn inside(prefix: &str, host: usize, key: Option<&RunKey>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &format!("{prefix}{host}"), env!("CARGO_BIN_EXE_pccl-test-peer")]);
    give_key(&mut command, key);
    command
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    line
}
