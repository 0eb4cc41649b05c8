//! The caller's side of a shared-state sync: hash, vote, fetch or serve, commit.

use super::{
    Digests, SharedState, StateTensor, SyncInfo, SyncProgress, SyncStrategy,
    ahead::Torn,
    committed::Committed,
    compare::Levels,
    fetch::{self, Bounds, Fetched, Room, Target},
    loan,
    salvage::Salvage,
    syncs::Syncs,
};
use crate::{Error, Reason, limit::Limit};
use pccl_flight::{Event, Subject, What};
use pccl_hash::Tree;
use pccl_protocol::{
    C2m, CallKind, GiveUp, Key, M2c, Nothing, PeerId, RequestId, SourceFailure, StateEntry, SyncComplete,
    SyncId, SyncInitiate, SyncOutcome, SyncPlan, SyncReport, Text, VoteRef,
};
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, atomic::Ordering},
};

/// The answer of the master to a vote.
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
    /// The state that the last sync of this peer has committed.
    pub(crate) committed: Option<Arc<Committed>>,
    /// This peer has offered a state with its digest, and has committed none since.
    pub(crate) offered: bool,
    /// Tensors of which this peer fetched a part ahead, and not all.
    pub(crate) torn: Torn,
    /// The pieces that an earlier sync had fetched when it failed; after one that fails, its pieces.
    pub(crate) salvage: Option<Salvage>,
    /// Hears of a fetch, about once per second.
    pub(crate) progress: &'p mut dyn FnMut(SyncProgress),
}

/// The result of a sync that was committed.
#[derive(Debug)]
pub(crate) struct Synced {
    pub(crate) info: SyncInfo,
    /// Its number, if the master has told it.
    pub(crate) sync: Option<SyncId>,
}

/// Runs one sync. The caller has made sure that nothing else is under way.
pub(crate) fn run(shared: &Syncs, state: &mut SharedState<'_>, wish: &mut Wish<'_>) -> Result<Synced, Error> {
    // The master ends it with the vote.
    shared.server.end_any_loan();
    let tree = shared.tree();
    let (entries, levels) = match &wish.committed {
        Some(committed) => state.entries_since(&tree, committed)?,
        None => state.entries(&tree)?,
    };
    state.know(&levels);
    let offer = loan::offer(state, &levels);
    shared.server.offer(offer.clone());
    let begun = shared.source.moment();
    let result = vote_and_move(shared, state, wish, (entries, levels), begun);
    shared.server.withdraw();
    let Moved { revision, rx_bytes, sync } = result?;
    state.revision = revision;
    let tx_bytes = offer.sent_bytes.load(Ordering::Relaxed);
    Ok(Synced { info: SyncInfo { revision, tx_bytes, rx_bytes, came_ahead: false }, sync })
}

/// The revision that was committed, and how much of it was fetched.
struct Moved {
    revision: u64,
    rx_bytes: u64,
    sync: Option<SyncId>,
}

fn vote_and_move(
    shared: &Syncs,
    state: &mut SharedState<'_>,
    wish: &mut Wish<'_>,
    (entries, levels): Digests,
    begun: u64,
) -> Result<Moved, Error> {
    let limit = wish.limit;
    let is_asked = wish.offered && shared.tree() != Tree::Plain;
    let offered = match is_asked {
        true => Some(state.plain_digest()?.to_u128()),
        false => None,
    };
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
            offered,
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
                let revision = ballot.committed(outcome)?;
                return Ok(Moved { revision, rx_bytes: 0, sync: None });
            }
        }
    };
    shared.flight.record_with(|| {
        Event::new(What::SyncPlanned).about(Subject::Sync(plan.sync)).count(plan.fetch.len() as u64)
    });
    let torn = torn(state, &entries, &plan, &wish.torn);
    if torn.is_none() {
        shared.server.begin(plan.sync);
    }
    if !plan.fetch.is_empty() && !ballot.given_up {
        return repair(&mut ballot, &plan, state, (&levels, begun), wish);
    }
    if let Some(text) = torn.filter(|_| !ballot.given_up) {
        ballot.report(plan.sync, SyncReport::Failed(Text::new(&text)), Vec::new(), Vec::new());
        ballot.outcome()?;
        return Err(Error::InvalidUsage(text));
    }
    // A caller that has given up waits for the verdict only.
    if !ballot.given_up {
        ballot.report(plan.sync, SyncReport::Ready(Nothing {}), Vec::new(), Vec::new());
    }
    let outcome = ballot.outcome()?;
    let revision = ballot.committed(outcome)?;
    Ok(Moved { revision, rx_bytes: 0, sync: Some(plan.sync) })
}

/// Why this peer must not commit what it holds: it is a part of one state and a part of another one, and the others
/// have elected that.
fn torn(state: &SharedState<'_>, entries: &[StateEntry], plan: &SyncPlan, torn: &Torn) -> Option<String> {
    let is_torn = |entry: &&StateEntry| {
        let part = torn.get(&entry.key).filter(|_| plan.fetch.iter().all(|item| item.key != entry.key));
        part.is_some_and(|part| state.is_still(entry, part))
    };
    entries.iter().find(is_torn).map(|entry| {
        format!(
            "tensor {} holds only a part of the state that this peer was fetching when it was let in, and nobody has \
             the whole of it any more; give it a content of its own again",
            entry.key
        )
    })
}

