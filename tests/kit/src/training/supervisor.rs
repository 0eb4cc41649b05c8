//! Starts peers as child processes, listens to them, kills and replaces them as [`Run`] decides.
//!
//! No child outlives its supervisor: each is killed and reaped when its handle is dropped, on every way out; and
//! should the supervisor itself be killed, the end of their stdin tells the children.

use super::{
    progress::Progress,
    report::{LINE_BYTES_MAX, Report},
    run::{Action, Run},
};
use crate::process::{Process, Signal, each_line};
use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read, Write},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// How often processes and plan are looked at when nobody reports.
const TICK: Duration = Duration::from_millis(50);
/// Lines of a peer's stderr that are kept for the case that it fails.
const STDERR_LINES: usize = 20;

/// A message of a thread that reads one of a peer's output streams.
enum Notice {
    /// A line of stdout.
    Line(u32, String),
    /// The end of stdout or stderr.
    Closed(u32),
}

/// Output streams of a peer: stdout and stderr.
const STREAMS: u8 = 2;

/// A peer's process.
struct PeerProcess {
    process: Process,
    stderr: Arc<Mutex<VecDeque<String>>>,
    /// Output streams whose last line has not been read yet.
    open: u8,
    reaped: bool,
}

/// Runs processes for a [`Run`]; `command` makes the command line of the peer with a given number.
pub(crate) struct Supervisor<'a> {
    command: &'a dyn Fn(u32) -> Command,
    processes: BTreeMap<u32, PeerProcess>,
    sender: Sender<Notice>,
    receiver: Receiver<Notice>,
    started: Instant,
}

impl<'a> Supervisor<'a> {
    /// Starts no process yet.
    pub(crate) fn new(command: &'a dyn Fn(u32) -> Command) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self { command, processes: BTreeMap::new(), sender, receiver, started: Instant::now() }
    }

    /// Starts the `founders` of `run` and does what it decides until it is over. All processes are gone afterwards.
    pub(crate) fn run<W: Write>(
        &mut self,
        run: &mut Run,
        founders: u32,
        progress: &Progress<W>,
    ) -> io::Result<()> {
        let result = self.supervise(run, founders, progress);
        // A peer that is still there is not wanted any more.
        self.processes.values_mut().for_each(|peer| peer.process.end());
        result
    }

    /// The last lines that a peer wrote to stderr.
    pub(crate) fn stderr_of(&self, peer: u32) -> Vec<String> {
        self.processes
            .get(&peer)
            .map(|process| process.stderr.lock().iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Numbers of all peers that were started.
    pub(crate) fn peers(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    fn supervise<W: Write>(
        &mut self,
        run: &mut Run,
        founders: u32,
        progress: &Progress<W>,
    ) -> io::Result<()> {
        for peer in 0..founders {
            self.spawn(peer)?;
        }
        loop {
            self.listen(run);
            self.reap(run)?;
            for action in run.tick(self.started.elapsed()) {
                match action {
                    Action::Kill(peer) => self.kill(peer)?,
                    Action::Spawn(peer) => self.spawn(peer)?,
                    Action::Finish => {
                        // The last of them have not been shown yet.
                        run.take_events()
                            .iter()
                            .try_for_each(|event| progress.line(&format!("  {event}")))?;
                        return Ok(());
                    }
                }
            }
            progress.update(Instant::now(), &run.status(), &run.take_events())?;
        }
    }

    /// Takes in what peers have said, waiting up to one tick for the first of it.
    fn listen(&mut self, run: &mut Run) {
        // An error is the time-out: the sender that this object holds keeps the channel open.
        let mut notice = self.receiver.recv_timeout(TICK).ok();
        // One batch: a peer that talks without end must not keep the plan from going on.
        for _ in 0..1000 {
            match notice {
                None => return,
                Some(Notice::Line(peer, line)) => match Report::parse(&line) {
                    None => {}
                    Some(Ok(report)) => run.report(self.started.elapsed(), peer, report),
                    Some(Err(why)) => run.bad_report(peer, &why.to_string()),
                },
                Some(Notice::Closed(peer)) => {
                    if let Some(process) = self.processes.get_mut(&peer) {
                        process.open -= 1;
                    }
                }
            }
            notice = self.receiver.try_recv().ok();
        }
    }

    /// Notices processes that have ended; each only after its last lines have been taken in.
    fn reap(&mut self, run: &mut Run) -> io::Result<()> {
        for (&peer, process) in self.processes.iter_mut().filter(|(_, p)| p.open == 0 && !p.reaped) {
            if let Some(status) = process.process.ended()? {
                process.reaped = true;
                run.exited(peer, status.success(), &status.to_string());
            }
        }
        Ok(())
    }

    fn kill(&mut self, peer: u32) -> io::Result<()> {
        self.processes.get_mut(&peer).map_or(Ok(()), |peer| peer.process.signal(Signal::Kill))
    }

    fn spawn(&mut self, peer: u32) -> io::Result<()> {
        let mut command = (self.command)(peer);
        let mut process = Process::start(command.stderr(Stdio::piped()))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot start peer {peer}: {error}")))?;
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let (errors, kept, sender) = (process.errors(), Arc::clone(&stderr), self.sender.clone());
        let closed = self.sender.clone();
        process.listen(move |line| {
            // The receiver lives as long as the process; if it is gone, nobody needs the line.
            drop(sender.send(line.map_or(Notice::Closed(peer), |line| Notice::Line(peer, line))));
        })?;
        self.processes.insert(peer, PeerProcess { process, stderr, open: STREAMS, reaped: false });
        std::thread::Builder::new().name(format!("stderr-{peer}")).spawn(move || {
            each_line(errors, LINE_BYTES_MAX, |line| {
                let mut kept = kept.lock();
                if kept.len() == STDERR_LINES {
                    kept.pop_front();
                }
                kept.push_back(line);
            });
            // As above: without a receiver nobody needs it.
            drop(closed.send(Notice::Closed(peer)));
        })?;
        Ok(())
    }
}

/// In a supervised peer: ends this process as soon as its stdin does, which means that the supervisor is gone.
///
/// # Errors
/// If no thread can be started.
pub fn exit_with_supervisor() -> io::Result<()> {
    let watch = || {
        let mut scratch = [0; 64];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut scratch) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => std::process::exit(3),
                Ok(_) => {}
            }
        }
    };
    std::thread::Builder::new().name("supervisor-watch".to_owned()).spawn(watch).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::run::KillPlan;

