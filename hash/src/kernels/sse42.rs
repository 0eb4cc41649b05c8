//! SSE4.2: the CRC-32C instruction.
//!
//! The instruction takes 8 bytes per cycle but has a latency of 3 cycles, so three streams run at a time and are
//! joined with a table that advances a CRC register over as many zero bytes as a stream is long. Source of the
//! method: Mark Adler's crc32c.c (2013).

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

use crate::crc32c::{ShiftTable, shift, shift_table};

const LONG_BYTES: usize = 8192;
const SHORT_BYTES: usize = 256;

static LONG_SHIFT: ShiftTable = shift_table(LONG_BYTES);
static SHORT_SHIFT: ShiftTable = shift_table(SHORT_BYTES);

/// Advances the CRC register over `data`.
#[target_feature(enable = "sse4.2")]
pub(super) fn crc32c_update(register: u32, data: &[u8]) -> u32 {
    let (register, rest) = three_streams::<LONG_BYTES>(register, data, &LONG_SHIFT);
    let (register, rest) = three_streams::<SHORT_BYTES>(register, rest, &SHORT_SHIFT);
    let (words, tail) = rest.as_chunks::<8>();
    let register =
        words.iter().fold(u64::from(register), |r, word| _mm_crc32_u64(r, u64::from_le_bytes(*word)));
    tail.iter().fold(register as u32, |r, byte| _mm_crc32_u8(r, *byte))
}

/// Takes in as many triples of `N` bytes as there are; returns the register and what is left.
#[inline]
#[target_feature(enable = "sse4.2")]
fn three_streams<'a, const N: usize>(register: u32, data: &'a [u8], table: &ShiftTable) -> (u32, &'a [u8]) {
    let mut register = register;
    let mut triples = data.chunks_exact(3 * N);
    for triple in &mut triples {
        let (first, rest) = triple.split_at(N);
        let (second, third) = rest.split_at(N);
        let mut registers = [u64::from(register), 0, 0];
        let words =
            first.as_chunks::<8>().0.iter().zip(second.as_chunks::<8>().0).zip(third.as_chunks::<8>().0);
        for ((a, b), c) in words {
            registers[0] = _mm_crc32_u64(registers[0], u64::from_le_bytes(*a));
            registers[1] = _mm_crc32_u64(registers[1], u64::from_le_bytes(*b));
            registers[2] = _mm_crc32_u64(registers[2], u64::from_le_bytes(*c));
        }
        let [a, b, c] = registers.map(|r| r as u32);
        register = shift(table, shift(table, a) ^ b) ^ c;
    }
    (register, triples.remainder())
}
