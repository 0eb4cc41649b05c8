//! Who reads from the connection: a thread of its own, or, for a while, one that waits for what arrives.
//!
//! A thread that waits for a packet can read the connection itself ([`Reading::visit`]). That saves waking the reading
//! thread, which then wakes the one that waits. A visit leaves the reading thread aside for [`LINGER`] more, because
//! where there was one visit the next is often close; whoever needs it earlier calls [`Reading::recall`].
//!
//! There is one reader at a time: whoever holds `turn`. The reading thread gives it up when a visitor wakes it from its
//! wait in the kernel. It sleeps, without a limit during a long visit, until the visitor has gone.

use std::{
    cell::Cell,
    io,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use threadpark::{Parker, Unparker};

use super::{CloseReason, OnClose, Shared, Tap, TapFn};
use crate::{
    conn::Conn,
    sys::{self, Interest, PollEntry, Waker},
    wire::FrameParser,
};

/// Bytes asked of the socket at once.
const READ_BYTES: usize = 16 * 1024;

/// For how long after a visit the next one is awaited.
const LINGER: Duration = Duration::from_millis(5);

thread_local! {
    /// The connection that this thread reads from at the moment.
    static READS: Cell<*const Reading> = const { Cell::new(std::ptr::null()) };
}

/// See the module's documentation.
pub(super) struct Reading {
    /// Held by whoever reads; empty after the end of the connection.
    turn: Mutex<Option<Reader>>,
    /// Ends a wait in the kernel.
    waker: Waker,
    visits: Mutex<Visits>,
    thread: Unparker,
}

#[derive(Default)]
struct Visits {
    /// A visitor reads, or is about to.
    present: bool,
    /// Counts visits.
    number: u64,
    /// The reading thread does not read before this.
    aside_until: Option<Instant>,
    /// The reading thread sleeps without a limit: the visitor wakes it when it goes.
    sound_asleep: bool,
}

/// What the reading thread does next.
enum Next {
    Read,
    SleepUntil(Instant),
    Sleep,
}

/// What reads, whichever thread that is.
struct Reader {
    parser: FrameParser,
    tap: TapFn,
    on_close: Option<OnClose>,
    buffer: Vec<u8>,
}

/// How a turn went on.
enum Turn {
    /// There may be more.
    GoesOn,
    /// Somebody called, or the deadline passed.
    Interrupted,
    Ended(CloseReason),
}

impl Reading {
    pub(super) fn new(
        thread: Unparker,
        parser: FrameParser,
        tap: TapFn,
        on_close: Option<OnClose>,
    ) -> io::Result<Self> {
        let reader = Reader { parser, tap, on_close, buffer: vec![0; READ_BYTES] };
        let (turn, visits) = (Mutex::new(Some(reader)), Mutex::new(Visits::default()));
        Ok(Self { turn, waker: Waker::new()?, visits, thread })
    }

    /// The reading thread: until the connection has ended.
    pub(super) fn run(&self, shared: &Shared, parker: &Parker) {
        let mut visit_seen = None;
        loop {
            match self.next(&mut visit_seen) {
                Next::SleepUntil(deadline) => drop(parker.park_until(deadline)),
                Next::Sleep => parker.park(),
                Next::Read => {
                    if !self.read(shared, &mut self.turn.lock(), None) {
                        return;
                    }
                }
            }
        }
    }

    /// What the reading thread does next. A visit that it finds twice is a long one.
    fn next(&self, visit_seen: &mut Option<u64>) -> Next {
        let (mut visits, now) = (self.visits.lock(), Instant::now());
        if visits.present {
            visits.sound_asleep = *visit_seen == Some(visits.number);
            *visit_seen = Some(visits.number);
            return if visits.sound_asleep { Next::Sleep } else { Next::SleepUntil(now + LINGER) };
        }
        match visits.aside_until.filter(|until| *until > now) {
            Some(until) => Next::SleepUntil(until),
            None => Next::Read,
        }
    }

    /// Reads on the calling thread until `done`, the deadline, or the end of the connection. Returns at once if another
    /// visitor reads.
    pub(super) fn visit(&self, shared: &Shared, deadline: Option<Instant>, mut done: impl FnMut() -> bool) {
        {
            let mut visits = self.visits.lock();
            if visits.present || self.is_read_here() {
                return;
            }
            visits.present = true;
            visits.number += 1;
        }
        let mut turn = self.turn.try_lock().unwrap_or_else(|| {
            self.waker.wake();
            self.turn.lock()
        });
        while !done() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            if !self.read(shared, &mut turn, deadline) {
                break;
            }
        }
        drop(turn);
        let mut visits = self.visits.lock();
        visits.present = false;
        // Asked after the visit is over: who comes later finds that out, and recalls.
        let is_awaited = !shared.state.lock().waiters.is_empty();
        visits.aside_until = (!is_awaited).then(|| Instant::now() + LINGER);
        if std::mem::take(&mut visits.sound_asleep) || is_awaited {
            self.thread.unpark();
        }
    }

    /// Has a visitor look again at what it waits for.
    pub(super) fn interrupt(&self) {
        if !self.is_read_here() && self.visits.lock().present {
            self.waker.wake();
        }
    }

    /// Has the reading thread read from now on, if there is no visitor.
    pub(super) fn recall(&self) {
        let mut visits = self.visits.lock();
        if visits.aside_until.take().is_some() && !visits.present {
            self.thread.unpark();
        }
    }

    /// The connection has ended: wakes whoever sleeps instead of reading.
    pub(super) fn wake_all(&self) {
        self.visits.lock().aside_until = None;
        self.thread.unpark();
        self.waker.wake();
    }

    /// Returns when nobody reads any more. Not on a thread that reads.
    pub(super) fn wait_until_over(&self) {
        drop(self.turn.lock());
    }

    /// Whether the calling thread is within a read of this connection.
    pub(super) fn is_read_here(&self) -> bool {
        std::ptr::eq(READS.get(), self)
    }

    /// Waits for bytes and deals with them. `false`: the connection has ended, and all is told.
    fn read(&self, shared: &Shared, turn: &mut Option<Reader>, deadline: Option<Instant>) -> bool {
        let Some(reader) = turn else { return false };
        let before = READS.replace(self);
        // A panic of the tap must not leave the waiters waiting.
        let step = catch_unwind(AssertUnwindSafe(|| self.step(shared, reader, deadline)));
        let step = step.unwrap_or_else(|_| {
            Turn::Ended(CloseReason::Io("the handler of incoming packets panicked".to_owned()))
        });
        if let Turn::Ended(reason) = step {
            end(shared, turn, reason);
        }
        READS.set(before);
        turn.is_some()
    }

    fn step(&self, shared: &Shared, reader: &mut Reader, deadline: Option<Instant>) -> Turn {
        let mut entries =
            [shared.conn.poll_entry(Interest::Read), PollEntry::new(self.waker.as_fd(), Interest::Read)];
        if let Err(error) = sys::poll_many(&mut entries, deadline) {
            return Turn::Ended(CloseReason::Io(error.to_string()));
        }
        if entries[1].readiness().any() {
            self.waker.clear();
        }
        if !entries[0].readiness().any() {
            return Turn::Interrupted;
        }
        reader.read(&shared.conn, shared)
    }
}