    const FINAL: &str = "echo 'digits: kind=final step=4 revision=5 accuracy=0.99 hash=ab aborts=0 retries=0 \
                         joins=1 drifts=0 tx=1 rx=1'";

    fn shell(script: String) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    fn step(step: u64) -> String {
        format!("echo 'digits: kind=step step={step} world=2 loss=0.5 revision=1 tx=1 rx=1'; ")
    }

    fn supervise(
        command: &dyn Fn(u32) -> Command,
        plan: KillPlan,
        deadline: Duration,
    ) -> (Run, Vec<u32>, Vec<String>) {
        let mut run = Run::new(plan, 2, 4, 0.95, deadline);
        let progress = Progress::new(Vec::new(), false);
        let mut supervisor = Supervisor::new(command);
        supervisor.run(&mut run, 2, &progress).unwrap();
        for peer in supervisor.processes.values_mut() {
            assert!(peer.process.ended().unwrap().is_some(), "a process was left behind");
        }
        let stderr = supervisor.stderr_of(0);
        (run, supervisor.peers(), stderr)
    }

    #[test]
    fn a_peer_is_killed_and_replaced_and_the_others_finish() {
        let dir = std::env::temp_dir().join(format!("train-digits-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let fifo = dir.join("go");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let fifo = fifo.display().to_string();
        // Peer 0 waits for the replacement (peer 2), peer 1 for its death.
        let command = move |peer: u32| match peer {
            0 => shell(format!("{}read x < '{fifo}'; {FINAL}", step(2))),
            1 => shell(format!("{}exec cat", step(2))),
            _ => shell(format!(
                "echo 'digits: kind=event event=joined step=2 detail=x'; {}echo > '{fifo}'; {FINAL}",
                step(3)
            )),
        };
        let (run, peers, _) = supervise(&command, KillPlan::Midway, Duration::from_secs(60));
        std::fs::remove_dir_all(&dir).unwrap();
        let summary = run.verdict().unwrap();
        assert_eq!((summary.kills, summary.joins), (1, 1));
        assert_eq!(summary.finals.keys().copied().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(peers, [0, 1, 2]);
    }

    #[test]
    fn a_peer_that_ends_by_itself_ends_the_run_with_its_last_words() {
        let command = |peer: u32| match peer {
            0 => shell("echo ordinary output; echo no memory >&2; exit 7".to_owned()),
            _ => shell("exec cat".to_owned()),
        };
        let (run, _, stderr) = supervise(&command, KillPlan::Midway, Duration::from_secs(60));
        let problems = run.verdict().unwrap_err();
        assert!(problems[0].contains("peer 0 failed: ended with exit status: 7"), "{problems:?}");
        assert_eq!(stderr, ["no memory"]);
    }

    #[test]
    fn at_the_deadline_everybody_is_ended() {
        // Deaf to the end of stdin: only a kill ends them.
        let command = |_: u32| shell("exec tail -f /dev/null".to_owned());
        let (run, peers, _) = supervise(&command, KillPlan::Midway, Duration::from_millis(300));
        assert_eq!(peers, [0, 1]);
        assert!(run.verdict().unwrap_err()[0].contains("still running: peers 0, 1"));
    }

    #[test]
    fn a_program_that_cannot_start_is_named() {
        let command = |_: u32| Command::new("/no/such/program");
        let mut run = Run::new(KillPlan::Midway, 2, 4, 0.95, Duration::from_secs(9));
        let error =
            Supervisor::new(&command).run(&mut run, 2, &Progress::new(Vec::new(), false)).unwrap_err();
        assert!(error.to_string().contains("cannot start peer 0"), "{error}");
    }
}
