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

use super::SharedState;
use save::Content;
use std::path::Path;

impl SharedState<'_> {
    /// Writes the state to a file, whole or not at all: until everything is on the disk, what `path` held before stays
    /// there. See [`SaveOptions`] for what can be left out.
    ///
    /// # Errors
    /// [`StateFileError`]: the file that was there before is as it was.
    pub fn save(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<SaveInfo, StateFileError> {
        save::save(path.as_ref(), self.revision, &self.contents(), options)
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
        file.fill(&mut self.tensors)?;
        self.revision = file.revision();
        self.loaded = Some((file.revision(), file.digest()));
        Ok(self.revision)
    }

    /// A copy of the state, which can be saved while the training goes on.
    pub fn snapshot(&self) -> StateSnapshot {
        StateSnapshot::of(self.revision, &self.contents())
    }

    /// Copies the state and has another thread save the copy, so that the training goes on meanwhile.
    ///
    /// # Errors
    /// `StateFileError::Io` if no thread can be started; everything else comes with [`Saving::wait`].
    pub fn save_while(&self, path: impl AsRef<Path>, options: SaveOptions) -> Result<Saving, StateFileError> {
        self.snapshot().save_while(path, options)
    }

    fn contents(&self) -> Vec<Content<'_>> {
        let content = |tensor: &'_ super::StateTensor| Content {
            key: tensor.key.as_str().to_owned(),
            data_type: tensor.data_type,
            count: tensor.count,
            may_differ: tensor.allow_inequality,
            bytes: &[],
        };
        let described = self.tensors.iter().map(content);
        described
            .zip(&self.tensors)
            .map(|(it, tensor)| Content { bytes: tensor.memory.view(), ..it })
            .collect()
    }
}

#[cfg(test)]
mod tests;
