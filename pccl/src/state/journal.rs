//! The pieces that a sync has replaced in the caller's tensors, so that they can be put back.
//!
//! A piece that has arrived and is verified takes its place at once; the bytes that were there go into the journal.
//! When the sync is committed the journal is dropped. In every other case it is rolled back, also when it is dropped
//! without a word. The one of a newcomer that fetches ahead keeps nothing.
//!
//! A journal that is rolled back may keep the new bytes instead of the old ones, in the same places (`salvage.rs`): the
//! journal of the next attempt begins with them, and each piece that is still wanted changes places with what it
//! replaces.
//!
//! A piece that repeats one word, as those of a fresh peer do, is kept as that word. A piece that may not fit into the
//! memory that is allowed goes to a file (`spill.rs`) once a part of that memory is full, for as long as the disk keeps
//! up: to write past the page cache costs less than memory that was not used before. Else the rest of the memory is
//! taken, and then the file, however slow it is.

use super::spill::{Spill, Stage};
use crate::{Error, Reason, memory::Piece};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Memory is taken in blocks of this size, which go back to the system when they are freed.
const BLOCK_BYTES: usize = 32 << 20;
/// This part of the memory is used before a file that is fast enough, if all does not fit into memory.
const FIRST_PART: usize = 4;
/// Bytes of the word that a piece may repeat: those of the largest element.
const WORD_BYTES: usize = 8;

/// The pieces of one tensor, each of which one lane at a time writes.
pub(crate) type Pieces<'a> = Vec<Mutex<Piece<'a>>>;

/// Where replaced bytes are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Repeats { word: [u8; WORD_BYTES] },
    Block { block: usize, at: usize },
    File { at: u64 },
}

/// Bytes of one piece that were replaced, or are to replace it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) tensor: usize,
    pub(super) piece: usize,
    pub(super) place: Place,
}

/// The pieces that one lane has replaced. Each lane keeps its own, so that none waits for another one.
#[derive(Debug, Default)]
pub(super) struct Pages {
    blocks: Vec<Vec<u8>>,
    pub(super) entries: Vec<Entry>,
}

/// The pieces that an earlier attempt has left.
#[derive(Debug, Default)]
struct Found {
    /// The pieces that are wanted and not yet asked for: tensor and piece.
    waiting: BTreeMap<(usize, usize), Place>,
    /// Its memory. The entries are those that have changed places with old bytes.
    pages: Pages,
}

#[derive(Debug, Default)]
struct Held {
    /// Bytes that memory was promised for.
    bytes: usize,
    spill: Option<Arc<Spill>>,
    /// A write to it has failed: memory goes before it from then on.
    spill_fails: bool,
    /// Of lanes that have ended.
    pages: Vec<Pages>,
    committed: bool,
}

/// New bytes in the places of a journal.
#[derive(Debug, Default)]
pub(crate) struct Leftover {
    pub(super) pages: Pages,
    pub(super) spill: Option<Arc<Spill>>,
    /// Of memory.
    pub(super) bytes: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Journal<'a> {
    tensors: Vec<Pieces<'a>>,
    /// Most bytes in memory.
    limit: usize,
    /// The number of bytes that go to memory in any case.
    first: usize,
    /// Size of a block: no more than there can be to replace.
    block_bytes: usize,
    directory: PathBuf,
    /// Replaced pieces are kept.
    keeps: bool,
    held: Mutex<Held>,
    found: Mutex<Found>,
}

impl<'a> Journal<'a> {
    /// A journal for these tensors, of which nothing is replaced yet. `limit` bytes at most stay in memory, the rest
    /// goes to a file in `directory`.
    pub(crate) fn new(tensors: Vec<Pieces<'a>>, limit: usize, directory: &Path) -> Self {
        let all = tensors.iter().flatten().map(|piece| piece.lock().len()).sum();
        let block_bytes = BLOCK_BYTES.min(limit).min(all);
        let first = if all <= limit { limit } else { limit / FIRST_PART };
        let directory = directory.to_owned();
        let (held, found) = Default::default();
        Self { tensors, limit, first, block_bytes, directory, keeps: true, held, found }
    }