/// Ends the connection and tells whoever wanted to know.
fn end(shared: &Shared, turn: &mut Option<Reader>, reason: CloseReason) {
    let first = shared.end(reason);
    log::debug!("connection ended: {first}");
    // What the tap holds may need to be gone before `on_close` runs, or may even hold this socket.
    let on_close = turn.take().and_then(|reader| reader.on_close);
    if let Some(on_close) = on_close
        && catch_unwind(AssertUnwindSafe(|| on_close(&first))).is_err()
    {
        log::error!("the handler of a closed connection panicked");
    }
}

impl Reader {
    fn read(&mut self, conn: &Conn, shared: &Shared) -> Turn {
        match conn.try_recv(&mut self.buffer) {
            Ok(0) => return Turn::Ended(self.end_of_stream()),
            Ok(n) => self.parser.feed(&self.buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Turn::GoesOn,
            Err(error) => return Turn::Ended(CloseReason::Io(error.to_string())),
        }
        self.sort_packets(shared).map_or_else(Turn::Ended, |()| Turn::GoesOn)
    }

    fn end_of_stream(&self) -> CloseReason {
        match self.parser.pending_bytes() {
            0 => CloseReason::Eof,
            n => CloseReason::Malformed(format!(
                "the connection ended inside a packet, {n} bytes of it had arrived"
            )),
        }
    }

    fn sort_packets(&mut self, shared: &Shared) -> Result<(), CloseReason> {
        while let Some((kind, body)) =
            self.parser.next_frame().map_err(|error| CloseReason::Malformed(error.to_string()))?
        {
            if let Some(reason) = &shared.state.lock().closed {
                return Err(reason.clone());
            }
            match (self.tap)(kind, body) {
                Tap::Consumed => {}
                Tap::Keep => shared.keep(kind, body)?,
                Tap::Close(reason) => return Err(CloseReason::Rejected(reason)),
            }
        }
        Ok(())
    }
}
