//! Keys and values with the semantics of a TCPStore, without sockets: what the server and the store in memory share.

use std::collections::{HashMap, VecDeque};

/// Longest key, in bytes. A TCPStore of PyTorch closes the connection for a longer one; its client puts one more byte
/// in front of every key.
pub const MAX_KEY_BYTES: usize = 8 * 1024 - 1;
/// Longest value, in bytes; the limit of a TCPStore of PyTorch.
pub const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;
/// Most keys in one call.
pub const MAX_KEYS: usize = 128 * 1024;

/// Bytes that an entry costs beside its key and its value.
const ENTRY_BYTES: usize = 96;

/// How much a store may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all keys and values, with a surcharge for each entry.
    pub max_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 1 << 30 }
    }
}

/// Why a change was refused. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store holds as much as it may.
    #[error("the store is full, it holds at most {0} bytes")]
    Full(usize),
    /// The value would get too long.
    #[error("a value gets longer than {MAX_VALUE_BYTES} bytes")]
    TooLong,
    /// A number is to be added to something that is none, or the sum is too large.
    #[error("the value is no number to which that can be added")]
    NoNumber,
}

/// Keys and values, queues, and counts of barriers.
#[derive(Debug, Clone, Default)]
pub struct Data {
    values: HashMap<Vec<u8>, Vec<u8>>,
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    barriers: HashMap<Vec<u8>, i64>,
    bytes: usize,
    limits: Limits,
}

