//! Packets that have been sent to the master and are kept for another connection, until the master has them.

use pccl_protocol::{C2m, limits::MAX_KEPT_BYTES};
use std::collections::VecDeque;

/// See the module's documentation. Packets are counted from 1.
#[derive(Debug, Default)]
pub(super) struct Kept {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The number of the last packet in front of these.
    before: u64,
    /// Packets that the master is known to have.
    acknowledged: u64,
}

impl Kept {
    /// A packet is sent. If all together are too many, the oldest are let go.
    pub(super) fn push(&mut self, packet: &C2m, frame: Vec<u8>) {
        if !packet.is_numbered() {
            return;
        }
        self.bytes += frame.len();
        self.frames.push_back(frame);
        while self.bytes > MAX_KEPT_BYTES {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(frame) = self.frames.pop_front() {
            self.bytes -= frame.len();
            self.before += 1;
        }
    }

    /// The master has this number of packets. `false`: fewer were sent, or not all behind them are kept.
    pub(super) fn acknowledge(&mut self, count: u64) -> bool {
        let sent = self.before + self.frames.len() as u64;
        if count > sent {
            return false;
        }
        self.acknowledged = self.acknowledged.max(count);
        while self.before < count {
            self.drop_first();
        }
        self.before == count
    }

    /// Whether everything is kept that the master is not known to have.
    pub(super) fn is_complete(&self) -> bool {
        self.before <= self.acknowledged
    }

    /// All of them, for the next connection.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.frames.iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{Received, RequestId};

    fn push(kept: &mut Kept, packet: &C2m, bytes: usize) {
        kept.push(packet, vec![7; bytes]);
    }

    #[test]
    fn what_the_master_has_is_not_kept() {
        let (mut kept, vote) = (Kept::default(), C2m::VotePending(RequestId(1)));
        assert!(kept.acknowledge(0) && kept.is_complete());
        (1..=4).for_each(|bytes| push(&mut kept, &vote, bytes));
        push(&mut kept, &C2m::Received(Received { count: 1 }), 100);
        assert_eq!(kept.bytes().len(), 10);
        assert!(kept.acknowledge(2) && kept.bytes().len() == 7 && kept.acknowledge(2));
        assert!(!kept.acknowledge(1), "they are not kept any more");
        assert!(!kept.acknowledge(5) && kept.is_complete());
        assert!(kept.acknowledge(4) && kept.bytes().is_empty());
    }

    #[test]
    fn too_much_is_let_go_and_nothing_goes_on_behind_that() {
        let (mut kept, vote) = (Kept::default(), C2m::VotePending(RequestId(1)));
        push(&mut kept, &vote, MAX_KEPT_BYTES);
        assert!(kept.is_complete());
        push(&mut kept, &vote, 1);
        assert!(!kept.is_complete() && !kept.acknowledge(0) && kept.acknowledge(1));
        assert!(kept.is_complete() && kept.bytes().len() == 1);
    }
}
