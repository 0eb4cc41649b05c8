//! A bounded queue and the thread that empties it, which is the only one that may wait for a writer.

use crate::{
    line::{Item, Line},
    repeats::Repeats,
    system,
};
use std::{
    cell::Cell,
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Items that wait at most.
const MOST_ITEMS: usize = 4096;
/// Their memory at most.
const MOST_BYTES: usize = 1 << 20;

thread_local! {
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread empties a queue.
pub(crate) fn is_writer() -> bool {
    IS_WRITER.try_with(Cell::get).unwrap_or(false)
}

/// A queue. Its mutex and condition variables are those of the standard library, which share nothing with others: a
/// forked child that never touches this queue cannot be stopped by what another thread of the parent had locked.
#[derive(Debug)]
pub(crate) struct Queue {
    thread: &'static str,
    state: Mutex<State>,
    /// For the thread: there may be something to write.
    filled: Condvar,
    /// For the thread that flushes: something was written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    /// It was full, and is not half empty yet: nothing is taken.
    is_full: bool,
    /// Items that were not taken since it was full.
    dropped: u64,
    repeats: Repeats,
    /// Items that were taken, and those of them that were written.
    taken: u64,
    done: u64,
    /// Since when the writer has been busy with one item.
    busy_since: Option<Instant>,
    has_thread: bool,
}

impl State {
    /// Takes an item if there is room.
    fn take(&mut self, item: Item) {
        let share = if self.is_full { 2 } else { 1 };
        if self.items.len() >= MOST_ITEMS / share || self.bytes + item.bytes() > MOST_BYTES / share {
            self.is_full = true;
            self.dropped += 1;
            return;
        }
        self.end_gap();
        self.put(item);
    }

    /// Says how many were dropped, where they would stand.
    fn end_gap(&mut self) {
        self.is_full = false;
        match std::mem::take(&mut self.dropped) {
            0 => {}
            1 => self.put_own("a line of the log was dropped here: lines came faster than they were written"),
            more => self.put_own(&format!(
                "{more} lines of the log were dropped here: they came faster than they were written"
            )),
        }
    }

    fn put_own(&mut self, text: &str) {
        self.put(Item::Line(Line::own(text.to_owned())));
    }

    /// Takes an item in any case.
    fn put(&mut self, item: Item) {
        self.bytes += item.bytes();
        self.taken += 1;
        self.items.push_back(item);
    }

    /// The next item to write.
    fn next(&mut self, now: Instant) -> Option<Item> {
        while let Some(summary) = self.repeats.due(now) {
            self.put(Item::Line(summary));
        }
        if self.items.is_empty() {
            self.end_gap();
        }
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes();
        Some(item)
    }
}

impl Queue {
    pub(crate) fn new(thread: &'static str) -> Self {
        Self { thread, state: Mutex::default(), filled: Condvar::new(), written: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an item, or counts it.
    pub(crate) fn push(&'static self, item: Item) {
        let mut state = self.lock();
        let (is_counted, evicted) = match &item {
            Item::Line(line) => state.repeats.count(line, Instant::now()),
            _ => (false, None),
        };
        if let Some(summary) = evicted {
            state.take(Item::Line(summary));
        }
        if !is_counted {
            state.take(item);
        }
        let is_first = !std::mem::replace(&mut state.has_thread, true);
        drop(state);
        if is_first && !system::spawn(self.thread, || self.write()) {
            // The next one tries again.
            self.lock().has_thread = false;
        }
        self.filled.notify_one();
    }

    /// Waits until all that was taken is written and flushed. Not if there is no thread for it, or if the thread has
    /// been busy with one item for `too_long`.
    pub(crate) fn flush(&self, deadline: Instant, too_long: Duration) -> bool {
        let mut state = self.lock();
        if !state.has_thread {
            return state.items.is_empty();
        }
        if state.busy_since.is_some_and(|since| since.elapsed() >= too_long) {
            return false;
        }
        state.end_gap();
        state.put(Item::Flush);
        let target = state.taken;
        self.filled.notify_one();
        while state.done < target {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.written.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The process ends: what was counted is written too.
    pub(crate) fn close(&self, deadline: Instant, too_long: Duration) {
        let mut state = self.lock();
        for summary in state.repeats.drain(Instant::now()) {
            state.put(Item::Line(summary));
        }
        drop(state);
        self.flush(deadline, too_long);
    }

    /// Writes what comes, for as long as the process lives.
    fn write(&self) {
        IS_WRITER.set(true);
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let Some(item) = state.next(now) else {
                state = match state.repeats.due_at() {
                    Some(at) => {
                        let pause = at.saturating_duration_since(now);
                        self.filled.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
                continue;
            };
            state.busy_since = Some(now);
            drop(state);
            item.write();
            state = self.lock();
            state.busy_since = None;
            state.done += 1;
            self.written.notify_all();
        }
    }
}
