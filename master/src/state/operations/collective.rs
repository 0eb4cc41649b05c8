//! Collectives: votes, commencement, outcomes.

use super::pending::Gate;
use crate::state::groups::all_groups::Groups;
use crate::state::groups::group::{Group, Op, Participant};
use crate::state::groups::losses::{BrokenEdge, GivenUp, Loss};
use crate::state::membership::client::Peer;
use crate::state::membership::members::Roll;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_protocol::{
    Algorithm, C2m, Cause, CollectiveId, Commence, Descriptor, Finite, GroupId, Initiate, M2c, Misfit,
    NotFinite, Nothing, OpFault, OpFaultKind, OpId, OpOutcome, Operation, Outcome, Pair, PeerId, Phase,
    Stale, TooFewPeers, Verdict, VoteRef,
};
use std::collections::{BTreeMap, BTreeSet};

/// The next step of an attempt.
pub(crate) enum Step {
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

impl Group {
    /// Records what a member says of the edges, of whom it reaches, and of operations.
    pub(crate) fn record(&mut self, roll: &Roll, out: &mut Outbox, id: PeerId, packet: C2m) {
        match packet {
            C2m::EdgeReport(report) => self.record_edge_report(roll, out, id, report),
            C2m::ReachReport(report) => self.record_reach_report(id, report),
            C2m::Initiate(initiate) => self.record_initiate(roll, out, id, initiate),
            C2m::Complete(complete) => self.work.record_complete(id, complete, roll.now),
            // Nothing else is about one group alone.
            _ => {}
        }
    }

    fn record_initiate(&mut self, roll: &Roll, out: &mut Outbox, id: PeerId, initiate: Initiate) {
        let (now, op) = (roll.now, initiate.op);
        if let Some(pair) = op.tag.pair {
            // The peer that comes first has the edge built.
            out.changed |= roll.may_meet((pair.from, pair.to)) && self.want_pair(pair, now);
        }
        let history = &self.work.history;
        if op.epoch == self.epoch && op.attempt == history.attempts(op.tag) {
            let Self { ring, work, .. } = self;
            let members = || ring.iter().copied().filter(|peer| op.tag.involves(*peer)).collect();
            let begun = initiate.has_begun.then(|| Participant::new(roll, id));
            work.ops.vote(op, (id, initiate.descriptor), begun, now, members);
            return;
        }
        // The attempt was decided before this vote came.
        let kept = history.tag(op.tag).filter(|_| op.epoch == self.epoch);
        let answer = match kept.and_then(|history| history.outcome(op.attempt)) {
            Some(outcome) => M2c::Outcome(OpOutcome { op, outcome: outcome.clone() }),
            None => M2c::Stale(Stale { vote: VoteRef::Collective(op), epoch: self.epoch }),
        };
        out.send_peer(roll, id, answer);
    }

    fn gate(&self, roll: &Roll) -> Gate {
        let few = self.few(roll, if self.may_be_alone(roll) { 1 } else { 2 });
        let (ready, mesh_is_coming) = (self.ring_ready(roll), self.net.mesh_is_coming());
        Gate { epoch: self.epoch, ready, few, mesh_is_coming }
    }

    fn begin_or_mismatch(&self, roll: &Roll, id: OpId, votes: &BTreeMap<PeerId, Descriptor>) -> Step {
        let Some((first, descriptor)) = votes.first_key_value() else { return Step::Wait };
        let refuse = |kind, cause, culprits: &[PeerId], text: &str| {
            Step::Decide(roll.refused(CollectiveId { kind, op: id }, cause, culprits, text))
        };
        // A death between two callers' looks at the world makes their calls differ. That is no mistake of theirs, and
        // whoever called for the present members is to try again as well.
        let misfit = |other: &Descriptor| Some((other.kind(), other.collective.misfit(&self.ring)?));
        if let Some((kind, Misfit { missing, text })) =
            votes.values().filter(|_| id.tag.pair.is_none()).find_map(misfit)
        {
            return refuse(kind, Cause::WorldChanged, &missing, &text);
        }
        if let Some(step) = self.outdated(roll, id, votes) {
            return step;
        }
        let odd = votes.iter().find_map(|(peer, other)| Some((peer, descriptor.difference(other)?)));
        if let Some((other, (a, b))) = odd {
            let detail = format!("{} called it {a}, {} {b}", roll.name_of(*first), roll.name_of(*other));
            if let Some((peer, _)) = votes.iter().find(|(_, vote)| !vote.knew_ring) {
                let detail = format!("{detail}, before {} knew the present members", roll.name_of(*peer));
                return refuse(descriptor.kind(), Cause::WorldChanged, &[], &detail);
            }
            return refuse(descriptor.kind(), Cause::MismatchedCall, &[*first, *other], &detail);
        }
        if let Some(refusal) = refuse_values(roll, id, votes) {
            return Step::Decide(refusal);
        }
        if let Some(pair) = id.tag.pair {
            return self.begin_between(roll, id, pair);
        }
        if self.mesh_wait(roll.tick, descriptor).is_some() {
            return Step::Wait;
        }
        Step::Commence(descriptor.algorithm_for(votes.len(), self.net.paths))
    }

