//! Writing a file: into a new one beside it, which takes its name when all of it is on the disk.

use super::error::StateFileError;
use super::format::{Entry, Header, PIECE_BYTES, is_reserved};
use super::load::read_header;
use pccl_hash::Digest128;
use pccl_hash::tree::level1_digests_parallel;
use pccl_quant::DataType;
use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};
use tinysockets::private_file::{create_new, open_own, open_regular};

/// How to save a state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaveOptions {
    shapes: BTreeMap<String, Vec<u64>>,
    unchanged: BTreeMap<String, u64>,
    keep_previous: bool,
}

impl SaveOptions {
    /// The shape of a tensor, for those who read the file otherwise. Default: all elements in one dimension.
    #[must_use]
    pub fn shape(mut self, key: &str, shape: &[u64]) -> Self {
        self.shapes.insert(key.to_owned(), shape.to_vec());
        self
    }

    /// Keeps what the file held before as `PATH.previous`, and writes the next one over the one that is there: only
    /// those MiBs are written that differ from it. For twice the space on the disk. A reader that has the previous file
    /// open sees that; a file that has another name as well is left alone.
    #[must_use]
    pub fn keep_previous(mut self) -> Self {
        self.keep_previous = true;
        self
    }

    /// The program's word that a tensor is as it was when `revision` was saved or synced. If the file holds that
    /// revision or a later one, the tensor is not hashed again. Builds with debug assertions hash it all the same, and
    /// refuse to save what has changed.
    #[must_use]
    pub fn unchanged_since(mut self, key: &str, revision: u64) -> Self {
        self.unchanged.insert(key.to_owned(), revision);
        self
    }
}

/// The report of a saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaveInfo {
    /// The revision in the file.
    pub revision: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Bytes of the file that were there already.
    pub bytes_kept: u64,
    /// Bytes that were not hashed again.
    pub bytes_trusted: u64,
}

/// A tensor that is to be saved.
#[derive(Debug)]
pub(super) struct Content<'a> {
    pub(super) key: String,
    pub(super) data_type: DataType,
    pub(super) count: u64,
    pub(super) may_differ: bool,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// A copy of a state.
#[derive(Debug, Clone)]
pub struct StateSnapshot {
    revision: u64,
    tensors: Vec<Copied>,
    /// Why not all of it is there.
    broken: Option<Arc<io::Error>>,
}

#[derive(Debug, Clone)]
struct Copied {
    key: String,
    data_type: DataType,
    count: u64,
    may_differ: bool,
    bytes: Vec<u8>,
}

impl StateSnapshot {
    pub(super) fn of(revision: u64, contents: io::Result<Vec<Content<'_>>>) -> Self {
        let (contents, broken) = match contents {
            Ok(contents) => (contents, None),
            Err(error) => (Vec::new(), Some(Arc::new(error))),
        };
        let copied = contents.into_iter().map(|content| Copied {
            key: content.key,
            data_type: content.data_type,
            count: content.count,
            may_differ: content.may_differ,
            bytes: content.bytes.into_owned(),
        });
        Self { revision, tensors: copied.collect(), broken }
    }

    /// Not all of it is there any more.
    pub(super) fn set_broken(&mut self, error: io::Error) {
        self.broken = Some(Arc::new(error));
    }

    /// The bytes of a tensor, by its number in the order of the keys.
    pub(crate) fn content(&self, tensor: usize) -> Option<&[u8]> {
        let tensor = self.tensors.get(tensor).filter(|_| self.broken.is_none());
        tensor.map(|tensor| tensor.bytes.as_slice())
    }

    /// The same, to be changed.
    pub(super) fn content_mut(&mut self, tensor: usize) -> Option<&mut [u8]> {
        self.tensors.get_mut(tensor).map(|tensor| tensor.bytes.as_mut_slice())
    }

    /// It is of this revision now.
    pub(super) fn set_revision(&mut self, revision: u64) {
        self.revision = revision;
    }

