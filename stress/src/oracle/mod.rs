//! The judge: hears what was done to the run and what the peers report, and finds every contradiction to what the library
//! promises. No I/O, no clock.

mod blame;
mod progress;
mod reduces;
mod revisions;
#[cfg(test)]
mod tests;

pub(crate) use progress::{GRACE_US, Gap, Recovery};

use crate::{
    event::{Event, Line},
    workload::Workload,
};
use blame::{Blame, Failure, Standing};
use progress::Progress;
use reduces::Reduces;
use revisions::{Revisions, Sync};
use std::collections::{BTreeMap, BTreeSet};

/// What is done to a peer shows in its connections a little before or after it shows in its reports.
const TOUCH_SLACK_US: u64 = 2_000_000;
/// Violations that are kept; one broken promise often breaks many others.
const VIOLATIONS_MAX: usize = 100;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) at_us: u64,
    pub(crate) check: Check,
    pub(crate) text: String,
}

/// Which promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The result of an all-reduce has the right bytes.
    Result,
    /// A failed call leaves buffers as they were.
    Intact,
    /// Equal state at each revision; revisions neither go back nor skip.
    Revision,
    /// Nobody who was never touched is dropped.
    Innocent,
    /// A verdict names what was done.
    Verdict,
    /// The run goes on.
    Progress,
    /// Processes end when and how they should, and say what they should.
    Process,
    /// Survivors do not grow.
    Growth,
}

impl Check {
    pub(crate) const ALL: [Self; 8] = [
        Self::Result,
        Self::Intact,
        Self::Revision,
        Self::Innocent,
        Self::Verdict,
        Self::Progress,
        Self::Process,
        Self::Growth,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Intact => "intact",
            Self::Revision => "revision",
            Self::Innocent => "innocent",
            Self::Verdict => "verdict",
            Self::Progress => "progress",
            Self::Process => "process",
            Self::Growth => "growth",
        }
    }
}

/// What the run did, as counted from the reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    /// Successful calls of all peers together.
    pub(crate) completed_calls: u64,
    pub(crate) aborted_operations: u64,
    /// Failed calls of all peers together, each of which was tried again.
    pub(crate) failed_calls: u64,
    pub(crate) syncs: u64,
    pub(crate) joins: u64,
    /// Stopped peers that were dropped, and came back.
    pub(crate) drops: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) newest_revision: u64,
}

/// A process of a peer.
#[derive(Debug, Clone, Default)]
struct Record {
    identity: Option<u128>,
    joined_us: u64,
    /// A member, by its own report.
    joined: bool,
    /// Revision of the last sync since it joined.
    revision: Option<u64>,
    stopped: bool,
    /// Was stopped and has not been heard since.
    dazed: bool,
    touched_us: Option<u64>,
    killed: bool,
    leaving: bool,
    left: bool,
    exited: bool,
    heard_us: u64,
    /// When it completed its last operation.
    completed_us: u64,
    hung: bool,
}

impl Record {
    fn is_steady(&self) -> bool {
        self.joined && !self.stopped && !self.dazed && !self.killed && !self.leaving && !self.exited
    }

    fn is_alive(&self) -> bool {
        !self.killed && !self.exited
    }

    fn touched_since(&self, since_us: u64) -> bool {
        self.touched_us.is_some_and(|touched| touched + TOUCH_SLACK_US >= since_us)
    }
}

/// See the module's documentation.
pub(crate) struct Oracle {
    limit_us: u64,
    /// Every process that there ever was.
    peers: BTreeMap<usize, Record>,
    /// Those that have not ended: a run of hours has tens of thousands that have.
    living: BTreeSet<usize>,
    /// Every identity that was ever reported: whose it is, and since when.
    identities: BTreeMap<u128, (usize, u64)>,
    reduces: Reduces,
    revisions: Revisions,
    progress: Progress,
    blame: Blame,
    contributors_unknown: BTreeMap<u128, String>,
    hurt_before_joining: bool,
    last_fault_us: u64,
    violations: Vec<Violation>,
    counts: Counts,
}

