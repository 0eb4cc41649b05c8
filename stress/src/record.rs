//! What is kept of a run while it lasts.

use crate::oracle::Recovery;
use std::collections::BTreeMap;

/// How often each kind of fault was made.
pub(crate) type Faults = BTreeMap<&'static str, u64>;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) faults: Faults,
    pub(crate) recoveries: Vec<Recovery>,
}

impl Record {
    /// A fault is made.
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }
}
