//! Copies that go by the caches, at every alignment and around every length where something changes.

use pccl_quant::copy_streaming;

const GUARD: u8 = 0xA5;

#[test]
fn any_length_at_any_address() {
    let source: Vec<u8> = (0..9000_u32).map(|index| (index.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    let lengths = [0, 1, 63, 64, 65, 4095, 4096, 4097, 4100, 4159, 4160, 8191, 8192];
    for (target_offset, source_offset) in (0..64).flat_map(|a| [0, 1, 8, 15, 63].map(|b| (a, b))) {
        for length in lengths {
            let mut target = vec![GUARD; length + 128];
            let source = &source[source_offset..source_offset + length];
            copy_streaming(&mut target[target_offset..target_offset + length], source);
            let (before, rest) = target.split_at(target_offset);
            let (copy, after) = rest.split_at(length);
            assert!(copy == source, "{length} bytes, offsets {target_offset}, {source_offset}");
            assert!(before.iter().chain(after).all(|byte| *byte == GUARD), "bytes beside the target changed");
        }
    }
}

#[test]
#[should_panic(expected = "equally long")]
fn lengths_that_differ() {
    copy_streaming(&mut [0; 3], &[0; 4]);
}
