//! The place where a call leaves what it has found out, beside tensors.

use parking_lot::Mutex;
use std::sync::Arc;

/// Where a call leaves what it has found. Clones are the same one.
#[derive(Debug)]
pub struct Report<T>(Arc<Mutex<Option<T>>>);

impl<T> Report<T> {
    /// The result of the call, once: `None` before it has succeeded.
    pub fn take(&self) -> Option<T> {
        self.0.lock().take()
    }

    pub(super) fn put(&self, found: T) {
        *self.0.lock() = Some(found);
    }
}

impl<T> Default for Report<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Report<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
