//! Who reaches whom: judged by what all members of a group find when they are asked at the same time, not by one ring
//! after the other.
//!
//! The master itself tries the listeners of each peer that registers. What it finds is a hint: the peer is warned, and
//! the others are asked, since they may reach what the master does not, and the other way round.

use super::client::Phase;
use super::edges::{EdgeEnds, Mark, Severity};
use super::group::Group;
use super::types::Action;
use super::{MasterState, Timestamp};
use crate::topology::{Candidate, largest_ring};
use pccl_protocol::{
    GroupEpoch, GroupId, KickCode, KickReason, M2c, PeerId, Purpose, ReachPlan, ReachReport, ReachTarget,
    Text,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What the way of a question and its answer may take, beside the connections that are tried.
const WAY: Duration = Duration::from_secs(1);
/// Ports that a peer tries at the same time.
const TRIED_AT_ONCE: usize = 256;
/// Members that a check for a doubtful port needs: two others who say the same of the third.
const ENOUGH_TO_JUDGE: usize = 3;
/// Edges that are listed in one reason; the rest is counted.
const EDGES_MAX: usize = 4;

/// A port of a peer that the master has not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) is_state: bool,
    since: Timestamp,
    pub(super) why: String,
    /// The others have been asked.
    asked: bool,
}

/// What a member has answered.
#[derive(Debug)]
struct Answer {
    /// The newest ring that it has worked on.
    epoch: GroupEpoch,
}

/// Why members are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// An edge of the ring could not be built.
    Fault,
    /// This ring was not confirmed in time.
    Overdue(GroupEpoch),
    /// The master does not reach a port.
    Doubt,
}

/// The question to all members of a group whom they reach.
#[derive(Debug)]
pub(super) struct Check {
    number: u64,
    since: Timestamp,
    due: Timestamp,
    reason: Reason,
    /// Who was asked, and what came back.
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
    pub(super) fn extend(&mut self, gap: Duration, past: impl Fn(&mut Timestamp)) {
        // A deadline, and not a time in the past.
        self.due = self.due + gap;
        self.settled.iter_mut().for_each(past);
    }
}

impl MasterState {
    /// Has the listeners of a peer tried that has just registered.
    pub(super) fn try_listeners(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        let target = peer.reach_target(id, peer);
        let (group, limit) = (peer.group(), self.options.dial_timeout);
        self.out.push(Action::Reach { target, group, limit });
    }

    /// Which ports of a peer the master has not reached: whether that of its state, and why.
    pub(super) fn record_reached(&mut self, id: PeerId, closed: Vec<(bool, String)>) {
        let since = self.now;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let check = self.groups.get(&peer.group()).and_then(|group| group.check.as_ref());
        let asked = check.is_some_and(|check| check.targets.contains(&id));
        let closed = closed.into_iter().map(|(is_state, why)| Closed { is_state, since, why, asked });
        peer.closed = closed.collect();
        peer.tried = true;
        let client = peer.client;
        for text in self.closed_ports(id, "you") {
            self.send(client, M2c::Warning(Text::new(text)));
        }
        for text in self.closed_ports(id, &self.name_of(id)) {
            self.warn(text);
        }
    }

    /// A sentence about the ports of a peer that nobody is known to reach, if there are any.
    fn closed_ports(&self, id: PeerId, who: &str) -> Vec<String> {
        let Some(peer) = self.peers.get(&id) else { return Vec::new() };
        let has_data = peer.closed.iter().any(|closed| !closed.is_state);
        let sentence = |closed: &Closed| {
            format!("{} (tried by the master: {})", self.nobody_reaches(id, who, closed.is_state), closed.why)
        };
        // The sentence about the port for data names that for state, too.
        peer.closed.iter().filter(|closed| !(has_data && closed.is_state)).map(sentence).collect()
    }

