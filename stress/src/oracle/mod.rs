//! The judge: hears what was done to the run and what the peers report, and finds every contradiction to what the
//! library promises. No I/O, no clock.

mod acts;
mod agreement;
mod barriers;
mod blame;
mod check;
mod edges;
mod leaders;
mod pace;
mod progress;
mod record;
mod results;
mod revisions;
mod rings;
#[cfg(test)]
mod tests;

pub(crate) use check::{Check, Counts, Violation};
pub(crate) use edges::Edge;
pub(crate) use progress::{GRACE_US, Gap, Recovery};

use crate::{
    event::{Event, Line},
    jobs::{BARRIER_TAG, SEGMENT_TAGS},
    workload::{RECV_TAG, SEND_TAG, Workload},
};
use agreement::Agreement;
use barriers::Barriers;
use blame::{Blame, Failure, Known, Standing};
use edges::Edges;
use leaders::Leaders;
use pace::Pace;
use pccl_master::state::NO_STATE;
use progress::Progress;
use record::{Master, Record};
use results::Results;
use revisions::{Revisions, Sync};
use std::collections::{BTreeMap, BTreeSet};

/// An act on a peer shows in its connections a little before or after it shows in its reports.
const TOUCH_SLACK_US: u64 = 2_000_000;
/// Violations that are kept; one broken promise often breaks many others.
const VIOLATIONS_MAX: usize = 100;

/// How the end of a membership is called that only the end of the master explains.
const MASTER_GONE: [&str; 3] = ["MasterLost", "OutcomeUnknown", "ConnectFailed"];

/// See the module's documentation.
pub(crate) struct Oracle {
    /// In which faults are found out.
    patience_us: u64,
    limit_us: u64,
    /// Every process that there ever was.
    peers: BTreeMap<usize, Record>,
    /// Those that have not ended: a run of hours has tens of thousands that have.
    living: BTreeSet<usize>,
    /// Every identity that was ever reported: whose it is, and since when.
    identities: BTreeMap<u128, (usize, u64)>,
    results: Results,
    barriers: Barriers,
    agreement: Agreement,
    /// Of each group, as far as anybody was there.
    revisions: BTreeMap<u32, Revisions>,
    progress: BTreeMap<u32, Progress>,
    blame: Blame,
    edges: Edges,
    master: Master,
    leaders: Leaders,
    pace: Pace,
    contributors_unknown: BTreeMap<u128, String>,
    hurt_before_joining: bool,
    last_fault_us: u64,
    violations: Vec<Violation>,
    counts: Counts,
}

