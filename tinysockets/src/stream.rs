//! Requests and answers over one connection, each step with a limit in time; no thread of its own.
//!
//! There are two kinds of limit. A *deadline* is for things of known size: it holds for the whole call. An *idle
//! timeout* (methods with `_progress` in their name) is for bulk data over links of unknown speed: it starts anew
//! whenever bytes move, so a slow transfer goes on and a dead one ends.

use std::{
    io,
    net::{Shutdown, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    conn::Conn,
    sys,
    wire::{self, Encode, FRAME_HEADER_BYTES, check_frame_length},
};

/// A body is given memory in steps of this size as its bytes arrive, so that a length field alone takes none.
const GROWTH_BYTES: usize = 256 * 1024;

/// Packets and raw bytes over one connection. Dropping it ends the connection, also while there are breakers of it.
///
/// A failure in the middle of a packet or of raw bytes leaves both sides at different places of the stream; all calls
/// afterwards fail with `NotConnected`. A timeout before the first byte moved is no such failure: the call can be
/// repeated.
#[derive(Debug)]
pub struct PacketStream {
    conn: Arc<Conn>,
    max_frame_bytes: usize,
    out_of_step: bool,
}

/// Breaks a [`PacketStream`] from another thread. Cheap to clone; it keeps the descriptor open, though not the
/// connection, so it should not outlive the stream for long.
#[derive(Debug, Clone)]
pub struct StreamBreaker {
    conn: Arc<Conn>,
}

impl Drop for PacketStream {
    fn drop(&mut self) {
        // The descriptor stays open as long as there is a breaker; the other side must not wait for that.
        let _ = self.conn.shutdown(Shutdown::Both);
    }
}

impl StreamBreaker {
    /// Ends the connection. A call that is under way on the stream returns with an error, as do all later ones. May be
    /// called repeatedly, and after the stream is gone.
    pub fn break_off(&self) {
        // Fails only if the connection is gone already.
        let _ = self.conn.shutdown(Shutdown::Both);
    }
}

#[derive(Clone, Copy)]
enum Limit {
    By(Option<Instant>),
    Idle(Duration, Option<Instant>),
}

impl Limit {
    /// When the next wait for bytes to move has to end.
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::By(deadline) => deadline,
            Self::Idle(timeout, latest) => {
                let idle = sys::deadline_after(timeout);
                idle.into_iter().chain(latest).min()
            }
        }
    }
}

impl PacketStream {
    /// Takes over `conn`. Packets received may have `max_frame_bytes`, kind and body together.
    #[must_use]
    pub fn new(conn: Conn, max_frame_bytes: usize) -> Self {
        Self { conn: Arc::new(conn), max_frame_bytes, out_of_step: false }
    }

    /// A handle with which another thread can end the connection.
    #[must_use]
    pub fn breaker(&self) -> StreamBreaker {
        StreamBreaker { conn: Arc::clone(&self.conn) }
    }

    /// The address of the other side.
    pub fn remote_addr(&self) -> io::Result<SocketAddr> {
        self.conn.peer_addr()
    }

    /// The connection beneath, to look at.
    #[must_use]
    pub fn conn(&self) -> &Conn {
        &self.conn
    }

    /// Bytes that are sent from now on stay with the sender until they can go, as far as the system knows how.
    pub fn keep_little_unsent(&self) {
        if let Err(error) = self.conn.keep_little_unsent() {
            log::debug!("the bytes that wait in the system are not bounded: {error}");
        }
    }

    /// Sends one packet before `deadline` (`None`: no limit).
    pub fn send_packet(
        &mut self,
        kind: u16,
        body: &impl Encode,
        deadline: impl Into<Option<Instant>>,
    ) -> io::Result<()> {
        self.send_limited(&wire::frame(kind, body), Limit::By(deadline.into()))
    }

