//! Reachability of peers: judged by what all members of a group find when they are asked at the same time, not by one
//! ring after the other.
//!
//! The master itself tries the listeners of each peer that registers. Its finding is a hint: the peer is warned, and
//! the others are asked, since they may reach what the master does not, and the other way round.

use super::client::Peer;
use super::members::Roll;
use super::sender::Phase;
use crate::state::MasterState;
use crate::state::groups::all_groups::Groups;
use crate::state::groups::edges::{EdgeEnds, Mark, Severity};
use crate::state::groups::group::Group;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_planner::{Candidate, largest_ring};
use pccl_protocol::{
    GroupEpoch, GroupId, KickCode, KickReason, M2c, PeerId, Purpose, ReachPlan, ReachReport, Text,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time that the way of a question and its answer may take, beside the connections that are tried.
const WAY: Duration = Duration::from_secs(1);
/// Ports that a peer tries at the same time.
const TRIED_AT_ONCE: usize = 256;
/// Members that a check for a doubtful port needs: two others who say the same of the third.
const ENOUGH_TO_JUDGE: usize = 3;
/// Edges that are listed in one reason; the rest is counted.
const EDGES_MAX: usize = 4;

/// The answer of a member.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Answer {
    /// The newest ring that it has worked on.
    epoch: GroupEpoch,
}

/// Why members are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Reason {
    /// An edge of the ring could not be built.
    Fault,
    /// This ring was not confirmed in time.
    Overdue(GroupEpoch),
    /// The master does not reach a port.
    Doubt,
}

/// The question to all members of a group whom they reach.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Check {
    number: u64,
    since: Timestamp,
    due: Timestamp,
    reason: Reason,
    /// The members that were asked, and what came back.
    asked: BTreeMap<PeerId, Option<Answer>>,
    targets: BTreeSet<PeerId>,
    /// Ports that were not reached, of data and of state, and why.
    failed: BTreeMap<(EdgeEnds, bool), Text>,
    /// All have answered, or the time was over.
    settled: Option<Timestamp>,
    /// A member stood still meanwhile: what others found about it says nothing.
    disturbed: bool,
}

impl Check {
    pub(crate) fn extend(&mut self, gap: Duration, past: impl Fn(&mut Timestamp)) {
        // A deadline, and not a time in the past.
        self.due = self.due + gap;
        self.settled.iter_mut().for_each(past);
    }

    /// Whether this peer is one of those that the others are asked about.
    pub(crate) fn asks_about(&self, id: PeerId) -> bool {
        self.targets.contains(&id)
    }

    /// Whether all have answered, or the time is over, and those who are concerned have outlived it: a death that is
    /// about to be noticed explains everything.
    fn is_over(&mut self, roll: &Roll) -> bool {
        let alive = |id: &PeerId| roll.peers.get(id).is_some_and(|p| p.phase() != Phase::Pending);
        self.asked.retain(|id, _| alive(id));
        self.targets.retain(alive);
        self.failed.retain(|((from, to), _), _| alive(from) && alive(to));
        if self.asked.values().all(Option::is_some) || self.due <= roll.tick {
            self.settled.get_or_insert(roll.now);
        }
        let Some(settled) = self.settled else { return false };
        let outlived = settled + roll.options.edge_grace;
        let heard = |id: &PeerId| roll.peers.get(id).is_none_or(|peer| peer.heard_at >= outlived);
        let missing = self.asked.iter().filter(|(_, answer)| answer.is_none()).map(|(id, _)| id);
        self.failed.keys().flat_map(|((from, to), _)| [from, to]).chain(missing).all(heard)
    }

    /// Members that have not answered, if others have. If nobody has, it is not them.
    fn mute(&self) -> Vec<PeerId> {
        if !self.asked.values().any(Option::is_some) {
            return Vec::new();
        }
        self.asked.iter().filter(|(_, answer)| answer.is_none()).map(|(id, _)| *id).collect()
    }

    /// Members that do not work on the ring which the others wait for.
    fn behind(&self, epoch: GroupEpoch) -> Vec<PeerId> {
        if self.reason != Reason::Overdue(epoch) {
            return Vec::new();
        }
        let behind = |(id, answer): (&PeerId, &Option<Answer>)| {
            answer.as_ref().is_some_and(|answer| answer.epoch < epoch).then_some(*id)
        };
        self.asked.iter().filter_map(behind).collect()
    }

