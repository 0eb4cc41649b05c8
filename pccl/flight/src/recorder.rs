//! The recorder of one peer or master: its buffer, and the files that are written of it.

use crate::{
    Event, File, Role,
    buffer::Buffer,
    store::{self, Writer},
};
use pccl_protocol::{GroupId, Name, PeerId, RunId};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Events of operations that are kept by default: the last hundred operations, or more.
pub const DEFAULT_CAPACITY: usize = 2048;
/// How a recorder works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where files are written after failures; `None` writes none.
    pub directory: Option<PathBuf>,
    /// Events of operations that are kept; rare ones have room for a quarter as many of their own. 0 records nothing.
    pub capacity: usize,
}

/// Keeps the last events of one peer or master. All calls may come from any thread.
#[derive(Debug)]
pub struct Recorder {
    buffer: Arc<Buffer>,
    writer: Option<Arc<Writer>>,
}

impl Recorder {
    /// A recorder that has seen nothing.
    pub fn new(role: Role, group: GroupId, settings: Settings) -> Self {
        let Settings { directory, capacity } = settings;
        let buffer = Arc::new(Buffer::new(role, group, store::host_name(), capacity));
        let writer = directory.map(|directory| Arc::new(Writer::new(directory)));
        Self { buffer, writer }
    }

    /// Says who it is that records, from now on.
    pub fn identify(&self, run: RunId, peer: Option<PeerId>) {
        self.buffer.identify(run, peer);
    }

    /// Says what the peer is called that records.
    pub fn set_name(&self, name: Name) {
        self.buffer.set_name(name);
    }

    /// Adds an event; the oldest one of its kind goes if there is no room. Costs a clock reading and a short lock.
    pub fn record(&self, event: Event) {
        self.record_with(|| event);
    }

    /// As [`Recorder::record`], for events that cost something to make: not made if nothing is recorded.
    pub fn record_with(&self, event: impl FnOnce() -> Event) {
        self.buffer.add(event);
    }

    /// Notes that something failed: a file is written soon, on another thread, if there is a directory for it. Failures
    /// that follow each other closely share a file.
    pub fn fail(&self, why: impl FnOnce() -> String) {
        if let Some(writer) = &self.writer {
            writer.ask(&self.buffer, why());
        }
    }

    /// Waits until the files of all failures so far are written, for `timeout` at most; not at all if enough of them
    /// were written lately that the next one has to wait.
    pub fn flush(&self, timeout: Duration) {
        if let Some(writer) = &self.writer {
            writer.flush(timeout);
        }
    }

    /// The content of a file that is written now.
    pub fn snapshot(&self, why: impl Into<String>) -> File {
        self.buffer.snapshot(why.into())
    }

    /// Writes a file into `directory` now, on this thread, whatever the settings say. Returns its path.
    ///
    /// # Errors
    /// The error of the file system.
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

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
