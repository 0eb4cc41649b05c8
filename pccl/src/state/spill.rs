//! The file of a journal: what is set aside there costs little processor time as long as the disk keeps up.
//!
//! A large piece is written past the page cache, from memory that is used again and again. Pages of the cache are new
//! ones most of the time, and to get those costs more than all else that is done with a piece. A disk that is slower
//! than that is written through the cache, which takes what it can and waits for the rest.

use parking_lot::Mutex;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tinysockets::private_file::create_new;

/// A piece that is written past the cache begins and ends at multiples of this, in the file and in memory.
const ALIGNMENT: usize = 4096;
/// A disk is fast enough if it takes less than this for a MiB, in the mean.
const FAST_ENOUGH: Duration = Duration::from_millis(4);
/// Bytes that say how fast it is; it counts as fast until then.
const TRIAL_BYTES: u64 = 16 << 20;

/// See the module's documentation. The file has no name: nobody else can open it, and it is gone with its last handle.
#[derive(Debug)]
pub(super) struct Spill {
    file: File,
    /// The same file, past the page cache. None if its file system cannot do that.
    direct: Option<File>,
    /// Where the next piece goes.
    end: AtomicU64,
    /// Bytes that were kept.
    bytes: AtomicU64,
    is_slow: AtomicBool,
    pace: Mutex<Pace>,
    began: Instant,
}

/// The bytes that were written past the cache, and how long that took.
#[derive(Debug, Default)]
struct Pace {
    bytes: u64,
    /// While at least one lane wrote.
    busy: Duration,
    /// Lanes that write now, and since when at least one does.
    writing: usize,
    since: Duration,
}

/// Memory of one lane through which pieces are written past the page cache.
#[derive(Debug, Default)]
pub(super) struct Stage {
    memory: Vec<u8>,
}

impl Spill {
    /// Smaller pieces are written through the page cache.
    pub(super) const LEAST_FAST_BYTES: usize = 64 << 10;

    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        for _ in 0..1000 {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!(".pccl-state-{}-{number}", std::process::id()));
            match create_new(&path) {
                Ok(file) => {
                    let direct = Self::open_direct(&file, &path);
                    std::fs::remove_file(&path)?;
                    return Ok(Self::of(file, direct));
                }
                // Left behind by a process that died between the two.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The file with this name past the page cache, if its file system can do that and it is still this one.
    fn open_direct(file: &File, path: &Path) -> Option<File> {
        let flags = tinysockets::sys::PAST_PAGE_CACHE? | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(path).ok()?;
        let identity = |file: &File| file.metadata().ok().map(|it| (it.dev(), it.ino()));
        (identity(&direct)? == identity(file)?).then_some(direct)
    }

    pub(super) fn of(file: File, direct: Option<File>) -> Self {
        Self {
            file,
            is_slow: AtomicBool::new(direct.is_none()),
            direct,
            end: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            pace: Mutex::default(),
            began: Instant::now(),
        }
    }

    /// Bytes that were kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether large pieces are written past the page cache.
    pub(super) fn is_fast(&self) -> bool {
        !self.is_slow.load(Ordering::Relaxed)
    }

    /// As if it had a fast way.
    #[cfg(test)]
    pub(super) fn set_fast(&self) {
        self.is_slow.store(false, Ordering::Relaxed);
    }

    /// Keeps a piece; returns where.
    pub(super) fn write(&self, piece: &[u8], stage: &mut Stage) -> io::Result<u64> {
        let at = self.end.fetch_add(piece.len().next_multiple_of(ALIGNMENT) as u64, Ordering::Relaxed);
        self.put(piece, at, stage)?;
        self.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok(at)
    }

    /// Keeps a piece where one of its length was.
    pub(super) fn put(&self, piece: &[u8], at: u64, stage: &mut Stage) -> io::Result<()> {
        match &self.direct {
            Some(direct) if piece.len() >= Self::LEAST_FAST_BYTES && self.is_fast() => {
                self.pace.lock().begin(self.began.elapsed());
                let written = direct.write_all_at(stage.fill(piece), at);
                let is_slow = self.pace.lock().end(piece.len(), self.began.elapsed());
                // An error may be for want of room, which the other way will say, or it is not possible on this disk.
                if is_slow || written.is_err() {
                    self.is_slow.store(true, Ordering::Relaxed);
                }
                if written.is_err() {
                    self.file.write_all_at(piece, at)?;
                }
            }
            _ => self.file.write_all_at(piece, at)?,
        }
        Ok(())
    }

    /// Reads what was written at this place.
    pub(super) fn read(&self, piece: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(piece, at)
    }
}

impl Pace {
    /// A lane begins to write. Times count from any fixed moment.
    fn begin(&mut self, now: Duration) {
        if self.writing == 0 {
            self.since = now;
        }
        self.writing += 1;
    }

