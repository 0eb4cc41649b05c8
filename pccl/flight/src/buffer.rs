//! The bounded buffer of events of one peer or master.

use crate::{Entry, Event, File, Header, Role, event::Lane};
use parking_lot::Mutex;
use pccl_protocol::{GroupId, Name, PeerId, RunId};
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Signs of life that are kept. They are what clocks are aligned by when nothing else is sent.
pub(super) const BEATS: usize = 64;
/// Rare events that are kept, as a part of the frequent ones.
const RARE_PART: usize = 4;

/// The process that records, as far as it is known.
#[derive(Debug, Clone)]
struct Who {
    role: Role,
    run: Option<RunId>,
    peer: Option<PeerId>,
    group: GroupId,
    name: Name,
}

/// The last events, and who recorded them.
#[derive(Debug)]
pub(super) struct Buffer {
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

impl Buffer {
    /// Without events; `host` is the name of this machine.
    pub(super) fn new(role: Role, group: GroupId, host: String, capacity: usize) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let room = |wanted: usize| VecDeque::with_capacity(if capacity == 0 { 0 } else { wanted });
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            capacity,
            started: Instant::now(),
            started_wall_us: micros(since_1970),
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed) + 1,
            host,
            who: Mutex::new(Who { role, run: None, peer: None, group, name: Name::default() }),
            lanes: Mutex::new(Lanes {
                next_sequence: 0,
                dropped: 0,
                busy: room(capacity),
                rare: room(rare_capacity(capacity)),
                beats: room(BEATS),
            }),
        }
    }

    /// Says who it is that records, from now on.
    pub(super) fn identify(&self, run: RunId, peer: Option<PeerId>) {
        let mut who = self.who.lock();
        who.run = Some(run);
        who.peer = peer;
    }

    /// Says what the peer is called that records.
    pub(super) fn set_name(&self, name: Name) {
        self.who.lock().name = name;
    }

    /// Adds an event; the oldest one of its kind goes if there is no room. Not made if nothing is recorded.
    pub(super) fn add(&self, event: impl FnOnce() -> Event) {
        let capacity = self.capacity;
        if capacity == 0 {
            return;
        }
        let event = event();
        let lane = event.lane();
        let mut lanes = self.lanes.lock();
        let sequence = lanes.next_sequence;
        lanes.next_sequence += 1;
        // Inside the lock, so that times and sequence numbers rise together.
        let at_us = micros(self.started.elapsed());
        let (kept, most) = match lane {
            Lane::Busy => (&mut lanes.busy, capacity),
            Lane::Rare => (&mut lanes.rare, rare_capacity(capacity)),
            Lane::Beats => (&mut lanes.beats, BEATS),
        };
        let oldest = if kept.len() >= most { kept.pop_front() } else { None };
        kept.push_back(Entry { sequence, at_us, event });
        lanes.dropped += u64::from(oldest.is_some());
    }

    /// The content of a file that is written now.
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
