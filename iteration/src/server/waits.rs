//! The connections that wait, and the keys that they wait for.

use std::collections::{HashMap, HashSet};

/// Connections that wait. Each waits for one thing at a time.
#[derive(Debug, Default)]
pub(super) struct Waits {
    by_key: HashMap<Vec<u8>, HashSet<u64>>,
    by_conn: HashMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    keys: Vec<Vec<u8>>,
    missing: usize,
}

impl Waits {
    /// Whether a connection waits.
    pub(super) fn is_waiting(&self, conn: u64) -> bool {
        self.by_conn.contains_key(&conn)
    }

    /// A connection waits until all these keys have been written. There is at least one.
    pub(super) fn begin(&mut self, conn: u64, keys: Vec<Vec<u8>>) {
        let mut missing = 0;
        for key in &keys {
            missing += usize::from(self.by_key.entry(key.clone()).or_default().insert(conn));
        }
        self.by_conn.insert(conn, Waiting { keys, missing });
    }

    /// A key was written. Returns whose wait is over.
    pub(super) fn written(&mut self, key: &[u8]) -> Vec<u64> {
        if self.by_key.is_empty() {
            return Vec::new();
        }
        let waiting = self.by_key.remove(key).unwrap_or_default();
        let mut over = Vec::new();
        for conn in waiting {
            if let Some(wait) = self.by_conn.get_mut(&conn) {
                wait.missing -= 1;
                if wait.missing == 0 {
                    self.by_conn.remove(&conn);
                    over.push(conn);
                }
            }
        }
        over
    }

    /// A connection waits no more.
    pub(super) fn end(&mut self, conn: u64) {
        let Some(wait) = self.by_conn.remove(&conn) else { return };
        for key in wait.keys {
            if let Some(conns) = self.by_key.get_mut(&key) {
                conns.remove(&conn);
                if conns.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_over_when_the_last_key_is_written() {
        let mut waits = Waits::default();
        waits.begin(1, vec![b"a".to_vec(), b"b".to_vec(), b"a".to_vec()]);
        waits.begin(2, vec![b"b".to_vec()]);
        assert!(waits.written(b"a").is_empty() && waits.written(b"a").is_empty());
        waits.end(2);
        assert_eq!(waits.written(b"b"), [1]);
        assert!(!waits.is_waiting(1) && waits.by_key.is_empty() && waits.by_conn.is_empty());
    }
}
