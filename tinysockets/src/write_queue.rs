//! The bytes that an event loop has to write to one client.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Frames that one system call writes at most.
const FRAMES_PER_WRITE: usize = 64;

/// Counts the bytes of frames that wait in any queue, each frame once.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<AtomicUsize>);

impl Gauge {
    /// Bytes that it has counted and that still are in memory.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The bytes that a gauge has counted of one frame; the last queue that lets go of the frame takes it back.
#[derive(Debug)]
struct Counted(Gauge, usize);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Bytes that leave whole or not at all. The queues of all clients that get them share them.
#[derive(Debug, Clone)]
pub struct Frame {
    bytes: Arc<Vec<u8>>,
    counted: Option<Arc<Counted>>,
    /// Of a frame that a later one takes the place of: the key that both have, and what is left of this one then.
    replaced: Option<(u64, Arc<Vec<u8>>)>,
    /// Both ends count it, see [`Kept`].
    numbered: bool,
    /// It leaves once this much is released.
    held: u64,
}

impl Frame {
    /// A frame that stays whatever comes behind it.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Arc::new(bytes), counted: None, replaced: None, numbered: false, held: 0 }
    }

    /// The same, counted as long as it is in memory.
    #[must_use]
    pub fn counted(mut self, gauge: &Gauge) -> Self {
        gauge.0.fetch_add(self.len(), Ordering::Relaxed);
        self.counted = Some(Arc::new(Counted(gauge.clone(), self.len())));
        self
    }

    /// A frame that says nothing to whoever gets a later one with the same `key`. It waits until there is such a one;
    /// then
    /// `rest` stands in its place, if anything came between the two.
    pub fn replaced_by_later(bytes: Vec<u8>, key: u64, rest: Vec<u8>) -> Self {
        Self { replaced: Some((key, Arc::new(rest))), ..Self::new(bytes) }
    }

    /// The same, as one that is kept when it has left, until the other end says that it has come.
    #[must_use]
    pub fn numbered(self) -> Self {
        Self { numbered: true, ..self }
    }

    /// The same, as one that no later one takes the place of.
    #[must_use]
    pub fn staying(self) -> Self {
        Self { replaced: None, ..self }
    }

    /// The same, as one that leaves only when [`WriteQueue::release`] has been told this number or a larger one.
    #[must_use]
    pub fn held_until(self, number: u64) -> Self {
        Self { held: number, ..self }
    }

    /// The bytes that leave.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
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

/// Numbered frames that have left, and of which it is not known that they have come. They are counted from 1.
#[derive(Debug, Default)]
struct Kept {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// The number of the last frame in front of these.
    before: u64,
    /// Most bytes; of more, the oldest are let go.
    limit_bytes: usize,
}

impl Kept {
    fn push(&mut self, frame: Frame) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
        while self.bytes > self.limit_bytes {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(frame) = self.frames.pop_front() {
            self.bytes -= frame.len();
            self.before += 1;
        }
    }

    /// The number of the last frame that has left.
    fn last(&self) -> u64 {
        self.before + self.frames.len() as u64
    }
}

/// Whole frames in the order in which they leave, and how much of the first one has left already.
#[derive(Debug, Default)]
pub struct WriteQueue {
    frames: VecDeque<Frame>,
    kept: Kept,
    /// Bytes of the first frame that are written.
    written: usize,
    /// Bytes of all frames that are not written.
    waiting_bytes: usize,
    /// Bytes that have been written since the queue was made.
    left_bytes: u64,
    /// Frames that are held for longer wait, and with them all that stand behind.
    released: u64,
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
        // The rest is small, and is not counted.
        (old.bytes, old.counted) = (rest, None);
        // Nothing has come between the two, or there is no rest.
        if at + 1 == self.frames.len() || self.frames[at].is_empty() {
            self.waiting_bytes -= self.frames.remove(at).map_or(0, |frame| frame.len());
        }
    }

    /// Frames that are held until this number, or a smaller one, may leave from now on.
    pub fn release(&mut self, number: u64) {
        self.released = number;
    }

    /// Whether the next frame is held.
    pub fn is_held(&self) -> bool {
        self.frames.front().is_some_and(|frame| frame.held > self.released)
    }

