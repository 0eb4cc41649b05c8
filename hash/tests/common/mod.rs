//! Data for the tests.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::env;

/// The byte sequence of the golden values: the low byte of a linear congruential generator.
pub(crate) fn lcg_bytes(len: usize) -> Vec<u8> {
    let mut state = 42u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A small deterministic generator (SplitMix64, Steele, Lea and Flood 2014).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}

/// Whether the heavy parameters were asked for: `PCCL_TEST_FULL=1`.
pub(crate) fn full() -> bool {
    env::var("PCCL_TEST_FULL").is_ok_and(|value| value == "1")
}
