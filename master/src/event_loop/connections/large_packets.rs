//! Memory for large packets that are arriving: given in the order in which they began, and never more than there is.

use pccl_protocol::limits::MAX_LARGE_PACKETS_BYTES;
use std::collections::{BTreeMap, VecDeque};

/// See the module's documentation. Connections are named by their keys.
#[derive(Debug, Default)]
pub(crate) struct LargePackets {
    granted: BTreeMap<u64, usize>,
    granted_bytes: usize,
    /// Those that are not read until there is room.
    waiting: VecDeque<u64>,
}

impl LargePackets {
    /// Whether the packet of this number of bytes that begins on a connection may arrive now. If not, its turn comes.
    pub(crate) fn grant(&mut self, key: u64, bytes: usize) -> bool {
        if self.granted.contains_key(&key) {
            return true;
        }
        let is_next = self.waiting.front().is_none_or(|first| *first == key);
        if !is_next || self.granted_bytes + bytes > MAX_LARGE_PACKETS_BYTES {
            if !self.waiting.contains(&key) {
                self.waiting.push_back(key);
            }
            return false;
        }
        self.waiting.pop_front();
        self.granted.insert(key, bytes);
        self.granted_bytes += bytes;
        true
    }

    /// The packet has arrived, or the connection is gone. Whether that changed anything.
    pub(crate) fn release(&mut self, key: u64) -> bool {
        let given = self.granted.remove(&key);
        self.granted_bytes -= given.unwrap_or(0);
        let waited = self.waiting.len();
        self.waiting.retain(|waiting| *waiting != key);
        given.is_some() || waited != self.waiting.len()
    }

    /// The connection whose turn it is when there is room.
    pub(crate) fn next(&self) -> Option<u64> {
        self.waiting.front().copied()
    }

    /// Connections that are not read.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.waiting.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_never_more_than_there_is_and_the_first_comes_first() {
        let (mut large, half) = (LargePackets::default(), MAX_LARGE_PACKETS_BYTES / 2);
        assert!(large.grant(1, half) && large.grant(2, half) && large.grant(1, half));
        assert!(!large.grant(3, half) && !large.grant(4, 1) && !large.grant(3, half));
        assert_eq!(large.waiting().collect::<Vec<_>>(), [3, 4]);
        // The small one does not overtake.
        assert!(large.release(1) && !large.grant(4, 1) && large.grant(3, half));
        assert_eq!(large.next(), Some(4));
        assert!(!large.grant(4, 1) && large.release(2) && large.grant(4, 1));
        assert!(!large.release(2));
        assert!(large.release(3) && large.release(4));
        assert_eq!((large.granted_bytes, large.next()), (0, None));
    }

    #[test]
    fn who_goes_while_it_waits_holds_up_nobody() {
        let (mut large, all) = (LargePackets::default(), MAX_LARGE_PACKETS_BYTES);
        assert!(large.grant(1, all) && !large.grant(2, all) && !large.grant(3, 1));
        assert!(large.release(2) && large.release(1) && large.grant(3, 1));
    }
}
