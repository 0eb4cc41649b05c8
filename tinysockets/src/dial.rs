//! Connecting to somebody within a deadline.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    time::Instant,
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{
    address::{HostPort, ResolveError},
    conn::Conn,
    ledger,
    preamble::{PROTOCOL_VERSION, Preamble, REPLY_BYTES, Refusal, Reply, ReplyError},
    sys::{self, Interest},
};

/// Why there is no connection. Every variant names the target.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The host has no address.
    #[error("cannot connect to {target}: {source}")]
    Unresolved {
        /// Who was meant.
        target: HostPort,
        /// What went wrong.
        source: ResolveError,
    },
    /// The machine is there, and nobody listens on the port.
    #[error(
        "cannot connect to {target}: connection refused; is the other side running, and is this its port?"
    )]
    ConnectionRefused {
        /// Who was meant.
        target: HostPort,
    },
    /// No answer before the deadline.
    #[error("{target} did not answer in time ({doing}); check firewalls and whether the other side is alive")]
    TimedOut {
        /// Who was meant.
        target: HostPort,
        /// What was being done.
        doing: &'static str,
    },
    /// The other side speaks this protocol and does not want the connection.
    #[error("{target} refused the connection: {reason}")]
    Refused {
        /// Who was meant.
        target: HostPort,
        /// What the other side said.
        reason: Refusal,
    },
    /// The other side speaks another version of this protocol.
    #[error(
        "{target} speaks version {theirs} of the protocol, this side version {PROTOCOL_VERSION}: all programs of a run \
         have to be of releases with the same version"
    )]
    Version {
        /// Who was meant.
        target: HostPort,
        /// The version of the other side.
        theirs: u16,
    },
    /// Somebody answers who does not speak this protocol.
    #[error("{target} is not a port of this protocol: {source}")]
    Foreign {
        /// Who was meant.
        target: HostPort,
        /// What was wrong with the answer.
        source: ReplyError,
    },
    /// The connection was made and closed again without an answer: another protocol, or a peer that just went away.
    #[error(
        "{target} closed the connection without an answer; it is another service, overloaded, or going away"
    )]
    NoAnswer {
        /// Who was meant.
        target: HostPort,
    },
    /// Anything else that the system reports, such as an unreachable network.
    #[error("cannot connect to {target}: {source}")]
    Io {
        /// Who was meant.
        target: HostPort,
        /// What the system said.
        source: io::Error,
    },
}

/// Connects to `target` before `deadline`. All addresses of the host are tried in turn; each gets an equal share of
/// the time that is left, so a dead one does not use up the time of those behind it. The connection is in blocking
/// mode, sends at once (`TCP_NODELAY`), and is not inherited by child programs.
pub fn dial(target: &HostPort, deadline: Instant) -> Result<Conn, DialError> {
    let addresses = target
        .resolve(deadline)
        .map_err(|source| DialError::Unresolved { target: target.clone(), source })?;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for (i, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let behind = u32::try_from(addresses.len() - i).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(now) / behind;
        match connect(*address, now + share) {
            Ok(conn) => return Ok(conn),
            Err(error) => {
                log::debug!("connecting to {address} for {target}: {error}");
                last = error;
            }
        }
    }
    Err(not_connected(target, last))
}

pub(crate) fn not_connected(target: &HostPort, source: io::Error) -> DialError {
    let target = target.clone();
    match source.kind() {
        io::ErrorKind::ConnectionRefused => DialError::ConnectionRefused { target },
        io::ErrorKind::TimedOut => DialError::TimedOut { target, doing: "connecting" },
        _ => DialError::Io { target, source },
    }
}

/// [`dial`], then [`introduce`].
pub fn dial_with_preamble(
    target: &HostPort,
    preamble: &Preamble,
    deadline: Instant,
) -> Result<Conn, DialError> {
    let conn = dial(target, deadline)?;
    introduce(&conn, target, preamble, deadline)?;
    Ok(conn)
}

/// Sends `preamble` over a fresh connection to `target` and waits until it is accepted.
pub fn introduce(
    conn: &Conn,
    target: &HostPort,
    preamble: &Preamble,
    deadline: Instant,
) -> Result<(), DialError> {
    let mut answer = [0; REPLY_BYTES];
    conn.send_all(&preamble.encode(), Some(deadline))
        .and_then(|()| conn.recv_all(&mut answer, Some(deadline)))
        .map_err(|source| no_answer(target, source))?;
    match Reply::decode(&answer) {
        Ok(Reply::Accepted) => Ok(()),
        Ok(Reply::Refused(Refusal::UnsupportedVersion)) => {
            Err(DialError::Version { target: target.clone(), theirs: Reply::version_of(&answer) })
        }
        Ok(Reply::Refused(reason)) => Err(DialError::Refused { target: target.clone(), reason }),
        Err(source) => Err(DialError::Foreign { target: target.clone(), source }),
    }
}

pub(crate) fn no_answer(target: &HostPort, source: io::Error) -> DialError {
    let target = target.clone();
    match source.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            DialError::NoAnswer { target }
        }
        io::ErrorKind::TimedOut => {
            DialError::TimedOut { target, doing: "waiting for the answer to the preamble" }
        }
        _ => DialError::Io { target, source },
    }
}

fn connect(address: SocketAddr, deadline: Instant) -> io::Result<Conn> {
    let socket = begin_connect(address)?;
    if !sys::poll_fd(socket.as_fd(), Interest::Write, Some(deadline))?.any() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    end_connect(socket)
}

/// A socket that does not block and is about to be connected; it is writable when that is over.
pub(crate) fn begin_connect(address: SocketAddr) -> io::Result<Socket> {
    // `Socket::new` sets close-on-exec in the same step.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    ledger::enter(&socket);
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::from(address)) {
        // A connect that a signal interrupts goes on in the background, like one that does not wait.
        Err(error) if !is_in_progress(&error) => Err(error),
        _ => Ok(socket),
    }
}

/// The connection, or why there is none, once [`begin_connect`] is over.
pub(crate) fn end_connect(socket: Socket) -> io::Result<Conn> {
    match socket.take_error()? {
        Some(error) => Err(error),
        None => configure(TcpStream::from(socket)),
    }
}

fn configure(stream: TcpStream) -> io::Result<Conn> {
    // A connect to a free port of this machine can meet itself, when the system happens to pick that port as its own.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

fn is_in_progress(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINPROGRESS)
        || matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preamble::{PREAMBLE_BYTES, Role};
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
        let error = dial_with_preamble(&target, &Preamble::new(Role::Data), deadline).unwrap_err();
        assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
    }

    #[test]
    fn another_protocol_and_a_silent_close_are_told_apart() {
        let preamble = Preamble::new(Role::Control);
        let http = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let error = dial_with_preamble(&http, &preamble, soon()).unwrap_err();
        assert!(matches!(error, DialError::Foreign { source: ReplyError::NotAReply, .. }), "{error}");
        let error = dial_with_preamble(&answering(b""), &preamble, soon()).unwrap_err();
        assert!(matches!(error, DialError::NoAnswer { .. }), "{error}");
    }

    #[test]
    fn a_connection_that_met_itself_counts_as_refused() {
        // Binding a socket to a port and connecting it to that same port is how the accident looks to the kernel.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let address = socket.local_addr().unwrap();
        socket.connect(&address).unwrap();
        let error = configure(TcpStream::from(socket)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
