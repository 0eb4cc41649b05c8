//! Who can be reached, of many at once: a connection to each, a preamble, the reply, and nothing else.
//!
//! One thread does it all without blocking for any of them, so that finding out about a thousand takes as long as about
//! one, and costs no threads.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::SocketAddr,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use socket2::Socket;

use crate::{
    address::HostPort,
    conn::Conn,
    dial::{self, DialError},
    preamble::{Preamble, REPLY_BYTES, Refusal, Reply},
    sys::{self, Interest, PollEntry},
};

/// Attempts that are under way at once: less than the descriptors that a process has by default.
const IN_FLIGHT_MAX: usize = 256;
/// Pause when the system has no descriptor, port or memory for another attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// Somebody to be reached.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where.
    pub address: HostPort,
    /// What is said to whoever answers there; of [`Role::Check`](crate::preamble::Role::Check).
    pub preamble: Preamble,
}

/// What an attempt came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// The one that was meant has answered.
    Reached,
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
        addresses: BTreeMap::new(),
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

enum Line {
    Connecting(Socket),
    /// The preamble has been sent.
    Open(Conn),
}

struct Attempt {
    target: usize,
    line: Line,
    deadline: Instant,
    answer: [u8; REPLY_BYTES],
    have: usize,
}

struct Work<'a> {
    targets: &'a [Target],
    timeout: Duration,
    /// Names that have been looked up, so that a slow name server is asked once.
    addresses: BTreeMap<String, Result<SocketAddr, String>>,
    waiting: VecDeque<usize>,
    running: Vec<Attempt>,
    results: Vec<Option<Reach>>,
}

impl Work<'_> {
    fn begin(&mut self) {
        while self.running.len() < IN_FLIGHT_MAX
            && let Some(target) = self.waiting.pop_front()
        {
            let address = match self.address_of(target) {
                Ok(address) => address,
                Err(text) => {
                    self.results[target] = Some(Reach::Failed(text));
                    continue;
                }
            };
            match dial::begin_connect(address) {
                Ok(socket) => self.running.push(Attempt {
                    target,
                    line: Line::Connecting(socket),
                    deadline: Instant::now() + self.timeout,
                    answer: [0; REPLY_BYTES],
                    have: 0,
                }),
                Err(error) if is_own_want(&error) && !self.running.is_empty() => {
                    self.waiting.push_front(target);
                    // Whoever is under way gives back what is missing.
                    std::thread::park_timeout(PAUSE);
                    return;
                }
                Err(error) if is_own_want(&error) => {
                    self.results[target] = Some(Reach::Unknown(error.to_string()));
                }
                Err(error) => {
                    let error = dial::not_connected(&self.targets[target].address, error);
                    self.results[target] = Some(Reach::Failed(error.to_string()));
                }
            }
        }
    }

    /// The first address of a target. A peer that has several is listened for on all of them.
    fn address_of(&mut self, target: usize) -> Result<SocketAddr, String> {
        let address = &self.targets[target].address;
        let deadline = Instant::now() + self.timeout;
        let found = self.addresses.entry(address.host.clone()).or_insert_with(|| {
            let found = address.resolve(deadline).map_err(|error| error.to_string())?;
            found.first().copied().ok_or_else(|| format!("host `{}` has no address", address.host))
        });
        found.clone().map(|found| SocketAddr::new(found.ip(), address.port))
    }

    /// Waits until an attempt gets further, or its time is over.
    fn wait(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let deadline = self.running.iter().map(|attempt| attempt.deadline).min();
        let mut entries: Vec<PollEntry<'_>> = self.running.iter().map(Attempt::poll_entry).collect();
        if let Err(error) = sys::poll_many(&mut entries, deadline) {
            log::debug!("waiting for answers: {error}");
            std::thread::park_timeout(PAUSE);
        }
        let ready: Vec<bool> = entries.iter().map(|entry| entry.readiness().any()).collect();
        drop(entries);
        let now = Instant::now();
        for (attempt, ready) in std::mem::take(&mut self.running).into_iter().zip(ready) {
            let at = attempt.target;
            let target = &self.targets[at];
            let result = match ready {
                true => attempt.go_on(target),
                false if attempt.deadline <= now => Err(attempt.timed_out(target)),
                false => Ok(Some(attempt)),
            };
            match result {
                Ok(Some(attempt)) => self.running.push(attempt),
                Ok(None) => self.results[at] = Some(Reach::Reached),
                Err(error) => self.results[at] = Some(Reach::Failed(error.to_string())),
            }
        }
    }
}

