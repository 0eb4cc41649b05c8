//! CRC-32C against known values and a bitwise model.

use crate::common::lcg_bytes;
use pccl_hash::crc32c::{crc32c, crc32c_append};
use pccl_testkit::random::Rng;
use proptest::prelude::*;

fn model(data: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for byte in data {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = (register >> 1) ^ (0x82f6_3b78 & (register & 1).wrapping_neg());
        }
    }
    !register
}

#[test]
fn known_values() {
    let data = lcg_bytes(1_048_589);
    assert_eq!(crc32c(b""), 0);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(&data[..1]), 0x22e0_eb2a);
    assert_eq!(crc32c(&data[..16]), 0xd058_311e);
    assert_eq!(crc32c(&data[..4096]), 0x475b_7e40);
    assert_eq!(crc32c(&data), 0xff33_563d);
    // RFC 3720, appendix B.4.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
}

#[test]
fn equals_the_model_around_the_kernels_block_sizes() {
    let data = Rng(3).bytes(3 * 8192 + 3 * 256 + 40);
    let around = |n: usize| n.saturating_sub(9)..=n + 9;
    for len in around(0).chain(around(256)).chain(around(768)).chain(around(1536)).chain(around(3 * 8192)) {
        for offset in [0, 1, 3] {
            let piece = &data[offset..offset + len];
            let expected = model(piece);
            assert_eq!(crc32c(piece), expected, "{len} bytes at {offset}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn appending_equals_one_call(data in proptest::collection::vec(any::<u8>(), 0..60_000), cut in 0.0..=1.0f64) {
        let cut = (data.len() as f64 * cut) as usize;
        prop_assert_eq!(crc32c_append(crc32c(&data[..cut]), &data[cut..]), crc32c(&data));
    }
}
