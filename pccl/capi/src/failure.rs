//! The failure of a call: a code for the caller; a text, a remedy, a cause and culprits for whoever asks.

use crate::{
    child,
    types::{ResultCode, code},
};
use pccl::{Cause, Error, Remedy};
use std::{
    any::Any,
    cell::RefCell,
    ffi::{CString, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// The header calls this `pcclRemedyGiveUp`.
pub(crate) const GIVE_UP: c_int = 4;

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: ResultCode,
    pub(crate) text: String,
    pub(crate) remedy: Remedy,
    /// One word: the cause of a verdict, the code of a drop, or the name of the error.
    pub(crate) cause: String,
    /// Peers that a verdict names.
    pub(crate) culprits: Vec<[u8; 16]>,
}

/// Result of the inside of a call.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    fn new(code: ResultCode, cause: &str, text: impl Into<String>) -> Self {
        let (text, cause) = (text.into(), cause.to_owned());
        Self { code, text, remedy: Remedy::GiveUp, cause, culprits: Vec::new() }
    }

    /// A failure with a remedy of its own.
    pub(crate) fn with(code: ResultCode, cause: &str, remedy: Remedy, text: String) -> Self {
        Self { remedy, ..Self::new(code, cause, text) }
    }

    /// An argument is invalid.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(code::INVALID_ARGUMENT, "InvalidArgument", text)
    }

    /// A call that is not possible now.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(code::INVALID_USAGE, "InvalidUsage", text)
    }

    /// A defect.
    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self::new(code::INTERNAL_ERROR, "InternalError", text)
    }

    /// The error of the library, for a call whose own failures have `own`.
    pub(crate) fn of(error: &Error, own: ResultCode) -> Self {
        let code = match error {
            Error::InvalidArgument(_) => code::INVALID_ARGUMENT,
            Error::InvalidUsage(_) => code::INVALID_USAGE,
            Error::PendingAsyncOps { .. } => code::PENDING_ASYNC_OPS,
            // A caller that calls again on a code that stands for "call again" would do so for ever.
            Error::Aborted(verdict) if matches!(verdict.cause, Cause::MismatchedCall | Cause::NotFinite) => {
                code::INVALID_USAGE
            }
            Error::System(_) if own == code::RANK_CONNECTION_LOST => code::INTERNAL_ERROR,
            _ => own,
        };
        let culprits = error.verdict().map_or(&[][..], |verdict| &verdict.culprits);
        Self {
            code,
            text: error.to_string(),
            remedy: error.remedy(),
            cause: cause(error),
            culprits: culprits.iter().map(|culprit| culprit.peer.0.to_be_bytes()).collect(),
        }
    }

    /// As [`Failure::of`], for calls in which too few peers have a code of their own.
    pub(crate) fn of_reduce(error: &Error) -> Self {
        let own = match error {
            Error::TooFewPeers { .. } => code::TOO_FEW_PEERS,
            _ => code::RANK_CONNECTION_LOST,
        };
        Self::of(error, own)
    }
}

/// One word for an error, of those in `docs/errors.md`.
fn cause(error: &Error) -> String {
    match error {
        Error::Aborted(verdict) => return format!("{:?}", verdict.cause),
        Error::Kicked(reason) => return format!("{:?}", reason.code),
        Error::InvalidArgument(_) => "InvalidArgument",
        Error::InvalidUsage(_) => "InvalidUsage",
        Error::NotConnected => "NotConnected",
        Error::PendingAsyncOps { .. } => "PendingAsyncOps",
        Error::ConnectFailed(_) => "ConnectFailed",
        Error::Refused(_) => "Refused",
        Error::TooFewPeers { .. } => "TooFewPeers",
        Error::MasterLost(_) => "MasterLost",
        Error::OutcomeUnknown(_) => "OutcomeUnknown",
        Error::TimedOut { .. } => "TimedOut",
        _ => "System",
    }
    .to_owned()
}

/// The part of a failure that is kept.
struct Last {
    text: CString,
    cause: CString,
    remedy: Remedy,
    culprits: Vec<[u8; 16]>,
}

thread_local! {
    /// The last failure of this thread.
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Runs the inside of a call. Neither an error nor a panic leaves it.
pub(crate) fn call(body: impl FnOnce() -> Outcome) -> ResultCode {
    let result = if child::is_child() {
        Err(Failure::usage(
            "this process was forked from one that uses PCCL; only the parent can go on with it",
        ))
    } else {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
            Err(Failure::internal(format!("internal error, please report it: {}", panic_text(&*payload))))
        })
    };
    match result {
        Ok(()) => code::SUCCESS,
        Err(failure) => {
            let code = failure.code;
            remember(failure);
            code
        }
    }
}

