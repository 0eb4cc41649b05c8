//! One peer process and the conversation with it.

use pccl::RunKey;
use pccl_master::KEY_VARIABLE;
use pccl_testkit::process::{Process, Signal};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

/// How long anything may take: far longer than it should, on any machine.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A process that has this key, whatever the environment says.
pub(crate) fn give_key(command: &mut Command, key: Option<&RunKey>) {
    command.env_remove(KEY_VARIABLE).envs(key.map(|key| (KEY_VARIABLE, key.to_text())));
}

/// The answer of a peer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) fields: HashMap<String, String>,
    pub(crate) text: String,
    /// `note` lines that came before it.
    pub(crate) notes: Vec<String>,
}

impl Answer {
    fn parse(line: &str, notes: Vec<String>) -> Self {
        let (head, text) = line.split_once(" -- ").unwrap_or((line, ""));
        let mut words = head.split(' ');
        let ok = words.next() == Some("ok");
        let fields = words.filter_map(|word| word.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
        Self { ok, fields: fields.collect(), text: text.to_owned(), notes }
    }

    /// A field.
    #[track_caller]
    pub(crate) fn field(&self, key: &str) -> &str {
        self.fields.get(key).unwrap_or_else(|| panic!("no field {key} in {self:?}"))
    }

    /// A field that is a number.
    #[track_caller]
    pub(crate) fn number(&self, key: &str) -> usize {
        self.field(key).parse().unwrap_or_else(|_| panic!("{key} is no number in {self:?}"))
    }

    /// Kind of the error, empty for an `ok`.
    pub(crate) fn kind(&self) -> &str {
        self.fields.get("kind").map_or("", String::as_str)
    }

    /// The ring of the world, as peer ids.
    #[track_caller]
    pub(crate) fn ring(&self) -> Vec<String> {
        self.list("ring")
    }

    /// A field that is a list.
    #[track_caller]
    pub(crate) fn list(&self, key: &str) -> Vec<String> {
        self.field(key).split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    /// Requires success.
    #[track_caller]
    pub(crate) fn good(self) -> Self {
        assert!(self.ok, "{self:?}");
        self
    }

    /// Requires this kind of error.
    #[track_caller]
    pub(crate) fn bad(self, kind: &str) -> Self {
        assert!(!self.ok && self.kind() == kind, "expected {kind}: {self:?}");
        self
    }
}

/// A peer process. It dies with this value.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Number that its inputs are made of.
    pub(crate) index: usize,
    /// Identity in the run, known after it has connected.
    pub(crate) id: Option<String>,
    log: PathBuf,
    process: Process,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts a process; it does not connect yet.
    pub(crate) fn spawn(
        dir: &Path,
        index: usize,
        master: &str,
        key: Option<&RunKey>,
        settings: &[&str],
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-test-peer"));
        give_key(&mut command, key);
        Self::start(command, dir, index, master, settings)
    }

    /// As [`Peer::spawn`], by this command, which leads to the peer program.
    pub(crate) fn start(
        mut command: Command,
        dir: &Path,
        index: usize,
        master: &str,
        settings: &[&str],
    ) -> Self {
        let log = dir.join(format!("peer-{index}.log"));
        command.arg(index.to_string()).arg(&log).arg(master).args(settings);
        let mut process = Process::start(&mut command).expect("the peer program starts");
        let (sender, lines) = channel();
        let mut sender = Some(sender);
        process
            .listen(move |line| match line {
                Some(line) => drop(sender.as_ref().map(|sender| sender.send(line))),
                None => sender = None,
            })
            .expect("a thread");
        Self { index, id: None, log, process, lines }
    }

    /// Sends a command; the answer is fetched later. A dead peer is noticed then.
    pub(crate) fn send(&mut self, command: impl AsRef<str>) {
        let _ = self.process.tell(command.as_ref());
    }

    /// The answer to the oldest command that has none yet; `None`: the process died.
    pub(crate) fn answer_or_death(&mut self) -> Option<Answer> {
        let deadline = Instant::now() + WATCHDOG;
        let mut notes = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.strip_prefix("note ") {
                    Some(note) => notes.push(note.to_owned()),
                    None => return Some(Answer::parse(&line, notes)),
                },
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("peer {} does not answer; the end of its log:\n{}", self.index, self.log_tail())
                }
            }
        }
    }

    /// The answer to the oldest command that has none yet.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Answer {
        match self.answer_or_death() {
            Some(answer) => answer,
            None => panic!("peer {} died; the end of its log:\n{}", self.index, self.log_tail()),
        }
    }

    /// The answer, if it comes in time. Notes are thrown away.
    pub(crate) fn answer_within(&mut self, time: Duration) -> Option<Answer> {
        let line = self.lines.recv_timeout(time).ok()?;
        (!line.starts_with("note ")).then(|| Answer::parse(&line, Vec::new()))
    }

    /// Waits for the next `note` line.
    #[track_caller]
    pub(crate) fn note(&mut self) -> String {
        match self.lines.recv_timeout(WATCHDOG) {
            Ok(line) if line.starts_with("note ") => line,
            other => panic!("peer {}: a note was expected: {other:?}\n{}", self.index, self.log_tail()),
        }
    }

    /// A command and its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: impl AsRef<str>) -> Answer {
        self.send(command);
        self.answer()
    }

    /// Whether the process is dead. Answers that were not fetched are lost.
    pub(crate) fn is_dead(&mut self) -> bool {
        self.lines.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected)
    }

    /// Waits until the process is dead, by its own hand or another's.
    pub(crate) fn await_death(&mut self) {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("peer {} lives on; the end of its log:\n{}", self.index, self.log_tail())
                }
            }
        }
        let _ = self.process.wait();
    }

    /// SIGKILL, from outside.
    pub(crate) fn kill(&mut self) {
        self.process.end();
    }

    /// SIGSTOP.
    pub(crate) fn stop(&mut self) {
        self.process.signal(Signal::Stop).expect("a child");
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self) {
        self.process.signal(Signal::Continue).expect("a child");
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits until the process is stopped by a signal.
    pub(crate) fn await_stop(&self) {
        await_stop(self.pid());
    }

    /// Number of entries of a directory of `/proc/PID`: `task` or `fd`.
    pub(crate) fn proc_count(&self, what: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{what}", self.pid())).map_or(0, Iterator::count)
    }

    /// The whole log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log holds this text.
    pub(crate) fn await_log(&self, text: &str) {
        let deadline = Instant::now() + WATCHDOG;
        while !self.log().contains(text) {
            assert!(
                Instant::now() < deadline,
                "peer {} does not log {text:?}\n{}",
                self.index,
                self.log_tail()
            );
            pccl_testkit::barrier::look_again();
        }
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// The fields of `/proc/PID/stat` behind the name, from the state on.
pub(crate) fn proc_stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
    fields.split_whitespace().map(str::to_owned).collect()
}

/// Waits until a process is stopped by a signal.
pub(crate) fn await_stop(pid: u32) {
    let deadline = Instant::now() + WATCHDOG;
    while proc_stat(pid).first().map(String::as_str) != Some("T") {
        assert!(Instant::now() < deadline, "process {pid} was not stopped");
        pccl_testkit::barrier::look_again();
    }
}
