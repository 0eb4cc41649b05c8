//! The packet guard: which packet a client may send now. The phases in which a sender may be stand in one table, beside
//! the packets ([`C2m::TABLE`]). Conditions on the facts of the run stand here.
//!
//! Only what no delay can explain is refused. A packet that was sent before its sender could know of a change is legal
//! and is answered; see the rules of each vote.

use super::client::Peer;
use super::members::Roll;
use super::sender::{Phase, Sender};
use crate::state::MasterState;
use crate::state::groups::all_groups::Groups;
use crate::state::groups::group::Op;
use crate::state::operations::work::Work;
use pccl_protocol::{
    C2m, CollectiveKind, GroupId, Initiate, KickCode, KickReason, OpId, PeerId, Register, Senders, limits,
};

pub(crate) fn protocol(text: impl Into<String>) -> KickReason {
    KickReason::new(KickCode::Protocol, text)
}

fn illegal(packet: &C2m, who: Sender) -> KickReason {
    protocol(format!("{} from {}", packet.name(), who.describe()))
}

impl MasterState {
    /// Decides whether a client may send this packet now: first by the table of senders that stands where packets are
    /// declared ([`C2m::rules`]), then by the facts of the run.
    pub(crate) fn admit(&self, who: Sender, packet: &C2m) -> Result<(), KickReason> {
        let is_listed = match who {
            Sender::Peer(id, ..) => self.roll.peers.get(&id).is_some_and(|peer| peer.info.formed),
            Sender::Stranger(_) => false,
        };
        let rules = packet.rules();
        let senders = if is_listed { rules.from_listed } else { rules.from };
        if senders.has(who.phases()) {
            return self.admit_by_facts(who, packet);
        }
        Err(match (packet, who) {
            (C2m::Register(_), Sender::Peer(..)) => protocol("registered twice on one connection"),
            _ if is_listed && senders == Senders::NOBODY && rules.from != Senders::NOBODY => {
                protocol(format!("{} from a peer whose groups are formed of lists", packet.name()))
            }
            _ => illegal(packet, who),
        })
    }

    /// The conditions beyond the phase of the sender; most packets have none.
    fn admit_by_facts(&self, who: Sender, packet: &C2m) -> Result<(), KickReason> {
        use Phase::{Accepted, Pending};
        use Sender::{Peer as Known, Stranger};
        match (packet, who) {
            (C2m::Register(info), Stranger(_)) => self.roll.admit_registration(&self.groups, info),
            (C2m::Examine(examine), Stranger(_)) if self.roll.is_taken(examine.peer) => {
                Err(protocol("an examination as somebody who is there already"))
            }
            (_, Stranger(asked)) if asked >= limits::MAX_STRANGER_REQUESTS => {
                Err(protocol(format!("asked for the status {asked} times without registering")))
            }
            (C2m::StatusRequest(_), Known(id, ..)) => self.roll.admit_question(id),
            (C2m::EdgeReport(report), Known(id, group, phase)) if phase != Pending => {
                self.groups.get(&group).map_or(Ok(()), |group| group.admit_edge_report(id, report))
            }
            // It crosses the loss of a plan, or of the address that is to be dialed.
            (C2m::CallMe(wish), Known(..)) => self.admit_call(wish),
            (C2m::VoteTopology(_) | C2m::VoteOptimize(_), Known(id, group, _)) => {
                self.admit_blocking_vote(id, group, packet.name())
            }
            (C2m::FormGroup(_), Known(id, group, _)) => self.admit_form(id, group, packet.name()),
            // One of an earlier round crosses the next round, or the end.
            (C2m::ProbeReport(report), Known(..)) => self.optimizer.admit_probe_report(report),
            (C2m::Loan(loan), Known(_, group, _)) => self.admit_loan(group, *loan),
            // Steps cross the admission.
            (C2m::Ahead(step), Known(id, ..)) => self.admit_ahead(id, step),
            // While a peer is in no group, packets of its last one may still be on their way.
            (C2m::Initiate(_) | C2m::SyncInitiate(_), Known(id, _, Pending)) => {
                let had_group = self.roll.peers.get(&id).is_some_and(|peer| peer.past.has_group());
                if had_group { Ok(()) } else { Err(illegal(packet, who)) }
            }
            (C2m::Initiate(initiate), Known(id, group, _)) => {
                admit_pair(id, initiate).and_then(|()| self.admit_initiate(id, group, initiate))
            }
            (C2m::Complete(complete), Known(id, group, Accepted)) => {
                self.groups.get(&group).map_or(Ok(()), |group| group.work.admit_complete(id, complete.op))
            }
            (C2m::SyncInitiate(vote), Known(id, group, _)) => {
                self.admit_blocking_vote(id, group, packet.name())?;
                self.admit_offered(id, vote)?;
                self.admit_sync(group, vote)
            }
            (C2m::SyncComplete(complete), Known(id, group, Accepted)) => {
                self.admit_sync_complete(id, group, complete)
            }
            // A withdrawal crosses the answer, and giving up the outcome.
            _ => Ok(()),
        }
    }

