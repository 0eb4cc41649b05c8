//! The queue that a link's TX threads share, and who may write to which connection now. Plain data under a lock; no
//! input or output.
//!
//! Each connection is at any time in the hands of one thread: its own TX thread, or a thread that pushes a small frame
//! and sends it itself because the TX thread sleeps ([`Line::Borrowed`]). The TX thread may wake up meanwhile; it then
//! finds its line borrowed and goes on waiting.

use std::{collections::VecDeque, ops::Range};

use super::{FRAME_HEADER_BYTES, Outgoing};

/// A frame that has been begun, or is about to be.
pub(super) struct Sending {
    pub(super) frame: Outgoing,
    pub(super) header: [u8; FRAME_HEADER_BYTES],
    /// Where the payload lies in its memory.
    pub(super) payload: Range<usize>,
    /// Bytes sent, of header and payload together.
    pub(super) sent: usize,
}

/// In whose hands a connection is.
enum Line {
    /// Its TX thread's.
    Own,
    /// A pushing thread's.
    Borrowed,
    /// Its TX thread's, which shall first send the rest of this.
    Rest(Box<Sending>),
}

pub(super) struct Queue {
    open: bool,
    frames: VecDeque<Outgoing>,
    /// Connections whose threads sleep, in their own hands. Whoever wakes one, or borrows its connection, takes it out;
    /// the last to fall asleep comes first.
    idle: Vec<u16>,
    lines: Vec<Line>,
}

/// What to do after a push.
pub(super) enum Pushed {
    /// The queue is shut; here is the frame again.
    Shut(Outgoing),
    /// Wake this connection's thread, if any.
    Queued(Option<u16>),
    /// Send the frame over this connection, then [`Queue::give_back`].
    Borrowed(u16, Outgoing),
}

/// What a TX thread is to do.
pub(super) enum Work {
    /// Send this.
    Frame(Outgoing),
    /// Send the rest of this.
    Rest(Box<Sending>),
    /// Sleep until woken.
    Sleep,
    /// The queue is shut.
    End,
}

impl Queue {
    pub(super) fn new(connections: usize) -> Self {
        let lines = (0..connections).map(|_| Line::Own).collect();
        Self { open: true, frames: VecDeque::new(), idle: Vec::new(), lines }
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Adds a frame. With `may_borrow` it is handed out again, with a connection to send it on, if nothing is queued
    /// before it and a thread sleeps.
    pub(super) fn push(&mut self, frame: Outgoing, may_borrow: bool) -> Pushed {
        if !self.open {
            return Pushed::Shut(frame);
        }
        let idle = self.idle.pop();
        match idle {
            Some(connection) if may_borrow && self.frames.is_empty() => {
                self.lines[usize::from(connection)] = Line::Borrowed;
                Pushed::Borrowed(connection, frame)
            }
            _ => {
                self.frames.push_back(frame);
                Pushed::Queued(idle)
            }
        }
    }

    /// Adds several frames; returns the connections whose threads are to be woken, or the frames if the queue is shut.
    pub(super) fn push_all(&mut self, frames: Vec<Outgoing>) -> Result<Vec<u16>, Vec<Outgoing>> {
        if !self.open {
            return Err(frames);
        }
        let asleep = self.idle.len();
        let woken = self.idle.split_off(asleep - asleep.min(frames.len()));
        self.frames.extend(frames);
        Ok(woken)
    }

    /// What the TX thread of `connection` does next. Called whenever it is awake.
    pub(super) fn next(&mut self, connection: u16) -> Work {
        // Still there if it was not a push that ended the sleep.
        self.idle.retain(|&idle| idle != connection);
        if !self.open {
            return Work::End;
        }
        let line = &mut self.lines[usize::from(connection)];
        match std::mem::replace(line, Line::Own) {
            Line::Rest(sending) => return Work::Rest(sending),
            Line::Borrowed => {
                // Whoever has it gives it back, and sees to it then that nothing stays undone.
                *line = Line::Borrowed;
                return Work::Sleep;
            }
            Line::Own => {}
        }
        match self.frames.pop_front() {
            Some(frame) => Work::Frame(frame),
            None => {
                self.idle.push(connection);
                Work::Sleep
            }
        }
    }

    /// Ends the borrowing of `connection`, with what could not be sent without blocking. Returns whether its thread is
    /// to be woken; or, if the queue was shut meanwhile, the rest.
    pub(super) fn give_back(
        &mut self,
        connection: u16,
        rest: Option<Box<Sending>>,
    ) -> Result<bool, Option<Box<Sending>>> {
        if !self.open {
            return Err(rest);
        }
        let line = &mut self.lines[usize::from(connection)];
        if let Some(rest) = rest {
            *line = Line::Rest(rest);
            return Ok(true);
        }
        *line = Line::Own;
        // Frames queued meanwhile may have found nobody to wake.
        let has_work = !self.frames.is_empty();
        if !has_work {
            self.idle.push(connection);
        }
        Ok(has_work)
    }

    /// Shuts the queue for good and takes out everything in it.
    pub(super) fn shut(&mut self) -> Vec<Outgoing> {
        self.open = false;
        let rests = self.lines.iter_mut().filter_map(|line| match std::mem::replace(line, Line::Own) {
            Line::Rest(sending) => Some(sending.frame),
            Line::Own | Line::Borrowed => None,
        });
        rests.chain(std::mem::take(&mut self.frames)).collect()
    }
}
