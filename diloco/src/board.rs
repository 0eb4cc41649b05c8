//! The news between the thread that trains and the thread that makes the rounds.

use crate::{
    Fragments, Outer, RoundReport, Stats,
    readiness::Record,
    samples::{News, Samples},
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pccl::Error;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// Reports that are kept until the caller takes them.
const MAX_REPORTS: usize = 1000;
/// Steps whose median is the time of a step: one that is followed by an evaluation does not change it.
const MEDIAN_OF: usize = 9;

/// The end of a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its round is not over.
    Open,
    /// It is part of a mean.
    Counted,
    /// The round was made without it.
    Missed,
}

/// A contribution.
#[derive(Debug, Clone)]
pub(crate) struct Posted {
    pub(crate) round: u64,
    pub(crate) fragment: usize,
    pub(crate) weight: f64,
    /// Empty if it was refused.
    pub(crate) values: Arc<Vec<f32>>,
    /// Samples that it was trained on, the first ones that the member holds.
    pub(crate) samples: u64,
    pub(crate) fate: Fate,
}

/// The content of the board.
#[derive(Debug)]
pub(crate) struct State {
    /// Inner steps between two rounds.
    span: u64,
    fragments: Fragments,
    /// Inner steps since the last contribution.
    pub(crate) since: u64,
    /// The weight of the steps since the last contribution of each fragment.
    pub(crate) weights: Vec<f64>,
    /// The times of the last steps.
    step_times: VecDeque<Duration>,
    last_step: Option<Instant>,
    pub(crate) posted: Option<Posted>,
    /// A round, and when a quorum for it is ready.
    quorum_at: Option<(u64, Instant)>,
    /// Fragments with results that the caller has not taken over.
    pub(crate) dirty: Vec<bool>,
    /// Of those, fragments whose own changes are to be dropped.
    pub(crate) reset: Vec<bool>,
    /// The samples of this member, if the run counts them.
    pub(crate) samples: Option<Samples>,
    pub(crate) rounds: u64,
    pub(crate) joined: bool,
    pub(crate) stopping: bool,
    /// Set when the thread of the rounds has ended.
    pub(crate) end: Option<Result<(), Error>>,
    pub(crate) reports: VecDeque<RoundReport>,
    pub(crate) stats: Stats,
    /// Grows with all that the thread of the rounds may wait for.
    events: u64,
}

impl State {
    /// An inner step of this weight has been made.
    pub(crate) fn count(&mut self, weight: f64) {
        let now = Instant::now();
        if let Some(last) = self.last_step.replace(now) {
            if self.step_times.len() == MEDIAN_OF {
                self.step_times.pop_front();
            }
            self.step_times.push_back(now - last);
        }
        self.since += 1;
        self.weights.iter_mut().for_each(|sum| *sum += weight);
    }

    /// The time of a step; `None` before there are two.
    fn step_time(&self) -> Option<Duration> {
        let mut times: Vec<_> = self.step_times.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    /// The time from now on is not that of a step.
    pub(crate) fn pause_clock(&mut self) {
        self.last_step = Some(Instant::now());
    }

    pub(crate) fn is_due(&self) -> bool {
        self.since >= self.span
    }

    /// Whether the next round begins before another inner step would be over.
    pub(crate) fn is_last_chance(&self) -> bool {
        self.quorum_at.is_some_and(|(round, at)| {
            round == self.rounds && at <= Instant::now() + self.step_time().unwrap_or_default()
        })
    }

    /// The round that is next, as the caller counts: behind the one that its contribution waits for.
    pub(crate) fn step_index(&self) -> u64 {
        let waits = self.posted.as_ref().is_some_and(|posted| posted.fate == Fate::Open);
        self.span * (self.rounds + u64::from(waits)) + self.since.min(self.span.saturating_sub(1))
    }

    pub(crate) fn fragment(&self) -> usize {
        self.fragments.of_round(self.rounds)
    }

    /// The contribution to the round that is next.
    pub(crate) fn contribution(&self) -> Option<&Posted> {
        self.posted.as_ref().filter(|posted| posted.round == self.rounds && posted.fate == Fate::Open)
    }

    pub(crate) fn post(&mut self, posted: Posted) {
        self.posted = Some(posted);
        self.since = 0;
        self.events += 1;
    }

    /// Drops all changes that inner steps have made since the last contribution: they must not count.
    pub(crate) fn forget(&mut self) {
        self.dirty.fill(true);
        self.reset.fill(true);
        self.weights.fill(0.0);
        self.posted = None;
        self.since = 0;
    }

    /// Parameters learned from samples are not finite: the samples are taken again. The contribution that says so
    /// stays.
    pub(crate) fn take_again(&mut self) {
        if let Some(samples) = &mut self.samples {
            samples.forget();
            let posted = self.posted.take();
            self.forget();
            self.posted = posted;
        }
    }

    fn hear(&mut self, news: Option<News>) {
        if let (Some(samples), Some(news)) = (&mut self.samples, news)
            && samples.hear(news)
        {
            self.forget();
        }
    }

    fn record(&self) -> Record {
        let step_ms =
            self.step_time().map_or(0, |time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1));
        let posted = self.contribution();
        let left = u32::try_from(self.span.saturating_sub(self.since)).unwrap_or(u32::MAX);
        Record {
            rounds: self.rounds,
            weight: posted.map_or(0.0, |posted| posted.weight),
            step_ms,
            due_in_ms: if posted.is_some() || left == 0 { 0 } else { left.saturating_mul(step_ms).max(1) },
            ready: posted.is_some(),
            refused: posted.is_some_and(|posted| posted.values.is_empty()),
            samples_used: posted.map_or(0, |posted| posted.samples),
            ..Record::default()
        }
    }