    /// A vote whose caller's thread can be in nothing else meanwhile.
    pub(crate) fn admit_blocking_vote(
        &self,
        id: PeerId,
        group: GroupId,
        what: &str,
    ) -> Result<(), KickReason> {
        let busy = |with: String| Err(protocol(format!("{what} while {with}")));
        if self.roll.peers.get(&id).is_some_and(|peer| peer.topology().is_some()) {
            return busy("its topology vote waits".into());
        }
        if self.roll.peers.get(&id).is_some_and(|peer| peer.optimize().is_some()) {
            return busy("its vote to optimize waits".into());
        }
        let Some(group) = self.groups.get(&group) else { return Ok(()) };
        if group.shared.sync.as_ref().is_some_and(|sync| sync.involves(id)) {
            return busy("its shared-state sync is in flight".into());
        }
        match group.work.ops.first_of(id) {
            Some((op, _)) => busy(format!("its collective {op} is in flight")),
            None => Ok(()),
        }
    }

    fn admit_initiate(&self, id: PeerId, group: GroupId, vote: &Initiate) -> Result<(), KickReason> {
        let op = vote.op;
        if self.roll.peers.get(&id).is_some_and(|peer| peer.topology().is_some()) {
            return Err(protocol("Initiate while its topology vote waits"));
        }
        if self.roll.peers.get(&id).is_some_and(|peer| peer.optimize().is_some()) {
            return Err(protocol("Initiate while its vote to optimize waits"));
        }
        let Some(group) = self.groups.get(&group) else { return Ok(()) };
        if group.shared.sync.as_ref().is_some_and(|sync| sync.involves(id)) {
            return Err(protocol("Initiate while its shared-state sync is in flight"));
        }
        if op.epoch > group.epoch {
            return Err(protocol(format!("{op} is ahead of the group's epoch {}", group.epoch)));
        }
        if op.epoch < group.epoch {
            return Ok(());
        }
        group.work.admit_initiate(id, op, self.roll.options.max_tags_in_flight)?;
        group.work.admit_parts(id, vote.descriptor.parts.len())
    }
}

impl Roll {
    fn admit_registration(&self, groups: &Groups, info: &Register) -> Result<(), KickReason> {
        let full = |text: String| Err(KickReason::new(KickCode::Full, text));
        let pending = self.newcomers().len();
        self.admit_kind(groups, info)?;
        self.admit_name(info)?;
        self.admit_outbound(info.outbound_only)?;
        if self.peers.len() >= self.options.max_peers {
            return full(format!("the run has {} peers, its limit", self.peers.len()));
        }
        if pending >= self.options.max_pending {
            return full(format!("{pending} peers wait for admission, the limit"));
        }
        Ok(())
    }

