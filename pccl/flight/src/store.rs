//! Files on disk: written by a thread of their own, whole or not at all, not too often, and not too many.

use crate::{Header, Role, buffer::Buffer};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::VecDeque,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Names of files end with this.
pub const FILE_SUFFIX: &str = ".flight";
/// Names of files that are being written end with this as well.
const PART_SUFFIX: &str = ".part";
/// A part of a file that is older than this was left by a process that died.
const STALE_PART: Duration = Duration::from_secs(600);
/// Files of one recorder; the oldest goes first.
const OWN_FILES: usize = 4;
/// Files in one directory, those of other processes included; the oldest goes first.
const ALL_FILES: usize = 4096;
/// How long a file waits for what follows from the failure that it is written for.
const DELAY: Duration = Duration::from_millis(100);
/// In this time [`BURST`] files are written at most.
const PERIOD: Duration = Duration::from_secs(4);
const BURST: usize = 4;
/// How long the end of a recorder waits for its last file.
const LAST_FILE: Duration = Duration::from_secs(2);
const STACK_BYTES: usize = 256 << 10;

/// Writes the files of one recorder. Its thread starts with the first failure.
#[derive(Debug)]
pub(super) struct Writer {
    directory: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Why a file is to be written, how many failures followed, and since when.
    pending: Option<(String, u32, Instant)>,
    asked: u64,
    done: u64,
    /// Somebody waits for it.
    urgent: bool,
    closed: bool,
    has_thread: bool,
    /// Since when a file is being written.
    writing_since: Option<Instant>,
    error_logged: bool,
    written_at: VecDeque<Instant>,
    own: VecDeque<PathBuf>,
}

impl State {
    /// When the next file may be written.
    fn allowed_at(&self) -> Option<Instant> {
        let recent = self.written_at.len().checked_sub(BURST).and_then(|i| self.written_at.get(i))?;
        Some(*recent + PERIOD)
    }

    /// Whether the disk has kept a file waiting for that long: then nobody else waits for it.
    fn is_stuck(&self, patience: Duration) -> bool {
        self.writing_since.is_some_and(|since| since.elapsed() >= patience)
    }
}

