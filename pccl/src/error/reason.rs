//! Why a call failed, in types: a kind for programs, words for people, and the error behind it.

use pccl_protocol::{KickCode, KickReason};
use std::{error::Error, fmt, io, sync::Arc};
use tinysockets::{dial::DialError, preamble::Refusal, queued::CloseReason};

/// Why something failed: its kind, in words, and what lies behind it, as far as that is known.
///
/// Two are equal if kind and words are.
#[derive(Debug, Clone)]
pub struct Reason<K> {
    kind: K,
    text: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl<K: Copy> Reason<K> {
    /// A reason with nothing behind it.
    pub fn new(kind: K, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), source: None }
    }

    /// The kind, for programs.
    pub fn kind(&self) -> K {
        self.kind
    }

    /// This reason, with the error that caused it.
    pub(crate) fn because(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), ..self }
    }

    /// This reason, in other words.
    pub(crate) fn say(self, text: impl FnOnce(&str) -> String) -> Self {
        Self { text: text(&self.text), ..self }
    }

    /// The error that lies behind it.
    pub(super) fn behind(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl<K: PartialEq> PartialEq for Reason<K> {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.text == other.text
    }
}

impl<K: Eq> Eq for Reason<K> {}

impl<K> fmt::Display for Reason<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<K: Copy + fmt::Debug> Error for Reason<K> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.behind()
    }
}

/// Why this peer and its master did not come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectCause {
    /// The name of the master's host has no address.
    Unresolved,
    /// The machine is there, and nobody listens on the port.
    ConnectionRefused,
    /// No answer in time.
    NoAnswer,
    /// The connection broke, or the system reported something else, such as an unreachable network.
    Broken,
    /// The master is shutting down, or not ready yet.
    NotReady,
    /// The process that answers is no master.
    NoMaster,
    /// The master speaks another version of the protocol.
    WrongVersion,
    /// The master has another run key, or another name of the run, or only one of both has a key.
    WrongSecurity,
    /// The master belongs to another run.
    WrongRun,
    /// The master has no room for another peer, or too many have just joined from its network.
    Full,
    /// The master dropped this peer while it registered.
    Dropped(KickCode),
}

impl ConnectCause {
    /// Whether it stays so, however often this peer tries.
    pub fn is_permanent(self) -> bool {
        match self {
            // Of `Full`: somebody leaves, or too many have just joined from one network.
            Self::Unresolved
            | Self::ConnectionRefused
            | Self::NoAnswer
            | Self::Broken
            | Self::NotReady
            | Self::Full => false,
            Self::NoMaster | Self::WrongVersion | Self::WrongSecurity | Self::WrongRun => true,
            Self::Dropped(code) => {
                matches!(
                    code,
                    KickCode::Malformed
                        | KickCode::Protocol
                        | KickCode::Operator
                        | KickCode::GroupKind
                        // The master takes only peers that can be dialed.
                        | KickCode::Unreachable
                )
            }
        }
    }
}

impl From<DialError> for Reason<ConnectCause> {
    fn from(error: DialError) -> Self {
        let kind = match error.principal() {
            // Names come and go with the machines that they stand for.
            DialError::Unresolved { .. } => ConnectCause::Unresolved,
            DialError::ConnectionRefused { .. } => ConnectCause::ConnectionRefused,
            DialError::TimedOut { .. } | DialError::NoAnswer { .. } => ConnectCause::NoAnswer,
            DialError::Io { .. } | DialError::Several { .. } => ConnectCause::Broken,
            DialError::Foreign { .. } => ConnectCause::NoMaster,
            DialError::Version { .. } => ConnectCause::WrongVersion,
            DialError::Refused { reason, .. } => match reason {
                Refusal::NotExpected | Refusal::ShuttingDown => ConnectCause::NotReady,
                Refusal::WrongDestination | Refusal::WrongRole | Refusal::WrongTicket => {
                    ConnectCause::NoMaster
                }
                Refusal::WrongRun => ConnectCause::WrongRun,
                Refusal::UnsupportedVersion => ConnectCause::WrongVersion,
                Refusal::UnsupportedSecurity | Refusal::KeyWanted | Refusal::NoKey | Refusal::WrongKey => {
                    ConnectCause::WrongSecurity
                }
                Refusal::Full => ConnectCause::Full,
            },
        };
        Self::new(kind, error.to_string()).because(error)
    }
}

impl From<&KickReason> for Reason<ConnectCause> {
    fn from(reason: &KickReason) -> Self {
        let kind = match reason.code {
            KickCode::Full => ConnectCause::Full,
            code => ConnectCause::Dropped(code),
        };
        Self::new(kind, format!("the master refused this peer: {reason}"))
    }
}

/// How the master was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The connection was closed by the other side: the master has ended, or something between has closed it.
    Closed,
    /// The system reported that the connection broke, or a packet could not be sent in time.
    Broken,
    /// Nothing was heard for [`master_timeout`](crate::Builder::master_timeout).
    Silent,
    /// The master sent what it may not send: a defect, or another program.
    Protocol,
    /// The master dropped this peer.
    Dropped(KickCode),
    /// This side closed the connection.
    Left,
}

impl From<&CloseReason> for Reason<LossCause> {
    fn from(reason: &CloseReason) -> Self {
        let kind = match reason {
            CloseReason::Eof => LossCause::Closed,
            CloseReason::Io(_) | CloseReason::Cut(_) => LossCause::Broken,
            CloseReason::InboxOverflow(_) | CloseReason::Malformed(_) | CloseReason::Rejected(_) => {
                LossCause::Protocol
            }
            CloseReason::Local(_) => LossCause::Left,
        };
        Self::new(kind, reason.to_string()).because(reason.clone())
    }
}

impl Reason<io::ErrorKind> {
    /// The refusal of the system while something was `tried`.
    pub(crate) fn system(tried: impl fmt::Display, error: io::Error) -> Self {
        Self::new(error.kind(), format!("{tried}: {error}")).because(error)
    }
}

/// Something in this process that no other error stands for.
impl From<String> for Reason<io::ErrorKind> {
    fn from(text: String) -> Self {
        Self::new(io::ErrorKind::Other, text)
    }
}
