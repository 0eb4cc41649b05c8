//! States that another thread saves, as C sees them.

use crate::{
    failure::{Failure, Outcome},
    registry::Registry,
};
use parking_lot::Mutex;
use pccl::Saving;

/// All of the process that nobody has awaited.
pub(crate) static SAVINGS: Registry<Slot> = Registry::new("saving");

/// A saving until somebody awaits it.
pub(crate) struct Slot(Mutex<Option<Saving>>);

impl Slot {
    /// One that has begun.
    pub(crate) const fn new(saving: Saving) -> Self {
        Self(Mutex::new(Some(saving)))
    }

    /// Whether waiting for it takes no time.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().as_ref().is_none_or(Saving::is_over)
    }

    /// The saving to wait for. Only one caller gets it.
    pub(crate) fn take(&self) -> Outcome<Saving> {
        self.0.lock().take().ok_or_else(|| Failure::usage("another thread awaits this saving"))
    }
}