    /// Puts a frame in front of all that are held, and behind the others.
    pub fn push_ahead(&mut self, frame: Frame) {
        let released = self.released;
        let at = self.frames.iter().position(|frame| frame.held > released).unwrap_or(self.frames.len());
        self.waiting_bytes += frame.len();
        self.frames.insert(at, frame);
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Bytes that have left.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Drops every frame of which nothing is written yet. At most the rest of one frame remains, so the stream stays
    /// well-formed.
    pub fn drop_unsent(&mut self) {
        let keep = usize::from(self.written > 0);
        self.frames.truncate(keep);
        self.waiting_bytes = self.frames.front().map_or(0, |frame| frame.len() - self.written);
    }

    /// Writes until the queue is empty, what is left is held, or the connection takes no more (`Ok` in all cases).
    /// `send` sends what goes out at once.
    pub fn write_to(&mut self, mut send: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<()> {
        while !self.frames.is_empty() && !self.is_held() {
            let mut slices = [IoSlice::new(&[]); FRAMES_PER_WRITE];
            let mut skip = self.written;
            let mut count = 0;
            let may_leave = self.frames.iter().take_while(|frame| frame.held <= self.released);
            for (slice, frame) in slices.iter_mut().zip(may_leave) {
                *slice = IoSlice::new(&frame.bytes[std::mem::take(&mut skip)..]);
                count += 1;
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

    /// This number of further bytes is written.
    fn has_left(&mut self, bytes: usize) {
        self.waiting_bytes -= bytes;
        self.written += bytes;
        self.left_bytes += bytes as u64;
        while let Some(frame) = self.frames.front().filter(|frame| frame.len() <= self.written) {
            self.written -= frame.len();
            if let Some(frame) = self.frames.pop_front().filter(|frame| frame.numbered) {
                self.kept.push(frame);
            }
        }
    }

    /// Numbered frames that have left are kept from now on, up to this number of bytes. Unless this is called, none is.
    pub fn keep(&mut self, limit_bytes: usize) {
        self.kept.limit_bytes = limit_bytes;
    }

    /// The other end has this number of the numbered frames: they need not be kept. `false`: fewer have left.
    pub fn acknowledge(&mut self, count: u64) -> bool {
        let is_possible = self.has_sent(count);
        while is_possible && self.kept.before < count {
            self.kept.drop_first();
        }
        is_possible
    }

    /// Nothing that has left is kept for another connection, up to now.
    pub fn let_go(&mut self) {
        while !self.kept.frames.is_empty() {
            self.kept.drop_first();
        }
    }

    /// Whether this number of numbered frames has left, over all connections.
    pub fn has_sent(&self, count: u64) -> bool {
        count <= self.kept.last()
    }

    /// Whether [`WriteQueue::rewind`] would succeed.
    pub fn can_rewind(&self, count: u64) -> bool {
        (self.kept.before..=self.kept.last()).contains(&count)
    }

    /// Another connection takes the place of the one before, by which this number of numbered frames has come: those
    /// behind them leave again. `false`: they are not kept any more, or have not left; then nothing changes.
    pub fn rewind(&mut self, count: u64) -> bool {
        if !self.can_rewind(count) {
            return false;
        }
        self.acknowledge(count);
        // A frame without a number belongs to the connection before.
        self.frames.retain(|frame| frame.numbered);
        let again = std::mem::take(&mut self.kept.frames);
        self.kept.bytes = 0;
        self.frames = again.into_iter().chain(self.frames.drain(..)).collect();
        self.written = 0;
        self.waiting_bytes = self.frames.iter().map(Frame::len).sum();
        true
    }

    /// The numbered frames of which it is not known that they have come, whether they have left or not, and the number
    /// of the last one in front of them.
    pub fn not_acknowledged(&self) -> (u64, Vec<&[u8]>) {
        let numbered = self.frames.iter().filter(|frame| frame.numbered);
        (self.kept.before, self.kept.frames.iter().chain(numbered).map(Frame::bytes).collect())
    }

    /// A queue that keeps up to this number of bytes, and whose next numbered frame follows this number.
    pub fn recalled(before: u64, limit_bytes: usize) -> Self {
        Self { kept: Kept { before, limit_bytes, ..Kept::default() }, ..Self::default() }
    }

    /// This frame left over a connection before. It is kept if it is numbered.
    pub fn push_left(&mut self, frame: Frame) {
        if frame.numbered {
            self.kept.push(frame);
        }
    }

    /// Puts a frame in front of everything else. Only while nothing of what waits has begun to leave.
    pub fn push_first(&mut self, frame: Frame) {
        debug_assert_eq!(self.written, 0, "in the middle of a frame");
        self.waiting_bytes += frame.len();
        self.frames.push_front(frame);
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
    fn a_gauge_counts_a_frame_once_and_until_nobody_has_it() {
        let (gauge, mut one, mut other) = (Gauge::default(), WriteQueue::default(), WriteQueue::default());
        let shared = frame("hello ").counted(&gauge);
        one.push(shared.clone());
        other.push(shared);
        one.push(Frame::replaced_by_later(vec![0; 100], 1, vec![0; 2]).counted(&gauge));
        assert_eq!(gauge.bytes(), 106);
        one.push(frame("x"));
        one.push(Frame::replaced_by_later(vec![0; 50], 1, vec![0; 2]).counted(&gauge));
        assert_eq!(gauge.bytes(), 56);
        let mut stream = Narrow { taken: Vec::new(), room: 1000 };
        one.write_to(|parts| stream.send(parts)).unwrap();
        assert_eq!((gauge.bytes(), one.left_bytes()), (6, 59));
        drop(other);
        assert_eq!(gauge.bytes(), 0);
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

    /// The bytes that leave if these are queued, and the first `begun` bytes have left when the last one comes. A word
    /// with a digit has the digit as its key, and leaves its first letter.
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

    /// A queue of numbered frames of which the first bytes have left.
    fn kept(words: &[&str], left: usize, limit_bytes: usize) -> WriteQueue {
        let (mut queue, mut stream) = (WriteQueue::default(), Narrow { taken: Vec::new(), room: left });
        queue.keep(limit_bytes);
        words.iter().for_each(|word| queue.push(frame(word).numbered()));
        queue.write_to(|parts| stream.send(parts)).unwrap();
        queue
    }

    fn rest(queue: &mut WriteQueue) -> String {
        let mut stream = Narrow { taken: Vec::new(), room: 1000 };
        queue.write_to(|parts| stream.send(parts)).unwrap();
        String::from_utf8(stream.taken).unwrap()
    }

    #[test]
    fn another_connection_goes_on_behind_what_has_come() {
        let words = ["aa", "bb", "cc", "dd"];
        for left in 0..=8 {
            for come in 0..=left / 2 {
                let mut queue = kept(&words, left, 1000);
                assert!(queue.rewind(come as u64), "{left} {come}");
                assert_eq!(queue.waiting_bytes(), 8 - 2 * come);
                queue.push_first(frame("!"));
                assert_eq!(rest(&mut queue), format!("!{}", words[come..].concat()));
                // And once more.
                assert!(queue.acknowledge(come as u64) && queue.rewind(4) && rest(&mut queue).is_empty());
            }
            let mut queue = kept(&words, left, 1000);
            assert!(!queue.rewind(left as u64 / 2 + 1) && !queue.acknowledge(left as u64 / 2 + 1));
        }
    }

    #[test]
    fn what_is_not_kept_does_not_leave_again() {
        let words = ["aa", "bb", "cc", "dd"];
        let mut queue = kept(&words, 8, 5);
        assert!(!queue.can_rewind(1) && queue.can_rewind(2));
        assert!(queue.acknowledge(3) && !queue.rewind(2) && queue.rewind(3));
        assert_eq!(rest(&mut queue), "dd");
        queue.let_go();
        assert!(!queue.can_rewind(3) && queue.can_rewind(4));
        // A frame without a number is of one connection.
        let mut queue = kept(&words, 2, 1000);
        queue.push_first(frame("x"));
        queue.push(frame("y"));
        assert!(queue.rewind(0));
        assert_eq!(rest(&mut queue), "aabbccdd");
    }

    #[test]
    fn what_is_held_leaves_when_it_is_released_and_not_before() {
        let mut queue = WriteQueue::default();
        let held = |word, number| frame(word).held_until(number);
        [frame("a"), held("b", 1), frame("c"), held("d", 2)].into_iter().for_each(|frame| queue.push(frame));
        assert!(
            !queue.is_held() && rest(&mut queue) == "a" && queue.is_held() && rest(&mut queue).is_empty()
        );
        queue.push_ahead(frame("x"));
        queue.push_ahead(frame("y"));
        assert_eq!((queue.waiting_bytes(), rest(&mut queue)), (5, "xy".to_owned()));
        queue.release(1);
        queue.push_ahead(frame("z"));
        assert_eq!(rest(&mut queue), "bcz");
        queue.release(2);
        queue.push_ahead(frame("!"));
        assert_eq!((rest(&mut queue), queue.is_held(), queue.waiting_bytes()), ("d!".to_owned(), false, 0));
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
