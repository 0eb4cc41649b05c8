//! A check which of many places can be reached, all at once: a connection to each, a preamble, a handshake in a run
//! with a key, the reply, and nothing else.
//!
//! One thread does it all without blocking for any of them, so that finding out about a thousand takes as long as about
//! one, and costs no threads.

use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::{
    conn::Conn,
    dial::{DialError, Greeting, Hello, Race},
    key::SecretKey,
    place::{Names, Place, may_have_dialed},
    preamble::Preamble,
    sys::{self, PollEntry},
};

/// Attempts that are under way at once: less than the descriptors that a process has by default.
const IN_FLIGHT_MAX: usize = 256;
/// Pause when the system has no descriptor, port or memory for another attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// Somebody to be reached.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where.
    pub place: Place,
    /// The preamble for the one that answers there; of [`Role::Check`](crate::preamble::Role::Check).
    pub preamble: Preamble,
    /// The key that both have to prove that they have, in a run with a key. A target without it is not reached.
    pub key: Option<SecretKey>,
    /// The address of somebody on whose word it is tried: of the addresses only those are that it
    /// [may have dialed](may_have_dialed).
    pub asker: Option<IpAddr>,
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// The one that was meant has answered; the round trip to it, 0 if the system does not tell.
    Reached(Duration),
    /// It was not reached; why.
    Failed(String),
    /// This machine could not even try: that says nothing about the other one.
    Unknown(String),
}

/// Tries all of them at the same time, each for at most `timeout`; beyond 256 the others have their turn when these are
/// over. The results are in the order of the targets.
#[must_use]
pub fn reach_all(targets: &[Target], timeout: Duration) -> Vec<Reach> {
    let mut work = Work {
        targets,
        timeout,
        names: Names::new(),
        waiting: (0..targets.len()).collect(),
        running: Vec::new(),
        results: vec![None; targets.len()],
    };
    while !work.waiting.is_empty() || !work.running.is_empty() {
        work.begin();
        work.wait();
    }
    let unknown = || Reach::Unknown("it was not tried".to_owned());
    work.results.into_iter().map(|result| result.unwrap_or_else(unknown)).collect()
}

struct Work<'a> {
    targets: &'a [Target],
    timeout: Duration,
    names: Names,
    waiting: VecDeque<usize>,
    /// Whom each is about, and how far it is.
    running: Vec<(usize, Race<'a>)>,
    results: Vec<Option<Reach>>,
}

impl<'a> Work<'a> {
    /// Whether one more attempt may be under way.
    fn has_room(&self) -> bool {
        self.running.iter().map(|(_, race)| race.running()).sum::<usize>() < IN_FLIGHT_MAX
    }

    fn begin(&mut self) {
        while self.has_room()
            && let Some(at) = self.waiting.pop_front()
        {
            let now = Instant::now();
            let mut race = match self.race(at, now + self.timeout) {
                Ok(race) => race,
                Err(error) => {
                    self.results[at] = Some(Reach::Failed(error));
                    continue;
                }
            };
            match race.advance(&[], now, true) {
                None => self.running.push((at, race)),
                Some(Err(_)) if race.lacks() && !self.running.is_empty() => {
                    self.waiting.push_front(at);
                    // The races that are under way give back what is missing.
                    std::thread::park_timeout(PAUSE);
                    return;
                }
                Some(result) => self.results[at] = Some(found(&race, result)),
            }
        }
    }

    fn race(&mut self, at: usize, deadline: Instant) -> Result<Race<'a>, String> {
        let Target { place, preamble, key, asker } = &self.targets[at];
        let found = place.addresses(&mut self.names, deadline);
        let unresolved = |source| DialError::Unresolved { target: place.target.clone(), source }.to_string();
        let mut addresses = found.map_err(unresolved)?;
        if let Some(asker) = asker {
            addresses.retain(|address| may_have_dialed(*asker, address.ip()));
            if addresses.is_empty() {
                return Err(format!(
                    "{} is not tried for somebody who comes from {asker}: only where it comes from, public addresses, \
                     and from a private network private ones",
                    place.target
                ));
            }
        }
        let greeting = Greeting { preamble: Hello::Fixed(preamble), key: key.as_ref() };
        Ok(Race::new(place, addresses, Some(greeting), deadline))
    }

    /// Waits until an attempt gets further, or its time is over.
    fn wait(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let (now, has_room) = (Instant::now(), self.has_room());
        let wakes_at = self.running.iter().map(|(_, race)| race.wakes_at(now, has_room)).min();
        let mut entries: Vec<PollEntry<'_>> =
            self.running.iter().flat_map(|(_, race)| race.poll_entries()).collect();
        if let Err(error) = sys::poll_many(&mut entries, wakes_at) {
            log::debug!("waiting for answers: {error}");
            std::thread::park_timeout(PAUSE);
        }
        let ready: Vec<bool> = entries.iter().map(|entry| entry.readiness().any()).collect();
        drop(entries);
        let (now, mut ready) = (Instant::now(), &ready[..]);
        let mut room =
            IN_FLIGHT_MAX.saturating_sub(self.running.iter().map(|(_, race)| race.running()).sum());
        for (at, mut race) in std::mem::take(&mut self.running) {
            let (own, others) = ready.split_at(race.running());
            ready = others;
            let before = race.running();
            let result = race.advance(own, now, room > 0);
            room = (room + before).saturating_sub(race.running());
            match result {
                None => self.running.push((at, race)),
                Some(result) => self.results[at] = Some(found(&race, result)),
            }
        }
    }
}