    /// A caller has named somebody by a rank of another ring than this one. The peer that it meant is a member perhaps,
    /// and what it followed from may have changed: it is to look again, before anything moves.
    fn outdated(&self, roll: &Roll, id: OpId, votes: &BTreeMap<PeerId, Descriptor>) -> Option<Step> {
        let (peer, vote) = votes.iter().find(|(_, vote)| vote.by_rank && !vote.knew_ring)?;
        let (kind, name) = (vote.kind(), roll.name_of(*peer));
        let text = format!("{name} called the {kind} by a rank before it knew the present members");
        let id = CollectiveId { kind, op: id };
        Some(Step::Decide(roll.refused(id, Cause::WorldChanged, &[], &text)))
    }

    /// The same of a call between two who are both members: the other one may never come to just that call.
    fn outdated_pair(&self, roll: &Roll, id: OpId, votes: &BTreeMap<PeerId, Descriptor>) -> Option<Step> {
        let Pair { from, to } = id.tag.pair?;
        let are_here = self.ring.contains(&from) && self.ring.contains(&to);
        self.outdated(roll, id, votes).filter(|_| are_here)
    }

    /// When an attempt has to be looked at again.
    pub(crate) fn op_deadline(&self, roll: &Roll, op: &Op) -> Option<Timestamp> {
        let participants = match op {
            Op::Voting { votes, .. } if votes.len() < self.ring.len() => return None,
            Op::Voting { votes, .. } => return self.mesh_wait(roll.tick, votes.values().next()?),
            Op::Running { participants, .. } => participants,
        };
        let due = faults_of(participants).filter_map(|(at, who, fault)| {
            let due = at + roll.options.edge_grace;
            (due > roll.now || !is_suspect(roll, who, fault)).then_some(due)
        });
        due.min()
    }

    /// Bytes that the participants, lost ones included, are known to have moved for an attempt.
    fn moved_bytes(&self, roll: &Roll, id: OpId) -> u64 {
        let Some(Op::Running { participants, lost_bytes, most_bytes, .. }) = self.work.ops.get(&id) else {
            return 0;
        };
        participants.iter().fold(*lost_bytes, |sum, (peer, part)| {
            let beaten = |peer: &Peer| peer.moved_bytes().saturating_sub(part.base_bytes).min(*most_bytes);
            let beaten = || roll.peers.get(peer).map_or(0, beaten);
            sum.saturating_add(part.reported_bytes.unwrap_or_else(beaten))
        })
    }

    fn commence(&mut self, roll: &Roll, out: &mut Outbox, id: OpId, algorithm: Algorithm) {
        let Some(Op::Voting { votes, begun, .. }) = self.work.ops.change(id) else { return };
        let Some(descriptor) = votes.values().next() else { return };
        let (kind, most_bytes) = (descriptor.kind(), descriptor.moved_bytes_max(votes.len()));
        // Nobody else waits to hear of it.
        let waiting: Vec<PeerId> = votes.keys().filter(|peer| !begun.contains_key(peer)).copied().collect();
        let mut participants = std::mem::take(begun);
        participants.extend(waiting.iter().map(|peer| (*peer, Participant::new(roll, *peer))));
        let open = participants.iter().filter(|(_, part)| part.complete.is_none()).map(|(peer, _)| *peer);
        let (open, faulty) = (open.collect(), faults_of(&participants).next().is_some());
        let running = Op::Running {
            since: roll.now,
            kind,
            algorithm,
            participants,
            open,
            lost: Vec::new(),
            faulty,
            lost_bytes: 0,
            most_bytes,
            broken: Vec::new(),
            edge: self.net.edge_of(id.tag),
            given_up: None,
        };
        self.work.ops.run(id, running);
        out.send_peers(roll, &waiting, M2c::Commence(Commence { op: id, algorithm }));
    }

    /// The edge that broke first, if the reported one has only been closed since: the ring that had it was replaced.
    fn first_broken<'a>(
        &self,
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
        let itself = self.net.edges.named(ends, fault.generation).is_some() || broken.iter().any(own);
        broken.first().filter(|_| !itself)
    }
}

