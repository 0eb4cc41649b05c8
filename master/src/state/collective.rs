//! Collectives: votes, commencement, outcomes.

use super::group::{BrokenEdge, Completion, GivenUp, Group, Loss, Op, Participant};
use super::ops::Gate;
use super::{MasterState, Timestamp};
use pccl_protocol::{
    Algorithm, Cause, CollectiveId, Commence, Complete, Descriptor, GroupId, Initiate, M2c, Misfit, Nothing,
    OpFault, OpFaultKind, OpId, OpOutcome, Operation, Outcome, PeerId, Phase, Stale, TooFewPeers, Verdict,
    VoteRef,
};
use std::collections::{BTreeMap, BTreeSet};

/// What is to be done about an attempt now.
enum Step {
    Wait,
    /// Nobody has it in flight any more.
    Forget,
    /// The votes cannot count: there are too few peers.
    TooFew(TooFewPeers),
    /// The votes cannot count: their epoch has ended.
    Stale,
    Commence(Algorithm),
    Decide(Outcome),
}

impl MasterState {
    pub(super) fn record_initiate(&mut self, id: PeerId, group_id: GroupId, initiate: Initiate) {
        let (now, op) = (self.now, initiate.op);
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        if op.epoch == group.epoch && op.attempt == group.history.attempts(op.tag) {
            let fresh = || Op::Voting { since: now, votes: BTreeMap::new(), given_up: None };
            if let Op::Voting { votes, .. } = group.ops.change_or_begin(op, fresh) {
                votes.insert(id, initiate.descriptor);
            }
            return;
        }
        // The attempt was decided before this vote came.
        let kept = group.history.tag(op.tag).filter(|_| op.epoch == group.epoch);
        let answer = match kept.and_then(|history| history.outcome(op.attempt)) {
            Some(outcome) => M2c::Outcome(OpOutcome { op, outcome: outcome.clone() }),
            None => M2c::Stale(Stale { vote: VoteRef::Collective(op), epoch: group.epoch }),
        };
        self.send_peer(id, answer);
    }

    pub(super) fn record_complete(&mut self, id: PeerId, group_id: GroupId, complete: Complete) {
        let now = self.now;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        match group.ops.change(complete.op) {
            Some(Op::Running { participants, faulty, .. }) => {
                if let Some(part) = participants.get_mut(&id) {
                    *faulty |= complete.fault.is_some();
                    part.reported_bytes = Some(complete.moved_bytes);
                    part.complete = Some(Completion { fault: complete.fault, at: now });
                }
            }
            // Not admitted before it has begun.
            Some(Op::Voting { .. }) | None => {}
        }
    }

    /// Takes a lost peer out of every collective of its group.
    pub(super) fn lose_participant(group: &mut Group, id: PeerId, moved_bytes: u64, loss: &Loss) {
        group.ops.change_some(|_, op| match op {
            Op::Voting { votes, given_up, .. } => {
                given_up.take_if(|given_up| given_up.by == id);
                votes.remove(&id).is_some()
            }
            Op::Running { participants, lost, lost_bytes, most_bytes, .. } => {
                let Some(part) = participants.remove(&id) else { return false };
                let beaten = moved_bytes.saturating_sub(part.base_bytes).min(*most_bytes);
                let moved = part.reported_bytes.unwrap_or(beaten);
                *lost_bytes = lost_bytes.saturating_add(moved);
                lost.push(loss.clone());
                true
            }
        });
    }

    /// Rule: votes are answered, complete votes begin, running attempts are decided.
    pub(super) fn settle_collectives(&mut self) -> bool {
        if self.changed {
            self.look_at_gates();
        }
        let due: Vec<(GroupId, BTreeSet<OpId>)> =
            self.groups.iter_mut().map(|(id, group)| (*id, group.ops.take_changed())).collect();
        let mut fired = false;
        for (group_id, ops) in due {
            for op in ops {
                let step = self.next_step(group_id, op);
                fired |= !matches!(step, Step::Wait);
                self.take_step(group_id, op, step);
            }
        }
        fired
    }

