//! How an attempt begins: this peer registers it, votes for it, and its data begins to move. A small one begins early:
//! contributions go out before the vote, and the vote to complete follows without a word of the master.

use super::{
    Op,
    state::{Phase, State, Vote},
};
use crate::{
    Error,
    collective::{
        algorithm::no_program,
        attempt::Attempt,
        calls::Place,
        progress::{AttemptOwner, local_fault, violation_fault},
    },
    flight,
};
use pccl_flight::What;
use pccl_protocol::{C2m, Commence, Descriptor, GroupPlan, Initiate, OpId, Pair};
use std::sync::Arc;

impl Op {
    /// Registers an attempt for the present epoch and votes for it.
    pub(crate) fn vote(&self) {
        let (common, Some(op)) = (&self.common, self.me.upgrade()) else { return };
        let mut state = self.state.lock();
        if state.phase != Phase::Stale {
            return;
        }
        let (mut fits, mut ring, mut knew_ring) = (true, Vec::new(), true);
        let registered = common.table.register(&op, self.tag, |slot| {
            ring.clone_from(&slot.ring);
            knew_ring = self.knows(&slot.plan);
            let program = common.programs.get(slot, &self.descriptor, &self.counts);
            fits = program.is_some();
            let program = program.unwrap_or_else(|| no_program(slot));
            let place = Place { rank: slot.rank, ranks: slot.ring.len() };
            let pieces = self.beside.iter().filter(|_| fits).find_map(|beside| beside.pieces(place));
            let raws = pieces.as_deref().unwrap_or(&self.raws);
            let (tensors, room) = ((&self.descriptor, raws), |bytes| common.backups.take(bytes));
            Attempt::new(slot.id, program, tensors, (self.backup.clone(), &room), self.me.clone())
        });
        let Some(attempt) = registered else {
            return self.finish(&mut state, Err(Error::NotConnected), false);
        };
        let id = attempt.id();
        state.phase = Phase::Voting;
        // The master finds that as well, and lets no such attempt begin.
        state.held = (!fits).then(|| local_fault("called for other members"));
        (state.vote, state.has_started) = (None, false);
        (state.attempt, state.ring) = (Some(attempt.clone()), ring);
        (state.initiated, state.told) = (false, false);
        drop(state);
        for beside in self.beside.iter().filter(|_| fits) {
            beside.before(attempt.place(), &self.raws, self.signals(id));
        }
        if let Some(error) = &self.failure {
            self.fault(id, local_fault(error.to_string()));
        }
        attempt.prepare();
        self.open(&attempt);
        flight::op(&common.flight, What::OpVoted, id);
        let descriptor = Descriptor { knew_ring, ..self.descriptor.clone() };
        let has_begun = self.begin_early(&attempt);
        let initiate = C2m::Initiate(Initiate { op: id, descriptor, has_begun });
        match has_begun.then(|| self.complete_at_once(&attempt)).flatten() {
            Some(complete) => common.control.send_all(&[initiate, complete]),
            None => common.control.send(&initiate),
        }
        if has_begun {
            self.goes_on(id);
        }
        let given_up = {
            let mut state = self.state.lock();
            state.initiated = true;
            state.given_up
        };
        if let Some(limit) = given_up {
            self.give_up(limit);
        }
        // The communicator may have ended before the registration was visible to those who end it.
        if let Some(end) = common.control.end() {
            self.ended(&end);
        }
    }

    /// Whether what the caller knew when it launched this holds in a ring. An operation between two members has nothing
    /// to do with the others, so of a pair it is enough that the ranks of both are what they were.
    fn knows(&self, plan: &GroupPlan) -> bool {
        let known = self.known();
        let is_alike = |peer| plan.rank_of(peer) == known.iter().position(|member| *member == peer);
        match self.tag.pair {
            Some(_) if !self.descriptor.by_rank => true,
            Some(Pair { from, to }) => is_alike(from) && is_alike(to),
            None => plan.members.iter().map(|member| &member.peer).eq(known),
        }
    }

