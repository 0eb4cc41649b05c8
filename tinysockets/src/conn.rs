//! One connection between two processes of a run.
//!
//! [`dial`](crate::dial), [`listener`](crate::listener), [`acceptor`](crate::acceptor) and event loops hand out a
//! [`Conn`]; nobody above this crate names a socket or a descriptor. Today the bytes travel as they are. What seals
//! them will be another kind of `Conn`, with the same methods.
//!
//! Methods whose names begin with `try_` never wait: where the socket has no room or no bytes, they fail with
//! `WouldBlock`. All others wait in `poll` until a deadline of the monotonic clock; `None` waits for ever.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

use mio::{Interest as MioInterest, Registry, Token, event::Source, unix::SourceFd};
use socket2::SockRef;

use crate::sys::{self, Interest, PollEntry, Readiness, TcpInfo};

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub struct Conn {
    stream: TcpStream,
}

impl From<TcpStream> for Conn {
    /// A connection whose bytes travel as they are.
    fn from(stream: TcpStream) -> Self {
        Self { stream }
    }
}

impl Conn {
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
        sys::send(self.fd(), bytes, true)
    }

    /// As [`Conn::try_send`], from several places in a row.
    pub fn try_send_many(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        sys::send_many(self.fd(), parts, true)
    }

    /// Receives what has arrived; 0 is the end of the stream.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        sys::recv(self.fd(), buffer, true)
    }

    /// Receives what arrives next, without a limit: one system call where the bytes are there already. 0 is the end of
    /// the stream.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        sys::recv(self.fd(), buffer, false)
    }

    /// Sends at least one byte from `bytes`; returns how many were taken.
    pub fn send_some(&self, bytes: &[u8], deadline: Option<Instant>) -> io::Result<usize> {
        loop {
            match self.try_send(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(Interest::Write, deadline)?.any() {
                        return Err(timed_out("sending", bytes.len()));
                    }
                }
                result => return result,
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
        sys::poll_fd(self.fd(), interest, deadline)
    }

    /// Shuts one direction or both; whoever waits for it is woken. Fails only if the connection is down already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }

    /// What the kernel knows about the connection.
    pub fn info(&self) -> io::Result<TcpInfo> {
        sys::tcp_info(self.fd())
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

    /// What has not been sent when the connection is closed is thrown away.
    pub fn discard_on_close(&self) -> io::Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
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
    use std::net::TcpListener;

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
