//! Runs master and peers, does to them what the schedule says, and lets the oracle judge what they report.

use crate::{
    args::Args,
    authority::Authority,
    baseline::{Measurement, Next},
    children::{Notice, Starter, Who},
    clients::Clients,
    event::{Event, Line},
    fault::Fault,
    fleet::Fleet,
    journal::Journal,
    links::Links,
    oracle::{Check, GRACE_US, Oracle},
    os::{self, EndSignals},
    procfs,
    record::Record,
    report::{Finding, Part, Report, Status, live_line},
    schedule::{Plan, Schedule, View},
    setup::{Beginning, peer_args, watch_signals},
    workload::Workload,
};
use std::{
    io::{self, IsTerminal, Write},
    sync::mpsc::{Receiver, sync_channel},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tinysockets::key::RunKey;

/// How often the plan is looked at when nobody reports.
const TICK: Duration = Duration::from_millis(10);
/// Reports that may wait; then the peers wait.
const NOTICES_MAX: usize = 1_000;
/// Reports that are taken in at once.
const BATCH: usize = 500;
/// Time in which the master has to end.
const MASTER_PATIENCE_US: u64 = 3_000_000 + GRACE_US;
/// Time between two faults that others may have to wait for.
const PAUSE_US: u64 = 3_000_000;
/// How often processes are looked at.
const SAMPLE_US: u64 = 1_000_000;
/// Time between two live lines on a terminal, and elsewhere.
const LIVE_US: (u64, u64) = (1_000_000, 10_000_000);

/// How often the report is written while the run lasts: what is left if this process is killed.
const WRITE_US: u64 = 60_000_000;

/// Part of a run.
#[derive(Debug, Clone)]
enum Stage {
    /// It is measured what is done without faults.
    Baseline(Measurement),
    /// Faults are made.
    Faults,
    /// No more faults; everybody has to get going again.
    Heal { since_us: u64 },
    /// Everybody is asked to leave.
    Dismiss,
}

struct Supervisor<'a> {
    args: &'a Args,
    beginning: Beginning,
    build: String,
    oracle: Oracle,
    schedule: Schedule,
    fleet: Fleet,
    journal: Journal,
    record: Record,
    notices: Receiver<Notice>,
    stage: Stage,
    began_us: u64,
    ends_us: u64,
    began_unix_s: u64,
    next_write_us: u64,
    next_sample_us: u64,
    next_live_us: u64,
    longest_gap_us: u64,
    interrupted: bool,
}

/// Makes a run. All processes are gone when it returns.
///
/// # Errors
/// When the run could not be made: files, processes.
pub(crate) fn run(args: &Args) -> io::Result<Status> {
    let signals = EndSignals::block()?;
    let beginning = Beginning::find(args, os::monotonic_us())?;
    let args = &beginning.args.clone();
    let seed = beginning.seed;
    println!("seed {seed}; logs and reports in {}", beginning.logs.display());
    let (sender, notices) = sync_channel(NOTICES_MAX);
    watch_signals(signals, sender.clone())?;
    let clients = Clients::build(args, &beginning.logs)?;
    let build = beginning.build(clients.library())?;
    // Building takes as long as it takes: the clock begins with the run.
    let began_us = os::monotonic_us();
    let mut journal = Journal::create(&beginning.logs, began_us)?;
    journal.event(began_us, &args.replay_command(seed))?;
    let workload = Workload { seed, elements: args.elements as usize };
    // A peer whose edges are all cut is found out by one of them after the other, for at least two of its neighbours.
    let edges_us = 2 * pccl::MasterConfig::default().edge_timeout.as_micros() as u64;
    let patience_us = edges_us.max(args.peer_timeout_ms * 1000);
    let key = if args.insecure { None } else { Some(RunKey::generate()?) };
    let starter = Starter { notices: sender, key };
    let authority = Authority::start(args, &beginning.logs, &starter, &notices)?;
    let peer_args = peer_args(args, seed, &authority.addresses());
    let links = Links::start(!args.no_proxy)?;
    let duration_us = args.duration().as_micros() as u64;
    let plan = Plan {
        profile: args.profile,
        peers: args.peers,
        duration_us,
        master_kill: args.master_kill,
        survives_master: args.survives_master(),
        step_bytes: workload.step_bytes() + args.state_bytes() as u64,
    };
    let mut schedule = Schedule::new(seed, plan, began_us);
    if let Some(seconds) = args.fault_every {
        schedule.every(seconds * 1_000_000);
    }
    let mut supervisor = Supervisor {
        args,
        beginning,
        build,
        oracle: Oracle::new(workload, patience_us),
        schedule,
        fleet: Fleet::new(authority, links, peer_args, clients, args.groups, starter),
        journal,
        record: Record::new(began_us),
        notices,
        stage: Stage::Baseline(Measurement::new(args.peers, args.groups as usize, args.duration())),
        began_us,
        ends_us: began_us + duration_us,
        began_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        next_write_us: began_us + WRITE_US,
        next_sample_us: 0,
        next_live_us: 0,
        longest_gap_us: 0,
        interrupted: false,
    };
    let result = supervisor.supervise();
    // The processes go first, also when files cannot be written any more.
    let report = supervisor.finish();
    let report = result.and(report)?;
    print!("{}", report.summary(&supervisor.beginning.folder));
    Ok(report.status)
}

