//! The loops of the examples in C and C++ when the master comes late, or goes and another one comes.

use crate::{
    build::{Language, compile, library},
    programs::signal,
};
use pccl::{Communicator, SharedState, SyncStrategy};
use pccl_testkit::ports::free_port;
use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

#[path = "../tidy/training_example.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "it is a program of its own in docs/training.md")]
mod training_example;

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program whose output is read line by line. It dies with this value.
struct Running {
    child: Child,
    said: Receiver<String>,
    logged: Receiver<String>,
}

/// Lines as they come.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
    });
    receiver
}

impl Running {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .env_remove("PCCL_LOG_LEVEL")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let said = lines(child.stdout.take().expect("piped"));
        let logged = lines(child.stderr.take().expect("piped"));
        Self { child, said, logged }
    }

    fn master(port: &str) -> Self {
        let master = Self::start(&library().join("pccl-master"), &["--listen", &format!("127.0.0.1:{port}")]);
        assert!(master.line().contains("listening"));
        master
    }

    /// Its next line on standard output.
    fn line(&self) -> String {
        self.said.recv_timeout(PATIENCE).expect("it says something")
    }

    /// Its findings, before which it says how it goes.
    fn result(&self) -> String {
        loop {
            let line = self.line();
            if line.starts_with("y = ") {
                return line;
            }
        }
    }

    /// Waits until it has logged a line with all of these.
    fn await_log(&self, parts: &[&str]) -> String {
        let mut seen = Vec::new();
        loop {
            let Ok(line) = self.logged.recv_timeout(PATIENCE) else {
                panic!("no line with {parts:?} in {seen:?}")
            };
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
            seen.push(line);
        }
    }

    /// Ends it by a signal; returns what it has logged and nobody has read.
    fn end(mut self, name: &str) -> String {
        signal(&self.child.id().to_string(), name);
        self.child.wait().expect("it can be waited for");
        self.logged.iter().collect::<Vec<_>>().join("\n")
    }

    /// Its end, which has to be a good one.
    fn finish(mut self) {
        let status = self.child.wait().expect("it can be waited for");
        assert!(status.success(), "{status}: {:?}", self.logged.iter().collect::<Vec<_>>());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy)]
enum Example {
    Line,
    Curve,
}

impl Example {
    fn program(self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Line => {
                compile(Language::C99, "examples/c/train_linear.c", &format!("restart-line-{name}"))
            }
            Self::Curve => {
                compile(Language::Cpp17, "examples/cpp/train_curve.cpp", &format!("restart-curve-{name}"))
            }
        }
    }

    /// A step without points of its own.
    fn step(self, comm: &Communicator, step: u64) -> Result<(), pccl::Error> {
        let mut state = SharedState::new(step);
        let (mut weights, mut momentum, mut steps) = ([0.0_f32; 4], [0.0_f32; 4], [step]);
        let tags: &[u64] = match self {
            Self::Line => {
                state.tensor("weights", &mut weights[..2])?.tensor("step", &mut steps)?;
                &[0]
            }
            Self::Curve => {
                state.tensor("weights", &mut weights)?.tensor("momentum", &mut momentum)?;
                &[1, 2]
            }
        };
        comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
        drop(state);
        assert!(!comm.are_peers_pending()?);
        let elements = if tags.len() == 1 { 2 } else { 4 };
        for tag in tags {
            comm.weighted_average(&mut vec![0.0_f32; elements], 1.0, *tag)?;
        }
        Ok(())
    }
}

/// Waits until all but this peer are in a sync.
fn await_sync(comm: &Communicator) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = comm.status().expect("a status");
        let missing = status.waits.iter().find_map(|wait| {
            let text = wait.text.as_str();
            text.contains("shared-state sync of group 0 waits to begin")
                .then(|| text.matches("peer ").count())
        });
        if missing == Some(1) {
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
        pccl_testkit::barrier::look_again();
    }
}

