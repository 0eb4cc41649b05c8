//! A newcomer fetches the state of its group before it is let in, while the members train on.
//!
//! The master names what was committed last, and the members that lend it. The fetch is that of a sync, but for the
//! journal: nothing is put back. It ends early when the master has something newer, or lets the newcomer in: the sync
//! that follows goes on where it was.

use super::{
    SharedState, SyncProgress,
    compare::Levels,
    fetch::{self, Bounds, Fetched, Room},
    sync::{know_renewed, targets},
    syncs::Syncs,
};
use crate::{Error, limit::Limit};
use pccl_flight::{Event, Subject, What};
use pccl_protocol::{AheadFailure, AheadStep, C2m, Key, M2c, ResumeOffer, SourceFailure, SyncPlan, Text};
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// The state that a newcomer had fetched when it was let in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ahead {
    /// The revision that it holds, all of it and verified. The sync that follows proves it, and moves what has changed
    /// since.
    pub revision: Option<u64>,
    /// Bytes that were fetched.
    pub rx_bytes: u64,
}

/// The last news of the master to a newcomer that waits.
#[derive(Debug, Default)]
pub(crate) struct AheadNews {
    pub(crate) plan: Option<SyncPlan>,
    pub(crate) is_admitted: bool,
}

/// Tensors that hold a part of a state, each with the digests of what it holds: they are to be replaced by a whole one,
/// and nobody is to get them. They may be by the tree of an earlier run.
pub(crate) type Torn = BTreeMap<Key, Arc<Levels>>;

/// How a newcomer waits.
pub(crate) struct Wish<'p> {
    pub(crate) limit: Limit,
    /// The state that this peer has told the master that it holds.
    pub(crate) held: Option<ResumeOffer>,
    pub(crate) torn: &'p mut Torn,
    pub(crate) progress: &'p mut dyn FnMut(SyncProgress),
}

/// Waits until this peer is let in, and fetches meanwhile. The registration has said that it wants to.
pub(crate) fn wait(shared: &Syncs, state: &mut SharedState<'_>, wish: Wish<'_>) -> Result<Ahead, Error> {
    let own_revision = state.revision;
    let mut newcomer = Newcomer { shared, state, wish, own_revision, ahead: Ahead::default() };
    let (mut open, mut gave_up) = (None, false);
    loop {
        // Before it is asked what is new: what comes from now on ends the fetch.
        let begun = shared.source.moment();
        if newcomer.is_admitted(open.is_none())? {
            return Ok(newcomer.ahead);
        }
        open = shared.ahead.lock().plan.take().or(open).filter(|_| !gave_up);
        let Some(plan) = &open else { continue };
        let step = match newcomer.fetch(plan, begun) {
            Ok(Got::All) => AheadStep::Holds(plan.sync),
            Ok(Got::Interrupted) => continue,
            Ok(Got::Missing(failures)) => AheadStep::Failed(AheadFailure { sync: plan.sync, failures }),
            Err(text) => {
                log::info!("the shared state is not fetched ahead: {text}");
                gave_up = true;
                AheadStep::GivenUp(Text::new(text))
            }
        };
        shared.send(&C2m::Ahead(step));
        open = None;
    }
}

/// How a fetch ended.
enum Got {
    All,
    /// There is something newer, or the wait is over.
    Interrupted,
    /// Not all of it, and who failed.
    Missing(Vec<SourceFailure>),
}

struct Newcomer<'s, 'a, 'p> {
    shared: &'s Syncs,
    state: &'s mut SharedState<'a>,
    wish: Wish<'p>,
    /// The revision that the caller gave.
    own_revision: u64,
    ahead: Ahead,
}