    fn nobody_reaches(&self, id: PeerId, who: &str, is_state: bool) -> String {
        let Some(peer) = self.peers.get(&id) else { return format!("nobody reaches {who}") };
        let target = peer.reach_target(id, peer);
        let host = &target.host;
        let both = !is_state && peer.closed.iter().any(|closed| closed.is_state);
        let ports = match (is_state, both) {
            (true, _) => format!("{host}:{}", target.state_port),
            (false, false) => format!("{host}:{}", target.p2p_port),
            (false, true) => format!("{host}:{} and {host}:{}", target.p2p_port, target.state_port),
        };
        format!("nobody reaches {who} at {ports}: open it or set advertised_host")
    }

    /// Ports that nobody is known to reach: since when, and the sentence.
    pub(super) fn closed_waits(&self) -> Vec<(Timestamp, String)> {
        let of = |id: &PeerId| {
            let since =
                self.peers.get(id).into_iter().flat_map(|peer| &peer.closed).map(|closed| closed.since);
            since.zip(self.closed_ports(*id, &format!("peer {}", self.name_of(*id)))).collect::<Vec<_>>()
        };
        self.peers.keys().flat_map(of).collect()
    }

    /// A ring stands: the data ports of its members were reached.
    pub(super) fn note_reached_members(&mut self, group_id: GroupId) {
        for id in self.ring_members(group_id) {
            self.note_reached(id, false);
        }
    }