/// The master ends in the middle of a training: two peers of the example are in a step, a third one is not.
fn in_the_middle(example: Example, name: &str) {
    let Some(program) = example.program(name) else { return };
    let port = free_port().to_string();
    let master = Running::master(&port);
    let peers: Vec<_> = (0..2).map(|_| Running::start(&program, &[&port, "3"])).collect();
    let third = Communicator::builder(&format!("127.0.0.1:{port}"))
        .first_ports(0, 0)
        .build()
        .expect("valid settings");
    third.make_good(pccl::Remedy::Reconnect, 3).expect("three peers");
    for step in 0..5 {
        example.step(&third, step).expect("a step");
    }
    await_sync(&third);
    let log = master.end(name);
    drop(third);
    for part in ["accepted", "group 0: ring"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(!log.contains("committed revision"), "{log}");
    let _master = Running::master(&port);
    let ends: Vec<String> = peers.iter().map(Running::result).collect();
    assert!(ends[0] == ends[1] && ends[0].starts_with("y = "), "{ends:?}");
    peers.into_iter().for_each(Running::finish);
}

#[test]
fn the_example_in_c_goes_on_after_a_master_that_was_told_to_end() {
    in_the_middle(Example::Line, "TERM");
}

#[test]
fn the_example_in_c_goes_on_after_a_master_that_was_killed() {
    in_the_middle(Example::Line, "KILL");
}

#[test]
fn the_example_in_cpp_goes_on_after_a_master_that_was_told_to_end() {
    in_the_middle(Example::Curve, "TERM");
}

#[test]
fn the_example_in_cpp_goes_on_after_a_master_that_was_killed() {
    in_the_middle(Example::Curve, "KILL");
}

/// The loop of the README, in Rust: the master ends while one peer is in a step and the other one is not.
fn the_loop_of_the_readme(name: &str) {
    let untrained = training_example::Training::default;
    let port = free_port().to_string();
    let address = &format!("127.0.0.1:{port}");
    let peer = || Communicator::builder(address).first_ports(0, 0).build().expect("valid settings");
    let master = Running::master(&port);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut training = untrained();
            training_example::train(&peer(), &mut training).map(|()| training.weights)
        });
        let second = peer();
        second.make_good(pccl::Remedy::Reconnect, 2).expect("two peers");
        await_sync(&second);
        master.end(name);
        let _master = Running::master(&port);
        let mut training = untrained();
        training_example::train(&second, &mut training).expect("it goes on");
        assert!(training.weights[0] > 0.5, "{}", training.weights[0]);
        assert_eq!(first.join().expect("no panic").expect("it goes on"), training.weights);
    });
}

#[test]
fn the_loop_of_the_readme_goes_on_after_a_master_that_was_told_to_end() {
    the_loop_of_the_readme("TERM");
}

#[test]
fn the_loop_of_the_readme_goes_on_after_a_master_that_was_killed() {
    the_loop_of_the_readme("KILL");
}

/// Nothing is set that has to do with the log, and still nobody waits in silence.
fn before_the_master(example: Example) {
    let Some(program) = example.program("before") else { return };
    let port = free_port().to_string();
    let first = Running::start(&program, &[&port, "2"]);
    first.await_log(&["WARN", "waiting for the master at 127.0.0.1:", "connection refused"]);
    let master = Running::master(&port);
    first.await_log(&[
        "WARN",
        "waiting for 1",
        " s: wait_for_world(2) with 1 accepted peers waits for more peers",
    ]);
    let second = Running::start(&program, &[&port, "2"]);
    let ends = [first.result(), second.result()];
    assert!(ends[0] == ends[1] && ends[0].starts_with("y = "), "{ends:?}");
    first.finish();
    second.finish();
    master.await_log(&["INFO", "peer left"]);
}

#[test]
fn the_example_in_c_may_be_started_before_its_master_and_alone() {
    before_the_master(Example::Line);
}

#[test]
fn the_example_in_cpp_may_be_started_before_its_master_and_alone() {
    before_the_master(Example::Curve);
}
