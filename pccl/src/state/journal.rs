//! What a sync has replaced in the caller's tensors, so that it can be put back.
//!
//! A piece that has arrived and is verified takes its place at once; the bytes that were there go into the journal.
//! When the sync is committed the journal is dropped. In every other case it is rolled back, also when it is dropped
//! without a word. It holds as much in memory as it is allowed to, and the rest in a file that has no name.

use crate::{Error, Reason};
use parking_lot::Mutex;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Memory is taken in blocks of this size, which go back to the system when they are freed.
const BLOCK_BYTES: usize = 32 << 20;

/// The pieces of one tensor, each of which one lane at a time writes.
pub(crate) type Pieces<'a> = Vec<Mutex<&'a mut [u8]>>;

/// Where replaced bytes are.
#[derive(Debug, Clone, Copy)]
enum Place {
    Block { block: usize, at: usize },
    File { at: u64 },
}

/// Bytes of one piece that were replaced.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tensor: usize,
    piece: usize,
    place: Place,
}

/// What one lane has replaced. Each lane keeps its own, so that none waits for another one.
#[derive(Debug, Default)]
struct Pages {
    blocks: Vec<Vec<u8>>,
    entries: Vec<Entry>,
}

#[derive(Debug, Default)]
struct Held {
    /// Bytes that memory was promised for.
    bytes: usize,
    spill: Option<Spill>,
    /// Of lanes that have ended.
    pages: Vec<Pages>,
    committed: bool,
}

#[derive(Debug)]
struct Spill {
    file: Arc<File>,
    end: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Journal<'a> {
    tensors: Vec<Pieces<'a>>,
    /// Most bytes in memory.
    limit: usize,
    /// Size of a block: no more than there can be to replace.
    block_bytes: usize,
    directory: PathBuf,
    held: Mutex<Held>,
}

impl<'a> Journal<'a> {
    /// A journal for these tensors, of which nothing is replaced yet. `limit` bytes at most stay in memory, the rest
    /// goes to a file in `directory`.
    pub(crate) fn new(tensors: Vec<Pieces<'a>>, limit: usize, directory: &Path) -> Self {
        let all = tensors.iter().flatten().map(|piece| piece.lock().len()).sum();
        let block_bytes = BLOCK_BYTES.min(limit).min(all);
        let directory = directory.to_owned();
        Self { tensors, limit, block_bytes, directory, held: Mutex::default() }
    }

    /// What one lane writes through.
    pub(crate) fn writer(&self) -> Writer<'_, 'a> {
        Writer { journal: self, pages: Pages::default() }
    }

    /// The new bytes stay.
    pub(crate) fn commit(self) {
        self.held.lock().committed = true;
    }

    /// Puts all old bytes back. Only when every writer is gone.
    ///
    /// # Errors
    /// `System` if a part that was spilled cannot be read again: those bytes are lost.
    pub(crate) fn roll_back(self) -> Result<(), Error> {
        self.restore()
    }

    fn restore(&self) -> Result<(), Error> {
        let mut held = self.held.lock();
        held.committed = true;
        let mut lost = None;
        for pages in std::mem::take(&mut held.pages) {
            for Entry { tensor, piece, place } in pages.entries {
                let mut piece = self.tensors[tensor][piece].lock();
                match place {
                    Place::Block { block, at } => {
                        let len = piece.len();
                        piece.copy_from_slice(&pages.blocks[block][at..at + len]);
                    }
                    Place::File { at } => {
                        let Some(spill) = &held.spill else { continue };
                        lost = spill.file.read_exact_at(&mut piece, at).err().or(lost);
                    }
                }
            }
        }
        let text = "shared state that was set aside cannot be read again, a part of a tensor is lost";
        lost.map_or(Ok(()), |error| Err(Error::System(Reason::system(text, error))))
    }

    /// Takes room for `bytes` replaced bytes: in memory, or at this place of the file.
    fn reserve(&self, bytes: usize) -> io::Result<Option<(Arc<File>, u64)>> {
        let mut held = self.held.lock();
        if bytes <= self.limit - held.bytes.min(self.limit) {
            held.bytes += bytes;
            return Ok(None);
        }
        if held.spill.is_none() {
            held.spill = Some(Spill { file: Arc::new(nameless_file(&self.directory)?), end: 0 });
        }
        let Some(spill) = &mut held.spill else { return Err(io::ErrorKind::Other.into()) };
        let at = spill.end;
        spill.end += bytes as u64;
        Ok(Some((spill.file.clone(), at)))
    }

    /// Bytes that went to the file.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.held.lock().spill.as_ref().map_or(0, |spill| spill.end)
    }

    /// Where it goes.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        if !self.held.lock().committed
            && let Err(error) = self.restore()
        {
            log::error!("{error}");
        }
    }
}

/// A file for reading and writing that nobody else can open, and that is gone with its last handle.
fn nameless_file(directory: &Path) -> io::Result<File> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    for _ in 0..1000 {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!(".pccl-state-{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
            // Left behind by a process that died between the two.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Replaces pieces for one lane, and hands what it has set aside to the journal when it is dropped.
#[derive(Debug)]
pub(crate) struct Writer<'j, 'a> {
    journal: &'j Journal<'a>,
    pages: Pages,
}

impl Writer<'_, '_> {
    /// Sets the old bytes of a piece aside and puts `new` there, which is as long. Once per piece.
    ///
    /// # Errors
    /// If the old bytes can be kept nowhere; nothing is replaced then.
    pub(crate) fn replace(&mut self, tensor: usize, piece: usize, new: &[u8]) -> io::Result<()> {
        let mut old = self.journal.tensors[tensor][piece].lock();
        let place = match self.journal.reserve(old.len())? {
            None => self.pages.keep(&old, self.journal.block_bytes),
            Some((file, at)) => {
                file.write_all_at(&old, at)?;
                Place::File { at }
            }
        };
        self.pages.entries.push(Entry { tensor, piece, place });
        old.copy_from_slice(new);
        Ok(())
    }
}

impl Pages {
    fn keep(&mut self, old: &[u8], block_bytes: usize) -> Place {
        let fits = self.blocks.last().is_some_and(|block| block.capacity() - block.len() >= old.len());
        if !fits {
            self.blocks.push(Vec::with_capacity(block_bytes.max(old.len())));
        }
        let block = self.blocks.len() - 1;
        let at = self.blocks[block].len();
        self.blocks[block].extend_from_slice(old);
        Place::Block { block, at }
    }
}

impl Drop for Writer<'_, '_> {
    fn drop(&mut self) {
        self.journal.held.lock().pages.push(std::mem::take(&mut self.pages));
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
