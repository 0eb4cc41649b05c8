//! Where an operation stands: what all of its threads read and change under one lock.

use super::super::{attempt::Attempt, early::EarlyBegin};
use crate::{Error, control::Control, limit::Limit, world::Known};
use pccl_protocol::{OpFault, OpId, PeerId};
use std::sync::Arc;
use threadpark::Unparker;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Registered and voted, or about to vote.
    Voting,
    /// The epoch of the vote is over; the conductor will vote again.
    Stale,
    /// Data moves. Of an attempt that began early, others may still have to vote.
    Running,
    /// Has a result.
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    /// This peer holds the whole result.
    Complete,
    /// This peer cannot complete.
    Fault,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) attempt: Option<Arc<Attempt>>,
    /// The peers that take part in it, by rank.
    pub(super) ring: Vec<PeerId>,
    /// The own frames of the present attempt are on their way. Before that it is not complete, whatever has arrived: a
    /// peer that has everything may still be the one without which others never will.
    pub(super) has_started: bool,
    /// The vote to complete the present attempt, once it is out.
    pub(super) vote: Option<Vote>,
    /// The caller has given up, or its limit has passed: no further attempt may succeed.
    pub(super) given_up: Option<Option<Limit>>,
    /// The master knows that, of the present attempt.
    pub(super) told: bool,
    /// The vote for the present attempt is out.
    pub(super) initiated: bool,
    /// The fault of the present attempt that came before it has begun here: others begin earlier, and what they send
    /// may be damaged.
    pub(super) held: Option<OpFault>,
    /// The present attempt began early.
    pub(super) early: Option<EarlyBegin>,
    pub(super) result: Option<Result<(), Error>>,
    /// The world with the master's answer, if that is where the result is from.
    pub(super) answer_world: Option<Arc<Known>>,
    /// The world in which the attempt began.
    pub(super) begun_in: Option<Arc<Known>>,
    /// Threads that sleep until there is a result.
    pub(super) waiters: Vec<Unparker>,
}

impl State {
    /// Of an operation that has not voted.
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Stale,
            attempt: None,
            ring: Vec::new(),
            has_started: false,
            vote: None,
            given_up: None,
            told: false,
            initiated: false,
            held: None,
            early: None,
            result: None,
            answer_world: None,
            begun_in: None,
            waiters: Vec::new(),
        }
    }

    /// Wakes the threads that wait for the end of the operation.
    pub(super) fn wake(&mut self, control: &Control) {
        for waiter in self.waiters.drain(..) {
            waiter.unpark();
        }
        control.interrupt_reader();
    }

    /// The attempt begins, in this world; returns what has gone wrong with it before.
    pub(super) fn begin(&mut self, world: Arc<Known>) -> Option<OpFault> {
        self.phase = Phase::Running;
        self.begun_in = Some(world);
        self.held.take()
    }

    /// Keeps a fault until the attempt begins. The first one counts.
    pub(super) fn hold(&mut self, fault: &OpFault) {
        self.held.get_or_insert_with(|| fault.clone());
    }

    /// Whether `id` is the attempt that runs, or is voted for.
    pub(super) fn is_current(&self, id: OpId) -> bool {
        self.phase != Phase::Finished && self.attempt.as_ref().is_some_and(|attempt| attempt.id() == id)
    }

    /// There is a result, and after a success no link needs the caller's memory any more.
    pub(super) fn is_over(&self) -> bool {
        match &self.result {
            None => false,
            Some(Ok(())) => self.attempt.as_ref().is_none_or(|attempt| attempt.progress().has_released_all()),
            Some(Err(_)) => true,
        }
    }
}