impl Oracle {
    pub(crate) fn new(workload: Workload, patience_us: u64) -> Self {
        Self {
            patience_us,
            limit_us: patience_us + GRACE_US,
            peers: BTreeMap::new(),
            living: BTreeSet::new(),
            identities: BTreeMap::new(),
            results: Results::new(workload),
            barriers: Barriers::default(),
            agreement: Agreement::default(),
            revisions: BTreeMap::new(),
            progress: BTreeMap::new(),
            blame: Blame::default(),
            edges: Edges::default(),
            master: Master::default(),
            leaders: Leaders::default(),
            pace: Pace::default(),
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
    pub(crate) fn take_recoveries(&mut self, now_us: u64) -> Vec<Recovery> {
        let ended = self.progress.values_mut().flat_map(|progress| std::mem::take(&mut progress.recoveries));
        let ended: Vec<Recovery> = ended.collect();
        for text in ended.iter().filter_map(|recovery| self.pace.recovered(recovery)).collect::<Vec<_>>() {
            self.violation(now_us, Check::Recovery, text);
        }
        ended
    }

    /// In which what was done to a peer has shown.
    fn late_us(&self) -> u64 {
        self.limit_us + TOUCH_SLACK_US
    }

    pub(crate) fn longest_gap(&self) -> Gap {
        self.progress.values().map(|progress| progress.longest_gap).max().unwrap_or_default()
    }

    /// For how long nothing has been completed, in the group where that is longest.
    pub(crate) fn gap_us(&self, now_us: u64) -> u64 {
        self.progress.values().map(|progress| progress.gap_us(now_us)).max().unwrap_or(0)
    }

    /// For how long nothing has been stopped or cut.
    pub(crate) fn calm_us(&self, now_us: u64) -> u64 {
        self.progress.values().map(|progress| progress.calm_us(now_us)).min().unwrap_or(u64::MAX)
    }

    /// When another group that this one may wait for last completed an operation. At the end of a step all groups ask
    /// together whether peers are pending: a group that is not behind waits there, which is no fault of its own.
    fn others_us(&self, group: u32) -> u64 {
        let revision = |group: &u32| self.revisions.get(group).map_or(0, Revisions::newest);
        let others = self.progress.iter().filter(|(other, _)| **other != group);
        let not_ahead = others.filter(|(other, _)| revision(other) <= revision(&group));
        not_ahead.map(|(_, progress)| progress.last_operation_us()).max().unwrap_or(0)
    }

    fn progress(&mut self, group: u32) -> &mut Progress {
        self.progress.entry(group).or_insert_with(|| Progress::new(self.patience_us))
    }

    fn progress_of(&mut self, peer: usize) -> &mut Progress {
        let group = self.peers.get(&peer).map_or(0, |record| record.group);
        self.progress(group)
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            operations: self.results.operations,
            pairwise_operations: self.results.pairwise,
            other_operations: self.results.others,
            segments: self.agreement.segments,
            uneven_calls: self.agreement.uneven_calls,
            aborted_operations: self.blame.aborted_operations,
            newest_revision: self.revisions.values().map(Revisions::newest).max().unwrap_or(0),
            ..self.counts
        }
    }

    /// Members that nothing is done to at the moment.
    pub(crate) fn is_steady(&self, peer: usize) -> bool {
        self.peers.get(&peer).is_some_and(Record::is_steady)
    }

    /// Under which identity a member is known.
    pub(crate) fn identity(&self, peer: usize) -> Option<u128> {
        self.peers.get(&peer).filter(|record| record.joined)?.identity
    }

    /// Whether a member has taken part in a sync.
    pub(crate) fn holds_state(&self, peer: usize) -> bool {
        self.peers.get(&peer).is_some_and(|record| record.joined && record.revision.is_some())
    }

    /// Whether there is no master, or a new one that not everybody has found yet.
    pub(crate) fn is_leaderless(&self) -> bool {
        self.master.down || self.master.new
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

    fn count_steady(&mut self, now_us: u64) {
        let mut counts: BTreeMap<u32, usize> = self.progress.keys().map(|group| (*group, 0)).collect();
        for (_, record) in self.living().filter(|(_, record)| record.is_steady()) {
            *counts.entry(record.group).or_default() += 1;
        }
        let down = self.master.down;
        for (group, count) in counts {
            self.progress(group).steady(if down { 0 } else { count }, now_us);
        }
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
        // A line that it wrote before it was stopped says nothing about how it is now.
        if !record.stopped && record.touched_us.is_none_or(|touched| touched < at_us) {
            record.dazed = false;
        }
        match line.event {
            Event::Joined { peer: identity } => self.joined(peer, identity, at_us),
            Event::Ahead { whole, rx_bytes } => {
                self.counts.ahead_bytes += rx_bytes;
                if let Some((revision, hash)) = whole {
                    self.ahead(peer, revision, hash, at_us);
                }
            }
            Event::Synced { revision, hash, rx_bytes } => self.synced(peer, revision, hash, rx_bytes, at_us),
            // Which ring it is shows in the results.
            Event::Optimized { .. } => self.counts.optimizations += 1,
            Event::Completed(completed) => {
                let me = record.identity.unwrap_or(0);
                record.completed_us = at_us;
                self.counts.completed_calls += 1;
                if completed.tag == BARRIER_TAG
                    && let Some(text) = self.barriers.left(&completed, at_us)
                {
                    self.violation(at_us, Check::Result, format!("peer {peer} {text}"));
                }
                match self.results.check(me, &completed) {
                    Ok(ring) => {
                        for id in ring.iter().filter(|id| !self.identities.contains_key(id)) {
                            self.contributors_unknown.entry(*id).or_insert_with(|| {
                                format!("contributed to step {}, tag {}", completed.step, completed.tag)
                            });
                        }
                        if SEGMENT_TAGS.contains(&completed.tag)
                            && let Some(text) = self.agreement.heard(me, &completed, &ring)
                        {
                            self.violation(at_us, Check::Result, format!("peer {peer}: {text}"));
                        }
                        // An operation between two says nothing about how the group goes on.
                        if ![SEND_TAG, RECV_TAG].contains(&completed.tag) {
                            self.progress_of(peer).completed(peer, &ring, at_us);
                        }
                    }
                    Err(text) => self.violation(at_us, Check::Result, format!("peer {peer}: {text}")),
                }
            }
            Event::Unresolved(completed) => {
                let me = record.identity.unwrap_or(0);
                if let Err(text) = self.results.check_unresolved(me, &completed) {
                    self.violation(at_us, Check::Result, format!("peer {peer}: {text}"));
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
        record.reign = self.master.reign_at(at_us);
        record.joined_us = at_us;
        record.identity = Some(identity);
        (record.revision, record.is_ahead) = (None, false);
        if let Some((other, _)) = self.identities.insert(identity, (peer, at_us)) {
            let text = format!("identity {identity:032x} was given to peer {peer} and to peer {other}");
            self.violation(at_us, Check::Process, text);
        }
        self.contributors_unknown.remove(&identity);
        let named: Vec<String> =
            self.blame.unknown.extract_if(.., |(id, _)| *id == identity).map(|(_, text)| text).collect();
        if self.standing(identity, at_us) == Standing::Innocent {
            for text in named {
                self.violation(
                    at_us,
                    Check::Verdict,
                    format!("the verdict blames peer {peer}, innocent: {text}"),
                );
            }
        }
    }

    /// A peer was let in with the whole state of a revision.
    fn ahead(&mut self, peer: usize, revision: u64, hash: u64, at_us: u64) {
        self.counts.joins_ahead += 1;
        let Some(record) = self.peers.get_mut(&peer) else { return };
        record.is_ahead = true;
        let group = record.group;
        if let Some(text) = self.revisions.entry(group).or_default().holds(peer, revision, hash, at_us) {
            self.violation(at_us, Check::Revision, format!("peer {peer} {text}"));
        }
    }

    fn synced(&mut self, peer: usize, revision: u64, hash: u64, rx_bytes: u64, at_us: u64) {
        self.counts.syncs += 1;
        self.counts.fetched_bytes += rx_bytes;
        let Some(record) = self.peers.get_mut(&peer) else { return };
        let previous = record.revision.replace(revision);
        self.counts.joins_unmoved += u64::from(std::mem::take(&mut record.is_ahead) && rx_bytes == 0);
        let (joined_us, group, me) = (record.joined_us, record.group, record.identity);
        if let Some(text) = me.and_then(|me| self.barriers.begun(me, revision, at_us)) {
            self.violation(at_us, Check::Result, format!("somebody {text}"));
        }
        let sync = Sync { peer, at_us, revision, hash, rx_bytes, previous, joined_us };
        for text in self.revisions.entry(group).or_default().check(&sync) {
            self.violation(at_us, Check::Revision, format!("peer {peer} {text}"));
        }
    }

    fn failed(&mut self, peer: usize, failure: Failure<'_>, at_us: u64) {
        let Some(record) = self.peers.get(&peer) else { return };
        let decided_us = record.decided_us(at_us);
        let recently = decided_us.start().saturating_sub(self.last_fault_us) <= self.limit_us;
        let late_us = self.late_us();
        let explained = |damaged| self.edges.explain(failure.culprits, damaged, decided_us.clone(), late_us);
        let known = Known {
            scope: format!("{} {}", record.group, record.reign),
            recently,
            edge_harmed: explained(false),
            edge_damaged: explained(true),
        };
        let mut blame = std::mem::take(&mut self.blame);
        let wrong = blame.check(failure, &known, |id| self.standing(id, *decided_us.start()));
        self.blame = blame;
        for text in wrong {
            self.violation(at_us, Check::Verdict, format!("peer {peer}: {text}"));
        }
    }

    /// Whether a verdict of that time may name a peer.
    fn standing(&self, identity: u128, decided_us: u64) -> Standing {
        let Some(&(peer, joined_us)) = self.identities.get(&identity) else { return Standing::Unknown };
        match self.peers.get(&peer) {
            Some(record) if record.is_touched(joined_us, decided_us, self.late_us()) => Standing::Touched,
            _ => Standing::Innocent,
        }
    }

    fn lost(&mut self, peer: usize, kind: &str, text: &str, at_us: u64) {
        let recently = at_us.saturating_sub(self.last_fault_us) <= self.limit_us;
        let (master, late_us) = (self.master, self.late_us());
        let Some(record) = self.peers.get_mut(&peer) else { return };
        // How long a newcomer may be kept out is judged elsewhere.
        let late_us = if record.joined { late_us } else { u64::MAX };
        let touched = record.is_touched(record.joined_us, at_us, late_us);
        // The one that it knew was killed, or there is none that it could join.
        let orphaned = MASTER_GONE.contains(&kind)
            && if record.joined {
                record.reign < master.reign
            } else {
                master.killed_us.is_some() && (master.down || at_us <= master.listens_us + self.limit_us)
            };
        // Nobody goes for a broken connection, but who has just come may not get in through one.
        // Nor for state that cannot be fetched through one, but who is alone with that does.
        let turned_away = (!record.joined || text.contains(NO_STATE)) && kind == "Unreachable" && recently;
        if record.joined {
            record.out_since_us = at_us;
        }
        self.counts.drops += u64::from(record.joined && !orphaned);
        record.joined = false;
        record.revision = None;
        self.progress_of(peer).gone(peer);
        if !touched && !orphaned && !turned_away {
            let text = format!("peer {peer}, which nothing was done to lately, lost the run: {kind}: {text}");
            self.violation(at_us, Check::Innocent, text);
        }
    }

    /// Looks for what has not happened although it should have.
    pub(crate) fn tick(&mut self, now_us: u64) {
        let others: BTreeMap<u32, u64> =
            self.progress.keys().map(|group| (*group, self.others_us(*group))).collect();
        if !self.master.down {
            let stalls = self.progress.iter_mut().map(|(group, it)| it.check(others[group], now_us));
            for text in stalls.flatten().collect::<Vec<_>>() {
                self.violation(now_us, Check::Progress, text);
            }
        }
        self.check_skipped(now_us, now_us);
        let mut staying = self.living().filter(|(_, record)| record.is_alive() && !record.leaving);
        let settled = staying.all(|(_, record)| record.joined && record.revision.is_some());
        drop(staying);
        self.master.new &= self.master.down || !settled;
        let most_us = 2 * self.limit_us;
        let mut hung = Vec::new();
        for peer in &self.living {
            let Some(record) = self.peers.get_mut(peer) else { continue };
            let waits = record.is_alive() && !record.stopped && !record.hung && !self.master.down;
            let others_us = others.get(&record.group).copied().unwrap_or(0);
            if waits && now_us.saturating_sub(record.heard_us.max(others_us)) > most_us {
                record.hung = true;
                let silent_us = now_us.saturating_sub(record.heard_us);
                hung.push(format!("peer {peer} has reported nothing for {} ms", silent_us / 1000));
            }
            let out_us = now_us.saturating_sub(record.out_since_us);
            if waits && !record.joined && !record.leaving && out_us > most_us {
                record.hung = true;
                hung.push(format!("peer {peer} has not been let in for {} ms", out_us / 1000));
            }
        }
        for text in hung {
            self.violation(now_us, Check::Progress, text);
        }
    }

    fn check_skipped(&mut self, up_to_us: u64, now_us: u64) {
        let skipped: Vec<String> =
            self.revisions.values_mut().flat_map(|revisions| revisions.skipped(up_to_us)).collect();
        for text in skipped {
            self.violation(now_us, Check::Revision, text);
        }
    }

    /// Judges what could only be judged when everything has been heard.
    pub(crate) fn finish(&mut self, now_us: u64) {
        self.check_skipped(u64::MAX, now_us);
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
