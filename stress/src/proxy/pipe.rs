//! One direction of a connection through the proxy: bytes on their way, and what is done to them. No I/O, no clock.

use std::{collections::VecDeque, ops::Range};

/// Bytes that are on their way at most; then nothing more is taken in.
const CAPACITY_BYTES: usize = 256 << 10;
/// The same for a slow connection: what is held would otherwise take long to pass when the fault is over.
const SLOW_CAPACITY_BYTES: usize = 16 << 10;

/// A rule and when it ends.
#[derive(Debug, Clone, Copy)]
struct Rule {
    value: u64,
    until_us: u64,
}

#[derive(Debug)]
struct Part {
    due_us: u64,
    bytes: Vec<u8>,
    passed: usize,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    parts: VecDeque<Part>,
    held: usize,
    /// Microseconds that each byte is held back.
    delay: Option<Rule>,
    /// Bytes per second.
    rate: Option<Rule>,
    /// When the last of the bytes before is through.
    busy_until_us: u64,
    /// How many bytes still pass before one is damaged.
    flip_in: Option<u64>,
}

impl Pipe {
    pub(super) fn delay(&mut self, delay_us: u64, until_us: u64) {
        self.delay = Some(Rule { value: delay_us, until_us });
    }

    pub(super) fn throttle(&mut self, bytes_per_s: u64, until_us: u64) {
        self.rate = Some(Rule { value: bytes_per_s.max(1), until_us });
    }

    /// Inverts one bit of the byte that comes after `in_bytes` more.
    pub(super) fn flip(&mut self, in_bytes: u64) {
        self.flip_in = Some(in_bytes);
    }

    /// Ends all rules; what is held may pass at once.
    pub(super) fn heal(&mut self) {
        (self.delay, self.rate, self.flip_in) = (None, None, None);
        self.busy_until_us = 0;
        self.parts.iter_mut().for_each(|part| part.due_us = 0);
    }

    /// How many bytes can be taken in.
    pub(super) fn room(&self, now_us: u64) -> usize {
        let slow = self.rate.is_some_and(|rate| now_us < rate.until_us);
        let capacity = if slow { SLOW_CAPACITY_BYTES } else { CAPACITY_BYTES };
        capacity.saturating_sub(self.held)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Takes bytes in.
    pub(super) fn push(&mut self, now_us: u64, mut bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.damage(&mut bytes);
        let holds = |rule: Option<Rule>| rule.filter(|rule| now_us < rule.until_us).map(|rule| rule.value);
        let mut due_us = now_us;
        if let Some(rate) = holds(self.rate) {
            due_us = due_us.max(self.busy_until_us) + bytes.len() as u64 * 1_000_000 / rate;
            self.busy_until_us = due_us;
        }
        due_us += holds(self.delay).unwrap_or(0);
        // Nothing overtakes.
        due_us = due_us.max(self.parts.back().map_or(0, |part| part.due_us));
        self.held += bytes.len();
        self.parts.push_back(Part { due_us, bytes, passed: 0 });
    }

    fn damage(&mut self, bytes: &mut [u8]) {
        let Some(in_bytes) = self.flip_in else { return };
        match usize::try_from(in_bytes).ok().and_then(|index| bytes.get_mut(index)) {
            Some(byte) => {
                *byte ^= 1 << (in_bytes % 8);
                self.flip_in = None;
            }
            None => self.flip_in = Some(in_bytes - bytes.len() as u64),
        }
    }

    /// The next bytes that may pass now.
    pub(super) fn ready(&self, now_us: u64) -> Option<&[u8]> {
        let part = self.parts.front().filter(|part| part.due_us <= now_us)?;
        part.bytes.get(Range { start: part.passed, end: part.bytes.len() })
    }

    /// When there is something to do without anything having happened.
    pub(super) fn due_us(&self) -> Option<u64> {
        self.parts.front().map(|part| part.due_us)
    }

    /// `count` of the ready bytes have passed.
    pub(super) fn pass(&mut self, count: usize) {
        self.held -= count;
        if let Some(part) = self.parts.front_mut() {
            part.passed += count;
            if part.passed >= part.bytes.len() {
                self.parts.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that has passed by this time.
    fn drain(pipe: &mut Pipe, now_us: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(bytes) = pipe.ready(now_us) {
            // In pieces, as sockets take them.
            let piece = bytes[..bytes.len().min(3)].to_vec();
            pipe.pass(piece.len());
            out.extend(piece);
        }
        out
    }

    #[test]
    fn bytes_pass_at_once_and_in_order() {
        let mut pipe = Pipe::default();
        pipe.push(5, b"hello ".to_vec());
        pipe.push(6, b"world".to_vec());
        assert_eq!(drain(&mut pipe, 6), b"hello world");
        assert!(pipe.is_empty() && pipe.due_us().is_none());
    }

    #[test]
    fn a_delay_holds_bytes_back_until_it_ends_and_nothing_overtakes() {
        let mut pipe = Pipe::default();
        pipe.delay(100, 50);
        pipe.push(10, vec![1]);
        pipe.push(60, vec![2]);
        assert_eq!(pipe.due_us(), Some(110));
        assert_eq!(drain(&mut pipe, 109), [0u8; 0]);
        assert_eq!(drain(&mut pipe, 110), [1, 2]);
    }

    #[test]
    fn a_rate_spreads_bytes_over_time() {
        let mut pipe = Pipe::default();
        pipe.throttle(1000, 10_000_000);
        assert_eq!(pipe.room(0), SLOW_CAPACITY_BYTES);
        pipe.push(0, vec![1; 500]);
        pipe.push(0, vec![2; 500]);
        assert_eq!(drain(&mut pipe, 499_999).len(), 0);
        assert_eq!(drain(&mut pipe, 500_000).len(), 500);
        assert_eq!(drain(&mut pipe, 999_999).len(), 0);
        assert_eq!(drain(&mut pipe, 1_000_000).len(), 500);
    }

    #[test]
    fn exactly_one_bit_is_damaged_wherever_the_byte_arrives() {
        for at in [0, 2, 3, 7] {
            let mut pipe = Pipe::default();
            pipe.flip(at);
            pipe.push(0, vec![0; 3]);
            pipe.push(0, vec![0; 5]);
            pipe.push(0, vec![0; 50]);
            let bytes = drain(&mut pipe, 0);
            assert_eq!(bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            assert_ne!(bytes[at as usize], 0);
        }
    }

    #[test]
    fn a_full_pipe_takes_nothing_and_a_healed_one_lets_go() {
        let mut pipe = Pipe::default();
        pipe.delay(1_000_000, 1_000_000);
        pipe.push(0, vec![7; CAPACITY_BYTES]);
        assert_eq!((pipe.room(0), pipe.ready(0)), (0, None));
        pipe.heal();
        assert_eq!(drain(&mut pipe, 0).len(), CAPACITY_BYTES);
        assert_eq!(pipe.room(0), CAPACITY_BYTES);
    }
}
