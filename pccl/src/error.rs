//! Errors, sorted by what the caller should do.

mod end;
mod reason;
mod verdict;

pub(crate) use end::End;
pub use reason::{ConnectCause, LossCause, Reason};

use crate::threads::NoThread;
use pccl_protocol::{CallKind, Cause, KickCode, KickReason, Operation, Verdict};
use std::{fmt, io};

/// The reaction of a training loop to an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Call the same function again; buffers are as before.
    Retry,
    /// Wait for more peers, for instance with [`Communicator::wait_for_world`](crate::Communicator::wait_for_world).
    WaitForPeers,
    /// Call [`Communicator::connect`](crate::Communicator::connect) again, then sync the shared state.
    Reconnect,
    /// Form the group anew with [`Communicator::form_group`](crate::Communicator::form_group), of those who are there
    /// and with a fresh uuid, then sync the shared state.
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
///
/// The text says everything; `source()` leads to what lies behind it, such as the [`io::Error`] of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid.
    InvalidArgument(String),
    /// The call is not possible in this state of the communicator.
    InvalidUsage(String),
    /// The communicator is not connected.
    NotConnected,
    /// All-reduces are in flight; wait for them first.
    PendingAsyncOps {
        /// How many.
        count: usize,
    },
    /// The master could not be reached, or had no room, within `connect_timeout`.
    ConnectFailed(Reason<ConnectCause>),
    /// The master does not take this peer, whenever it tries: another version or run; or what answers is no master.
    Refused(Reason<ConnectCause>),
    /// There are not enough peers. Nothing has been done.
    TooFewPeers {
        /// Peers there are.
        have: u32,
        /// Peers needed.
        need: u32,
        /// Whether the group is too small, or the world.
        in_group: bool,
    },
    /// The operation failed on every peer for the same cause.
    Aborted(Box<Verdict>),
    /// The master dropped this peer.
    Kicked(KickReason),
    /// The connection to the master is lost.
    MasterLost(Reason<LossCause>),
    /// The master was lost after this peer had voted complete: it holds the whole result, but does not know whether the
    /// others do. Reconnect and sync.
    OutcomeUnknown(Reason<LossCause>),
    /// The caller's own limit passed. The peer is in no call any more and may go on.
    TimedOut {
        /// The call that had the limit; [`CallKind::None`] for a drain.
        call: CallKind,
        /// The thing that was waited for, for how long, and for whom.
        text: String,
        /// The verdict with which the operation failed on every peer, if it failed for all.
        verdict: Option<Box<Verdict>>,
    },
    /// The operating system refused something.
    System(Reason<io::ErrorKind>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument(text) => write!(f, "invalid argument: {text}"),
            Self::InvalidUsage(text) => write!(f, "invalid usage: {text}"),
            Self::NotConnected => write!(f, "not connected: call connect first"),
            Self::PendingAsyncOps { count } => {
                write!(f, "{count} asynchronous operations are still in flight; wait for them first")
            }
            Self::ConnectFailed(reason) | Self::Refused(reason) => write!(f, "{reason}"),
            Self::TooFewPeers { have, need, in_group } => {
                let place = if *in_group { "group" } else { "world" };
                write!(f, "too few peers: the {place} has {have}, {need} are needed")
            }
            Self::Aborted(verdict) => write!(f, "{verdict}"),
            Self::Kicked(reason) => write!(f, "dropped by the master: {reason}"),
            Self::MasterLost(reason) => write!(f, "master lost: {reason}"),
            Self::OutcomeUnknown(reason) => write!(
                f,
                "outcome unknown: {reason}; the buffer holds the complete result, whether the others have it is \
                 not known"
            ),
            Self::TimedOut { text, .. } => write!(f, "timed out: {text}"),
            Self::System(reason) => write!(f, "system: {reason}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::ConnectFailed(reason) | Self::Refused(reason) => reason.behind(),
            Self::MasterLost(reason) | Self::OutcomeUnknown(reason) => reason.behind(),
            Self::System(reason) => reason.behind(),
            _ => None,
        }
    }
}

