//! Why an operation failed: decided by the master, identical on every peer.

use crate::{CollectiveId, Host, Name, Named, PeerId, Text, limits};
use std::fmt;
use tinysockets::wire::ListItem;

wire_code! {
    /// First cause of a failure.
    #[non_exhaustive]
    pub enum Cause {
        /// The control connection of a peer closed: its process ended or it broke the connection.
        PeerDied = 1 => "peer died",
        /// A peer sent no beat for the peer time-out.
        PeerSilent = 2 => "peer silent",
        /// A peer broke the protocol and was dropped.
        PeerDropped = 3 => "peer dropped",
        /// A connection between two living peers broke or could not be built.
        EdgeBroken = 4 => "edge broken",
        /// Peers called the same operation with different arguments.
        MismatchedCall = 5 => "mismatched call",
        /// A caller gave the operation up.
        CallerAbort = 6 => "given up by a caller",
        /// A peer left the run on purpose.
        PeerLeft = 7 => "peer left",
        /// Bytes were damaged on the way.
        Corruption = 8 => "corrupt data",
        /// No peer could give what a sync needed.
        NoSource = 9 => "no source",
        /// Something in one peer's process stopped the operation.
        LocalFault = 10 => "local failure of a peer",
        /// The master is shutting down.
        MasterStopping = 11 => "master stopping",
        /// A caller's limit passed before the operation was over, and it gave it up.
        CallTimeout = 12 => "given up by a caller whose limit passed",
        /// Peers called an operation for members that the group does not have.
        WorldChanged = 13 => "called for other members",
        /// The group was formed of given members, and is not whole any more: it has to be formed again.
        GroupBroken = 14 => "group broken",
        /// A peer that waits to be let in offers a newer shared state than the voters hold.
        ResumeWaits = 15 => "a newer shared state waits",
        /// The run has committed a newer revision, and nobody who is there holds it.
        StateLost = 16 => "the newest shared state is not there",
        /// Shared state may come from trusted seeders only, and none of those who are there holds what was elected.
        SeederMissing = 17 => "no trusted seeder holds the elected state",
        /// A contribution holds NaN or an infinity, and all have asked to refuse that.
        NotFinite = 18 => "contribution that is not finite",
    }
}

wire_code! {
    /// Where an operation was when it failed.
    #[non_exhaustive]
    pub enum Phase {
        /// Votes to begin were being collected.
        Voting = 1 => "voting",
        /// The ring was being connected.
        Connecting = 2 => "connecting",
        /// Data was moving.
        Transfer = 3 => "transfer",
        /// Votes to complete were being collected.
        Completing = 4 => "completing",
    }
}

wire_union! {
    /// The operation that failed.
    #[derive(Copy)]
    #[non_exhaustive]
    pub enum Operation {
        /// A collective.
        Collective(CollectiveId) = 1,
        /// A shared-state sync.
        Sync(crate::SyncId) = 2,
        /// The forming of a group.
        Forming(crate::GroupUuid) = 3,
        /// A call for which all of the run vote.
        Call(crate::CallKind) = 4,
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective(id) => write!(f, "{id}"),
            Self::Sync(id) => write!(f, "shared-state sync {id}"),
            Self::Forming(uuid) => write!(f, "form_group {uuid}"),
            Self::Call(kind) => write!(f, "{kind}"),
        }
    }
}

wire_struct! {
    /// A peer that a verdict names.
    pub struct Culprit {
        /// The peer.
        pub peer: PeerId,
        /// The address under which the master saw it.
        pub host: Host,
        /// Its name.
        pub name: Name,
    }
}

impl ListItem for Culprit {
    const LIST: &'static str = "culprits";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Named(self.peer, &self.name, self.host.as_str()))
    }
}

wire_struct! {
    /// One failure: the first cause, who caused it, and how far the operation was.
    pub struct Verdict {
        /// First cause.
        pub cause: Cause,
        /// The peers that caused it; for an edge its sending and its receiving end, for a mismatch the two that differ,
        /// for a limit that passed those for whom the caller waited (who gave up stands in the details), or the caller
        /// if it waited for nobody.
        pub culprits: Vec<Culprit>,
        /// The operation that failed.
        pub operation: Operation,
        /// Where it was.
        pub phase: Phase,
        /// Bytes that the participants had moved by their last beats or reports, added up.
        pub bytes_done: u64,
        /// How long the culprit had been silent, in milliseconds (0 where silence is not the cause).
        pub silent_ms: u64,
        /// Details in words.
        pub detail: Text,
    }
}

/// One line, complete.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed while {}: {}", self.operation, self.phase, self.cause)?;
        for (index, culprit) in self.culprits.iter().enumerate() {
            write!(f, "{}{culprit}", if index == 0 { ": " } else { " and " })?;
        }
        if self.silent_ms > 0 {
            write!(f, ", silent for {} ms", self.silent_ms)?;
        }
        if self.bytes_done > 0 {
            write!(f, ", {} bytes moved", self.bytes_done)?;
        }
        if !self.detail.as_str().is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        Ok(())
    }
}
