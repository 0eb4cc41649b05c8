//! A sampler whose position is part of the shared state of a run: each sample of each epoch is counted in exactly one
//! step, whoever dies, joins, or makes a step again.
//!
//! A **position** counts samples over all epochs; [`Order`] turns it into a sample of the data set. The [`Ledger`]
//! knows which positions are counted, and which of the others a member holds. All members have the same ledger and
//! change it alike, when a step succeeds on all of them.
//!
//! | to | use |
//! |---|---|
//! | train in lock step: each step takes a batch per member | [`Claims`] |
//! | train on many batches between two exchanges | [`Ledger::settle`], and [`Holding`] on each member |
//!
//! This crate makes no calls: it is arithmetic on what the caller has exchanged.
//!
//! Modules from top to bottom, each of which uses only those below it: `claims`, `holding`, `words`, `ledger`, `order`.
#![forbid(unsafe_code)]

mod claims;
mod holding;
mod ledger;
mod order;
mod words;

pub use claims::Claims;
pub use holding::Holding;
pub use ledger::{Counted, Ledger, MAX_MEMBERS, Member};
pub use order::Order;
pub use words::words_for;

/// Why a ledger cannot be used, or a step cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The arguments make no sense.
    #[error("{0}")]
    Argument(String),
    /// Two members have taken the same samples: one of them knew earlier than the other that a peer is gone. The step
    /// is to be made again by all.
    #[error("{claimants} members have taken the samples from {start} on: make the step again")]
    TakenTwice {
        /// How many.
        claimants: u64,
        /// The first position of them.
        start: u64,
    },
    /// The words are no ledger of this data set.
    #[error("the ledger of samples is damaged, or of another data set: {0}")]
    Damaged(&'static str),
}
