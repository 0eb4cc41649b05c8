//! One connection: its socket, what it has sent, and what waits to be written to it.

use super::half_open::HalfOpen;
use super::inbox::Inbox;
use crate::event_loop::connections::place::Place;
use pccl_protocol::{
    M2c, Term,
    limits::{CONTROL_BUFFER_BYTES, MAX_KEPT_BYTES, MAX_THROWN_AWAY_BYTES, MIN_READ_BYTES, READER_WINDOW_MS},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr},
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn as Stream,
    key::RunKey,
    ticket::Lock,
    write_queue::{Frame, WriteQueue},
};

/// Time in which a connection that is being closed must have taken what is queued for it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after the flush in which the other end may read and close. Closing with unread bytes in the receive buffer
/// would make the kernel reset the connection and throw away what it has not sent yet, the reason for a kick for
/// instance, so what arrives in this time is read and thrown away.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time in which a client has to take some of what waits for it.
const READER_WINDOW: Duration = Duration::from_millis(READER_WINDOW_MS);

/// Where a connection stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// It is not known yet whose it is; it must be before the deadline.
    HalfOpen(Box<HalfOpen>, Instant),
    /// A client that the state knows.
    Client(Inbox),
    /// Being flushed and closed; nothing it sends is looked at any more.
    Closing {
        /// When it is dropped, whatever is left.
        deadline: Instant,
        /// Everything is written and the writing half is shut.
        flushed: bool,
        /// Bytes that have arrived meanwhile.
        thrown_away_bytes: usize,
    },
}

/// The result of one attempt to read.
#[derive(Debug)]
pub(crate) enum Received {
    /// This many bytes.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The connection is over; why.
    End(String),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: Stream,
    pub(crate) remote: SocketAddr,
    pub(crate) phase: Phase,
    /// The run key that the other end has proven. Missing without a key, and for a place that was recalled.
    pub(crate) opened_by: Option<RunKey>,
    /// The queue grew beyond its limit; the state has been told.
    pub(crate) overflowed: bool,
    /// The connection has ended, and another one may take its place.
    pub(crate) away: bool,
    /// Numbered packets of the client that have come.
    pub(crate) received: u64,
    /// As in [`Place`], until it is back.
    pub(crate) at_most: Option<(Term, u64)>,
    pub(crate) queue: WriteQueue,
    /// Since when the client has been watched that does not read all: what had left then, and what it has to take.
    reader: Option<(Instant, u64, u64)>,
    /// The first write error. The connection lives on until it is read empty: a last packet may lie in front of the
    /// end of the stream.
    write_error: Option<String>,
}

impl Conn {
    /// A connection of which nothing is known yet.
    pub(crate) fn new(
        stream: Stream,
        remote: SocketAddr,
        lock: Option<Lock>,
        preamble_deadline: Instant,
    ) -> Self {
        Self {
            stream,
            remote,
            phase: Phase::HalfOpen(Box::new(HalfOpen::new(lock)), preamble_deadline),
            opened_by: None,
            overflowed: false,
            away: false,
            received: 0,
            at_most: None,
            queue: WriteQueue::default(),
            reader: None,
            write_error: None,
        }
    }

    /// The place of a client of the master that this one takes the place of: it may come back to it.
    pub(crate) fn recalled(place: Place) -> io::Result<Self> {
        let Place { remote, received, at_most, queue } = place;
        let stream = Stream::unconnected()?;
        let mut conn = Self::new(stream, SocketAddr::new(remote, 0), None, Instant::now());
        conn.phase = Phase::Client(Inbox::new());
        (conn.away, conn.received, conn.at_most, conn.queue) = (true, received, at_most, queue);
        Ok(conn)
    }

    /// From where its client comes: the loopback address if that is this machine, by whatever address.
    pub(crate) fn origin(&self) -> IpAddr {
        let remote = self.remote.ip().to_canonical();
        let is_here = self.stream.local_addr().is_ok_and(|local| local.ip().to_canonical() == remote);
        if is_here { Ipv4Addr::LOCALHOST.into() } else { remote }
    }

