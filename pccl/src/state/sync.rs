//! The caller's side of a shared-state sync: hash, vote, fetch or serve, commit.

use super::{
    SharedState, SyncInfo, SyncStrategy,
    fetch::{self, Contents, Fetched},
    server::Offer,
    syncs::Syncs,
};
use crate::{Error, limit::Limit};
use pccl_flight::{Event, Subject, What};
use pccl_protocol::{
    C2m, CallKind, Cause, GiveUp, M2c, RequestId, StateEntry, SyncComplete, SyncInitiate, SyncOutcome,
    SyncPlan, SyncReport, SyncTraffic, Text, VoteRef,
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

/// Runs one sync. The caller has made sure that nothing else is under way.
pub(crate) fn run(
    shared: &Syncs,
    state: &mut SharedState<'_>,
    strategy: SyncStrategy,
    limit: Limit,
) -> Result<SyncInfo, Error> {
    let entries = state.entries();
    let gate = Arc::new(Gate::new());
    let tensors =
        state.tensors.iter().map(|tensor| (tensor.key.clone(), tensor.memory.lend(&gate))).collect();
    let offer = Arc::new(Offer { gate, tensors, sent_bytes: AtomicU64::new(0) });
    shared.server.offer(offer.clone());
    shared.source.start();
    let result = vote_and_move(shared, state, (strategy, limit), entries);
    shared.server.withdraw();
    let (revision, fetched) = result?;
    let rx_bytes = fetched.values().map(|content| content.len() as u64).sum();
    for tensor in &mut state.tensors {
        if let Some(content) = fetched.get(&tensor.key) {
            tensor.memory.replace(content);
        }
    }
    state.revision = revision;
    Ok(SyncInfo { revision, tx_bytes: offer.sent_bytes.load(Ordering::Relaxed), rx_bytes })
}

fn vote_and_move(
    shared: &Syncs,
    state: &SharedState<'_>,
    (strategy, limit): (SyncStrategy, Limit),
    entries: Vec<StateEntry>,
) -> Result<(u64, Contents), Error> {
    let (mut ballot, plan) = loop {
        let request = shared.next_request();
        let mut ballot = Ballot { shared, request, limit, given_up: false };
        shared.flight.record_with(|| {
            Event::new(What::SyncVoted)
                .about(Subject::Request(request))
                .named(strategy.to_string())
                .count(entries.len() as u64)
        });
        shared.send(&C2m::SyncInitiate(SyncInitiate {
            request,
            epoch: shared.table.epoch(),
            revision: state.wire_revision(),
            strategy,
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
            Answer::Over(outcome) => {
                return ballot.committed(outcome).map(|revision| (revision, Contents::new()));
            }
        }
    };
    shared.flight.record_with(|| {
        Event::new(What::SyncPlanned).about(Subject::Sync(plan.sync)).count(plan.fetch.len() as u64)
    });
    shared.server.begin(plan.sync);
    let identity = shared.identity().ok_or(Error::NotConnected)?;
    let mut fetched = Fetched::default();
    // Who has given up waits for the verdict only.
    if !ballot.given_up {
        if !plan.fetch.is_empty() {
            fetched = fetch::fetch(shared, identity, &plan, &state.tensors, limit.deadline());
        }
        let report = match &fetched.error {
            None => {
                let rx_bytes = fetched.contents.values().map(|content| content.len() as u64).sum();
                let event = Event::new(What::SyncFetched).about(Subject::Sync(plan.sync)).bytes(rx_bytes);
                shared.flight.record(event);
                Some(SyncReport::Ready(SyncTraffic { tx_bytes: 0, rx_bytes }))
            }
            Some(_) if limit.is_over() => None,
            Some(text) => Some(SyncReport::Failed(Text::new(text))),
        };
        match report {
            Some(report) => {
                let failures = std::mem::take(&mut fetched.failures);
                shared.send(&C2m::SyncComplete(SyncComplete { sync: plan.sync, report, failures }));
            }
            None => ballot.give_up(),
        }
    }
    let outcome = ballot.outcome()?;
    ballot.committed(outcome).map(|revision| (revision, fetched.contents))
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
