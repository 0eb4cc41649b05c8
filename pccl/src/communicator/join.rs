//! Reaching the master: one attempt after the other, until one succeeds, the time is over, or somebody closes.

use super::Communicator;
use crate::{
    ConnectCause, Error, Reason,
    config::Config,
    session::{Refused, Session},
};
use parking_lot::{Condvar, Mutex};
use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

/// How long one attempt may take. Then the next one begins: the name may have another address by then, and a first
/// packet that was lost is not waited for any longer.
const ATTEMPT: Duration = Duration::from_secs(10);
/// The same where several masters are tried one after the other.
const ATTEMPT_OF_SEVERAL: Duration = Duration::from_secs(3);
/// The pause after the first attempt; each is twice as long as the one before, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// See [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long a peer tries without a warning.
const FIRST_WARNING: Duration = Duration::from_secs(5);
/// The time between two warnings.
const NEXT_WARNING: Duration = Duration::from_secs(30);

/// Lets one thread at a time reach for the master, and others call it back.
#[derive(Debug, Default)]
pub(super) struct Door {
    state: Mutex<DoorState>,
    called_back: Condvar,
}

#[derive(Debug, Default)]
struct DoorState {
    taken: bool,
    call_backs: u64,
}

impl Door {
    /// Ends the attempts of the callers that are at it; they fail with `NotConnected`.
    pub(super) fn call_back(&self) {
        self.state.lock().call_backs += 1;
        self.called_back.notify_all();
    }

    /// How often somebody has called back.
    pub(super) fn call_backs(&self) -> u64 {
        self.state.lock().call_backs
    }

    /// Waits, unless there are more than `call_backs`.
    pub(super) fn pause_for(&self, time: Duration, call_backs: u64) -> Result<(), Error> {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while state.call_backs == call_backs {
            if self.called_back.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        if state.call_backs == call_backs { Ok(()) } else { Err(Error::NotConnected) }
    }

    /// The next pause of somebody who is patient.
    pub(super) fn pause(&self, patience: &mut Patience, call_backs: u64) -> Result<(), Error> {
        let pause = patience.next_pause(Instant::now(), chance()).unwrap_or(LONGEST_PAUSE);
        self.pause_for(pause, call_backs)
    }

    /// Begins to reach for the master.
    pub(super) fn enter(&self) -> Result<AtDoor<'_>, Error> {
        let mut state = self.state.lock();
        if state.taken {
            return Err(Error::InvalidUsage("another thread connects already".into()));
        }
        state.taken = true;
        Ok(AtDoor { door: self, call_backs: state.call_backs })
    }
}

/// The thread that connects.
pub(super) struct AtDoor<'a> {
    door: &'a Door,
    /// How many there were when it began.
    call_backs: u64,
}

impl AtDoor<'_> {
    /// How often somebody had called back when it began.
    pub(super) fn call_backs(&self) -> u64 {
        self.call_backs
    }

    /// Refuses to go on after somebody has closed.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.door.state.lock().call_backs == self.call_backs { Ok(()) } else { Err(Error::NotConnected) }
    }

    /// Waits, unless somebody closes.
    fn pause(&self, time: Duration) -> Result<(), Error> {
        self.door.pause_for(time, self.call_backs)
    }
}

impl Drop for AtDoor<'_> {
    fn drop(&mut self) {
        self.door.state.lock().taken = false;
    }
}

/// How long the next pause is, and when it is time for a warning.
#[derive(Debug)]
pub(super) struct Patience {
    since: Instant,
    limit: Duration,
    pause: Duration,
    warn_after: Duration,
}

impl Patience {
    pub(super) fn new(now: Instant, limit: Duration) -> Self {
        Self { since: now, limit, pause: FIRST_PAUSE, warn_after: FIRST_WARNING }
    }

    /// Of somebody who never gives up.
    pub(super) fn endless(now: Instant) -> Self {
        Self::new(now, Duration::from_secs(u64::from(u32::MAX)))
    }

    /// The same, of somebody who says so at once.
    pub(super) fn endless_and_loud(now: Instant) -> Self {
        Self { warn_after: Duration::ZERO, ..Self::endless(now) }
    }

    /// When an attempt that begins now, and takes no longer than this, has to be over.
    fn deadline(&self, now: Instant, most: Duration) -> Instant {
        (self.since + self.limit).min(now + most)
    }

    /// The pause before the next attempt; none if there is no time for one. `chance` is of 0 to 255: peers that have
    /// lost the same master do not come back in step.
    pub(super) fn next_pause(&mut self, now: Instant, chance: u8) -> Option<Duration> {
        let left = (self.since + self.limit).saturating_duration_since(now);
        let pause = self.pause.mul_f64(0.75 + f64::from(chance) / 512.0);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        (!left.is_zero()).then(|| pause.min(left))
    }

    /// The seconds so far, if it is time to say that it takes long.
    pub(super) fn warning(&mut self, now: Instant) -> Option<u64> {
        let waited = now.saturating_duration_since(self.since);
        if waited < self.warn_after {
            return None;
        }
        self.warn_after = waited + NEXT_WARNING;
        Some(waited.as_secs())
    }
}