impl Error {
    /// The reaction of a training loop to it.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Aborted(verdict)
                if verdict.cause == Cause::GroupBroken
                    || matches!(verdict.operation, Operation::Forming(_)) =>
            {
                Remedy::FormGroup
            }
            Self::TimedOut { call: CallKind::FormGroup, .. } => Remedy::FormGroup,
            // The same call with the same values would fail again.
            Self::Aborted(verdict) if matches!(verdict.cause, Cause::MismatchedCall | Cause::NotFinite) => {
                Remedy::GiveUp
            }
            Self::Aborted(verdict)
                if matches!(verdict.cause, Cause::ResumeWaits | Cause::StateLost | Cause::SeederMissing) =>
            {
                Remedy::WaitForPeers
            }
            Self::Aborted(_) => Remedy::Retry,
            Self::Kicked(reason) if is_for_good(reason.code) => Remedy::GiveUp,
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

    /// Whether the same collective, tried again at once, may succeed: it failed for all, nobody gave it up, and it does
    /// not depend on who the members are.
    pub(crate) fn may_pass(&self) -> bool {
        let is_other_world = self.verdict().is_some_and(|verdict| verdict.cause == Cause::WorldChanged);
        self.is_retryable() && !self.is_given_up() && !is_other_world
    }

    /// The verdict of the master, if the operation failed for all.
    pub fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Aborted(verdict) | Self::TimedOut { verdict: Some(verdict), .. } => Some(verdict),
            _ => None,
        }
    }

    /// Whether the log has it: verdicts and the end of a session are written where they arrive.
    pub(crate) fn is_logged(&self) -> bool {
        self.verdict().is_some() || matches!(self, Self::Kicked(_) | Self::MasterLost(_))
    }

    /// Whether a caller, here or on another peer, wanted the operation to end. Then nobody tries again by itself: the
    /// others might not.
    pub(crate) fn is_given_up(&self) -> bool {
        let cause = self.verdict().map(|verdict| verdict.cause);
        matches!(cause, Some(Cause::CallerAbort | Cause::CallTimeout))
    }
}

/// Whether a dropped peer would only be dropped again.
const fn is_for_good(code: KickCode) -> bool {
    matches!(code, KickCode::Operator | KickCode::StateMismatch | KickCode::Full | KickCode::FalseOffer)
}

/// Result of the library's calls.
pub type Result<T> = std::result::Result<T, Error>;