    fn note_reached(&mut self, id: PeerId, is_state: bool) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.closed.retain(|closed| closed.is_state != is_state);
        }
    }

    /// Rule: the members of a group are asked whom they reach when an edge of their ring could not be built, when the
    /// ring does not stand in time, and when the master does not reach one of them.
    pub(super) fn begin_checks(&mut self) -> bool {
        let mut due: Vec<(GroupId, Reason, BTreeSet<PeerId>)> = Vec::new();
        for (id, group) in
            self.groups.iter().filter(|(_, group)| group.check.is_none() && group.ring.len() > 1)
        {
            let members: BTreeSet<PeerId> = group.ring.iter().copied().collect();
            let fails = group
                .edges
                .held()
                .any(|(_, held)| held.unbuildable && held.since + self.options.edge_grace <= self.tick);
            let overdue = self.overdue_since(group).is_some_and(|at| at <= self.tick);
            if fails || overdue {
                let reason = if overdue { Reason::Overdue(group.edges_since) } else { Reason::Fault };
                due.push((*id, reason, members));
                continue;
            }
            let doubtful = |id: &PeerId| {
                self.peers.get(id).is_some_and(|peer| peer.closed.iter().any(|closed| !closed.asked))
            };
            let doubtful: BTreeSet<PeerId> = members.iter().copied().filter(doubtful).collect();
            if members.len() >= ENOUGH_TO_JUDGE && !doubtful.is_empty() {
                // A ring that is being built may have other faults: then they are found at the same time.
                let all = group.stands_since.is_none() && members.len() <= TRIED_AT_ONCE / 2;
                due.push((*id, Reason::Doubt, if all { members } else { doubtful }));
            }
        }
        let fired = !due.is_empty();
        due.into_iter().for_each(|(group, reason, targets)| self.begin_check(group, reason, targets));
        fired
    }

    /// When the members of a ring that does not stand are asked why; `None` if they are not.
    pub(super) fn overdue_since(&self, group: &Group) -> Option<Timestamp> {
        let open = group.edges.missing(Purpose::Ring).iter().any(|id| self.peers.contains_key(id));
        let asks = open && group.check.is_none() && group.overdue_checked != group.edges_since;
        asks.then(|| group.planned_at + self.options.dial_timeout + self.options.edge_grace)
    }

    fn begin_check(&mut self, group_id: GroupId, reason: Reason, targets: BTreeSet<PeerId>) {
        let members: Vec<PeerId> = self.ring_members(group_id).into_iter().collect();
        self.checks += 1;
        let number = self.checks;
        let turns = u32::try_from((2 * targets.len()).div_ceil(TRIED_AT_ONCE)).unwrap_or(u32::MAX).max(1);
        let (limit, now) = (self.options.dial_timeout, self.now);
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        if let Reason::Overdue(epoch) = reason {
            group.overdue_checked = epoch;
        }
        group.check = Some(Check {
            number,
            since: now,
            due: now + limit * turns + WAY,
            reason,
            asked: members.iter().map(|id| (*id, None)).collect(),
            targets: targets.clone(),
            failed: BTreeMap::new(),
            settled: None,
            disturbed: false,
        });
        let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        for id in &targets {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.closed.iter_mut().for_each(|closed| closed.asked = true);
            }
        }
        for viewer in members {
            let Some(peer) = self.peers.get(&viewer) else { continue };
            let others = targets.iter().filter(|id| **id != viewer);
            let targets = others.filter_map(|id| Some(self.peers.get(id)?.reach_target(*id, peer))).collect();
            self.send(peer.client, M2c::ReachPlan(ReachPlan { check: number, limit_ms, targets }));
        }
        self.info(format!("group {group_id}: its members are asked whom they reach ({number})"));
    }

    pub(super) fn record_reach_report(&mut self, id: PeerId, group_id: GroupId, report: ReachReport) {
        let Some(check) = self.groups.get_mut(&group_id).and_then(|group| group.check.as_mut()) else {
            return;
        };
        if check.number != report.check {
            return;
        }
        let Some(answer) = check.asked.get_mut(&id).filter(|answer| answer.is_none()) else { return };
        *answer = Some(Answer { epoch: report.epoch });
        for unreached in report.unreached {
            if check.targets.contains(&unreached.peer) && unreached.peer != id {
                check.failed.insert(((id, unreached.peer), unreached.is_state), unreached.text);
            }
        }
    }

    /// A packet of a peer came; after a silence in which it may have stood still, what was found of it is not true.
    pub(super) fn note_silence(&mut self, id: PeerId, group_id: GroupId, silent: Duration) {
        let suspicious = silent > self.options.suspicion();
        let check = self.groups.get_mut(&group_id).and_then(|group| group.check.as_mut());
        if let Some(check) = check.filter(|check| suspicious && check.asked.contains_key(&id)) {
            check.disturbed = true;
        }
    }

    /// When answers are not waited for any longer.
    pub(super) fn check_deadline(&self, group: &Group) -> Option<Timestamp> {
        group.check.as_ref().filter(|check| check.settled.is_none()).map(|check| check.due)
    }

    /// Rule: what the members have found is judged when all have answered, or the time is over, and those who are
    /// concerned have outlived it: a death that is about to be noticed explains everything.
    pub(super) fn judge_checks(&mut self) -> bool {
        let mut fired = false;
        for group_id in self.groups.keys().copied().collect::<Vec<_>>() {
            let Some(mut check) = self.groups.get_mut(&group_id).and_then(|group| group.check.take()) else {
                continue;
            };
            let stands = self.groups.get(&group_id).is_some_and(|group| self.ring_confirmed(group));
            if stands && check.reason != Reason::Doubt {
                fired = true;
                continue;
            }
            let alive = |id: &PeerId| self.peers.get(id).is_some_and(|p| p.phase != Phase::Pending);
            check.asked.retain(|id, _| alive(id));
            check.targets.retain(alive);
            check.failed.retain(|((from, to), _), _| alive(from) && alive(to));
            if check.asked.values().all(Option::is_some) || check.due <= self.tick {
                check.settled.get_or_insert(self.now);
            }
            if !self.is_outlived(&check) {
                if let Some(group) = self.groups.get_mut(&group_id) {
                    group.check = Some(check);
                }
                continue;
            }
            fired = true;
            if check.disturbed {
                self.begin_check(group_id, check.reason, check.targets);
            } else {
                self.conclude(group_id, &check);
            }
        }
        fired
    }

    fn is_outlived(&self, check: &Check) -> bool {
        let Some(settled) = check.settled else { return false };
        let outlived = settled + self.options.edge_grace;
        let heard = |id: &PeerId| self.peers.get(id).is_none_or(|peer| peer.heard_at >= outlived);
        let missing = check.asked.iter().filter(|(_, answer)| answer.is_none()).map(|(id, _)| id);
        check.failed.keys().flat_map(|((from, to), _)| [from, to]).chain(missing).all(heard)
    }

    fn conclude(&mut self, group_id: GroupId, check: &Check) {
        let answered = |id: PeerId| check.asked.get(&id).is_some_and(Option::is_some);
        // If nobody has answered, it is not them.
        if check.asked.values().any(Option::is_some) {
            let mute: Vec<PeerId> = check.asked.keys().copied().filter(|id| !answered(*id)).collect();
            for id in mute {
                let limit = check.due.since(check.since).as_millis();
                let text = format!("did not answer within {limit} ms when it was asked whom it reaches");
                self.kick(id, KickReason::new(KickCode::RingTimeout, text));
            }
        }
        self.take_in(group_id, check);
        self.drop_who_builds_no_ring(group_id, check);
        self.drop_without_state_port(check);
    }

    /// What was found becomes what is known of edges.
    fn take_in(&mut self, group_id: GroupId, check: &Check) {
        let until = self.now + self.options.forbidden_expiry;
        for target in &check.targets {
            for is_state in [false, true] {
                let reaches = |(id, answer): (&PeerId, &Option<Answer>)| {
                    id != target
                        && answer.is_some()
                        && !check.failed.contains_key(&((*id, *target), is_state))
                };
                if check.asked.iter().any(reaches) {
                    self.note_reached(*target, is_state);
                }
            }
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        for ((ends, is_state), text) in &check.failed {
            if !is_state {
                group
                    .edges
                    .marks
                    .insert(*ends, Mark { until, severity: Severity::Forbidden, text: text.clone() });
            }
        }
        let broken = |ends: &EdgeEnds| check.failed.contains_key(&(*ends, false));
        // An edge of a ring that stands stays, whatever a new connection came to.
        if group.stands_since.is_none() && group.ring_ends().any(|ends| broken(&ends)) {
            group.replan = true;
        }
        let held = group.edges.held().filter(|(_, held)| held.unbuildable && held.since <= check.since);
        let held: Vec<EdgeEnds> = held.map(|(ends, _)| ends).collect();
        for ends in held {
            self.give_up_edge(group_id, ends, check.failed.contains_key(&(ends, false)));
        }
    }

    /// Members that do not work on the ring which the others wait for.
    fn drop_who_builds_no_ring(&mut self, group_id: GroupId, check: &Check) {
        let is_late = |group: &&Group| check.reason == Reason::Overdue(group.edges_since);
        let Some(group) = self.groups.get(&group_id).filter(is_late) else { return };
        let (epoch, age) = (group.edges_since, self.now.since(group.planned_at).as_millis());
        let behind = |(id, answer): (&PeerId, &Option<Answer>)| {
            answer.as_ref().is_some_and(|answer| answer.epoch < epoch).then_some(*id)
        };
        let late: Vec<PeerId> = check.asked.iter().filter_map(behind).collect();
        for id in late {
            let text = format!("does not build ring {epoch}, {age} ms after it was planned");
            self.kick(id, KickReason::new(KickCode::RingTimeout, text));
        }
    }

    /// Members that can be reached, but whose state nobody can fetch, while the others can fetch from each other.
    fn drop_without_state_port(&mut self, check: &Check) {
        let answers: Vec<PeerId> =
            check.asked.iter().filter(|(_, answer)| answer.is_some()).map(|(id, _)| *id).collect();
        let nobody_reaches = |to: &PeerId, is_state: bool| {
            answers.iter().all(|from| from == to || check.failed.contains_key(&((*from, *to), is_state)))
        };
        let is_closed = |to: &PeerId| nobody_reaches(to, true) && !nobody_reaches(to, false);
        let closed: Vec<PeerId> = check.targets.iter().copied().filter(is_closed).collect();
        let others = answers.iter().filter(|id| !closed.contains(id)).count();
        if others + 1 < ENOUGH_TO_JUDGE {
            return;
        }
        for id in closed {
            let text = self.nobody_reaches(id, &format!("peer {}", self.name_of(id)), true);
            self.put_on_probation(id);
            self.kick(id, KickReason::new(KickCode::Unreachable, text));
        }
    }

    /// No ring goes with all members: the largest one that goes is next, and the others are dropped.
    pub(super) fn make_room_for_a_ring(
        &mut self,
        group_id: GroupId,
        members: &[PeerId],
        forbidden: &BTreeSet<EdgeEnds>,
    ) {
        let accepted = |id: &PeerId| self.peers.get(id).is_some_and(super::client::Peer::accepted);
        let established = members.iter().filter(|id| accepted(id)).count() > 1;
        let blame = self.blame(forbidden);
        let Some(group) = self.groups.get(&group_id) else { return };
        let candidates: Vec<Candidate> = members
            .iter()
            .filter_map(|id| self.peers.get(id).map(|peer| (*id, peer)))
            .map(|(id, peer)| Candidate {
                peer: id,
                established: established && peer.accepted(),
                holds_state: group.holders.contains(&id),
                blame: blame.get(&id).copied().unwrap_or(0),
                order: peer.order,
            })
            .collect();
        let ring = largest_ring(&candidates, forbidden);
        let kept: BTreeSet<PeerId> = ring.iter().copied().collect();
        let victims: Vec<PeerId> = members.iter().copied().filter(|id| !kept.contains(id)).collect();
        let reasons: Vec<String> =
            victims.iter().map(|id| self.why_unreachable(group_id, *id, members, forbidden)).collect();
        if let Some(group) = self.groups.get_mut(&group_id) {
            group.next_order = Some(ring);
        }
        for (victim, text) in victims.into_iter().zip(reasons) {
            self.put_on_probation(victim);
            self.kick(victim, KickReason::new(KickCode::Unreachable, text));
        }
    }

    /// For how many edges that cannot be built each end is the likelier cause: the one that is to be reached if the
    /// master does not reach it either, and the one that dials if the master does.
    fn blame(&self, forbidden: &BTreeSet<EdgeEnds>) -> BTreeMap<PeerId, u32> {
        let is_closed = |id: &PeerId| {
            self.peers.get(id).is_some_and(|peer| peer.closed.iter().any(|closed| !closed.is_state))
        };
        let mut blame = BTreeMap::new();
        for (from, to) in forbidden {
            let was_tried = self.peers.get(to).is_some_and(|peer| peer.tried);
            if was_tried {
                *blame.entry(if is_closed(to) { *to } else { *from }).or_insert(0) += 1;
            }
        }
        blame
    }

    /// Why a member goes: nobody reaches it, it reaches nobody, or the edges that cannot be built.
    fn why_unreachable(
        &self,
        group_id: GroupId,
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
            text = self.nobody_reaches(id, &format!("peer {}", self.name_of(id)), false);
            edges = inbound;
        } else if outbound.len() == all {
            text = format!(
                "peer {} reaches nobody: let it connect to the ports of the others",
                self.name_of(id)
            );
            edges = outbound;
        }
        let listed: Vec<String> =
            edges.iter().take(EDGES_MAX).map(|ends| self.describe_edge(group_id, *ends)).collect();
        let more = edges.len().saturating_sub(EDGES_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let intro = if text.is_empty() { "no ring goes with " } else { "; " };
        format!("{text}{intro}{}{more}", listed.join("; "))
    }

    fn describe_edge(&self, group_id: GroupId, ends: EdgeEnds) -> String {
        let why =
            self.groups.get(&group_id).and_then(|group| group.edges.marks.get(&ends)).map(|mark| &mark.text);
        let why =
            why.filter(|text| !text.as_str().is_empty()).map_or(String::new(), |text| format!(": {text}"));
        let target =
            self.peers.get(&ends.0).zip(self.peers.get(&ends.1)).map_or(String::new(), |(from, to)| {
                let target = to.reach_target(ends.1, from);
                format!(" at {}:{}", target.host, target.p2p_port)
            });
        format!("the edge {} -> {}{target}{why}", self.name_of(ends.0), self.name_of(ends.1))
    }
}

impl super::client::Peer {
    /// Where `viewer` reaches this peer.
    fn reach_target(&self, id: PeerId, viewer: &Self) -> ReachTarget {
        ReachTarget {
            peer: id,
            host: self.host_for(viewer),
            p2p_port: self.info.p2p_port,
            state_port: self.info.state_port,
        }
    }
}