    /// Reads once: into `buffer`, or, as long as it is not known whose the connection is, no more than that takes.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        let place = match &mut self.phase {
            Phase::HalfOpen(half_open, _) => half_open.missing(),
            Phase::Client(_) | Phase::Closing { .. } => buffer,
        };
        match self.stream.try_recv(place) {
            Ok(0) => {
                Received::End(self.write_error.take().unwrap_or_else(|| "closed by the other end".into()))
            }
            Ok(n) => Received::Bytes(n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.write_error.take() {
                Some(text) => Received::End(text),
                None => Received::Nothing,
            },
            Err(error) => Received::End(format!("read failed: {error}")),
        }
    }

    /// Whether what was received is all that there is, if it is less than there was room for.
    pub(crate) const fn gives_all(&self) -> bool {
        self.stream.is_plain() && self.write_error.is_none()
    }

    /// Whether one more frame is more than may wait. One alone always may.
    pub(crate) fn is_full(&self, frame: &Frame, limit_bytes: usize) -> bool {
        !self.overflowed && !self.queue.is_empty() && self.queue.waiting_bytes() + frame.len() > limit_bytes
    }

    /// Queues a packet, encoded in `frame`.
    pub(crate) fn queue(&mut self, packet: &M2c, frame: Frame) {
        if !self.overflowed || matches!(packet, M2c::Kicked(_)) {
            self.queue.push(frame);
        }
    }

    /// Throws everything away that has not begun to leave, since the state is about to drop this client; only a kick
    /// is queued from then on.
    pub(crate) fn overflow(&mut self) {
        self.overflowed = true;
        self.queue.drop_unsent();
    }

    /// Bytes that wait for a client; none for one that is about to be dropped.
    pub(crate) fn waiting_bytes(&self) -> usize {
        if self.overflowed { 0 } else { self.queue.waiting_bytes() }
    }

    /// Whether the client has taken too little of what waits for it for too long. To be asked from time to time.
    pub(crate) fn reads_too_slowly(&mut self, now: Instant) -> bool {
        let waits = !self.away
            && matches!(self.phase, Phase::Client(_))
            && !self.overflowed
            && !self.queue.is_empty()
            && !self.queue.is_held();
        let left = self.queue.left_bytes();
        let wanted = (self.queue.waiting_bytes().min(MIN_READ_BYTES)) as u64;
        match self.reader {
            Some((since, then, has_to)) if waits && left - then < has_to => now - since >= READER_WINDOW,
            _ => {
                self.reader = waits.then_some((now, left, wanted));
                false
            }
        }
    }

    /// It is a client from now on. The system is not to keep more for it than is good for a connection with few bytes.
    pub(crate) fn begin(&mut self) {
        if let Phase::HalfOpen(half_open, _) = &self.phase {
            self.opened_by = half_open.opened_by().cloned();
        }
        self.phase = Phase::Client(Inbox::new());
        self.queue.keep(MAX_KEPT_BYTES);
        if let Err(error) = self.stream.bound_system_buffers(CONTROL_BUFFER_BYTES) {
            log::debug!("{}: what the system keeps for it is not bounded: {error}", self.remote);
        }
    }

    /// Goes on over the connection of another one.
    pub(crate) fn take_over(&mut self, other: Self) {
        let Self { stream, remote, phase, opened_by, .. } = other;
        (self.stream, self.remote, self.phase, self.opened_by) = (stream, remote, phase, opened_by);
        (self.away, self.reader, self.write_error) = (false, None, None);
    }

    /// Whether this number of further bytes may be thrown away of a connection that is being closed.
    pub(crate) fn throw_away(&mut self, bytes: usize) -> bool {
        let Phase::Closing { thrown_away_bytes, .. } = &mut self.phase else { return true };
        *thrown_away_bytes += bytes;
        *thrown_away_bytes <= MAX_THROWN_AWAY_BYTES
    }

    /// Queues bytes that are no packet.
    pub(crate) fn queue_raw(&mut self, bytes: &[u8]) {
        self.queue.push(Frame::new(bytes.to_vec()));
    }

    /// Writes what the socket takes. `true`: the connection is to be read, since writing failed.
    #[must_use]
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        if self.away {
            return false;
        }
        if self.write_error.is_some() {
            return true;
        }
        let written = self.queue.write_to(|parts| self.stream.try_send_many(parts));
        if let Err(error) = written.and_then(|()| self.stream.try_flush())
            && error.kind() != io::ErrorKind::WouldBlock
        {
            self.write_error = Some(format!("write failed: {error}"));
            return true;
        }
        if let Phase::Closing { deadline, flushed, .. } = &mut self.phase
            && !*flushed
            && self.queue.is_empty()
            && !self.stream.is_within_record()
        {
            *flushed = true;
            *deadline = (*deadline).min(now + LINGER_TIMEOUT);
            if let Err(error) = self.stream.shutdown(Shutdown::Write) {
                self.write_error = Some(format!("shutdown failed: {error}"));
                return true;
            }
        }
        false
    }

    /// Begins to close: flush, then wait a little for the other end.
    pub(crate) fn close(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Closing { .. }) {
            self.phase =
                Phase::Closing { deadline: now + FLUSH_TIMEOUT, flushed: false, thrown_away_bytes: 0 };
        }
    }

    /// When this connection is dropped or closed unless something happens before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::HalfOpen(_, deadline) | Phase::Closing { deadline, .. } => Some(deadline),
            Phase::Client(_) => None,
        }
    }

    /// Whether it is being closed and everything is written.
    pub(crate) fn is_flushed(&self) -> bool {
        matches!(self.phase, Phase::Closing { flushed: true, .. })
    }

    /// Whether nothing waits that may leave.
    pub(crate) fn has_said_all(&self) -> bool {
        let is_written = self.queue.is_held() || self.queue.is_empty() && !self.stream.is_within_record();
        self.away || self.write_error.is_some() || is_written
    }

    /// Moves the deadline by a time in which the whole loop stood still.
    pub(crate) fn extend_deadline(&mut self, gap: Duration) {
        self.reader = None;
        if let Phase::HalfOpen(_, deadline) | Phase::Closing { deadline, .. } = &mut self.phase {
            *deadline += gap;
        }
    }
}
