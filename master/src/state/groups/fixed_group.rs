//! The life of a group with given members: it is set up when all of them have called, it is whole or it is broken up,
//! and it never changes. Its ring has the order of the list, whatever is known of rates.
//!
//! A broken group has no place among the groups: its members are back where they were after registration, and whatever
//! they vote for is answered with the reason, until they are formed into another group.

use super::all_groups::Groups;
use super::edges::{EdgeEnds, Severity, ring_of};
use super::formed::{Broken, Formed, Past};
use super::group::{Group, Op, SharedState, Sync};
use super::losses::{GivenUp, Loss};
use crate::state::MasterState;
use crate::state::membership::client::Membership;
use crate::state::membership::members::Roll;
use crate::state::membership::sender::Phase as Stage;
use crate::state::optimise::measured::Measured;
use crate::state::outbox::Outbox;
use pccl_protocol::{
    Cause, CollectiveId, GroupFormed, GroupId, GroupUuid, M2c, OpOutcome, Operation, Outcome, PeerId, Phase,
    Purpose, RequestId, SyncId, SyncOutcome, SyncOutcomeFor, Text, Verdict,
};
use std::collections::BTreeMap;

impl Group {
    /// A member has gone.
    pub(crate) fn lose_member(&mut self, id: PeerId, loss: &Loss) {
        if let Some(formed) = &mut self.formed {
            formed.votes.remove(&id);
            formed.given_up.take_if(|given_up| given_up.by == id);
            formed.broken.get_or_insert_with(|| Broken::lost(loss));
        }
    }

    /// Whether it is one of given members that is not whole.
    pub(crate) fn is_broken(&self) -> bool {
        self.formed.as_ref().is_some_and(|formed| formed.broken.is_some())
    }

    /// How the loss of a member shows in operations.
    pub(crate) fn show_loss(&self, loss: &Loss, verdict: Verdict) -> Verdict {
        if self.formed.is_none() {
            return verdict;
        }
        let Verdict { operation, phase, bytes_done, .. } = verdict;
        Broken::lost(loss).verdict(operation, phase, bytes_done)
    }

    /// One of these members, which are to be connected.
    fn of_list(formed: Formed, roll: &Roll) -> Self {
        let pasts = || formed.members.iter().filter_map(|id| Some((*id, &roll.peers.get(id)?.past)));
        let epoch = pasts().map(|(_, past)| past.epoch).max().unwrap_or_default();
        let committed = pasts().filter_map(|(_, past)| past.revision).max();
        let holds = |past: &Past| committed.is_some() && past.revision == committed;
        let holders = pasts().filter(|(_, past)| holds(past)).map(|(id, _)| id).collect();
        let shared = SharedState { committed, holders, ..SharedState::default() };
        Self { epoch, shared, formed: Some(formed), ..Self::default() }
    }

    /// Plans the ring of its list. If that cannot be built, the group is broken.
    pub(crate) fn plan_formed_ring(
        &mut self,
        id: GroupId,
        roll: &mut Roll,
        measured: &Measured,
        out: &mut Outbox,
    ) {
        let Some(order) = self.formed.as_ref().map(|formed| formed.members.clone()) else { return };
        let marks = &self.net.edges.marks;
        let is_forbidden = |ends: &EdgeEnds| {
            let mark = marks.get(ends).filter(|mark| mark.until > roll.now);
            mark.is_some_and(|mark| mark.severity >= Severity::Forbidden)
        };
        let Some(ends) = ring_of(&order).find(is_forbidden) else {
            return self.install_ring(id, roll, measured, out, &order);
        };
        let text = marks.get(&ends).map_or("", |mark| mark.text.as_str());
        let detail = Text::new(format!("{} cannot be built: {text}", roll.name_of_edge(ends)));
        let culprits = vec![roll.culprit_of(ends.0), roll.culprit_of(ends.1)];
        let broken = Broken { cause: Cause::EdgeBroken, culprits, silent_ms: 0, detail };
        if let Some(formed) = &mut self.formed {
            formed.broken.get_or_insert(broken);
        }
    }

    /// Whether its members wait for a ring that stands.
    fn is_there(&self, roll: &Roll) -> bool {
        let open = self.formed.as_ref().is_some_and(|formed| !formed.votes.is_empty());
        open && !self.is_broken() && self.reach.check.is_none() && self.ring_confirmed(roll)
    }
}

