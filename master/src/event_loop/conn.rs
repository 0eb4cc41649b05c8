//! One connection: its socket, what it has sent, and what waits to be written to it.

use super::{half_open::HalfOpen, inbox::Inbox};
use pccl_protocol::M2c;
use std::{
    io,
    net::{Shutdown, SocketAddr},
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn as Stream,
    write_queue::{Frame, WriteQueue},
};

/// Time in which a connection that is being closed must have taken what is queued for it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after the flush in which the other end may read and close. Closing with unread bytes in the receive buffer
/// would make the kernel reset the connection and throw away what it has not sent yet, the reason for a kick for
/// instance, so what arrives in this time is read and thrown away.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a connection stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// The preamble has not arrived completely; it must before the deadline.
    HalfOpen(HalfOpen, Instant),
    /// A client that the state knows.
    Client(Inbox),
    /// Being flushed and closed; nothing it sends is looked at any more.
    Closing {
        /// When it is dropped, whatever is left.
        deadline: Instant,
        /// Everything is written and the writing half is shut.
        flushed: bool,
    },
}

/// What one attempt to read gave.
#[derive(Debug)]
pub(super) enum Received {
    /// This many bytes.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The connection is over; why.
    End(String),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: Stream,
    pub(super) remote: SocketAddr,
    pub(super) phase: Phase,
    /// The queue grew beyond its limit; the state has been told.
    pub(super) overflowed: bool,
    queue: WriteQueue,
    /// The first write error. The connection lives on until it is read empty: a last packet may lie in front of the
    /// end of the stream.
    write_error: Option<String>,
}

impl Conn {
    /// A connection of which nothing is known yet.
    pub(super) fn new(stream: Stream, remote: SocketAddr, preamble_deadline: Instant) -> Self {
        Self {
            stream,
            remote,
            phase: Phase::HalfOpen(HalfOpen::default(), preamble_deadline),
            overflowed: false,
            queue: WriteQueue::default(),
            write_error: None,
        }
    }

    /// Reads once.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        match self.stream.try_recv(buffer) {
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

    /// Queues a packet, encoded in `frame`. `false`: more than `limit_bytes` would wait then. Everything that has not
    /// begun to leave is thrown away, since the state is about to drop this client; only a kick is queued from then on.
    pub(super) fn queue(&mut self, packet: &M2c, frame: Frame, limit_bytes: usize) -> bool {
        if self.overflowed && !matches!(packet, M2c::Kicked(_)) {
            return true;
        }
        if !self.overflowed && self.queue.waiting_bytes() + frame.len() > limit_bytes {
            self.overflowed = true;
            self.queue.drop_unsent();
            return false;
        }
        self.queue.push(frame);
        true
    }

    /// Queues bytes that are no packet.
    pub(super) fn queue_raw(&mut self, bytes: &[u8]) {
        self.queue.push(Frame::new(bytes.to_vec()));
    }

    /// Writes what the socket takes. `true`: the connection is to be read, since writing failed.
    #[must_use]
    pub(super) fn flush(&mut self, now: Instant) -> bool {
        if self.write_error.is_some() {
            return true;
        }
        if let Err(error) = self.queue.write_to(|parts| self.stream.try_send_many(parts)) {
            self.write_error = Some(format!("write failed: {error}"));
            return true;
        }
        if let Phase::Closing { deadline, flushed } = &mut self.phase
            && !*flushed
            && self.queue.is_empty()
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
    pub(super) fn close(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Closing { .. }) {
            self.phase = Phase::Closing { deadline: now + FLUSH_TIMEOUT, flushed: false };
        }
    }

    /// When this connection is dropped or closed unless something happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::HalfOpen(_, deadline) | Phase::Closing { deadline, .. } => Some(deadline),
            Phase::Client(_) => None,
        }
    }

    /// Whether it is being closed and everything is written.
    pub(super) fn is_flushed(&self) -> bool {
        matches!(self.phase, Phase::Closing { flushed: true, .. })
    }

    /// Moves the deadline by a time in which the whole loop stood still.
    pub(super) fn extend_deadline(&mut self, gap: Duration) {
        if let Phase::HalfOpen(_, deadline) | Phase::Closing { deadline, .. } = &mut self.phase {
            *deadline += gap;
        }
    }
}
