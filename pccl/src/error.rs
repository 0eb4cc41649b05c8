//! Errors, sorted by what the caller should do.

use pccl_protocol::{CallKind, Cause, KickCode, KickReason, Operation, Verdict};

/// What a training loop does about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Call the same function again; buffers are as before.
    Retry,
    /// Wait for more peers, for instance with [`Communicator::wait_for_world`](crate::Communicator::wait_for_world).
    WaitForPeers,
    /// Call [`Communicator::connect`](crate::Communicator::connect) again, then sync the shared state.
    Reconnect,
    /// Form the group anew with [`Communicator::form_group`](crate::Communicator::form_group), of those who are there and
    /// with a fresh uuid, then sync the shared state.
    FormGroup,
    /// The program has to be changed, or the environment: trying again does not help.
    GiveUp,
}

impl Remedy {
    /// Whether only the program can do something about it.
    pub(crate) const fn is_for_callers(self) -> bool {
        matches!(self, Self::GiveUp | Self::FormGroup)
    }
}

/// Why a call failed.
///
/// After any error, send buffers and in-place buffers are bit-identical to before the call, except with
/// [`Error::OutcomeUnknown`]; an out-of-place receive buffer is undefined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has no meaning.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// The call is not possible in this state of the communicator.
    #[error("invalid usage: {0}")]
    InvalidUsage(String),
    /// The communicator is not connected.
    #[error("not connected: call connect first")]
    NotConnected,
    /// All-reduces are in flight; wait for them first.
    #[error("{count} asynchronous all-reduces are still in flight; wait for them first")]
    PendingAsyncOps {
        /// How many.
        count: usize,
    },
    /// The master could not be reached within `connect_timeout`.
    #[error("{0}")]
    ConnectFailed(String),
    /// The master does not take this peer, whenever it tries: another version, another run, no room; or what answers is no
    /// master.
    #[error("{0}")]
    Refused(String),
    /// There are not enough peers. Nothing has been done.
    #[error("too few peers: the {} has {have}, {need} are needed", if *.in_group { "group" } else { "world" })]
    TooFewPeers {
        /// Peers there are.
        have: u32,
        /// Peers needed.
        need: u32,
        /// Whether the group is too small, or the world.
        in_group: bool,
    },
    /// The operation failed on every peer for the same cause.
    #[error("{0}")]
    Aborted(Box<Verdict>),
    /// The master dropped this peer.
    #[error("dropped by the master: {0}")]
    Kicked(KickReason),
    /// The connection to the master is lost.
    #[error("master lost: {0}")]
    MasterLost(String),
    /// The master was lost after this peer had voted complete: it holds the whole result, but does not know whether the
    /// others do. Reconnect and sync.
    #[error(
        "outcome unknown: {0}; the buffer holds the complete result, whether the others have it is not known"
    )]
    OutcomeUnknown(String),
    /// The caller's own limit passed. The peer is in no call any more and may go on.
    #[error("timed out: {text}")]
    TimedOut {
        /// The call that had the limit; [`CallKind::None`] for a drain.
        call: CallKind,
        /// What was waited for, for how long, and for whom.
        text: String,
        /// The verdict with which the operation failed on every peer, if it failed for all.
        verdict: Option<Box<Verdict>>,
    },
    /// The operating system refused something.
    #[error("system: {0}")]
    System(String),
}

impl Error {
    /// What a training loop does about it.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Aborted(verdict)
                if verdict.cause == Cause::GroupBroken
                    || matches!(verdict.operation, Operation::Forming(_)) =>
            {
                Remedy::FormGroup
            }
            Self::TimedOut { call: CallKind::FormGroup, .. } => Remedy::FormGroup,
            Self::Aborted(verdict) if verdict.cause == Cause::MismatchedCall => Remedy::GiveUp,
            Self::Aborted(_) => Remedy::Retry,
            Self::Kicked(reason) if matches!(reason.code, KickCode::Operator | KickCode::StateMismatch) => {
                Remedy::GiveUp
            }
            Self::TooFewPeers { .. } | Self::TimedOut { call: CallKind::WaitForWorld, .. } => {
                Remedy::WaitForPeers
            }
            Self::TimedOut { call: CallKind::Connect, .. } => Remedy::Reconnect,
            Self::TimedOut { .. } => Remedy::Retry,
            Self::NotConnected
            | Self::ConnectFailed(_)
            | Self::Kicked(_)
            | Self::MasterLost(_)
            | Self::OutcomeUnknown(_) => Remedy::Reconnect,
            Self::InvalidArgument(_)
            | Self::Refused(_)
            | Self::InvalidUsage(_)
            | Self::PendingAsyncOps { .. }
            | Self::System(_) => Remedy::GiveUp,
        }
    }

    /// Whether the same call may simply be made again.
    pub fn is_retryable(&self) -> bool {
        self.remedy() == Remedy::Retry
    }

    /// The verdict of the master, if the operation failed for all.
    pub fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Aborted(verdict) | Self::TimedOut { verdict: Some(verdict), .. } => Some(verdict),
            _ => None,
        }
    }
}

/// Result of the library's calls.
pub type Result<T> = std::result::Result<T, Error>;
