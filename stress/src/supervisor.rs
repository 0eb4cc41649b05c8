//! Runs master and peers, does to them what the schedule says, and lets the oracle judge what they report.

use crate::{
    args::{Args, Role},
    authority::Authority,
    children::{Notice, Who},
    event::{Event, Line},
    fault::Fault,
    fleet::Fleet,
    journal::Journal,
    links::Links,
    oracle::{Check, GRACE_US, Oracle},
    os::{self, EndSignals},
    record::Record,
    report::{Report, live_line},
    schedule::{Plan, Schedule, View},
    workload::Workload,
};
use std::{
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

/// How often the plan is looked at when nobody reports.
const TICK: Duration = Duration::from_millis(10);
/// Reports that may wait; then the peers wait.
const NOTICES_MAX: usize = 10_000;
/// Time in which the master has to end.
const MASTER_PATIENCE_US: u64 = 3_000_000 + GRACE_US;
/// How often processes are looked at.
const SAMPLE_US: u64 = 1_000_000;
/// Time between two live lines on a terminal, and elsewhere.
const LIVE_US: (u64, u64) = (1_000_000, 10_000_000);

/// Part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Faults are made.
    Faults,
    /// No more faults; everybody has to get going again.
    Heal { since_us: u64 },
    /// Everybody is asked to leave.
    Dismiss,
}

struct Supervisor<'a> {
    args: &'a Args,
    seed: u64,
    oracle: Oracle,
    schedule: Schedule,
    fleet: Fleet,
    journal: Journal,
    record: Record,
    notices: Receiver<Notice>,
    stage: Stage,
    began_us: u64,
    ends_us: u64,
    next_sample_us: u64,
    next_live_us: u64,
    interrupted: bool,
}

/// Makes a run. All processes are gone when it returns.
///
/// # Errors
/// When the run could not be made: files, processes.
pub(crate) fn run(args: &Args) -> io::Result<Report> {
    let signals = EndSignals::block()?;
    let began_us = os::monotonic_us();
    let seed = args.seed.unwrap_or(began_us);
    let folder = folder(args)?;
    println!("seed {seed}; logs and reports in {}", folder.display());
    let (sender, notices) = sync_channel(NOTICES_MAX);
    watch_signals(signals, sender.clone())?;
    let mut journal = Journal::create(&folder, began_us)?;
    journal.event(began_us, &args.replay_command(seed))?;
    let workload = Workload { seed, elements: args.elements as usize };
    let peer_timeout_us = args.peer_timeout_ms * 1000;
    let authority = Authority::start(args.peer_timeout_ms, &folder, &sender, &notices)?;
    let peer_args = peer_args(args, seed, authority.address());
    let links = Links::start(!args.no_proxy)?;
    let plan = Plan {
        profile: args.profile,
        peers: args.peers,
        duration_us: args.duration().as_micros() as u64,
        master_kill: args.master_kill,
        step_bytes: workload.step_bytes(),
    };
    let mut supervisor = Supervisor {
        args,
        seed,
        oracle: Oracle::new(workload, peer_timeout_us),
        schedule: Schedule::new(seed, plan, began_us),
        fleet: Fleet::new(authority, links, peer_args, args.groups, sender),
        journal,
        record: Record::default(),
        notices,
        stage: Stage::Faults,
        began_us,
        ends_us: began_us + args.duration().as_micros() as u64,
        next_sample_us: 0,
        next_live_us: 0,
        interrupted: false,
    };
    let result = supervisor.supervise();
    // The processes go first, also when files cannot be written any more.
    let report = supervisor.finish(&folder);
    result.and(report)
}

