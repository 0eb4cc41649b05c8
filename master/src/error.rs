//! Why a master could not start, or ended by itself.

use std::{io, path::PathBuf, sync::Arc};

/// Why a master could not start, or why it ended by itself.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MasterError {
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
    /// The address to listen on cannot be understood or resolved.
    #[error("cannot listen on {listen:?}: {reason}")]
    Address {
        /// The address as given.
        listen: String,
        /// The fault of this address.
        reason: String,
    },
    /// Other machines would reach a master that has no key.
    #[error(
        "a master without a run key listens for this machine only, not on {listen}: make a key with `pccl-master \
         --new-key` and give it to the master and to all peers (PCCL_RUN_KEY), or let everybody in (--insecure)"
    )]
    NoKey {
        /// The address as given.
        listen: String,
    },
    /// The address is fine, but the system does not let this process listen on it.
    #[error("cannot listen on {listen:?}: {error}{}", hint(error))]
    Listen {
        /// The address as given.
        listen: String,
        /// The system's error.
        error: Arc<io::Error>,
    },
    /// The relay cannot be started.
    #[error("the relay cannot listen on port {port}: {error}{}", hint(error))]
    Relay {
        /// The port as given.
        port: u16,
        /// The system's error.
        error: Arc<io::Error>,
    },
    /// The operator's socket cannot be made.
    #[error("cannot listen for an operator at {path:?}: {error}")]
    Admin {
        /// The path as given.
        path: PathBuf,
        /// The system's error.
        error: Arc<io::Error>,
    },
    /// The journal cannot be used, or is of another run than this master is to lead.
    #[error("the journal of the master: {0}")]
    Journal(String),
    /// Another master acts in the place of this one, which was stopped or could not be reached for a while.
    #[error("this master acts no more: {0}")]
    Superseded(String),
    /// The system has no random numbers for identities.
    #[error("no random numbers: {0}")]
    Random(Arc<io::Error>),
    /// The system refused what the event loop needs.
    #[error("the master's event loop cannot run: {0}")]
    EventLoop(Arc<io::Error>),
    /// A defect of the master: its thread panicked. All clients have lost their connection.
    #[error("the master ended by an internal error, please report it: {0}")]
    Panicked(String),
}

/// The remedy for the usual reasons not to be able to listen.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process listens there (another master?): stop it or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges, choose a higher one",
        _ => "",
    }
}
