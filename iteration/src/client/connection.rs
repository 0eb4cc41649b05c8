//! One connection to a TCPStore.

use crate::{
    store::MAX_VALUE_BYTES,
    wire::{Code, MAGIC, NOT_READY, READY, STOP_WAITING, WAIT_CANCELLED},
};
use std::{
    io, process,
    time::{Duration, Instant},
};
use tinysockets::{address::HostPort, conn::Conn, dial::dial, sys::Interest};

/// Time that a cancelled wait gets to be confirmed.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a call on a connection failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection broke, or the time is over.
    Io(io::Error),
    /// The other end is no TCPStore.
    Malformed(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A connection that has said what it is.
#[derive(Debug)]
pub(super) struct Connection {
    conn: Conn,
}

impl Connection {
    /// Connects and introduces itself; the answer to a ping shows that the other end understands.
    pub(super) fn open(target: &HostPort, deadline: Instant) -> Result<Self, String> {
        let conn = dial(target, deadline).map_err(|error| error.to_string())?;
        let mut this = Self { conn };
        // In one write: a server of PyTorch closes the connection if these bytes come in pieces.
        let mut hello = vec![Code::Validate as u8];
        hello.extend_from_slice(&MAGIC.to_le_bytes());
        match this.send(&hello, deadline).and_then(|()| this.ping(deadline)) {
            Ok(()) => Ok(this),
            Err(Failure::Io(error)) => Err(error.to_string()),
            Err(Failure::Malformed(text)) => Err(text),
        }
    }

    /// Whether the other end has closed, or has said something unasked.
    pub(super) fn is_dead(&self) -> bool {
        let ready = self.conn.wait(Interest::Read, Some(Instant::now()));
        !ready.is_ok_and(|readiness| !readiness.any())
    }

    pub(super) fn ping(&mut self, deadline: Instant) -> Result<(), Failure> {
        let nonce = process::id().to_le_bytes();
        let mut command = vec![Code::Ping as u8];
        command.extend_from_slice(&nonce);
        self.send(&command, deadline)?;
        let mut answer = [0; 4];
        self.conn.recv_all(&mut answer, Some(deadline))?;
        if answer == nonce { Ok(()) } else { Err(Failure::Malformed("a wrong answer to a ping".into())) }
    }

    pub(super) fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), Failure> {
        Ok(self.conn.send_all(bytes, Some(deadline))?)
    }

    pub(super) fn read_byte(&mut self, deadline: Instant) -> Result<u8, Failure> {
        let mut byte = [0];
        self.conn.recv_all(&mut byte, Some(deadline))?;
        Ok(byte[0])
    }

    /// The answer to a check.
    pub(super) fn read_is_ready(&mut self, deadline: Instant) -> Result<bool, Failure> {
        match self.read_byte(deadline)? {
            READY => Ok(true),
            NOT_READY => Ok(false),
            other => Err(Failure::Malformed(format!("{other} is no answer to a check"))),
        }
    }

    pub(super) fn read_number(&mut self, deadline: Instant) -> Result<i64, Failure> {
        let mut bytes = [0; 8];
        self.conn.recv_all(&mut bytes, Some(deadline))?;
        Ok(i64::from_le_bytes(bytes))
    }

    pub(super) fn read_string(&mut self, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let length = self.read_number(deadline)?;
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_VALUE_BYTES)
            .ok_or_else(|| Failure::Malformed(format!("a value of {length} bytes")))?;
        let mut bytes = vec![0; length];
        self.conn.recv_all(&mut bytes, Some(deadline))?;
        Ok(bytes)
    }

    /// Sends a command that waits, and cancels it at the deadline. Whether the wait was fulfilled.
    pub(super) fn wait(&mut self, command: &[u8], deadline: Instant) -> Result<bool, Failure> {
        let cancelled_by = deadline + CANCEL_TIMEOUT;
        self.send(command, cancelled_by)?;
        let is_there = self.conn.wait(Interest::Read, Some(deadline))?.any();
        if is_there {
            return match self.read_byte(cancelled_by)? {
                STOP_WAITING => Ok(true),
                other => Err(Failure::Malformed(format!("{other} is no answer to a wait"))),
            };
        }
        self.send(&[Code::CancelWait as u8], cancelled_by)?;
        // The answer to the wait may have been on its way; the one to the cancel comes behind it in any case.
        match self.read_byte(cancelled_by)? {
            WAIT_CANCELLED => Ok(false),
            STOP_WAITING => match self.read_byte(cancelled_by)? {
                WAIT_CANCELLED => Ok(true),
                other => Err(Failure::Malformed(format!("{other} is no answer to a cancelled wait"))),
            },
            other => Err(Failure::Malformed(format!("{other} is no answer to a wait"))),
        }
    }
}
