//! The protocol, without sockets, clocks, threads or chance: facts go in, calls of a store come out.
//!
//! The truth is one register, `it/RUN/state`. It holds one [`Decision`] and moves only by a compare-and-set from the
//! *whole* old value to a new one that carries a number never used before. So no value ever comes back, decisions form
//! a chain, and whoever proposes from an outdated view fails. Nobody trusts the answer of the compare-and-set: the
//! register is read back.
//!
//! Everything else is a hint or a message that is bound to one iteration and one incarnation of a member, so nothing
//! that comes late, twice or never can do more than cost time:
//!
//! | key (behind `it/RUN/`) | written | meaning |
//! |---|---|---|
//! | `state` | compare-and-set | the register |
//! | `inc/ID` | add 1 when a member starts | its incarnation; an older one is fenced off |
//! | `hb/ID/INC` | set, all the time | changes as long as the member lives |
//! | `arr/N/ID/INC` | set once | the member has arrived for iteration N, with its payload |
//! | `left/ID/INC` | set | the member does not want to be waited for |
//! | `joins` | add 1 | slots of those that want to become members |
//! | `join/SLOT` | set | who, with its payload |
//! | `cnt/N` | add 1 | a hint that all may have arrived |
//! | `wake/N` | set by the winner | a hint for sleepers that N is decided |
//!
//! [`Machine`] carries one join or one advance from the first call to its [`Outcome`].

mod decision;
mod judge;
pub mod keys;
mod look;
mod machine;

pub use decision::{
    Decision, Entry, MAX_ID_BYTES, MAX_MEMBERS, MAX_PAYLOAD_BYTES, Member, Register, Relation, check_id,
};
pub use judge::{Facts, Policy, Rules};
pub use machine::{Machine, Outcome, Step, Waiting};

/// One call of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Call {
    /// Read one key.
    Get(String),
    /// Read several keys; they may change between the first and the last.
    GetAll(Vec<String>),
    /// Set a key.
    Set(String, Vec<u8>),
    /// Add 1 to a number.
    Increment(String),
    /// Set a key if it has the expected value.
    CompareSet {
        /// The key.
        key: String,
        /// The value that it must hold; empty if it must not be there.
        expected: Vec<u8>,
        /// The value that it shall hold.
        desired: Vec<u8>,
    },
    /// Remove a key.
    Delete(String),
}

/// The result of a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The value of a key, if it is there.
    Value(Option<Vec<u8>>),
    /// The values of several keys.
    Values(Vec<Option<Vec<u8>>>),
    /// The sum.
    Number(i64),
    /// The call is done, or it was a hint that could not be given.
    Done,
}
