//! A master in a process of its own, so that it can be killed and stopped like any other.

use crate::{
    fleet::Fleet,
    peer::{Answer, Peer, await_stop, give_key},
};
use pccl::MasterConfig;
use pccl_testkit::process::{Process, Signal};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Command,
};

/// The program whose process a master is.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_pccl-test-peer");

/// A master process. It dies with this value.
#[derive(Debug)]
pub(crate) struct MasterProcess {
    process: Process,
    output: BufReader<std::process::ChildStdout>,
    address: String,
}

impl MasterProcess {
    pub(crate) fn start(config: &MasterConfig) -> Self {
        Self::start_program(Path::new(PROGRAM), config)
    }

    /// The same, by a copy of the program.
    pub(crate) fn start_program(program: &Path, config: &MasterConfig) -> Self {
        let mut command = Command::new(program);
        give_key(&mut command, config.run_key.as_ref());
        Self::start_by(command, config)
    }

    /// The same, by a command that leads to the program.
    fn start_by(mut command: Command, config: &MasterConfig) -> Self {
        command.args(["master", &config.listen, &config.peer_timeout.as_millis().to_string()]);
        command.args(config.journal.iter().map(|path| format!("journal={}", path.display())));
        command.arg(format!("accept-standbys={}", config.accept_standbys));
        command.args(config.admin.iter().map(|path| format!("admin={}", path.display())));
        if !config.masters.is_empty() {
            command.arg(format!("masters={}", config.masters.join(",")));
        }
        if !config.standby_of.is_empty() {
            command.arg(format!("standby-of={}", config.standby_of.join(",")));
        }
        let mut process = Process::start(&mut command).expect("the master process starts");
        let mut address = String::new();
        let mut output = BufReader::new(process.output().expect("piped"));
        output.read_line(&mut address).expect("the master says where it listens");
        assert!(address.contains(':'), "the master did not start");
        Self { process, output, address: address.trim().to_owned() }
    }

    /// One that stands by for these.
    pub(crate) fn stand_by(config: &MasterConfig, masters: &[&str]) -> Self {
        let standby_of = masters.iter().map(|&place| place.to_owned()).collect();
        let listen = "127.0.0.1:0".to_owned();
        Self::start(&MasterConfig { listen, standby_of, journal: None, ..config.clone() })
    }

    /// Asks it to stop, as SIGTERM does with the program.
    pub(crate) fn ask_to_stop(&mut self) {
        self.process.hang_up();
    }

    /// Waits for its end, which has to be a good one.
    pub(crate) fn await_end(&mut self) {
        let status = self.process.wait().expect("a child");
        assert!(status.success(), "{status}");
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// SIGSTOP; returns when it has taken effect.
    pub(crate) fn stop(&mut self) {
        self.process.signal(Signal::Stop).expect("a child");
        await_stop(self.process.pid());
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self) {
        self.process.signal(Signal::Continue).expect("a child");
    }

    /// Why it has ended by itself; waits for that.
    pub(crate) fn last_words(&mut self) -> String {
        let mut words = String::new();
        self.output.read_line(&mut words).expect("its output");
        words
    }
}

impl Fleet {
    /// A world of `n` peers whose master is a process of its own.
    pub(crate) fn with_master_process(config: MasterConfig, n: usize, settings: &[&str]) -> Self {
        let process = MasterProcess::start(&config);
        let mut fleet = Self::at(&process.address);
        fleet.config = MasterConfig { listen: process.address.clone(), ..config };
        fleet.process = Some(process);
        for _ in 0..n {
            fleet.spawn(settings);
        }
        fleet.send("connect");
        fleet.send(format!("wait {n} 0"));
        let answers: Vec<Answer> =
            fleet.peers.iter_mut().flat_map(|peer| [peer.answer(), Peer::answer(peer)]).collect();
        assert!(answers.iter().all(|answer| answer.ok), "{answers:?}");
        fleet.meet();
        fleet
    }

    /// Nobody, and a master whose process this command starts; others reach it at `address`.
    pub(crate) fn with_master_by(command: Command, address: &str, config: MasterConfig) -> Self {
        let process = MasterProcess::start_by(command, &config);
        let mut fleet = Self::at(address);
        (fleet.config, fleet.process) = (config, Some(process));
        fleet
    }

    /// SIGKILL.
    pub(crate) fn kill_master_process(&mut self) {
        self.process = None;
    }

    /// Starts another one on the same port.
    pub(crate) fn start_master_process(&mut self) {
        self.process = Some(MasterProcess::start(&self.config));
    }

    /// SIGSTOP; returns when it has taken effect.
    pub(crate) fn stop_master_process(&mut self) {
        self.process.as_mut().expect("a master process").stop();
    }

    /// SIGCONT.
    pub(crate) fn resume_master_process(&mut self) {
        self.process.as_mut().expect("a master process").resume();
    }
}