impl Newcomer<'_, '_, '_> {
    /// Whether this peer is let in; with nothing to do it waits for that, or for something to fetch.
    fn is_admitted(&self, is_idle: bool) -> Result<bool, Error> {
        let limit = self.wish.limit;
        let waits = is_idle || limit.is_over() || self.shared.is_over();
        loop {
            if !waits && !self.shared.ahead.lock().is_admitted {
                return Ok(false);
            }
            let news = self.shared.receive(limit.deadline(), |packet| match packet {
                M2c::Admitted(_) => Ok(true),
                M2c::StateAhead(_) => Ok(false),
                other => Err(other),
            })?;
            if news || self.shared.ahead.lock().plan.is_some() {
                return Ok(news);
            }
        }
    }

    /// Fetches what differs from the plan. An error is in words: this peer will not have it.
    fn fetch(&mut self, plan: &SyncPlan, begun: u64) -> Result<Got, String> {
        let Some(me) = self.shared.identity() else { return Ok(Got::Interrupted) };
        let held = self.wish.held.map_or(self.own_revision, |offer| offer.revision.0);
        if held > plan.revision.0 {
            return Err(format!("this peer holds revision {held}, its group revision {}", plan.revision));
        }
        let (entries, levels) = self.state.entries(&self.shared.tree()).map_err(|error| error.to_string())?;
        self.state.know(&levels);
        let differs = |item: &pccl_protocol::FetchItem| {
            entries.iter().all(|entry| entry.key != item.key || entry.digest != item.digest)
        };
        let is_promised = self.wish.held.is_some_and(|offer| {
            let own = self.state.plain_digest().ok().map(|digest| digest.to_u128());
            offer.digest.is_some() && offer.digest == own
        });
        if plan.fetch.iter().any(differs) {
            if is_promised {
                return Err(format!(
                    "this peer has offered revision {held}, and its group has another state"
                ));
            }
            self.ahead.revision = None;
            self.state.revision = self.own_revision;
        }
        self.state.forget();
        let targets = targets(plan, self.state, &levels)?;
        // Nothing is kept, so the room bounds only how many lanes there are.
        let config = &self.shared.config;
        let room = Room { memory: config.settings.state_memory, spill_dir: &config.state_spill_dir };
        let bounds = Bounds { room, undoable: false, deadline: self.wish.limit.deadline(), begun };
        let Fetched { journal, rx_bytes, placed, failures, error, misfit, .. } =
            fetch::fetch(self.shared, me, plan, (targets, None), bounds, self.wish.progress);
        drop(journal);
        know_renewed(plan, self.state, &levels, &placed);
        self.ahead.rx_bytes += rx_bytes;
        self.note_torn(plan, &placed);
        let event = Event::new(What::SyncFetched).about(Subject::Sync(plan.sync)).bytes(rx_bytes);
        self.shared.flight.record(event);
        match error {
            None => {
                self.hold(plan);
                Ok(Got::All)
            }
            Some((text, _)) if misfit => Err(text),
            Some(_) if self.shared.source.is_stopped_since(begun) || self.is_over() => Ok(Got::Interrupted),
            Some((text, _)) => {
                log::debug!("revision {} of the shared state is not here: {text}", plan.revision);
                Ok(Got::Missing(failures))
            }
        }
    }

    fn is_over(&self) -> bool {
        self.shared.is_over() || self.wish.limit.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// All of the plan is here.
    fn hold(&mut self, plan: &SyncPlan) {
        self.ahead.revision = Some(plan.revision.0);
        // The sync moves the tensors that the plan leaves out, to peers that are behind.
        if plan.fetch.len() == self.state.tensors.len() {
            self.state.revision = plan.revision.0;
        }
        log::info!("holds revision {} of the shared state before it is let in", plan.revision);
    }

    /// Notes which tensors are a part of one state and a part of another one.
    fn note_torn(&mut self, plan: &SyncPlan, placed: &[(usize, u64)]) {
        let Ok((entries, levels)) = self.state.entries(&self.shared.tree()) else { return };
        for (number, item) in plan.fetch.iter().enumerate() {
            let mut pairs = entries.iter().zip(&levels);
            let Some((entry, levels)) = pairs.find(|(entry, _)| entry.key == item.key) else { continue };
            if entry.digest == item.digest {
                self.wish.torn.remove(&item.key);
            } else if self.wish.torn.contains_key(&item.key) || placed.iter().any(|(it, _)| *it == number) {
                self.wish.torn.insert(item.key.clone(), levels.clone());
            }
        }
    }
}