    /// Brings up to date what all votes of a group depend on.
    fn look_at_gates(&mut self) {
        let gates: Vec<(GroupId, Gate)> =
            self.groups.iter().map(|(id, group)| (*id, self.gate_of(group))).collect();
        for (id, gate) in gates {
            if let Some(group) = self.groups.get_mut(&id) {
                group.ops.set_gate(gate);
            }
        }
    }

    fn gate_of(&self, group: &Group) -> Gate {
        let few = self.few(group, if self.may_be_alone(group) { 1 } else { 2 });
        Gate {
            epoch: group.epoch,
            ready: self.ring_ready(group),
            few,
            mesh_is_coming: self.mesh_is_coming(group),
        }
    }

    /// Whether nothing is to be done about any operation, as a look at all of them says. For tests.
    pub(super) fn collectives_rest(&self) -> bool {
        self.groups.iter().all(|(id, group)| {
            let rests = |op: &OpId| matches!(self.next_step(*id, *op), Step::Wait);
            group.ops.gate() == &self.gate_of(group) && group.ops.keys().all(rests)
        })
    }

    fn next_step(&self, group_id: GroupId, id: OpId) -> Step {
        let Some(group) = self.groups.get(&group_id) else { return Step::Wait };
        match group.ops.get(&id) {
            Some(op @ Op::Voting { votes, given_up, .. }) => {
                if votes.is_empty() {
                    Step::Forget
                } else if let Some(few) = group.ops.gate().too_few(id) {
                    Step::TooFew(few)
                } else if id.epoch != group.epoch {
                    Step::Stale
                } else if let Some(given_up) = given_up {
                    let missing = self.members_without(group, |peer| votes.contains_key(&peer));
                    let operation = (Operation::Collective(op.named(id)), Phase::Voting, 0);
                    Step::Decide(Outcome::Aborted(self.given_up_verdict(operation, *given_up, &missing)))
                } else if votes.len() == group.ring.len() && group.ops.gate().ready {
                    self.begin_or_mismatch(group, id, votes)
                } else {
                    Step::Wait
                }
            }
            Some(op @ Op::Running { participants, lost, faulty, broken, given_up, .. }) => {
                let nothing_is_wrong = lost.is_empty() && !faulty && broken.is_empty() && given_up.is_none();
                let is_open = |part: &Participant| part.complete.is_none();
                if nothing_is_wrong && participants.values().any(is_open) {
                    return Step::Wait;
                }
                self.running_step(op.named(id), group, (participants, *given_up), lost, broken)
            }
            None => Step::Wait,
        }
    }

    /// The answer for a vote that cannot count because peers are missing: `in_group` are needed in the group, and the
    /// least size of the run in the world.
    pub(super) fn too_few(&self, group: &Group, vote: VoteRef, in_group: u32) -> Option<TooFewPeers> {
        let (have, need, need_in_group) = self.few(group, in_group)?;
        Some(TooFewPeers { vote, have, need, need_in_group })
    }

    /// Whether there are too few peers: how many there are, how many are needed, and whether the group is too small.
    fn few(&self, group: &Group, in_group: u32) -> Option<(u32, u32, bool)> {
        // Its list says how many are needed.
        if group.formed.is_some() {
            return None;
        }
        let (have, need) = (self.accepted_count(), self.options.min_world_size);
        if have < need {
            return Some((have, need, false));
        }
        let accepted = |id: &PeerId| self.peers.get(id).is_some_and(|peer| peer.accepted());
        let here = group.ring.iter().filter(|peer| accepted(peer)).count();
        let have = u32::try_from(here).unwrap_or(u32::MAX);
        (have < in_group).then_some((have, in_group, true))
    }

    /// Whether the only member of a group wants its collectives done all the same.
    fn may_be_alone(&self, group: &Group) -> bool {
        let wants = |id: &PeerId| self.peers.get(id).is_some_and(|peer| peer.info.alone);
        group.ring.len() == 1 && group.ring.iter().all(wants)
    }