/// Fetches what differs, and takes it back unless the master commits.
fn repair(
    ballot: &mut Ballot<'_>,
    plan: &SyncPlan,
    state: &mut SharedState<'_>,
    (levels, begun): (&[Arc<Levels>], u64),
    wish: &mut Wish<'_>,
) -> Result<Moved, Error> {
    let shared = ballot.shared;
    // From here on the tensors are written. Nobody fetches from a peer that fetches.
    shared.server.withdraw();
    let me = shared.identity().ok_or(Error::NotConnected)?;
    state.forget();
    let targets = match targets(plan, state, levels) {
        Ok(targets) => targets,
        Err(text) => {
            ballot.report(plan.sync, SyncReport::Failed(Text::new(&text)), Vec::new(), Vec::new());
            let outcome = ballot.outcome().and_then(|outcome| ballot.committed(outcome));
            return Err(outcome.err().unwrap_or_else(|| contradiction(text)));
        }
    };
    let room =
        Room { memory: shared.config.settings.state_memory, spill_dir: &shared.config.state_spill_dir };
    let bounds = Bounds { room, undoable: true, deadline: ballot.limit.deadline(), begun };
    let Fetched { journal, rx_bytes, placed, failures, gave, error, .. } =
        fetch::fetch(shared, me, plan, (targets, wish.salvage.take()), bounds, wish.progress);
    let Some((text, local)) = error else {
        let event = Event::new(What::SyncFetched).about(Subject::Sync(plan.sync)).bytes(rx_bytes);
        shared.flight.record(event);
        let report = SyncReport::Ready(Nothing {});
        ballot.report(plan.sync, report, failures, gave);
        let outcome = ballot.outcome().and_then(|outcome| ballot.committed(outcome));
        return match outcome {
            Ok(revision) => {
                journal.commit();
                know_renewed(plan, state, levels, &placed);
                Ok(Moved { revision, rx_bytes, sync: Some(plan.sync) })
            }
            Err(error) => {
                wish.salvage = Salvage::of(plan, journal.roll_back_keeping()?);
                state.know(levels);
                Err(error)
            }
        };
    };
    // At once: the master waits with its verdict, and may end with this peer's life.
    let restored = match local {
        // Room is what is missing.
        Some(_) => journal.roll_back().map(|()| None),
        None => journal.roll_back_keeping().map(|leftover| Salvage::of(plan, leftover)),
    };
    if ballot.limit.is_over() {
        ballot.give_up();
    } else {
        ballot.report(plan.sync, SyncReport::Failed(Text::new(&text)), failures, gave);
    }
    let outcome = ballot.outcome().and_then(|outcome| ballot.committed(outcome));
    wish.salvage = restored?;
    state.know(levels);
    match (local, outcome) {
        // The verdict is the same for all; what was missing is known here only.
        (None, Err(Error::TimedOut { call, text: told, verdict })) => {
            Err(Error::TimedOut { call, text: format!("{told}; {text}"), verdict })
        }
        (Some(error), _) => Err(Error::System(Reason::system(text, error))),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => Err(contradiction(text)),
    }
}

/// The master commits what this peer has reported as failed: no master does that.
fn contradiction(text: String) -> Error {
    Error::System(Reason::system(text, std::io::ErrorKind::InvalidData.into()))
}

/// Has the state know its digests after a fetch has `placed` pieces of the plan's tensors: nothing else is hashed
/// again. Where a device does not give them, the next one that asks hashes all.
pub(super) fn know_renewed(
    plan: &SyncPlan,
    state: &mut SharedState<'_>,
    levels: &[Arc<Levels>],
    placed: &[(usize, u64)],
) {
    let mut pieces: BTreeMap<&Key, Vec<u64>> = BTreeMap::new();
    for (tensor, piece) in placed {
        pieces.entry(&plan.fetch[*tensor].key).or_default().push(*piece);
    }
    let renewed = |(tensor, levels): (&StateTensor, &Arc<Levels>)| match pieces.get(&tensor.key) {
        Some(pieces) => tensor
            .memory
            .mebibyte_digests(levels.tree(), pieces)
            .map(|digests| Arc::new(levels.renewed(pieces.iter().copied().zip(digests)))),
        None => Ok(levels.clone()),
    };
    match state.tensors.iter().zip(levels).map(renewed).collect::<io::Result<Vec<_>>>() {
        Ok(levels) => state.know(&levels),
        Err(error) => log::warn!("what was fetched is to be hashed again: {error}"),
    }
}

/// The tensors that the plan names, to be written.
pub(super) fn targets<'t>(
    plan: &SyncPlan,
    state: &'t mut SharedState<'_>,
    levels: &[Arc<Levels>],
) -> Result<Vec<Target<'t>>, String> {
    let mut named = plan.fetch.iter().peekable();
    let mut targets = Vec::with_capacity(plan.fetch.len());
    // Both are sorted by key.
    for (tensor, levels) in state.tensors.iter_mut().zip(levels) {
        if named.next_if(|item| item.key == tensor.key).is_some() {
            targets.push(Target { content: tensor.memory.pieces(), levels: levels.clone() });
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
        match outcome {
            SyncOutcome::Committed(revision) => Ok(revision.0),
            SyncOutcome::Failed(verdict) => Err(Error::judged(CallKind::Sync, verdict, self.given_up)),
        }
    }
}