    /// A group has its members by lists, or lets them in.
    fn admit_kind(&self, groups: &Groups, info: &Register) -> Result<(), KickReason> {
        let refuse = |text: String| Err(KickReason::new(KickCode::GroupKind, text));
        if groups.is_formed(info.group) {
            return refuse(format!("group {} is one that was formed of a list", info.group));
        }
        let is_other =
            |(_, peer): &(&PeerId, &Peer)| peer.info.group == info.group && peer.info.formed != info.formed;
        let Some((id, _)) = self.peers.iter().find(is_other) else { return Ok(()) };
        let (ask, have) = if info.formed {
            ("asks for groups that are formed of lists", "let newcomers in")
        } else {
            ("wants to be let in", "form their groups of lists")
        };
        refuse(format!(
            "this peer {ask}, but the peers of group {}, as {}, {have}",
            info.group,
            self.name_of(*id)
        ))
    }
}

impl Work {
    /// A vote in the present epoch.
    fn admit_initiate(&self, id: PeerId, op: OpId, most: usize) -> Result<(), KickReason> {
        let attempts = self.history.attempts(op.tag);
        if op.attempt > attempts {
            return Err(protocol(format!("{op} is ahead of its tag, which had {attempts} outcomes")));
        }
        let forgotten = self.history.tag(op.tag).is_some_and(|history| history.outcome(op.attempt).is_none());
        if op.attempt < attempts && forgotten {
            return Err(protocol(format!("{op} ended in an outcome that this peer was told")));
        }
        match self.ops.get(&op) {
            Some(known) if known.involves(id) => Err(protocol(format!("voted twice for {op}"))),
            Some(_) => Ok(()),
            None if op.attempt == attempts && self.ops.len() >= most => {
                Err(protocol(format!("more than {most} collectives in flight")))
            }
            None => Ok(()),
        }
    }

    /// The parts that are kept of the votes of one member are bounded.
    fn admit_parts(&self, id: PeerId, parts: usize) -> Result<(), KickReason> {
        if parts <= limits::FEW_PARTS {
            return Ok(());
        }
        let kept = self.ops.of(id).filter_map(|(_, op)| match op {
            Op::Voting { votes, .. } => votes.get(&id).map(|vote| vote.parts.len()),
            Op::Running { .. } => None,
        });
        let kept: usize = kept.filter(|kept| *kept > limits::FEW_PARTS).sum();
        match kept + parts > limits::MAX_VOTED_PARTS {
            true => Err(protocol(format!(
                "votes for {} tensors that wait, at most {} may",
                kept + parts,
                limits::MAX_VOTED_PARTS
            ))),
            false => Ok(()),
        }
    }

    /// Completes what has begun, for all or for the sender alone, once.
    fn admit_complete(&self, id: PeerId, op: OpId) -> Result<(), KickReason> {
        match self.ops.get(&op) {
            Some(Op::Voting { votes, begun, .. }) if votes.contains_key(&id) && !begun.contains_key(&id) => {
                Err(protocol(format!("completed {op} before it began")))
            }
            Some(Op::Running { participants, .. } | Op::Voting { begun: participants, .. })
                if participants.get(&id).is_some_and(|part| part.complete.is_some()) =>
            {
                Err(protocol(format!("completed {op} twice")))
            }
            _ => Ok(()),
        }
    }
}

/// A vote for an operation between two members comes from one of them.
fn admit_pair(id: PeerId, Initiate { op, descriptor, .. }: &Initiate) -> Result<(), KickReason> {
    let is_send = descriptor.kind() == CollectiveKind::SendRecv;
    match op.tag.pair {
        None if is_send => Err(protocol(format!("{op} has no two ends"))),
        Some(_) if !is_send => Err(protocol(format!("{op} is a {}", descriptor.kind()))),
        Some(pair) if !pair.has(id) || pair.from == pair.to => Err(protocol(format!("{op} is not its own"))),
        _ => Ok(()),
    }
}