impl Data {
    /// An empty store.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Bytes that count against the limit.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// Whether somebody who waits for `key` may go on: it has a value, or something in its queue.
    pub fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|queue| !queue.is_empty())
    }

    /// All keys with a value, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.values.keys().map(Vec::as_slice)
    }

    /// All keys with their values, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.values.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    /// All queues with what is in them, in no order.
    pub fn queues(&self) -> impl Iterator<Item = (&[u8], &VecDeque<Vec<u8>>)> {
        self.queues.iter().map(|(key, queue)| (key.as_slice(), queue))
    }

    /// Barriers with their counts, in no order.
    pub fn barriers(&self) -> impl Iterator<Item = (&[u8], i64)> {
        self.barriers.iter().map(|(key, count)| (key.as_slice(), *count))
    }

    /// Number of keys that have a value.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no key has a value.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Sets a key.
    ///
    /// # Errors
    /// The store is full, or the value too long.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(Refusal::TooLong);
        }
        if let Some(old) = self.values.get_mut(key) {
            let bytes = self.bytes - old.len() + value.len();
            if bytes > self.limits.max_bytes && value.len() > old.len() {
                return Err(Refusal::Full(self.limits.max_bytes));
            }
            self.bytes = bytes;
            value.clone_into(old);
            return Ok(());
        }
        self.charge(key.len() + value.len())?;
        self.values.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    /// Adds to the number in a key.
    ///
    /// # Errors
    /// The value is no number, the sum too large, or the store full.
    pub fn add(&mut self, key: &[u8], amount: i64) -> Result<i64, Refusal> {
        let old = match self.values.get(key) {
            Some(value) => number(value).ok_or(Refusal::NoNumber)?,
            None => 0,
        };
        let sum = old.checked_add(amount).ok_or(Refusal::NoNumber)?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    /// Sets a key if it has the expected value; the answer of a TCPStore, and whether the key was set. An empty
    /// `expected` stands for a missing key as well. For a missing key and another `expected` the answer is `expected`.
    ///
    /// # Errors
    /// The store is full, or the value too long.
    pub fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
    ) -> Result<(Vec<u8>, bool), Refusal> {
        match self.values.get(key) {
            Some(value) if value != expected => Ok((value.clone(), false)),
            None if !expected.is_empty() => Ok((expected.to_vec(), false)),
            _ => {
                self.set(key, desired)?;
                Ok((desired.to_vec(), true))
            }
        }
    }

    /// Appends to the value of a key.
    ///
    /// # Errors
    /// The store is full, or the value too long.
    pub fn append(&mut self, key: &[u8], more: &[u8]) -> Result<(), Refusal> {
        let Some(old) = self.values.get_mut(key) else { return self.set(key, more) };
        if old.len() + more.len() > MAX_VALUE_BYTES {
            return Err(Refusal::TooLong);
        }
        if self.bytes + more.len() > self.limits.max_bytes {
            return Err(Refusal::Full(self.limits.max_bytes));
        }
        self.bytes += more.len();
        old.extend_from_slice(more);
        Ok(())
    }

    /// Removes a key; whether it had a value.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let value = self.values.remove(key);
        if let Some(value) = &value {
            self.bytes -= key.len() + value.len() + ENTRY_BYTES;
        }
        value.is_some()
    }

    /// Puts something at the end of a queue.
    ///
    /// # Errors
    /// The store is full, or the value too long.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(Refusal::TooLong);
        }
        self.charge(key.len() + value.len())?;
        self.queues.entry(key.to_vec()).or_default().push_back(value.to_vec());
        Ok(())
    }

    /// Takes what is at the front of a queue.
    pub fn pop(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(key)?;
        let value = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(key);
        }
        self.bytes -= key.len() + value.len() + ENTRY_BYTES;
        Some(value)
    }

    /// How many things are in a queue.
    pub fn queue_len(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Counts an arrival at a barrier; returns how many there are. The count is never reset, as in PyTorch.
    ///
    /// # Errors
    /// The store is full.
    pub fn arrive(&mut self, key: &[u8]) -> Result<i64, Refusal> {
        if !self.barriers.contains_key(key) {
            self.charge(key.len())?;
        }
        let count = self.barriers.entry(key.to_vec()).or_insert(0);
        *count = count.saturating_add(1);
        Ok(*count)
    }

    /// Sets the count of a barrier, as read from a file.
    ///
    /// # Errors
    /// The store is full.
    pub fn set_arrivals(&mut self, key: &[u8], count: i64) -> Result<(), Refusal> {
        self.arrive(key)?;
        self.barriers.insert(key.to_vec(), count);
        Ok(())
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Refusal> {
        let bytes = self.bytes + bytes + ENTRY_BYTES;
        if bytes > self.limits.max_bytes {
            return Err(Refusal::Full(self.limits.max_bytes));
        }
        self.bytes = bytes;
        Ok(())
    }
}

fn number(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_set_answers_as_a_tcp_store() {
        let mut data = Data::default();
        assert_eq!(data.compare_set(b"k", b"x", b"y"), Ok((b"x".to_vec(), false)));
        assert!(!data.has(b"k"));
        assert_eq!(data.compare_set(b"k", b"", b"a"), Ok((b"a".to_vec(), true)));
        assert_eq!(data.compare_set(b"k", b"", b"b"), Ok((b"a".to_vec(), false)));
        assert_eq!(data.compare_set(b"k", b"a", b"b"), Ok((b"b".to_vec(), true)));
        data.set(b"e", b"").unwrap();
        assert_eq!(data.compare_set(b"e", b"", b"b"), Ok((b"b".to_vec(), true)));
    }

    #[test]
    fn numbers_are_text() {
        let mut data = Data::default();
        assert_eq!(data.add(b"n", 5), Ok(5));
        assert_eq!(data.add(b"n", -7), Ok(-2));
        assert_eq!(data.get(b"n"), Some(b"-2".as_slice()));
        data.set(b"n", b"9223372036854775807").unwrap();
        assert_eq!(data.add(b"n", 1), Err(Refusal::NoNumber));
        data.set(b"n", b"many").unwrap();
        assert_eq!(data.add(b"n", 1), Err(Refusal::NoNumber));
    }

    #[test]
    fn what_is_held_is_bounded_and_counted() {
        let mut data = Data::new(Limits { max_bytes: 1000 });
        data.set(b"a", &[0; 500]).unwrap();
        assert_eq!(data.set(b"b", &[0; 500]), Err(Refusal::Full(1000)));
        assert_eq!(data.append(b"a", &[0; 500]), Err(Refusal::Full(1000)));
        assert_eq!(data.push(b"q", &[0; 500]), Err(Refusal::Full(1000)));
        assert!(data.delete(b"a") && !data.delete(b"a"));
        assert_eq!(data.bytes(), 0);
        data.push(b"q", b"1").unwrap();
        data.push(b"q", b"2").unwrap();
        assert_eq!((data.queue_len(b"q"), data.has(b"q")), (2, true));
        assert_eq!(
            (data.pop(b"q"), data.pop(b"q"), data.pop(b"q")),
            (Some(b"1".to_vec()), Some(b"2".to_vec()), None)
        );
        assert_eq!((data.bytes(), data.has(b"q")), (0, false));
        while data.append(b"a", &[1; 100]).is_ok() {}
        assert_eq!(Data::default().set(b"a", &vec![0; MAX_VALUE_BYTES + 1]), Err(Refusal::TooLong));
    }
}
