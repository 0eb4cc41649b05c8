//! One connection of the server.

use crate::wire::Scanner;
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Instant,
};
use tinysockets::{conn::Conn as Stream, write_queue::WriteQueue};

/// Most bytes that wait to be written to one connection; with more, no further command of it is looked at.
pub(super) const MAX_WAITING_BYTES: usize = 1 << 20;

/// A connection: what has come and was not understood yet, and what waits to be written.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: Stream,
    pub(super) remote: SocketAddr,
    pub(super) input: Vec<u8>,
    pub(super) scanner: Scanner,
    pub(super) out: WriteQueue,
    /// It has said what it is; before, it must do so by this time.
    pub(super) validate_by: Option<Instant>,
    /// Bytes that it held when it was last looked at.
    pub(super) held: usize,
    /// Bytes of the keys that it waits for.
    pub(super) wait_bytes: usize,
}

impl Conn {
    pub(super) fn new(stream: Stream, remote: SocketAddr, validate_by: Instant) -> Self {
        Self {
            stream,
            remote,
            input: Vec::new(),
            scanner: Scanner::default(),
            out: WriteQueue::default(),
            validate_by: Some(validate_by),
            held: 0,
            wait_bytes: 0,
        }
    }

    /// Whether it takes no answers, so that no more are made for it.
    pub(super) fn is_clogged(&self) -> bool {
        self.out.waiting_bytes() > MAX_WAITING_BYTES
    }

    /// Bytes that it holds now.
    pub(super) fn holds(&self) -> usize {
        self.input.capacity() + self.out.waiting_bytes() + self.wait_bytes
    }
}

/// Bytes that connections hold: all of them, and those from one address.
#[derive(Debug, Default)]
pub(super) struct Held {
    all: usize,
    by_origin: HashMap<IpAddr, usize>,
}

impl Held {
    /// Counts what a connection holds now.
    pub(super) fn note(&mut self, conn: &mut Conn) {
        self.change(conn, conn.holds());
    }

    /// A connection goes.
    pub(super) fn release(&mut self, conn: &mut Conn) {
        self.change(conn, 0);
    }

    fn change(&mut self, conn: &mut Conn, now: usize) {
        if now == conn.held {
            return;
        }
        self.all = self.all - conn.held + now;
        let of_origin = self.by_origin.entry(conn.remote.ip().to_canonical()).or_default();
        *of_origin = *of_origin - conn.held + now;
        if *of_origin == 0 {
            self.by_origin.remove(&conn.remote.ip().to_canonical());
        }
        conn.held = now;
    }

    /// Bytes of all connections.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Bytes of all connections from the address of this one.
    pub(super) fn of_origin(&self, conn: &Conn) -> usize {
        self.by_origin.get(&conn.remote.ip().to_canonical()).copied().unwrap_or(0)
    }
}
