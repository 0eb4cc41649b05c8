//! CRC-32C (Castagnoli): reflected polynomial 0x82f63b78, register inverted at both ends.

use crate::{SimdLevel, kernels};

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The CRC-32C of `data`; 0 for empty data.
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c_append(0, data)
}

/// The CRC-32C of some data followed by `data`, where `crc` is the CRC-32C of the former (0 if that is empty).
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    crc32c_append_at(SimdLevel::best(), crc, data)
}

/// [`crc32c_append`] with the kernel of `level`.
pub fn crc32c_append_at(level: SimdLevel, crc: u32, data: &[u8]) -> u32 {
    !kernels::crc32c_update(level, !crc, data).unwrap_or_else(|| portable_update(!crc, data))
}

/// `TABLES[k][b]`: the register after byte `b` and `k` zero bytes, from register 0.
static TABLES: [[u32; 256]; 8] = slicing_tables();

const fn slicing_tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = (register >> 1) ^ if register & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
}

/// Eight bytes at a time. Source of the method: Kounavis and Berry, "A systematic approach to building high
/// performance software-based CRC generators" (2005), "slicing by 8".
fn portable_update(register: u32, data: &[u8]) -> u32 {
    let (words, tail) = data.as_chunks::<8>();
    let register = words.iter().fold(register, |register, word| {
        let mixed = (u64::from_le_bytes(*word) ^ u64::from(register)).to_le_bytes();
        (0..8).fold(0, |sum, i| sum ^ TABLES[7 - i][usize::from(mixed[i])])
    });
    tail.iter().fold(register, |register, byte| {
        (register >> 8) ^ TABLES[0][usize::from(register.to_le_bytes()[0] ^ byte)]
    })
}

/// What a CRC register becomes over a fixed number of zero bytes, per byte of the register.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only the interleaved kernels join streams")
)]
pub(crate) type ShiftTable = [[u32; 256]; 4];

/// Advances the register over the zero bytes that `table` stands for.
#[inline]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only the interleaved kernels join streams")
)]
pub(crate) fn shift(table: &ShiftTable, register: u32) -> u32 {
    let bytes = register.to_le_bytes();
    (0..4).fold(0, |sum, i| sum ^ table[i][usize::from(bytes[i])])
}

/// The table for `zero_bytes` zero bytes, a power of two.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only the interleaved kernels join streams")
)]
pub(crate) const fn shift_table(zero_bytes: usize) -> ShiftTable {
    // Column n of the matrix over GF(2) is the image of the register's bit n. One zero bit first, then squared.
    let mut matrix = [0u32; 32];
    matrix[0] = POLYNOMIAL;
    let mut n = 1;
    while n < 32 {
        matrix[n] = 1 << (n - 1);
        n += 1;
    }
    let mut bits = 1;
    while bits < 8 * zero_bytes {
        let mut squared = [0; 32];
        let mut n = 0;
        while n < 32 {
            squared[n] = apply(&matrix, matrix[n]);
            n += 1;
        }
        matrix = squared;
        bits *= 2;
    }
    let mut table = [[0; 256]; 4];
    let mut i = 0;
    while i < 4 {
        let mut byte = 0;
        while byte < 256 {
            table[i][byte] = apply(&matrix, (byte as u32) << (8 * i));
            byte += 1;
        }
        i += 1;
    }
    table
}

const fn apply(matrix: &[u32; 32], mut register: u32) -> u32 {
    let mut sum = 0;
    while register != 0 {
        sum ^= matrix[register.trailing_zeros() as usize];
        register &= register - 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{portable_update, shift, shift_table};

    #[test]
    fn shift_equals_zero_bytes() {
        for zero_bytes in [1, 2, 256, 8192] {
            let table = shift_table(zero_bytes);
            for register in [0, 1, 0x8000_0000, 0x1234_5678, u32::MAX] {
                assert_eq!(shift(&table, register), portable_update(register, &vec![0; zero_bytes]));
            }
        }
    }
}
