//! How the connected life of a communicator ended, and what that is to the calls that it cut short.

use super::{Error, LossCause, Reason};
use pccl_protocol::KickReason;
use std::fmt;

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The master dropped this peer, and said why.
    Kicked(KickReason),
    /// The connection to the master is gone.
    MasterLost(Reason<LossCause>),
    /// This side closed it.
    Closed,
}

impl End {
    pub(crate) fn to_error(&self) -> Error {
        match self {
            Self::Kicked(reason) => Error::Kicked(reason.clone()),
            Self::MasterLost(reason) => Error::MasterLost(reason.clone()),
            Self::Closed => Error::NotConnected,
        }
    }

    /// How the master was lost, for an operation whose outcome is so unknown.
    pub(crate) fn loss(&self) -> Reason<LossCause> {
        let kind = match self {
            Self::MasterLost(reason) => return reason.clone(),
            Self::Kicked(reason) => LossCause::Dropped(reason.code),
            Self::Closed => LossCause::Left,
        };
        Reason::new(kind, self.to_string())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_error())
    }
}
