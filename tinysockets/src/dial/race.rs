//! Several addresses of somebody, tried beside each other (RFC 8305): the next one a quarter of a second after the one
//! before, or as soon as that has failed. The first that connects to the target that is meant wins, and the others are
//! closed.
//!
//! Another machine may have one of the addresses, in another network: it refuses the preamble, or says nothing. So the
//! first connection that stands is not the end of the race. But a preamble goes over one connection at a time: the far
//! end takes each as meant, and must not take one that is about to be closed. A far end that does not answer it in good
//! time gives way to the next connection that stands, and has its turn again later.
//!
//! A race never blocks, so that one thread can run many of them.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{
    DialError,
    attempt::{Attempt, Step},
    error::not_connected,
};
use crate::{
    address::HostPort, conn::Conn, key::SecretKey, place::Place, preamble::Preamble, sys::PollEntry,
};

/// From the begin of one attempt to that of the next.
pub(super) const PAUSE: Duration = Duration::from_millis(250);
/// Time for an answer to a preamble, beside four round trips, after which another connection has its turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// The beginning of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Greeting<'a> {
    pub(crate) preamble: Hello<'a>,
    pub(crate) key: Option<&'a SecretKey>,
}

/// The preamble of a connection.
#[derive(Clone, Copy)]
pub(crate) enum Hello<'a> {
    /// The same whatever the connection is like.
    Fixed(&'a Preamble),
    /// One that goes by the connection.
    Fitting(&'a dyn Fn(&Conn) -> Preamble),
}

impl Hello<'_> {
    fn over(self, conn: &Conn) -> Preamble {
        match self {
            Self::Fixed(preamble) => *preamble,
            Self::Fitting(fit) => fit(conn),
        }
    }
}

/// An address, and whether this is its last turn.
#[derive(Debug, Clone, Copy)]
struct Lane {
    address: SocketAddr,
    is_last: bool,
}

struct Runner {
    lane: Lane,
    attempt: Attempt,
    /// When another one may have its turn, once the preamble has been sent.
    patient_until: Instant,
}

/// See the module's documentation.
pub(crate) struct Race<'a> {
    place: &'a Place,
    greeting: Option<Greeting<'a>>,
    /// There is only one address.
    is_single: bool,
    waiting: VecDeque<Lane>,
    /// In the order in which they began.
    running: Vec<Runner>,
    next_at: Instant,
    deadline: Instant,
    vain: Vec<DialError>,
    /// This machine could not even begin an attempt.
    lacks: bool,
}

impl<'a> Race<'a> {
    /// To these addresses in this order, of which there is at least one.
    pub(crate) fn new(
        place: &'a Place,
        addresses: Vec<SocketAddr>,
        greeting: Option<Greeting<'a>>,
        deadline: Instant,
    ) -> Self {
        let is_single = addresses.len() == 1;
        let waiting = addresses.into_iter().map(|address| Lane { address, is_last: false }).collect();
        Self {
            place,
            greeting,
            is_single,
            waiting,
            running: Vec::new(),
            next_at: Instant::now(),
            deadline,
            vain: Vec::new(),
            lacks: false,
        }
    }

    /// Over one connection that stands.
    pub(super) fn over(conn: Conn, place: &'a Place, greeting: Greeting<'a>, deadline: Instant) -> Self {
        let mut race = Self::new(place, Vec::new(), Some(greeting), deadline);
        race.is_single = true;
        match conn.peer_addr() {
            Ok(address) => race.running.push(Runner {
                lane: Lane { address, is_last: true },
                attempt: Attempt::of(conn),
                patient_until: deadline,
            }),
            Err(error) => race.vain.push(super::attempt::no_answer(&place.target, error)),
        }
        race
    }

    /// The target that is meant.
    pub(crate) const fn target(&self) -> &HostPort {
        &self.place.target
    }

    /// Attempts that are under way.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether this machine lacked something for an attempt: then its failure says nothing about the other one.
    pub(crate) const fn lacks(&self) -> bool {
        self.lacks
    }