    /// The same, which begins with what an earlier attempt has left.
    pub(crate) fn resume(self, left: Leftover) -> Self {
        let Leftover { mut pages, spill, bytes } = left;
        let waiting = std::mem::take(&mut pages.entries).into_iter();
        let waiting = waiting.map(|entry| ((entry.tensor, entry.piece), entry.place)).collect();
        *self.held.lock() = Held { bytes, spill, ..Held::default() };
        *self.found.lock() = Found { waiting, pages };
        self
    }

    /// A journal that keeps nothing: replaced pieces are gone.
    pub(crate) fn that_forgets(tensors: Vec<Pieces<'a>>) -> Self {
        let (directory, (held, found)) = (PathBuf::new(), Default::default());
        Self { tensors, limit: 0, first: 0, block_bytes: 0, directory, keeps: false, held, found }
    }

    /// The writer of one lane.
    pub(crate) fn writer(&self) -> Writer<'_, 'a> {
        Writer { journal: self, pages: Pages::default(), stage: Stage::default() }
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
        self.restore(false).map(drop)
    }

    /// The same, and keeps the new bytes, as far as there is room for them, and the disk is fast if they are there.
    ///
    /// # Errors
    /// As [`Journal::roll_back`].
    pub(crate) fn roll_back_keeping(self) -> Result<Leftover, Error> {
        let pages = self.restore(true)?;
        let mut held = self.held.lock();
        Ok(Leftover { pages, spill: held.spill.take(), bytes: held.bytes })
    }

    /// Puts all old bytes back, and returns the new ones if they are kept.
    fn restore(&self, keeps_new: bool) -> Result<Pages, Error> {
        let (all, spill) = {
            let mut held = self.held.lock();
            held.committed = true;
            (std::mem::take(&mut held.pages), held.spill.clone())
        };
        let Found { waiting, pages: found } = std::mem::take(&mut *self.found.lock());
        let mut undo = Undo::new(self, spill, keeps_new);
        let mut kept = undo.put_back(found);
        let waiting = waiting.into_iter().filter(|_| keeps_new);
        kept.entries.extend(waiting.map(|((tensor, piece), place)| Entry { tensor, piece, place }));
        for pages in all {
            kept.append(undo.put_back(pages));
        }
        kept.append(undo.more);
        let text = "shared state that was set aside cannot be read again, a part of a tensor is lost";
        undo.lost.map_or(Ok(kept), |error| Err(Error::System(Reason::system(text, error))))
    }

    /// Takes room for `bytes` replaced bytes: in memory, or else in the file.
    fn reserve(&self, bytes: usize) -> io::Result<Option<Arc<Spill>>> {
        if self.take_memory(bytes, self.first) {
            return Ok(None);
        }
        let spill = self.held.lock().open(&self.directory);
        let is_fast = bytes >= Spill::LEAST_FAST_BYTES
            && !self.held.lock().spill_fails
            && spill.as_ref().is_ok_and(|spill| spill.is_fast());
        if !is_fast && self.take_memory(bytes, self.limit) {
            return Ok(None);
        }
        spill.map(Some)
    }

    /// Books memory for this number of bytes, if all of it then is within `limit`.
    fn take_memory(&self, bytes: usize, limit: usize) -> bool {
        let mut held = self.held.lock();
        let fits = bytes <= limit.saturating_sub(held.bytes);
        held.bytes += if fits { bytes } else { 0 };
        fits
    }

