//! The queue that a link's TX threads share, and who may write to which connection now. Plain data under a lock; no
//! input or output.
//!
//! Each connection is at any time in the hands of one thread: its own TX thread, or a thread that pushes a small frame
//! and sends it itself because the TX thread sleeps ([`Line::Borrowed`]). The TX thread may wake up meanwhile; it then
//! finds its line borrowed and goes on waiting.

use std::collections::VecDeque;

use super::{FRAME_HEADER_BYTES, Outgoing};

/// A frame that has been begun, or is about to be.
pub(super) struct Sending {
    pub(super) frame: Outgoing,
    pub(super) header: [u8; FRAME_HEADER_BYTES],
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
    /// Connections whose threads sleep, in their own hands. A thread that wakes one, or borrows its connection, takes
    /// it out; the last to fall asleep comes first.
    idle: Vec<u16>,
    lines: Vec<Line>,
}

/// The result of a push: the next step of the pusher.
pub(super) enum Pushed {
    /// The queue is shut; here is the frame again.
    Shut(Outgoing),
    /// Wake this connection's thread, if any.
    Queued(Option<u16>),
    /// Send the frame over this connection, then [`Queue::give_back`].
    Borrowed(u16, Outgoing),
}

/// The next step of a TX thread.
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

    /// The next step of the TX thread of `connection`. Called whenever it is awake.
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
                // The thread that borrowed it gives it back, and sees to it then that nothing stays undone.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::link::{FrameHeader, Landing, LinkFault, OpKey, Place, Transfer, Violation};

    /// Frames are only passed around here.
    struct Untouched;

    impl Transfer for Untouched {
        fn admit(&self, _header: &FrameHeader) -> Result<Landing, Violation> {
            unreachable!("a queue does not look into its frames")
        }
        fn fold(&self, _header: &FrameHeader, _done: usize, _payload: &[u8]) -> bool {
            unreachable!("a queue does not look into its frames")
        }
        fn granule_bytes(&self, _header: &FrameHeader) -> usize {
            unreachable!("a queue does not look into its frames")
        }
        fn target(&self, _header: &FrameHeader, _done: usize) -> Place<'_> {
            unreachable!("a queue does not look into its frames")
        }
        fn source(&self, _header: &FrameHeader, _done: usize) -> Place<'_> {
            unreachable!("a queue does not look into its frames")
        }
        fn arrived(&self, _header: &FrameHeader) {}
        fn corrupt(&self, _header: &FrameHeader, _peer: u128, _generation: u64) {}
        fn released(&self, _header: &FrameHeader) {}
        fn link_failed(&self, _fault: &LinkFault) {}
    }

    fn frame(offset: u64) -> Outgoing {
        let op = OpKey { epoch: 0, tag: 0, attempt: 0, pair: false, track: 0 };
        let header = FrameHeader { op, part: 0, stage: 0, offset, len: 0, flags: 0, checksum: 0 };
        Outgoing { transfer: Arc::new(Untouched), header }
    }

    fn sending(frame: Outgoing) -> Box<Sending> {
        Box::new(Sending { frame, header: [0; FRAME_HEADER_BYTES], sent: 7 })
    }

    /// The next step that a TX thread is told, in short.
    fn next(queue: &mut Queue, connection: u16) -> String {
        match queue.next(connection) {
            Work::Frame(frame) => format!("frame {}", frame.header.offset),
            Work::Rest(rest) => format!("rest of {} from {}", rest.frame.header.offset, rest.sent),
            Work::Sleep => "sleep".to_owned(),
            Work::End => "end".to_owned(),
        }
    }

    fn push(queue: &mut Queue, offset: u64, may_borrow: bool) -> String {
        match queue.push(frame(offset), may_borrow) {
            Pushed::Shut(frame) => format!("shut for {}", frame.header.offset),
            Pushed::Queued(woken) => format!("wake {woken:?}"),
            Pushed::Borrowed(connection, frame) => format!("send {} on {connection}", frame.header.offset),
        }
    }

    #[test]
    fn the_last_to_fall_asleep_is_woken_first_and_nobody_twice() {
        let mut queue = Queue::new(3);
        for connection in 0..3 {
            assert_eq!(next(&mut queue, connection), "sleep");
        }
        assert_eq!(push(&mut queue, 1, false), "wake Some(2)");
        let woken = queue.push_all((2..6).map(frame).collect()).expect("open");
        assert_eq!(woken, [0, 1]);
        assert_eq!(push(&mut queue, 6, true), "wake None");
        assert_eq!(next(&mut queue, 1), "frame 1");
        assert_eq!(queue.len(), 5);
    }

    #[test]
    fn a_thread_that_wakes_by_itself_is_not_listed_twice() {
        let mut queue = Queue::new(1);
        for _ in 0..3 {
            assert_eq!(next(&mut queue, 0), "sleep");
        }
        assert_eq!(push(&mut queue, 1, false), "wake Some(0)");
        assert_eq!(push(&mut queue, 2, false), "wake None");
    }

    #[test]
    fn a_borrowed_connection_is_left_alone_by_its_thread() {
        let mut queue = Queue::new(1);
        assert_eq!(next(&mut queue, 0), "sleep");
        assert_eq!(push(&mut queue, 1, true), "send 1 on 0");
        assert_eq!(next(&mut queue, 0), "sleep");
        // Nobody can be woken for this one now; the borrower will do it.
        assert_eq!(push(&mut queue, 2, true), "wake None");
        assert_eq!(next(&mut queue, 0), "sleep");
        assert!(matches!(queue.give_back(0, None), Ok(true)));
        assert_eq!(next(&mut queue, 0), "frame 2");
        assert_eq!(next(&mut queue, 0), "sleep");
        assert_eq!(push(&mut queue, 3, true), "send 3 on 0");
        assert!(matches!(queue.give_back(0, None), Ok(false)));
        assert_eq!(push(&mut queue, 4, true), "send 4 on 0");
    }

    #[test]
    fn the_rest_of_a_frame_comes_before_other_frames() {
        let mut queue = Queue::new(1);
        assert_eq!(next(&mut queue, 0), "sleep");
        let Pushed::Borrowed(0, begun) = queue.push(frame(1), true) else { panic!("the thread sleeps") };
        assert_eq!(push(&mut queue, 2, true), "wake None");
        assert!(matches!(queue.give_back(0, Some(sending(begun))), Ok(true)));
        assert_eq!(next(&mut queue, 0), "rest of 1 from 7");
        assert_eq!(next(&mut queue, 0), "frame 2");
    }

    #[test]
    fn shutting_hands_everything_out_once() {
        let mut queue = Queue::new(2);
        assert_eq!(next(&mut queue, 0), "sleep");
        assert_eq!(next(&mut queue, 1), "sleep");
        let Pushed::Borrowed(1, first) = queue.push(frame(1), true) else { panic!("the thread sleeps") };
        let Pushed::Borrowed(0, second) = queue.push(frame(2), true) else { panic!("the thread sleeps") };
        assert!(matches!(queue.give_back(1, Some(sending(first))), Ok(true)));
        assert_eq!(push(&mut queue, 3, true), "wake None");
        let mut offsets: Vec<_> = queue.shut().iter().map(|frame| frame.header.offset).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [1, 3]);
        assert!(matches!(queue.give_back(0, Some(sending(second))), Err(Some(_))));
        assert_eq!(next(&mut queue, 1), "end");
        assert_eq!(push(&mut queue, 4, true), "shut for 4");
        assert!(queue.push_all(vec![frame(5)]).is_err());
        assert!(queue.shut().is_empty());
    }
}