    /// From now on the attempt takes frames; those that came early are handed over.
    fn open(&self, attempt: &Arc<Attempt>) {
        let id = attempt.id();
        let Some(frames) = self.common.table.open(id) else {
            let text =
                "what others had sent for it was thrown away, as too much came before this peer called";
            return self.fault(id, local_fault(text));
        };
        for frame in frames {
            if let Err(violation) = frame.hand_over(&**attempt) {
                self.fault(id, violation_fault(violation.text));
            }
        }
    }

    /// Sends small contributions before the vote, if the links stand and nothing is wrong. Whether it did.
    fn begin_early(&self, attempt: &Attempt) -> bool {
        let (id, ranks) = (attempt.id(), attempt.place().ranks);
        let is_fit = attempt.is_whole() && ranks > 1 && self.beside.is_empty();
        // A peer that completes without a master cannot know the outcome.
        if !is_fit || !self.common.control.is_connected() || self.state.lock().held.is_some() {
            return false;
        }
        if self.common.links.fault_for(id.epoch, self.users(attempt.algorithm())).is_some() {
            return false;
        }
        let Some(begin) = self.common.early.take(&self.descriptor, ranks) else { return false };
        self.state.lock().early = Some(begin);
        flight::began_early(&self.common.flight, id, attempt.algorithm());
        log::trace!("{id}: begins early");
        attempt.start();
        true
    }

    /// The vote to complete an attempt that began early, if everything is here already. It goes with the vote to begin.
    fn complete_at_once(&self, attempt: &Attempt) -> Option<C2m> {
        let mut state = self.state.lock();
        if state.held.is_some() || !attempt.progress().has_received_all() {
            return None;
        }
        (state.vote, state.begun_in) = (Some(Vote::Complete), Some(self.common.told.world()));
        Some(self.completion(attempt, None))
    }

    /// The vote to begin is out, and so are the own frames.
    fn goes_on(&self, id: OpId) {
        let mut held = None;
        let begin = |state: &mut State| {
            held = state.begin(self.common.told.world());
            state.has_started = true;
        };
        let Some(attempt) = self.step(id, Phase::Voting, begin) else { return };
        // One that broke before this attempt was among those that it carries has told nobody.
        let broken = || self.common.links.fault_for(id.epoch, self.users(attempt.algorithm()));
        // The frames of others may have arrived meanwhile, all of them.
        if held.is_none() && attempt.progress().has_received_all() {
            self.received_all(id);
        } else if let Some(fault) = held.or_else(broken) {
            self.fault(id, fault);
        }
    }

    /// All have voted, and this peer has not begun early: data may move.
    pub(crate) fn commence(&self, commence: &Commence) {
        let id = commence.op;
        let mut held = None;
        let begin = |state: &mut State| held = state.begin(self.common.told.world());
        let Some(attempt) = self.step(id, Phase::Voting, begin) else { return };
        flight::commenced(&self.common.flight, commence);
        let named = commence.algorithm;
        // Before the links are looked at: one that breaks from now on finds this attempt among those that it carries.
        if attempt.algorithm() != named {
            held.get_or_insert(local_fault(format!("the master named {named}, which was not prepared")));
        }
        let has_links = attempt.place().ranks > 1;
        let fault = has_links.then(|| self.common.links.fault_for(id.epoch, self.users(named))).flatten();
        if let Some(fault) = fault.or(held) {
            return self.fault(id, fault);
        }
        attempt.start();
        if self.step(id, Phase::Running, |state| state.has_started = true).is_none() {
            return;
        }
        // The frames of others may have arrived, all of them, before the news that all have voted.
        if attempt.progress().has_received_all() {
            self.received_all(id);
        }
    }

    /// The epoch of the vote is over. `true`: the operation has to vote again.
    pub(crate) fn stale(&self, id: OpId) -> bool {
        let mut state = self.state.lock();
        let is_open = state.phase == Phase::Voting || state.phase == Phase::Running && state.early.is_some();
        let Some(attempt) = state.attempt.clone().filter(|_| is_open && state.is_current(id)) else {
            return false;
        };
        (state.phase, state.early) = (Phase::Stale, None);
        drop(state);
        self.common.table.retire(id, false);
        attempt.progress().retract();
        true
    }
}
