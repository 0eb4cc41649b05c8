//! The checksum of frames against the twox-hash crate, in any pieces, at every level; and what damage it notices.

use crate::common::lcg_bytes;
use pccl_hash::{Checksum, SimdLevel};
use pccl_testkit::random::Rng;
use proptest::prelude::*;
use twox_hash::XxHash3_64;

fn checksum(level: SimdLevel, pieces: &[&[u8]]) -> u32 {
    let mut checksum = Checksum::at(level);
    pieces.iter().for_each(|piece| checksum.append(piece));
    checksum.value()
}

#[test]
fn it_is_the_lower_half_of_xxh3_64_at_every_length_and_level() {
    let data = lcg_bytes(5 * 1024 + 7);
    let lengths =
        (0..=300).chain(1000..=1100).chain(2040..=2060).chain(4090..=4100).chain([5 * 1024, 5 * 1024 + 7]);
    for length in lengths {
        let data = &data[..length];
        let expected = XxHash3_64::oneshot(data) as u32;
        for level in SimdLevel::ALL {
            assert_eq!(checksum(level, &[data]), expected, "{length} bytes, {level:?}");
            let (a, b) = data.split_at(length / 3);
            assert_eq!(checksum(level, &[a, b]), expected, "{length} bytes in two pieces, {level:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pieces_make_no_difference(
        length in 0usize..20_000, cuts in proptest::collection::vec(0usize..20_000, 0..12), seed: u64,
        level in proptest::sample::select(&SimdLevel::ALL[..]),
    ) {
        let data = Rng(seed).bytes(length);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(length)).chain([0, length]).collect();
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &data[ends[0]..ends[1]]).collect();
        prop_assert_eq!(checksum(level, &pieces), XxHash3_64::oneshot(&data) as u32);
    }
}

#[test]
fn it_can_begin_anew_and_go_on_after_it_was_asked() {
    let data = lcg_bytes(3000);
    let mut checksum = Checksum::new();
    checksum.append(&data[..1500]);
    assert_eq!(checksum.value(), XxHash3_64::oneshot(&data[..1500]) as u32);
    checksum.append(&data[1500..]);
    assert_eq!(checksum.value(), XxHash3_64::oneshot(&data) as u32);
    checksum.restart();
    assert_eq!(checksum.value(), XxHash3_64::oneshot(b"") as u32);
    checksum.append(b"abc");
    assert_eq!(checksum.value(), XxHash3_64::oneshot(b"abc") as u32);
}

/// Of a frame of zeros and one of noise: every single bit, every run of up to four bytes here and there, and every
/// exchange of two neighbouring words.
#[test]
fn damage_of_few_bits_and_exchanged_words_are_noticed() {
    let of = |data: &[u8]| checksum(SimdLevel::best(), &[data]);
    for mut data in [vec![0; 4096 + 100], Rng(5).bytes(4096 + 100)] {
        let whole = of(&data);
        for bit in 0..8 * data.len() {
            data[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&data), whole, "bit {bit}");
            data[bit / 8] ^= 1 << (bit % 8);
        }
        for start in (0..data.len() - 4).step_by(3) {
            for (len, damage) in [(2, 0xFF), (3, 0x81), (4, 0x55)] {
                data[start..start + len].iter_mut().for_each(|byte| *byte ^= damage);
                assert_ne!(of(&data), whole, "{len} bytes from {start} on");
                data[start..start + len].iter_mut().for_each(|byte| *byte ^= damage);
            }
        }
        for (size, start) in
            [8, 64, 1024].into_iter().flat_map(|size| (0..3).map(move |at| (size, at * size)))
        {
            let mut other = data.clone();
            let (left, right) = other[start..start + 2 * size].split_at_mut(size);
            left.swap_with_slice(right);
            assert!(other == data || of(&other) != whole, "{size} bytes at {start} are exchanged");
        }
    }
}
