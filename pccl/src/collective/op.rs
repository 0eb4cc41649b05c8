//! One collective of this peer, from the caller's launch to its result, over as many attempts as epochs end before it
//! has begun.
//!
//! The phases are driven by the threads that learn of facts: the control connection's RX thread (commence, outcome),
//! link threads (everything received, a link broke), the conductor (vote again after a stale epoch). The caller's
//! thread only sleeps in [`Op::wait`]; it alone takes the memory back and restores it.

mod begin;
mod state;
mod wait;

use super::{
    attempt::Attempt,
    calls::{Beside, Prepared, Signals},
    links::Users,
    operations::Operations,
    progress::{AttemptOwner, local_fault},
    runs::backup_bytes,
};
use crate::{
    Error, LossCause, Reason,
    error::End,
    flight,
    limit::Limit,
    memory::{Backup, RawTensor},
    world::Known,
};
use parking_lot::Mutex;
use pccl_protocol::{
    Algorithm, C2m, CallKind, CollectiveId, Complete, Descriptor, GiveUp, GroupEpoch, OpFault, OpId, Outcome,
    Pair, PeerId, Tag, TooFewPeers, VoteRef,
};
use state::{Phase, State, Vote};
use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use tinysockets::link::Outgoing;

/// The report of a successful collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReduceInfo {
    /// Peers that took part.
    pub world_size: usize,
    /// Own rank among them, in ring order.
    pub rank: usize,
    /// Payload bytes sent.
    pub tx_bytes: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// How data travelled.
    pub algorithm: Algorithm,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Op {
    tag: Tag,
    /// How long it may be waited for.
    timeout: Option<Duration>,
    descriptor: Descriptor,
    /// The world that the caller knew when it launched this.
    known: Arc<Known>,
    raws: Vec<RawTensor>,
    /// Those of an all-to-all.
    counts: Vec<u64>,
    /// Memory of the library that `raws` point to.
    rooms: Vec<Arc<Backup>>,
    beside: Vec<Box<dyn Beside>>,
    /// The error that happened before the first vote, if there was one.
    failure: Option<Error>,
    backup: Arc<Backup>,
    /// The part that it has in common with the other operations of its session.
    common: Arc<Operations>,
    launched: Instant,
    me: Weak<Self>,
    state: Mutex<State>,
}

impl Op {
    /// Prepares an operation; [`Op::vote`] begins it.
    pub(crate) fn new(
        common: &Arc<Operations>,
        ((number, track), timeout): ((u64, u8), Option<Duration>),
        known: Arc<Known>,
        Prepared { descriptor, pair, raws, counts, rooms, beside, failure }: Prepared,
    ) -> Arc<Self> {
        let backup = common.backups.take(backup_bytes(&descriptor, &raws));
        Arc::new_cyclic(|me| Self {
            tag: Tag { number, pair, track },
            timeout,
            descriptor,
            known,
            raws,
            counts,
            rooms,
            beside,
            failure,
            backup,
            common: common.clone(),
            launched: Instant::now(),
            me: me.clone(),
            state: Mutex::new(State::new()),
        })
    }

    /// The caller's tag.
    pub(crate) fn tag(&self) -> Tag {
        self.tag
    }

    /// Whether it is a part of a call in segments.
    pub(crate) fn is_segment(&self) -> bool {
        self.descriptor.cut.is_some()
    }

    /// The peers that take part in the last attempt, by rank.
    pub(crate) fn contributors(&self) -> Vec<PeerId> {
        self.state.lock().ring.clone()
    }

    /// How long it may be waited for.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Whether its attempt has begun for all and has no outcome yet. One that began early is too small to count.
    pub(crate) fn is_running(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Running && state.early.is_none()
    }

    /// When the caller launched it.
    pub(crate) fn launched(&self) -> Instant {
        self.launched
    }

    /// The members that the caller knew when it launched this.
    pub(crate) fn known(&self) -> &[PeerId] {
        &self.known.world.ring
    }

    /// Identity of the present attempt.
    pub(crate) fn id(&self) -> Option<OpId> {
        self.state.lock().attempt.as_ref().map(|attempt| attempt.id())
    }

    /// The present attempt with the kind of collective.
    pub(crate) fn named(&self) -> Option<CollectiveId> {
        self.id().map(|op| CollectiveId { kind: self.descriptor.kind(), op })
    }