impl Attempt {
    fn poll_entry(&self) -> PollEntry<'_> {
        match &self.line {
            Line::Connecting(socket) => PollEntry::new(socket.as_fd(), Interest::Write),
            Line::Open(conn) => conn.poll_entry(Interest::Read),
        }
    }

    fn timed_out(&self, target: &Target) -> DialError {
        let doing = match self.line {
            Line::Connecting(_) => "connecting",
            Line::Open(_) => "waiting for an answer",
        };
        DialError::TimedOut { target: target.address.clone(), doing }
    }

    /// What is left to be done; nothing if it was reached.
    fn go_on(mut self, target: &Target) -> Result<Option<Self>, DialError> {
        match self.line {
            Line::Connecting(socket) => {
                let conn =
                    dial::end_connect(socket).map_err(|error| dial::not_connected(&target.address, error))?;
                // The send buffer of a fresh connection holds these few bytes.
                conn.send_all(&target.preamble.encode(), Some(Instant::now()))
                    .map_err(|error| dial::no_answer(&target.address, error))?;
                self.line = Line::Open(conn);
                Ok(Some(self))
            }
            Line::Open(ref conn) => {
                match conn.try_recv(&mut self.answer[self.have..]) {
                    Ok(0) => return Err(DialError::NoAnswer { target: target.address.clone() }),
                    Ok(n) => self.have += n,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(dial::no_answer(&target.address, error)),
                }
                if self.have < REPLY_BYTES {
                    Ok(Some(self))
                } else {
                    judge(&self.answer, target).map(|()| None)
                }
            }
        }
    }
}

fn judge(answer: &[u8; REPLY_BYTES], target: &Target) -> Result<(), DialError> {
    let target = target.address.clone();
    match Reply::decode(answer) {
        // Whom it belongs to was looked at before these.
        Ok(Reply::Accepted | Reply::Refused(Refusal::NotExpected | Refusal::Full)) => Ok(()),
        Ok(Reply::Refused(reason)) => Err(DialError::Refused { target, reason }),
        Err(source) => Err(DialError::Foreign { target, source }),
    }
}

/// Whether an error is about what this machine has left.
fn is_own_want(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EADDRNOTAVAIL | libc::EAGAIN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        acceptor::{AcceptLimits, Acceptor},
        listener::Listener,
        preamble::Role,
    };
    use std::net::TcpListener;

    /// A listener of peer 7 that says whom a connection reached.
    fn peer() -> Acceptor {
        let listener = Listener::bind(Some([127, 0, 0, 1].into()), 30_000, 2_000).unwrap();
        let answer = |incoming: crate::acceptor::Incoming| match incoming.preamble.to {
            7 => drop(incoming.accept()),
            _ => incoming.refuse(Refusal::WrongDestination),
        };
        Acceptor::spawn(vec![(Role::State, listener)], AcceptLimits::default(), Box::new(answer)).unwrap()
    }

    fn target(port: u16, to: u128) -> Target {
        Target {
            address: HostPort::new("127.0.0.1", port),
            preamble: Preamble { to, ..Preamble::new(Role::Check) },
        }
    }

    #[test]
    fn many_at_once_take_as_long_as_the_slowest_and_each_has_its_own_result() {
        let peer = peer();
        let port = peer.local_port(0).unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent_port = silent.local_addr().unwrap().port();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed_port = closed.local_addr().unwrap().port();
        drop(closed);
        let mut targets = vec![target(port, 7); 300];
        targets.extend([target(port, 8), target(closed_port, 7)]);
        targets.extend(vec![target(silent_port, 7); 20]);
        let began = Instant::now();
        let results = reach_all(&targets, Duration::from_secs(2));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(results[..300].iter().all(|result| *result == Reach::Reached), "{results:?}");
        let failed = |at: usize, text: &str| {
            assert!(matches!(&results[at], Reach::Failed(why) if why.contains(text)), "{:?}", results[at]);
        };
        failed(300, "another peer listens on this port");
        failed(301, "connection refused");
        (302..322).for_each(|at| failed(at, "did not answer in time (waiting for an answer)"));
    }

    #[test]
    fn a_host_without_an_address_is_not_reached() {
        let mut unknown = target(1, 7);
        unknown.address.host = "no..such..host".to_owned();
        let results = reach_all(&[unknown], Duration::from_secs(20));
        assert!(
            matches!(&results[..], [Reach::Failed(why)] if why.contains("no..such..host")),
            "{results:?}"
        );
        assert_eq!(reach_all(&[], Duration::ZERO), []);
    }
}
