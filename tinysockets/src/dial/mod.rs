//! Connecting to somebody within a deadline: one place for all who dial.
//!
//! Somebody may have several addresses. They are tried beside each other, and the first one that leads to the target
//! that was meant wins (`race`).

mod attempt;
mod error;
mod race;
#[cfg(test)]
mod race_tests;

pub use error::DialError;
pub(crate) use race::{Greeting, Hello, Race};

use std::time::Instant;

use crate::{
    address::HostPort,
    conn::Conn,
    key::SecretKey,
    place::{Names, Place},
    preamble::{Preamble, Role},
    sys,
};

/// Connects to `target` before `deadline`, and says nothing. The connection is in blocking mode, sends at once
/// (`TCP_NODELAY`), and is not inherited by child programs.
pub fn dial(target: &HostPort, deadline: Instant) -> Result<Conn, DialError> {
    reach(&target.clone().into(), None, deadline)
}

/// Connects to `target` before `deadline`, sends `preamble`, and waits until it is accepted. With a key, that of the
/// run or a ticket, both sides prove that they have it, and everything travels in records from then on.
pub fn dial_with_preamble(
    target: &HostPort,
    preamble: &Preamble,
    key: Option<&SecretKey>,
    deadline: Instant,
) -> Result<Conn, DialError> {
    // The packets between a peer and its master are few, and all depends on them: they go through every path.
    let short_segments = preamble.role == Role::Control;
    let place = Place { short_segments, ..target.clone().into() };
    reach(&place, Some(Greeting { preamble: Hello::Fixed(preamble), key }), deadline)
}

/// As [`dial_with_preamble`], to wherever somebody may be reached. `preamble` says what to begin a connection with that
/// has come about.
pub fn dial_place(
    place: &Place,
    preamble: &dyn Fn(&Conn) -> Preamble,
    key: Option<&SecretKey>,
    deadline: Instant,
) -> Result<Conn, DialError> {
    reach(place, Some(Greeting { preamble: Hello::Fitting(preamble), key }), deadline)
}

/// Sends `preamble` over a fresh connection to `target`, as [`dial_with_preamble`] does.
pub fn introduce(
    conn: Conn,
    target: &HostPort,
    preamble: &Preamble,
    key: Option<&SecretKey>,
    deadline: Instant,
) -> Result<Conn, DialError> {
    let place = Place::from(target.clone());
    let greeting = Greeting { preamble: Hello::Fixed(preamble), key };
    run(Race::over(conn, &place, greeting, deadline), deadline)
}

fn reach(place: &Place, greeting: Option<Greeting<'_>>, deadline: Instant) -> Result<Conn, DialError> {
    let addresses = place
        .addresses(&mut Names::new(), deadline)
        .map_err(|source| DialError::Unresolved { target: place.target.clone(), source })?;
    run(Race::new(place, addresses, greeting, deadline), deadline)
}

/// Waits for one race alone.
fn run(mut race: Race<'_>, deadline: Instant) -> Result<Conn, DialError> {
    let mut ready = Vec::new();
    loop {
        let now = Instant::now();
        if let Some(result) = race.advance(&ready, now, true) {
            return result;
        }
        let mut entries: Vec<_> = race.poll_entries().collect();
        if let Err(source) = sys::poll_many(&mut entries, Some(race.wakes_at(now, true).min(deadline))) {
            return Err(DialError::Io { target: race.target().clone(), source });
        }
        ready = entries.iter().map(|entry| entry.readiness().any()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        handshake::KnockError,
        preamble::{PREAMBLE_BYTES, ReplyError},
    };
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
        time::Duration,
    };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// A server that takes one connection, reads a preamble and writes `answer`.
    fn answering(answer: &'static [u8]) -> HostPort {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; PREAMBLE_BYTES]).unwrap();
            stream.write_all(answer).unwrap();
        });
        address.into()
    }

    #[test]
    fn a_port_without_a_listener_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = HostPort::from(listener.local_addr().unwrap());
        drop(listener);
        let error = dial(&target, soon()).unwrap_err();
        assert!(matches!(error, DialError::ConnectionRefused { .. }), "{error}");
        assert!(error.to_string().contains(&target.to_string()));
    }

    #[test]
    fn a_host_that_does_not_exist_is_unresolved() {
        let error = dial(&HostPort::new("no..such..host", 1), soon()).unwrap_err();
        assert!(matches!(error, DialError::Unresolved { .. }), "{error}");
    }

    #[test]
    fn a_listener_that_never_answers_times_out() {
        // The backlog takes the connection; nobody ever accepts it.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = HostPort::from(listener.local_addr().unwrap());
        let deadline = Instant::now() + Duration::from_millis(100);
        let error = dial_with_preamble(&target, &Preamble::new(Role::Data), None, deadline).unwrap_err();
        assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
    }

    #[test]
    fn another_protocol_and_a_silent_close_are_told_apart() {
        let preamble = Preamble::new(Role::Control);
        let http = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let error = dial_with_preamble(&http, &preamble, None, soon()).unwrap_err();
        let foreign = KnockError::Reply(ReplyError::NotAReply);
        assert!(matches!(&error, DialError::Foreign { source, .. } if *source == foreign), "{error}");
        let error = dial_with_preamble(&answering(b""), &preamble, None, soon()).unwrap_err();
        assert!(matches!(error, DialError::NoAnswer { .. }), "{error}");
    }
}
