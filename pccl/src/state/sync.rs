//! The caller's side of a shared-state sync: hash, vote, fetch or serve, commit.

use super::{
    SharedState, StateTensor, SyncInfo, SyncProgress, SyncStrategy,
    compare::Levels,
    fetch::{self, Fetched, Room, Target},
    server::Offer,
    syncs::Syncs,
};
use crate::{Error, Reason, limit::Limit};
use pccl_flight::{Event, Subject, What};
use pccl_protocol::{
    C2m, CallKind, Cause, GiveUp, M2c, Nothing, PeerId, RequestId, SourceFailure, StateEntry, SyncComplete,
    SyncId, SyncInitiate, SyncOutcome, SyncPlan, SyncReport, Text, VoteRef,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tinysockets::link::Gate;

/// What the master answers to a vote.
enum Answer {
    Plan(SyncPlan),
    Over(SyncOutcome),
    Stale,
    TooFew(Error),
}

/// How a caller wants to sync.
pub(crate) struct Wish<'p> {
    pub(crate) strategy: SyncStrategy,
    pub(crate) limit: Limit,
    /// Hears of a fetch, about once per second.
    pub(crate) progress: &'p mut dyn FnMut(SyncProgress),
}

/// Runs one sync. The caller has made sure that nothing else is under way.
pub(crate) fn run(
    shared: &Syncs,
    state: &mut SharedState<'_>,
    mut wish: Wish<'_>,
) -> Result<SyncInfo, Error> {
    let (entries, levels) = state.entries();
    let gate = Arc::new(Gate::new());
    let lent = |(tensor, levels): (&StateTensor, &Arc<Levels>)| {
        (tensor.key.clone(), (tensor.memory.lend(&gate), levels.clone()))
    };
    let tensors = state.tensors.iter().zip(&levels).map(lent).collect();
    let offer = Arc::new(Offer { gate, tensors, sent_bytes: AtomicU64::new(0) });
    shared.server.offer(offer.clone());
    shared.source.start();
    let result = vote_and_move(shared, state, &mut wish, (entries, levels));
    shared.server.withdraw();
    let (revision, rx_bytes) = result?;
    state.revision = revision;
    Ok(SyncInfo { revision, tx_bytes: offer.sent_bytes.load(Ordering::Relaxed), rx_bytes })
}

fn vote_and_move(
    shared: &Syncs,
    state: &mut SharedState<'_>,
    wish: &mut Wish<'_>,
    (entries, levels): (Vec<StateEntry>, Vec<Arc<Levels>>),
) -> Result<(u64, u64), Error> {
    let limit = wish.limit;
    let (mut ballot, plan) = loop {
        let request = shared.next_request();
        let mut ballot = Ballot { shared, request, limit, given_up: false };
        shared.flight.record_with(|| {
            Event::new(What::SyncVoted)
                .about(Subject::Request(request))
                .named(wish.strategy.to_string())
                .count(entries.len() as u64)
        });
        shared.send(&C2m::SyncInitiate(SyncInitiate {
            request,
            epoch: shared.table.epoch(),
            revision: state.wire_revision(),
            strategy: wish.strategy,
            entries: entries.clone(),
        }));
        match ballot.answer()? {
            Answer::Plan(plan) => break (ballot, plan),
            Answer::Stale if ballot.given_up => {
                let text =
                    format!("given up after {:?}, before the peers of a new ring had voted", limit.time());
                return Err(Error::TimedOut { call: CallKind::Sync, text, verdict: None });
            }
            Answer::Stale => {}
            Answer::TooFew(error) => return Err(error),
            Answer::Over(outcome) => return ballot.committed(outcome).map(|revision| (revision, 0)),
        }
    };
    shared.flight.record_with(|| {
        Event::new(What::SyncPlanned).about(Subject::Sync(plan.sync)).count(plan.fetch.len() as u64)
    });
    shared.server.begin(plan.sync);
    if !plan.fetch.is_empty() && !ballot.given_up {
        return repair(&mut ballot, &plan, state, &levels, wish);
    }
    // Who has given up waits for the verdict only.
    if !ballot.given_up {
        ballot.report(plan.sync, SyncReport::Ready(Nothing {}), Vec::new(), Vec::new());
    }
    let outcome = ballot.outcome()?;
    ballot.committed(outcome).map(|revision| (revision, 0))
}