fn remember(failure: Failure) {
    log::debug!("code {}: {}", failure.code, failure.text);
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    let cause = CString::new(failure.cause).unwrap_or_default();
    // Not while the thread ends, when there is nobody to read it.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(Last { text, cause, remedy: failure.remedy, culprits: failure.culprits });
        }
    });
}

/// Text of the last failure of this thread. It lives until the next one.
pub(crate) fn last_text() -> *const c_char {
    last(|last| last.text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Cause of the last failure of this thread. It lives until the next one.
pub(crate) fn last_cause() -> *const c_char {
    last(|last| last.cause.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Peers that the last failure of this thread is laid at the door of.
pub(crate) fn last_culprits() -> Vec<[u8; 16]> {
    last(|last| last.culprits.clone()).unwrap_or_default()
}

fn last<T>(read: impl FnOnce(&Last) -> T) -> Option<T> {
    LAST.try_with(|last| last.try_borrow().ok()?.as_ref().map(read)).ok().flatten()
}

/// Remedy of the last failure of this thread as the header numbers it.
pub(crate) fn last_remedy() -> c_int {
    match last(|last| last.remedy) {
        None => 0,
        Some(Remedy::Retry) => 1,
        Some(Remedy::WaitForPeers) => 2,
        Some(Remedy::Reconnect) => 3,
        Some(Remedy::FormGroup) => 5,
        Some(_) => GIVE_UP,
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        last(|last| last.text.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn cause() -> String {
        last(|last| last.cause.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn lost() -> pccl::Reason<pccl::LossCause> {
        pccl::Reason::new(pccl::LossCause::Silent, "")
    }

    #[test]
    fn a_failure_leaves_text_and_remedy_for_its_own_thread() {
        assert_eq!((text(), last_remedy()), (String::new(), 0));
        let result = call(|| {
            Err(Failure::of(&Error::MasterLost(pccl::Reason::new(pccl::LossCause::Broken, "gone\0away")), 11))
        });
        assert_eq!((result, last_remedy()), (11, 3));
        assert_eq!(text(), "master lost: gone away");
        std::thread::spawn(|| assert_eq!(text(), "")).join().expect("no panic");
        assert_eq!((cause(), last_culprits()), ("MasterLost".into(), vec![]));
        assert_eq!(call(|| Ok(())), 0);
        assert_eq!(text(), "master lost: gone away");
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        assert_eq!(call(|| panic!("number {}", 7)), code::INTERNAL_ERROR);
        assert!(text().contains("number 7"), "{}", text());
    }

    #[test]
    fn causes_are_words_of_the_document() {
        let document = include_str!("../../../docs/errors.md");
        let kicked = |code| Error::Kicked(pccl::KickReason::new(code, ""));
        for (error, word) in [
            (kicked(pccl::KickCode::Unreachable), "Unreachable"),
            (Error::OutcomeUnknown(lost()), "OutcomeUnknown"),
            (Error::System(String::new().into()), "System"),
            (Error::TimedOut { call: pccl::CallKind::Sync, text: String::new(), verdict: None }, "TimedOut"),
        ] {
            assert_eq!(Failure::of(&error, code::INVALID_USAGE).cause, word);
            assert!(document.contains(&format!("`{word}")), "{word}");
        }
        assert_eq!(call(|| Err(Failure::argument("x"))), code::INVALID_ARGUMENT);
        assert_eq!(cause(), "InvalidArgument");
    }

    #[test]
    fn every_error_has_the_code_that_callers_of_the_original_branch_on() {
        let table = [
            (Error::TooFewPeers { have: 1, need: 2, in_group: true }, code::TOO_FEW_PEERS),
            (Error::MasterLost(lost()), code::RANK_CONNECTION_LOST),
            (Error::OutcomeUnknown(lost()), code::RANK_CONNECTION_LOST),
            (Error::InvalidArgument(String::new()), code::INVALID_ARGUMENT),
            (Error::InvalidUsage(String::new()), code::INVALID_USAGE),
            (Error::PendingAsyncOps { count: 1 }, code::PENDING_ASYNC_OPS),
            (Error::System(String::new().into()), code::INTERNAL_ERROR),
        ];
        for (error, code) in table {
            assert_eq!(Failure::of_reduce(&error).code, code, "{error}");
        }
    }
}
