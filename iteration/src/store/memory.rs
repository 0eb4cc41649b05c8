//! A store in the memory of one process: for tests, and for members that are threads.

use super::{Store, StoreError, check_limits};
use crate::data::{Data, Limits, Refusal};
use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// A [`Store`] in memory. Share it by reference or in an `Arc`.
#[derive(Debug)]
pub struct MemoryStore {
    data: Mutex<Data>,
    changed: Condvar,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { data: Mutex::new(Data::new(Limits::default())), changed: Condvar::new() }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything, as a store that was started again without its file.
    pub fn clear(&self) {
        *self.data.lock() = Data::new(Limits::default());
        self.changed.notify_all();
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            self.data.lock().keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        keys.sort();
        keys
    }

    fn change<T>(&self, change: impl FnOnce(&mut Data) -> Result<T, Refusal>) -> Result<T, StoreError> {
        let result =
            change(&mut self.data.lock()).map_err(|refusal| StoreError::Refused(refusal.to_string()));
        self.changed.notify_all();
        result
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &str, _: Instant) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.data.lock().get(key.as_bytes()).map(<[u8]>::to_vec))
    }

    fn set(&self, key: &str, value: &[u8], _: Instant) -> Result<(), StoreError> {
        check_limits([key], value.len())?;
        self.change(|data| data.set(key.as_bytes(), value))
    }

    fn add(&self, key: &str, amount: i64, _: Instant) -> Result<i64, StoreError> {
        check_limits([key], 0)?;
        self.change(|data| data.add(key.as_bytes(), amount))
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        _: Instant,
    ) -> Result<Vec<u8>, StoreError> {
        check_limits([key], desired.len())?;
        self.change(|data| data.compare_set(key.as_bytes(), expected, desired).map(|(value, _)| value))
    }

    fn append(&self, key: &str, value: &[u8], _: Instant) -> Result<(), StoreError> {
        check_limits([key], value.len())?;
        self.change(|data| data.append(key.as_bytes(), value))
    }

    fn wait(&self, keys: &[String], deadline: Instant) -> Result<bool, StoreError> {
        let mut data = self.data.lock();
        loop {
            if keys.iter().all(|key| data.has(key.as_bytes())) {
                return Ok(true);
            }
            if self.changed.wait_until(&mut data, deadline).timed_out() {
                return Ok(keys.iter().all(|key| data.has(key.as_bytes())));
            }
        }
    }

    fn check(&self, keys: &[String], _: Instant) -> Result<bool, StoreError> {
        let data = self.data.lock();
        Ok(keys.iter().all(|key| data.has(key.as_bytes())))
    }

    fn delete(&self, key: &str, _: Instant) -> Result<bool, StoreError> {
        self.change(|data| Ok(data.delete(key.as_bytes())))
    }
}
