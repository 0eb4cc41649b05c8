//! A run inside one process, for tests: threads in place of peers, a lock in place of master and network.
//!
//! It insists on what a real run needs from the training loop, and fails the test with a sentence instead of hanging:
//! all peers make the same call, revisions go up by one, and a failed all-reduce comes back with the same values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::diloco::OuterState;
use crate::peer::{Collective, CommError, ReduceInfo, SyncInfo};
use crate::report::Traffic;

/// Long enough for any machine; only a defect waits so long.
const STUCK: Duration = Duration::from_secs(30);

/// A kind of call that all peers make together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Update,
    Sync,
    Reduce,
}

/// What goes wrong in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This peer dies in the middle of it.
    Kill(u32),
    /// This peer loses its connection to the run in the middle of it.
    Kick(u32),
    /// It fails, and nobody is lost.
    Abort,
}

#[derive(Debug, Clone)]
enum Vote {
    Update,
    Sync { revision: u64, state: OuterState },
    Reduce(Vec<f32>),
}

impl Vote {
    const fn kind(&self) -> Kind {
        match self {
            Self::Update => Kind::Update,
            Self::Sync { .. } => Kind::Sync,
            Self::Reduce(_) => Kind::Reduce,
        }
    }
}

#[derive(Debug)]
enum Answer {
    Updated,
    Synced { revision: u64, state: OuterState, traffic: Traffic },
    Reduced { values: Vec<f32>, world: usize },
    Error(CommError),
}

#[derive(Default)]
struct Member {
    vote: Option<Vote>,
    /// And how many peers were in the run when it was given.
    answer: Option<(Answer, usize)>,
    /// What this peer brought to an all-reduce that failed.
    failed_values: Option<Vec<f32>>,
}

struct State {
    /// Peers that have to be there before the first one is let in.
    founders: usize,
    members: BTreeMap<u32, Member>,
    pending: BTreeSet<u32>,
    revision: u64,
    calls: BTreeMap<Kind, u64>,
    faults: Vec<(Kind, u64, Fault)>,
    broken: Option<String>,
}

/// A run.
pub(crate) struct Cluster {
    state: Mutex<State>,
    changed: Condvar,
}