impl Groups {
    /// Rule: votes are answered, complete votes begin, running attempts are decided.
    pub(crate) fn settle_collectives(&mut self, roll: &Roll, out: &mut Outbox) -> bool {
        if out.changed {
            // The gate, on which all votes of a group depend.
            self.values_mut().for_each(|group| group.work.ops.set_gate(group.gate(roll)));
        }
        let due: Vec<(GroupId, BTreeSet<OpId>)> =
            self.iter_mut().map(|(id, group)| (*id, group.work.ops.take_changed())).collect();
        let mut fired = false;
        for (group_id, ops) in due {
            for op in ops {
                let step = self.next_step(roll, group_id, op);
                fired |= !matches!(step, Step::Wait);
                self.take_step(roll, out, group_id, op, step);
            }
        }
        fired
    }

    /// Rule: no identity of an attempt is used twice. Contributions to one that ended without an outcome may lie with
    /// members that have not called it. An epoch with the same edges begins, in which nobody takes them.
    pub(crate) fn retire_spent_identities(&mut self, roll: &mut Roll, out: &mut Outbox) -> bool {
        let due = self.which(|group| group.work.has_spent);
        for id in &due {
            let Some(group) = self.get_mut(id) else { continue };
            group.work.has_spent = false;
            group.begin_epoch();
            group.push_ring(*id, roll, out);
        }
        !due.is_empty()
    }

    /// Whether nothing is to be done about any operation, as a look at all of them says. For tests.
    pub(crate) fn collectives_rest(&self, roll: &Roll) -> bool {
        self.iter().all(|(id, group)| {
            let rests = |op: &OpId| matches!(self.next_step(roll, *id, *op), Step::Wait);
            group.work.ops.gate() == &group.gate(roll) && group.work.ops.keys().all(rests)
        })
    }

    fn next_step(&self, roll: &Roll, group_id: GroupId, id: OpId) -> Step {
        let Some(group) = self.get(&group_id) else { return Step::Wait };
        match group.work.ops.get(&id) {
            Some(op @ Op::Voting { votes, missing, given_up, .. }) => {
                if votes.is_empty() {
                    Step::Forget
                } else if let Some(few) = group.work.ops.gate().too_few(id) {
                    Step::TooFew(few)
                } else if id.epoch != group.epoch {
                    Step::Stale
                } else if let Some(given_up) = given_up {
                    let missing: Vec<PeerId> = missing.iter().copied().collect();
                    let operation = (Operation::Collective(op.named(id)), Phase::Voting, 0);
                    let verdict = self.given_up_verdict(roll, operation, *given_up, &missing);
                    Step::Decide(Outcome::Aborted(verdict))
                } else if let Some(step) = group.outdated_pair(roll, id, votes) {
                    step
                } else if missing.is_empty() && (id.tag.pair.is_some() || group.work.ops.gate().ready) {
                    group.begin_or_mismatch(roll, id, votes)
                } else {
                    Step::Wait
                }
            }
            Some(op @ Op::Running { participants, open, lost, faulty, broken, given_up, .. }) => {
                let nothing_is_wrong = lost.is_empty() && !faulty && broken.is_empty() && given_up.is_none();
                if nothing_is_wrong && !open.is_empty() {
                    return Step::Wait;
                }
                self.running_step(roll, op.named(id), group, (participants, *given_up), lost, broken)
            }
            None => Step::Wait,
        }
    }

