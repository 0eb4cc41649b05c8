//! Reading a file: everything is verified, piece by piece, before the first tensor is replaced.

use super::error::StateFileError;
use super::format::{Entry, HEADER_MAX, Header, LENGTH_BYTES, PIECE_BYTES};
use crate::state::StateTensor;
use pccl_hash::{Digest128, tree};
use pccl_quant::DataType;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};
use tinysockets::private_file::open_regular;

/// A state in a file, of which the header was read and verified.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    file: File,
    header: Header,
    digest: Digest128,
    /// Where the data begins.
    data_at: u64,
}

impl StateFile {
    /// Opens a file that [`SharedState::save`](crate::SharedState::save) has written, and reads its header.
    ///
    /// # Errors
    /// [`StateFileError`], also for a file that does not have as many bytes as its header says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StateFileError> {
        let path = path.as_ref();
        let mut file =
            open_regular(path, File::options().read(true)).map_err(StateFileError::io(path, "open"))?;
        let (header, data_at) = read_header(path, &mut file)?;
        let digest = header.state_digest().map_err(|text| StateFileError::damaged(path, text))?;
        Ok(Self { path: path.to_owned(), file, header, digest, data_at })
    }

    /// The revision of the state.
    pub fn revision(&self) -> u64 {
        self.header.revision
    }

    /// One hash over keys, types and contents: that of [`SharedState::hash`](crate::SharedState::hash).
    pub fn hash(&self) -> String {
        self.digest.to_string()
    }

    /// The tensors: key, type and shape.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, DataType, &[u64])> {
        self.header.entries.iter().map(|entry| (entry.key.as_str(), entry.data_type, entry.shape.as_slice()))
    }

    pub(crate) fn digest(&self) -> Digest128 {
        self.digest
    }

    /// Reads everything and compares it with the digests.
    ///
    /// # Errors
    /// [`StateFileError`] names the tensor and the bytes that are wrong.
    pub fn verify(&mut self) -> Result<(), StateFileError> {
        let mut piece = Vec::new();
        let places: Vec<(u64, Entry)> =
            self.header.places().map(|(begin, entry)| (begin, entry.clone())).collect();
        for (begin, entry) in &places {
            self.seek(*begin)?;
            for index in 0..entry.pieces.len() {
                piece.resize(piece_len(entry, index), 0);
                self.read_piece(entry, index, &mut piece)?;
            }
        }
        Ok(())
    }

    /// Puts the contents into tensors. Verifies all of them before.
    pub(super) fn fill(&mut self, tensors: &mut [StateTensor]) -> Result<(), StateFileError> {
        self.check_fit(tensors)?;
        self.verify()?;
        let places: Vec<(u64, Entry)> =
            self.header.places().map(|(begin, entry)| (begin, entry.clone())).collect();
        for (begin, entry) in &places {
            let tensor = tensors.iter_mut().find(|tensor| tensor.key.as_str() == entry.key);
            let Some(tensor) = tensor else { continue };
            self.seek(*begin)?;
            let mut content = vec![0; tensor.memory.bytes()];
            let pieces = content.chunks_mut(PIECE_BYTES).enumerate();
            for (index, piece) in pieces {
                self.read_piece(entry, index, piece).map_err(|error| changed_meanwhile(&self.path, error))?;
            }
            tensor.memory.overwrite(&content).map_err(StateFileError::io(&self.path, "put into place"))?;
        }
        Ok(())
    }

    fn check_fit(&self, tensors: &[StateTensor]) -> Result<(), StateFileError> {
        let differs = |tensor: &str, text: String| {
            Err(StateFileError::Mismatch { path: self.path.clone(), tensor: tensor.to_owned(), text })
        };
        for tensor in tensors {
            let key = tensor.key.as_str();
            let (count, data_type) = (tensor.count, tensor.data_type);
            match self.header.entries.iter().find(|entry| entry.key == key) {
                None => return differs(key, format!("{count} elements of {data_type}, the file has none")),
                Some(entry) if (entry.count(), entry.data_type) != (count, data_type) => {
                    let text = format!(
                        "{count} elements of {data_type}, the file has {} of {}, shape {:?}",
                        entry.count(),
                        entry.data_type,
                        entry.shape
                    );
                    return differs(key, text);
                }
                Some(_) => {}
            }
        }
        let is_known = |entry: &&Entry| tensors.iter().any(|tensor| tensor.key.as_str() == entry.key);
        match self.header.entries.iter().find(|entry| !is_known(entry)) {
            Some(entry) => differs(&entry.key, "the file has it, the state does not".into()),
            None => Ok(()),
        }
    }

    fn seek(&mut self, begin: u64) -> Result<(), StateFileError> {
        let moved = self.file.seek(SeekFrom::Start(self.data_at + begin));
        moved.map(drop).map_err(StateFileError::io(&self.path, "read"))
    }

    /// Reads one piece, at the present place, and compares it with its digest.
    fn read_piece(&mut self, entry: &Entry, index: usize, piece: &mut [u8]) -> Result<(), StateFileError> {
        self.file.read_exact(piece).map_err(StateFileError::io(&self.path, "read"))?;
        let found = tree::mebibyte_digest(piece);
        if found == entry.pieces[index] {
            return Ok(());
        }
        let begin = (index * PIECE_BYTES) as u64;
        Err(StateFileError::Damaged {
            path: self.path.clone(),
            place: Some((entry.key.clone(), begin..begin + piece.len() as u64)),
            text: format!("its hash is {found}, {} was written", entry.pieces[index]),
        })
    }
}

fn piece_len(entry: &Entry, index: usize) -> usize {
    let left = entry.bytes().saturating_sub((index * PIECE_BYTES) as u64);
    usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES)
}

/// It was verified a moment ago.
fn changed_meanwhile(path: &Path, error: StateFileError) -> StateFileError {
    match error {
        StateFileError::Damaged { place, text, .. } => {
            let text = format!("{text}; it was changed while it was read, the state is undefined");
            StateFileError::Damaged { path: path.to_owned(), place, text }
        }
        other => other,
    }
}

/// Reads and verifies the header of a file: also where the data begins.
pub(super) fn read_header(path: &Path, file: &mut File) -> Result<(Header, u64), StateFileError> {
    let io = || StateFileError::io(path, "read");
    let damaged = |text: String| StateFileError::damaged(path, text);
    let whole = file.metadata().map_err(io())?.len();
    let mut length = [0; LENGTH_BYTES];
    if whole < LENGTH_BYTES as u64 {
        return Err(damaged(format!("it has {whole} bytes")));
    }
    file.read_exact(&mut length).map_err(io())?;
    let length = u64::from_le_bytes(length);
    let behind = whole - LENGTH_BYTES as u64;
    if length > HEADER_MAX || length > behind {
        return Err(damaged(format!("a header of {length} bytes, the file has {whole}")));
    }
    let mut header = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact(&mut header).map_err(io())?;
    let header = Header::decode(&header, behind - length).map_err(damaged)?;
    Ok((header, LENGTH_BYTES as u64 + length))
}
