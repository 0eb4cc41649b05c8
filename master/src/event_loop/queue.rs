//! What waits to be written to one client.

use pccl_protocol::{GroupId, M2c};
use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::Arc,
};

/// Frames that one system call writes at most.
const FRAMES_PER_WRITE: usize = 64;

/// One encoded packet; the queues of all clients that get it share its bytes.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    bytes: Arc<[u8]>,
    /// Of a ring plan: its group, and what is left of it once a newer one has come.
    plan: Option<(GroupId, Arc<[u8]>)>,
}

impl Frame {
    pub(super) fn new(packet: &M2c) -> Self {
        let plan = match packet {
            // Between a plan and the next one there may be answers, and their receiver sees the world as it was then.
            M2c::RingPlan(plan) => Some((plan.group, M2c::Sizes(plan.sizes).to_frame().into())),
            _ => None,
        };
        Self { bytes: packet.to_frame().into(), plan }
    }

    /// Bytes that are no packet.
    pub(super) fn raw(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), plan: None }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Whole frames in the order in which they leave, and how much of the first one has left already.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that are written.
    written: usize,
    /// Bytes of all frames that are not written.
    waiting_bytes: usize,
}

impl WriteQueue {
    /// Puts `frame` behind everything else. Of the ring plans of a group only the newest one stays, unless another has
    /// begun to leave: whoever has not heard of the others can do nothing with them.
    pub(super) fn push(&mut self, frame: Frame) {
        if frame.len() == 0 {
            return;
        }
        if let Some((group, _)) = &frame.plan {
            self.drop_plan_of(*group);
        }
        self.waiting_bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Leaves the sizes of a plan that waits; there is at most one.
    fn drop_plan_of(&mut self, group: GroupId) {
        let begun = usize::from(self.written > 0);
        let is_old = |frame: &Frame| frame.plan.as_ref().is_some_and(|(of, _)| *of == group);
        let Some(at) = self.frames.iter().skip(begun).position(is_old) else { return };
        let old = &mut self.frames[begun + at];
        let Some((_, sizes)) = old.plan.take() else { return };
        self.waiting_bytes = self.waiting_bytes - old.len() + sizes.len();
        old.bytes = sizes;
        if begun + at + 1 == self.frames.len() {
            // Nobody answers before the new plan, which has sizes of its own.
            self.waiting_bytes -= self.frames.pop_back().map_or(0, |frame| frame.len());
        }
    }

    /// Bytes that wait.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Drops every frame of which nothing is written yet. What remains is the rest of one frame at most, so the
    /// stream stays well-formed.
    pub(super) fn drop_unsent(&mut self) {
        let keep = usize::from(self.written > 0);
        self.frames.truncate(keep);
        self.waiting_bytes = self.frames.front().map_or(0, |frame| frame.len() - self.written);
    }

    /// Writes until the queue is empty or the connection takes no more (`Ok` in both cases).
    /// `send` sends what goes out at once.
    pub(super) fn write_to(
        &mut self,
        mut send: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        while !self.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); FRAMES_PER_WRITE];
            let mut skip = self.written;
            let count = self.frames.len().min(FRAMES_PER_WRITE);
            for (slice, frame) in slices.iter_mut().zip(&self.frames) {
                *slice = IoSlice::new(&frame.bytes[std::mem::take(&mut skip)..]);
            }
            match send(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.has_left(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.give_memory_back();
        Ok(())
    }

    /// `bytes` more bytes are written.
    fn has_left(&mut self, bytes: usize) {
        self.waiting_bytes -= bytes;
        self.written += bytes;
        while let Some(frame) = self.frames.front().filter(|frame| frame.len() <= self.written) {
            self.written -= frame.len();
            self.frames.pop_front();
        }
    }

    /// After a rush a queue is not to be kept as long as it was.
    fn give_memory_back(&mut self) {
        if self.frames.capacity() > 4 * FRAMES_PER_WRITE {
            self.frames = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{GroupEpoch, PendingAnswer, RequestId, RingPlan, WorldEpoch, WorldSizes};
    use tinysockets::wire::FrameParser;

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

    #[test]
    fn partial_writes_go_on_where_they_stopped() {
        let mut queue = WriteQueue::default();
        queue.push(Frame::raw(b"hello "));
        queue.push(Frame::raw(b"world"));
        let mut stream = Narrow { taken: Vec::new(), room: 4 };
        queue.write_to(|parts| stream.send(parts)).unwrap();
        assert_eq!((stream.taken.as_slice(), queue.waiting_bytes()), (b"hell".as_slice(), 7));
        stream.room = 100;
        queue.write_to(|parts| stream.send(parts)).unwrap();
        assert_eq!(stream.taken, b"hello world");
        assert!(queue.is_empty());
        assert_eq!(queue.waiting_bytes(), 0);
    }

    #[test]
    fn a_frame_that_has_begun_to_leave_is_never_dropped() {
        let mut queue = WriteQueue::default();
        queue.push(Frame::raw(b"first"));
        queue.push(Frame::raw(b"second"));
        let mut stream = Narrow { taken: Vec::new(), room: 2 };
        queue.write_to(|parts| stream.send(parts)).unwrap();
        queue.drop_unsent();
        assert_eq!(queue.waiting_bytes(), 3);
        queue.push(Frame::raw(b"!"));
        stream.room = 100;
        queue.write_to(|parts| stream.send(parts)).unwrap();
        assert_eq!(stream.taken, b"first!");
    }

    #[test]
    fn frames_that_have_not_begun_to_leave_are_dropped() {
        let mut queue = WriteQueue::default();
        queue.push(Frame::raw(b"first"));
        queue.drop_unsent();
        assert!(queue.is_empty());
        assert_eq!(queue.waiting_bytes(), 0);
    }

    fn plan(group: u32, epoch: u64) -> M2c {
        M2c::RingPlan(RingPlan {
            group: GroupId(group),
            epoch: GroupEpoch(epoch),
            sizes: WorldSizes { world_epoch: WorldEpoch(epoch), ..WorldSizes::default() },
            ring: Vec::new(),
            mesh: Vec::new(),
            pairwise: false,
        })
    }

    /// What arrives if these are queued, the first `begun` bytes have left when the last one comes, and then the rest
    /// leaves.
    fn arrives(packets: &[M2c], begun: usize) -> Vec<M2c> {
        let (mut queue, mut stream) = (WriteQueue::default(), Narrow { taken: Vec::new(), room: begun });
        let (last, before) = packets.split_last().unwrap();
        before.iter().for_each(|packet| queue.push(Frame::new(packet)));
        queue.write_to(|parts| stream.send(parts)).unwrap();
        queue.push(Frame::new(last));
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
        // Whoever gets an answer is told of the world that it belongs to.
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
        (0..1000).for_each(|epoch| queue.push(Frame::new(&plan(0, epoch))));
        queue.write_to(|parts| stream.send(parts)).unwrap();
        (1000..2000).for_each(|epoch| queue.push(Frame::new(&plan(0, epoch))));
        assert!(queue.waiting_bytes() <= 2 * Frame::new(&plan(0, 1)).len());
    }
}