    /// Members that can be reached, but whose state nobody can fetch, while the others can fetch from each other.
    fn without_state_port(&self) -> Vec<PeerId> {
        let answers: Vec<PeerId> =
            self.asked.iter().filter(|(_, answer)| answer.is_some()).map(|(id, _)| *id).collect();
        let nobody_reaches = |to: &PeerId, is_state: bool| {
            answers.iter().all(|from| from == to || self.failed.contains_key(&((*from, *to), is_state)))
        };
        let is_closed = |to: &PeerId| nobody_reaches(to, true) && !nobody_reaches(to, false);
        let closed: Vec<PeerId> = self.targets.iter().copied().filter(is_closed).collect();
        let others = answers.iter().filter(|id| !closed.contains(id)).count();
        if others + 1 < ENOUGH_TO_JUDGE { Vec::new() } else { closed }
    }
}

/// Questions to groups.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Checks {
    /// How many there were so far.
    asked: u64,
}

impl Checks {
    /// Rule: the members of a group are asked whom they reach when an edge of their ring could not be built, when the
    /// ring does not stand in time, and when the master does not reach one of them.
    pub(crate) fn begin(&mut self, groups: &mut Groups, roll: &mut Roll, out: &mut Outbox) -> bool {
        let due = |(id, group): (&GroupId, &Group)| Some((*id, group.wants_check(roll)?));
        let due: Vec<_> = groups.iter().filter_map(due).collect();
        let fired = !due.is_empty();
        for (group, (reason, targets)) in due {
            self.ask(groups, roll, out, group, reason, targets);
        }
        fired
    }

    fn ask(
        &mut self,
        groups: &mut Groups,
        roll: &mut Roll,
        out: &mut Outbox,
        group_id: GroupId,
        reason: Reason,
        targets: BTreeSet<PeerId>,
    ) {
        let Some(group) = groups.get_mut(&group_id) else { return };
        // Nobody dials the others.
        let targets: BTreeSet<PeerId> =
            targets.into_iter().filter(|id| !roll.is_outbound_only(*id)).collect();
        self.asked += 1;
        let number = self.asked;
        group.begin_check(roll, number, reason, targets.clone());
        let limit_ms = u32::try_from(roll.options.dial_timeout.as_millis()).unwrap_or(u32::MAX);
        for viewer in group.members() {
            let Some(peer) = roll.peers.get(&viewer) else { continue };
            let others = targets.iter().filter(|id| **id != viewer);
            let targets = others.filter_map(|id| Some(roll.peers.get(id)?.reach_target(*id, peer))).collect();
            out.send(peer.client, M2c::ReachPlan(ReachPlan { check: number, limit_ms, targets }));
        }
        out.info(format!("group {group_id}: its members are asked whom they reach ({number})"));
    }
}

impl Group {
    /// When the members of a ring that does not stand are asked why; `None` if they are not.
    pub(crate) fn overdue_since(&self, roll: &Roll) -> Option<Timestamp> {
        let asks = self.reach.check.is_none()
            && self.reach.overdue_checked != self.net.since
            && self.net.edges.any_missing(Purpose::Ring, |id| roll.peers.contains_key(&id));
        asks.then(|| self.net.planned_at + roll.options.dial_timeout + roll.options.edge_grace)
    }

    /// When answers are not waited for any longer.
    pub(crate) fn check_deadline(&self) -> Option<Timestamp> {
        self.reach.check.as_ref().filter(|check| check.settled.is_none()).map(|check| check.due)
    }

    /// A packet of a peer came; after a silence in which it may have stood still, what was found of it is not true.
    pub(crate) fn note_silence(&mut self, roll: &Roll, id: PeerId, silent: Duration) {
        let suspicious = silent > roll.options.suspicion();
        let check = self.reach.check.as_mut();
        if let Some(check) = check.filter(|check| suspicious && check.asked.contains_key(&id)) {
            check.disturbed = true;
        }
    }

    /// Why its members are to be asked now, and about whom.
    fn wants_check(&self, roll: &Roll) -> Option<(Reason, BTreeSet<PeerId>)> {
        if self.reach.check.is_some() || self.ring.len() <= 1 {
            return None;
        }
        let (grace, tick) = (roll.options.edge_grace, roll.tick);
        let fails = self.net.edges.held().any(|(_, held)| held.unbuildable && held.since + grace <= tick);
        let overdue = self.overdue_since(roll).is_some_and(|at| at <= tick);
        if fails || overdue {
            let reason = if overdue { Reason::Overdue(self.net.since) } else { Reason::Fault };
            return Some((reason, self.members()));
        }
        let is_doubtful = |peer: &Peer| peer.closed.iter().any(|closed| !closed.asked);
        let is_doubtful = |id: &PeerId| roll.peers.get(id).is_some_and(is_doubtful);
        let members = self.members();
        let doubtful: BTreeSet<PeerId> = members.iter().copied().filter(is_doubtful).collect();
        if members.len() < ENOUGH_TO_JUDGE || doubtful.is_empty() {
            return None;
        }
        // A ring that is being built may have other faults: then they are found at the same time.
        let all = self.net.stands_since.is_none() && members.len() <= TRIED_AT_ONCE / 2;
        Some((Reason::Doubt, if all { members } else { doubtful }))
    }