/// The folder for logs and reports.
fn folder(args: &Args) -> io::Result<PathBuf> {
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("pccl-stress-{}", std::process::id())),
    };
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn watch_signals(signals: EndSignals, sender: SyncSender<Notice>) -> io::Result<()> {
    thread::Builder::new().name("signals".into()).spawn(move || {
        while signals.wait().is_ok() {
            if sender.send(Notice::Interrupt).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// The arguments of every peer; its number is added.
fn peer_args(args: &Args, seed: u64, address: &str) -> Vec<String> {
    debug_assert_eq!(args.role, Role::Supervisor);
    [
        ("--role", "peer".to_owned()),
        ("--master", address.to_owned()),
        ("--seed", seed.to_string()),
        ("--elements", args.elements.to_string()),
        ("--step-ms", args.step_ms.to_string()),
        ("--peer-timeout-ms", args.peer_timeout_ms.to_string()),
        ("--profile", args.profile.to_string()),
        ("--groups", args.groups.to_string()),
        ("--peers", args.peers.to_string()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect()
}

impl Supervisor<'_> {
    fn supervise(&mut self) -> io::Result<()> {
        for _ in 0..self.args.peers.min {
            self.apply(Fault::Spawn)?;
        }
        loop {
            let all_heard = self.listen()?;
            let now_us = os::monotonic_us();
            self.fleet.reap(&mut self.oracle, &mut self.journal, now_us)?;
            self.fleet.resume_due(&mut self.oracle, &mut self.journal, now_us)?;
            self.fleet.authority.restart_due(&mut self.oracle, &mut self.journal, now_us)?;
            // What has not been heard yet has perhaps been said in time.
            if all_heard {
                self.oracle.tick(now_us);
            }
            if self.next_sample_us <= now_us {
                self.next_sample_us = now_us + SAMPLE_US;
                self.fleet.sample(now_us);
            }
            self.record.recoveries.extend(self.oracle.take_recoveries());
            self.show(now_us)?;
            if self.interrupted || !self.oracle.violations().is_empty() || self.advance(now_us)? {
                return Ok(());
            }
        }
    }

    /// Takes in what there is, waiting up to one tick for the first of it; says whether that was all.
    fn listen(&mut self) -> io::Result<bool> {
        // An error is the time-out: the fleet holds a sender, which keeps the channel open.
        let mut next = self.notices.recv_timeout(TICK).ok();
        // One batch: those who talk without end must not keep the plan from going on.
        for _ in 0..1_000 {
            match next {
                None => return Ok(true),
                Some(Notice::Line(Who::Peer(peer), line)) => self.hear(peer, &line)?,
                Some(Notice::Line(Who::Master, line)) => {
                    self.journal.event(os::monotonic_us(), &format!("master: {line}"))?;
                    self.fleet.authority.line(&line, &mut self.oracle);
                }
                Some(Notice::Closed(who)) => {
                    self.fleet.closed(who, &mut self.oracle, os::monotonic_us());
                }
                Some(Notice::Interrupt) => self.interrupted = true,
            }
            next = self.notices.try_recv().ok();
        }
        Ok(false)
    }

    fn hear(&mut self, peer: usize, text: &str) -> io::Result<()> {
        self.journal.line(peer, text);
        match Line::parse(text) {
            Ok(line) => {
                if !matches!(line.event, Event::Synced { .. } | Event::Reduced(_)) {
                    self.journal.event(line.at_us, &format!("peer {peer}: {text}"))?;
                }
                self.oracle.line(peer, line);
            }
            Err(why) => self.oracle.bad_line(peer, text, &why, os::monotonic_us()),
        }
        Ok(())
    }

    /// Does what is due; `true` when the run is over.
    fn advance(&mut self, now_us: u64) -> io::Result<bool> {
        match self.stage {
            Stage::Faults if now_us >= self.ends_us => {
                self.journal.event(now_us, "no more faults")?;
                self.fleet.resume_all(&mut self.oracle, &mut self.journal, now_us)?;
                self.fleet.links.heal();
                self.stage = Stage::Heal { since_us: now_us };
            }
            Stage::Faults => {
                for fault in self.schedule.due(now_us, &self.view(now_us)) {
                    self.apply(fault)?;
                }
            }
            Stage::Heal { since_us } if self.oracle.all_completed_since(since_us) => {
                self.journal.event(now_us, "everybody goes on; all are dismissed")?;
                self.fleet.dismiss_all(&mut self.oracle, &mut self.journal, now_us)?;
                self.stage = Stage::Dismiss;
            }
            // The oracle judges whoever takes too long.
            Stage::Heal { .. } => {}
            Stage::Dismiss => return Ok(self.fleet.is_empty()),
        }
        Ok(false)
    }

    fn view(&self, now_us: u64) -> View {
        let (mut steady, mut unsteady) = (Vec::new(), Vec::new());
        for peer in self.fleet.running() {
            if self.oracle.is_steady(peer) { &mut steady } else { &mut unsteady }.push(peer);
        }
        let stopped = self.fleet.stopped();
        let quiet = unsteady.is_empty() && stopped.is_empty() && self.fleet.ending().is_empty();
        View {
            may_stop: self.oracle.gap_us(now_us) < self.args.peer_timeout_ms * 1000 / 2,
            settled: quiet && steady.iter().all(|&peer| self.oracle.holds_state(peer)),
            leaderless: self.oracle.is_leaderless(),
            groups: self.fleet.groups(),
            disturbed: self.fleet.links.disturbed(now_us),
            starting: 0,
            steady,
            unsteady,
            stopped,
        }
    }

    fn apply(&mut self, fault: Fault) -> io::Result<()> {
        let now_us = os::monotonic_us();
        self.record.fault(fault.kind());
        if !matches!(fault, Fault::Kill(_)) {
            self.oracle.disturbed(fault.kind(), fault.peer(), now_us);
        }
        self.fleet.apply(fault, &mut self.oracle, &mut self.journal, now_us)
    }

    fn show(&mut self, now_us: u64) -> io::Result<()> {
        if now_us < self.next_live_us {
            return Ok(());
        }
        let terminal = io::stdout().is_terminal();
        self.next_live_us = now_us + if terminal { LIVE_US.0 } else { LIVE_US.1 };
        let left_s = self.ends_us.saturating_sub(now_us) / 1_000_000;
        let counts = self.oracle.counts();
        let line = live_line(left_s, self.oracle.world(), &self.record, &counts);
        let mut out = io::stdout().lock();
        if terminal {
            write!(out, "\r\x1b[K{line}")?;
        } else {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }

    /// Ends all processes, judges what is left to judge, and writes the reports.
    fn finish(mut self, folder: &Path) -> io::Result<Report> {
        let now_us = os::monotonic_us();
        if io::stdout().is_terminal() {
            println!();
        }
        if !self.oracle.violations().is_empty() {
            self.fleet.write_threads(&mut self.journal, now_us)?;
        }
        self.fleet.kill_all();
        let master = self.fleet.authority.end(MASTER_PATIENCE_US);
        if let Some(text) = master {
            self.oracle.violation(now_us, Check::Process, text);
        }
        if !self.interrupted {
            self.oracle.finish(now_us);
        }
        let survivors = self.fleet.survivors();
        for survivor in &survivors {
            if let Some(excess) = survivor.growth.excess() {
                self.oracle.violation(now_us, Check::Growth, format!("{} {excess}", survivor.name));
            }
        }
        let report = self.report(survivors, now_us, folder);
        for violation in &report.violations {
            let text = format!("VIOLATION {}: {}", violation.check.name(), violation.text);
            self.journal.event(violation.at_us, &text)?;
        }
        if !report.violations.is_empty() {
            self.journal.write_lines()?;
        }
        std::fs::write(folder.join("report.json"), report.json().write())?;
        std::fs::write(folder.join("summary.txt"), report.summary())?;
        Ok(report)
    }

    fn report(&self, survivors: Vec<crate::report::Survivor>, now_us: u64, folder: &Path) -> Report {
        Report {
            seed: self.seed,
            replay: self.args.replay_command(self.seed),
            profile: self.args.profile.to_string(),
            peers: self.args.peers.to_string(),
            peer_timeout_ms: self.args.peer_timeout_ms,
            elements: self.args.elements,
            wanted_seconds: self.args.duration().as_secs(),
            seconds: (now_us - self.began_us) as f64 / 1e6,
            interrupted: self.interrupted,
            faults: self.record.faults.clone(),
            counts: self.oracle.counts(),
            longest_gap_us: self.oracle.longest_gap().us,
            recoveries: self.record.recoveries.clone(),
            survivors,
            violations: self.oracle.violations().to_vec(),
            began_us: self.began_us,
            folder: folder.display().to_string(),
        }
    }
}