impl Cluster {
    /// A run that begins when `founders` peers are there. A fault `(kind, n, what)` hits the n-th call of a kind,
    /// counted from 1, failed ones included.
    pub(crate) fn new(founders: usize, faults: &[(Kind, u64, Fault)]) -> Arc<Self> {
        let state = State {
            founders,
            members: BTreeMap::new(),
            pending: BTreeSet::new(),
            revision: 0,
            calls: BTreeMap::new(),
            faults: faults.to_vec(),
            broken: None,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// A peer that is not in the run yet.
    pub(crate) fn peer(self: &Arc<Self>, id: u32) -> SimPeer {
        SimPeer { cluster: Arc::clone(self), id, world: 0 }
    }

    /// Waits until somebody asks to be let in.
    pub(crate) fn wait_for_newcomer(&self) {
        self.wait_until("a newcomer", |state| (!state.pending.is_empty()).then_some(()));
    }

    /// Faults that never happened.
    pub(crate) fn faults_left(&self) -> usize {
        self.state.lock().faults.len()
    }

    fn wait_until<T>(&self, what: &str, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut state = self.state.lock();
        loop {
            if let Some(broken) = &state.broken {
                panic!("{broken}");
            }
            if let Some(value) = ready(&mut state) {
                return value;
            }
            if self.changed.wait_for(&mut state, STUCK).timed_out() {
                self.fail(&mut state, format!("stuck waiting for {what}"));
            }
        }
    }

    fn fail(&self, state: &mut MutexGuard<'_, State>, why: String) {
        let votes: Vec<_> =
            state.members.iter().map(|(id, m)| (*id, m.vote.as_ref().map(Vote::kind))).collect();
        let why = format!("{why}; votes {votes:?}, pending {:?}", state.pending);
        state.broken.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Decides whatever can be decided now.
    fn settle(&self, state: &mut MutexGuard<'_, State>) {
        if state.members.is_empty() && state.pending.len() >= state.founders {
            // Whoever comes when nobody is in the run starts a new one.
            state.admit();
            state.revision = 0;
        }
        let kinds: Option<BTreeSet<Kind>> =
            state.members.values().map(|member| member.vote.as_ref().map(Vote::kind)).collect();
        match kinds.as_ref().map(|kinds| (kinds.len(), kinds.first())) {
            Some((1, Some(&kind))) => {
                if let Err(why) = state.decide(kind) {
                    self.fail(state, why);
                }
            }
            Some((2.., _)) => self.fail(state, "the peers disagree about the next call".to_owned()),
            _ => {}
        }
        self.changed.notify_all();
    }
}

impl State {
    fn admit(&mut self) {
        for id in std::mem::take(&mut self.pending) {
            self.members.insert(id, Member::default());
        }
    }

    /// All members have voted for `kind`.
    fn decide(&mut self, kind: Kind) -> Result<(), String> {
        let call = self.calls.entry(kind).or_default();
        *call += 1;
        let call = *call;
        if let Some(index) = self.faults.iter().position(|&(k, n, _)| (k, n) == (kind, call)) {
            let (_, _, fault) = self.faults.remove(index);
            return self.fault(fault);
        }
        let ids: Vec<u32> = self.members.keys().copied().collect();
        let votes: Vec<Vote> = self.members.values_mut().filter_map(|member| member.vote.take()).collect();
        let answers = match kind {
            Kind::Update => {
                self.admit();
                votes.iter().map(|_| Answer::Updated).collect()
            }
            Kind::Sync => self.sync(&votes)?,
            Kind::Reduce => self.reduce(&votes)?,
        };
        let world = self.members.len();
        for (id, answer) in ids.iter().zip(answers) {
            if let Some(member) = self.members.get_mut(id) {
                member.answer = Some((answer, world));
            }
        }
        Ok(())
    }

    fn fault(&mut self, fault: Fault) -> Result<(), String> {
        let world = self.members.len() - usize::from(fault != Fault::Abort);
        for (&id, member) in &mut self.members {
            let error = match fault {
                Fault::Kill(victim) if victim == id => CommError::Fatal("killed".to_owned()),
                Fault::Kick(victim) if victim == id => CommError::Reconnect("kicked".to_owned()),
                _ => CommError::Retry(format!("{fault:?}")),
            };
            if let Some(Vote::Reduce(values)) = member.vote.take()
                && matches!(error, CommError::Retry(_))
            {
                member.failed_values = Some(values);
            }
            member.answer = Some((Answer::Error(error), world));
        }
        if let Fault::Kill(victim) | Fault::Kick(victim) = fault {
            self.members.get(&victim).map(|_| ()).ok_or(format!("{fault:?}: not a member"))?;
        }
        Ok(())
    }

    fn sync(&mut self, votes: &[Vote]) -> Result<Vec<Answer>, String> {
        let votes: Vec<(u64, &OuterState)> = votes
            .iter()
            .filter_map(|vote| {
                if let Vote::Sync { revision, state } = vote { Some((*revision, state)) } else { None }
            })
            .collect();
        let revision = votes.iter().map(|vote| vote.0).max().unwrap_or(0);
        if self.revision != 0 && revision != self.revision + 1 {
            return Err(format!("sync with revision {revision} after {}", self.revision));
        }
        let current: Vec<&OuterState> =
            votes.iter().filter(|vote| vote.0 == revision).map(|vote| vote.1).collect();
        let popularity = |state: &OuterState| current.iter().filter(|other| **other == state).count();
        let elected =
            current.iter().copied().max_by_key(|state| popularity(state)).ok_or("nobody to elect")?;
        let bytes = (elected.params.len() + elected.momentum.len()) as u64 * 4 + 8;
        self.revision = revision;
        let answer = |state: &OuterState| {
            let rx_bytes = if state == elected { 0 } else { bytes };
            Answer::Synced { revision, state: elected.clone(), traffic: Traffic { tx_bytes: 0, rx_bytes } }
        };
        Ok(votes.iter().map(|vote| answer(vote.1)).collect())
    }

    fn reduce(&mut self, votes: &[Vote]) -> Result<Vec<Answer>, String> {
        if votes.len() < 2 {
            return Ok(votes.iter().map(|_| Answer::Error(CommError::Alone)).collect());
        }
        let mut sum: Vec<f32> = Vec::new();
        for (vote, member) in votes.iter().zip(self.members.values_mut()) {
            let Vote::Reduce(values) = vote else { continue };
            if member.failed_values.take().is_some_and(|before| before != *values) {
                return Err("an all-reduce was tried again with other values".to_owned());
            }
            if sum.is_empty() {
                sum.clone_from(values);
            } else {
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        sum.iter_mut().for_each(|value| *value /= votes.len() as f32);
        Ok(votes.iter().map(|_| Answer::Reduced { values: sum.clone(), world: votes.len() }).collect())
    }
}

/// A peer; leaves the run when dropped.
pub(crate) struct SimPeer {
    cluster: Arc<Cluster>,
    id: u32,
    world: usize,
}

impl SimPeer {
    fn call(&mut self, vote: Vote) -> Result<Answer, CommError> {
        let mut state = self.cluster.state.lock();
        let Some(member) = state.members.get_mut(&self.id) else {
            return Err(CommError::Reconnect("not in the run".to_owned()));
        };
        member.vote = Some(vote);
        self.cluster.settle(&mut state);
        drop(state);
        let id = self.id;
        let (answer, world) =
            self.cluster.wait_until("an answer", |state| state.members.get_mut(&id)?.answer.take());
        self.world = world;
        if let Answer::Error(CommError::Fatal(_) | CommError::Reconnect(_)) = answer {
            self.leave();
        }
        match answer {
            Answer::Error(error) => Err(error),
            answer => Ok(answer),
        }
    }

    fn leave(&self) {
        let mut state = self.cluster.state.lock();
        state.members.remove(&self.id);
        state.pending.remove(&self.id);
        self.cluster.settle(&mut state);
    }
}

impl Drop for SimPeer {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Collective for SimPeer {
    fn connect(&mut self) -> Result<(), CommError> {
        let mut state = self.cluster.state.lock();
        state.pending.insert(self.id);
        self.cluster.settle(&mut state);
        drop(state);
        let id = self.id;
        self.world = self.cluster.wait_until("being let in", |state| {
            state.members.contains_key(&id).then_some(state.members.len())
        });
        Ok(())
    }

    fn world(&self) -> usize {
        self.world
    }

    fn update_topology(&mut self) -> Result<(), CommError> {
        self.call(Vote::Update).map(|_| ())
    }

    fn sync(&mut self, revision: u64, state: &mut OuterState) -> Result<SyncInfo, CommError> {
        match self.call(Vote::Sync { revision, state: state.clone() })? {
            Answer::Synced { revision, state: common, traffic } => {
                *state = common;
                Ok(SyncInfo { revision, traffic })
            }
            other => Err(CommError::Fatal(format!("{other:?}"))),
        }
    }

    fn all_reduce_avg(&mut self, values: &mut [f32]) -> Result<ReduceInfo, CommError> {
        match self.call(Vote::Reduce(values.to_vec()))? {
            Answer::Reduced { values: average, world } => {
                values.copy_from_slice(&average);
                Ok(ReduceInfo { world, traffic: Traffic { tx_bytes: 1, rx_bytes: 1 } })
            }
            other => Err(CommError::Fatal(format!("{other:?}"))),
        }
    }
}