    /// A lane has written so much. Whether the disk is too slow.
    fn end(&mut self, bytes: usize, now: Duration) -> bool {
        self.writing -= 1;
        self.busy += now.saturating_sub(self.since);
        self.since = now;
        self.bytes += bytes as u64;
        let mebibytes = u32::try_from(self.bytes >> 20).unwrap_or(u32::MAX);
        self.bytes >= TRIAL_BYTES && self.busy > FAST_ENOUGH.saturating_mul(mebibytes)
    }
}

impl Stage {
    /// A copy of a piece that is aligned, and filled up to a whole number of units.
    fn fill(&mut self, piece: &[u8]) -> &[u8] {
        let needed = piece.len().next_multiple_of(ALIGNMENT);
        if self.memory.len() < needed + ALIGNMENT {
            self.memory = vec![0; needed + ALIGNMENT];
        }
        let begin = self.memory.as_ptr().align_offset(ALIGNMENT);
        self.memory[begin..begin + piece.len()].copy_from_slice(piece);
        &self.memory[begin..begin + needed]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
    }

    #[test]
    fn pieces_of_any_length_come_back_whichever_way_they_were_written() {
        let spill = Spill::create(&std::env::temp_dir()).expect("a file");
        let mut stage = Stage::default();
        let lengths = [1 << 20, 70_001, 5, (1 << 20) - 8, Spill::LEAST_FAST_BYTES, 4096];
        let mut kept = Vec::new();
        for (seed, len) in lengths.into_iter().cycle().take(18).enumerate() {
            // The disk is found slow in the middle.
            if seed == 12 {
                spill.is_slow.store(true, Ordering::Relaxed);
            }
            kept.push((seed, len, spill.write(&piece(len, seed), &mut stage).expect("room")));
        }
        assert_eq!(spill.bytes(), 3 * lengths.iter().sum::<usize>() as u64);
        for (seed, len, at) in kept {
            let mut found = vec![0; len];
            spill.read(&mut found, at).expect("written");
            assert!(found == piece(len, seed), "piece {seed} of {len} bytes");
        }
    }

    #[test]
    fn a_disk_is_slow_by_what_all_lanes_get_from_it() {
        let mut pace = Pace::default();
        let mut now = Duration::ZERO;
        let mut write = |lanes: usize, took: Duration| {
            (0..lanes).for_each(|_| pace.begin(now));
            now += took;
            (0..lanes).fold(false, |_, _| pace.end(1 << 20, now))
        };
        // One hiccup is none.
        assert!(!write(1, FAST_ENOUGH * 5));
        // Each lane waits for longer than that, but there are many.
        assert!((0..20).all(|_| !write(4, FAST_ENOUGH * 2)));
        // Until the mean is too much.
        assert!((0..200).any(|_| write(1, FAST_ENOUGH * 2)));
    }

    #[test]
    fn what_cannot_be_written_past_the_cache_is_written_through_it() {
        let mut spill = Spill::create(&std::env::temp_dir()).expect("a file");
        // Every write to it fails.
        spill.direct = Some(File::open("/dev/null").expect("there"));
        spill.set_fast();
        let at = spill.write(&piece(1 << 20, 3), &mut Stage::default()).expect("room");
        assert!(!spill.is_fast());
        let mut found = vec![0; 1 << 20];
        spill.read(&mut found, at).expect("written");
        assert!(found == piece(1 << 20, 3));
    }
}
