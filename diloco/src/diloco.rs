//! A member of a run, as a training loop sees it.

use crate::{
    Fragments, Outer, RoundReport, Settings, Stats,
    audit::Audit,
    board::{Board, Fate, Posted, State},
    rounds::Rounds,
    samples::{DataSet, Samples},
};
use parking_lot::MutexGuard;
use pccl::{Communicator, Error, SaveOptions};
use std::{
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Greatest weight of a step: sums of the weights of all members stay finite.
const MAX_STEP_WEIGHT: f64 = 1e15;

/// The work on the parameters before the next inner step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Hand in a fragment: [`DiLoCo::contribute`].
    Contribute {
        /// Which.
        fragment: usize,
    },
    /// Take over the result of a round: [`DiLoCo::land`].
    Land {
        /// Its fragment.
        fragment: usize,
    },
}

/// A member of a run: it takes inner steps, and its library makes the rounds with the others.
///
/// Dropping it leaves the run. See the [crate's documentation](crate).
#[derive(Debug)]
pub struct DiLoCo {
    comm: Arc<Communicator>,
    board: Arc<Board>,
    fragments: Fragments,
    overlap: u64,
    alpha: f32,
    /// The outer parameters to which the own ones are relative: those of the last landing of each fragment.
    base: Vec<f32>,
    rounds: Option<JoinHandle<()>>,
}

impl DiLoCo {
    /// Joins the run of `comm`, waits until there are `min_world` members, and puts the outer parameters into
    /// `parameters`. The first members begin with those of most of them. `comm` need not be connected; nobody else may
    /// use it from now on.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that make no sense or are not those of the run; `System` for a file that cannot
    /// be read; else as [`Communicator::run`].
    pub fn join(comm: Arc<Communicator>, settings: Settings, parameters: &mut [f32]) -> Result<Self, Error> {
        let fragments = settings.check(parameters.len())?;
        if let Some(bad) = parameters.iter().position(|value| !value.is_finite()) {
            return Err(Error::InvalidArgument(format!("parameter {bad} is not finite")));
        }
        let data_set = DataSet::of(&settings)?;
        let mut outer = Outer::new(parameters, data_set.map_or(Vec::new(), |data_set| data_set.words()));
        if let Some(path) = settings.resume.as_deref() {
            let mut state = outer.shared(0, &fragments)?;
            state.load(path).map_err(|error| error.into_error())?;
            comm.offer_resume(&state);
        }
        let audit = Audit::create(&settings, &fragments)?;
        let board = Arc::new(Board::new(settings.span(), &fragments, outer));
        board.lock().samples = data_set.map(Samples::new);
        let (overlap, alpha) = (u64::from(settings.overlap), settings.alpha());
        let rounds = Rounds::new(comm.clone(), board.clone(), settings, fragments.clone(), data_set, audit);
        let thread = thread::Builder::new()
            .name("pccl-diloco".to_owned())
            .spawn(move || rounds.run())
            .map_err(|error| Error::System(format!("no thread for the rounds: {error}").into()))?;
        let mut run =
            Self { comm, board, fragments, overlap, alpha, base: parameters.to_vec(), rounds: Some(thread) };
        run.wait_until_joined()?;
        run.load_outer(parameters)?;
        Ok(run)
    }

    fn wait_until_joined(&self) -> Result<(), Error> {
        let mut state = self.board.lock();
        while !state.joined {
            check_end(&state)?;
            self.board.wait(&mut state);
        }
        state.dirty.fill(false);
        state.pause_clock();
        Ok(())
    }

