//! One connection between two processes of a run.
//!
//! [`dial`](crate::dial), [`listener`](crate::listener), [`acceptor`](crate::acceptor) and event loops hand out a
//! [`Conn`]; nobody above this crate names a socket or a descriptor. In a run with a key its bytes travel in
//! [records](crate::seal), otherwise as they are; the methods are the same, and only authentic bytes come out of them.
//!
//! Where both ends are on one machine, the bytes of one direction may go through [memory](crate::shm) that they share;
//! the socket then only wakes them.
//!
//! Methods whose names begin with `try_` never wait: where the socket has no room or no bytes, they fail with
//! `WouldBlock`. All others wait in `poll` until a deadline of the monotonic clock; `None` waits for ever.
//!
//! Bytes that a sealed connection takes may wait in it, as a part of a record for which the socket has no room yet.
//! Methods that wait see to it that they leave. A caller of those that do not wait calls [`Conn::try_flush`] in the
//! end, until it succeeds; more is taken only then.

mod sealed;
mod shared;

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

use mio::{Interest as MioInterest, Registry, Token, event::Source, unix::SourceFd};
use socket2::{SockRef, TcpKeepalive};

use crate::{
    mode::WireMode,
    seal::{Seal, Suite},
    shm::Region,
    sys::{self, Interest, PollEntry, Readiness, TcpInfo},
};
use sealed::Sealed;
use shared::{Doorbell, Shared};

/// After so long without bytes the system asks the other end whether it is there. The question and its answer are two
/// empty packets, which keep firewalls and address translators on the way from forgetting the connection: few of them
/// wait less than a minute, none less than this.
const ASKED_AFTER: Duration = Duration::from_secs(2);

/// A question that is not answered is repeated so often.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// A connection breaks after this number of questions without an answer: two minutes, longer than any other time-out,
/// so that an outage ends no connection that waits for nothing.
const QUESTIONS: u32 = 120;

/// Bytes that [`Conn::keep_little_unsent`] leaves to the system.
const UNSENT_BYTES: u32 = 64 << 10;

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub struct Conn {
    stream: TcpStream,
    /// Missing if bytes travel as they are.
    sealed: Option<Box<Sealed>>,
    /// The memory through which the bytes of one direction go, if they do.
    shared: Option<Box<Shared>>,
    /// To somebody whom only this machine reaches, as it says.
    is_here_only: bool,
}

impl From<TcpStream> for Conn {
    /// A connection whose bytes travel as they are. It is kept alive while nothing is said on it.
    fn from(stream: TcpStream) -> Self {
        let questions =
            TcpKeepalive::new().with_time(ASKED_AFTER).with_interval(ASKED_EVERY).with_retries(QUESTIONS);
        if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&questions) {
            // It works without, as long as nobody on the way forgets it.
            log::debug!("a connection is not kept alive: {error}");
        }
        Self { stream, sealed: None, shared: None, is_here_only: false }
    }
}

