//! Memory for backups and encoded tensors, kept between operations: its pages are expensive to get.

use crate::memory::Backup;
use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Most bytes kept for later operations.
const MAX_KEPT_BYTES: usize = 1 << 30;
/// Most buffers kept.
const MAX_KEPT: usize = 64;

/// Buffers that no operation uses at the moment. Dead attempts may still refer to one, but their gates are closed.
#[derive(Debug, Default)]
pub(crate) struct BackupPool {
    free: Mutex<Vec<Arc<Backup>>>,
    bytes: Arc<AtomicUsize>,
}

impl BackupPool {
    /// A buffer of at least `len` bytes: the smallest kept one that is large enough but not wastefully large, or a new
    /// one.
    pub(crate) fn take(&self, len: usize) -> Arc<Backup> {
        let mut free = self.free.lock();
        let fit = (0..free.len())
            .filter(|&i| free[i].capacity() >= len && free[i].capacity() / 4 <= len)
            .min_by_key(|&i| free[i].capacity());
        match fit {
            Some(index) => free.swap_remove(index),
            None => Arc::new(Backup::new(len, &self.bytes)),
        }
    }

    /// Bytes of all buffers, in use or kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Keeps a buffer for later. Only after the gate of every attempt that used it has drained.
    pub(crate) fn give(&self, backup: Arc<Backup>) {
        if backup.capacity() == 0 {
            return;
        }
        let mut free = self.free.lock();
        let kept: usize = free.iter().map(|backup| backup.capacity()).sum();
        if free.len() < MAX_KEPT && kept + backup.capacity() <= MAX_KEPT_BYTES {
            free.push(backup);
        }
    }
}
