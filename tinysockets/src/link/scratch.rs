//! A connection's own receive buffer: bytes read ahead, and pieces to be folded.

/// Pieces to be folded begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// A fixed buffer with the bytes received and not consumed yet in `start..end`. Positions count from its first aligned
/// byte.
pub(super) struct Scratch {
    memory: Vec<u8>,
    /// Where the first aligned byte lies. The memory does not move, as its length never changes.
    origin: usize,
    start: usize,
    end: usize,
}

impl Scratch {
    /// An empty buffer for `capacity` bytes.
    pub(super) fn new(capacity: usize) -> Self {
        let memory = vec![0; capacity + ALIGNMENT];
        let origin = memory.as_ptr().align_offset(ALIGNMENT);
        // `align_offset` may decline to answer, in theory; then nothing is aligned, which costs speed only.
        let origin = if origin < ALIGNMENT { origin } else { 0 };
        Self { memory, origin, start: 0, end: 0 }
    }

    /// The bytes received and not consumed yet.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.memory[self.origin + self.start..self.origin + self.end]
    }

    /// Forgets the first `count` of them; there must be at least `count`.
    pub(super) fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "only what was received can be consumed");
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Moves the buffered bytes so that they begin at an aligned address.
    pub(super) fn align(&mut self) {
        if self.start != 0 {
            let from = self.origin + self.start;
            self.memory.copy_within(from..self.origin + self.end, self.origin);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Appends what `receive` puts into the free memory it is given, at most `at_most` bytes. Makes room by moving the
    /// buffered bytes if less than that is free behind them. There must be less buffered than fits.
    pub(super) fn fill<E>(
        &mut self,
        at_most: usize,
        receive: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let capacity = self.memory.len() - ALIGNMENT;
        if capacity - self.end < at_most {
            self.align();
        }
        let room = (capacity - self.end).min(at_most);
        assert!(room > 0, "a full buffer would look like the end of the stream");
        let free = self.origin + self.end;
        let count = receive(&mut self.memory[free..free + room])?;
        assert!(count <= room, "a receive stays within its buffer");
        self.end += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn aligned_bytes_begin_at_a_multiple_of_the_alignment() {
        let mut scratch = Scratch::new(256);
        scratch.fill(100, |place| Ok::<_, Infallible>(place.len())).expect("infallible");
        scratch.consume(7);
        scratch.align();
        assert_eq!(scratch.buffered().as_ptr() as usize % ALIGNMENT, 0);
        assert_eq!(scratch.buffered().len(), 93);
    }

    proptest! {
        /// Whatever the sequence of calls, bytes come out once each and in order.
        #[test]
        fn behaves_like_a_queue(calls in prop::collection::vec((0u8..3, 1usize..200), 1..60)) {
            let mut scratch = Scratch::new(128);
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (call, amount) in calls {
                match call {
                    0 if model.len() < 128 => {
                        scratch.fill(amount, |place| {
                            for byte in place.iter_mut() {
                                *byte = next;
                                model.push_back(next);
                                next = next.wrapping_add(1);
                            }
                            Ok::<_, Infallible>(place.len())
                        }).expect("infallible");
                    }
                    1 => {
                        let count = amount.min(model.len());
                        scratch.consume(count);
                        model.drain(..count);
                    }
                    _ => scratch.align(),
                }
                prop_assert!(scratch.buffered().iter().eq(&model));
            }
        }
    }
}
