//! Why the master refuses or drops a client. The client's caller sees it.

use crate::Text;
use std::fmt;

wire_code! {
    /// Kind of a refusal or drop.
    #[non_exhaustive]
    pub enum KickCode {
        /// A packet could not be decoded.
        Malformed = 1 => "malformed packet",
        /// A packet that no delay can explain.
        Protocol = 2 => "protocol violation",
        /// No beat for the peer time-out.
        Silent = 3 => "silent",
        /// Did not read what the master sent.
        SlowReader = 4 => "slow reader",
        /// Others could not connect to it, or it could not connect to others, and no ring goes without that edge; or
        /// shared state could not be fetched, by it or from it.
        Unreachable = 5 => "unreachable",
        /// Its shared-state revision skips the next one of its group.
        RevisionJump = 6 => "revision jump",
        /// The run has no room.
        Full = 7 => "run full",
        /// It did not register in time.
        RegistrationTimeout = 8 => "registration time-out",
        /// It never confirmed a ring.
        RingTimeout = 9 => "ring not confirmed",
        /// The master is shutting down.
        MasterStopping = 10 => "master stopping",
        // 11 is not used again.
        /// An operator removed it.
        Operator = 12 => "removed by an operator",
        /// Its caller alone held up a vote for longer than the run allows.
        Straggler = 13 => "straggler",
        /// Its shared state has other tensors than that of its group.
        StateMismatch = 14 => "shared state of another shape",
        /// The members of its group are found in another way than it asked for: given by lists, or let in.
        GroupKind = 15 => "group of another kind",
        /// It offered a shared state from which the run could go on, and came to the sync with another one.
        FalseOffer = 16 => "another shared state than it offered",
        /// It has the name of a trusted seeder that is there already.
        NameTaken = 17 => "name of a trusted seeder that is there",
    }
}

wire_struct! {
    /// Why a client was refused or dropped.
    pub struct KickReason {
        /// Kind.
        pub code: KickCode,
        /// Details in words.
        pub detail: Text,
    }
}

impl KickReason {
    /// A reason with details.
    pub fn new(code: KickCode, detail: impl Into<String>) -> Self {
        Self { code, detail: Text::new(detail) }
    }
}

impl fmt::Display for KickReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.detail.as_str().is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}
