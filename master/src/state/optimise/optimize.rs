//! `optimize_topology`: all accepted peers vote, edges of which nothing is known are measured, rings are planned, and
//! all adopt them before the votes are answered.
//!
//! The death of a peer is fewer facts, as everywhere: its probes and its place in a plan are gone, the rest goes on.

use super::measured::Measured;
use super::plans::{Planned, Plans, Purpose};
use super::probing::{crowded_edges, is_sampled, rounds_of_probes};
use crate::state::groups::all_groups::Groups;
use crate::state::groups::edges::EdgeEnds;
use crate::state::groups::group::Group;
use crate::state::membership::client::{CommonVote, OptimizeVote, RunVote};
use crate::state::membership::members::Roll;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_planner::{NEAR_ROUNDS, NEAR_STEPS};
use pccl_protocol::{
    GroupId, KickCode, KickReason, M2c, PeerId, ProbePlan, ProbeReport, ProbeResult, ProbeRound, RequestId,
    Text, limits,
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
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Optimization {
    pub(crate) number: u64,
    pub(crate) since: Timestamp,
    /// Time for each probe.
    probe_limit: Duration,
    stage: Stage,
    /// Rings before it, and what was planned.
    pub(crate) before: BTreeMap<GroupId, Vec<PeerId>>,
    pub(crate) planned: BTreeMap<GroupId, Planned>,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Stage {
    /// Edges are being measured.
    Probing {
        round: u32,
        /// Rounds to come.
        rounds: VecDeque<Vec<EdgeEnds>>,
        /// Edges of this round without a report.
        open: BTreeSet<EdgeEnds>,
        /// How often edges to near peers are still chosen.
        near_steps: usize,
        /// All send to all, in the last round.
        crowded: bool,
        due: Timestamp,
    },
    /// Rings are being planned.
    Planning { due: Timestamp },
    /// New rings are being connected.
    Connecting,
}

/// The means that an optimisation may use and change.
pub(crate) struct Means<'a> {
    pub(crate) groups: &'a mut Groups,
    pub(crate) roll: &'a mut Roll,
    pub(crate) measured: &'a mut Measured,
    pub(crate) plans: &'a mut Plans,
    pub(crate) out: &'a mut Outbox,
}

impl Means<'_> {
    /// Has the ring of a group planned.
    pub(crate) fn start_plan(&mut self, group: GroupId, purpose: Purpose) {
        self.plans.start(self.groups, self.roll, self.measured, self.out, (group, purpose));
    }
}

/// The optimisation that runs, if one does.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Optimizer {
    pub(crate) running: Option<Optimization>,
    /// Optimisations so far.
    count: u64,
}

impl Optimizer {
    pub(crate) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The deadline of the present stage, if it has one of its own.
    pub(crate) fn due_mut(&mut self) -> Option<&mut Timestamp> {
        match &mut self.running.as_mut()?.stage {
            Stage::Probing { due, .. } | Stage::Planning { due } => Some(due),
            Stage::Connecting => None,
        }
    }

