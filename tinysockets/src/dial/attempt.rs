//! One attempt to be connected with somebody: the connection, the preamble, the handshake of a run with a key, and the
//! reply. It never blocks: its owner waits for its socket, and calls it when that is ready.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    time::Instant,
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{DialError, error::not_connected};
use crate::{
    address::HostPort,
    conn::Conn,
    handshake::{Heard, Knock, KnockError},
    key::SecretKey,
    ledger,
    place::SHORT_SEGMENT_BYTES,
    preamble::{Preamble, REPLY_BYTES, Refusal, Reply, ReplyError, Role, SHARES_MEMORY},
    shm::Offered,
    sys::{Interest, PollEntry},
};

/// How far an attempt is.
enum Line {
    Connecting(Socket),
    /// Nothing has been said.
    Connected(Conn),
    /// The preamble has been sent.
    Open(Conn, Box<Knock>),
    /// Both have the key; the reply is to come.
    Proven(Conn, [u8; REPLY_BYTES], usize),
}

/// The statements of this end about itself, as far as they matter later.
#[derive(Default)]
struct Said {
    /// It only finds out who is there: whom a connection belongs to was looked at before it was refused for want of
    /// somebody who expects it.
    is_check: bool,
    /// This end receives.
    reads: bool,
    /// The memory that it offers.
    memory: Option<Offered>,
}

/// See the module's documentation.
pub(super) struct Attempt {
    line: Line,
    said: Said,
}

/// The result of an attempt that got on.
pub(super) enum Step {
    /// It waits for more.
    GoesOn(Attempt),
    /// The preamble was accepted.
    Accepted(Conn),
}

impl Attempt {
    /// Begins to connect; with `short_segments`, in segments that every path takes.
    pub(super) fn begin(address: SocketAddr, short_segments: bool) -> io::Result<Self> {
        Ok(Self { line: Line::Connecting(begin_connect(address, short_segments)?), said: Said::default() })
    }

    /// Of a connection that stands.
    pub(super) fn of(conn: Conn) -> Self {
        Self { line: Line::Connected(conn), said: Said::default() }
    }

    /// The event to wait for; nothing while something has to be said.
    pub(super) fn poll_entry(&self) -> PollEntry<'_> {
        match &self.line {
            Line::Connecting(socket) => PollEntry::new(socket.as_fd(), Interest::Write),
            Line::Connected(conn) => conn.poll_entry(Interest::None),
            Line::Open(conn, _) | Line::Proven(conn, ..) => conn.poll_entry(Interest::Read),
        }
    }

    /// The connection, if nothing has been said over it.
    pub(super) fn idle(&self) -> Option<&Conn> {
        match &self.line {
            Line::Connected(conn) => Some(conn),
            _ => None,
        }
    }

    /// The connection, if nothing has been said over it, to be kept.
    pub(super) fn into_idle(self) -> Option<Conn> {
        match self.line {
            Line::Connected(conn) => Some(conn),
            _ => None,
        }
    }

    /// Whether the preamble has been sent.
    pub(super) const fn is_greeting(&self) -> bool {
        matches!(self.line, Line::Open(..) | Line::Proven(..))
    }

    pub(super) fn timed_out(&self, target: HostPort) -> DialError {
        let doing = if self.is_greeting() { "waiting for an answer" } else { "connecting" };
        DialError::TimedOut { target, doing }
    }

    /// Sends the preamble, and what goes with it.
    pub(super) fn greet(
        self,
        preamble: &Preamble,
        key: Option<&SecretKey>,
        target: &HostPort,
    ) -> Result<Self, DialError> {
        let Line::Connected(conn) = self.line else { return Ok(self) };
        let failed = |error| no_answer(target, error);
        let memory = offer(preamble, &conn);
        let preamble = Preamble { memory: memory.as_ref().map(Offered::offer), ..*preamble };
        let (knock, hello) = Knock::new(&preamble, key).map_err(failed)?;
        // The send buffer of a fresh connection holds these few bytes, and those of a proof.
        conn.send_all(&hello, Some(Instant::now())).map_err(failed)?;
        let said =
            Said { is_check: preamble.role == Role::Check, reads: preamble.role == Role::DataBack, memory };
        Ok(Self { line: Line::Open(conn, Box::new(knock)), said })
    }

    /// Does what can be done now, once its socket is ready.
    pub(super) fn go_on(self, target: &HostPort) -> Result<Step, DialError> {
        let failed = |error| no_answer(target, error);
        let Self { line, said } = self;
        let line = match line {
            Line::Connecting(socket) => {
                Line::Connected(end_connect(socket).map_err(|error| not_connected(target, error))?)
            }
            // A listener that is not spoken to has nothing to say.
            Line::Connected(_) => return Err(DialError::NoAnswer { target: target.clone() }),
            Line::Open(mut conn, mut knock) => {
                let heard = match some(conn.try_recv(knock.missing())).map_err(failed)? {
                    None => Heard::Nothing,
                    Some(count) => knock
                        .received(count)
                        .map_err(|source| DialError::Foreign { target: target.clone(), source })?,
                };
                match heard {
                    Heard::Nothing => Line::Open(conn, knock),
                    Heard::Reply(reply) => {
                        judge(reply, knock.version(), &said, target)?;
                        conn.note_here_only(reply == Reply::AcceptedHere);
                        return Ok(Step::Accepted(said.share(conn, reply)));
                    }
                    Heard::Proven(proof, seal) => {
                        conn.send_all(&proof, Some(Instant::now())).map_err(failed)?;
                        conn.protect(*seal);
                        Line::Proven(conn, [0; REPLY_BYTES], 0)
                    }
                }
            }
            Line::Proven(mut conn, mut answer, have) => {
                let have = have + some(conn.try_recv(&mut answer[have..])).map_err(failed)?.unwrap_or(0);
                if have == REPLY_BYTES {
                    let version = Reply::version_of(&answer);
                    let foreign = |source: ReplyError| DialError::Foreign {
                        target: target.clone(),
                        source: source.into(),
                    };
                    let reply = Reply::decode(&answer).map_err(foreign)?;
                    judge(reply, version, &said, target)?;
                    conn.replied();
                    return Ok(Step::Accepted(said.share(conn, reply)));
                }
                Line::Proven(conn, answer, have)
            }
        };
        Ok(Step::GoesOn(Self { line, said }))
    }
}

