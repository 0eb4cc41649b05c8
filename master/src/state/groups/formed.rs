//! The facts of a group with given members, of its end, and of the past of a peer in such groups.

use super::losses::{GivenUp, Loss};
use pccl_protocol::{
    Cause, Culprit, GroupEpoch, GroupId, GroupUuid, Operation, PeerId, Phase, RequestId, Revision, Text,
    Verdict,
};
use std::collections::BTreeMap;
use std::fmt;

/// The facts that make a group one of given members.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Formed {
    pub(crate) uuid: GroupUuid,
    /// The number for which its members registered.
    pub(crate) pool: GroupId,
    /// The place is the rank, and that in the ring.
    pub(crate) members: Vec<PeerId>,
    /// Votes that are answered when the ring stands for the first time.
    pub(crate) votes: BTreeMap<PeerId, RequestId>,
    /// A caller gave it up before that.
    pub(crate) given_up: Option<GivenUp>,
    /// Why it is not whole.
    pub(crate) broken: Option<Broken>,
}

/// Why a formed group is not whole.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Broken {
    pub(crate) cause: Cause,
    pub(crate) culprits: Vec<Culprit>,
    pub(crate) silent_ms: u64,
    pub(crate) detail: Text,
}

impl Broken {
    pub(crate) fn lost(loss: &Loss) -> Self {
        let Loss { cause, culprit, silent_ms, detail } = loss.clone();
        Self { cause, culprits: vec![culprit], silent_ms, detail }
    }

    /// The verdict for whatever a member does in the group.
    pub(crate) fn verdict(&self, operation: Operation, phase: Phase, bytes_done: u64) -> Verdict {
        let why = match self.detail.as_str() {
            "" => self.cause.to_string(),
            detail if self.cause == Cause::GroupBroken => detail.to_owned(),
            detail => format!("{}: {detail}", self.cause),
        };
        Verdict {
            cause: Cause::GroupBroken,
            culprits: self.culprits.clone(),
            operation,
            phase,
            bytes_done,
            silent_ms: self.silent_ms,
            detail: Text::new(format!("{why}; the group has to be formed again")),
        }
    }

    /// The verdict for those who wait for the group to stand.
    pub(crate) fn forming_verdict(&self, uuid: GroupUuid) -> Verdict {
        let Self { cause, culprits, silent_ms, detail } = self.clone();
        let (operation, phase) = (Operation::Forming(uuid), Phase::Connecting);
        Verdict { cause, culprits, operation, phase, bytes_done: 0, silent_ms, detail }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let culprits: Vec<String> = self.culprits.iter().map(ToString::to_string).collect();
        write!(f, "{}: {}", self.cause, culprits.join(" and "))?;
        match self.detail.as_str() {
            "" => Ok(()),
            detail => write!(f, " ({detail})"),
        }
    }
}

/// The past of a peer in the formed groups that it was in.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Past {
    /// The last epoch that it may know.
    pub(crate) epoch: GroupEpoch,
    /// The last revision that it is known to hold.
    pub(crate) revision: Option<Revision>,
    /// Why its last group is not whole.
    pub(crate) broken: Option<Broken>,
}

impl Past {
    /// Whether there was a group that it may still vote in.
    pub(crate) const fn has_group(&self) -> bool {
        self.broken.is_some()
    }
}