    /// The same, to look at.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        match &self.running.as_ref()?.stage {
            Stage::Probing { due, .. } | Stage::Planning { due } => Some(*due),
            Stage::Connecting => None,
        }
    }

    /// A report names a round that there was, or one that runs.
    pub(crate) fn admit_probe_report(&self, report: &ProbeReport) -> Result<(), KickReason> {
        if report.round.optimization > self.count {
            let text = format!("reported on optimisation {}, which has not begun", report.round.optimization);
            return Err(KickReason::new(KickCode::Protocol, text));
        }
        Ok(())
    }

    pub(crate) fn record_probe(
        &mut self,
        roll: &Roll,
        measured: &mut Measured,
        out: &mut Outbox,
        id: PeerId,
        report: ProbeReport,
    ) {
        let Some(optimization) = self.running.as_mut() else { return };
        let Stage::Probing { round, open, crowded, .. } = &mut optimization.stage else { return };
        let present = ProbeRound { optimization: optimization.number, round: *round };
        if report.round != present || !open.remove(&(id, report.to)) {
            return;
        }
        // The others of the round are waited for.
        out.changed |= open.is_empty();
        if *crowded {
            return measured.note_crowded((id, report.to), &report.result, roll.now);
        }
        measured.note((id, report.to), &report.result, roll.now);
        if let ProbeResult::Failed(text) = report.result {
            out.warn(format!("{} cannot be measured: {text}", roll.name_of_edge((id, report.to))));
        }
    }

    /// A ring was planned for the optimisation that runs.
    pub(crate) fn take_plan(&mut self, out: &mut Outbox, group_id: GroupId, planned: Planned) {
        if let Err(text) = &planned.result {
            out.warn(format!("group {group_id}: the present ring stays: {text}"));
        }
        if let Some(optimization) = self.running.as_mut() {
            optimization.planned.insert(group_id, planned);
        }
    }

    /// Rule: an optimisation begins when all accepted peers want one, and goes on when a stage of it is over.
    pub(crate) fn advance(&mut self, in_round: bool, mut means: Means<'_>) -> bool {
        if self.running.is_some() && means.roll.voters().next().is_none() {
            self.running = None;
            means.plans.drop_all(means.out);
            return true;
        }
        // A ring from which somebody has just gone is planned first.
        let mut members = means.groups.values().flat_map(|group| &group.ring);
        if !members.all(|peer| means.roll.peers.contains_key(peer)) {
            return false;
        }
        match &mut self.running {
            Some(running) => running.advance_probing(&mut means) || running.advance_planning(&mut means),
            None => !in_round && self.begin(&mut means),
        }
    }

    fn begin(&mut self, Means { groups, roll, measured, out, .. }: &mut Means<'_>) -> bool {
        let mut voters = roll.voters().peekable();
        if voters.peek().is_none() || !voters.all(|(_, peer)| peer.optimize().is_some()) {
            return false;
        }
        self.count += 1;
        let rounds = rounds_of_probes(groups, roll, measured, None);
        let edges: usize = rounds.iter().map(Vec::len).sum();
        let number = self.count;
        out.info(format!("optimisation {number}: {edges} edges to measure in {} rounds", rounds.len()));
        let is_sample = edges > 0 && groups.values().any(is_sampled);
        let near_steps = if is_sample { NEAR_STEPS } else { 0 };
        self.running = Some(Optimization {
            number,
            since: roll.now,
            probe_limit: probe_limit(roll.options.probe_time, rounds.len() + near_steps * NEAR_ROUNDS),
            stage: Stage::Probing {
                round: 0,
                rounds,
                open: BTreeSet::new(),
                near_steps,
                crowded: false,
                due: roll.now,
            },
            before: groups.iter().map(|(id, group)| (*id, group.ring.clone())).collect(),
            planned: BTreeMap::new(),
        });
        true
    }
}

impl Roll {
    pub(crate) fn record_optimize_vote(&mut self, out: &mut Outbox, id: PeerId, request: RequestId) {
        let since = self.now;
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.give(RunVote::Optimize(OptimizeVote { request, since }));
        }
        out.changed |= self.note_voted(id, CommonVote::Optimize);
    }

    fn send_probe(
        &self,
        out: &mut Outbox,
        round: ProbeRound,
        (from, to): EdgeEnds,
        limit: Duration,
        crowded: bool,
    ) {
        let (Some(source), Some(target)) = (self.peers.get(&from), self.peers.get(&to)) else { return };
        let plan = ProbePlan {
            round,
            to,
            hosts: target.hosts_for(source),
            port: target.info.p2p_port,
            connections: source.info.pool_connections.min(limits::MAX_POOL_CONNECTIONS),
            limit_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX),
            crowded,
            back: target.outbound_only,
        };
        out.send(source.client, M2c::ProbePlan(plan));
    }
}

impl Optimization {
    /// A round is over when everybody in it has reported, has gone, or is late; the next begins, or the planning.
    fn advance_probing(&mut self, Means { groups, roll, measured, out, .. }: &mut Means<'_>) -> bool {
        let Stage::Probing { round, rounds, open, near_steps, crowded, due } = &mut self.stage else {
            return false;
        };
        let alive = |ends: &EdgeEnds| roll.peers.contains_key(&ends.0) && roll.peers.contains_key(&ends.1);
        open.retain(alive);
        if !open.is_empty() && *due > roll.tick {
            return false;
        }
        let (late, was_crowded) = (std::mem::take(open), *crowded);
        *round += 1;
        let is_over = roll.now.since(self.since) >= roll.options.probe_time * FULL_ROUNDS;
        let left: usize = rounds.iter().filter(|_| is_over).map(Vec::len).sum();
        if is_over {
            rounds.clear();
        }
        if left > 0 {
            out.info(format!("the time for probes is over: {left} edges stay for the next optimisation"));
        }
        note_late_probes(roll, measured, out, late, was_crowded);
        let next = loop {
            let next = std::iter::from_fn(|| rounds.pop_front())
                .map(|edges| edges.into_iter().filter(alive).collect::<BTreeSet<EdgeEnds>>())
                .find(|edges| !edges.is_empty());
            if next.is_some() || *near_steps == 0 || is_over {
                break next;
            }
            *rounds = rounds_of_probes(groups, roll, measured, Some(NEAR_STEPS - *near_steps));
            *near_steps -= 1;
        };
        match next {
            Some(edges) => self.begin_probes(roll, out, edges, false),
            // The rates that have just been measured say whether that is of use.
            None if !was_crowded => self.begin_probes(roll, out, crowded_edges(groups, roll, measured), true),
            None => self.begin_planning(roll),
        }
        true
    }