impl From<NoThread> for Error {
    fn from(none: NoThread) -> Self {
        Self::System(Reason::system(none.tried(), none.error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{Operation, Phase, SyncId, Text};
    use std::error::Error as _;
    use tinysockets::{
        dial::DialError,
        preamble::{Refusal, ReplyError},
        queued::CloseReason,
    };

    fn target() -> tinysockets::address::HostPort {
        tinysockets::address::HostPort::new("master.example", 48148)
    }

    fn refused(reason: Refusal) -> DialError {
        DialError::Refused { target: target(), reason }
    }

    #[test]
    fn what_stays_so_is_told_from_what_may_pass() {
        use ConnectCause as C;
        for (error, kind, permanent) in [
            (refused(Refusal::UnsupportedVersion), C::WrongVersion, true),
            (DialError::Version { target: target(), theirs: 9 }, C::WrongVersion, true),
            (refused(Refusal::UnsupportedSecurity), C::WrongSecurity, true),
            (refused(Refusal::WrongRun), C::WrongRun, true),
            (refused(Refusal::Full), C::Full, false),
            (refused(Refusal::WrongRole), C::NoMaster, true),
            (refused(Refusal::WrongDestination), C::NoMaster, true),
            (
                DialError::Foreign { target: target(), source: ReplyError::NotAReply.into() },
                C::NoMaster,
                true,
            ),
            (refused(Refusal::ShuttingDown), C::NotReady, false),
            (refused(Refusal::NotExpected), C::NotReady, false),
            (DialError::ConnectionRefused { target: target() }, C::ConnectionRefused, false),
            (DialError::NoAnswer { target: target() }, C::NoAnswer, false),
            (DialError::TimedOut { target: target(), doing: "connecting" }, C::NoAnswer, false),
        ] {
            let text = error.to_string();
            let reason = Reason::from(error);
            assert_eq!(
                (reason.kind(), reason.kind().is_permanent(), reason.to_string()),
                (kind, permanent, text)
            );
        }
        let dropped = |code| Reason::from(&KickReason::new(code, "why"));
        assert_eq!(dropped(KickCode::Full).kind(), C::Full);
        assert!(dropped(KickCode::Operator).kind().is_permanent());
        assert!(!dropped(KickCode::RegistrationTimeout).kind().is_permanent());
    }

    #[test]
    fn what_the_system_said_is_found_behind_the_error() {
        let source = io::Error::from_raw_os_error(113);
        let error = Error::ConnectFailed(DialError::Io { target: target(), source }.into());
        let dial = error.source().expect("a source");
        assert!(dial.downcast_ref::<DialError>().is_some());
        let io = dial.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(io.and_then(io::Error::raw_os_error), Some(113));

        let error = Error::System(Reason::system("cannot listen", io::ErrorKind::AddrInUse.into()));
        let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(io.map(io::Error::kind), Some(io::ErrorKind::AddrInUse));
        assert_eq!(
            error.to_string(),
            format!("system: cannot listen: {}", io::Error::from(io::ErrorKind::AddrInUse))
        );

        let error = Error::MasterLost(Reason::from(&CloseReason::Eof));
        assert_eq!(error.source().and_then(|source| source.downcast_ref()), Some(&CloseReason::Eof));
        assert!(Error::NotConnected.source().is_none());
    }

    fn timed_out(call: CallKind) -> Error {
        Error::TimedOut { call, text: String::new(), verdict: None }
    }

    #[test]
    fn only_who_waits_for_the_world_is_told_to_wait_for_peers() {
        for call in CallKind::all() {
            let remedy = match call {
                CallKind::WaitForWorld => Remedy::WaitForPeers,
                CallKind::Connect => Remedy::Reconnect,
                CallKind::FormGroup => Remedy::FormGroup,
                // Among them what drains, closes, and asks for the status, which are no calls for the master.
                _ => Remedy::Retry,
            };
            assert_eq!(timed_out(call).remedy(), remedy, "{call}");
        }
    }

    #[test]
    fn a_full_run_is_no_reason_to_come_again() {
        let kicked = |code| Error::Kicked(KickReason::new(code, "")).remedy();
        for code in [KickCode::Full, KickCode::Operator, KickCode::StateMismatch, KickCode::FalseOffer] {
            assert_eq!(kicked(code), Remedy::GiveUp, "{code}");
        }
        assert_eq!(kicked(KickCode::Silent), Remedy::Reconnect);
        let reason = Reason::new(ConnectCause::WrongVersion, "");
        assert_eq!(Error::Refused(reason).remedy(), Remedy::GiveUp);
    }

    #[test]
    fn what_a_caller_gave_up_is_not_tried_again_by_itself() {
        let aborted = |cause| {
            Error::Aborted(Box::new(Verdict {
                cause,
                culprits: vec![],
                operation: Operation::Sync(SyncId(1)),
                phase: Phase::Voting,
                bytes_done: 0,
                silent_ms: 0,
                detail: Text::default(),
            }))
        };
        for cause in Cause::ALL {
            let given_up = matches!(cause, Cause::CallerAbort | Cause::CallTimeout);
            assert_eq!(aborted(*cause).is_given_up(), given_up, "{cause}");
        }
        assert!(!timed_out(CallKind::Collective(pccl_protocol::CollectiveKind::AllReduce)).is_given_up());
    }
}