    fn begin_or_mismatch(&self, group: &Group, id: OpId, votes: &BTreeMap<PeerId, Descriptor>) -> Step {
        let Some((first, descriptor)) = votes.first_key_value() else { return Step::Wait };
        let odd = votes.iter().find_map(|(peer, other)| Some((peer, descriptor.difference(other)?)));
        if let Some((other, (a, b))) = odd {
            let detail = format!("{} called it {a}, {} {b}", self.name_of(*first), self.name_of(*other));
            let id = CollectiveId { kind: descriptor.kind(), op: id };
            return Step::Decide(self.refused(id, Cause::MismatchedCall, &[*first, *other], &detail));
        }
        let ring: Vec<PeerId> = group.ring.clone();
        if let Some(Misfit { missing, text }) = descriptor.collective.misfit(&ring) {
            let id = CollectiveId { kind: descriptor.kind(), op: id };
            return Step::Decide(self.refused(id, Cause::WorldChanged, &missing, &text));
        }
        if self.mesh_wait(group, descriptor).is_some() {
            return Step::Wait;
        }
        Step::Commence(descriptor.algorithm_for(votes.len(), group.paths))
    }

    /// The outcome of an attempt that cannot begin although all have voted.
    fn refused(&self, id: CollectiveId, cause: Cause, culprits: &[PeerId], detail: &str) -> Outcome {
        Outcome::Aborted(Verdict {
            cause,
            culprits: culprits.iter().map(|peer| self.culprit_of(*peer)).collect(),
            operation: Operation::Collective(id),
            phase: Phase::Voting,
            bytes_done: 0,
            silent_ms: 0,
            detail: pccl_protocol::Text::new(detail),
        })
    }

    fn running_step(
        &self,
        id: CollectiveId,
        group: &Group,
        (participants, given_up): (&BTreeMap<PeerId, Participant>, Option<GivenUp>),
        lost: &[Loss],
        broken: &[BrokenEdge],
    ) -> Step {
        if participants.is_empty() {
            return Step::Forget;
        }
        let clean = |part: &Participant| part.complete.as_ref().is_some_and(|c| c.fault.is_none());
        if participants.values().all(clean) {
            return Step::Decide(Outcome::Done(Nothing {}));
        }
        let phase = if participants.values().any(clean) { Phase::Completing } else { Phase::Transfer };
        let bytes = self.moved_bytes(group, id.op);
        if let Some(loss) = lost.first() {
            let verdict = Verdict {
                cause: loss.cause,
                culprits: vec![loss.culprit.clone()],
                operation: Operation::Collective(id),
                phase,
                bytes_done: bytes,
                silent_ms: loss.silent_ms,
                detail: loss.detail.clone(),
            };
            return Step::Decide(Outcome::Aborted(group.show_loss(loss, verdict)));
        }
        if let Some(given_up) = given_up {
            let open = participants.iter().filter(|(_, part)| part.complete.is_none()).map(|(peer, _)| *peer);
            let open: Vec<PeerId> = open.collect();
            let operation = (Operation::Collective(id), phase, bytes);
            return Step::Decide(Outcome::Aborted(self.given_up_verdict(operation, given_up, &open)));
        }
        // Nobody has seen an edge break that stands still, so this alone ends the attempt.
        if let Some(edge) = broken.iter().find(|edge| edge.stalled_ms > 0) {
            return Step::Decide(Outcome::Aborted(self.edge_verdict(id, phase, bytes, edge)));
        }
        let mut faults: Vec<(Timestamp, PeerId, &OpFault)> = faults_of(participants).collect();
        faults.sort_by_key(|(at, who, fault)| (*at, *who, fault.kind));
        let sure = faults.iter().find(|(_, _, fault)| !is_edge_fault(fault));
        let held = || faults.iter().find(|(at, who, fault)| self.op_fault_due(*at, *who, fault));
        match sure.or_else(held) {
            Some((_, who, fault)) => {
                let verdict = match self.first_broken(group, broken, *who, fault) {
                    Some(edge) => self.edge_verdict(id, phase, bytes, edge),
                    None => self.fault_verdict(id, phase, bytes, *who, fault),
                };
                Step::Decide(Outcome::Aborted(verdict))
            }
            None => Step::Wait,
        }
    }