impl Oracle {
    pub(crate) fn new(workload: Workload, peer_timeout_us: u64) -> Self {
        Self {
            limit_us: peer_timeout_us + GRACE_US,
            peers: BTreeMap::new(),
            living: BTreeSet::new(),
            identities: BTreeMap::new(),
            reduces: Reduces::new(workload),
            revisions: Revisions::default(),
            progress: Progress::new(peer_timeout_us),
            blame: Blame::default(),
            contributors_unknown: BTreeMap::new(),
            hurt_before_joining: false,
            last_fault_us: 0,
            violations: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Notes a broken promise that somebody else found.
    pub(crate) fn violation(&mut self, at_us: u64, check: Check, text: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { at_us, check, text });
        }
    }

    pub(crate) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// The recoveries that ended since the last call.
    pub(crate) fn take_recoveries(&mut self) -> Vec<Recovery> {
        std::mem::take(&mut self.progress.recoveries)
    }

    pub(crate) fn longest_gap(&self) -> Gap {
        self.progress.longest_gap
    }

    /// For how long nothing has been completed.
    pub(crate) fn gap_us(&self, now_us: u64) -> u64 {
        self.progress.gap_us(now_us)
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            operations: self.reduces.operations,
            aborted_operations: self.blame.aborted_operations,
            newest_revision: self.revisions.newest(),
            ..self.counts
        }
    }

    /// Members that nothing is done to at the moment.
    pub(crate) fn is_steady(&self, peer: usize) -> bool {
        self.peers.get(&peer).is_some_and(Record::is_steady)
    }

    fn living(&self) -> impl Iterator<Item = (usize, &Record)> {
        self.living.iter().filter_map(|&peer| Some((peer, self.peers.get(&peer)?)))
    }

    /// Members by their own report.
    pub(crate) fn world(&self) -> usize {
        self.living().filter(|(_, record)| record.joined && record.is_alive()).count()
    }

    /// Whether every peer that is there, and was not asked to leave, has completed an operation after this time.
    pub(crate) fn all_completed_since(&self, since_us: u64) -> bool {
        let mut staying = self.living().filter(|(_, record)| record.is_alive() && !record.leaving);
        staying.all(|(_, record)| record.completed_us > since_us)
    }

    pub(crate) fn spawned(&mut self, peer: usize, now_us: u64) {
        self.peers.insert(peer, Record { heard_us: now_us, ..Record::default() });
        self.living.insert(peer);
    }

    pub(crate) fn killed(&mut self, peer: usize, now_us: u64) {
        self.touch(peer, now_us);
        let Some(record) = self.peers.get_mut(&peer) else { return };
        record.killed = true;
        let victim = record.identity.filter(|_| record.joined);
        if victim.is_some() {
            let survivors = self.steady_besides(Some(peer));
            self.progress.disturbed("kill", victim, survivors, now_us);
        }
        self.progress.resumed(peer);
        self.progress.gone(peer);
        self.count_steady(now_us);
    }

    /// Something other than a kill is going to be done, to this peer if to one: from now on it is measured how long the
    /// others need to go on.
    pub(crate) fn disturbed(&mut self, kind: &'static str, peer: Option<usize>, now_us: u64) {
        let survivors = self.steady_besides(peer);
        self.progress.disturbed(kind, None, survivors, now_us);
    }

    fn steady_besides(&self, peer: Option<usize>) -> BTreeSet<usize> {
        let others = self.living().filter(|(other, record)| Some(*other) != peer && record.is_steady());
        others.map(|(other, _)| other).collect()
    }

    pub(crate) fn stopped(&mut self, peer: usize, now_us: u64) {
        self.touch(peer, now_us);
        if let Some(record) = self.peers.get_mut(&peer) {
            (record.stopped, record.dazed) = (true, true);
        }
        self.progress.stopped(peer, now_us);
        self.count_steady(now_us);
    }

    pub(crate) fn resumed(&mut self, peer: usize, now_us: u64) {
        self.touch(peer, now_us);
        if let Some(record) = self.peers.get_mut(&peer) {
            record.stopped = false;
            record.heard_us = now_us;
        }
        self.progress.resumed(peer);
    }

    /// A peer was asked to leave.
    pub(crate) fn leaving(&mut self, peer: usize, now_us: u64) {
        self.touch(peer, now_us);
        if let Some(record) = self.peers.get_mut(&peer) {
            record.leaving = true;
            record.heard_us = now_us;
        }
        self.progress.gone(peer);
        self.count_steady(now_us);
    }

    /// A process is gone, and all that it reported has been taken in.
    pub(crate) fn exited(&mut self, peer: usize, success: bool, status: &str, now_us: u64) {
        let Some(record) = self.peers.get_mut(&peer) else { return };
        record.exited = true;
        self.living.remove(&peer);
        let dismissed = record.leaving && record.left && success;
        if !record.killed && !dismissed {
            let text = format!("peer {peer} ended by itself: {status}");
            self.violation(now_us, Check::Process, text);
        }
        self.progress.gone(peer);
        self.count_steady(now_us);
    }

    fn touch(&mut self, peer: usize, now_us: u64) {
        self.last_fault_us = now_us;
        if let Some(record) = self.peers.get_mut(&peer) {
            record.touched_us = Some(now_us);
            self.hurt_before_joining |= !record.joined;
        }
    }

    fn count_steady(&mut self, now_us: u64) {
        let count = self.living().filter(|(_, record)| record.is_steady()).count();
        self.progress.steady(count, now_us);
    }

    /// A peer wrote something that is no report.
    pub(crate) fn bad_line(&mut self, peer: usize, line: &str, why: &str, now_us: u64) {
        self.violation(now_us, Check::Process, format!("peer {peer} wrote {line:?}: {why}"));
    }

    /// A report.
    pub(crate) fn line(&mut self, peer: usize, line: Line) {
        let at_us = line.at_us;
        let Some(record) = self.peers.get_mut(&peer) else { return };
        record.heard_us = record.heard_us.max(at_us);
        // What it wrote before it was stopped says nothing about how it is now.
        if !record.stopped && record.touched_us.is_none_or(|touched| touched < at_us) {
            record.dazed = false;
        }
        match line.event {
            Event::Joined { peer: identity } => self.joined(peer, identity, at_us),
            Event::Synced { revision, hash, rx_bytes } => self.synced(peer, revision, hash, rx_bytes, at_us),
            Event::Reduced(reduced) => {
                let me = record.identity.unwrap_or(0);
                record.completed_us = at_us;
                self.counts.completed_calls += 1;
                match self.reduces.check(me, &reduced) {
                    Ok(ring) => {
                        for id in ring.iter().filter(|id| !self.identities.contains_key(id)) {
                            self.contributors_unknown.entry(*id).or_insert_with(|| {
                                format!("contributed to step {}, tag {}", reduced.step, reduced.tag)
                            });
                        }
                        self.progress.completed(peer, &ring, at_us);
                    }
                    Err(text) => self.violation(at_us, Check::Result, format!("peer {peer}: {text}")),
                }
            }
            Event::Failed { call, step, intact, cause, culprits, text } => {
                self.counts.failed_calls += 1;
                if !intact {
                    let text = format!(
                        "peer {peer}, step {step}, {call:?} changed its buffers although it failed: {text}"
                    );
                    self.violation(at_us, Check::Intact, text);
                }
                let failure = Failure { cause: &cause, culprits: &culprits, text: &text };
                self.failed(peer, failure, at_us);
            }
            Event::Lost { kind, text } => self.lost(peer, &kind, &text, at_us),
            Event::Left => {
                record.joined = false;
                record.left = true;
                if !record.leaving {
                    self.violation(at_us, Check::Process, format!("peer {peer} left without being asked"));
                }
            }
            Event::Fatal { text } => {
                self.violation(at_us, Check::Process, format!("peer {peer} cannot go on: {text}"));
            }
        }
        self.count_steady(at_us);
    }

    fn joined(&mut self, peer: usize, identity: u128, at_us: u64) {
        self.counts.joins += 1;
        let Some(record) = self.peers.get_mut(&peer) else { return };
        record.joined = true;
        record.joined_us = at_us;
        record.identity = Some(identity);
        record.revision = None;
        if let Some((other, _)) = self.identities.insert(identity, (peer, at_us)) {
            let text = format!("identity {identity:032x} was given to peer {peer} and to peer {other}");
            self.violation(at_us, Check::Process, text);
        }
        self.contributors_unknown.remove(&identity);
        let named: Vec<String> =
            self.blame.unknown.extract_if(.., |(id, _)| *id == identity).map(|(_, text)| text).collect();
        if self.standing(identity) == Standing::Innocent {
            for text in named {
                self.violation(
                    at_us,
                    Check::Verdict,
                    format!("the verdict blames peer {peer}, innocent: {text}"),
                );
            }
        }
    }

    fn synced(&mut self, peer: usize, revision: u64, hash: u64, rx_bytes: u64, at_us: u64) {
        self.counts.syncs += 1;
        self.counts.fetched_bytes += rx_bytes;
        let Some(record) = self.peers.get_mut(&peer) else { return };
        let previous = record.revision.replace(revision);
        let joined_us = record.joined_us;
        let sync = Sync { peer, at_us, revision, hash, rx_bytes, previous, joined_us };
        for text in self.revisions.check(&sync) {
            self.violation(at_us, Check::Revision, format!("peer {peer} {text}"));
        }
    }

    fn failed(&mut self, peer: usize, failure: Failure<'_>, at_us: u64) {
        let recently = at_us.saturating_sub(self.last_fault_us) <= self.limit_us;
        let mut blame = std::mem::take(&mut self.blame);
        let wrong = blame.check(failure, |id| self.standing(id), recently);
        self.blame = blame;
        for text in wrong {
            self.violation(at_us, Check::Verdict, format!("peer {peer}: {text}"));
        }
    }

    fn standing(&self, identity: u128) -> Standing {
        let Some(&(peer, joined_us)) = self.identities.get(&identity) else { return Standing::Unknown };
        match self.peers.get(&peer) {
            Some(record) if record.touched_since(joined_us) => Standing::Touched,
            _ => Standing::Innocent,
        }
    }

    fn lost(&mut self, peer: usize, kind: &str, text: &str, at_us: u64) {
        let Some(record) = self.peers.get_mut(&peer) else { return };
        let innocent = !record.touched_since(record.joined_us);
        self.counts.drops += u64::from(record.joined);
        record.joined = false;
        record.revision = None;
        self.progress.gone(peer);
        if innocent {
            let text = format!("peer {peer}, which nothing was done to, lost the run: {kind}: {text}");
            self.violation(at_us, Check::Innocent, text);
        }
    }

    /// Looks for what has not happened although it should have.
    pub(crate) fn tick(&mut self, now_us: u64) {
        if let Some(text) = self.progress.check(now_us) {
            self.violation(now_us, Check::Progress, text);
        }
        for text in self.revisions.skipped(now_us) {
            self.violation(now_us, Check::Revision, text);
        }
        let patience_us = 2 * self.limit_us;
        let mut hung = Vec::new();
        for peer in &self.living {
            let Some(record) = self.peers.get_mut(peer) else { continue };
            let waits = record.is_alive() && !record.stopped && !record.hung;
            if waits && now_us.saturating_sub(record.heard_us) > patience_us {
                record.hung = true;
                hung.push((*peer, now_us.saturating_sub(record.heard_us)));
            }
        }
        for (peer, silent_us) in hung {
            let text = format!("peer {peer} has reported nothing for {} ms", silent_us / 1000);
            self.violation(now_us, Check::Progress, text);
        }
    }

    /// Judges what could only be judged when everything has been heard.
    pub(crate) fn finish(&mut self, now_us: u64) {
        for text in self.revisions.skipped(u64::MAX) {
            self.violation(now_us, Check::Revision, text);
        }
        for (id, what) in std::mem::take(&mut self.contributors_unknown) {
            let text = format!("identity {id:032x} {what}, but no peer ever had it");
            self.violation(now_us, Check::Result, text);
        }
        // A peer that was killed on its way in may be named and never have said who it was.
        if !self.hurt_before_joining {
            for (id, text) in std::mem::take(&mut self.blame.unknown) {
                let text = format!("a verdict names {id:032x}, which no peer ever was: {text}");
                self.violation(now_us, Check::Verdict, text);
            }
        }
    }
}