impl Supervisor<'_> {
    fn supervise(&mut self) -> io::Result<()> {
        loop {
            let all_heard = self.listen()?;
            let now_us = os::monotonic_us();
            self.fleet.reap(&mut self.oracle, &mut self.journal, now_us)?;
            self.fleet.resume_due(&mut self.oracle, &mut self.journal, now_us)?;
            self.fleet.authority.continue_due(&mut self.oracle, &mut self.journal, now_us)?;
            // A line that has not been heard yet has perhaps been said in time.
            if all_heard {
                self.oracle.tick(now_us);
            }
            if self.next_sample_us <= now_us {
                self.next_sample_us = now_us + SAMPLE_US;
                self.fleet.sample(now_us);
            }
            self.record.recovered(&self.oracle.take_recoveries(now_us));
            self.record.tick(now_us, self.oracle.world(), self.oracle.counts().operations);
            self.note_gap(now_us)?;
            self.show(now_us)?;
            if self.next_write_us <= now_us {
                self.next_write_us = now_us + WRITE_US;
                self.report(Status::Unfinished).write(&self.beginning.folder)?;
            }
            if self.interrupted || !self.oracle.violations().is_empty() || self.advance(now_us)? {
                return Ok(());
            }
        }
    }

    /// Writes down a gap that is longer than any before.
    fn note_gap(&mut self, now_us: u64) -> io::Result<()> {
        let gap = self.oracle.longest_gap();
        if gap.us <= self.longest_gap_us {
            return Ok(());
        }
        self.longest_gap_us = gap.us;
        self.journal.event(now_us, &format!("longest gap so far: {} ms", gap.us / 1000))
    }

    /// Takes in what there is, waiting up to one tick for the first of it; says whether that was all.
    fn listen(&mut self) -> io::Result<bool> {
        // An error is the time-out: the fleet holds a sender, which keeps the channel open.
        let mut wait = Some(TICK);
        // One batch: those who talk without end must not keep the plan from going on. A notice that is taken out is
        // also heard.
        for _ in 0..BATCH {
            let next = match wait.take() {
                Some(tick) => self.notices.recv_timeout(tick).ok(),
                None => self.notices.try_recv().ok(),
            };
            match next {
                None => return Ok(true),
                Some(Notice::Line(Who::Peer(peer), line)) => self.hear(peer, &line)?,
                Some(Notice::Line(Who::Master(place), line)) => {
                    if self.fleet.authority.line(place, &line, &mut self.oracle) {
                        self.journal.event(os::monotonic_us(), &format!("master {place}: {line}"))?;
                    }
                }
                Some(Notice::Closed(who)) => {
                    self.fleet.closed(who, &mut self.oracle, os::monotonic_us());
                }
                Some(Notice::Interrupt) => self.interrupted = true,
            }
        }
        Ok(false)
    }

    fn hear(&mut self, peer: usize, text: &str) -> io::Result<()> {
        self.journal.line(peer, text);
        match Line::parse(text) {
            Ok(line) => {
                if !matches!(line.event, Event::Synced { .. } | Event::Completed(_)) {
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
        match &mut self.stage {
            Stage::Baseline(measurement) => {
                let (started, world) = (self.fleet.started(), self.oracle.world());
                match measurement.next(now_us, started, world, self.oracle.counts().operations) {
                    Next::Wait => {}
                    Next::Spawn => {
                        self.fleet.apply(Fault::Spawn, &mut self.oracle, &mut self.journal, now_us)?
                    }
                    Next::Done(baseline) => {
                        self.journal.event(now_us, "undisturbed rates are known; faults begin")?;
                        // The time that peers have taken to start and join does not count.
                        let measured_us = baseline.sizes.values().map(|done| done.us).sum::<u64>();
                        let left_us = (self.args.duration().as_micros() as u64).saturating_sub(measured_us);
                        self.ends_us = now_us + left_us;
                        if let Some(rate) = baseline.lowest_rate() {
                            self.oracle.faults_begin(rate);
                        }
                        self.record.faults_begin(baseline);
                        self.schedule.begin(now_us);
                        self.stage = Stage::Faults;
                    }
                }
            }
            Stage::Faults if now_us >= self.ends_us => {
                self.journal.event(now_us, "no more faults")?;
                self.record.faults_end();
                self.fleet.resume_all(&mut self.oracle, &mut self.journal, now_us)?;
                self.fleet.links.heal();
                self.stage = Stage::Heal { since_us: now_us };
            }
            Stage::Faults => {
                for fault in self.schedule.due(now_us, &self.view(now_us)) {
                    self.apply(fault)?;
                }
            }
            Stage::Heal { since_us } if self.oracle.all_completed_since(*since_us) => {
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
        let undisturbed = stopped.is_empty() && self.fleet.ending().is_empty();
        let holds = || unsteady.is_empty() && steady.iter().all(|&peer| self.oracle.holds_state(peer));
        View {
            // Had what was stopped or cut last held anything up, nothing would have been completed since.
            may_stop: self.oracle.calm_us(now_us) > PAUSE_US && self.oracle.gap_us(now_us) < PAUSE_US / 2,
            settled: undisturbed
                && self.fleet.authority.may_be_lost(now_us)
                && (self.args.survives_master() || holds()),
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
        let line = live_line(left_s, self.oracle.world(), &self.record.totals, &counts);
        let mut out = io::stdout().lock();
        if terminal {
            write!(out, "\r\x1b[K{line}")?;
        } else {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }

    /// Ends all processes, judges what is left to judge, and writes the reports.
    fn finish(&mut self) -> io::Result<Report> {
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
        for survivor in &self.fleet.survivors() {
            if let Some(excess) = survivor.growth.excess() {
                self.oracle.violation(now_us, Check::Growth, format!("{} {excess}", survivor.name));
            }
        }
        let is_complete = matches!(self.stage, Stage::Heal { .. } | Stage::Dismiss);
        if is_complete && self.args.wants_faults() && self.record.totals.faults_made() == 0 {
            let text = "no fault was made, so nothing was shown".to_owned();
            self.oracle.violation(now_us, Check::Faults, text);
        }
        for violation in self.oracle.violations() {
            let text = format!("VIOLATION {}: {}", violation.check.name(), violation.text);
            self.journal.event(violation.at_us, &text)?;
        }
        let failed = !self.oracle.violations().is_empty();
        if failed {
            self.journal.write_lines()?;
        }
        let report = self.report(match (failed, self.interrupted) {
            (true, _) => Status::Failed,
            (false, true) => Status::Interrupted,
            (false, false) => Status::Passed,
        });
        report.write(&self.beginning.folder)?;
        Ok(report)
    }

    /// The knowledge by now, after what earlier parts have told.
    fn report(&self, status: Status) -> Report {
        let (seed, record) = (self.beginning.seed, &self.record);
        let mut totals = record.totals.clone();
        totals.counts = self.oracle.counts();
        let gap = self.oracle.longest_gap();
        (totals.longest_gap_us, totals.longest_gap_at_us) = (gap.us, gap.at_us.saturating_sub(self.began_us));
        let part = Part {
            number: 1,
            status,
            seed,
            replay: self.args.replay_command(seed),
            wanted_seconds: self.args.duration().as_secs(),
            seconds: totals.seconds,
            began_unix_s: self.began_unix_s,
            machine: procfs::machine(),
            operations: totals.counts.operations,
            faults: totals.faults_made(),
            kept: totals.kept,
            baseline: record.baseline.clone(),
        };
        let survivors = self.fleet.survivors();
        let violations = self.oracle.violations().iter().map(|violation| Finding {
            part: 1,
            seconds: violation.at_us.saturating_sub(self.began_us) as f64 / 1e6,
            check: violation.check.name().to_owned(),
            text: violation.text.clone(),
        });
        let (timeline, violations) = (record.timeline.clone(), violations.collect());
        let report = Report::of(
            self.args.settings(),
            self.build.clone(),
            part,
            totals,
            timeline,
            survivors,
            violations,
        );
        match &self.beginning.earlier {
            Some(earlier) => earlier.with(report),
            None => report,
        }
    }
}