/// Fetches what differs, and takes it back unless the master commits.
fn repair(
    ballot: &mut Ballot<'_>,
    plan: &SyncPlan,
    state: &mut SharedState<'_>,
    levels: &[Arc<Levels>],
    wish: &mut Wish<'_>,
) -> Result<(u64, u64), Error> {
    let shared = ballot.shared;
    // From here on the tensors are written. Nobody fetches from a peer that fetches.
    shared.server.withdraw();
    let me = shared.identity().ok_or(Error::NotConnected)?;
    let targets = match targets(plan, state, levels) {
        Ok(targets) => targets,
        Err(text) => {
            ballot.report(plan.sync, SyncReport::Failed(Text::new(&text)), Vec::new(), Vec::new());
            let outcome = ballot.outcome().and_then(|outcome| ballot.committed(outcome));
            return Err(outcome.err().unwrap_or_else(|| contradiction(text)));
        }
    };
    let room = Room { memory: shared.config.state_memory, spill_dir: &shared.config.state_spill_dir };
    let limits = (room, ballot.limit.deadline());
    let Fetched { journal, rx_bytes, failures, gave, error } =
        fetch::fetch(shared, me, plan, targets, limits, wish.progress);
    let Some((text, local)) = error else {
        let event = Event::new(What::SyncFetched).about(Subject::Sync(plan.sync)).bytes(rx_bytes);
        shared.flight.record(event);
        let report = SyncReport::Ready(Nothing {});
        ballot.report(plan.sync, report, failures, gave);
        let outcome = ballot.outcome().and_then(|outcome| ballot.committed(outcome));
        return match outcome {
            Ok(revision) => {
                journal.commit();
                Ok((revision, rx_bytes))
            }
            Err(error) => {
                journal.roll_back()?;
                Err(error)
            }
        };
    };
    // At once: the master waits with its verdict, and may end with this peer's life.
    let restored = journal.roll_back();
    if ballot.limit.is_over() {
        ballot.give_up();
    } else {
        ballot.report(plan.sync, SyncReport::Failed(Text::new(&text)), failures, gave);
    }
    let outcome = ballot.outcome().and_then(|outcome| ballot.committed(outcome));
    restored?;
    match (local, outcome) {
        (Some(error), _) => Err(Error::System(Reason::system(text, error))),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => Err(contradiction(text)),
    }
}

/// The master commits what this peer has reported as failed: no master does that.
fn contradiction(text: String) -> Error {
    Error::System(Reason::system(text, std::io::ErrorKind::InvalidData.into()))
}

/// The tensors that the plan names, to be written.
fn targets<'t>(
    plan: &SyncPlan,
    state: &'t mut SharedState<'_>,
    levels: &[Arc<Levels>],
) -> Result<Vec<Target<'t>>, String> {
    let mut named = plan.fetch.iter().peekable();
    let mut targets = Vec::with_capacity(plan.fetch.len());
    // Both are sorted by key.
    for (tensor, levels) in state.tensors.iter_mut().zip(levels) {
        if named.next_if(|item| item.key == tensor.key).is_some() {
            targets.push(Target { content: tensor.memory.view_mut(), levels: levels.clone() });
        }
    }
    match named.next() {
        None => Ok(targets),
        Some(item) => Err(format!("the plan names a tensor {} that this peer does not have", item.key)),
    }
}

/// One vote for a sync, until its outcome.
struct Ballot<'a> {
    shared: &'a Syncs,
    request: RequestId,
    limit: Limit,
    /// The limit has passed, and the master knows.
    given_up: bool,
}

impl Ballot<'_> {
    /// Waits for a packet of the master. When the limit passes, the sync is given up for all, and the master's
    /// answer to that is waited for.
    fn receive<T>(&mut self, mut pick: impl FnMut(M2c) -> Result<T, M2c>) -> Result<T, Error> {
        let deadline = self.limit.deadline().filter(|_| !self.given_up);
        match self.shared.receive(deadline, &mut pick) {
            Err(Error::TimedOut { .. }) => {
                self.give_up();
                self.shared.receive(None, pick)
            }
            other => other,
        }
    }

    fn give_up(&mut self) {
        self.given_up = true;
        let vote = VoteRef::Sync(self.request);
        self.shared.send(&C2m::GiveUp(GiveUp { vote, limit_ms: Some(self.limit.millis()) }));
    }

    fn report(&self, sync: SyncId, report: SyncReport, failures: Vec<SourceFailure>, gave: Vec<PeerId>) {
        self.shared.send(&C2m::SyncComplete(SyncComplete { sync, report, failures, gave }));
    }

    fn answer(&mut self) -> Result<Answer, Error> {
        let request = self.request;
        self.receive(|packet| match packet {
            M2c::SyncPlan(plan) if plan.request == request => Ok(Answer::Plan(plan.plan)),
            M2c::SyncOutcome(outcome) if outcome.request == request => Ok(Answer::Over(outcome.outcome)),
            M2c::Stale(stale) if stale.vote == VoteRef::Sync(request) => Ok(Answer::Stale),
            M2c::TooFewPeers(few) if few.vote == VoteRef::Sync(request) => {
                Ok(Answer::TooFew(Error::TooFewPeers {
                    have: few.have,
                    need: few.need,
                    in_group: few.need_in_group,
                }))
            }
            other => Err(other),
        })
    }

    fn outcome(&mut self) -> Result<SyncOutcome, Error> {
        let request = self.request;
        self.receive(|packet| match packet {
            M2c::SyncOutcome(outcome) if outcome.request == request => Ok(outcome.outcome),
            other => Err(other),
        })
    }

    fn committed(&self, outcome: SyncOutcome) -> Result<u64, Error> {
        let verdict = match outcome {
            SyncOutcome::Committed(revision) => return Ok(revision.0),
            SyncOutcome::Failed(verdict) => verdict,
        };
        log::warn!("{verdict}");
        if self.given_up && verdict.cause == Cause::CallTimeout {
            let text = verdict.to_string();
            return Err(Error::TimedOut { call: CallKind::Sync, text, verdict: Some(Box::new(verdict)) });
        }
        Err(Error::Aborted(Box::new(verdict)))
    }
}
