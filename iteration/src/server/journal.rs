//! The file that lets a store survive its own restart: every change, in order, and now and then everything anew.

use crate::data::{Data, Limits, Refusal};
use pccl_hash::crc32c;
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};
use tinysockets::{
    private_file::{create_in_place, open_own},
    wire::{Decode, Reader, WireError},
};

/// In front of every file.
const MAGIC: &[u8; 8] = b"PCCLst1\n";
/// The file is written anew when it is this much larger than what it stands for.
const SLACK_BYTES: u64 = 64 * 1024 * 1024;
/// Longest change: a key, a value, and their lengths.
const MAX_CHANGE_BYTES: usize = 9 * 1024 * 1024;

/// One change of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Set(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Push(Vec<u8>, Vec<u8>),
    Pop(Vec<u8>),
    Arrivals(Vec<u8>, i64),
}

/// An open file. Nobody else can open it.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Journal {
    /// Opens or makes the file; returns what it holds. A change that was cut off at its end, when a machine stopped, is
    /// dropped: nobody was ever told that it was done.
    pub(super) fn open(path: &Path, limits: Limits) -> io::Result<(Self, Data)> {
        let mut options = OpenOptions::new();
        let mut file = open_own(path, options.read(true).write(true).create(true).truncate(false))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another store uses this file")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let length = file.metadata()?.len();
        let mut data = Data::new(limits);
        let mut good = MAGIC.len() as u64;
        if length < good {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(MAGIC)?;
            file.sync_all()?;
        } else {
            let mut reader = BufReader::new(&file);
            let mut magic = [0; 8];
            reader.read_exact(&mut magic)?;
            if magic != *MAGIC {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no file of a store"));
            }
            while let Some((change, bytes)) = read_change(&mut reader)? {
                apply(&mut data, change).map_err(|refusal| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("the file does not fit: {refusal}"))
                })?;
                good += bytes;
            }
            if good < length {
                log::warn!("{}: the last {} bytes are incomplete and dropped", path.display(), length - good);
                file.set_len(good)?;
            }
            file.seek(SeekFrom::Start(good))?;
        }
        Ok((Self { path: path.to_owned(), file, bytes: good, buffer: Vec::new() }, data))
    }

    /// Keeps changes for good before anybody is told about them.
    pub(super) fn keep(&mut self, changes: &mut Vec<Change>, data: &Data) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.buffer.clear();
        for change in changes.drain(..) {
            put_change(&mut self.buffer, &change);
        }
        self.file.write_all(&self.buffer)?;
        self.file.sync_data()?;
        self.bytes += self.buffer.len() as u64;
        if self.buffer.capacity() > MAX_CHANGE_BYTES {
            self.buffer = Vec::new();
        }
        if self.bytes > 2 * data.bytes() as u64 + SLACK_BYTES { self.write_anew(data) } else { Ok(()) }
    }

    /// Replaces the file by one that holds the present state.
    pub(super) fn write_anew(&mut self, data: &Data) -> io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let mut file = create_in_place(Path::new(&beside))?;
        file.try_lock().map_err(|_| io::Error::other("another store writes the new file"))?;
        let mut bytes = MAGIC.len() as u64;
        file.write_all(MAGIC)?;
        let sets = data.entries().map(|(key, value)| Change::Set(key.to_vec(), value.to_vec()));
        let pushes = data.queues().flat_map(|(key, queue)| {
            queue.iter().map(move |value| Change::Push(key.to_vec(), value.clone()))
        });
        let arrivals = data.barriers().map(|(key, count)| Change::Arrivals(key.to_vec(), count));
        let mut buffer = Vec::new();
        for change in sets.chain(pushes).chain(arrivals) {
            put_change(&mut buffer, &change);
            if buffer.len() > 1 << 20 {
                file.write_all(&buffer)?;
                bytes += buffer.len() as u64;
                buffer.clear();
            }
        }
        file.write_all(&buffer)?;
        bytes += buffer.len() as u64;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        if let Some(directory) = self.path.parent().filter(|path| !path.as_os_str().is_empty()) {
            File::open(directory)?.sync_all()?;
        }
        (self.file, self.bytes) = (file, bytes);
        Ok(())
    }
}

fn apply(data: &mut Data, change: Change) -> Result<(), Refusal> {
    match change {
        Change::Set(key, value) => data.set(&key, &value),
        Change::Delete(key) => {
            data.delete(&key);
            Ok(())
        }
        Change::Push(key, value) => data.push(&key, &value),
        Change::Pop(key) => {
            data.pop(&key);
            Ok(())
        }
        Change::Arrivals(key, count) => data.set_arrivals(&key, count),
    }
}

/// `u32` length of what follows the checksum, `u32` checksum, kind, key, value; integers are big-endian.
fn put_change(out: &mut Vec<u8>, change: &Change) {
    let number;
    let (kind, key, value): (u8, &[u8], &[u8]) = match change {
        Change::Set(key, value) => (0, key, value),
        Change::Delete(key) => (1, key, &[]),
        Change::Push(key, value) => (2, key, value),
        Change::Pop(key) => (3, key, &[]),
        Change::Arrivals(key, count) => {
            number = count.to_be_bytes();
            (4, key, &number)
        }
    };
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.push(kind);
    out.extend_from_slice(&(key.len() as u32).to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    let body = &out[start + 8..];
    let (length, sum) = (body.len() as u32, crc32c(body));
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&sum.to_be_bytes());
}

/// The next change and its length; `None` at the end, or where the file is damaged.
fn read_change(reader: &mut impl Read) -> io::Result<Option<(Change, u64)>> {
    let mut head = [0; 8];
    if !fill(reader, &mut head)? {
        return Ok(None);
    }
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = word(0) as usize;
    if length > MAX_CHANGE_BYTES {
        return Ok(None);
    }
    let mut body = vec![0; length];
    if !fill(reader, &mut body)? || crc32c(&body) != word(4) {
        return Ok(None);
    }
    Ok(decode(&body).ok().map(|change| (change, 8 + length as u64)))
}

fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn decode(body: &[u8]) -> Result<Change, WireError> {
    let mut reader = Reader::new(body);
    let kind = u8::decode(&mut reader)?;
    let length = reader.length(MAX_CHANGE_BYTES, "key")?;
    let key = reader.take(length, "key")?.to_vec();
    let value = reader.take(reader.remaining(), "value")?.to_vec();
    Ok(match kind {
        0 => Change::Set(key, value),
        1 => Change::Delete(key),
        2 => Change::Push(key, value),
        3 => Change::Pop(key),
        4 => {
            let count = value.try_into().map_err(|_| WireError::BadValue { what: "arrivals", value: 0 })?;
            Change::Arrivals(key, i64::from_be_bytes(count))
        }
        other => return Err(WireError::BadValue { what: "change", value: other.into() }),
    })
}
