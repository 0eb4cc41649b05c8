//! The file of a journal in its directory.
//!
//! It is written before anything leaves that follows from it, without waiting for the disk: it outlives the process,
//! not the machine. So a file from before the machine was started is not used: its end may be missing.

use super::entry::{Entry, StateSnapshot, put, take};
use pccl_protocol::{JournalStage, StatusJournal, Text};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    mem,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tinysockets::private_file::{check_directory, create_in_place, open_own};

/// Changes with the form of what is written, and with what the state machine makes of it: whoever reads it must come to
/// the same. Releases that differ in neither go on from each other.
pub(crate) const FORMAT: &str =
    concat!("PCCL journal 9 ", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
/// How long another master that uses the directory is waited for: one that was killed may not be quite gone.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the lock is tried in that time.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);
/// A new snapshot begins after this number of bytes of entries.
const SNAPSHOT_BYTES: usize = 16 << 20;
/// Shortest and longest pause before a journal that was given up is begun anew.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The system makes a new one each time that the machine starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why there is no journal.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum JournalError {
    #[error("{path:?}: {error}")]
    File { path: PathBuf, error: Arc<io::Error> },
    #[error("another master uses {0:?}")]
    InUse(PathBuf),
    #[error("{path:?} is not a journal of this version ({found}): remove it to begin a new run")]
    Version { path: PathBuf, found: String },
    #[error(
        "{path:?} is damaged behind byte {whole} of {all} ({error}): its run cannot go on from it. With a standby of \
         that run, let it take over; without one, remove the file to begin a new run, whose peers go on from the \
         newest shared state that they hold"
    )]
    Damaged { path: PathBuf, whole: usize, all: usize, error: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: String,
    /// Which start of the machine it belongs to.
    boot: String,
}

impl Header {
    fn now() -> Self {
        Self { format: FORMAT.into(), boot: fs::read_to_string(BOOT_ID).unwrap_or_default() }
    }
}

/// The content that a journal had.
pub(crate) type Past = (StateSnapshot, Vec<Entry<'static>>);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    /// Nobody else uses the directory as long as this lives.
    _lock: File,
    /// `None`: nothing is written.
    file: Option<File>,
    /// Bytes that are not written yet.
    buffer: Vec<u8>,
    /// Bytes of entries in the file.
    written: usize,
    /// It could not be written.
    given_up: Option<GivenUp>,
}

/// A journal that could not be written, and is begun anew when there is room again.
#[derive(Debug)]
struct GivenUp {
    since: Instant,
    why: String,
    /// When it is tried next.
    next: Instant,
    pause: Duration,
}