impl Said {
    /// The connection, once it is accepted.
    fn share(self, mut conn: Conn, reply: Reply) -> Conn {
        if let (Some(memory), Reply::AcceptedShared) = (self.memory, reply) {
            conn.share(memory.taken(), self.reads);
        }
        conn
    }
}

/// Memory to share with the other end, if that is wanted and the other end may be on this machine.
fn offer(preamble: &Preamble, conn: &Conn) -> Option<Offered> {
    if preamble.features & SHARES_MEMORY == 0 || !matches!(preamble.role, Role::Data | Role::DataBack) {
        return None;
    }
    let made = conn.local_addr().and_then(|local| Offered::new(local, conn.peer_addr()?));
    made.unwrap_or_else(|error| {
        log::debug!("no memory to share was made: {error}");
        None
    })
}

/// How many bytes have come; `None` if there are none yet. The end of the stream is an error here.
fn some(received: io::Result<usize>) -> io::Result<Option<usize>> {
    match received {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Judges the reply of somebody who speaks this version.
fn judge(reply: Reply, version: u16, said: &Said, target: &HostPort) -> Result<(), DialError> {
    let target = target.clone();
    match reply {
        Reply::Accepted | Reply::AcceptedHere => Ok(()),
        Reply::AcceptedShared if said.memory.is_some() => Ok(()),
        Reply::Refused(Refusal::NotExpected | Refusal::Full) if said.is_check => Ok(()),
        Reply::Refused(Refusal::UnsupportedVersion) => Err(DialError::Version { target, theirs: version }),
        Reply::Refused(reason) => Err(DialError::Refused { target, reason }),
        Reply::GoOn => Err(DialError::Foreign { target, source: KnockError::Proof }),
        // Nothing was offered.
        Reply::AcceptedShared => Err(DialError::Foreign { target, source: ReplyError::NotAReply.into() }),
    }
}

pub(super) fn no_answer(target: &HostPort, source: io::Error) -> DialError {
    let target = target.clone();
    match source.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            DialError::NoAnswer { target }
        }
        io::ErrorKind::TimedOut => DialError::TimedOut { target, doing: "waiting for an answer" },
        _ => DialError::Io { target, source },
    }
}

/// A socket that does not block and is about to be connected; it is writable when that is over.
fn begin_connect(address: SocketAddr, short_segments: bool) -> io::Result<Socket> {
    // `Socket::new` sets close-on-exec in the same step.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    ledger::enter(&socket);
    socket.set_nonblocking(true)?;
    // Before the connect this bounds what is announced, and with it the other end. Afterwards it would bound nothing.
    if short_segments && let Err(error) = socket.set_tcp_mss(SHORT_SEGMENT_BYTES) {
        log::debug!("segments to {address} are as long as the system makes them: {error}");
    }
    match socket.connect(&SockAddr::from(address)) {
        // A connect that a signal interrupts goes on in the background, like one that does not wait.
        Err(error) if !is_in_progress(&error) => Err(error),
        _ => Ok(socket),
    }
}

/// The connection, or why there is none, once [`begin_connect`] is over.
fn end_connect(socket: Socket) -> io::Result<Conn> {
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
