//! Packets as frames of a write queue.

use pccl_protocol::M2c;
use tinysockets::write_queue::Frame;

/// Encodes a packet. Those that both ends count are kept until they have come. Of the plans of a group a client that
/// does not read gets only the newest one: whoever has not heard of the others can do nothing with them.
pub(crate) fn frame(packet: &M2c) -> Frame {
    match packet {
        // Between a plan and the next one there may be answers, and their receiver sees the world as it was then.
        M2c::GroupPlan(plan) => {
            let sizes = M2c::Sizes(plan.sizes).to_frame();
            Frame::replaced_by_later(packet.to_frame(), plan.group.0.into(), sizes).numbered()
        }
        packet if packet.is_numbered() => Frame::new(packet.to_frame()).numbered(),
        _ => Frame::new(packet.to_frame()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{
        GroupEpoch, GroupId, GroupPlan, Paths, PendingAnswer, RequestId, WorldEpoch, WorldSizes,
    };
    use std::io::{self, IoSlice};
    use tinysockets::{wire::FrameParser, write_queue::WriteQueue};

    /// Takes `room` bytes, three at a time at most, then no more.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl Narrow {
        fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let bytes: &[u8] = &parts[0];
            let n = bytes.len().min(3).min(self.room);
            self.room -= n;
            self.taken.extend_from_slice(&bytes[..n]);
            Ok(n)
        }
    }

    fn plan(group: u32, epoch: u64) -> M2c {
        M2c::GroupPlan(GroupPlan {
            group: GroupId(group),
            epoch: GroupEpoch(epoch),
            sizes: WorldSizes { world_epoch: WorldEpoch(epoch), ..WorldSizes::default() },
            members: Vec::new(),
            edges: Vec::new(),
            counted_since: GroupEpoch(epoch),
            paths: Paths::default(),
        })
    }

    /// The packets that arrive if these are queued, the first `begun` bytes have left when the last one comes, and then
    /// the rest leaves.
    fn arrives(packets: &[M2c], begun: usize) -> Vec<M2c> {
        let (mut queue, mut stream) = (WriteQueue::default(), Narrow { taken: Vec::new(), room: begun });
        let (last, before) = packets.split_last().unwrap();
        before.iter().for_each(|packet| queue.push(frame(packet)));
        queue.write_to(|parts| stream.send(parts)).unwrap();
        queue.push(frame(last));
        stream.room = 1 << 20;
        queue.write_to(|parts| stream.send(parts)).unwrap();
        assert_eq!(queue.waiting_bytes(), 0);
        let mut parser = FrameParser::new(1 << 20);
        parser.feed(&stream.taken);
        let mut all = Vec::new();
        while let Some((kind, body)) = parser.next_frame().unwrap() {
            all.push(M2c::from_frame(kind, body).unwrap());
        }
        all
    }

    #[test]
    fn of_the_plans_of_a_group_only_the_newest_waits() {
        let answer = M2c::PendingAnswer(PendingAnswer { request: RequestId(1), pending: true });
        let sizes =
            |epoch| M2c::Sizes(WorldSizes { world_epoch: WorldEpoch(epoch), ..WorldSizes::default() });
        assert_eq!(arrives(&[plan(0, 1), plan(0, 2), plan(0, 3)], 0), [plan(0, 3)]);
        assert_eq!(arrives(&[plan(0, 1), plan(1, 7), plan(0, 2)], 0), [sizes(1), plan(1, 7), plan(0, 2)]);
        // A client that gets an answer is told of the world that it belongs to.
        let before = [answer.clone(), plan(0, 1), answer.clone(), plan(0, 2)];
        assert_eq!(arrives(&before, 0), [answer.clone(), sizes(1), answer.clone(), plan(0, 2)]);
        // One that has begun to leave stays.
        assert_eq!(arrives(&[plan(0, 1), plan(0, 2)], 3), [plan(0, 1), plan(0, 2)]);
        let begun = [plan(0, 1), plan(0, 2), answer.clone(), plan(0, 3)];
        assert_eq!(arrives(&begun, 0), [sizes(2), answer, plan(0, 3)]);
    }

    #[test]
    fn the_plans_of_a_client_that_does_not_read_take_the_memory_of_one() {
        let (mut queue, mut stream) = (WriteQueue::default(), Narrow { taken: Vec::new(), room: 3 });
        (0..1000).for_each(|epoch| queue.push(frame(&plan(0, epoch))));
        queue.write_to(|parts| stream.send(parts)).unwrap();
        (1000..2000).for_each(|epoch| queue.push(frame(&plan(0, epoch))));
        assert!(queue.waiting_bytes() <= 2 * frame(&plan(0, 1)).len());
    }
}
