//! Collective operations: votes to begin, votes to complete, and the one outcome of all members.
//!
//! The room owns the operations of each group (`work`, `pending`) and what its attempts have come to (`history`).
//! `collective` decides when an operation begins and how it ends; `call_limits` ends one that a caller gives up;
//! `straggler` drops a member that alone holds up a vote; `crossed_calls` ends calls that wait for each other.
//! `verdicts` has the words and numbers of outcomes.
//!
//! The room reads membership and groups.

pub(crate) mod call_limits;
pub(crate) mod collective;
pub(crate) mod crossed_calls;
pub(crate) mod history;
pub(crate) mod pending;
pub(crate) mod straggler;
pub(crate) mod verdicts;
pub(crate) mod work;
