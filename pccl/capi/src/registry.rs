//! Handles and what they stand for.

use crate::{
    failure::{Failure, Outcome},
    types::Handle,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Between two handles, so that no two look like neighbouring addresses of one object.
const STEP: usize = 16;
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// A number that no handle had before.
pub(crate) fn new_key() -> usize {
    NEXT.fetch_add(STEP, Ordering::Relaxed)
}

/// Objects by their handles. A handle is never used again, so that an old one is found out.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    objects: Mutex<BTreeMap<usize, Arc<T>>>,
    kind: &'static str,
}

impl<T> Registry<T> {
    /// An empty one; `kind` is what the header calls its objects.
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { objects: Mutex::new(BTreeMap::new()), kind }
    }

    /// Adds an object under its key.
    pub(crate) fn insert(&self, key: usize, object: Arc<T>) -> Handle {
        self.objects.lock().insert(key, object);
        std::ptr::without_provenance_mut(key)
    }

    /// The object of a handle.
    pub(crate) fn get(&self, handle: Handle) -> Outcome<Arc<T>> {
        self.objects.lock().get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    /// Takes the object of a handle out.
    pub(crate) fn remove(&self, handle: Handle) -> Outcome<Arc<T>> {
        self.objects.lock().remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.lock().is_empty()
    }

    fn unknown(&self, handle: Handle) -> Failure {
        if handle.is_null() {
            Failure::argument(format!("the {} is NULL", self.kind))
        } else {
            Failure::argument(format!("there is no such {}, or no longer", self.kind))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::code;

    #[test]
    fn old_and_unknown_handles_are_found_out() {
        let registry = Registry::new("thing");
        let first = registry.insert(new_key(), Arc::new(1));
        assert_eq!(*registry.get(first).expect("there"), 1);
        assert_eq!(*registry.remove(first).expect("there"), 1);
        let second = registry.insert(new_key(), Arc::new(2));
        assert_ne!(first, second);
        for handle in [first, std::ptr::null_mut(), std::ptr::dangling_mut::<u64>().cast()] {
            assert_eq!(registry.get(handle).unwrap_err().code, code::INVALID_ARGUMENT);
            assert_eq!(registry.remove(handle).unwrap_err().code, code::INVALID_ARGUMENT);
        }
        assert!(!registry.is_empty());
    }
}
