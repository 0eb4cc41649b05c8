//! The supervisor's knowledge of a run and its decisions: whom to kill, when to replace, when it is over, and
//! whether it went well. Pure: processes and clocks are elsewhere.

use super::report::{Event, FinalReport, Report, StepReport};
use std::{collections::BTreeMap, time::Duration};

/// A replacement starts when the survivors have done a tenth of the run, or after this time if they do not get there,
/// as a lone survivor cannot.
const REPLACE_AFTER: Duration = Duration::from_secs(2);
/// How long a peer that has not joined by the time all others are through is given to notice it.
const STRAGGLER_GRACE: Duration = Duration::from_secs(3);
/// How long a peer may take to exit after its final report.
const EXIT_GRACE: Duration = Duration::from_secs(15);

/// When peers are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillPlan {
    /// None, and then no call of any peer may fail.
    Nobody,
    /// One, at half of the steps.
    Midway,
    /// The oldest one, again and again, at this interval.
    Every(Duration),
}

/// The tasks of the supervisor now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// End this peer with SIGKILL.
    Kill(u32),
    /// Start a peer with this number.
    Spawn(u32),
    /// The run is over: ask for the verdict.
    Finish,
}

/// A marker of the plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// A peer was killed.
    Kill,
    /// A peer took the state over.
    Join,
}

/// Something that the plot shows at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Since the start of the run.
    pub(crate) at: Duration,
    /// The event.
    pub(crate) kind: MarkKind,
    /// To whom.
    pub(crate) peer: u32,
}

/// One step of one peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    /// Since the start of the run.
    pub(crate) at: Duration,
    /// The peer.
    pub(crate) peer: u32,
    /// Its words.
    pub(crate) step: StepReport,
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    /// Started, has not done a step.
    Starting,
    /// Has done a step.
    Training,
    /// Has given its final report, and exited or not.
    Finished { report: FinalReport, since: Duration, exited: bool },
    /// Killed by plan.
    Killed,
    /// Sent away, since the run was over before it had joined.
    Late,
    /// Not by plan.
    Failed(String),
}

struct PeerView {
    phase: Phase,
    last: Option<StepReport>,
}

/// A run as the supervisor sees it. Times are since its start.
pub(crate) struct Run {
    plan: KillPlan,
    steps: u64,
    accuracy_min: f64,
    deadline: Duration,
    peers: BTreeMap<u32, PeerView>,
    founders: u32,
    kills: u64,
    joins: u64,
    last_kill: Duration,
    /// Replacements to start: at this step of the run, or at this time.
    replace: Vec<(u64, Duration)>,
    samples: Vec<Sample>,
    marks: Vec<Mark>,
    /// Events since somebody asked.
    events: Vec<String>,
    problems: Vec<String>,
    timed_out: bool,
}

/// The numbers of a run that went well.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Summary {
    /// The peers that reached the end, and what they said.
    pub(crate) finals: BTreeMap<u32, FinalReport>,
    /// Peers killed.
    pub(crate) kills: u64,
    /// Peers that took the state over from others.
    pub(crate) joins: u64,
    /// Peers sent away since they came too late.
    pub(crate) late: usize,
}

impl Run {
    /// A run of `founders` peers (numbers from 0, to be started by the caller) over `steps` outer steps, that has to
    /// reach a test accuracy.
    pub(crate) fn new(
        plan: KillPlan,
        founders: u32,
        steps: u64,
        accuracy_min: f64,
        deadline: Duration,
    ) -> Self {
        let mut run = Self {
            plan,
            steps,
            accuracy_min,
            deadline,
            peers: BTreeMap::new(),
            founders,
            kills: 0,
            joins: 0,
            last_kill: Duration::ZERO,
            replace: Vec::new(),
            samples: Vec::new(),
            marks: Vec::new(),
            events: Vec::new(),
            problems: Vec::new(),
            timed_out: false,
        };
        for peer in 0..founders {
            run.add(peer);
        }
        run
    }

    /// Steps of all peers, in order of time.
    pub(crate) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Kills and joins, in order of time.
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Events since the last call, in words.
    pub(crate) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// A peer said something.
    pub(crate) fn report(&mut self, now: Duration, peer: u32, report: Report) {
        let run_step = self.step();
        let Some(view) = self.peers.get_mut(&peer) else { return };
        if matches!(view.phase, Phase::Killed | Phase::Late) {
            // Said before the kill reached it.
            return;
        }
        match report {
            Report::Step(step) => {
                if view.phase == Phase::Starting {
                    view.phase = Phase::Training;
                }
                view.last = Some(step);
                self.samples.push(Sample { at: now, peer, step });
            }
            Report::Event { event, step, detail } => {
                if event == Event::Joined {
                    self.joins += 1;
                    self.marks.push(Mark { at: now, kind: MarkKind::Join, peer });
                }
                // Before it has the state of the run, a replacement knows no step but its own first one.
                let step = step.max(if event == Event::Connected { run_step } else { 0 });
                self.events.push(format!("peer {peer} {event} at step {step}: {detail}"));
            }
            Report::Final(report) => {
                view.phase = Phase::Finished { report, since: now, exited: false };
                self.events.push(format!("peer {peer} finished"));
            }
            Report::Failed { reason } => view.phase = Phase::Failed(reason),
        }
    }

