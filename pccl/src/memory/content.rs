//! The content of a tensor of the shared state: in the caller's memory, or on a device.

use super::HostState;
use parking_lot::Mutex;
use pccl_cuda::{CudaError, DeviceMemory};
use pccl_hash::{Digest128, Tree, tree};
use pccl_quant::Element;
use std::{borrow::Cow, collections::VecDeque, io, ops::Range, sync::Arc};
use tinysockets::link::{Gate, Lent};

/// Pieces of a tensor on a device that an offer keeps on the host: those which several requests are about at a time.
const KEPT_PIECES: usize = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) enum RawState {
    /// Memory of the host.
    Host(HostState),
    /// Memory of a device.
    Device(DeviceMemory),
}

/// The digests of level 1 by `tree` of memories of devices. No kernel has a key: for a tree with one the content comes
/// to the host, a MiB at a time.
///
/// # Errors
/// Those of the driver.
pub(crate) fn digests_on_devices(tree: &Tree, memories: &[&DeviceMemory]) -> io::Result<Vec<Vec<Digest128>>> {
    if *tree == Tree::Plain {
        return DeviceMemory::level1_digests_of(memories).map_err(device_error);
    }
    let of = |memory: &&DeviceMemory| {
        (0..tree::level1_count(memory.bytes() as u64))
            .map(|number| digest_of_copy(tree, memory, number))
            .collect()
    };
    memories.iter().map(of).collect()
}

/// The digest of a MiB of `memory`, or of its shorter end.
fn digest_of_copy(tree: &Tree, memory: &DeviceMemory, number: u64) -> io::Result<Digest128> {
    let begin = (number as usize).saturating_mul(tree::MEBIBYTE).min(memory.bytes());
    let mut piece = vec![0; (memory.bytes() - begin).min(tree::MEBIBYTE)];
    if !piece.is_empty() {
        memory.read(begin, &mut piece).map_err(device_error)?;
    }
    Ok(tree.mebibyte_digest(&piece))
}

/// The error of the driver, as an error of the system.
pub(crate) fn device_error(error: CudaError) -> io::Error {
    let kind = match error {
        CudaError::OutOfMemory { .. } => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl RawState {
    /// The content, where it is on the host. Only while nothing of it is lent for writing.
    pub(crate) fn on_host(&self) -> Option<&[u8]> {
        match self {
            Self::Host(memory) => Some(memory.view()),
            Self::Device(_) => None,
        }
    }

    /// The memory of the device, where it is on one.
    pub(crate) fn on_device(&self) -> Option<&DeviceMemory> {
        match self {
            Self::Host(_) => None,
            Self::Device(memory) => Some(memory),
        }
    }

    /// The content, copied to the host if it is on a device.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn content(&self) -> io::Result<Cow<'_, [u8]>> {
        match self {
            Self::Host(memory) => Ok(Cow::Borrowed(memory.view())),
            Self::Device(memory) => memory.to_vec().map(Cow::Owned).map_err(device_error),
        }
    }

    /// Some of the content, likewise. The range lies inside.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn part(&self, range: Range<usize>) -> io::Result<Cow<'_, [u8]>> {
        match self {
            Self::Host(memory) => Ok(Cow::Borrowed(&memory.view()[range])),
            Self::Device(memory) => {
                let mut part = vec![0; range.len()];
                memory.read(range.start, &mut part).map_err(device_error)?;
                Ok(Cow::Owned(part))
            }
        }
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Host(memory) => memory.view().len(),
            Self::Device(memory) => memory.bytes(),
        }
    }

    /// The digests by `tree` of MiBs with these numbers, which it has.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn mebibyte_digests(&self, tree: &Tree, numbers: &[u64]) -> io::Result<Vec<Digest128>> {
        match (self, tree) {
            (Self::Host(memory), _) => {
                let from = |number: &u64| &memory.view()[*number as usize * tree::MEBIBYTE..];
                Ok(numbers.iter().map(|number| tree.mebibyte_digest(from(number))).collect())
            }
            (Self::Device(memory), Tree::Plain) => memory.mebibyte_digests(numbers).map_err(device_error),
            (Self::Device(memory), Tree::Keyed(_)) => {
                numbers.iter().map(|number| digest_of_copy(tree, memory, *number)).collect()
            }
        }
    }

    /// The content as elements of the type that it was made of; `None` if it is on a device, or such elements cannot
    /// lie at its address.
    pub(crate) fn elements<T: Element>(&self) -> Option<&[T]> {
        match self {
            Self::Host(memory) => memory.elements(),
            Self::Device(_) => None,
        }
    }

    /// Lends the content for reading behind `gate`.
    pub(crate) fn lend(&self, gate: &Arc<Gate>) -> LentContent {
        match self {
            Self::Host(memory) => LentContent::Host(memory.lend(gate)),
            Self::Device(memory) => LentContent::Device(OnDevice {
                memory: memory.clone(),
                gate: gate.clone(),
                pieces: Mutex::default(),
            }),
        }
    }

    /// The content in pieces of a MiB, to be changed. Only while nothing of it is lent: the code that lent it has
    /// drained the gate.
    pub(crate) fn pieces(&mut self) -> Vec<Piece<'_>> {
        match self {
            Self::Host(memory) => memory.view_mut().chunks_mut(tree::MEBIBYTE).map(Piece::Host).collect(),
            Self::Device(memory) => {
                let bytes = memory.bytes();
                let begins = (0..bytes).step_by(tree::MEBIBYTE);
                let piece = |begin: usize| Piece::Device {
                    memory: memory.clone(),
                    range: begin..bytes.min(begin + tree::MEBIBYTE),
                };
                begins.map(piece).collect()
            }
        }
    }

    /// Replaces the whole content. Only while nothing of it is lent.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn overwrite(&mut self, content: &[u8]) -> io::Result<()> {
        match self {
            Self::Host(memory) => {
                memory.view_mut().copy_from_slice(content);
                Ok(())
            }
            Self::Device(memory) => memory.write(0, content).map_err(device_error),
        }
    }
}

