//! What an event loop has to write to one client.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::Arc,
};

/// Frames that one system call writes at most.
const FRAMES_PER_WRITE: usize = 64;

/// Bytes that leave whole or not at all. The queues of all clients that get them share them.
#[derive(Debug, Clone)]
pub struct Frame {
    bytes: Arc<Vec<u8>>,
    /// Of a frame that a later one takes the place of: the key that both have, and what is left of this one then.
    replaced: Option<(u64, Arc<Vec<u8>>)>,
}

impl Frame {
    /// A frame that stays whatever comes behind it.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Arc::new(bytes), replaced: None }
    }

    /// A frame that says nothing to whoever gets a later one with the same `key`. It waits until there is such a one;
    /// then
    /// `rest` stands in its place, if anything came between the two.
    pub fn replaced_by_later(bytes: Vec<u8>, key: u64, rest: Vec<u8>) -> Self {
        Self { bytes: Arc::new(bytes), replaced: Some((key, Arc::new(rest))) }
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Whole frames in the order in which they leave, and how much of the first one has left already.
#[derive(Debug, Default)]
pub struct WriteQueue {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that are written.
    written: usize,
    /// Bytes of all frames that are not written.
    waiting_bytes: usize,
}

impl WriteQueue {
    /// Puts `frame` behind everything else. Of the frames with one key only the newest stays, unless another has begun
    /// to leave.
    pub fn push(&mut self, frame: Frame) {
        if frame.is_empty() {
            return;
        }
        if let Some((key, _)) = &frame.replaced {
            self.replace(*key);
        }
        self.waiting_bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Leaves the rest of the frame that waits with this key; there is at most one.
    fn replace(&mut self, key: u64) {
        let begun = usize::from(self.written > 0);
        let is_old = |frame: &Frame| frame.replaced.as_ref().is_some_and(|(of, _)| *of == key);
        let Some(at) = self.frames.iter().skip(begun).position(is_old) else { return };
        let at = begun + at;
        let old = &mut self.frames[at];
        let Some((_, rest)) = old.replaced.take() else { return };
        self.waiting_bytes = self.waiting_bytes - old.len() + rest.len();
        old.bytes = rest;
        // Nothing has come between the two, or there is no rest.
        if at + 1 == self.frames.len() || self.frames[at].is_empty() {
            self.waiting_bytes -= self.frames.remove(at).map_or(0, |frame| frame.len());
        }
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Drops every frame of which nothing is written yet. What remains is the rest of one frame at most, so the
    /// stream stays well-formed.
    pub fn drop_unsent(&mut self) {
        let keep = usize::from(self.written > 0);
        self.frames.truncate(keep);
        self.waiting_bytes = self.frames.front().map_or(0, |frame| frame.len() - self.written);
    }

    /// Writes until the queue is empty or the connection takes no more (`Ok` in both cases).
    /// `send` sends what goes out at once.
    pub fn write_to(&mut self, mut send: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<()> {
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

    /// So many more bytes are written.
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

    fn frame(text: &str) -> Frame {
        Frame::new(text.as_bytes().to_vec())
    }

    #[test]
    fn partial_writes_go_on_where_they_stopped() {
        let mut queue = WriteQueue::default();
        queue.push(frame("hello "));
        queue.push(frame("world"));
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
        queue.push(frame("first"));
        queue.push(frame("second"));
        let mut stream = Narrow { taken: Vec::new(), room: 2 };
        queue.write_to(|parts| stream.send(parts)).unwrap();
        queue.drop_unsent();
        assert_eq!(queue.waiting_bytes(), 3);
        queue.push(frame("!"));
        stream.room = 100;
        queue.write_to(|parts| stream.send(parts)).unwrap();
        assert_eq!(stream.taken, b"first!");
    }

    #[test]
    fn frames_that_have_not_begun_to_leave_are_dropped() {
        let mut queue = WriteQueue::default();
        queue.push(frame("first"));
        queue.drop_unsent();
        assert!(queue.is_empty());
        assert_eq!(queue.waiting_bytes(), 0);
    }

    /// What leaves if these are queued, and the first `begun` bytes have left when the last one comes. A word with a
    /// digit has the digit as its key, and leaves its first letter.
    fn leaves(words: &str, begun: usize) -> String {
        let (mut queue, mut stream) = (WriteQueue::default(), Narrow { taken: Vec::new(), room: begun });
        let frames: Vec<Frame> = words.split(' ').map(keyed).collect();
        let (last, before) = frames.split_last().unwrap();
        before.iter().for_each(|frame| queue.push(frame.clone()));
        queue.write_to(|parts| stream.send(parts)).unwrap();
        queue.push(last.clone());
        stream.room = 1000;
        queue.write_to(|parts| stream.send(parts)).unwrap();
        assert_eq!(queue.waiting_bytes(), 0);
        String::from_utf8(stream.taken).unwrap()
    }

    fn keyed(word: &str) -> Frame {
        match word.bytes().last().filter(u8::is_ascii_digit) {
            Some(key) => {
                let rest = word.bytes().take(1).filter(|first| *first != b'-').collect();
                Frame::replaced_by_later(word.as_bytes().to_vec(), key.into(), rest)
            }
            None => frame(word),
        }
    }

    #[test]
    fn of_frames_with_one_key_only_the_newest_waits() {
        assert_eq!(leaves("aa1 bb1 cc1", 0), "cc1");
        assert_eq!(leaves("aa1 bb2 cc1", 0), "abb2cc1");
        assert_eq!(leaves("x aa1 y bb1", 0), "xaybb1");
        assert_eq!(leaves("-a1 y bb1", 0), "ybb1", "one without a rest goes whole");
        // One that has begun to leave stays.
        assert_eq!(leaves("aa1 bb1", 2), "aa1bb1");
        assert_eq!(leaves("aa1 x bb1 cc1", 3), "axbb1cc1");
        assert_eq!(leaves("aa1 x bb1 cc1", 2), "axcc1");
    }

    #[test]
    fn what_is_replaced_takes_no_memory() {
        let (mut queue, mut stream) = (WriteQueue::default(), Narrow { taken: Vec::new(), room: 1 });
        (0..1000).for_each(|_| queue.push(keyed("aaaaaaaa1")));
        queue.write_to(|parts| stream.send(parts)).unwrap();
        (0..1000).for_each(|_| queue.push(keyed("aaaaaaaa1")));
        assert!(queue.waiting_bytes() <= 18);
    }
}
