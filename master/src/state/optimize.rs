//! `optimize_topology`: all accepted peers vote, edges of which nothing is known are measured, rings are planned, and
//! all adopt them before the votes are answered.
//!
//! The death of a peer is fewer facts, as everywhere: its probes and its place in a plan are gone, the rest goes on.

use super::client::{OptimizeVote, Peer};
use super::edges::EdgeEnds;
use super::group::Group;
use super::plans::{Planned, Purpose, SMALLEST_PLANNED};
use super::{MasterState, Timestamp};
use crate::topology::{SCHEDULED_PEERS, probe_rounds};
use pccl_protocol::{
    GroupId, KickCode, KickReason, M2c, OptimizeDone, PeerId, ProbePlan, ProbeReport, ProbeResult,
    ProbeRound, RequestId, Text, limits,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long a report may come after the time of its probe; and the answer of a planner after its own.
const GRACE: Duration = Duration::from_secs(2);

/// Probes take no longer than this number of rounds of full length. With more rounds each is shorter, but no shorter
/// than this part of the full length; what is then left over stays for the next optimisation.
const FULL_ROUNDS: u32 = 30;
const SHORTEST_PART: u32 = 4;

/// How long a probe may take if there are `rounds` rounds.
fn probe_limit(probe_time: Duration, rounds: usize) -> Duration {
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX).max(1);
    (probe_time * FULL_ROUNDS / rounds).clamp(probe_time / SHORTEST_PART, probe_time)
}

/// How long all send to all at the same time: enough to be up to speed on a long way, little beside the other probes.
const CROWD_TIME: Duration = Duration::from_millis(1500);

/// An optimisation that runs.
#[derive(Debug)]
pub(super) struct Optimization {
    number: u64,
    since: Timestamp,
    /// Time for each probe.
    probe_limit: Duration,
    stage: Stage,
    /// Rings before it, and what was planned.
    before: BTreeMap<GroupId, Vec<PeerId>>,
    planned: BTreeMap<GroupId, Planned>,
}

#[derive(Debug)]
enum Stage {
    /// Edges are being measured.
    Probing {
        round: u32,
        /// Rounds to come.
        rounds: VecDeque<Vec<EdgeEnds>>,
        /// Edges of this round without a report.
        open: BTreeSet<EdgeEnds>,
        /// All send to all, in the last round.
        crowded: bool,
        due: Timestamp,
    },
    /// Rings are being planned.
    Planning { due: Timestamp },
    /// New rings are being connected.
    Connecting,
}

impl Optimization {
    /// The deadline of the present stage, if it has one of its own.
    pub(super) fn due_mut(&mut self) -> Option<&mut Timestamp> {
        match &mut self.stage {
            Stage::Probing { due, .. } | Stage::Planning { due } => Some(due),
            Stage::Connecting => None,
        }
    }
}