    /// Begins a round of probes; without edges there is none.
    fn begin_probes(&mut self, roll: &Roll, out: &mut Outbox, edges: BTreeSet<EdgeEnds>, is_crowd: bool) {
        if edges.is_empty() {
            return self.begin_planning(roll);
        }
        let limit = if is_crowd { self.probe_limit.min(CROWD_TIME) } else { self.probe_limit };
        let Stage::Probing { round, open, crowded, due, .. } = &mut self.stage else { return };
        open.clone_from(&edges);
        *crowded = is_crowd;
        *due = roll.now + limit + GRACE;
        let begun = ProbeRound { optimization: self.number, round: *round };
        for ends in edges {
            roll.send_probe(out, begun, ends, limit, is_crowd);
        }
    }

    fn begin_planning(&mut self, roll: &Roll) {
        self.stage = Stage::Planning { due: roll.now + roll.options.plan_budget + GRACE };
    }

    /// Every group gets a plan for the members that it has now. When all have one, all adopt it.
    fn advance_planning(&mut self, means: &mut Means<'_>) -> bool {
        let Stage::Planning { due } = self.stage else { return false };
        let late = due <= means.roll.tick;
        // A ring that was planned for other members than there are now is of no use.
        let is_for =
            |group: &Group, planned: &Planned| group.members() == planned.members.iter().copied().collect();
        let groups = &*means.groups;
        self.planned.retain(|id, planned| groups.get(id).is_some_and(|group| is_for(group, planned)));
        let is_open =
            |(id, group): &(&GroupId, &Group)| !self.planned.contains_key(id) && group.can_be_planned();
        let open: Vec<GroupId> = groups.iter().filter(is_open).map(|(id, _)| *id).collect();
        if !late {
            let plans = &*means.plans;
            let waiting = |id: &GroupId| plans.get(*id).is_some_and(|it| it.purpose == Purpose::Optimization);
            let missing: Vec<GroupId> = open.iter().copied().filter(|id| !waiting(id)).collect();
            if !missing.is_empty() {
                missing.iter().for_each(|id| means.start_plan(*id, Purpose::Optimization));
                return true;
            }
            if !open.is_empty() {
                return false;
            }
        }
        for id in open {
            means.plans.drop(means.groups, means.out, id);
            means.out.warn(format!("group {id}: no ring was planned in time, the present one stays"));
        }
        self.adopt_planned_rings(means);
        true
    }

    fn adopt_planned_rings(&mut self, Means { groups, roll, measured, .. }: &mut Means<'_>) {
        self.stage = Stage::Connecting;
        for (id, planned) in &self.planned {
            let Some(group) = groups.get_mut(id) else { continue };
            // The ring that was found in the background is known to this plan: the plan began with the same figures, or
            // newer ones.
            let better = group.next.better.take().map(|better| better.order);
            let kept = planned.result.as_ref().map_or(true, |answer| answer.kept);
            let order = if kept { better } else { planned.order() };
            if order.is_some() || group.schedule_is_outdated(roll, measured) {
                group.next.order = order;
                group.next.is_due = true;
            }
        }
    }

    /// Whether its rings are being connected, and nothing else is to be done.
    pub(crate) const fn is_connecting(&self) -> bool {
        matches!(self.stage, Stage::Connecting)
    }

    /// The things that it waits for, in words.
    pub(crate) fn sentence(&self, roll: &Roll, groups: &Groups) -> String {
        match &self.stage {
            Stage::Probing { round, rounds, open, .. } => {
                let edges: Vec<String> = open.iter().take(4).map(|(a, b)| format!("{a} -> {b}")).collect();
                let more =
                    if open.len() > 4 { format!(" and {} more", open.len() - 4) } else { String::new() };
                format!(
                    "round {round} of {} of probes: {}{more}",
                    *round as usize + rounds.len(),
                    edges.join(", ")
                )
            }
            Stage::Planning { .. } => "the planner".to_owned(),
            Stage::Connecting => groups.ring_sentences(roll).join("; "),
        }
    }
}

fn note_late_probes(
    roll: &Roll,
    measured: &mut Measured,
    out: &mut Outbox,
    late: BTreeSet<EdgeEnds>,
    crowded: bool,
) {
    let text = "the measuring peer did not report in time";
    let result = ProbeResult::Failed(Text::new(text));
    for ends in late {
        if crowded {
            measured.note_crowded(ends, &result, roll.now);
        } else {
            measured.note(ends, &result, roll.now);
            out.warn(format!("{} cannot be measured: {text}", roll.name_of_edge(ends)));
        }
    }
}
