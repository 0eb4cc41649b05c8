//! What an event loop has to write to one client.

use std::{collections::VecDeque, io};

/// Whole frames in the order in which they leave, and how much of the first one has left already.
#[derive(Debug, Default)]
pub struct WriteQueue {
    frames: VecDeque<Vec<u8>>,
    /// Bytes of the first frame that are written.
    written: usize,
    /// Bytes of all frames that are not written.
    waiting_bytes: usize,
}

impl WriteQueue {
    /// Puts `frame` behind everything else.
    pub fn push(&mut self, frame: Vec<u8>) {
        if !frame.is_empty() {
            self.waiting_bytes += frame.len();
            self.frames.push_back(frame);
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
    pub fn write_to(&mut self, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        while let Some(frame) = self.frames.front() {
            match send(&frame[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.written += n;
                    self.waiting_bytes -= n;
                    if self.written == frame.len() {
                        self.frames.pop_front();
                        self.written = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
        fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let n = bytes.len().min(3).min(self.room);
            self.room -= n;
            self.taken.extend_from_slice(&bytes[..n]);
            Ok(n)
        }
    }

    #[test]
    fn partial_writes_go_on_where_they_stopped() {
        let mut queue = WriteQueue::default();
        queue.push(b"hello ".to_vec());
        queue.push(b"world".to_vec());
        let mut stream = Narrow { taken: Vec::new(), room: 4 };
        queue.write_to(|bytes| stream.send(bytes)).unwrap();
        assert_eq!((stream.taken.as_slice(), queue.waiting_bytes()), (b"hell".as_slice(), 7));
        stream.room = 100;
        queue.write_to(|bytes| stream.send(bytes)).unwrap();
        assert_eq!(stream.taken, b"hello world");
        assert!(queue.is_empty());
        assert_eq!(queue.waiting_bytes(), 0);
    }

    #[test]
    fn a_frame_that_has_begun_to_leave_is_never_dropped() {
        let mut queue = WriteQueue::default();
        queue.push(b"first".to_vec());
        queue.push(b"second".to_vec());
        let mut stream = Narrow { taken: Vec::new(), room: 2 };
        queue.write_to(|bytes| stream.send(bytes)).unwrap();
        queue.drop_unsent();
        assert_eq!(queue.waiting_bytes(), 3);
        queue.push(b"!".to_vec());
        stream.room = 100;
        queue.write_to(|bytes| stream.send(bytes)).unwrap();
        assert_eq!(stream.taken, b"first!");
    }

    #[test]
    fn frames_that_have_not_begun_to_leave_are_dropped() {
        let mut queue = WriteQueue::default();
        queue.push(b"first".to_vec());
        queue.drop_unsent();
        assert!(queue.is_empty());
        assert_eq!(queue.waiting_bytes(), 0);
    }
}
