//! The processes of a run. None outlives the supervisor: each ends when its standard input ends, when its handle is
//! dropped, and, even if it is stopped, when the kernel sees the supervisor end.

use pccl_testkit::process::Process;
use std::{
    fs::File, io, os::unix::process::CommandExt, path::Path, process::Command, sync::mpsc::SyncSender,
};
use tinysockets::key::{KEY_VARIABLE, RunKey};

/// Where the flight recorders of all processes write, in the folder of the run.
pub(crate) const FLIGHT_FOLDER: &str = "flight";

/// A process of the run: a master or a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// By its place among those of the run.
    Master(usize),
    Peer(usize),
}

/// A message to the supervisor.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A child wrote a line.
    Line(Who, String),
    /// A child has closed its standard output: it ends.
    Closed(Who),
    /// Somebody wants the run to end.
    Interrupt,
}

/// This program.
pub(crate) fn this_program() -> io::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// Starts the processes of a run.
#[derive(Debug, Clone)]
pub(crate) struct Starter {
    /// Where their lines go.
    pub(crate) notices: SyncSender<Notice>,
    /// The secret of the run, if it has one.
    pub(crate) key: Option<RunKey>,
}

impl Starter {
    /// Starts a program, mostly this one again. Its log goes to the file `log`.
    ///
    /// Has to be called on a thread that lives as long as the run: children end with the thread that started them.
    pub(crate) fn start(
        &self,
        who: Who,
        mut program: Command,
        args: &[String],
        log: &Path,
    ) -> io::Result<Process> {
        program
            .args(args)
            .stderr(File::create(log)?)
            .env("PCCL_FLIGHT_DIR", log.with_file_name(FLIGHT_FOLDER))
            // That of the supervisor's own environment is that of another run.
            .env_remove(KEY_VARIABLE)
            .envs(self.key.iter().map(|key| (KEY_VARIABLE, key.to_text())))
            // Ctrl-C is for the supervisor, which ends its children in order.
            .process_group(0);
        let mut process = Process::start(&mut program)?;
        let notices = self.notices.clone();
        process.listen(move |line| {
            // The supervisor is gone only when the whole process ends.
            drop(notices.send(line.map_or(Notice::Closed(who), |line| Notice::Line(who, line))));
        })?;
        Ok(process)
    }
}