    fn begin_check(&mut self, roll: &mut Roll, number: u64, reason: Reason, targets: BTreeSet<PeerId>) {
        let turns = u32::try_from((2 * targets.len()).div_ceil(TRIED_AT_ONCE)).unwrap_or(u32::MAX).max(1);
        if let Reason::Overdue(epoch) = reason {
            self.reach.overdue_checked = epoch;
        }
        for id in &targets {
            if let Some(peer) = roll.peers.get_mut(id) {
                peer.closed.iter_mut().for_each(|closed| closed.asked = true);
            }
        }
        self.reach.check = Some(Check {
            number,
            since: roll.now,
            due: roll.now + roll.options.dial_timeout * turns + WAY,
            reason,
            asked: self.ring.iter().map(|id| (*id, None)).collect(),
            targets,
            failed: BTreeMap::new(),
            settled: None,
            disturbed: false,
        });
    }

    pub(crate) fn record_reach_report(&mut self, id: PeerId, report: ReachReport) {
        let Some(check) = self.reach.check.as_mut().filter(|check| check.number == report.check) else {
            return;
        };
        let Some(answer) = check.asked.get_mut(&id).filter(|answer| answer.is_none()) else { return };
        *answer = Some(Answer { epoch: report.epoch });
        for unreached in report.unreached {
            if check.targets.contains(&unreached.peer) && unreached.peer != id {
                check.failed.insert(((id, unreached.peer), unreached.is_state), unreached.text);
            }
        }
    }

    /// The findings become the knowledge about edges.
    fn take_in(&mut self, roll: &mut Roll, out: &mut Outbox, check: &Check) {
        let until = roll.now + roll.options.forbidden_expiry;
        for target in &check.targets {
            for is_state in [false, true] {
                let reaches = |(id, answer): (&PeerId, &Option<Answer>)| {
                    id != target
                        && answer.is_some()
                        && !check.failed.contains_key(&((*id, *target), is_state))
                };
                if check.asked.iter().any(reaches) {
                    roll.note_reached(*target, is_state);
                }
            }
        }
        for ((ends, is_state), text) in &check.failed {
            if !is_state {
                let mark = || Mark { until, severity: Severity::Forbidden, text: text.clone() };
                self.net.edges.marks.insert(*ends, mark());
                let (dialer, dialed) = *ends;
                if roll.dials_back((dialed, dialer)) {
                    self.net.edges.marks.insert((dialed, dialer), mark());
                }
            }
        }
        let broken = |ends: &EdgeEnds| check.failed.contains_key(&(roll.dialed(*ends), false));
        // An edge of a ring that stands stays, whatever a new connection came to.
        if self.net.stands_since.is_none() && self.ring_ends().any(|ends| broken(&ends)) {
            self.next.is_due = true;
        }
        let held = self.net.edges.held().filter(|(_, held)| held.unbuildable && held.since <= check.since);
        let held: Vec<EdgeEnds> = held.map(|(ends, _)| ends).collect();
        for ends in held {
            self.give_up_edge(roll, out, ends, broken(&ends));
        }
    }

