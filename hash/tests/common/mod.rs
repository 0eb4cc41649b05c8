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

/// Whether the heavy parameters were asked for: `PCCL_TEST_FULL=1`.
pub(crate) fn full() -> bool {
    env::var("PCCL_TEST_FULL").is_ok_and(|value| value == "1")
}
