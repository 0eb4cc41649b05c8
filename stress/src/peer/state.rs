//! The shared state of a peer: it is fetched while this peer waits to be let in, synced, and lent while it computes.

use super::{Halt, Peer, failure, report};
use crate::{
    event::{Call, Event},
    workload::{Buffer, checksum},
};
use pccl::{Ahead, Error, Remedy, SharedState, SyncInfo, SyncStrategy};
use std::time::Duration;

/// One peer of this number lends a copy, which stands until the state has changed.
const COPIES: u64 = 3;

impl Peer {
    /// Joins the run, and fetches its state as far as others lend it.
    pub(super) fn connect(&mut self) -> Result<Ahead, Error> {
        let mut state = shared(self.revision, &mut self.weights, &mut self.momentum, &mut self.ballast)?;
        let ahead = self.comm.connect_with_state(&mut state, None, |_| {})?;
        self.revision = state.revision();
        Ok(ahead)
    }

    pub(super) fn state_hash(&self) -> u64 {
        let ballast = Some(&self.ballast).filter(|_| self.settings.state.0 > 0);
        checksum([&self.weights, &self.momentum].into_iter().chain(ballast))
    }

    /// Syncs until that succeeds; `again`: nothing has changed since the last one. Says whether this peer has just come
    /// with the state.
    pub(super) fn sync(&mut self, again: bool) -> Result<bool, Halt> {
        loop {
            let hash_before = self.state_hash();
            match self.sync_once(again) {
                Ok(info) => {
                    self.revision = info.revision;
                    let hash = self.state_hash();
                    report(Event::Synced { revision: info.revision, hash, rx_bytes: info.rx_bytes });
                    return Ok(info.came_ahead);
                }
                Err(error) => {
                    let intact = self.state_hash() == hash_before;
                    report(failure(Call::Sync, self.revision, intact, &error));
                    match error.remedy() {
                        Remedy::Retry => {}
                        Remedy::WaitForPeers => self.gather()?,
                        _ => return Err(self.lost(&error)),
                    }
                }
            }
        }
    }

    fn sync_once(&mut self, again: bool) -> Result<SyncInfo, Error> {
        let mut state = shared(self.revision, &mut self.weights, &mut self.momentum, &mut self.ballast)?;
        if again {
            say_unchanged(&mut state)?;
        }
        self.comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)
    }

    /// The time that training spends on other things. Newcomers fetch the state meanwhile.
    pub(super) fn compute(&mut self) -> Result<(), Halt> {
        let most_us = self.settings.step_ms * 1000;
        let pause = Duration::from_micros(self.rng.between(most_us / 2, most_us));
        self.lend(|| std::thread::sleep(pause)).map_err(|error| self.lost(&error))
    }

    fn lend(&mut self, work: impl FnOnce()) -> Result<(), Error> {
        let mut state = shared(self.revision, &mut self.weights, &mut self.momentum, &mut self.ballast)?;
        say_unchanged(&mut state)?;
        if self.settings.index.is_multiple_of(COPIES) {
            return self.comm.lend_snapshot(&state).map(|()| work());
        }
        self.comm.lend_state(&state, work)
    }
}

fn shared<'a>(
    revision: u64,
    weights: &'a mut Buffer,
    momentum: &'a mut Buffer,
    ballast: &'a mut Buffer,
) -> Result<SharedState<'a>, Error> {
    let (Buffer::F32(weights), Buffer::F64(momentum), Buffer::I64(ballast)) = (weights, momentum, ballast)
    else {
        return Err(Error::InvalidArgument("the state has other types than it was made with".into()));
    };
    let mut state = SharedState::new(revision);
    state.tensor("weights", weights)?.tensor("momentum", momentum)?;
    if !ballast.is_empty() {
        state.tensor("ballast", ballast)?;
    }
    Ok(state)
}

/// The last sync of this peer has committed the state as it is.
fn say_unchanged(state: &mut SharedState<'_>) -> Result<(), Error> {
    let revision = state.revision();
    state.unchanged_since("weights", revision)?.unchanged_since("momentum", revision)?;
    if state.view::<i64>("ballast").is_some() {
        state.unchanged_since("ballast", revision)?;
    }
    Ok(())
}
