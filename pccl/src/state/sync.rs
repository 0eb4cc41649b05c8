//! The caller's side of a shared-state sync: hash, vote, fetch or serve, commit.

use super::{
    SharedState, SyncInfo, SyncStrategy,
    fetch::{self, Contents, Fetched},
    server::Offer,
};
use crate::{Error, session::Shared};
use pccl_protocol::{
    C2m, M2c, RequestId, StateEntry, SyncComplete, SyncInitiate, SyncOutcome, SyncPlan, SyncReport,
    SyncTraffic, Text, VoteRef,
    flight::{Event, Subject, What},
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
    shared: &Arc<Shared>,
    state: &mut SharedState<'_>,
    strategy: SyncStrategy,
) -> Result<SyncInfo, Error> {
    let entries = state.entries();
    let gate = Arc::new(Gate::new());
    let tensors =
        state.tensors.iter().map(|tensor| (tensor.key.clone(), tensor.memory.lend(&gate))).collect();
    let offer = Arc::new(Offer { gate, tensors, sent_bytes: AtomicU64::new(0) });
    shared.server.offer(offer.clone());
    let result = vote_and_move(shared, state, strategy, entries);
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
    shared: &Arc<Shared>,
    state: &SharedState<'_>,
    strategy: SyncStrategy,
    entries: Vec<StateEntry>,
) -> Result<(u64, Contents), Error> {
    let (request, plan) = loop {
        let request = shared.next_request();
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
        match answer(shared, request)? {
            Answer::Plan(plan) => break (request, plan),
            Answer::Stale => {}
            Answer::TooFew(error) => return Err(error),
            Answer::Over(outcome) => return committed(outcome).map(|revision| (revision, Contents::new())),
        }
    };
    shared.flight.record_with(|| {
        Event::new(What::SyncPlanned).about(Subject::Sync(plan.sync)).count(plan.fetch.len() as u64)
    });
    shared.server.begin(plan.sync);
    let identity = shared.identity().ok_or(Error::NotConnected)?;
    let Fetched { contents, failures, error } = match plan.fetch.is_empty() {
        true => Fetched::default(),
        false => fetch::fetch(shared, identity, &plan, &state.tensors),
    };
    let report = match error {
        None => {
            let rx_bytes = contents.values().map(|content| content.len() as u64).sum();
            let event = Event::new(What::SyncFetched).about(Subject::Sync(plan.sync)).bytes(rx_bytes);
            shared.flight.record(event);
            SyncReport::Ready(SyncTraffic { tx_bytes: 0, rx_bytes })
        }
        Some(text) => SyncReport::Failed(Text::new(text)),
    };
    shared.send(&C2m::SyncComplete(SyncComplete { sync: plan.sync, report, failures }));
    let outcome = shared.receive(None, |packet| match packet {
        M2c::SyncOutcome(outcome) if outcome.request == request => Some(outcome.outcome.clone()),
        _ => None,
    })?;
    committed(outcome).map(|revision| (revision, contents))
}

fn answer(shared: &Shared, request: RequestId) -> Result<Answer, Error> {
    shared.receive(None, |packet| match packet {
        M2c::SyncPlan(plan) if plan.request == request => Some(Answer::Plan(plan.plan.clone())),
        M2c::SyncOutcome(outcome) if outcome.request == request => {
            Some(Answer::Over(outcome.outcome.clone()))
        }
        M2c::Stale(stale) if stale.vote == VoteRef::Sync(request) => Some(Answer::Stale),
        M2c::TooFewPeers(few) if few.vote == VoteRef::Sync(request) => {
            Some(Answer::TooFew(Error::TooFewPeers {
                have: few.have,
                need: few.need,
                in_group: few.need_in_group,
            }))
        }
        _ => None,
    })
}

fn committed(outcome: SyncOutcome) -> Result<u64, Error> {
    match outcome {
        SyncOutcome::Committed(revision) => Ok(revision.0),
        SyncOutcome::Failed(verdict) => {
            log::warn!("{verdict}");
            Err(Error::Aborted(Box::new(verdict)))
        }
    }
}