    fn running_step(
        &self,
        roll: &Roll,
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
        // A sender has all it needs from the start, and its data has arrived only when the receiver says so.
        let is_whole = lost.is_empty() || id.op.tag.pair.is_none();
        if is_whole && participants.values().all(clean) {
            return Step::Decide(Outcome::Done(Nothing {}));
        }
        let phase = if participants.values().any(clean) { Phase::Completing } else { Phase::Transfer };
        let bytes = group.moved_bytes(roll, id.op);
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
            return Step::Decide(Outcome::Aborted(self.given_up_verdict(roll, operation, given_up, &open)));
        }
        // Nobody has seen an edge break that stands still, so this alone ends the attempt.
        if let Some(edge) = broken.iter().find(|edge| edge.is_final) {
            return Step::Decide(Outcome::Aborted(roll.edge_verdict(id, phase, bytes, edge)));
        }
        let mut faults: Vec<(Timestamp, PeerId, &OpFault)> = faults_of(participants).collect();
        faults.sort_by_key(|(at, who, fault)| (*at, *who, fault.kind));
        let sure = faults.iter().find(|(_, _, fault)| !is_edge_fault(fault));
        let held = || faults.iter().find(|(at, who, fault)| is_due(roll, *at, *who, fault));
        match sure.or_else(held) {
            Some((_, who, fault)) => {
                let verdict = match group.first_broken(broken, *who, fault) {
                    Some(edge) => roll.edge_verdict(id, phase, bytes, edge),
                    None => roll.fault_verdict(id, phase, bytes, *who, fault),
                };
                Step::Decide(Outcome::Aborted(verdict))
            }
            None => Step::Wait,
        }
    }

    fn take_step(&mut self, roll: &Roll, out: &mut Outbox, group_id: GroupId, id: OpId, step: Step) {
        let Some(group) = self.get_mut(&group_id) else { return };
        let (packet, record) = match step {
            Step::Wait => {
                let is_timed = group.work.ops.get(&id).is_some_and(is_timed);
                return group.work.ops.rest(id, is_timed);
            }
            Step::Commence(algorithm) => return group.commence(roll, out, id, algorithm),
            Step::Forget => {
                group.work.ops.remove(id);
                out.changed |= group.is_quiet();
                return;
            }
            Step::TooFew(few) => (M2c::TooFewPeers(few), None),
            Step::Stale => (M2c::Stale(Stale { vote: VoteRef::Collective(id), epoch: group.epoch }), None),
            Step::Decide(outcome) => {
                (M2c::Outcome(OpOutcome { op: id, outcome: outcome.clone() }), Some(outcome))
            }
        };
        let members = group.votes_for(id.tag);
        let voters: Vec<PeerId> = match group.work.ops.remove(id) {
            Some(Op::Voting { votes, begun, .. }) => {
                group.work.has_spent |= matches!(packet, M2c::TooFewPeers(_)) && !begun.is_empty();
                votes.into_keys().collect()
            }
            Some(Op::Running { participants, .. }) => participants.into_keys().collect(),
            None => Vec::new(),
        };
        out.changed |= group.is_quiet() || group.work.has_spent;
        if let Some(outcome) = record {
            let text = match &outcome {
                Outcome::Aborted(verdict) => Some(format!("group {group_id}: {verdict}")),
                Outcome::Done(_) => None,
            };
            group.work.remember(id, outcome, voters.len() == members);
            if let Some(text) = text {
                out.warn(text);
            }
        }
        out.send_peers(roll, &voters, packet);
    }
}

impl Participant {
    /// One that begins now.
    fn new(roll: &Roll, id: PeerId) -> Self {
        let base_bytes = roll.peers.get(&id).map_or(0, Peer::moved_bytes);
        Self { base_bytes, reported_bytes: None, complete: None }
    }
}

/// All have asked that contributions are finite, and some say that theirs is not: nothing begins, and all of these are
/// named.
fn refuse_values(roll: &Roll, id: OpId, votes: &BTreeMap<PeerId, Descriptor>) -> Option<Outcome> {
    let place = |(peer, vote): (&PeerId, &Descriptor)| match vote.finite {
        Finite::Not(place) => Some((*peer, vote.kind(), place)),
        Finite::NotAsked(_) | Finite::All(_) => None,
    };
    let bad: Vec<_> = votes.iter().filter_map(place).collect();
    let (_, kind, _) = bad.first()?;
    let texts = bad.iter().map(|(peer, _, NotFinite { tensor, element })| {
        format!(
            "{} gives NaN or an infinity, first in tensor {tensor} at element {element}",
            roll.name_of(*peer)
        )
    });
    let text = texts.collect::<Vec<_>>().join(", ");
    let peers: Vec<PeerId> = bad.iter().map(|(peer, ..)| *peer).collect();
    let id = CollectiveId { kind: *kind, op: id };
    Some(roll.refused(id, Cause::NotFinite, &peers, &text))
}

/// Whether a broken edge has been held back long enough, and its other end is not about to be found dead.
fn is_due(roll: &Roll, at: Timestamp, who: PeerId, fault: &OpFault) -> bool {
    at + roll.options.edge_grace <= roll.tick && !is_suspect(roll, who, fault)
}

fn is_suspect(roll: &Roll, who: PeerId, fault: &OpFault) -> bool {
    [Some(who), fault.peer].into_iter().flatten().any(|id| roll.suspect(id))
}

/// Whether time alone, or a sign of life, may change what is to be done about an operation: a fault of an edge is held
/// back, and a vote that is complete may wait for the mesh or for an edge.
fn is_timed(op: &Op) -> bool {
    match op {
        Op::Voting { missing, .. } => missing.is_empty(),
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
