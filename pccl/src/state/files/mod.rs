//! Shared states in files: a file of safetensors that everybody can read, with the hash tree and the revision in its
//! metadata. docs/state-files.md says what it holds.
//!
//! Modules from top to bottom, each of which uses only those below it: `save`, `load`, `format`, `json`, `error`.

mod error;
mod format;
mod json;
mod load;
mod save;

pub use error::StateFileError;
pub use load::StateFile;
pub use save::{SaveInfo, SaveOptions, Saving, StateSnapshot};

use super::{SharedState, compare::Levels};
use save::Content;
use std::{borrow::Cow, io, path::Path};

impl SharedState<'_> {
    /// Writes the state to a file, whole or not at all: until everything is on the disk, what `path` held before stays
    /// there. See [`SaveOptions`] for what can be left out.
    ///
    /// # Errors
    /// [`StateFileError`]: the file that was there before is as it was.
    pub fn save(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<SaveInfo, StateFileError> {
        let read = self.contents().map_err(StateFileError::io(path.as_ref(), "read what goes to"))?;
        save::save(path.as_ref(), self.revision, &read, options)
    }

    /// Reads a file that [`SharedState::save`] has written into the tensors, and takes its revision. Keys, types and
    /// counts have to be those of the file. Everything is verified before the first tensor is replaced. Then
    /// [`Communicator::offer_resume`](crate::Communicator::offer_resume) lets the run go on from it.
    ///
    /// # Errors
    /// [`StateFileError`] names the tensor and the bytes that are wrong, or the tensor that does not fit. The tensors
    /// are as they were, unless the file changed while it was read, which the error says.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<u64, StateFileError> {
        let mut file = StateFile::open(path)?;
        self.forget();
        file.fill(&mut self.tensors)?;
        self.revision = file.revision();
        self.loaded = Some((file.revision(), file.digest()));
        Ok(self.revision)
    }

    /// A copy of the state, which can be saved while the training goes on. If a device does not give its tensors any
    /// more, to save it is refused.
    pub fn snapshot(&self) -> StateSnapshot {
        StateSnapshot::of(self.revision, self.contents())
    }

    /// Copies the state and has another thread save the copy, so that the training goes on meanwhile.
    ///
    /// # Errors
    /// `StateFileError::Io` if no thread can be started; everything else comes with [`Saving::wait`].
    pub fn save_while(&self, path: impl AsRef<Path>, options: SaveOptions) -> Result<Saving, StateFileError> {
        self.snapshot().save_while(path, options)
    }

    fn contents(&self) -> io::Result<Vec<Content<'_>>> {
        let content = |tensor: &'_ super::StateTensor| Content {
            key: tensor.key.as_str().to_owned(),
            data_type: tensor.data_type,
            count: tensor.count,
            may_differ: tensor.allow_inequality,
            bytes: Cow::Borrowed(&[]),
        };
        let described = self.tensors.iter().map(content);
        described
            .zip(&self.tensors)
            .map(|(it, tensor)| Ok(Content { bytes: tensor.memory.content()?, ..it }))
            .collect()
    }
}

impl StateSnapshot {
    /// Makes this one of `state`, which has tensors of the same lengths: of each the MiBs that have changed.
    pub(crate) fn follow(&mut self, state: &SharedState<'_>, changed: &[(&Levels, Vec<u64>)]) {
        self.set_revision(state.revision);
        for (number, (tensor, (levels, mebibytes))) in state.tensors.iter().zip(changed).enumerate() {
            for range in mebibytes.iter().filter_map(|mebibyte| levels.mebibyte(*mebibyte)) {
                match (tensor.memory.part(range.clone()), self.content_mut(number)) {
                    (Ok(from), Some(to)) => to[range].copy_from_slice(&from),
                    (Err(error), _) => self.set_broken(error),
                    (_, None) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