    /// Keeps new bytes that no old ones leave a place for: not in a file that is slow, which would hold up who waits
    /// for the roll-back.
    fn keep_new(&self, piece: &[u8], pages: &mut Pages, stage: &mut Stage) -> Option<Place> {
        if self.take_memory(piece.len(), self.limit) {
            return Some(pages.keep(piece, self.block_bytes));
        }
        let spill = self.held.lock().open(&self.directory).ok()?;
        let is_fast = piece.len() >= Spill::LEAST_FAST_BYTES && spill.is_fast();
        is_fast.then(|| spill.write(piece, stage).ok()).flatten().map(|at| Place::File { at })
    }

    /// Bytes that went to the file.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.held.lock().spill.as_ref().map_or(0, |spill| spill.bytes())
    }

    /// Where it goes.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Puts old bytes back.
struct Undo<'j, 'a> {
    journal: &'j Journal<'a>,
    spill: Option<Arc<Spill>>,
    keeps_new: bool,
    /// New bytes for which there was no place, as what they replaced was kept as a word.
    more: Pages,
    stage: Stage,
    scratch: Vec<u8>,
    lost: Option<io::Error>,
}

impl<'j, 'a> Undo<'j, 'a> {
    fn new(journal: &'j Journal<'a>, spill: Option<Arc<Spill>>, keeps_new: bool) -> Self {
        let (more, stage) = Default::default();
        Self { journal, spill, keeps_new, more, stage, scratch: Vec::new(), lost: None }
    }

    /// Puts what these pages hold into its place, and returns them with what was there, if that is kept.
    fn put_back(&mut self, mut pages: Pages) -> Pages {
        let entries = std::mem::take(&mut pages.entries);
        for entry in entries {
            if self.exchange(&entry, &mut pages.blocks) {
                pages.entries.push(entry);
            }
        }
        pages
    }

    /// Whether the new bytes are where the old ones were.
    fn exchange(&mut self, entry: &Entry, blocks: &mut [Vec<u8>]) -> bool {
        let journal = self.journal;
        let mut piece = journal.tensors[entry.tensor][entry.piece].lock();
        match piece.edit(|piece| self.exchange_bytes(entry, piece, blocks)) {
            Ok(is_there) => is_there,
            Err(error) => {
                self.lost = Some(error);
                false
            }
        }
    }

    fn exchange_bytes(&mut self, entry: &Entry, piece: &mut [u8], blocks: &mut [Vec<u8>]) -> bool {
        match entry.place {
            Place::Repeats { word } => {
                if self.keeps_new {
                    let place = self.journal.keep_new(piece, &mut self.more, &mut self.stage);
                    self.more.entries.extend(place.map(|place| Entry { place, ..*entry }));
                }
                piece.chunks_mut(WORD_BYTES).for_each(|part| part.copy_from_slice(&word[..part.len()]));
                false
            }
            Place::Block { block, at } => {
                let len = piece.len();
                piece.swap_with_slice(&mut blocks[block][at..at + len]);
                self.keeps_new
            }
            Place::File { at } => {
                let Some(spill) = &self.spill else { return false };
                let keeps_new = self.keeps_new && spill.is_fast();
                if keeps_new {
                    self.scratch.clear();
                    self.scratch.extend_from_slice(piece);
                }
                if let Err(error) = spill.read(piece, at) {
                    self.lost = Some(error);
                    return false;
                }
                keeps_new && spill.put(&self.scratch, at, &mut self.stage).is_ok()
            }
        }
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        if !self.held.lock().committed
            && let Err(error) = self.restore(false)
        {
            log::error!("{error}");
        }
    }
}

impl Held {
    /// The file, which is made when it is first needed.
    fn open(&mut self, directory: &Path) -> io::Result<Arc<Spill>> {
        match &self.spill {
            Some(spill) => Ok(spill.clone()),
            None => Ok(self.spill.insert(Arc::new(Spill::create(directory)?)).clone()),
        }
    }
}

/// Replaces pieces for one lane, and hands what it has set aside to the journal when it is dropped.
#[derive(Debug)]
pub(crate) struct Writer<'j, 'a> {
    journal: &'j Journal<'a>,
    pages: Pages,
    stage: Stage,
}

