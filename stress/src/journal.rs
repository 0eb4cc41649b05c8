//! The log of a run's events, and the last lines of the peers in full.

use crate::children::FLIGHT_FOLDER;
use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// Size at which the log moves aside; one old part is kept.
const PART_BYTES_MAX: u64 = 64 << 20;
/// Lines of peers that are kept for the case of a failure.
const LINES_KEPT: usize = 5_000;
/// Log files of ended peers that are kept.
const PEER_LOGS_KEPT: usize = 100;
/// Files of flight recorders that are kept, and how many peers end until somebody looks.
const FLIGHTS_KEPT: usize = 500;
const FLIGHTS_EVERY: usize = 50;

/// See the module's documentation.
pub(crate) struct Journal {
    folder: PathBuf,
    out: BufWriter<File>,
    bytes: u64,
    began_us: u64,
    lines: VecDeque<String>,
    ended: VecDeque<PathBuf>,
    ended_count: usize,
}

impl Journal {
    /// A journal in `folder`, which exists.
    pub(crate) fn create(folder: &Path, began_us: u64) -> io::Result<Self> {
        let out = BufWriter::new(File::create(folder.join("events.log"))?);
        let folder = folder.to_owned();
        Ok(Self {
            folder,
            out,
            bytes: 0,
            began_us,
            lines: VecDeque::new(),
            ended: VecDeque::new(),
            ended_count: 0,
        })
    }

    /// Writes an event.
    pub(crate) fn event(&mut self, at_us: u64, text: &str) -> io::Result<()> {
        let line = format!("{:>12.6} {text}", at_us.saturating_sub(self.began_us) as f64 / 1e6);
        self.bytes += line.len() as u64 + 1;
        writeln!(self.out, "{line}")?;
        self.out.flush()?;
        if self.bytes > PART_BYTES_MAX {
            let path = self.folder.join("events.log");
            fs::rename(&path, self.folder.join("events.old.log"))?;
            self.out = BufWriter::new(File::create(path)?);
            self.bytes = 0;
        }
        Ok(())
    }

    /// Remembers a line of a peer.
    pub(crate) fn line(&mut self, peer: usize, line: &str) {
        if self.lines.len() == LINES_KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{peer} {line}"));
    }

    /// Where the log of a peer goes.
    pub(crate) fn peer_log(&self, peer: usize) -> PathBuf {
        self.folder.join(format!("peer-{peer}.log"))
    }

    /// A peer has ended; in a run of hours not everyone's log is kept.
    pub(crate) fn peer_ended(&mut self, peer: usize) {
        self.ended.push_back(self.peer_log(peer));
        if self.ended.len() > PEER_LOGS_KEPT
            && let Some(old) = self.ended.pop_front()
        {
            // Somebody else may have tidied up.
            drop(fs::remove_file(old));
        }
        self.ended_count += 1;
        if self.ended_count.is_multiple_of(FLIGHTS_EVERY) {
            self.sweep_flights();
        }
    }

    /// Removes the oldest files of flight recorders.
    fn sweep_flights(&self) {
        let Ok(files) = fs::read_dir(self.folder.join(FLIGHT_FOLDER)) else { return };
        let written = |file: &fs::DirEntry| file.metadata().and_then(|data| data.modified()).ok();
        let mut files: Vec<_> = files.flatten().map(|file| (written(&file), file.path())).collect();
        files.sort_unstable();
        let surplus = files.len().saturating_sub(FLIGHTS_KEPT);
        for (_, path) in files.into_iter().take(surplus) {
            drop(fs::remove_file(path));
        }
    }

    /// Writes the last lines of the peers.
    pub(crate) fn write_lines(&self) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(self.folder.join("last-lines.log"))?);
        for line in &self.lines {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }
}
