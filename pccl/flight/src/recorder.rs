//! The bounded buffer of one peer or master.

use crate::{
    Entry, Event, File, Header, Role,
    event::Lane,
    store::{self, Writer},
};
use parking_lot::Mutex;
use pccl_protocol::{GroupId, Name, PeerId, RunId};
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Events of operations that are kept by default: the last hundred operations, or more.
pub const DEFAULT_CAPACITY: usize = 2048;
/// Signs of life that are kept. They are what clocks are aligned by when nothing else is sent.
const BEATS: usize = 64;
/// Rare events that are kept, as a part of the frequent ones.
const RARE_PART: usize = 4;

/// How a recorder works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where files are written after failures; `None` writes none.
    pub directory: Option<PathBuf>,
    /// Events of operations that are kept; rare ones have room for a quarter as many of their own. 0 records nothing.
    pub capacity: usize,
}

/// Who records, as far as it is known.
#[derive(Debug, Clone)]
struct Who {
    role: Role,
    run: Option<RunId>,
    peer: Option<PeerId>,
    group: GroupId,
    name: Name,
}

/// Keeps the last events of one peer or master. All calls may come from any thread.
#[derive(Debug)]
pub struct Recorder {
    inner: Arc<Inner>,
    writer: Option<Arc<Writer>>,
}

#[derive(Debug)]
pub(super) struct Inner {
    capacity: usize,
    started: Instant,
    started_wall_us: u64,
    instance: u64,
    host: String,
    who: Mutex<Who>,
    lanes: Mutex<Lanes>,
}

#[derive(Debug)]
struct Lanes {
    next_sequence: u64,
    dropped: u64,
    busy: VecDeque<Entry>,
    rare: VecDeque<Entry>,
    beats: VecDeque<Entry>,
}

impl Recorder {
    /// A recorder that has seen nothing.
    pub fn new(role: Role, group: GroupId, settings: Settings) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let Settings { directory, capacity } = settings;
        let room = |wanted: usize| VecDeque::with_capacity(if capacity == 0 { 0 } else { wanted });
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let inner = Arc::new(Inner {
            capacity,
            started: Instant::now(),
            started_wall_us: micros(since_1970),
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed) + 1,
            host: store::host_name(),
            who: Mutex::new(Who { role, run: None, peer: None, group, name: Name::default() }),
            lanes: Mutex::new(Lanes {
                next_sequence: 0,
                dropped: 0,
                busy: room(capacity),
                rare: room(rare_capacity(capacity)),
                beats: room(BEATS),
            }),
        });
        let writer = directory.map(|directory| Arc::new(Writer::new(directory)));
        Self { inner, writer }
    }

    /// Says who it is that records, from now on.
    pub fn identify(&self, run: RunId, peer: Option<PeerId>) {
        let mut who = self.inner.who.lock();
        who.run = Some(run);
        who.peer = peer;
    }

    /// Says what the peer is called that records.
    pub fn set_name(&self, name: Name) {
        self.inner.who.lock().name = name;
    }

    /// Adds an event; the oldest one of its kind goes if there is no room. Costs a clock reading and a short lock.
    pub fn record(&self, event: Event) {
        self.record_with(|| event);
    }

    /// As [`Recorder::record`], for events that cost something to make: not made if nothing is recorded.
    pub fn record_with(&self, event: impl FnOnce() -> Event) {
        let capacity = self.inner.capacity;
        if capacity == 0 {
            return;
        }
        let event = event();
        let lane = event.lane();
        let mut lanes = self.inner.lanes.lock();
        let sequence = lanes.next_sequence;
        lanes.next_sequence += 1;
        // Inside the lock, so that times and sequence numbers rise together.
        let at_us = micros(self.inner.started.elapsed());
        let (kept, most) = match lane {
            Lane::Busy => (&mut lanes.busy, capacity),
            Lane::Rare => (&mut lanes.rare, rare_capacity(capacity)),
            Lane::Beats => (&mut lanes.beats, BEATS),
        };
        let oldest = if kept.len() >= most { kept.pop_front() } else { None };
        kept.push_back(Entry { sequence, at_us, event });
        lanes.dropped += u64::from(oldest.is_some());
    }

    /// Notes that something failed: a file is written soon, on another thread, if there is a directory for it. Failures
    /// that follow each other closely share a file.
    pub fn fail(&self, why: impl FnOnce() -> String) {
        if let Some(writer) = &self.writer {
            writer.ask(&self.inner, why());
        }
    }

    /// Waits until the files of all failures so far are written, for `timeout` at most; not at all if so many have been
    /// written lately that the next one has to wait.
    pub fn flush(&self, timeout: Duration) {
        if let Some(writer) = &self.writer {
            writer.flush(timeout);
        }
    }

    /// What a file that is written now contains.
    pub fn snapshot(&self, why: impl Into<String>) -> File {
        self.inner.snapshot(why.into())
    }

    /// Writes a file into `directory` now, on this thread, whatever the settings say. Returns its path.
    ///
    /// # Errors
    /// What the file system says.
    pub fn dump(&self, directory: &Path, why: impl Into<String>) -> io::Result<PathBuf> {
        let file = self.snapshot(why);
        store::write(directory, &store::dump_name(&file.header), &file.to_text())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(writer) = &self.writer {
            writer.close();
        }
    }
}

impl Inner {
    pub(super) fn snapshot(&self, why: String) -> File {
        let who = self.who.lock().clone();
        let lanes = self.lanes.lock();
        let mut entries = Vec::with_capacity(lanes.busy.len() + lanes.rare.len() + lanes.beats.len());
        for lane in [&lanes.busy, &lanes.rare, &lanes.beats] {
            entries.extend(lane.iter().cloned());
        }
        let dropped = lanes.dropped;
        drop(lanes);
        entries.sort_unstable_by_key(|entry| entry.sequence);
        let header = Header {
            role: who.role,
            run: who.run,
            peer: who.peer,
            group: who.group,
            name: who.name,
            host: self.host.clone(),
            pid: std::process::id(),
            instance: self.instance,
            started_us: self.started_wall_us,
            written_us: micros(self.started.elapsed()),
            dropped,
            why,
        };
        File { header, entries }
    }
}

fn rare_capacity(capacity: usize) -> usize {
    (capacity / RARE_PART).max(1)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