/// Anything from 0 to 255.
pub(super) fn chance() -> u8 {
    RandomState::new().hash_one(0).to_le_bytes()[0]
}

impl Communicator {
    /// Registers with the master, which may not be there yet; `ahead` as in [`Config`].
    pub(super) fn reach(
        &self,
        at: &AtDoor<'_>,
        ahead: bool,
        mut patience: Patience,
    ) -> Result<Session, Error> {
        let (name, keys) = (&self.config.run_name, &self.config.run_keys);
        name.check_key(keys.is_some()).map_err(Error::InvalidArgument)?;
        let limit = patience.limit;
        let previous = self.previous.lock().clone();
        let config = Config { offer: *self.offer.lock(), ahead, ..self.config.clone() };
        loop {
            let masters = self.config.masters.all();
            // An error from each of several masters names it.
            let wanted = match masters.as_slice() {
                [master] => format!("at {master}"),
                several => format!("at one of {} places", several.len()),
            };
            // A machine that is gone says nothing.
            let most = if masters.len() > 1 { ATTEMPT_OF_SEVERAL } else { ATTEMPT };
            let mut reasons: Option<Reason<ConnectCause>> = None;
            let mut refused = None;
            for place in masters {
                at.check()?;
                let deadline = patience.deadline(Instant::now(), most);
                let config = Config { master: place.clone(), ..config.clone() };
                let kept = (self.flight.clone(), self.figures.clone());
                let reason = match Session::connect(config, previous.clone(), kept, deadline) {
                    Ok(session) => {
                        self.config.masters.note_acting(&place);
                        return Ok(session);
                    }
                    // Of several masters another one may be the right one.
                    Err(Refused::ForGood(Error::Refused(reason))) => {
                        refused = Some(reason);
                        continue;
                    }
                    Err(Refused::ForGood(error)) => return Err(error),
                    Err(Refused::Elsewhere(acting, reason)) => {
                        self.config.masters.note(acting);
                        reason
                    }
                    Err(Refused::ForNow(reason)) => reason,
                };
                reasons = Some(match reasons {
                    Some(before) => reason.say(|text| format!("{}; {text}", before)),
                    None => reason,
                });
            }
            let reason = match (reasons, refused) {
                (Some(reason), _) => reason,
                (None, Some(refused)) => return Err(Error::Refused(refused)),
                (None, None) => return Err(Error::NotConnected),
            };
            let now = Instant::now();
            let Some(pause) = patience.next_pause(now, chance()) else {
                return Err(Error::ConnectFailed(reason.say(|text| format!("{text} (tried for {limit:?})"))));
            };
            log::debug!("next attempt in {pause:?}: {reason}");
            if let Some(waited) = patience.warning(now) {
                log::warn!("waiting for the master {wanted} for {waited} s, of {limit:?} at most: {reason}");
            }
            at.pause(pause)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_to_a_bound_and_end_with_the_time() {
        let start = Instant::now();
        let mut patience = Patience::new(start, 10 * SECOND);
        let pauses: Vec<_> =
            (0..7).map(|_| patience.next_pause(start, 128).expect("time").as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
        let late = patience.next_pause(start + 9 * SECOND, 255);
        assert_eq!(late, Some(SECOND));
        assert_eq!(patience.next_pause(start + 10 * SECOND, 0), None);
        assert_eq!(patience.deadline(start, ATTEMPT), start + 10 * SECOND);
        let patience = Patience::new(start, 60 * SECOND);
        assert_eq!(patience.deadline(start + SECOND, ATTEMPT), start + 11 * SECOND);
    }

    #[test]
    fn peers_do_not_come_back_in_step() {
        let of = |chance| Patience::new(Instant::now(), SECOND).next_pause(Instant::now(), chance);
        assert!(of(0) < of(100) && of(100) < of(255));
        assert!((0..64).map(|_| chance()).any(|one| one != chance()));
    }

    #[test]
    fn warnings_are_rare() {
        let start = Instant::now();
        let mut patience = Patience::new(start, 100 * SECOND);
        let warned: Vec<u64> = (0..100).filter_map(|at| patience.warning(start + at * SECOND)).collect();
        assert_eq!(warned, [5, 35, 65, 95]);
    }

    #[test]
    fn who_is_loud_says_so_at_once_and_then_now_and_then() {
        let start = Instant::now();
        let mut patience = Patience::endless_and_loud(start);
        let warned: Vec<u64> = (0..70).filter_map(|at| patience.warning(start + at * SECOND)).collect();
        assert_eq!(warned, [0, 30, 60]);
    }

    #[test]
    fn whoever_closes_ends_the_pause_of_whoever_connects() {
        let door = Door::default();
        let at = door.enter().expect("nobody is there");
        assert!(matches!(door.enter(), Err(Error::InvalidUsage(_))));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| at.pause(Duration::from_secs(600)));
            door.call_back();
            assert_eq!(waits.join().expect("no panic"), Err(Error::NotConnected));
        });
        drop(at);
        assert_eq!(door.enter().expect("nobody is there").check(), Ok(()));
    }
}
