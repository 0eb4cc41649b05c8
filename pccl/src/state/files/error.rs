//! Errors of a file of a state.

use crate::{Error, Reason};
use std::{fmt, io, ops::Range, path::Path, path::PathBuf, sync::Arc};

/// Why a state was not saved or loaded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum StateFileError {
    /// The system refused something.
    Io {
        /// The file.
        path: PathBuf,
        /// The action that was tried, as "write".
        doing: &'static str,
        /// The system's error.
        error: Arc<io::Error>,
    },
    /// The file is none that this library has written, or not all of it is there, or it was changed since.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The tensor, if it is known which, and which of its bytes, counted from its beginning.
        place: Option<(String, Range<u64>)>,
        /// The fault.
        text: String,
    },
    /// The file holds another tensor than the state has.
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The tensor that the file has, and the one that the state has.
        text: String,
    },
    /// The state or the options cannot be saved like that.
    InvalidArgument(String),
}

impl StateFileError {
    pub(super) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| Self::Io { path, doing, error: Arc::new(error) }
    }

    /// As an error of a step, for the loop of [`Communicator::run`](crate::Communicator::run): its remedy is to give
    /// up.
    pub fn into_error(self) -> Error {
        let kind = match &self {
            Self::InvalidArgument(text) => return Error::InvalidArgument(text.clone()),
            Self::Io { error, .. } => error.kind(),
            Self::Damaged { .. } | Self::Mismatch { .. } => io::ErrorKind::InvalidData,
        };
        Error::System(Reason::system("state file", io::Error::new(kind, self)))
    }

    pub(super) fn damaged(path: &Path, text: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), place: None, text: text.into() }
    }
}

impl fmt::Display for StateFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, doing, error } => write!(f, "cannot {doing} {}: {error}", path.display()),
            Self::Damaged { path, place: Some((tensor, bytes)), text } => write!(
                f,
                "{} is damaged: tensor {tensor:?}, bytes {} to {}: {text}",
                path.display(),
                bytes.start,
                bytes.end
            ),
            Self::Damaged { path, place: None, text } => {
                write!(f, "{} holds no state, or is damaged: {text}", path.display())
            }
            Self::Mismatch { path, tensor, text } => {
                write!(f, "{} holds another state: tensor {tensor:?}: {text}", path.display())
            }
            Self::InvalidArgument(text) => write!(f, "invalid argument: {text}"),
        }
    }
}

impl std::error::Error for StateFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(&**error),
            _ => None,
        }
    }
}