    /// Why a member goes: nobody reaches it, it reaches nobody, or the edges that cannot be built.
    fn why_unreachable(
        &self,
        roll: &Roll,
        id: PeerId,
        members: &[PeerId],
        forbidden: &BTreeSet<EdgeEnds>,
    ) -> String {
        let others = || members.iter().copied().filter(|other| *other != id);
        let inbound: Vec<EdgeEnds> =
            others().map(|o| (o, id)).filter(|ends| forbidden.contains(ends)).collect();
        let outbound: Vec<EdgeEnds> =
            others().map(|o| (id, o)).filter(|ends| forbidden.contains(ends)).collect();
        let all = others().count();
        let mut text = String::new();
        let mut edges = [inbound.clone(), outbound.clone()].concat();
        if inbound.len() == all {
            text = roll.nobody_reaches(id, &format!("peer {}", roll.name_of(id)), false);
            edges = inbound;
        } else if outbound.len() == all {
            text = format!(
                "peer {} reaches nobody: let it connect to the ports of the others",
                roll.name_of(id)
            );
            edges = outbound;
        }
        let listed: Vec<String> =
            edges.iter().take(EDGES_MAX).map(|ends| self.describe_edge(roll, *ends)).collect();
        let more = edges.len().saturating_sub(EDGES_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let intro = if text.is_empty() { "no ring goes with " } else { "; " };
        format!("{text}{intro}{}{more}", listed.join("; "))
    }

    fn describe_edge(&self, roll: &Roll, ends: EdgeEnds) -> String {
        let why = self.net.edges.marks.get(&ends).map(|mark| &mark.text);
        let why =
            why.filter(|text| !text.as_str().is_empty()).map_or(String::new(), |text| format!(": {text}"));
        let target =
            roll.peers.get(&ends.0).zip(roll.peers.get(&ends.1)).map_or(String::new(), |(from, to)| {
                let target = to.reach_target(ends.1, from);
                format!(" at {}", target.hosts.listed(target.p2p_port))
            });
        let apart = roll.why_apart(ends).map_or(String::new(), |why| format!(": {why}"));
        format!("the edge {} -> {}{target}{why}{apart}", roll.name_of(ends.0), roll.name_of(ends.1))
    }
}

impl MasterState {
    /// Rule: what the members have found is judged when all have answered, or the time is over.
    pub(crate) fn judge_checks(&mut self) -> bool {
        let mut fired = false;
        for group_id in self.groups.keys().copied().collect::<Vec<_>>() {
            let Some(group) = self.groups.get_mut(&group_id) else { continue };
            let Some(mut check) = group.reach.check.take() else { continue };
            if group.ring_confirmed(&self.roll) && check.reason != Reason::Doubt {
                fired = true;
            } else if !check.is_over(&self.roll) {
                group.reach.check = Some(check);
            } else {
                fired = true;
                self.conclude(group_id, check);
            }
        }
        fired
    }

    fn conclude(&mut self, group_id: GroupId, check: Check) {
        if check.disturbed {
            let Self { checks, groups, roll, out, .. } = self;
            return checks.ask(groups, roll, out, group_id, check.reason, check.targets);
        }
        for id in check.mute() {
            let limit = check.due.since(check.since).as_millis();
            let text = format!("did not answer within {limit} ms when it was asked whom it reaches");
            self.kick(id, KickReason::new(KickCode::RingTimeout, text));
        }
        if let Some(group) = self.groups.get_mut(&group_id) {
            group.take_in(&mut self.roll, &mut self.out, &check);
            let (epoch, age) = (group.net.since, self.roll.now.since(group.net.planned_at).as_millis());
            for id in check.behind(epoch) {
                let text = format!("does not build ring {epoch}, {age} ms after it was planned");
                self.kick(id, KickReason::new(KickCode::RingTimeout, text));
            }
        }
        for id in check.without_state_port() {
            let text = self.roll.nobody_reaches(id, &format!("peer {}", self.roll.name_of(id)), true);
            self.admission.probation.put(&self.roll, &mut self.out, id);
            self.kick(id, KickReason::new(KickCode::Unreachable, text));
        }
    }

    /// No ring goes with all members: the largest one that goes is next, and the others are dropped.
    pub(crate) fn make_room_for_a_ring(
        &mut self,
        group_id: GroupId,
        members: &[PeerId],
        forbidden: &BTreeSet<EdgeEnds>,
    ) {
        let established = members.iter().filter(|id| self.roll.is_accepted(**id)).count() > 1;
        let blame = self.roll.blame(forbidden);
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let candidates: Vec<Candidate> = members
            .iter()
            .filter_map(|id| self.roll.peers.get(id).map(|peer| (*id, peer)))
            .map(|(id, peer)| Candidate {
                peer: id,
                established: established && peer.accepted(),
                holds_state: group.shared.holders.contains(&id),
                blame: blame.get(&id).copied().unwrap_or(0),
                order: peer.order,
            })
            .collect();
        let ring = largest_ring(&candidates, forbidden);
        let kept: BTreeSet<PeerId> = ring.iter().copied().collect();
        let victims: Vec<PeerId> = members.iter().copied().filter(|id| !kept.contains(id)).collect();
        let why = |id: &PeerId| group.why_unreachable(&self.roll, *id, members, forbidden);
        let reasons: Vec<String> = victims.iter().map(why).collect();
        group.next.order = Some(ring);
        for (victim, text) in victims.into_iter().zip(reasons) {
            self.admission.probation.put(&self.roll, &mut self.out, victim);
            self.kick(victim, KickReason::new(KickCode::Unreachable, text));
        }
    }
}