/// The result of a race.
fn found(race: &Race<'_>, result: Result<Conn, DialError>) -> Reach {
    match result {
        Ok(conn) => Reach::Reached(conn.round_trip()),
        Err(error) if race.lacks() => Reach::Unknown(error.to_string()),
        Err(error) => Reach::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        acceptor::{AcceptLimits, Acceptor},
        address::HostPort,
        key::RunKey,
        listener::Listener,
        preamble::{Refusal, Role},
    };
    use std::net::TcpListener;

    /// Nothing here takes longer, however busy the machine is.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A listener of peer 7 that says whom a connection reached.
    fn peer(key: Option<RunKey>) -> Acceptor {
        let listener = Listener::bind(Some([127, 0, 0, 1].into()), 30_000, 2_000).unwrap();
        let answer = |incoming: crate::acceptor::Incoming| match incoming.preamble.to {
            7 => drop(incoming.accept()),
            _ => incoming.refuse(Refusal::WrongDestination),
        };
        Acceptor::spawn(
            vec![(Role::State, listener)],
            AcceptLimits::default(),
            key.map(Into::into),
            Box::new(answer),
        )
        .unwrap()
    }

    fn target(port: u16, to: u128, key: Option<&RunKey>) -> Target {
        Target {
            place: HostPort::new("127.0.0.1", port).into(),
            preamble: Preamble { to, ..Preamble::new(Role::Check) },
            key: key.map(|key| key.secret().clone()),
            asker: None,
        }
    }

    #[test]
    fn many_at_once_take_as_long_as_the_slowest_and_each_has_its_own_result() {
        many_at_once(None, 300, 20, Duration::from_secs(2));
    }

    #[test]
    fn with_a_key_as_well() {
        let key = RunKey::from_bytes([7; 32]);
        // Each costs both ends 10 ms of a processor without optimisations, and one thread of each does them all. Only
        // those that are silent make it wait for its limit.
        many_at_once(Some(&key), 32, 0, PATIENCE);
        let peer = peer(Some(RunKey::from_bytes([8; 32])));
        for (key, text) in [
            (Some(&key), "the run key, or the name of the run, is another one"),
            (None, "it wants a run key"),
        ] {
            let target = target(peer.local_port(0).unwrap(), 7, key);
            let results = reach_all(&[target], PATIENCE);
            assert!(matches!(&results[..], [Reach::Failed(why)] if why.contains(text)), "{results:?}");
        }
    }

    /// A number of targets that answer, and a number of silent ones, each for at most `limit`.
    fn many_at_once(key: Option<&RunKey>, count: usize, silent_count: usize, limit: Duration) {
        let peer = peer(key.cloned());
        let port = peer.local_port(0).unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent_port = silent.local_addr().unwrap().port();
        let closed_port = pccl_testkit::ports::free_port();
        let mut targets = vec![target(port, 7, key); count];
        targets.extend([target(port, 8, key), target(closed_port, 7, key)]);
        targets.extend(vec![target(silent_port, 7, key); silent_count]);
        let began = Instant::now();
        let results = reach_all(&targets, limit);
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        assert!(
            results[..count].iter().all(|result| matches!(result, Reach::Reached(way) if !way.is_zero())),
            "{results:?}"
        );
        let failed = |at: usize, text: &str| {
            assert!(matches!(&results[at], Reach::Failed(why) if why.contains(text)), "{:?}", results[at]);
        };
        failed(count, "another peer listens on this port");
        failed(count + 1, "connection refused");
        (count + 2..targets.len())
            .for_each(|at| failed(at, "did not answer in time (waiting for an answer)"));
    }

    #[test]
    fn on_the_word_of_somebody_from_elsewhere_this_machine_is_not_dialed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let targets = ["127.0.0.1", "localhost"].map(|host| Target {
            place: HostPort::new(host, port).into(),
            asker: Some([198, 51, 100, 1].into()),
            ..target(port, 7, None)
        });
        for result in reach_all(&targets, Duration::from_secs(20)) {
            assert!(matches!(&result, Reach::Failed(why) if why.contains("is not tried")), "{result:?}");
        }
        assert!(listener.accept().is_err());
    }

    #[test]
    fn a_host_without_an_address_is_not_reached() {
        let mut unknown = target(1, 7, None);
        unknown.place.target.host = "no..such..host".to_owned();
        let results = reach_all(&[unknown], Duration::from_secs(20));
        assert!(
            matches!(&results[..], [Reach::Failed(why)] if why.contains("no..such..host")),
            "{results:?}"
        );
        assert_eq!(reach_all(&[], Duration::ZERO), []);
    }
}