impl Conn {
    /// One that has never been connected: it stands for a connection that has ended.
    pub fn unconnected() -> io::Result<Self> {
        let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None)
            .or_else(|_| socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None))?;
        Ok(TcpStream::from(socket).into())
    }

    /// Notes what the other end has said of itself.
    pub(crate) fn note_here_only(&mut self, is_here_only: bool) {
        self.is_here_only = is_here_only;
    }

    /// Whether the other end has said that only this machine reaches it.
    #[must_use]
    pub fn is_here_only(&self) -> bool {
        self.is_here_only
    }

    /// From here on the bytes of both directions travel in records.
    pub fn protect(&mut self, seal: Seal) {
        self.sealed = Some(Box::new(Sealed::new(seal)));
    }

    /// From here on the bytes that this end sends, or with `reads` those that it receives, go through memory. None go
    /// in the other direction.
    pub(crate) fn share(&mut self, region: Region, reads: bool) {
        self.shared = Some(Box::new(Shared::new(region, reads)));
    }

    /// Whether its bytes go through memory.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The connection beneath, which wakes the other end.
    fn doorbell(&self) -> Doorbell<'_> {
        Doorbell { fd: self.fd(), sealed: self.sealed.as_deref() }
    }

    /// The reply to the preamble has been sent, or received: the bytes that follow travel as the [mode](WireMode) says,
    /// which may be as it is.
    pub(crate) fn replied(&mut self) {
        // The sender of a reply sends at once, and the receiver has read nothing behind it.
        self.sealed.take_if(|sealed| sealed.mode == WireMode::Off);
    }

    /// How its records are sealed; `None` if there are none.
    #[must_use]
    pub fn suite(&self) -> Option<Suite> {
        self.sealed.as_ref().map(|sealed| sealed.suite)
    }

    /// Whether bytes are received as they come: then less than there was room for is all that had come.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.sealed.is_none() && self.shared.is_none()
    }

    /// Address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Sends what the socket takes at once; returns how many bytes that is.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_plain() {
            return sys::send(self.fd(), bytes, true);
        }
        self.try_send_many(&[io::IoSlice::new(bytes)])
    }

    /// As [`Conn::try_send`], from several places in a row.
    pub fn try_send_many(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let total = parts.iter().map(|part| part.len()).sum();
        if total == 0 {
            return Ok(0);
        }
        let filled = self.try_send_with(total, |mut given, room| {
            let mut filled = 0;
            for part in parts {
                let from = given.min(part.len());
                let count = (part.len() - from).min(room.len() - filled);
                room[filled..filled + count].copy_from_slice(&part[from..from + count]);
                (given, filled) = (given - from, filled + count);
            }
        });
        filled.unwrap_or_else(|| sys::send_many(self.fd(), parts, true))
    }

    /// As [`Conn::try_send`] of at most `at_most` bytes that `fill` puts where they belong, on a connection that is not
    /// [plain](Self::is_plain): `None` on a plain one. `fill` is told how many it has given, and fills its place with
    /// those that follow.
    pub(crate) fn try_send_with(
        &self,
        at_most: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Option<io::Result<usize>> {
        match (&self.shared, &self.sealed) {
            (Some(shared), _) => Some(shared.try_send(&self.doorbell(), at_most, fill)),
            (None, Some(sealed)) => Some(sealed.try_send(self.fd(), at_most, fill)),
            (None, None) => None,
        }
    }

    /// As [`Conn::try_recv`], with bytes handed to `take` where they lie, on a connection that is not
    /// [plain](Self::is_plain): `None` on a plain one. `take` says how many it has taken; the result is `None` at the
    /// end of the stream.
    pub(crate) fn try_recv_with(
        &self,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> Option<io::Result<Option<usize>>> {
        self.take_with(true, take)
    }

    /// As [`Conn::try_recv_with`], and waits without a limit where nothing has arrived. `take` must not receive.
    pub(crate) fn recv_with(&self, take: impl FnOnce(&[u8]) -> usize) -> Option<io::Result<Option<usize>>> {
        self.take_with(false, take)
    }

    fn take_with(
        &self,
        dont_wait: bool,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> Option<io::Result<Option<usize>>> {
        match (&self.shared, &self.sealed) {
            (Some(shared), _) => Some(shared.recv(&self.doorbell(), dont_wait, take)),
            (None, Some(sealed)) => Some(sealed.recv(self.fd(), dont_wait, take)),
            (None, None) => None,
        }
    }

    /// Sends what was taken and has not left. `WouldBlock`: there is some, and the socket has no room.
    pub fn try_flush(&self) -> io::Result<()> {
        self.sealed.as_ref().map_or(Ok(()), |sealed| sealed.try_flush(self.fd()))
    }

    /// Whether something was taken that has not left: the bytes that are sent next stand behind it.
    #[must_use]
    pub fn is_within_record(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.is_waiting())
    }

    /// Whether there are bytes to be received of which the kernel does not know any more, so that nobody may wait for
    /// them in `poll`.
    pub(crate) fn has_bytes(&self) -> bool {
        match &self.shared {
            Some(shared) => shared.has_bytes(),
            None => self.sealed.as_ref().is_some_and(|sealed| sealed.has_bytes()),
        }
    }

    /// Bytes that this end has put into memory and the other one has not taken.
    pub(crate) fn untaken_bytes(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.untaken_bytes())
    }

    /// Receives what has arrived; 0 is the end of the stream.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, true)
    }

    fn receive(&self, buffer: &mut [u8], dont_wait: bool) -> io::Result<usize> {
        if self.is_plain() {
            return sys::recv(self.fd(), buffer, dont_wait);
        }
        let copied = self.take_with(dont_wait, |bytes| {
            let count = bytes.len().min(buffer.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            count
        });
        // It is `None` for a plain one only.
        copied.map_or(Ok(0), |copied| copied.map(|count| count.unwrap_or(0)))
    }

    /// Receives what arrives next, without a limit: one system call where the bytes are there already. 0 is the end of
    /// the stream.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, false)
    }

    /// Sends at least one byte from `bytes`; returns how many were taken. None of them waits in the connection then.
    pub fn send_some(&self, bytes: &[u8], deadline: Option<Instant>) -> io::Result<usize> {
        let mut taken = None;
        loop {
            let result = match taken {
                None => self.try_send(bytes).map(|count| taken = Some(count)).and_then(|()| self.try_flush()),
                Some(_) => self.try_flush(),
            };
            match (result, taken) {
                (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(Interest::Write, deadline)?.any() {
                        return Err(timed_out("sending", bytes.len()));
                    }
                }
                (Err(error), _) => return Err(error),
                (Ok(()), taken) => return Ok(taken.unwrap_or(0)),
            }
        }
    }

    /// Receives at least one byte into `buffer`; 0 is the end of the stream.
    pub fn recv_some(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        loop {
            match self.try_recv(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(Interest::Read, deadline)?.any() {
                        return Err(timed_out("receiving", buffer.len()));
                    }
                }
                result => return result,
            }
        }
    }

    /// Sends all of `bytes`.
    pub fn send_all(&self, mut bytes: &[u8], deadline: Option<Instant>) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = self.send_some(bytes, deadline)?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Fills `buffer`. An end of the stream before that is `UnexpectedEof`.
    pub fn recv_all(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            match self.recv_some(&mut buffer[done..], deadline)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Waits until the connection is ready for `interest`; [`Readiness::any`] tells that from a deadline that passed.
    pub fn wait(&self, interest: Interest, deadline: Option<Instant>) -> io::Result<Readiness> {
        if matches!(interest, Interest::Read | Interest::ReadWrite) && self.has_bytes() {
            return Ok(Readiness { readable: true, ..Readiness::default() });
        }
        // Whatever one waits for in memory, the other end says on the socket.
        let says = self.shared.is_some() && !self.is_within_record();
        let interest = if says { Interest::Read } else { interest };
        sys::poll_fd(self.fd(), interest, deadline)
    }

    /// Shuts one direction or both; a thread that waits for it is woken. Fails only if the connection is down already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }

    /// The state of the connection that the kernel knows.
    pub fn info(&self) -> io::Result<TcpInfo> {
        sys::tcp_info(self.fd())
    }

    /// The congestion control by which it sends, such as `cubic`; `None` if the system does not tell.
    #[must_use]
    pub fn congestion_control(&self) -> Option<String> {
        let name = SockRef::from(&self.stream).tcp_congestion().ok()?;
        Some(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
    }

    /// The round trip of the path as the kernel knows it, which is not delayed by busy programs at either end; 0 if it
    /// does not tell.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        match self.info() {
            Ok(info) => Duration::from_micros(info.rtt_us.into()),
            Err(error) => {
                log::debug!("the round trip is not known: {error}");
                Duration::ZERO
            }
        }
    }

    /// Whether the other end has not answered the last questions of the system, while nothing is under way: nothing
    /// passes at the moment, or somebody on the way has forgotten the connection.
    pub(crate) fn is_deaf(&self) -> bool {
        self.info().is_ok_and(|info| {
            // The first question may still be under way, on a long path more of them.
            let asked_for = Duration::from_millis(info.last_ack_ms.into()).saturating_sub(ASKED_AFTER);
            let is_idle = info.unacked_segments == 0 && info.notsent_bytes == 0;
            is_idle && info.vain_questions > 1 && asked_for > 2 * Duration::from_micros(info.rtt_us.into())
        })
    }

    /// For how long nothing has been said on it in either direction, if it may have been forgotten on the way in that
    /// time.
    pub(crate) fn rest(&self) -> Option<Duration> {
        if self.shared.is_some() {
            // Nobody is on the way, and much may have passed without the socket.
            return None;
        }
        let idle = self.info().ok().map(|info| Duration::from_millis(info.idle_ms.into()));
        idle.filter(|idle| *idle >= ASKED_AFTER)
    }

    /// When the connection is closed, the system throws unsent bytes away.
    pub fn discard_on_close(&self) -> io::Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }

    /// The system takes little that it cannot send at once, so that the sender can stop at any time. Fails where the
    /// system does not know how.
    pub fn keep_little_unsent(&self) -> io::Result<()> {
        sys::set_notsent_lowat(self.fd(), UNSENT_BYTES)
    }

    /// The system keeps no more than about this for each direction, however large its own settings are.
    pub fn bound_system_buffers(&self, bytes: usize) -> io::Result<()> {
        let socket = SockRef::from(&self.stream);
        socket.set_send_buffer_size(bytes)?;
        socket.set_recv_buffer_size(bytes)
    }

    /// Nothing waits for acknowledgements before it is sent.
    pub fn send_at_once(&self) -> io::Result<()> {
        self.stream.set_nodelay(true)
    }

    /// One entry of a wait for several connections.
    pub(crate) fn poll_entry(&self, interest: Interest) -> PollEntry<'_> {
        PollEntry::new(self.fd(), interest)
    }

    /// The descriptor, for this crate's system calls.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// For event loops. All their calls are those that never wait.