    /// Whether a broken edge has been held back long enough, and its other end is not about to be found dead.
    fn op_fault_due(&self, at: Timestamp, who: PeerId, fault: &OpFault) -> bool {
        at + self.options.edge_grace <= self.tick && !self.fault_suspect(who, fault)
    }

    fn fault_suspect(&self, who: PeerId, fault: &OpFault) -> bool {
        [Some(who), fault.peer].into_iter().flatten().any(|id| self.suspect(id))
    }

    /// When an attempt has to be looked at again.
    pub(super) fn op_deadline(&self, group: &Group, op: &Op) -> Option<Timestamp> {
        let participants = match op {
            Op::Voting { votes, .. } if votes.len() < group.ring.len() => return None,
            Op::Voting { votes, .. } => return self.mesh_wait(group, votes.values().next()?),
            Op::Running { participants, .. } => participants,
        };
        let due = faults_of(participants).filter_map(|(at, who, fault)| {
            let due = at + self.options.edge_grace;
            (due > self.now || !self.fault_suspect(who, fault)).then_some(due)
        });
        due.min()
    }

    /// Bytes that the participants, lost ones included, are known to have moved for an attempt.
    fn moved_bytes(&self, group: &Group, id: OpId) -> u64 {
        let Some(Op::Running { participants, lost_bytes, most_bytes, .. }) = group.ops.get(&id) else {
            return 0;
        };
        participants.iter().fold(*lost_bytes, |sum, (peer, part)| {
            let beaten = || {
                self.peers
                    .get(peer)
                    .map_or(0, |p| p.moved_bytes().saturating_sub(part.base_bytes).min(*most_bytes))
            };
            sum.saturating_add(part.reported_bytes.unwrap_or_else(beaten))
        })
    }

    fn take_step(&mut self, group_id: GroupId, id: OpId, step: Step) {
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let (packet, record) = match step {
            Step::Wait => {
                let is_timed = group.ops.get(&id).is_some_and(|op| is_timed(group, op));
                return group.ops.rest(id, is_timed);
            }
            Step::Commence(algorithm) => return self.commence(group_id, id, algorithm),
            Step::Forget => {
                group.ops.remove(id);
                self.changed |= group.is_quiet();
                return;
            }
            Step::TooFew(few) => (M2c::TooFewPeers(few), None),
            Step::Stale => (M2c::Stale(Stale { vote: VoteRef::Collective(id), epoch: group.epoch }), None),
            Step::Decide(outcome) => {
                (M2c::Outcome(OpOutcome { op: id, outcome: outcome.clone() }), Some(outcome))
            }
        };
        let members = group.ring.len();
        let voters: Vec<PeerId> = match group.ops.remove(id) {
            Some(Op::Voting { votes, .. }) => votes.into_keys().collect(),
            Some(Op::Running { participants, .. }) => participants.into_keys().collect(),
            None => Vec::new(),
        };
        self.changed |= group.is_quiet();
        if let Some(outcome) = record {
            let text = match &outcome {
                Outcome::Aborted(verdict) => Some(format!("group {group_id}: {verdict}")),
                Outcome::Done(_) => None,
            };
            group.remember(id, outcome, voters.len() == members);
            if let Some(text) = text {
                self.warn(text);
            }
        }
        self.send_peers(&voters, packet);
    }

    fn commence(&mut self, group_id: GroupId, id: OpId, algorithm: Algorithm) {
        let since = self.now;
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let Some(Op::Voting { votes, .. }) = group.ops.get(&id) else { return };
        let peers = &self.peers;
        let ranks = votes.len();
        let Some(descriptor) = votes.values().next() else { return };
        let (kind, most_bytes) = (descriptor.kind(), descriptor.moved_bytes_max(ranks));
        let participants: BTreeMap<PeerId, Participant> = votes
            .keys()
            .map(|peer| {
                let base_bytes = peers.get(peer).map_or(0, super::client::Peer::moved_bytes);
                (*peer, Participant { base_bytes, reported_bytes: None, complete: None })
            })
            .collect();
        let everybody: Vec<PeerId> = participants.keys().copied().collect();
        let running = Op::Running {
            since,
            kind,
            algorithm,
            participants,
            lost: Vec::new(),
            faulty: false,
            lost_bytes: 0,
            most_bytes,
            broken: Vec::new(),
            given_up: None,
        };
        group.ops.run(id, running);
        self.send_peers(&everybody, M2c::Commence(Commence { op: id, algorithm }));
    }

