//! Going on after a failure: what the remedy of an error asks for, and the loop around the steps of a training.

use super::{
    Communicator,
    join::{Patience, chance},
};
use crate::{Error, Remedy};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Fewest peers of an all-reduce.
const COMPANY: usize = 2;

/// How long those wait for each other whose attempt has failed, to let newcomers in. All have learnt it at one moment.
const MEETING: Duration = Duration::from_secs(1);

impl Communicator {
    /// Makes steps of a training for as long as `more` says so, and makes good what fails: connects (first of all,
    /// too), waits for peers, or has the step made again. Before each step it waits until the run has at least `peers`
    /// peers; 2 is right for most, and all peers have to give the same number. A step begins with
    /// [`Communicator::sync_shared_state`] and ends with letting in the peers that wait; the front page has one.
    ///
    /// A step changes the shared state only after its last reduce. **Whatever else a failed try has changed stays
    /// changed**, such as gradients that add up, counters, random generators and optimisers outside of the
    /// shared state: the step puts it back when it begins.
    ///
    /// Each failure is logged as a warning. Failures in a row have pauses of up to 2 s between them. `more` is asked
    /// before anything is made good, so a peer whose last step was cut short by the end of the run ends as well.
    ///
    /// # Errors
    /// Of a step, if its remedy is to give up. `ConnectFailed` if the master could not be reached for
    /// `connect_timeout`; `Kicked` or `MasterLost` if that happened again and again for that long; the error of a step
    /// that was under way, or `NotConnected`, when another thread has called [`Communicator::close`].
    pub fn run<S>(
        &self,
        state: &mut S,
        peers: usize,
        more: impl Fn(&S) -> bool,
        step: impl FnMut(&Self, &mut S) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.run_by(state, peers, more, step, |comm, _| comm.connect())
    }

    /// The loop, with the way in which this peer connects.
    pub(super) fn run_by<S>(
        &self,
        state: &mut S,
        peers: usize,
        more: impl Fn(&S) -> bool,
        mut step: impl FnMut(&Self, &mut S) -> Result<(), Error>,
        mut connect: impl FnMut(&Self, &mut S) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let closes = self.door.call_backs();
        let mut failure = (!self.has_session()).then_some(Error::NotConnected);
        let mut failures: Option<Patience> = None;
        while more(state) {
            if let Some(error) = failure.take() {
                match &mut failures {
                    // The verdict has taken its time.
                    None => failures = Some(Patience::endless(Instant::now())),
                    Some(patience) => self.door.pause(patience, closes)?,
                }
                let remedy = self.remedy_of(&error)?;
                self.make_good_by(remedy, peers, || connect(self, state))?;
            }
            match self.wait_for_company(peers).and_then(|()| step(self, state)) {
                Ok(()) => failures = None,
                Err(error) if error.remedy().is_for_callers() || self.door.call_backs() != closes => {
                    return Err(error);
                }
                Err(error) => {
                    match error.is_logged() {
                        true => log::info!("the step is made again"),
                        false => log::warn!("a step failed: {error}"),
                    }
                    failure = Some(error);
                }
            }
        }
        Ok(())
    }

    /// Does what the remedy of an error asks for, so that the step in which it happened can be made again, from its
    /// sync on: nothing, a wait for peers, or [`Communicator::connect`] and a wait for peers. After a failure of an
    /// edge, which may fail in the next attempt too, it lets in the peers that wait, if the others come here within a
    /// second. If that fails, what that failure asks for is done. For loops that [`Communicator::run`] does not fit.
    /// One thread at a time may recover, and no all-reduce may be in flight.
    ///
    /// `peers` is how many there have to be, at least; 2 is right for most. A larger number is for loops in which all
    /// peers wait for as many before each step.
    ///
    /// ```no_run
    /// # use pccl::{Communicator, Error, ReduceOp};
    /// # let comm = Communicator::builder("127.0.0.1:48148").build()?;
    /// # let step = || comm.all_reduce(&mut [1.0_f32; 4], ReduceOp::Sum);
    /// let (mut steps, mut failure) = (0, Some(Error::NotConnected));
    /// while steps < 10 {
    ///     if let Some(error) = failure.take() {
    ///         comm.recover(&error, 2)?;
    ///     }
    ///     match step() {
    ///         Ok(_) => steps += 1,
    ///         Err(error) => failure = Some(error),
    ///     }
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// The error itself, if its remedy is to give up. Otherwise as [`Communicator::run`].
    pub fn recover(&self, error: &Error, peers: usize) -> Result<(), Error> {
        self.make_good(self.remedy_of(error)?, peers)
    }

    /// The remedy of an error, if the library has it.
    fn remedy_of(&self, error: &Error) -> Result<Remedy, Error> {
        match error.remedy() {
            Remedy::GiveUp | Remedy::FormGroup => Err(error.clone()),
            remedy => Ok(remedy),
        }
    }