    /// An inner step has been made, which stands for `weight`, such as its tokens: does what is to be done with
    /// `parameters`. They are those that [`DiLoCo::join`] was given, after the inner step.
    ///
    /// It waits only for the result of an own contribution that was handed in `overlap` steps ago.
    ///
    /// # Errors
    /// `InvalidArgument` for a weight below 0 or above 1e15, for parameters that are not as many, and for a
    /// contribution that is not finite: the others go on without it, and its fragment is taken from the outer
    /// parameters. Otherwise the error that has ended the rounds; the member is out of the run then.
    pub fn step(&mut self, parameters: &mut [f32], weight: f64) -> Result<(), Error> {
        self.check_count(parameters.len())?;
        self.count(weight)?;
        let mut refused = None;
        while let Some(action) = self.next_action()? {
            match action {
                Action::Contribute { fragment } => {
                    let values = parameters.get(self.fragments.range(fragment)).unwrap_or_default();
                    refused = self.contribute(fragment, values).err().or(refused);
                }
                Action::Land { fragment } => {
                    self.land(
                        fragment,
                        parameters.get_mut(self.fragments.range(fragment)).unwrap_or_default(),
                    )?;
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Takes up to `most` samples to train on, as numbers within the data set of [`Settings::samples`]. None are left
    /// for now if the member has to wait for a round: go on with steps on none, of weight 0, until there are some or
    /// [`DiLoCo::samples_are_over`].
    pub fn take_samples(&mut self, most: u64) -> Vec<u64> {
        self.board.lock().samples.as_mut().map_or(Vec::new(), |samples| samples.take(most))
    }

    /// Before [`DiLoCo::step`], or [`DiLoCo::count`]: the step was on `count` samples, those that were taken first.
    /// They are counted by the round that its contribution is the first to be part of. If they do not belong to this
    /// member any more, since it was out of the run, what it has changed since then is dropped by that step.
    ///
    /// # Errors
    /// `InvalidArgument` if fewer were taken.
    pub fn count_samples(&mut self, count: u64) -> Result<(), Error> {
        let mut state = self.board.lock();
        let Some(samples) = &mut state.samples else {
            return Err(Error::InvalidArgument("the run counts no samples".to_owned()));
        };
        if samples.train(count)? {
            state.forget();
        }
        Ok(())
    }

    /// Samples that were taken, and that no step was made on yet.
    pub fn samples_outstanding(&self) -> u64 {
        self.board.lock().samples.as_ref().map_or(0, Samples::outstanding)
    }

    /// Whether each sample of each epoch is counted.
    pub fn samples_are_over(&self) -> bool {
        self.board.lock().samples.as_ref().is_some_and(Samples::is_over)
    }

    /// The samples that a round has counted, by all members; `None` for a round that this member was not in, or that is
    /// a thousand rounds ago.
    pub fn counted_samples(&self, round: u64) -> Option<Vec<u64>> {
        self.board.lock().samples.as_ref()?.counted(round)
    }

    /// The first part of [`DiLoCo::step`], for parameters that do not lie in one vector: counts an inner step. Then
    /// [`DiLoCo::next_action`] says what is to be done, until there is nothing more.
    ///
    /// # Errors
    /// As [`DiLoCo::step`].
    pub fn count(&mut self, weight: f64) -> Result<(), Error> {
        if !(0.0..=MAX_STEP_WEIGHT).contains(&weight) {
            return Err(Error::InvalidArgument(format!(
                "a step of weight {weight}: 0 to {MAX_STEP_WEIGHT:e}"
            )));
        }
        let mut state = self.board.lock();
        check_end(&state)?;
        state.count(weight);
        Ok(())
    }

    /// The work that is to be done before the next inner step; the same again until it is done. It may wait, see
    /// [`DiLoCo::step`].
    ///
    /// # Errors
    /// The error that has ended the rounds.
    pub fn next_action(&mut self) -> Result<Option<Action>, Error> {
        let mut state = self.board.lock();
        loop {
            check_end(&state)?;
            let is_last_chance = state.is_last_chance();
            let (since, overlap) = (state.since, self.overlap);
            let own = state.posted.as_ref().map(|posted| (posted.fragment, posted.fate));
            match own {
                Some((fragment, Fate::Counted)) if since >= overlap || is_last_chance => {
                    return Ok(Some(Action::Land { fragment }));
                }
                Some((_, Fate::Missed)) => {
                    // Its steps count for the next contribution.
                    state.posted = None;
                    continue;
                }
                _ => {}
            }
            let is_own = |fragment| own.is_some_and(|(own, _)| own == fragment);
            if let Some(fragment) = (0..state.dirty.len()).find(|it| state.dirty[*it] && !is_own(*it)) {
                return Ok(Some(Action::Land { fragment }));
            }
            match own {
                None if state.is_due() || (is_last_chance && state.since > 0) => {
                    return Ok(Some(Action::Contribute { fragment: state.fragment() }));
                }
                Some((_, Fate::Open)) if since >= overlap => {
                    let begun = Instant::now();
                    self.board.wait(&mut state);
                    state.pause_clock();
                    state.stats.waited += begun.elapsed();
                }
                _ => return Ok(None),
            }
        }
    }

    /// Hands in the parameters of a fragment, as [`DiLoCo::next_action`] has asked for.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not as many, or not finite, see [`DiLoCo::step`].
    pub fn contribute(&mut self, fragment: usize, parameters: &[f32]) -> Result<(), Error> {
        let base = self.base_of(fragment, parameters.len())?;
        let change: Vec<f32> = base.iter().zip(parameters).map(|(base, own)| base - own).collect();
        let bad = change.iter().position(|value| !value.is_finite());
        let mut state = self.board.lock();
        if state.fragment() != fragment || state.posted.is_some() {
            // The round was made meanwhile.
            return Ok(());
        }
        let weight =
            if bad.is_some() { 0.0 } else { state.weights.get(fragment).copied().unwrap_or_default() };
        let values = Arc::new(if bad.is_some() { Vec::new() } else { change });
        let round = state.rounds;
        let samples = state.samples.as_ref().map_or(0, Samples::trained);
        state.post(Posted { round, fragment, weight, values, samples, fate: Fate::Open });
        if bad.is_some() {
            state.take_again();
        }
        self.board.notify();
        bad.map_or(Ok(()), |bad| {
            let text = format!(
                "parameter {bad} of fragment {fragment} is not finite, so round {round} goes without it"
            );
            Err(Error::InvalidArgument(text))
        })
    }

    /// Takes over the result of one or more rounds of a fragment into the own parameters of that fragment.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not as many.
    pub fn land(&mut self, fragment: usize, parameters: &mut [f32]) -> Result<(), Error> {
        self.base_of(fragment, parameters.len())?;
        let (is_own, is_dropped) = {
            let mut state = self.board.lock();
            if let Some(dirty) = state.dirty.get_mut(fragment) {
                *dirty = false;
            }
            let was_reset = state.reset.get_mut(fragment).is_some_and(std::mem::take);
            let own = state.posted.take_if(|it| it.fragment == fragment && it.fate == Fate::Counted);
            let was_refused = own.as_ref().is_some_and(|posted| posted.values.is_empty());
            if was_refused {
                // So are the samples of the steps that were made meanwhile.
                state.take_again();
            }
            (own.is_some(), was_reset || was_refused)
        };
        let outer = self.board.outer.lock();
        let range = self.fragments.range(fragment);
        let outer = outer.parameters().get(range.clone()).unwrap_or_default();
        let base = self.base.get_mut(range).unwrap_or_default();
        for ((own, base), outer) in parameters.iter_mut().zip(base.iter()).zip(outer) {
            *own = match is_own {
                _ if is_dropped => *outer,
                true => self.alpha * *own + (1.0 - self.alpha) * outer,
                // Its own way from the outer parameters is not in the mean, and goes into the next contribution.
                false => *own + (outer - base),
            };
        }
        base.copy_from_slice(outer);
        Ok(())
    }

    fn base_of(&self, fragment: usize, length: usize) -> Result<&[f32], Error> {
        let range = self.fragments.range(fragment);
        if range.len() != length || range.is_empty() {
            let text = format!("{length} parameters for fragment {fragment}, which has {}", range.len());
            return Err(Error::InvalidArgument(text));
        }
        Ok(self.base.get(range).unwrap_or_default())
    }

    /// How far the run is, in inner steps of a member that misses none: `every / fragments` for each round, and the own
    /// steps since the last one. It is the same scale for members of every speed, and newcomers come in where the run
    /// is.
    pub fn step_index(&self) -> u64 {
        self.board.lock().step_index()
    }

    /// How the parameters are cut.
    pub fn fragments(&self) -> &Fragments {
        &self.fragments
    }

    /// Puts the outer parameters into `parameters`, and drops what the own ones have on top of them.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not as many.
    pub fn load_outer(&mut self, parameters: &mut [f32]) -> Result<(), Error> {
        self.check_count(parameters.len())?;
        let outer = self.board.outer.lock();
        self.base.copy_from_slice(outer.parameters());
        parameters.copy_from_slice(outer.parameters());
        Ok(())
    }

    fn check_count(&self, count: usize) -> Result<(), Error> {
        if count == self.fragments.elements() {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!("{count} parameters, not {}", self.fragments.elements())))
    }

    /// A copy of the outer state.
    pub fn outer(&self) -> Outer {
        self.board.outer.lock().clone()
    }

    /// Saves the outer state in one file, with the previous one kept until that is done. [`Settings::resume`] goes on
    /// from it.
    ///
    /// # Errors
    /// `System` if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        // Of a copy: rounds go on while it is written.
        let mut outer = self.outer();
        let rounds = outer.rounds();
        let state = outer.shared(rounds, &self.fragments)?;
        state.save(path, &SaveOptions::default()).map(drop).map_err(|error| error.into_error())
    }

    /// The reports of the rounds since the last call, the thousand newest at most.
    pub fn take_reports(&mut self) -> Vec<RoundReport> {
        self.board.lock().reports.drain(..).collect()
    }

    /// Sums over all rounds so far.
    pub fn stats(&self) -> Stats {
        let (rounds, weight) = {
            let outer = self.board.outer.lock();
            (outer.rounds(), outer.weight())
        };
        Stats { rounds, weight, ..self.board.lock().stats }
    }

    /// Waits until the own contribution that is on its way has become part of a round, `within` at most, puts the outer
    /// parameters into `parameters`, and leaves the run.
    ///
    /// # Errors
    /// `InvalidArgument` if the parameters are not as many. The error that has ended the rounds before; the parameters
    /// are the outer ones all the same.
    pub fn finish(&mut self, parameters: &mut [f32], within: Option<Duration>) -> Result<(), Error> {
        self.check_count(parameters.len())?;
        let ended = self.wait_for_round(within);
        self.leave();
        self.load_outer(parameters)?;
        ended
    }

    fn wait_for_round(&self, within: Option<Duration>) -> Result<(), Error> {
        let deadline = within.and_then(|within| Instant::now().checked_add(within));
        let mut state = self.board.lock();
        // After the last sample, others may be gone already.
        let is_open = |state: &State| {
            let is_over = state.samples.as_ref().is_some_and(Samples::is_over);
            !is_over && state.posted.as_ref().is_some_and(|posted| posted.fate == Fate::Open)
        };
        while is_open(&state) {
            check_end(&state)?;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                log::warn!("the last contribution is not part of a round after {within:?}, and is given up");
                break;
            }
            self.board.wait_until(&mut state, deadline);
        }
        Ok(())
    }

    /// Leaves the run at once.
    fn leave(&mut self) {
        self.board.lock().stopping = true;
        self.board.notify();
        self.comm.close();
        if let Some(thread) = self.rounds.take() {
            let _ = thread.join();
        }
        // A contribution that is not part of a round now never will be.
        self.board.lock().posted = None;
    }
}

impl Drop for DiLoCo {
    fn drop(&mut self) {
        self.leave();
    }
}

fn check_end(state: &MutexGuard<'_, State>) -> Result<(), Error> {
    match &state.end {
        Some(Err(error)) => Err(error.clone()),
        Some(Ok(())) => Err(Error::NotConnected),
        None => Ok(()),
    }
}