/// Content that is lent for reading.
#[derive(Debug)]
pub(crate) enum LentContent {
    /// Memory of the host.
    Host(Lent),
    /// Memory of a device.
    Device(OnDevice),
}

/// A piece by its number, and its bytes.
type Kept = (usize, Arc<Vec<u8>>);

/// Content on a device, of which the pieces that were read last are kept.
#[derive(Debug)]
pub(crate) struct OnDevice {
    memory: DeviceMemory,
    gate: Arc<Gate>,
    pieces: Mutex<VecDeque<Kept>>,
}

impl LentContent {
    /// Runs `read` on the bytes of `range`, which lie in one MiB; it must not block. `None` if the gate is closed, or
    /// the device gives them no more.
    pub(crate) fn view<R>(&self, range: Range<usize>, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let device = match self {
            Self::Host(memory) => return memory.view(range, read),
            Self::Device(device) => device,
        };
        let _pass = device.gate.enter()?;
        let number = range.start / tree::MEBIBYTE;
        let piece = device.piece(number)?;
        let begin = number * tree::MEBIBYTE;
        Some(read(piece.get(range.start - begin..range.end - begin)?))
    }
}

impl OnDevice {
    fn piece(&self, number: usize) -> Option<Arc<Vec<u8>>> {
        let known = |pieces: &VecDeque<Kept>| {
            pieces.iter().find(|(kept, _)| *kept == number).map(|(_, bytes)| bytes.clone())
        };
        if let Some(bytes) = known(&self.pieces.lock()) {
            return Some(bytes);
        }
        let begin = number * tree::MEBIBYTE;
        let mut bytes = vec![0; self.memory.bytes().checked_sub(begin)?.min(tree::MEBIBYTE)];
        if let Err(error) = self.memory.read(begin, &mut bytes) {
            log::error!("a tensor of the shared state cannot be given to others: {error}");
            return None;
        }
        let bytes = Arc::new(bytes);
        let mut pieces = self.pieces.lock();
        pieces.truncate(KEPT_PIECES - 1);
        pieces.push_front((number, bytes.clone()));
        Some(bytes)
    }
}

/// A MiB of a tensor, or its shorter end, to be changed.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// In memory of the host.
    Host(&'a mut [u8]),
    /// In memory of a device.
    Device {
        /// The tensor.
        memory: DeviceMemory,
        /// Where in it.
        range: Range<usize>,
    },
}

impl Piece<'_> {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device { range, .. } => range.len(),
        }
    }

    /// Runs `work` on the content.
    ///
    /// # Errors
    /// Those of the driver; nothing was run then.
    pub(crate) fn view<R>(&self, work: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        match self {
            Self::Host(bytes) => Ok(work(bytes)),
            Self::Device { memory, range } => {
                let mut bytes = vec![0; range.len()];
                memory.read(range.start, &mut bytes).map_err(device_error)?;
                Ok(work(&bytes))
            }
        }
    }

    /// Replaces the content by as many bytes.
    ///
    /// # Errors
    /// Those of the driver; the content is undefined then.
    pub(crate) fn put(&mut self, new: &[u8]) -> io::Result<()> {
        match self {
            Self::Host(bytes) => {
                bytes.copy_from_slice(new);
                Ok(())
            }
            Self::Device { memory, range } => memory.write(range.start, new).map_err(device_error),
        }
    }

    /// Runs `work` on the content, which it may change.
    ///
    /// # Errors
    /// Those of the driver: before `work`, and then nothing was run, or after it.
    pub(crate) fn edit<R>(&mut self, work: impl FnOnce(&mut [u8]) -> R) -> io::Result<R> {
        match self {
            Self::Host(bytes) => Ok(work(bytes)),
            Self::Device { memory, range } => {
                let mut bytes = vec![0; range.len()];
                memory.read(range.start, &mut bytes).map_err(device_error)?;
                let result = work(&mut bytes);
                memory.write(range.start, &bytes).map_err(device_error)?;
                Ok(result)
            }
        }
    }
}
