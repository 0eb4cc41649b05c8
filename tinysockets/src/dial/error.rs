//! Why there is no connection.

use std::io;

use crate::{
    address::{HostPort, ResolveError},
    handshake::KnockError,
    preamble::{PROTOCOL_VERSION, Refusal},
};

/// Why there is no connection. Every variant names the target.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The host has no address.
    #[error("cannot connect to {target}: {source}")]
    Unresolved {
        /// The target that was meant.
        target: HostPort,
        /// The error of the resolver.
        source: ResolveError,
    },
    /// The machine is there, and nobody listens on the port.
    #[error(
        "cannot connect to {target}: connection refused; is the other side running, and is this its port?"
    )]
    ConnectionRefused {
        /// The target that was meant.
        target: HostPort,
    },
    /// No answer before the deadline.
    #[error("{target} did not answer in time ({doing}); check firewalls and whether the other side is alive")]
    TimedOut {
        /// The target that was meant.
        target: HostPort,
        /// The step that was being done.
        doing: &'static str,
    },
    /// The other side speaks this protocol and does not want the connection.
    #[error("{target} refused the connection: {reason}")]
    Refused {
        /// The target that was meant.
        target: HostPort,
        /// The reason that the other side gave.
        reason: Refusal,
    },
    /// The other side speaks another version of this protocol.
    #[error(
        "{target} speaks version {theirs} of the protocol, this side version {PROTOCOL_VERSION}: all programs of a run \
         have to be of releases with the same version"
    )]
    Version {
        /// The target that was meant.
        target: HostPort,
        /// The version of the other side.
        theirs: u16,
    },
    /// Somebody answers who does not speak this protocol.
    #[error("{target} is not a port of this protocol: {source}")]
    Foreign {
        /// The target that was meant.
        target: HostPort,
        /// The fault of the answer.
        source: KnockError,
    },
    /// The connection was made and closed again without an answer: another protocol, or a peer that just went away.
    #[error(
        "{target} closed the connection without an answer; it is another service, overloaded, or going away"
    )]
    NoAnswer {
        /// The target that was meant.
        target: HostPort,
    },
    /// Anything else that the system reports, such as an unreachable network.
    #[error("cannot connect to {target}: {source}")]
    Io {
        /// The target that was meant.
        target: HostPort,
        /// The error of the system.
        source: io::Error,
    },
    /// None of several addresses led there.
    #[error("{target} is not reached: {}", in_words(tried))]
    Several {
        /// The target that was meant.
        target: HostPort,
        /// The error of each address.
        tried: Vec<Self>,
    },
}

fn in_words(tried: &[DialError]) -> String {
    tried.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl DialError {
    /// The error that says most of why there is no connection, which is this one unless it stands for several: that of
    /// the address which came closest to being the one that was meant.
    #[must_use]
    pub fn principal(&self) -> &Self {
        let Self::Several { tried, .. } = self else { return self };
        tried.iter().min_by_key(|error| error.distance()).map_or(self, Self::principal)
    }

    const fn distance(&self) -> u8 {
        match self {
            Self::Refused { .. } | Self::Version { .. } => 0,
            Self::Foreign { .. } => 1,
            Self::NoAnswer { .. } => 2,
            Self::TimedOut { .. } => 3,
            Self::ConnectionRefused { .. } => 4,
            Self::Io { .. } => 5,
            Self::Unresolved { .. } | Self::Several { .. } => 6,
        }
    }

    /// One error for all that was tried in vain to reach `target`.
    pub(super) fn of_all(target: &HostPort, mut tried: Vec<Self>) -> Self {
        let are_all = |is_such: fn(&Self) -> bool| tried.iter().all(is_such);
        let target = target.clone();
        if tried.len() < 2 {
            return tried.pop().unwrap_or(Self::TimedOut { target, doing: "connecting" });
        }
        // The addresses say nothing more, then.
        if are_all(|error| matches!(error, Self::ConnectionRefused { .. })) {
            return Self::ConnectionRefused { target };
        }
        Self::Several { target, tried }
    }
}

pub(super) fn not_connected(target: &HostPort, source: io::Error) -> DialError {
    let target = target.clone();
    match source.kind() {
        io::ErrorKind::ConnectionRefused => DialError::ConnectionRefused { target },
        io::ErrorKind::TimedOut => DialError::TimedOut { target, doing: "connecting" },
        _ => DialError::Io { target, source },
    }
}