    /// [`Communicator::recover`] for who has only the remedy of an error, such as interfaces of other languages.
    /// `Reconnect` connects only if that is needed, so it may also begin a loop.
    ///
    /// # Errors
    /// As [`Communicator::recover`]; `InvalidUsage` for `GiveUp`.
    pub fn make_good(&self, remedy: Remedy, peers: usize) -> Result<(), Error> {
        self.make_good_by(remedy, peers, || self.connect())
    }

    /// As [`Communicator::make_good`], with the way in which this peer connects.
    pub(super) fn make_good_by(
        &self,
        remedy: Remedy,
        peers: usize,
        mut connect: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let closes = self.door.call_backs();
        let limit = self.config.settings.connect_timeout;
        let (mut remedy, mut failures, mut last) =
            (remedy, Patience::new(Instant::now(), limit), Instant::now());
        loop {
            let Err(error) = self.attempt(remedy, peers, &mut connect) else { return Ok(()) };
            if self.door.call_backs() != closes {
                return Err(Error::NotConnected);
            }
            remedy = error.remedy();
            // Reaching the master was tried for as long as it may take.
            if remedy.is_for_callers() || matches!(error, Error::ConnectFailed(_)) {
                return Err(error);
            }
            // An error after a long time of peace is another failure.
            if last.elapsed() > limit {
                failures = Patience::new(Instant::now(), limit);
            }
            last = Instant::now();
            log::warn!("trying again: {error}");
            let Some(pause) = failures.next_pause(last, chance()) else { return Err(error) };
            self.door.pause_for(pause, closes)?;
        }
    }

    fn attempt(
        &self,
        remedy: Remedy,
        peers: usize,
        connect: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        match remedy {
            Remedy::Retry => self.let_in_beside_an_edge(),
            Remedy::WaitForPeers => {
                // Asks the master in any case: what this peer knows of the world may be older than the failure.
                self.wait_for_world(peers.max(self.world().min_world_size), None)?;
                self.let_group_grow()
            }
            Remedy::Reconnect => {
                if !self.has_session() {
                    connect()?;
                }
                self.wait_for_company(peers)
            }
            Remedy::GiveUp => Err(Error::InvalidUsage("there is no way to make this failure good".into())),
            Remedy::FormGroup => {
                Err(Error::InvalidUsage("only the program knows whom to form a group of".into()))
            }
        }
    }

    /// Waits for other peers if there are fewer than `peers`, or fewer than the master wants.
    fn wait_for_company(&self, peers: usize) -> Result<(), Error> {
        self.shared()?;
        let world = self.world();
        let wanted = peers.max(world.min_world_size);
        if world.global_size >= wanted {
            return Ok(());
        }
        self.wait_for_world(wanted, None).map(drop)
    }

    /// An edge that failed may fail again in each attempt, and newcomers are let in at the ends of steps only: so they
    /// are let in now, if the others of the run come here as well.
    fn let_in_beside_an_edge(&self) -> Result<(), Error> {
        if !self.edge_failed.swap(false, Ordering::Relaxed) || self.config.settings.formed_groups {
            return Ok(());
        }
        // An operation of another thread keeps this one from letting somebody in.
        if self.shared()?.calls.activity().in_flight() > 0 {
            return Ok(());
        }
        let pending = self.are_peers_pending_within(Some(MEETING));
        match pending
            .and_then(|is_so| if is_so { self.update_topology_within(Some(MEETING)) } else { Ok(()) })
        {
            Err(Error::TimedOut { .. }) => Ok(()),
            other => other,
        }
    }

    /// Where the world is large enough and the own group is not, or where all of the group need a newer state: takes
    /// part in letting in the peers that wait, as the other groups do at the ends of their steps.
    fn let_group_grow(&self) -> Result<(), Error> {
        let lacks_state = self.lacks_state.swap(false, Ordering::Relaxed);
        if (lacks_state || self.world().group_size < COMPANY) && self.are_peers_pending()? {
            return self.update_topology();
        }
        if lacks_state { self.pause_without_state() } else { Ok(()) }
    }

    /// Nobody is there who could bring the newest state: the next sync will fail like the last one until somebody comes
    /// or an operator decides. So it is not made at once, and a person is told what there is to do.
    fn pause_without_state(&self) -> Result<(), Error> {
        let (closes, now) = (self.door.call_backs(), Instant::now());
        let mut lack = self.lack.lock();
        let patience = lack.get_or_insert_with(|| Patience::endless_and_loud(now));
        if let Some(waited) = patience.warning(now) {
            let detail = self.last_verdict().map_or_else(String::new, |verdict| verdict.detail.to_string());
            log::warn!("waiting for the newest shared state, for {waited} s so far: {detail}");
        }
        let pause = patience.next_pause(now, chance()).unwrap_or_default();
        drop(lack);
        self.door.pause_for(pause, closes)
    }

    /// Whether there is a session that has not ended.
    fn has_session(&self) -> bool {
        self.shared().is_ok()
    }
}
