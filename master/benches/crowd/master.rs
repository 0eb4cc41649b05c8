//! A master in a process of its own, and what it uses.

use pccl_testkit::ports::free_port;
use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// The resources that a process has used.
pub(crate) struct Usage {
    pub(crate) cpu_s: f64,
    /// Now.
    #[allow(dead_code, reason = "not every bench looks at it")]
    pub(crate) resident_mb: f64,
    pub(crate) most_mb: f64,
}

impl Process {
    /// Starts one that listens on `host`. `change` adds to its arguments and surroundings.
    pub(crate) fn launch(host: IpAddr, change: impl FnOnce(&mut Command)) -> Self {
        let free = SocketAddr::from((host, free_port()));
        // Another build of the program can be measured with the same crowd.
        let program = std::env::var("PCCL_CROWD_MASTER").unwrap_or(env!("CARGO_BIN_EXE_pccl-master").into());
        let mut command = Command::new(program);
        command.args(["--listen", &free.to_string(), "--admin", "off"]);
        command.stdout(Stdio::null());
        // A line for each who comes and goes would be most of what is printed.
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "error");
        }
        change(&mut command);
        let child = command.spawn().expect("the program starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(free).is_err() {
            assert!(Instant::now() < deadline, "the master does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, address: free }
    }

    pub(crate) fn usage(&self) -> Usage {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap_or_default()
        };
        let status = read("status");
        let kb = |field: &str| {
            let line = status.lines().find(|line| line.starts_with(field));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok()).unwrap_or(f64::NAN)
        };
        let stat = read("stat");
        let behind_name = stat.rsplit(") ").next().unwrap_or_default();
        let ticks = |at: usize| behind_name.split(' ').nth(at).and_then(|it| it.parse::<f64>().ok());
        let cpu_s = (ticks(11).unwrap_or(f64::NAN) + ticks(12).unwrap_or(f64::NAN)) / 100.0;
        Usage { cpu_s, resident_mb: kb("VmRSS:") / 1e3, most_mb: kb("VmHWM:") / 1e3 }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
