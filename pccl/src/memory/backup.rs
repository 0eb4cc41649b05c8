//! Memory of the library for operations: what is saved, what travels, and what callers have no memory for.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tinysockets::link::{Gate, Lent};

/// Memory in which an in-place collective saves what it overwrites, or in which a quantised one keeps what travels. New
/// memory is zero, which costs nothing where it is large: the system hands out pages of zeros.
#[derive(Debug)]
pub(crate) struct Backup {
    /// For the parent module, which turns it into tensors in ranges that it has checked.
    pub(super) start: *mut u8,
    capacity: usize,
    /// Bytes of all buffers that count together.
    counter: Arc<AtomicUsize>,
}

// SAFETY: `Backup` owns its allocation; access goes through `Lent` behind a gate or through `RawTensor::restore`.
unsafe impl Send for Backup {}
// SAFETY: as above; a shared `Backup` offers nothing but the making of `Lent` memory.
unsafe impl Sync for Backup {}

impl Backup {
    /// A backup of `len` bytes, which `counter` counts as long as it lives.
    pub(crate) fn new(len: usize, counter: &Arc<AtomicUsize>) -> Self {
        let start = Box::into_raw(vec![0_u8; len].into_boxed_slice());
        counter.fetch_add(len, Ordering::Relaxed);
        Self { start: start.cast(), capacity: len, counter: counter.clone() }
    }

    /// Bytes that it can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The length of a range, which lies inside.
    pub(super) fn checked(&self, range: &Range<usize>) -> usize {
        assert!(range.start <= range.end && range.end <= self.capacity);
        range.len()
    }

    /// Reads bytes that were written. Only while no thread uses them: before a vote, or after the gate of the attempt
    /// has drained.
    pub(crate) fn view<R>(&self, range: Range<usize>, work: impl FnOnce(&[u8]) -> R) -> R {
        let bytes = self.checked(&range);
        // SAFETY: the range lies inside the allocation, what is in it was written, and this thread is its only user.
        work(unsafe { std::slice::from_raw_parts(self.start.add(range.start), bytes) })
    }

    /// Writes bytes, in which anything is. Only while no thread uses them, as [`Backup::view`].
    pub(crate) fn fill<R>(&self, range: Range<usize>, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let bytes = self.checked(&range);
        // SAFETY: the range lies inside the allocation, which is initialised, and this thread is the only user of it.
        work(unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), bytes) })
    }

    /// Lends `range` behind `gate`, to an attempt that keeps `self` as well.
    pub(crate) fn lend(&self, range: Range<usize>, gate: &Arc<Gate>) -> Lent {
        let bytes = self.checked(&range);
        // SAFETY: the range lies inside the allocation, which is initialised and lives as long as `self`; the attempt
        // that holds the `Lent` holds the backup as well. The next operation gets it only after the gate of this
        // attempt has drained, so that one attempt at a time uses it.
        unsafe { Lent::new(self.start.add(range.start), bytes, true, gate.clone()) }
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        // SAFETY: pointer and length are those of the box of `new`, and nobody has lent memory any more.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.capacity)) });
        self.counter.fetch_sub(self.capacity, Ordering::Relaxed);
    }
}