    /// Receives one packet, kind and body, before `deadline` (`None`: no limit).
    pub fn recv_packet(&mut self, deadline: impl Into<Option<Instant>>) -> io::Result<(u16, Vec<u8>)> {
        let limit = Limit::By(deadline.into());
        let mut header = [0; FRAME_HEADER_BYTES];
        self.recv_limited(&mut header, limit)?;
        let [l0, l1, l2, l3, k0, k1] = header;
        let len = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if let Err(error) = check_frame_length(len, self.max_frame_bytes) {
            self.out_of_step = true;
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        let body_bytes = len - 2;
        let mut body = Vec::new();
        while body.len() < body_bytes {
            let begin = body.len();
            body.resize(body_bytes.min(begin + GROWTH_BYTES), 0);
            if let Err(error) = self.recv_limited(&mut body[begin..], limit) {
                self.out_of_step = true;
                return Err(error);
            }
        }
        Ok((u16::from_be_bytes([k0, k1]), body))
    }

    /// Sends raw bytes before `deadline` (`None`: no limit).
    pub fn send_bytes(&mut self, bytes: &[u8], deadline: impl Into<Option<Instant>>) -> io::Result<()> {
        self.send_limited(bytes, Limit::By(deadline.into()))
    }

    /// Sends `len` raw bytes straight from memory that may be touched only for moments, without a copy of them; gives
    /// up when none could be sent for `idle_timeout`. `view` is told how many bytes have been sent, lets the function
    /// that it gets send what follows from there, which never waits, and returns what that returned; or `None` if the
    /// memory cannot be touched any more: then this returns `false`, and the stream is of no use any longer.
    pub fn send_from_progress(
        &mut self,
        len: usize,
        idle_timeout: Duration,
        mut view: impl FnMut(usize, &mut dyn FnMut(&[u8]) -> io::Result<usize>) -> Option<io::Result<usize>>,
    ) -> io::Result<bool> {
        self.check_in_step()?;
        let mut done = 0;
        while done < len || self.conn.is_within_record() {
            let sent = match done < len {
                true => view(done, &mut |bytes| self.conn.try_send(bytes)),
                false => Some(self.conn.try_flush().map(|()| 0)),
            };
            let failure = match sent {
                None => {
                    self.out_of_step = true;
                    return Ok(false);
                }
                Some(Ok(n)) => {
                    done += n;
                    continue;
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    let deadline = Limit::Idle(idle_timeout, None).deadline();
                    match self.conn.wait(sys::Interest::Write, deadline) {
                        Ok(ready) if ready.any() => continue,
                        Ok(_) => io::ErrorKind::TimedOut.into(),
                        Err(error) => error,
                    }
                }
                Some(Err(error)) => error,
            };
            return Err(self.note_failure(failure, done));
        }
        Ok(true)
    }

    /// Fills `buffer` with raw bytes before `deadline` (`None`: no limit). The end of the connection before that is
    /// `UnexpectedEof`.
    pub fn recv_exact(&mut self, buffer: &mut [u8], deadline: impl Into<Option<Instant>>) -> io::Result<()> {
        self.recv_limited(buffer, Limit::By(deadline.into()))
    }

    /// Fills `buffer` with raw bytes; gives up when none arrived for `idle_timeout`, and at `deadline`.
    pub fn recv_exact_progress(
        &mut self,
        buffer: &mut [u8],
        idle_timeout: Duration,
        deadline: impl Into<Option<Instant>>,
    ) -> io::Result<()> {
        self.recv_limited(buffer, Limit::Idle(idle_timeout, deadline.into()))
    }

    fn send_limited(&mut self, bytes: &[u8], limit: Limit) -> io::Result<()> {
        self.check_in_step()?;
        let mut done = 0;
        while done < bytes.len() {
            match self.conn.send_some(&bytes[done..], limit.deadline()) {
                Ok(n) => done += n,
                Err(error) => return Err(self.note_failure(error, done)),
            }
        }
        Ok(())
    }

    fn recv_limited(&mut self, buffer: &mut [u8], limit: Limit) -> io::Result<()> {
        self.check_in_step()?;
        let mut done = 0;
        while done < buffer.len() {
            match self.conn.recv_some(&mut buffer[done..], limit.deadline()) {
                Ok(0) => return Err(self.note_failure(io::ErrorKind::UnexpectedEof.into(), done)),
                Ok(n) => done += n,
                Err(error) => return Err(self.note_failure(error, done)),
            }
        }
        Ok(())
    }

    fn check_in_step(&self) -> io::Result<()> {
        if self.out_of_step {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the connection was given up after an earlier failure",
            ));
        }
        Ok(())
    }

    fn note_failure(&mut self, error: io::Error, moved_bytes: usize) -> io::Error {
        if error.kind() != io::ErrorKind::TimedOut || moved_bytes > 0 || self.conn.is_within_record() {
            self.out_of_step = true;
        }
        error
    }
}