    /// The entries to wait for.
    pub(crate) fn poll_entries(&self) -> impl Iterator<Item = PollEntry<'_>> {
        self.running.iter().map(|runner| runner.attempt.poll_entry())
    }

    /// When it has to be looked at at the latest; `has_room`: whether another attempt may begin.
    pub(crate) fn wakes_at(&self, now: Instant, has_room: bool) -> Instant {
        let patient = self.greeting_runner().map(|runner| runner.patient_until).filter(|until| *until > now);
        let next = (has_room && !self.waiting.is_empty())
            .then(|| patient.map_or(self.next_at, |until| until.max(self.next_at)));
        patient.into_iter().chain(next).fold(self.deadline, Instant::min)
    }

    /// Does what can be done now. `ready` says which of the [entries](Self::poll_entries) are.
    pub(crate) fn advance(
        &mut self,
        ready: &[bool],
        now: Instant,
        has_room: bool,
    ) -> Option<Result<Conn, DialError>> {
        if let Some(conn) = self.go_on(ready, now) {
            return Some(Ok(conn));
        }
        self.give_turn(now);
        // The first address is tried however late it is: this machine may know at once.
        if now >= self.deadline && !(self.running.is_empty() && self.vain.is_empty()) {
            for Runner { lane, attempt, .. } in std::mem::take(&mut self.running) {
                self.vain.push(attempt.timed_out(self.named(lane.address)));
            }
            self.waiting.clear();
        }
        if has_room {
            self.begin(now);
        }
        (self.running.is_empty() && self.waiting.is_empty()).then(|| {
            let vain = std::mem::take(&mut self.vain);
            Err(DialError::of_all(self.target(), vain))
        })
    }

    /// Takes the attempts further whose sockets are ready; the connection of one that has won.
    fn go_on(&mut self, ready: &[bool], now: Instant) -> Option<Conn> {
        for (at, runner) in std::mem::take(&mut self.running).into_iter().enumerate() {
            if !ready.get(at).copied().unwrap_or(false) {
                self.running.push(runner);
                continue;
            }
            match runner.attempt.go_on(&self.named(runner.lane.address)) {
                Ok(Step::Accepted(conn)) => return Some(conn),
                Ok(Step::GoesOn(attempt)) => self.running.push(Runner { attempt, ..runner }),
                Err(error) => self.fails(error, now),
            }
        }
        if self.greeting.is_some() {
            return None;
        }
        let stands = self.running.iter().position(|runner| runner.attempt.idle().is_some())?;
        self.running.swap_remove(stands).attempt.into_idle()
    }

    /// Sends the preamble over a connection that stands, if no other one waits for its answer.
    fn give_turn(&mut self, now: Instant) {
        let Some(greeting) = self.greeting else { return };
        let idle = |runner: &Runner| runner.attempt.idle().is_some();
        while let Some(next) = self.running.iter().position(idle) {
            if let Some(busy) = self.running.iter().position(|runner| runner.attempt.is_greeting()) {
                if self.running[busy].patient_until > now {
                    return;
                }
                let Runner { lane, attempt, .. } = self.running.remove(busy);
                match lane.is_last {
                    true => self.vain.push(attempt.timed_out(self.named(lane.address))),
                    false => self.waiting.push_back(Lane { is_last: true, ..lane }),
                }
                continue;
            }
            let Runner { lane, attempt, .. } = self.running.remove(next);
            let Some(conn) = attempt.idle() else { return };
            let (preamble, patience) = (greeting.preamble.over(conn), PATIENCE + conn.round_trip() * 4);
            match attempt.greet(&preamble, greeting.key, &self.named(lane.address)) {
                Ok(attempt) => self.running.push(Runner { lane, attempt, patient_until: now + patience }),
                Err(error) => self.fails(error, now),
            }
        }
    }

    /// Begins the next attempt, if it is time for it.
    fn begin(&mut self, now: Instant) {
        let is_awaited = self.greeting_runner().is_some_and(|runner| runner.patient_until > now);
        while (now >= self.next_at || self.running.is_empty())
            && !is_awaited
            && let Some(lane) = self.waiting.pop_front()
        {
            match Attempt::begin(lane.address, self.place.short_segments) {
                Ok(attempt) => {
                    let left = self.deadline.saturating_duration_since(now);
                    let share = left / u32::try_from(self.waiting.len() + 2).unwrap_or(u32::MAX);
                    self.next_at = now + PAUSE.min(share);
                    self.running.push(Runner { lane, attempt, patient_until: now });
                }
                Err(error) => {
                    // A machine without IPv6 says so by the same error as one without free ports.
                    let has_family =
                        lane.address.is_ipv4() || error.kind() != io::ErrorKind::AddrNotAvailable;
                    self.lacks |= has_family && is_own_want(&error);
                    self.fails(not_connected(&self.named(lane.address), error), now);
                }
            }
        }
    }

    fn fails(&mut self, error: DialError, now: Instant) {
        log::debug!("for {}: {error}", self.target());
        self.vain.push(error);
        // The next one need not wait.
        self.next_at = now;
    }

    fn greeting_runner(&self) -> Option<&Runner> {
        self.running.iter().find(|runner| runner.attempt.is_greeting())
    }

    /// How errors name an address: by the host that was meant, if it is the only one.
    fn named(&self, address: SocketAddr) -> HostPort {
        if self.is_single { self.target().clone() } else { address.into() }
    }
}

/// Whether an error is about what this machine has left.
fn is_own_want(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EADDRNOTAVAIL | libc::EAGAIN)
    )
}
