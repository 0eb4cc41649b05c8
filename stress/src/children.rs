//! The processes of a run. None outlives the supervisor: each ends when its standard input ends, when its handle is
//! dropped, and, even if it is stopped, when the kernel sees the supervisor end.

use crate::os::{self, Signal};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::SyncSender,
    thread,
};

/// Longest line that a child may write, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Where the flight recorders of all processes write, in the folder of the run.
pub(crate) const FLIGHT_FOLDER: &str = "flight";

/// Whose process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Master,
    Peer(usize),
}

/// What the supervisor hears.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A child wrote a line.
    Line(Who, String),
    /// A child has closed its standard output: it ends.
    Closed(Who),
    /// Somebody wants the run to end.
    Interrupt,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    status: Option<ExitStatus>,
}

/// This program.
pub(crate) fn this_program() -> io::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

impl Process {
    /// Starts a program, mostly this one again. Its lines go to `notices`, its log to the file `log`.
    ///
    /// Has to be called on a thread that lives as long as the run: children end with the thread that started them.
    pub(crate) fn start(
        who: Who,
        mut program: Command,
        args: &[String],
        log: &Path,
        notices: &SyncSender<Notice>,
    ) -> io::Result<Self> {
        let mut child = program
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .env("PCCL_FLIGHT_DIR", log.with_file_name(FLIGHT_FOLDER))
            // Ctrl-C is for the supervisor, which ends its children in order.
            .process_group(0)
            .spawn()?;
        let out = child.stdout.take();
        let process = Self { child, status: None };
        let notices = notices.clone();
        thread::Builder::new().name("child output".into()).spawn(move || {
            each_line(out, |line| {
                // The supervisor is gone only when the whole process ends.
                drop(notices.send(Notice::Line(who, line)));
            });
            drop(notices.send(Notice::Closed(who)));
        })?;
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, unless the process is known to have ended.
    pub(crate) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        match self.status {
            Some(_) => Ok(()),
            None => os::signal(self.child.id(), signal),
        }
    }

    /// Writes a line to its standard input. A process that has just ended does not read it, which is no error.
    pub(crate) fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.child.stdin {
            drop(writeln!(input, "{line}").and_then(|()| input.flush()));
        }
    }

    /// Ends its standard input.
    pub(crate) fn hang_up(&mut self) {
        drop(self.child.stdin.take());
    }

    /// How it ended, once it has.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            // The only place that gives the process's number back; from then on it is never signalled.
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            // Fails only if it has ended by itself, and then waiting is all that is left to do.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// Calls `take` with each line until the stream ends; a line over the limit arrives in pieces.
fn each_line(stream: Option<impl Read>, mut take: impl FnMut(String)) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            // What a killed process wrote last may be cut off; such a line has never been finished.
            Ok(_) if line.last() != Some(&b'\n') && (line.len() as u64) < LINE_BYTES_MAX => return,
            Ok(_) => take(String::from_utf8_lossy(&line).trim_end().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_whole_and_a_torn_one_not_at_all() {
        let mut lines = Vec::new();
        each_line(Some(&b"one\n\ntwo\nthr"[..]), |line| lines.push(line));
        assert_eq!(lines, ["one", "", "two"]);
    }
}
