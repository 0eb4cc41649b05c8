//! The calls that a key-value store must be able to do, and a store in memory.

mod memory;

pub use crate::data::{MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES};
pub use memory::MemoryStore;

use std::time::Instant;

/// A key-value store that several processes share.
///
/// Every call has a deadline and returns by then. All changes of one key happen in one order that every caller agrees
/// on. A call that fails may have been carried out or not, unless the error says otherwise.
pub trait Store: Send + Sync {
    /// The value of `key`; `None` if there is no such key. Never waits for a key to appear.
    fn get(&self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>, StoreError>;

    /// The values of all keys, in their order. Keys may change between the first and the last.
    fn get_all(&self, keys: &[String], deadline: Instant) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        keys.iter().map(|key| self.get(key, deadline)).collect()
    }

    /// Sets `key` to `value`. May be carried out twice if a connection breaks on the way.
    fn set(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError>;

    /// Adds `amount` to the number in `key` (decimal text; a missing key counts as 0) and returns the sum. Is never
    /// carried out twice: when a connection breaks on the way the call fails with [`StoreError::Uncertain`].
    fn add(&self, key: &str, amount: i64, deadline: Instant) -> Result<i64, StoreError>;

    /// Sets `key` to `desired` if its value is `expected`; an empty `expected` stands for a missing key or an empty
    /// value. Returns what the store answers, which is *not* enough to know who won: a TCPStore answers `expected` for
    /// a missing key, and the same bytes written by somebody else look like success. Read the key back, and make
    /// `desired` unique. May be carried out twice if a connection breaks on the way.
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, StoreError>;

    /// Appends `value` to the value of `key`. Is never carried out twice, as [`add`](Self::add).
    fn append(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError>;

    /// Waits until all keys exist. `false`: they did not by the deadline.
    fn wait(&self, keys: &[String], deadline: Instant) -> Result<bool, StoreError>;

    /// Whether all keys exist now.
    fn check(&self, keys: &[String], deadline: Instant) -> Result<bool, StoreError>;

    /// Removes `key`; whether it existed.
    fn delete(&self, key: &str, deadline: Instant) -> Result<bool, StoreError>;
}

/// Why a call of a [`Store`] failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached, or did not answer by the deadline.
    #[error("the store at {store} cannot be reached: {reason}")]
    Unreachable {
        /// The address of the store.
        store: String,
        /// The attempts, and what came of them.
        reason: String,
    },
    /// A call that must not be carried out twice was sent, and its answer was lost.
    #[error(
        "the connection to the store at {store} broke during {call}, it is not known whether it was done: {reason}"
    )]
    Uncertain {
        /// The address of the store.
        store: String,
        /// The call.
        call: &'static str,
        /// The reason why the connection broke.
        reason: String,
    },
    /// The store answered something that is no answer.
    #[error("the store at {store} is no TCPStore or a damaged one: {reason}")]
    Malformed {
        /// The address of the store.
        store: String,
        /// The answer that it gave.
        reason: String,
    },
    /// The store does not take this key or value, and nothing was done.
    #[error("the store cannot take this: {0}")]
    Refused(String),
}

impl StoreError {
    /// Whether a later attempt may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Uncertain { .. })
    }
}

/// Refuses what no store takes.
///
/// # Errors
/// [`StoreError::Refused`] with the reason.
pub fn check_limits<'a>(
    keys: impl IntoIterator<Item = &'a str>,
    value_bytes: usize,
) -> Result<(), StoreError> {
    let mut number = 0;
    for key in keys {
        number += 1;
        if key.len() > MAX_KEY_BYTES {
            let text = format!("a key of {} bytes, at most {MAX_KEY_BYTES} are allowed", key.len());
            return Err(StoreError::Refused(text));
        }
    }
    if number > MAX_KEYS {
        return Err(StoreError::Refused(format!(
            "{number} keys in one call, at most {MAX_KEYS} are allowed"
        )));
    }
    if value_bytes > MAX_VALUE_BYTES {
        let text = format!("a value of {value_bytes} bytes, at most {MAX_VALUE_BYTES} are allowed");
        return Err(StoreError::Refused(text));
    }
    Ok(())
}