impl Writer<'_, '_> {
    /// Sets the old bytes of a piece aside and puts `new` there, which is as long. Once per piece.
    ///
    /// # Errors
    /// If the old bytes can be kept nowhere, and nothing is replaced then; or a device does not take the new ones, and
    /// the old ones are kept.
    pub(crate) fn replace(&mut self, tensor: usize, piece: usize, new: &[u8]) -> io::Result<()> {
        let mut old = self.journal.tensors[tensor][piece].lock();
        if !self.journal.keeps {
            return old.put(new);
        }
        let place = old.view(|old| match repeated_word(old) {
            Some(word) => Ok(Place::Repeats { word }),
            None => self.set_aside(old),
        })??;
        self.pages.entries.push(Entry { tensor, piece, place });
        old.put(new)
    }

    /// Lets a piece change places with what an earlier attempt has left for it, if `is_right` says that this is what is
    /// wanted. Whether it did.
    pub(crate) fn recall(
        &mut self,
        tensor: usize,
        piece: usize,
        is_right: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let journal = self.journal;
        let Some(place) = journal.found.lock().waiting.remove(&(tensor, piece)) else { return false };
        let mut old = journal.tensors[tensor][piece].lock();
        let entry = Entry { tensor, piece, place };
        old.edit(|old| self.recall_bytes(entry, old, is_right)).unwrap_or_else(|error| {
            log::warn!("a piece of a tensor on a device is fetched again: {error}");
            false
        })
    }

    fn recall_bytes(&mut self, entry: Entry, old: &mut [u8], is_right: impl FnOnce(&[u8]) -> bool) -> bool {
        let journal = self.journal;
        match entry.place {
            Place::Repeats { .. } => false,
            Place::Block { block, at } => {
                let mut found = journal.found.lock();
                let pages = &mut found.pages;
                let kept = pages.blocks.get_mut(block).and_then(|block| block.get_mut(at..at + old.len()));
                let Some(kept) = kept.filter(|kept| is_right(kept)) else { return false };
                old.swap_with_slice(kept);
                pages.entries.push(entry);
                true
            }
            Place::File { at } => {
                let Some(spill) = journal.held.lock().spill.clone() else { return false };
                let mut kept = vec![0; old.len()];
                if spill.read(&mut kept, at).is_err()
                    || !is_right(&kept)
                    || spill.put(old, at, &mut self.stage).is_err()
                {
                    return false;
                }
                old.copy_from_slice(&kept);
                self.pages.entries.push(entry);
                true
            }
        }
    }

    fn set_aside(&mut self, old: &[u8]) -> io::Result<Place> {
        let journal = self.journal;
        if let Some(spill) = journal.reserve(old.len())? {
            match spill.write(old, &mut self.stage) {
                Ok(at) => return Ok(Place::File { at }),
                // A disk that is full leaves the rest of the memory.
                Err(error) if !journal.take_memory(old.len(), journal.limit) => return Err(error),
                Err(_) => journal.held.lock().spill_fails = true,
            }
        }
        Ok(self.pages.keep(old, journal.block_bytes))
    }
}

/// The word that is all that a piece holds.
fn repeated_word(piece: &[u8]) -> Option<[u8; WORD_BYTES]> {
    let word = *piece.first_chunk()?;
    // The comparison ends at the first difference: what is not alike costs nothing.
    (piece[WORD_BYTES..] == piece[..piece.len() - WORD_BYTES]).then_some(word)
}

impl Pages {
    /// Takes what other pages hold.
    fn append(&mut self, mut other: Self) {
        let before = self.blocks.len();
        for entry in &mut other.entries {
            if let Place::Block { block, .. } = &mut entry.place {
                *block += before;
            }
        }
        self.blocks.append(&mut other.blocks);
        self.entries.append(&mut other.entries);
    }

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