    /// The revision of the state.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// As [`SharedState::save`](crate::SharedState::save).
    ///
    /// # Errors
    /// The same.
    pub fn save(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<SaveInfo, StateFileError> {
        if let Some(error) = &self.broken {
            let (path, doing) = (path.as_ref().to_owned(), "read what goes to");
            return Err(StateFileError::Io { path, doing, error: error.clone() });
        }
        let content =
            |tensor: &'_ Copied| (tensor.key.clone(), tensor.data_type, tensor.count, tensor.may_differ);
        let contents = self.tensors.iter().map(|tensor| {
            let (key, data_type, count, may_differ) = content(tensor);
            Content { key, data_type, count, may_differ, bytes: Cow::Borrowed(&tensor.bytes) }
        });
        save(path.as_ref(), self.revision, &contents.collect::<Vec<_>>(), options)
    }

    /// Has another thread save it.
    ///
    /// # Errors
    /// `StateFileError::Io` if no thread can be started.
    pub fn save_while(self, path: impl AsRef<Path>, options: SaveOptions) -> Result<Saving, StateFileError> {
        let path = path.as_ref().to_owned();
        let failed = StateFileError::io(&path, "start a thread to write");
        let thread = std::thread::Builder::new().name("pccl-save".into());
        let thread = thread.spawn({
            let path = path.clone();
            move || self.save(path, &options)
        });
        Ok(Saving { path, thread: thread.map_err(failed)? })
    }
}

/// A state that another thread saves. If this is dropped, it goes on; if the process ends, what the file held before
/// is still there.
#[derive(Debug)]
#[must_use = "only wait says whether the state was saved"]
pub struct Saving {
    path: PathBuf,
    thread: JoinHandle<Result<SaveInfo, StateFileError>>,
}

impl Saving {
    /// Whether [`Saving::wait`] returns at once.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the state is saved.
    ///
    /// # Errors
    /// As [`SharedState::save`](crate::SharedState::save).
    pub fn wait(self) -> Result<SaveInfo, StateFileError> {
        let ended = self.thread.join();
        ended.unwrap_or_else(|_| {
            let error = io::Error::other("the thread that writes has panicked");
            Err(StateFileError::io(&self.path, "write")(error))
        })
    }
}

/// Writes a file.
pub(super) fn save(
    path: &Path,
    revision: u64,
    contents: &[Content<'_>],
    options: &SaveOptions,
) -> Result<SaveInfo, StateFileError> {
    let name = path
        .file_name()
        .ok_or_else(|| StateFileError::InvalidArgument(format!("{} is no path of a file", path.display())))?;
    check(contents, options)?;
    // A file that cannot be used is no reason not to replace it.
    let known = if options.unchanged.is_empty() { None } else { header_of(path) };
    let (header, bytes_trusted) = describe(revision, contents, options, known.as_ref())?;
    let encoded = header.encode().map_err(StateFileError::InvalidArgument)?;
    let mut part =
        Part::begin(path, name, options.keep_previous).map_err(StateFileError::io(path, "write"))?;
    let written = part.write(&header, &encoded, contents).and_then(|written| {
        part.finish(path, name, options.keep_previous)?;
        Ok(written)
    });
    let written = written.map_err(StateFileError::io(path, "write"))?;
    let whole = encoded.len() as u64 + header.entries.iter().map(Entry::bytes).sum::<u64>();
    Ok(SaveInfo { revision, bytes_written: written, bytes_kept: whole - written, bytes_trusted })
}

fn check(contents: &[Content<'_>], options: &SaveOptions) -> Result<(), StateFileError> {
    let invalid = |text: String| Err(StateFileError::InvalidArgument(text));
    if let Some(content) = contents.iter().find(|content| is_reserved(&content.key)) {
        return invalid(format!("a file cannot have a tensor {:?}", content.key));
    }
    for (key, shape) in &options.shapes {
        let Some(content) = contents.iter().find(|content| content.key == *key) else {
            return invalid(format!("a shape for tensor {key:?}, which the state does not have"));
        };
        let count = shape.iter().try_fold(1_u64, |count, length| count.checked_mul(*length));
        if count != Some(content.count) {
            return invalid(format!("shape {shape:?} for the {} elements of tensor {key:?}", content.count));
        }
    }
    match options.unchanged.keys().find(|key| contents.iter().all(|content| content.key != **key)) {
        Some(key) => invalid(format!("a word about tensor {key:?}, which the state does not have")),
        None => Ok(()),
    }
}

/// The header of what is to be written, and of how many bytes the digests are those of the `known` file.
fn describe(
    revision: u64,
    contents: &[Content<'_>],
    options: &SaveOptions,
    known: Option<&Header>,
) -> Result<(Header, u64), StateFileError> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (mut entries, mut trusted) = (Vec::with_capacity(contents.len()), 0);
    for content in contents {
        let shape = options.shapes.get(&content.key).cloned().unwrap_or_else(|| vec![content.count]);
        let mut entry = Entry {
            key: content.key.clone(),
            data_type: content.data_type,
            shape,
            may_differ: content.may_differ,
            pieces: Vec::new(),
        };
        let since = options.unchanged.get(&content.key);
        let known = since.and_then(|since| known.filter(|known| known.revision >= *since));
        let known = known.and_then(|known| known.entries.iter().find(|other| other.has_place_of(&entry)));
        entry.pieces = match known {
            Some(known) => {
                trusted += entry.bytes();
                known.pieces.clone()
            }
            None => level1_digests_parallel(&content.bytes, threads),
        };
        #[cfg(debug_assertions)]
        if known.is_some() && entry.pieces != level1_digests_parallel(&content.bytes, threads) {
            let text = format!("tensor {:?} was said to be unchanged, and has changed", content.key);
            return Err(StateFileError::InvalidArgument(text));
        }
        entries.push(entry);
    }
    Ok((Header::new(revision, entries), trusted))
}

fn header_of(path: &Path) -> Option<Header> {
    let mut file = open_regular(path, OpenOptions::new().read(true)).ok()?;
    read_header(path, &mut file).ok().map(|(header, _)| header)
}

fn beside(path: &Path, name: &std::ffi::OsStr, ending: &str) -> PathBuf {
    let mut name = OsString::from(name);
    name.push(ending);
    path.with_file_name(name)
}

/// The file that is being written. It goes with this value, unless it has taken its name.
struct Part {
    path: PathBuf,
    file: File,
    /// The header of the content that is in it already, with the length of its header, data included.
    held: Option<(Header, u64)>,
    is_finished: bool,
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Part {
    fn begin(path: &Path, name: &std::ffi::OsStr, keep_previous: bool) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        remove_leftovers(path, name);
        let part = beside(path, name, &format!(".part-{}-{number}", std::process::id()));
        if keep_previous && let Some(part) = Self::of_previous(path, &beside(path, name, ".previous"), &part)
        {
            return Ok(part);
        }
        let file = create_new(&part)?;
        // So that others see that somebody still writes it. Not every file system has locks.
        let _ = file.try_lock();
        Ok(Self { path: part, file, held: None, is_finished: false })
    }

    /// Takes the file that the last one has replaced, if it is whole and has no other name.
    fn of_previous(path: &Path, previous: &Path, part: &Path) -> Option<Self> {
        let is_own = |file: &Path| fs::symlink_metadata(file).is_ok_and(|it| it.is_file() && it.nlink() == 1);
        if !is_own(previous) || fs::symlink_metadata(path).is_err() {
            return None;
        }
        fs::rename(previous, part).ok()?;
        let taken = open_own(part, OpenOptions::new().read(true).write(true)).and_then(|mut file| {
            let _ = file.try_lock();
            let held = read_header(part, &mut file).map_err(io::Error::other)?;
            Ok((file, held))
        });
        match taken {
            Ok((file, held)) => {
                Some(Self { path: part.to_owned(), file, held: Some(held), is_finished: false })
            }
            Err(_) => {
                let _ = fs::remove_file(part);
                None
            }
        }
    }

    /// Writes what is not there yet. How many bytes that were.
    fn write(&mut self, header: &Header, encoded: &[u8], contents: &[Content<'_>]) -> io::Result<u64> {
        let places = || header.entries.iter();
        let held = self.held.take().filter(|(held, data_at)| {
            let is_same = held.entries.len() == header.entries.len()
                && held.entries.iter().zip(places()).all(|(a, b)| a.has_place_of(b));
            is_same && *data_at == encoded.len() as u64
        });
        if held.is_none() {
            self.file.set_len(0)?;
        }
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(encoded)?;
        let mut written = encoded.len() as u64;
        for (place, (begin, entry)) in header.places().enumerate() {
            let Some(content) = contents.iter().find(|content| content.key == entry.key) else { continue };
            let before: &[Digest128] =
                held.as_ref().map_or(&[], |(held, _)| held.entries[place].pieces.as_slice());
            for (index, piece) in content.bytes.chunks(PIECE_BYTES).enumerate() {
                if before.get(index) == entry.pieces.get(index) {
                    continue;
                }
                let at = encoded.len() as u64 + begin + (index * PIECE_BYTES) as u64;
                self.file.seek(SeekFrom::Start(at))?;
                self.file.write_all(piece)?;
                written += piece.len() as u64;
            }
        }
        Ok(written)
    }

    /// Everything is written: the file takes its name.
    fn finish(&mut self, path: &Path, name: &std::ffi::OsStr, keep_previous: bool) -> io::Result<()> {
        self.file.sync_all()?;
        if keep_previous && fs::symlink_metadata(path).is_ok() {
            let previous = beside(path, name, ".previous");
            match fs::remove_file(&previous) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::hard_link(path, &previous)?,
            }
        }
        fs::rename(&self.path, path)?;
        self.is_finished = true;
        // The names are on the disk, too.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Removes what a process left that was killed while it wrote.
fn remove_leftovers(path: &Path, name: &std::ffi::OsStr) {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(files) = fs::read_dir(directory.unwrap_or(Path::new("."))) else { return };
    let mut start = OsString::from(name);
    start.push(".part-");
    for file in files.flatten() {
        let is_part = file.file_name().as_encoded_bytes().starts_with(start.as_encoded_bytes());
        // Whatever else has such a name is not opened: a FIFO would be waited for.
        let is_free = |part: File| part.try_lock().is_ok();
        if is_part && open_own(&file.path(), OpenOptions::new().read(true)).is_ok_and(is_free) {
            let _ = fs::remove_file(file.path());
        }
    }
}
