//! Reading from the connection, on whichever thread has the turn.
//!
//! A thread that waits for a packet can read the connection itself ([`Reading::visit`]). That saves waking the reading
//! thread, which then wakes the one that waits. [`Turns`] decides which thread has the turn.

use std::{
    cell::Cell,
    io,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use threadpark::{Parker, Unparker};

use super::{
    CloseReason, OnClose, Shared, Tap, TapFn,
    turns::{Next, Turns, Wake},
};
use crate::{
    conn::Conn,
    sys::{self, Interest, PollEntry, Waker},
    wire::FrameParser,
};

/// Bytes asked of the socket at once.
const READ_BYTES: usize = 16 * 1024;

thread_local! {
    /// The connection that this thread reads from at the moment.
    static READS: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

/// See the module's documentation.
pub(super) struct Reading<T> {
    turns: Turns<Reader<T>, Waker>,
}

/// The reader, on whichever thread that is.
struct Reader<T> {
    parser: FrameParser,
    tap: TapFn<T>,
    on_close: Option<OnClose>,
    buffer: Vec<u8>,
}

/// How a turn went on.
enum Step {
    /// There may be more.
    GoesOn,
    /// Somebody called, or the deadline passed.
    Interrupted,
    Ended(CloseReason),
}

impl Wake for Waker {
    fn wake(&self) {
        Self::wake(self);
    }
}

impl<T> Reading<T> {
    pub(super) fn new(
        thread: Unparker,
        parser: FrameParser,
        tap: TapFn<T>,
        on_close: Option<OnClose>,
    ) -> io::Result<Self> {
        let reader = Reader { parser, tap, on_close, buffer: vec![0; READ_BYTES] };
        Ok(Self { turns: Turns::new(reader, Waker::new()?, thread) })
    }

    /// The reading thread: until the connection has ended.
    pub(super) fn run(&self, shared: &Shared<T>, parker: &Parker) {
        let mut visit_seen = None;
        loop {
            match self.turns.next(&mut visit_seen, Instant::now()) {
                Next::SleepUntil(deadline) => drop(parker.park_until(deadline)),
                Next::Sleep => parker.park(),
                Next::Read => {
                    if !self.read(shared, &mut self.turns.take(), None) {
                        return;
                    }
                }
            }
        }
    }

    /// Reads on the calling thread until `done`, the deadline, or the end of the connection. Returns at once if another
    /// visitor reads.
    pub(super) fn visit(
        &self,
        shared: &Shared<T>,
        deadline: Option<Instant>,
        mut done: impl FnMut() -> bool,
    ) {
        if self.is_read_here() {
            return;
        }
        let Some(mut turn) = self.turns.begin_visit() else { return };
        while !done() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            if !self.read(shared, &mut turn, deadline) {
                break;
            }
        }
        self.turns.end_visit(turn, Instant::now(), || !shared.state.lock().waiters.is_empty());
    }

    /// Has a visitor look again at what it waits for.
    pub(super) fn interrupt(&self) {
        if !self.is_read_here() {
            self.turns.interrupt();
        }
    }

    /// Has the reading thread read from now on, if there is no visitor.
    pub(super) fn recall(&self) {
        self.turns.recall();
    }

    /// The connection has ended: wakes the thread that sleeps instead of reading.
    pub(super) fn wake_all(&self) {
        self.turns.wake_all();
    }

    /// Returns when nobody reads any more. Not on a thread that reads.
    pub(super) fn wait_until_over(&self) {
        self.turns.wait_until_over();
    }

    /// Whether the calling thread is within a read of this connection.
    pub(super) fn is_read_here(&self) -> bool {
        std::ptr::eq(READS.get(), std::ptr::from_ref(self).cast())
    }

    /// Waits for bytes and deals with them. `false`: the connection has ended, and all is told.
    fn read(&self, shared: &Shared<T>, turn: &mut Option<Reader<T>>, deadline: Option<Instant>) -> bool {
        let Some(reader) = turn else { return false };
        let before = READS.replace(std::ptr::from_ref(self).cast());
        // A panic of the tap must not leave the waiters waiting.
        let step = catch_unwind(AssertUnwindSafe(|| self.step(shared, reader, deadline)));
        let step = step.unwrap_or_else(|_| {
            Step::Ended(CloseReason::Io("the handler of incoming packets panicked".to_owned()))
        });
        if let Step::Ended(reason) = step {
            end(shared, turn, reason);
        }
        READS.set(before);
        turn.is_some()
    }

    fn step(&self, shared: &Shared<T>, reader: &mut Reader<T>, deadline: Option<Instant>) -> Step {
        let mut entries = [
            shared.conn.poll_entry(Interest::Read),
            PollEntry::new(self.turns.waker().as_fd(), Interest::Read),
        ];
        if shared.conn.has_bytes() {
            return reader.read(&shared.conn, shared);
        }
        if let Err(error) = sys::poll_many(&mut entries, deadline) {
            return Step::Ended(CloseReason::Io(error.to_string()));
        }
        if entries[1].readiness().any() {
            self.turns.waker().clear();
        }
        if !entries[0].readiness().any() {
            return Step::Interrupted;
        }
        reader.read(&shared.conn, shared)
    }
}

/// Ends the connection and tells its `on_close`.
fn end<T>(shared: &Shared<T>, turn: &mut Option<Reader<T>>, reason: CloseReason) {
    let first = shared.end(reason);
    log::debug!("connection ended: {first}");
    // The things that the tap holds may need to be gone before `on_close` runs, or may even hold this socket.
    let on_close = turn.take().and_then(|reader| reader.on_close);
    if let Some(on_close) = on_close
        && catch_unwind(AssertUnwindSafe(|| on_close(&first))).is_err()
    {
        log::error!("the handler of a closed connection panicked");
    }
}

impl<T> Reader<T> {
    fn read(&mut self, conn: &Conn, shared: &Shared<T>) -> Step {
        match conn.try_recv(&mut self.buffer) {
            Ok(0) => return Step::Ended(self.end_of_stream()),
            Ok(n) => self.parser.feed(&self.buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::GoesOn,
            Err(error) => return Step::Ended(CloseReason::Io(error.to_string())),
        }
        self.sort_packets(shared).map_or_else(Step::Ended, |()| Step::GoesOn)
    }

    fn end_of_stream(&self) -> CloseReason {
        match self.parser.pending_bytes() {
            0 => CloseReason::Eof,
            n => CloseReason::Cut(n),
        }
    }

    fn sort_packets(&mut self, shared: &Shared<T>) -> Result<(), CloseReason> {
        while let Some((kind, body)) =
            self.parser.next_frame().map_err(|error| CloseReason::Malformed(error.to_string()))?
        {
            if let Some(reason) = &shared.state.lock().closed {
                return Err(reason.clone());
            }
            match (self.tap)(kind, body) {
                Tap::Consumed => {}
                Tap::Keep(packet) => shared.keep(packet)?,
                Tap::Close(reason) => return Err(CloseReason::Rejected(reason)),
            }
        }
        Ok(())
    }
}