impl Groups {
    /// Whether this is the number of a formed group.
    pub(crate) fn is_formed(&self, group: GroupId) -> bool {
        self.get(&group).is_some_and(|group| group.formed.is_some())
    }

    /// A caller gives up a forming whose group is being connected.
    pub(crate) fn give_up_connecting(&mut self, group: GroupId, wish: GivenUp, request: RequestId) {
        let formed = self.get_mut(&group).and_then(|group| group.formed.as_mut());
        if let Some(formed) = formed.filter(|formed| formed.votes.get(&wish.by) == Some(&request)) {
            formed.given_up.get_or_insert(wish);
        }
    }

    /// Rule: a formed group whose ring stands is there: its members are accepted, and their votes are answered.
    pub(crate) fn end_formings(&mut self, roll: &mut Roll, out: &mut Outbox) -> bool {
        let due = self.which(|group| group.is_there(roll));
        for id in &due {
            let formed = self.get_mut(id).and_then(|group| group.formed.as_mut());
            let votes = formed.map(|formed| std::mem::take(&mut formed.votes)).unwrap_or_default();
            roll.begin_world_epoch();
            for peer in votes.keys() {
                if let Some(peer) = roll.peers.get_mut(peer) {
                    peer.membership = Membership::accepted();
                }
            }
            let all = roll.all_sizes();
            for (peer, request) in votes {
                roll.tell_sizes(out, &all, peer, |sizes| M2c::GroupFormed(GroupFormed { request, sizes }));
            }
        }
        !due.is_empty()
    }

    /// Formed groups that are not whole, and those whose forming a caller gave up; and why.
    fn broken(&self, roll: &Roll) -> Vec<(GroupId, Broken)> {
        let mut all = Vec::new();
        for (id, group) in self.iter() {
            let Some(formed) = &group.formed else { continue };
            let given_up = formed.given_up.filter(|_| !formed.votes.is_empty());
            let given_up = given_up.map(|given_up| self.broken_by_limit(roll, group, formed, given_up));
            all.extend(formed.broken.clone().or(given_up).map(|broken| (*id, broken)));
        }
        all
    }

    /// The limit of a caller passed while the ring was being connected.
    fn broken_by_limit(&self, roll: &Roll, group: &Group, formed: &Formed, given_up: GivenUp) -> Broken {
        let missing = group.net.edges.missing(Purpose::Ring);
        let open: Vec<PeerId> = formed.members.iter().copied().filter(|id| missing.contains(id)).collect();
        let operation = (Operation::Forming(formed.uuid), Phase::Connecting, 0);
        let Verdict { cause, culprits, silent_ms, detail, .. } =
            self.given_up_verdict(roll, operation, given_up, &open);
        Broken { cause, culprits, silent_ms, detail }
    }
}

impl Roll {
    /// The members of a formed group that is broken up are in no group.
    fn leave_group(&mut self, id: GroupId, group: &Group, broken: &Broken) {
        let mut was_accepted = false;
        let shared = &group.shared;
        for (peer_id, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.formed == Some(id)) {
            was_accepted |= peer.phase() == Stage::Accepted;
            (peer.membership, peer.formed) = (Membership::Pending(None), None);
            peer.past.epoch = peer.past.epoch.max(group.epoch);
            let held = shared.committed.filter(|_| shared.holders.contains(peer_id));
            peer.past.revision = held.or(peer.past.revision);
            peer.past.broken = Some(broken.clone());
        }
        if was_accepted {
            self.begin_world_epoch();
        }
    }

    /// Why the last group of a peer is not whole.
    fn broken_for(&self, id: PeerId) -> Option<Broken> {
        self.peers.get(&id)?.past.broken.clone()
    }

    /// A collective that a peer votes for in a group that is not whole any more.
    pub(crate) fn refuse_op(&self, out: &mut Outbox, id: PeerId, op: CollectiveId) {
        if let Some(broken) = self.broken_for(id) {
            out.send_peer(self, id, broken_op(op, &broken, Phase::Voting));
        }
    }
}