    /// The outer state has seen `rounds` rounds; the contribution has become `fate`, if one of them was its round.
    fn advance(&mut self, rounds: u64, fate: Fate) {
        self.rounds = rounds;
        if let Some(posted) = self.posted.as_mut().filter(|it| it.fate == Fate::Open && it.round < rounds) {
            posted.fate = fate;
            if fate == Fate::Counted
                && let Some(sum) = self.weights.get_mut(posted.fragment)
            {
                *sum = (*sum - posted.weight).max(0.0);
            }
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Board {
    state: Mutex<State>,
    changed: Condvar,
    /// Outer parameters and momentum. Never locked together with `state`.
    pub(crate) outer: Mutex<Outer>,
}

impl Board {
    pub(crate) fn new(span: u64, fragments: &Fragments, outer: Outer) -> Self {
        let count = fragments.count();
        let state = State {
            span,
            fragments: fragments.clone(),
            since: 0,
            weights: vec![0.0; count],
            step_times: VecDeque::new(),
            last_step: None,
            posted: None,
            quorum_at: None,
            dirty: vec![false; count],
            reset: vec![false; count],
            samples: None,
            rounds: outer.rounds(),
            joined: false,
            stopping: false,
            end: None,
            reports: VecDeque::new(),
            stats: Stats::default(),
            events: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), outer: Mutex::new(outer) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until the other thread has changed something.
    pub(crate) fn wait(&self, state: &mut MutexGuard<'_, State>) {
        self.changed.wait(state);
    }

    /// As [`Board::wait`], for no longer than until `deadline`.
    pub(crate) fn wait_until(&self, state: &mut MutexGuard<'_, State>, deadline: Option<Instant>) {
        match deadline {
            Some(deadline) => drop(self.changed.wait_until(state, deadline)),
            None => self.changed.wait(state),
        }
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// For the thread of the rounds: the record of this member, and the contribution that it speaks of.
    pub(crate) fn record(&self) -> (Record, Option<Posted>) {
        let state = self.lock();
        (state.record(), state.contribution().cloned())
    }

    /// For the thread of the rounds: waits until the caller hands in something, or `time` is over.
    pub(crate) fn wait_for_caller(&self, time: Duration, quorum_in: Option<Duration>) {
        let deadline = Instant::now() + time;
        let mut state = self.lock();
        state.quorum_at = quorum_in.map(|it| (state.rounds, Instant::now() + it));
        let seen = state.events;
        while !state.stopping
            && state.events == seen
            && !self.changed.wait_until(&mut state, deadline).timed_out()
        {}
    }

    /// A round is over, and all members have it. `counted`: with the own contribution. Returns the sums with it.
    pub(crate) fn finish_round(&self, report: RoundReport, counted: bool, samples: Option<News>) -> Stats {
        let mut state = self.lock();
        state.hear(samples);
        state.advance(report.round + 1, if counted { Fate::Counted } else { Fate::Missed });
        if let Some(dirty) = state.dirty.get_mut(report.fragment) {
            *dirty = true;
        }
        let stats = &mut state.stats;
        stats.rounds_here += 1;
        stats.contributed += u64::from(counted);
        stats.stood_in += u64::from(!counted);
        stats.sent_bytes += report.sent_bytes;
        stats.plain_bytes += report.plain_bytes;
        stats.exchange += report.exchange;
        if state.reports.len() == MAX_REPORTS {
            state.reports.pop_front();
        }
        state.reports.push_back(report);
        self.notify();
        state.stats
    }

    /// The outer state is one that others have handed over. `counted`: the own contribution is part of it.
    pub(crate) fn take_over(&self, rounds: u64, counted: bool, samples: Option<News>) {
        let mut state = self.lock();
        state.hear(samples);
        state.joined = true;
        if state.rounds != rounds {
            state.dirty.fill(true);
            state.advance(rounds, if counted { Fate::Counted } else { Fate::Missed });
        }
        self.notify();
    }
}
