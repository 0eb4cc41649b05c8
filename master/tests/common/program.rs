//! The `pccl-master` program in a process of its own.

use crate::common::PATIENCE;
use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
};

/// A running program, killed if the test ends before it does.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    /// The text on stdout after the first line, once the program has ended.
    rest: mpsc::Receiver<String>,
}

impl Program {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_as(command().stderr(Stdio::null()).args(arguments))
    }

    pub(crate) fn start_as(command: &mut Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    pub(crate) fn start_with(command: &mut Command, stderr: Stdio) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (line_sender, lines) = mpsc::channel();
        let (rest_sender, rest) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            // Nobody listens if the test is over.
            let _ = line_sender.send(line);
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).unwrap();
            let _ = rest_sender.send(rest);
        });
        let Ok(line) = lines.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            panic!("no line on stdout");
        };
        let address = line.strip_prefix("pccl-master listening on ").expect(&line);
        let address = address.strip_suffix('\n').expect("a whole line").parse().unwrap();
        Self { child, address, rest }
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end; what was on stdout behind the first line.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        let rest = self.rest.recv_timeout(PATIENCE).expect("the program ends");
        (self.child.wait().unwrap(), rest)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-master"));
    for variable in [
        "RUST_LOG",
        "PCCL_LOG_LEVEL",
        "PCCL_PEER_TIMEOUT_MS",
        "PCCL_RUN_KEY",
        "PCCL_RUN_NAME",
        "XDG_RUNTIME_DIR",
        "RUNTIME_DIRECTORY",
    ] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}