impl MasterState {
    /// All members have called: they leave the groups they are in, and are connected.
    pub(crate) fn set_up_group(
        &mut self,
        pool: GroupId,
        uuid: GroupUuid,
        members: Vec<PeerId>,
        votes: BTreeMap<PeerId, RequestId>,
    ) {
        self.formings.note_used(pool, uuid, None);
        for id in &members {
            if let Some(before) = self.roll.peers.get(id).and_then(|peer| peer.formed) {
                let culprits = vec![self.roll.culprit_of(*id)];
                let detail = Text::new("it formed another group");
                let broken = Broken { cause: Cause::GroupBroken, culprits, silent_ms: 0, detail };
                self.break_up(before, &broken);
            }
        }
        let number = self.formings.free_group_number(&self.roll, &self.groups);
        let names: Vec<String> = members.iter().map(|id| self.roll.name_of(*id)).collect();
        let group = Formed { uuid, pool, members, votes, given_up: None, broken: None };
        for id in &group.members {
            if let Some(peer) = self.roll.peers.get_mut(id) {
                (peer.membership, peer.formed, peer.past.broken) =
                    (Membership::Connecting, Some(number), None);
            }
        }
        self.out
            .info(format!("group {pool}: form_group {uuid} makes group {number} of {}", names.join(", ")));
        self.groups.insert(number, Group::of_list(group, &self.roll));
    }

    /// Rule: a formed group that is not whole is broken up, once whatever ran in it is decided; and one whose forming a
    /// caller gave up.
    pub(crate) fn break_up_groups(&mut self) -> bool {
        let due = self.groups.broken(&self.roll);
        for (id, broken) in &due {
            self.break_up(*id, broken);
        }
        !due.is_empty()
    }

    /// Ends a formed group: whatever waits in it fails, and its members are in no group.
    fn break_up(&mut self, group_id: GroupId, broken: &Broken) {
        self.plans.drop(&mut self.groups, &mut self.out, group_id);
        let Some(group) = self.groups.remove(&group_id) else { return };
        let Some(formed) = &group.formed else { return };
        self.out.changed = true;
        for (id, op) in group.work.ops.iter() {
            let (voters, phase): (Vec<PeerId>, Phase) = match op {
                Op::Voting { votes, .. } => (votes.keys().copied().collect(), Phase::Voting),
                Op::Running { participants, .. } => (participants.keys().copied().collect(), Phase::Transfer),
            };
            self.out.send_peers(&self.roll, &voters, broken_op(op.named(*id), broken, phase));
        }
        let (voters, sync): (Vec<(PeerId, RequestId)>, Option<SyncId>) = match &group.shared.sync {
            Some(Sync::Voting { votes, .. }) => {
                (votes.iter().map(|(id, vote)| (*id, vote.request)).collect(), None)
            }
            Some(Sync::Running { sync, voters, .. }) => {
                (voters.iter().map(|(id, voter)| (*id, voter.request)).collect(), Some(*sync))
            }
            None => (Vec::new(), None),
        };
        for (id, request) in voters {
            self.fail_sync(id, request, sync, broken);
        }
        self.roll.leave_group(group_id, &group, broken);
        if !formed.votes.is_empty() {
            let verdict = broken.forming_verdict(formed.uuid);
            self.formings.fail(&self.roll, &mut self.out, formed.pool, &formed.votes, verdict);
        } else if broken.cause == Cause::PeerLeft {
            // So ends every group whose members are done; whoever still waited in it has a verdict that says so.
            self.out.info(format!("group {group_id} ends: {broken}"));
        } else {
            self.out.warn(format!("group {group_id} is broken up: {broken}"));
        }
    }

    fn fail_sync(&mut self, id: PeerId, request: RequestId, sync: Option<SyncId>, broken: &Broken) {
        let phase = if sync.is_some() { Phase::Transfer } else { Phase::Voting };
        let sync = sync.unwrap_or_else(|| SyncId(self.last_sync.0 + 1));
        self.last_sync = self.last_sync.max(sync);
        let outcome = SyncOutcome::Failed(broken.verdict(Operation::Sync(sync), phase, 0));
        self.out.send_peer(&self.roll, id, M2c::SyncOutcome(SyncOutcomeFor { request, outcome }));
    }

    /// A sync that a peer votes for in a group that is not whole any more.
    pub(crate) fn refuse_sync(&mut self, id: PeerId, request: RequestId) {
        if let Some(broken) = self.roll.broken_for(id) {
            self.fail_sync(id, request, None, &broken);
        }
    }
}

fn broken_op(id: CollectiveId, broken: &Broken, phase: Phase) -> M2c {
    let outcome = Outcome::Aborted(broken.verdict(Operation::Collective(id), phase, 0));
    M2c::Outcome(OpOutcome { op: id.op, outcome })
}