impl Writer {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, state: Mutex::new(State::default()), changed: Condvar::new() }
    }

    /// Asks for a file.
    pub(super) fn ask(self: &Arc<Self>, buffer: &Arc<Buffer>, why: String) {
        let mut state = self.state.lock();
        state.asked += 1;
        match &mut state.pending {
            Some((_, more, _)) => *more += 1,
            None => state.pending = Some((why, 0, Instant::now())),
        }
        if !state.has_thread {
            let (writer, buffer) = (self.clone(), buffer.clone());
            let spawned = thread::Builder::new()
                .name("pccl-flight".into())
                .stack_size(STACK_BYTES)
                .spawn(move || writer.run(&buffer));
            match spawned {
                Ok(_) => state.has_thread = true,
                Err(error) => {
                    state.pending = None;
                    state.done = state.asked;
                    self.log_once(&mut state, &error);
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the files that were asked for; see [`crate::Recorder::flush`].
    pub(super) fn flush(&self, timeout: Duration) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_late = state.allowed_at().is_some_and(|at| at > now);
        if state.done == state.asked || is_late || state.is_stuck(timeout) {
            return;
        }
        state.urgent = true;
        self.changed.notify_all();
        let target = state.asked;
        self.wait_done(state, target, now + timeout);
    }

    /// No more failures will come; waits a little for the last file.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        let target = state.asked;
        if !state.is_stuck(LAST_FILE) {
            self.wait_done(state, target, Instant::now() + LAST_FILE);
        }
    }

    fn wait_done(&self, mut state: MutexGuard<'_, State>, target: u64, deadline: Instant) {
        while state.done < target {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    fn run(&self, buffer: &Buffer) {
        let mut state = self.state.lock();
        loop {
            let Some((_, _, since)) = state.pending else {
                if state.closed {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            };
            let wished = if state.urgent { since } else { since + DELAY };
            let due = state.allowed_at().map_or(wished, |at| at.max(wished));
            if !state.closed && due > Instant::now() {
                self.changed.wait_until(&mut state, due);
                continue;
            }
            state.urgent = false;
            let (target, pending) = (state.asked, state.pending.take());
            state.writing_since = Some(Instant::now());
            drop(state);
            let why = pending.map(|(why, more, _)| match more {
                0 => why,
                more => format!("{why} (and {more} more)"),
            });
            let file = buffer.snapshot(why.unwrap_or_default());
            let written = write(&self.directory, &name(&file.header), &file.to_text());
            state = self.state.lock();
            let outdated = self.wrote(&mut state, written);
            // Without the lock, for which those wait who record: the disk may stand still.
            drop(state);
            for path in outdated {
                // It may be gone already, removed by somebody who tidied up.
                let _ = fs::remove_file(path);
            }
            state = self.state.lock();
            state.writing_since = None;
            state.done = target;
            self.changed.notify_all();
        }
    }

    /// Notes what came of writing a file; returns those that are too many now.
    fn wrote(&self, state: &mut State, written: io::Result<PathBuf>) -> Vec<PathBuf> {
        state.written_at.push_back(Instant::now());
        while state.written_at.len() > BURST {
            state.written_at.pop_front();
        }
        match written {
            Ok(path) => {
                log::info!("flight recorder: wrote {}", path.display());
                state.own.push_back(path);
            }
            Err(error) => self.log_once(state, &error),
        }
        let outdated = state.own.len().saturating_sub(OWN_FILES);
        state.own.drain(..outdated).collect()
    }

    fn log_once(&self, state: &mut State, error: &io::Error) {
        if !state.error_logged {
            state.error_logged = true;
            log::warn!(
                "flight recorder: cannot write to {}: {error} (said once; check PCCL_FLIGHT_DIR)",
                self.directory.display()
            );
        }
    }
}

/// Writes a whole file, and removes the oldest ones if the directory holds too many.
pub(super) fn write(directory: &Path, name: &str, text: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let path = directory.join(name);
    let part = directory.join(format!("{name}{PART_SUFFIX}"));
    // Nobody else's file or link of that name is written to.
    let made = OpenOptions::new().write(true).create_new(true).open(&part);
    let written =
        made.and_then(|mut file| file.write_all(text.as_bytes())).and_then(|()| fs::rename(&part, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&part);
        return Err(error);
    }
    // The new file is there; that old ones could not be counted is no reason to say it is not.
    let _ = remove_oldest(directory, ALL_FILES);
    Ok(path)
}

pub(super) fn remove_oldest(directory: &Path, most: usize) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let modified = || entry.metadata().and_then(|meta| meta.modified());
        if name.ends_with(FILE_SUFFIX) {
            files.push((modified().unwrap_or(SystemTime::UNIX_EPOCH), entry.path()));
        } else if name.ends_with(&format!("{FILE_SUFFIX}{PART_SUFFIX}"))
            && modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > STALE_PART))
        {
            let _ = fs::remove_file(entry.path());
        }
    }
    files.sort();
    for (_, path) in files.iter().take(files.len().saturating_sub(most)) {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Name of a file after a failure.
fn name(header: &Header) -> String {
    file_name(header, "")
}

/// Name of a file that somebody asked for: these do not count among those of failures.
pub(super) fn dump_name(header: &Header) -> String {
    file_name(header, "-dump")
}

fn file_name(header: &Header, mark: &str) -> String {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed) + 1;
    let who = match (header.role, header.peer, header.run) {
        (Role::Peer, Some(peer), _) => peer.to_string(),
        (Role::Master, _, Some(run)) => run.to_string().chars().take(8).collect(),
        _ => "unknown".to_owned(),
    };
    // Processes of several machines may write to one shared directory: the start tells equal process numbers apart.
    format!(
        "{}-{who}-{}-{}-{number:04}{mark}{FILE_SUFFIX}",
        header.role.name(),
        header.pid,
        header.started_us % 1_000_000_000
    )
}

/// The directory that the environment variable `PCCL_FLIGHT_DIR` names, if it is set and not empty.
pub fn directory_from_environment() -> Option<PathBuf> {
    std::env::var_os("PCCL_FLIGHT_DIR").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The machine's name, as the kernel tells it.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
}