    /// The world with the master's answer; none as long as there is none, or if something else ended the operation.
    pub(crate) fn answer_world(&self) -> Option<Arc<Known>> {
        self.state.lock().answer_world.clone()
    }

    /// Payload bytes that the present attempt has moved.
    pub(crate) fn moved_bytes(&self) -> u64 {
        let attempt = self.state.lock().attempt.clone();
        attempt.map_or(0, |attempt| attempt.progress().traffic().0 + attempt.progress().traffic().1)
    }

    /// The tensors that are to be reduced, and how.
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The memory that the operation borrows: address ranges, and whether they are written.
    pub(crate) fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        let mut all: Vec<(Range<usize>, bool)> = self.beside.iter().flat_map(|it| it.ranges()).collect();
        for raw in &self.raws {
            all.extend(raw.ranges());
        }
        all
    }

    /// For what happens beside an attempt.
    fn signals(&self, id: OpId) -> Signals {
        let (me, again) = (self.me.clone(), self.me.clone());
        let fault = move |text: String| {
            if let Some(op) = me.upgrade() {
                op.fault(id, local_fault(text));
            }
        };
        let ready = move || {
            if let Some(op) = again.upgrade() {
                op.became_ready(id);
            }
        };
        Signals { fault: Box::new(fault), ready: Box::new(ready) }
    }

    /// All that the operation needs of this peer may be there now: if it has received everything, it is complete.
    fn became_ready(&self, id: OpId) {
        let attempt = self.state.lock().attempt.clone();
        if attempt.is_some_and(|attempt| attempt.id() == id && attempt.progress().has_received_all()) {
            self.received_all(id);
        }
    }

    /// The caller gives the operation up, because its limit has passed or because it wants no result: the present
    /// attempt fails for all, whether it has begun or not, unless its outcome is decided. The first reason counts.
    pub(crate) fn give_up(&self, limit: Option<Limit>) {
        let mut state = self.state.lock();
        let limit = *state.given_up.get_or_insert(limit);
        let id = match (&state.attempt, state.phase) {
            (Some(attempt), Phase::Voting | Phase::Running) if state.initiated && !state.told => attempt.id(),
            // The next vote does it, or the one that is on its way.
            _ => return,
        };
        state.told = true;
        drop(state);
        let limit_ms = limit.map(|limit| limit.millis_since(self.launched));
        self.common.control.send(&C2m::GiveUp(GiveUp { vote: VoteRef::Collective(id), limit_ms }));
    }

    /// The master's answer that there are too few peers.
    pub(crate) fn too_few(&self, id: OpId, answer: &TooFewPeers) {
        let mut state = self.state.lock();
        if state.is_current(id) {
            self.common.early.suspend();
            let error =
                Error::TooFewPeers { have: answer.have, need: answer.need, in_group: answer.need_in_group };
            state.answer_world = Some(self.common.told.world());
            self.finish(&mut state, Err(error), false);
        }
    }

    /// How the attempt ended for all.
    pub(crate) fn outcome(&self, id: OpId, outcome: Outcome) {
        let mut state = self.state.lock();
        if !state.is_current(id) {
            return;
        }
        flight::decided(&self.common.flight, id, &outcome);
        let complete = state.vote == Some(Vote::Complete);
        let mut answer_world = self.common.told.world();
        let result = match outcome {
            Outcome::Done(_) if complete => {
                self.common.early.resume();
                // A member may be lost between its last packet for this and the answer. This success tells the caller
                // who took part, and in which order; the loss comes with the next call.
                answer_world =
                    state.begun_in.take().filter(|it| it.world.ring == state.ring).unwrap_or(answer_world);
                Ok(())
            }
            Outcome::Done(_) => {
                drop(state);
                let text = "the master completed an operation that this peer had not";
                return self.common.control.lose(Reason::new(LossCause::Protocol, text));
            }
            Outcome::Aborted(verdict) => {
                let has_own_limit = matches!(state.given_up, Some(Some(_)));
                Err(Error::judged(CallKind::Collective(self.descriptor.kind()), verdict, has_own_limit))
            }
        };
        state.answer_world = Some(answer_world);
        self.finish(&mut state, result, true);
    }

    /// The communicator lost its master or was dropped.
    pub(crate) fn ended(&self, end: &End) {
        let mut state = self.state.lock();
        if state.phase == Phase::Finished {
            return;
        }
        let complete = state.vote == Some(Vote::Complete);
        let result = if complete { Err(Error::OutcomeUnknown(end.loss())) } else { Err(end.to_error()) };
        self.finish(&mut state, result, false);
    }

    /// The links that the present attempt runs on, and its epoch.
    pub(crate) fn runs_on(&self) -> Option<(GroupEpoch, Users)> {
        let attempt = self.state.lock().attempt.clone()?;
        Some((attempt.id().epoch, self.users(attempt.algorithm())))
    }

    fn users(&self, algorithm: Algorithm) -> Users {
        let is_me = |peer| self.common.told.identity().is_some_and(|me| me.peer == peer);
        match self.tag.pair {
            Some(Pair { from, to }) if is_me(from) => Users::To(to),
            Some(Pair { from, .. }) => Users::From(from),
            None if algorithm.uses_mesh() => Users::OverMesh,
            None => Users::All,
        }
    }

    /// A link that the present attempt runs on broke.
    pub(crate) fn link_broken(&self, fault: &OpFault) {
        if let Some(id) = self.id() {
            self.vote_complete(id, Some(fault.clone()));
        }
    }

    /// Gives the backup memory back for the next operation. After [`Op::wait`].
    pub(crate) fn recycle(&self) {
        let rooms = [&self.backup].into_iter().chain(&self.rooms);
        rooms.for_each(|room| self.common.backups.give(room.clone()));
    }

    /// Changes the phase of the present attempt, if it is `id` and in `phase`.
    fn step(&self, id: OpId, phase: Phase, change: impl FnOnce(&mut State)) -> Option<Arc<Attempt>> {
        let mut state = self.state.lock();
        if !state.is_current(id) || state.phase != phase {
            return None;
        }
        change(&mut state);
        state.attempt.clone()
    }

    fn finish(&self, state: &mut State, result: Result<(), Error>, had_outcome: bool) {
        if state.phase == Phase::Finished {
            return;
        }
        if let Some(attempt) = &state.attempt {
            self.common.table.retire(attempt.id(), had_outcome);
        }
        (state.phase, state.early) = (Phase::Finished, None);
        state.result = Some(result);
        state.wake(&self.common.control);
    }

    /// Votes to complete the present attempt, once.
    fn vote_complete(&self, id: OpId, fault: Option<OpFault>) {
        let vote = if fault.is_none() { Vote::Complete } else { Vote::Fault };
        let mut first = false;
        let attempt = self.step(id, Phase::Running, |state| {
            first = state.vote.is_none();
            state.vote = state.vote.or(Some(vote));
        });
        let (Some(attempt), true) = (attempt, first) else { return };
        self.common.control.send_soon(self.completion(&attempt, fault));
    }

    /// The vote to complete an attempt.
    fn completion(&self, attempt: &Attempt, fault: Option<OpFault>) -> C2m {
        let (op, (tx_bytes, rx_bytes)) = (attempt.id(), attempt.progress().traffic());
        let moved_bytes = tx_bytes + rx_bytes;
        flight::completing(&self.common.flight, op, fault.as_ref(), moved_bytes);
        C2m::Complete(Complete { op, fault, moved_bytes })
    }
}

impl AttemptOwner for Op {
    fn received_all(&self, op: OpId) {
        // If not, the beginning of the attempt, or the work that makes it ready, comes back to it.
        let has_started = self.state.lock().has_started;
        if has_started && self.beside.iter().all(|beside| beside.is_ready()) {
            self.vote_complete(op, None);
        }
    }

    fn released_all(&self, _op: OpId) {
        let mut state = self.state.lock();
        if state.result.is_some() {
            state.wake(&self.common.control);
        }
    }

    fn fault(&self, op: OpId, fault: OpFault) {
        log::debug!("{op}: {}: {}", fault.kind, fault.text);
        if self.step(op, Phase::Voting, |state| state.hold(&fault)).is_none() {
            self.vote_complete(op, Some(fault));
        }
    }

    fn send(&self, op: OpId, rank: usize, frames: &mut dyn Iterator<Item = Outgoing>) -> bool {
        let link = match self.tag.pair {
            Some(pair) => self.common.links.out_to(op.epoch, pair.to),
            None => self.common.links.out_at(op.epoch, rank),
        };
        let Some(link) = link else { return false };
        link.push_all(frames);
        true
    }
}