impl MasterState {
    pub(super) fn record_optimize_vote(&mut self, id: PeerId, request: RequestId) {
        let since = self.now;
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.optimize = Some(OptimizeVote { request, since });
        }
    }

    /// A report names a round that there was, or one that runs.
    pub(super) fn admit_probe_report(&self, report: &ProbeReport) -> Result<(), KickReason> {
        if report.round.optimization > self.optimizations {
            let text = format!("reported on optimisation {}, which has not begun", report.round.optimization);
            return Err(KickReason::new(KickCode::Protocol, text));
        }
        Ok(())
    }

    pub(super) fn record_probe(&mut self, id: PeerId, report: ProbeReport) {
        let now = self.now;
        let Some(optimization) = self.optimization.as_mut() else { return };
        let Stage::Probing { round, open, crowded, .. } = &mut optimization.stage else { return };
        let present = ProbeRound { optimization: optimization.number, round: *round };
        if report.round != present || !open.remove(&(id, report.to)) {
            return;
        }
        if *crowded {
            return self.measured.note_crowded((id, report.to), &report.result, now);
        }
        self.measured.note((id, report.to), &report.result, now);
        if let ProbeResult::Failed(text) = report.result {
            let edge = self.name_of_edge((id, report.to));
            self.warn(format!("{edge} cannot be measured: {text}"));
        }
    }

    /// When [`super::Input::Tick`] is due for an optimisation.
    pub(super) fn optimization_deadline(&self) -> Option<Timestamp> {
        match &self.optimization.as_ref()?.stage {
            Stage::Probing { due, .. } | Stage::Planning { due } => Some(*due),
            Stage::Connecting => None,
        }
    }

    /// Rule: an optimisation begins when all accepted peers want one, and goes on when a stage of it is over.
    pub(super) fn advance_optimization(&mut self) -> bool {
        if self.optimization.is_some() && !self.peers.values().any(Peer::has_a_say) {
            self.optimization = None;
            self.drop_all_plans();
            return true;
        }
        // A ring from which somebody has just gone is planned first.
        let mut members = self.groups.values().flat_map(|group| &group.ring);
        if !members.all(|peer| self.peers.contains_key(peer)) {
            return false;
        }
        if self.optimization.is_none() {
            return self.begin_optimization();
        }
        self.advance_probing() || self.advance_planning()
    }

    fn begin_optimization(&mut self) -> bool {
        let mut accepted = self.peers.values().filter(|peer| peer.has_a_say()).peekable();
        if self.round.is_some() || accepted.peek().is_none() || !accepted.all(|p| p.optimize.is_some()) {
            return false;
        }
        self.optimizations += 1;
        let rounds = self.rounds_of_probes();
        let edges: usize = rounds.iter().map(Vec::len).sum();
        let number = self.optimizations;
        self.info(format!("optimisation {number}: {edges} edges to measure in {} rounds", rounds.len()));
        let ring = |group: &super::group::Group| group.ring.to_vec();
        self.optimization = Some(Optimization {
            number,
            since: self.now,
            probe_limit: probe_limit(self.options.probe_time, rounds.len()),
            stage: Stage::Probing { round: 0, rounds, open: BTreeSet::new(), crowded: false, due: self.now },
            before: self.groups.iter().map(|(id, group)| (*id, ring(group))).collect(),
            planned: BTreeMap::new(),
        });
        true
    }

    /// All groups measure at the same time: the first round has the first of each, and so on.
    fn rounds_of_probes(&self) -> VecDeque<Vec<EdgeEnds>> {
        let mut all: VecDeque<Vec<EdgeEnds>> = VecDeque::new();
        for group in self.groups.values().filter(|group| group.can_be_ordered()) {
            let members: Vec<PeerId> = group.ring.to_vec();
            let wanted = |from: usize, to: usize| {
                self.measured.wants_probe((members[from], members[to]), self.now, &self.options)
            };
            let rounds = probe_rounds(members.len(), wanted);
            for (at, round) in rounds.into_iter().enumerate() {
                if at == all.len() {
                    all.push_back(Vec::new());
                }
                all[at].extend(round.into_iter().map(|(from, to)| (members[from], members[to])));
            }
        }
        all
    }

    /// Edges on which all send to all: of groups that may have another schedule than a ring, all edges if one is
    /// wanted.
    fn crowded_edges(&self) -> Vec<EdgeEnds> {
        let mut all = Vec::new();
        let is_small = |group: &&Group| group.can_be_ordered() && SCHEDULED_PEERS.contains(&group.ring.len());
        for group in self.groups.values().filter(is_small) {
            let members: Vec<PeerId> = group.ring.to_vec();
            let pairs = members.iter().flat_map(|from| members.iter().map(move |to| (*from, *to)));
            let edges: Vec<EdgeEnds> = pairs.filter(|ends| ends.0 != ends.1).collect();
            let places = self.places(&members);
            let is_known = edges.iter().all(|ends| self.measured.rate(*ends).is_some());
            let wants = |ends: &EdgeEnds| self.measured.wants_crowd(*ends, self.now, &self.options);
            // What peers in one place have in common is no network.
            if is_known && places.iter().any(|place| *place != places[0]) && edges.iter().any(wants) {
                all.extend(edges);
            }
        }
        all
    }

    /// A round is over when everybody in it has reported, has gone, or is late; the next begins, or the planning.
    fn advance_probing(&mut self) -> bool {
        let (now, tick) = (self.now, self.tick);
        let Some(optimization) = self.optimization.as_mut() else { return false };
        let Stage::Probing { round, rounds, open, crowded, due } = &mut optimization.stage else {
            return false;
        };
        let peers = &self.peers;
        let alive = |ends: &EdgeEnds| peers.contains_key(&ends.0) && peers.contains_key(&ends.1);
        open.retain(alive);
        if !open.is_empty() && *due > tick {
            return false;
        }
        let (late, was_crowded) = (std::mem::take(open), *crowded);
        *round += 1;
        let is_over = now.since(optimization.since) >= self.options.probe_time * FULL_ROUNDS;
        let left: usize = rounds.iter().filter(|_| is_over).map(Vec::len).sum();
        if is_over {
            rounds.clear();
        }
        let next = std::iter::from_fn(|| rounds.pop_front())
            .map(|edges| edges.into_iter().filter(alive).collect::<BTreeSet<EdgeEnds>>())
            .find(|edges| !edges.is_empty());
        if left > 0 {
            self.info(format!("the time for probes is over: {left} edges stay for the next optimisation"));
        }
        self.note_late_probes(late, was_crowded);
        match next {
            Some(edges) => self.begin_probes(edges, false),
            // What has just been measured says whether that is of use.
            None if !was_crowded => self.begin_probes(self.crowded_edges().into_iter().collect(), true),
            None => self.begin_planning(),
        }
        true
    }

    fn note_late_probes(&mut self, late: BTreeSet<EdgeEnds>, crowded: bool) {
        let text = "the measuring peer did not report in time";
        let result = ProbeResult::Failed(Text::new(text));
        for ends in late {
            if crowded {
                self.measured.note_crowded(ends, &result, self.now);
            } else {
                self.measured.note(ends, &result, self.now);
                let edge = self.name_of_edge(ends);
                self.warn(format!("{edge} cannot be measured: {text}"));
            }
        }
    }

    /// Begins a round of probes; without edges there is none.
    fn begin_probes(&mut self, edges: BTreeSet<EdgeEnds>, is_crowd: bool) {
        if edges.is_empty() {
            return self.begin_planning();
        }
        let now = self.now;
        let Some(optimization) = self.optimization.as_mut() else { return };
        let limit =
            if is_crowd { optimization.probe_limit.min(CROWD_TIME) } else { optimization.probe_limit };
        let number = optimization.number;
        let Stage::Probing { round, open, crowded, due, .. } = &mut optimization.stage else { return };
        open.clone_from(&edges);
        *crowded = is_crowd;
        *due = now + limit + GRACE;
        let begun = ProbeRound { optimization: number, round: *round };
        for ends in edges {
            self.send_probe(begun, ends, limit, is_crowd);
        }
    }

    fn begin_planning(&mut self) {
        let due = self.now + self.options.plan_budget + GRACE;
        if let Some(optimization) = self.optimization.as_mut() {
            optimization.stage = Stage::Planning { due };
        }
    }

    fn send_probe(&mut self, round: ProbeRound, (from, to): EdgeEnds, limit: Duration, crowded: bool) {
        let (Some(source), Some(target)) = (self.peers.get(&from), self.peers.get(&to)) else { return };
        let plan = ProbePlan {
            round,
            to,
            host: target.host_for(source),
            port: target.info.p2p_port,
            connections: source.info.pool_connections.min(limits::MAX_POOL_CONNECTIONS),
            limit_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX),
            crowded,
        };
        self.send_peer(from, M2c::ProbePlan(plan));
    }

    /// Every group gets a plan for the members that it has now. When all have one, all adopt it.
    fn advance_planning(&mut self) -> bool {
        let Some(Optimization { stage: Stage::Planning { due }, planned, .. }) = self.optimization.as_mut()
        else {
            return false;
        };
        let late = *due <= self.tick;
        let members =
            |group: &super::group::Group| -> BTreeSet<PeerId> { group.ring.iter().copied().collect() };
        // What was planned for other members than there are now is of no use.
        let groups = &self.groups;
        planned.retain(|id, planned| {
            groups.get(id).is_some_and(|group| members(group) == planned.members.iter().copied().collect())
        });
        let done: BTreeSet<GroupId> = planned.keys().copied().collect();
        let open: Vec<GroupId> =
            groups.keys().copied().filter(|id| !done.contains(id) && self.can_be_planned(*id)).collect();
        let waiting = |id: &GroupId| {
            self.plans.get(*id).is_some_and(|pending| pending.purpose == Purpose::Optimization)
        };
        if !late {
            let missing: Vec<GroupId> = open.iter().copied().filter(|id| !waiting(id)).collect();
            if !missing.is_empty() {
                missing.iter().for_each(|id| self.start_plan(*id, Purpose::Optimization));
                return true;
            }
            if !open.is_empty() {
                return false;
            }
        }
        for id in open {
            self.drop_plan(id);
            self.warn(format!("group {id}: no ring was planned in time, the present one stays"));
        }
        self.adopt_planned_rings();
        true
    }

    fn adopt_planned_rings(&mut self) {
        let Some(optimization) = self.optimization.as_mut() else { return };
        optimization.stage = Stage::Connecting;
        let mut orders = Vec::new();
        for (id, planned) in &optimization.planned {
            let Some(group) = self.groups.get_mut(id) else { continue };
            // What was found in the background is known to this plan: it began with the same figures, or newer ones.
            let better = group.better.take().map(|better| better.order);
            let kept = planned.result.as_ref().map_or(true, |answer| answer.kept);
            orders.push((*id, if kept { better } else { planned.order() }));
        }
        for (id, order) in orders {
            let replan = order.is_some() || self.schedule_is_outdated(id);
            if let Some(group) = self.groups.get_mut(&id).filter(|_| replan) {
                group.next_order = order;
                group.replan = true;
            }
        }
    }

    pub(super) fn take_urgent_plan(&mut self, group_id: GroupId, planned: Planned) {
        if let Err(text) = &planned.result {
            self.warn(format!("group {group_id}: the present ring stays: {text}"));
        }
        if let Some(optimization) = self.optimization.as_mut() {
            optimization.planned.insert(group_id, planned);
        }
    }

    /// Rule: an optimisation ends when every ring stands. Votes are answered, and better rings are looked for.
    pub(super) fn end_optimization(&mut self) -> bool {
        let connecting = |o: &mut Optimization| matches!(o.stage, Stage::Connecting);
        if !self.groups.values().all(|group| group.formed.is_some() || self.ring_confirmed(group)) {
            return false;
        }
        let Some(optimization) = self.optimization.take_if(connecting) else { return false };
        let took = self.now.since(optimization.since).as_millis();
        self.info(format!(
            "optimisation {} is over after {took} ms{}",
            optimization.number,
            self.rings_in_words()
        ));
        let mut answers = Vec::new();
        for (id, peer) in &mut self.peers {
            answers.extend(peer.optimize.take().map(|vote| (*id, peer.group(), vote.request)));
        }
        for (id, group, request) in answers {
            let done = self.review(&optimization, group, request);
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.sizes_told = Some(done.sizes);
            }
            self.send_peer(id, M2c::OptimizeDone(done));
        }
        for (id, planned) in &optimization.planned {
            if planned.result.as_ref().is_ok_and(|answer| !answer.proven) {
                self.start_plan(*id, Purpose::Improvement);
            }
        }
        true
    }

    /// The slowest edge of each ring and how large operations go, for the log.
    fn rings_in_words(&self) -> String {
        let mut text = String::new();
        for (id, group) in
            self.groups.iter().filter(|(_, group)| group.ring.len() > 1 && group.formed.is_none())
        {
            let slowest = match self.slowest_edge(group) {
                Some(edge) => {
                    let ends = self.name_of_edge((edge.from, edge.to));
                    format!("the slowest of {} edges is {ends} with {}", group.ring.len(), edge.rate())
                }
                None => format!("not all of the {} edges of its ring have a rate", group.ring.len()),
            };
            let schedule =
                if group.paths.pairwise { group.describe_schedule() } else { ", around the ring".into() };
            text.push_str(&format!("; group {id}: {slowest}{schedule}"));
        }
        text
    }

    /// What an optimisation came to, for a member of `group`.
    fn review(&self, optimization: &Optimization, group_id: GroupId, request: RequestId) -> OptimizeDone {
        let ring: Vec<PeerId> =
            self.groups.get(&group_id).into_iter().flat_map(|g| &g.ring).copied().collect();
        let pairs = || ring.iter().flat_map(|from| ring.iter().map(move |to| (*from, *to)));
        let unmeasured =
            pairs().filter(|ends| ends.0 != ends.1 && self.measured.rate(*ends).is_none()).count();
        let planned = optimization.planned.get(&group_id);
        let answer = planned.and_then(|planned| planned.result.as_ref().ok());
        let schedules = self.groups.get(&group_id).and_then(|group| self.schedules(group, &ring));
        let pairwise_pct = schedules.and_then(|found| Some(100.0 * (1.0 + found.pairwise_gain()?)));
        let note = match planned {
            Some(Planned { result: Err(text), .. }) => text.clone(),
            Some(_) => String::new(),
            None if ring.len() < SMALLEST_PLANNED => "there is only one ring".to_owned(),
            None => "no ring was planned in time".to_owned(),
        };
        OptimizeDone {
            request,
            sizes: self.sizes(group_id),
            changed: optimization.before.get(&group_id) != Some(&ring),
            slowest: self.groups.get(&group_id).and_then(|group| self.slowest_edge(group)),
            bound_kbit_s: answer.map_or(0, |answer| answer.bound_kbit_s),
            proven: answer.is_some_and(|answer| answer.proven),
            unmeasured: u32::try_from(unmeasured).unwrap_or(u32::MAX),
            pairwise: self.groups.get(&group_id).is_some_and(|group| group.paths.pairwise),
            pairwise_pct: pairwise_pct.map_or(0, |pct| pct.round() as u32),
            note: Text::new(note),
        }
    }

    /// Who keeps an optimisation from beginning.
    pub(super) fn missing_for_optimization(&self) -> String {
        let silent = self.peers.iter().filter(|(_, p)| p.has_a_say() && p.optimize.is_none());
        format!("the vote of {}", self.list_peers(silent.map(|(id, _)| *id)))
    }

    /// What an optimisation waits for, in words.
    pub(super) fn blocked_optimization(&self) -> String {
        let reason = match self.optimization.as_ref().map(|optimization| &optimization.stage) {
            None => self.missing_for_optimization(),
            Some(Stage::Probing { round, rounds, open, .. }) => {
                let edges: Vec<String> = open.iter().take(4).map(|(a, b)| format!("{a} -> {b}")).collect();
                let more =
                    if open.len() > 4 { format!(" and {} more", open.len() - 4) } else { String::new() };
                format!(
                    "round {round} of {} of probes: {}{more}",
                    *round as usize + rounds.len(),
                    edges.join(", ")
                )
            }
            Some(Stage::Planning { .. }) => "the planner".to_owned(),
            Some(Stage::Connecting) => self.ring_sentences().join("; "),
        };
        format!("optimize_topology waits for {reason}")
    }
}