impl Journal {
    /// The journal in this directory, which is made if it is missing, and what it held of a run that has not ended.
    pub(crate) fn open(directory: &Path) -> Result<(Self, Option<Past>), JournalError> {
        let failed =
            |path: &Path, error| JournalError::File { path: path.to_owned(), error: Arc::new(error) };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(directory).map_err(|error| failed(directory, error))?;
        // The files hold what tickets are made of: nobody else may read them, or put others in their place.
        check_directory(directory).map_err(|error| failed(directory, error))?;
        let lock_path = directory.join("lock");
        let lock = open_own(&lock_path, OpenOptions::new().create(true).append(true));
        let lock = lock.map_err(|error| failed(&lock_path, error))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let mut is_first = true;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    if mem::take(&mut is_first) {
                        log::info!("another master uses {directory:?}; waiting for its end");
                    }
                    thread::sleep(LOCK_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => return Err(JournalError::InUse(directory.to_owned())),
                Err(TryLockError::Error(error)) => return Err(failed(&lock_path, error)),
            }
        }
        let path = directory.join("journal");
        let journal = Self { path, _lock: lock, file: None, buffer: Vec::new(), written: 0, given_up: None };
        let mut bytes = Vec::new();
        let file = open_own(&journal.path, OpenOptions::new().read(true));
        match file.and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((journal, None)),
            Err(error) => return Err(failed(&journal.path, error)),
        };
        let past = journal.read(&bytes)?;
        Ok((journal, past))
    }

    fn read(&self, mut bytes: &[u8]) -> Result<Option<Past>, JournalError> {
        let (path, all) = (self.path.clone(), bytes.len());
        let damaged = |left: usize, error: String| {
            let (path, whole) = (self.path.clone(), all - left);
            JournalError::Damaged { path, whole, all, error }
        };
        let header = take::<Header>(&mut bytes).ok().flatten();
        let Some(header) = header.filter(|header| header.format.starts_with("PCCL journal ")) else {
            return Err(JournalError::Version { path, found: "it does not begin like one".into() });
        };
        if header.format != FORMAT {
            return Err(JournalError::Version { path, found: header.format });
        }
        if header.boot != Header::now().boot {
            log::warn!(
                "{path:?} is of before this machine was started, so its end may be missing: a new run"
            );
            return Ok(None);
        }
        let left = bytes.len();
        let snapshot = take(&mut bytes).map_err(|error| damaged(left, error.to_string()))?;
        let snapshot = snapshot.ok_or_else(|| damaged(left, "its first snapshot is not whole".into()))?;
        let mut entries = Vec::new();
        loop {
            let left = bytes.len();
            match take(&mut bytes).map_err(|error| damaged(left, error.to_string()))? {
                Some(entry) => entries.push(entry),
                None => break,
            }
        }
        if !bytes.is_empty() {
            log::info!("{path:?}: the last {} bytes were not written whole", bytes.len());
        }
        Ok(Some((snapshot, entries)))
    }

    /// A new snapshot; what was written before is not needed any more.
    pub(crate) fn begin(&mut self, snapshot: &StateSnapshot) {
        if let Err(error) = self.try_begin(snapshot) {
            return self.give_up(&error);
        }
        if self.given_up.take().is_some() {
            log::warn!("{:?}: there is a journal again", self.path);
        }
    }

    fn try_begin(&mut self, snapshot: &StateSnapshot) -> io::Result<()> {
        let mut bytes = Vec::new();
        put(&mut bytes, &Header::now()).map_err(io::Error::other)?;
        put(&mut bytes, snapshot).map_err(io::Error::other)?;
        let next = self.path.with_extension("next");
        let mut file = create_in_place(&next)?;
        if let Err(error) = file.write_all(&bytes).and_then(|()| fs::rename(&next, &self.path)) {
            // On a full disk each byte counts.
            let _ = fs::remove_file(&next);
            return Err(error);
        }
        (self.file, self.written) = (Some(file), 0);
        self.buffer.clear();
        Ok(())
    }

    /// Whether a journal that was given up is to be begun anew now.
    pub(crate) fn is_due(&self) -> bool {
        self.given_up.as_ref().is_some_and(|given_up| given_up.next <= Instant::now())
    }

    /// How it is, for an operator.
    pub(crate) fn status(&self) -> StatusJournal {
        let (stage, given_up) = match (&self.given_up, &self.file) {
            (Some(given_up), _) => (JournalStage::GivenUp, Some(given_up)),
            (None, Some(_)) => (JournalStage::Kept, None),
            (None, None) => (JournalStage::Later, None),
        };
        let since = given_up.map_or(Duration::ZERO, |given_up| given_up.since.elapsed());
        StatusJournal {
            stage,
            since_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            text: given_up.map(|given_up| Text::new(given_up.why.as_str())),
        }
    }

    /// Something has happened. It is written by [`Journal::flush`].
    pub(crate) fn record(&mut self, entry: &Entry<'_>) {
        if self.file.is_some()
            && let Err(error) = put(&mut self.buffer, entry)
        {
            self.give_up(&io::Error::other(error));
        }
    }

    /// Writes what was recorded: from now on it may have consequences. Whether a new snapshot is due.
    pub(crate) fn flush(&mut self) -> bool {
        if !self.buffer.is_empty()
            && let Some(file) = &mut self.file
        {
            let written = file.write_all(&self.buffer);
            self.written += self.buffer.len();
            self.buffer.clear();
            if let Err(error) = written {
                self.give_up(&error);
            }
        }
        self.file.is_some() && self.written >= SNAPSHOT_BYTES
    }

    /// Goes on without: nobody must go on from a file that does not hold everything.
    pub(crate) fn give_up(&mut self, error: &io::Error) {
        self.end();
        let (now, why) = (Instant::now(), format!("{}: {error}", self.path.display()));
        let given_up = self.given_up.get_or_insert_with(|| {
            log::error!(
                "{why}; if this master dies now, its run ends. A journal is begun again when that works"
            );
            GivenUp { since: now, why: String::new(), next: now, pause: PAUSE.0 }
        });
        given_up.why = why;
        given_up.next = now + given_up.pause;
        given_up.pause = (given_up.pause * 2).min(PAUSE.1);
    }

    /// Nobody is to go on from it, and somebody may want to look at it. Returns the text about it, and about the next
    /// step.
    pub(crate) fn set_aside(&mut self) -> String {
        self.file = None;
        let aside = self.path.with_extension("outdated");
        match fs::rename(&self.path, &aside) {
            Ok(()) => format!(
                "It was set aside as {}: start this master again to begin a new run, whose peers go on from the newest \
                 shared state that they hold",
                aside.display()
            ),
            Err(error) => format!("Remove {} to begin a new run ({error})", self.path.display()),
        }
    }

    /// The run ends, or nothing is written any more.
    pub(crate) fn end(&mut self) {
        self.buffer.clear();
        let Some(file) = self.file.take() else { return };
        if let Err(error) = fs::remove_file(&self.path) {
            log::error!("{:?} cannot be removed: {error}", self.path);
            let _ = file.set_len(0);
        }
    }
}