impl Source for Conn {
    fn register(&mut self, registry: &Registry, token: Token, interests: MioInterest) -> io::Result<()> {
        SourceFd(&self.stream.as_raw_fd()).register(registry, token, interests)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interests: MioInterest) -> io::Result<()> {
        SourceFd(&self.stream.as_raw_fd()).reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        SourceFd(&self.stream.as_raw_fd()).deregister(registry)
    }
}

fn timed_out(what: &str, missing_bytes: usize) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("timed out {what}, {missing_bytes} bytes missing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        address::HostPort,
        listener::Listener,
        listeners::{self, Listeners},
    };
    use std::net::{Ipv4Addr, TcpListener};

    fn pair() -> (Conn, Conn) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one.into(), listener.accept().unwrap().0.into())
    }

    #[test]
    fn all_is_sent_and_received_or_the_deadline_ends_it() {
        let (one, other) = pair();
        let soon = Some(Instant::now() + Duration::from_secs(20));
        one.send_all(b"hello", soon).unwrap();
        let mut got = [0; 5];
        other.recv_all(&mut got, soon).unwrap();
        assert_eq!(&got, b"hello");
        let error = other.recv_all(&mut got, Some(Instant::now())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = loop {
            match one.send_all(&[0; 65536], Some(Instant::now())) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// How a connection is kept alive: after how many seconds, how often, and for how many questions.
    fn kept_alive(conn: &Conn) -> (bool, u64, u64, u32) {
        let socket = SockRef::from(&conn.stream);
        let seconds = |time: io::Result<Duration>| time.unwrap().as_secs();
        let (after, every) = (socket.tcp_keepalive_time(), socket.tcp_keepalive_interval());
        (socket.keepalive().unwrap(), seconds(after), seconds(every), socket.tcp_keepalive_retries().unwrap())
    }

    #[test]
    fn connections_are_kept_alive_however_they_come_about() {
        let soon = Instant::now() + Duration::from_secs(20);
        let poll = mio::Poll::new().unwrap();
        let sockets = listeners::bind_all(&[(Ipv4Addr::LOCALHOST, 0).into()]).unwrap();
        let of_loop = HostPort::from(sockets[0].local_addr().unwrap());
        let mut of_loop_side = Listeners::register(sockets, poll.registry(), Token(0)).unwrap();
        let of_thread_side = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), 0, 1).unwrap();
        let of_thread = HostPort::from(of_thread_side.local_addr());
        let dialed = [&of_loop, &of_thread].map(|target| crate::dial::dial(target, soon).unwrap());
        sys::poll_fd(of_thread_side.as_fd(), Interest::Read, Some(soon)).unwrap();
        let mut accepted = of_loop_side.accept(Instant::now());
        accepted.extend(of_thread_side.accept().unwrap());
        let all: Vec<Conn> = dialed.into_iter().chain(accepted.into_iter().map(|(conn, _)| conn)).collect();
        assert_eq!(all.iter().map(kept_alive).collect::<Vec<_>>(), [(true, 2, 1, 120); 4]);
    }

    #[test]
    fn an_end_in_the_middle_is_unexpected() {
        let (one, other) = pair();
        let soon = Some(Instant::now() + Duration::from_secs(20));
        one.send_all(b"ab", soon).unwrap();
        one.shutdown(Shutdown::Write).unwrap();
        let error = other.recv_all(&mut [0; 3], soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