    /// The edge that broke first, if the reported one has only been closed since: the ring that had it was replaced.
    fn first_broken<'a>(
        &self,
        group: &Group,
        broken: &'a [BrokenEdge],
        who: PeerId,
        fault: &OpFault,
    ) -> Option<&'a BrokenEdge> {
        let other = fault.peer?;
        let ends = match fault.kind {
            OpFaultKind::InboundLost => (other, who),
            OpFaultKind::OutboundLost => (who, other),
            _ => return None,
        };
        let own = |edge: &BrokenEdge| edge.ends == ends && edge.generation == fault.generation;
        let itself = group.edges.named(ends, fault.generation).is_some() || broken.iter().any(own);
        broken.first().filter(|_| !itself)
    }

    fn edge_verdict(&self, id: CollectiveId, phase: Phase, bytes_done: u64, edge: &BrokenEdge) -> Verdict {
        Verdict {
            cause: Cause::EdgeBroken,
            culprits: vec![self.culprit_of(edge.ends.0), self.culprit_of(edge.ends.1)],
            operation: Operation::Collective(id),
            phase,
            bytes_done,
            silent_ms: edge.stalled_ms,
            detail: edge.text.clone(),
        }
    }

    fn fault_verdict(
        &self,
        id: CollectiveId,
        phase: Phase,
        bytes_done: u64,
        who: PeerId,
        fault: &OpFault,
    ) -> Verdict {
        let other = fault.peer.filter(|other| *other != who);
        let (cause, ends) = match fault.kind {
            OpFaultKind::InboundLost => (Cause::EdgeBroken, [other, Some(who)]),
            OpFaultKind::OutboundLost => (Cause::EdgeBroken, [Some(who), other]),
            OpFaultKind::Corrupt | OpFaultKind::Violation => (Cause::Corruption, [other, Some(who)]),
            OpFaultKind::Local => (Cause::LocalFault, [Some(who), None]),
        };
        let reporter = self.name_of(who);
        let detail = match fault.text.as_str() {
            "" => format!("{} reported by {reporter}", fault.kind),
            text => format!("{} reported by {reporter}: {text}", fault.kind),
        };
        Verdict {
            cause,
            culprits: ends.into_iter().flatten().map(|end| self.culprit_of(end)).collect(),
            operation: Operation::Collective(id),
            phase,
            bytes_done,
            silent_ms: 0,
            detail: pccl_protocol::Text::new(detail),
        }
    }
}

/// Whether time alone, or a sign of life, may change what is to be done about an operation: a fault of an edge is held
/// back, and a vote that is complete may wait for the mesh.
fn is_timed(group: &Group, op: &Op) -> bool {
    match op {
        Op::Voting { votes, .. } => votes.len() == group.ring.len(),
        Op::Running { faulty, .. } => *faulty,
    }
}

fn faults_of(
    participants: &BTreeMap<PeerId, Participant>,
) -> impl Iterator<Item = (Timestamp, PeerId, &OpFault)> {
    participants.iter().filter_map(|(peer, part)| {
        let complete = part.complete.as_ref()?;
        Some((complete.at, *peer, complete.fault.as_ref()?))
    })
}

/// Faults that the death of a neighbour explains as well.
const fn is_edge_fault(fault: &OpFault) -> bool {
    match fault.kind {
        OpFaultKind::InboundLost | OpFaultKind::OutboundLost => true,
        OpFaultKind::Corrupt | OpFaultKind::Violation | OpFaultKind::Local => false,
    }
}
