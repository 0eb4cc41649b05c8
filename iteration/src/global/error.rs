//! Why taking part failed.

use crate::{
    protocol::{Member, Policy},
    store::StoreError,
};
use std::time::Duration;

/// Why a call of [`GlobalIteration`](super::GlobalIteration) failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IterationError {
    /// A setting or an argument makes no sense; nothing was done.
    #[error("{0}")]
    Setting(String),
    /// The store did not do what was asked of it for longer than
    /// [`store_timeout`](super::IterationConfig::store_timeout). The same call may be made again.
    #[error("{0}")]
    Store(StoreError),
    /// The others went on without this life of the member: it was silent or late for too long, or was started again
    /// elsewhere. The results that it has computed since its last decision must not be used. [`catch_up`] takes it in
    /// again.
    ///
    /// [`catch_up`]: super::GlobalIteration::catch_up
    #[error(
        "member {member} is out: {reason}; what it computed since its last decision must not be used, call catch_up"
    )]
    Fenced {
        /// The member that is out.
        member: Member,
        /// The reason for it.
        reason: String,
    },
    /// Nobody is worth waiting for any more, but the policy demands more members than there are. The same call may be
    /// made again; [`force_members`](super::GlobalIteration::force_members) overrules the policy.
    #[error(
        "too few members for {policy:?} after {waited:?} without progress; absent: {}. Bring them back, or force the \
         members",
        list(absent)
    )]
    NoQuorum {
        /// The rule that is not met.
        policy: Policy,
        /// The members that are absent.
        absent: Vec<Member>,
        /// How long there was no progress.
        waited: Duration,
    },
    /// The store has lost what it had promised to keep, or somebody else writes to its keys. No member goes on by
    /// itself, since an iteration could be decided twice. Start a new run, with another name and
    /// [`first_iteration`](super::IterationConfig::first_iteration) behind the last one that counts.
    #[error("{0}; start a new run with another name, behind the last iteration that counts")]
    Lost(String),
    /// The time of the call is over.
    #[error("member {id} was not taken in within {waited:?}; {}", waiting_for(awaited))]
    TimedOut {
        /// The identity of the member that waited.
        id: String,
        /// Members that could have taken it in.
        awaited: Vec<Member>,
        /// How long it waited.
        waited: Duration,
    },
    /// This member has left the run, or is out and has not caught up.
    #[error("member {0} is not in the run; call catch_up to come back")]
    NotMember(String),
    /// Another thread has ended the call.
    #[error("the call was cancelled")]
    Cancelled,
}

fn list(members: &[Member]) -> String {
    if members.is_empty() {
        return "members that never joined".into();
    }
    members.iter().map(Member::to_string).collect::<Vec<_>>().join(", ")
}

fn waiting_for(members: &[Member]) -> String {
    if members.is_empty() {
        "too few have joined".into()
    } else {
        format!("these live but have not advanced: {}", list(members))
    }
}