    /// A line of a peer that should have been a report was none.
    pub(crate) fn bad_report(&mut self, peer: u32, why: &str) {
        self.problems.push(format!("peer {peer} sent an unreadable report: {why}"));
    }

    /// A peer's process has ended; `how` is its exit status in words.
    pub(crate) fn exited(&mut self, peer: u32, success: bool, how: &str) {
        let Some(view) = self.peers.get_mut(&peer) else { return };
        match &mut view.phase {
            Phase::Finished { exited, .. } => {
                *exited = true;
                if !success {
                    self.problems.push(format!("peer {peer} finished, but then ended with {how}"));
                }
            }
            phase @ (Phase::Starting | Phase::Training) => {
                *phase = Phase::Failed(format!("ended with {how} and no final report"));
            }
            Phase::Killed | Phase::Late | Phase::Failed(_) => {}
        }
    }

    /// Time passes, or something was reported.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Action> {
        if now >= self.deadline {
            self.timed_out = true;
            return vec![Action::Finish];
        }
        let mut actions = Vec::new();
        if let Some(victim) = self.victim(now) {
            self.kill(now, victim);
            actions.push(Action::Kill(victim));
        }
        let step = self.step();
        let due = |&(at_step, at): &(u64, Duration)| step >= at_step || now >= at;
        while let Some(index) = self.replace.iter().position(due) {
            self.replace.swap_remove(index);
            let peer = self.peers.len() as u32;
            self.add(peer);
            self.events.push(format!("peer {peer} started as a replacement at step {step}"));
            actions.push(Action::Spawn(peer));
        }
        actions.extend(self.dismiss_stragglers(now));
        if self.over(now) {
            actions.push(Action::Finish);
        }
        actions
    }

    /// Outer steps that the run has done.
    pub(crate) fn step(&self) -> u64 {
        self.peers.values().filter_map(|view| Some(view.last?.step)).max().unwrap_or(0)
    }

    /// One line on how far it is.
    pub(crate) fn status(&self) -> String {
        let in_it = |phase: &Phase| matches!(phase, Phase::Training | Phase::Finished { .. });
        let living: Vec<StepReport> =
            self.peers.values().filter(|view| in_it(&view.phase)).filter_map(|view| view.last).collect();
        let world = living.iter().max_by_key(|last| last.step).map_or(0, |last| last.world);
        let loss = match living.len() {
            0 => "-".to_owned(),
            n => format!("{:.3}", living.iter().map(|last| last.loss).sum::<f32>() / n as f32),
        };
        let bytes: u64 = self.peers.values().filter_map(|view| Some(view.last?.traffic.tx_bytes)).sum();
        let (step, steps) = (self.step(), self.steps);
        format!("step {step:>3}/{steps} | {world} peers | loss {loss} | {} sent", size(bytes))
    }

    /// How the run went: numbers, or all reasons why it failed.
    pub(crate) fn verdict(&self) -> Result<Summary, Vec<String>> {
        let mut problems = self.problems.clone();
        if self.timed_out {
            let unfinished: Vec<String> = self
                .peers
                .iter()
                .filter(|(_, view)| running(&view.phase))
                .map(|(id, _)| id.to_string())
                .collect();
            let (at, peers) = (self.deadline.as_secs_f64(), unfinished.join(", "));
            problems.push(format!(
                "not over after {at:.0} s, at step {}; still running: peers {peers}",
                self.step()
            ));
        }
        let mut finals = BTreeMap::new();
        for (&id, view) in &self.peers {
            match &view.phase {
                Phase::Failed(reason) => problems.push(format!("peer {id} failed: {reason}")),
                Phase::Finished { report, exited, .. } => {
                    finals.insert(id, *report);
                    if !exited {
                        problems.push(format!("peer {id} did not exit after its final report"));
                    }
                }
                Phase::Starting | Phase::Training | Phase::Killed | Phase::Late => {}
            }
        }
        problems.extend(self.judge(&finals));
        let late = self.peers.values().filter(|view| view.phase == Phase::Late).count();
        let summary = Summary { finals, kills: self.kills, joins: self.joins, late };
        if problems.is_empty() { Ok(summary) } else { Err(problems) }
    }

    fn judge(&self, finals: &BTreeMap<u32, FinalReport>) -> Vec<String> {
        let mut problems = Vec::new();
        if finals.len() < 2 {
            problems.push(format!("{} peers reached the end, expected at least 2", finals.len()));
        }
        for (id, report) in finals {
            if report.accuracy < self.accuracy_min {
                let (got, min) = (report.accuracy * 100.0, self.accuracy_min * 100.0);
                problems.push(format!("peer {id} reached {got:.1} % test accuracy, expected {min:.0} %"));
            }
            if report.drifts > 0 {
                problems.push(format!("the state of peer {id} drifted {} times", report.drifts));
            }
            if report.step != self.steps {
                problems.push(format!("peer {id} ended at step {}, expected {}", report.step, self.steps));
            }
        }
        let mut all = finals.iter();
        if let Some((first, expected)) = all.next() {
            for (id, report) in
                all.filter(|(_, r)| (r.hash, r.revision) != (expected.hash, expected.revision))
            {
                problems.push(format!(
                    "peers {first} and {id} end with different states: hash {:016x} and {:016x}, revision {} and {}",
                    expected.hash, report.hash, expected.revision, report.revision
                ));
            }
        }
        if self.plan == KillPlan::Nobody {
            let tried_again = finals.iter().filter(|(_, report)| report.retries > 0);
            problems.extend(tried_again.map(|(id, report)| {
                format!("peer {id} had to try {} calls again, although no peer was killed", report.retries)
            }));
        }
        if self.plan == KillPlan::Midway {
            let replaced = finals.iter().any(|(&id, report)| id >= self.founders && report.joins > 0);
            if self.kills == 0 {
                problems.push("no peer was killed: the run was over too soon".to_owned());
            } else if !replaced {
                problems.push("the replacement did not join before the last step".to_owned());
            }
        }
        problems
    }

    fn add(&mut self, peer: u32) {
        self.peers.insert(peer, PeerView { phase: Phase::Starting, last: None });
    }

    /// Whom to kill now. Never a peer without which the state of the run would be lost.
    fn victim(&self, now: Duration) -> Option<u32> {
        let mut training = self.peers.iter().filter(|(_, v)| v.phase == Phase::Training).map(|(&id, _)| id);
        let (oldest, second) = (training.next()?, training.next()?);
        let step = self.step();
        match self.plan {
            KillPlan::Nobody => None,
            KillPlan::Midway => (self.kills == 0 && step >= self.steps.div_ceil(2)).then_some(second),
            // Near the end a replacement could not join any more.
            KillPlan::Every(interval) => {
                let early = step + self.replace_after_steps() < self.steps;
                (early && now.saturating_sub(self.last_kill) >= interval).then_some(oldest)
            }
        }
    }

    fn kill(&mut self, now: Duration, victim: u32) {
        let step = self.step();
        if let Some(view) = self.peers.get_mut(&victim) {
            view.phase = Phase::Killed;
        }
        self.kills += 1;
        self.last_kill = now;
        self.replace.push((step + self.replace_after_steps(), now + REPLACE_AFTER));
        self.marks.push(Mark { at: now, kind: MarkKind::Kill, peer: victim });
        self.events.push(format!("peer {victim} killed at step {step}"));
    }

    const fn replace_after_steps(&self) -> u64 {
        self.steps / 10
    }

    /// Peers that wait to be let in when all others are through would train a run of their own.
    fn dismiss_stragglers(&mut self, now: Duration) -> Vec<Action> {
        let finished = self.peers.values().filter_map(|view| match view.phase {
            Phase::Finished { since, .. } => Some(since),
            _ => None,
        });
        let Some(last) = finished.max() else { return Vec::new() };
        let training = self.peers.values().any(|view| view.phase == Phase::Training);
        if training || now < last + STRAGGLER_GRACE {
            return Vec::new();
        }
        self.replace.clear();
        let late = self.peers.iter_mut().filter(|(_, view)| view.phase == Phase::Starting);
        late.map(|(&id, view)| {
            view.phase = Phase::Late;
            Action::Kill(id)
        })
        .collect()
    }

    fn over(&self, now: Duration) -> bool {
        if !self.problems.is_empty() {
            return true;
        }
        let mut waiting = !self.replace.is_empty() && !self.anybody_finished();
        for view in self.peers.values() {
            match &view.phase {
                Phase::Failed(_) => return true,
                Phase::Finished { exited, since, .. } => waiting |= !exited && now < *since + EXIT_GRACE,
                phase => waiting |= running(phase),
            }
        }
        !waiting
    }

    fn anybody_finished(&self) -> bool {
        self.peers.values().any(|view| matches!(view.phase, Phase::Finished { .. }))
    }
}

const fn running(phase: &Phase) -> bool {
    matches!(phase, Phase::Starting | Phase::Training)
}

/// A count of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
