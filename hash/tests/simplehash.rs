//! simplehash against golden values and a scalar model.

use crate::common::lcg_bytes;
use pccl_hash::SimdLevel;
use pccl_hash::simplehash::{simplehash, simplehash_at};
use pccl_testkit::random::Rng;

/// Length in bytes of LCG data, hash.
const GOLDEN: &[(usize, u32)] = &[
    (0, 0),
    (1, 344_386_053),
    (2, 1_641_605_637),
    (3, 1_717_103_109),
    (4, 3_765_247_898),
    (5, 3_557_450_325),
    (7, 2_371_510_869),
    (8, 2_234_200_760),
    (15, 2_301_296_661),
    (16, 567_823_145),
    (17, 2_732_276_277),
    (25, 3_651_434_421),
    (32, 447_659_820),
    (64, 4_035_182_042),
    (4096, 3_023_453_573),
    (4097, 2_324_126_023),
    (4112, 4_066_585_697),
    (8176, 1_202_774_691),
    (8192, 831_370_886),
    (65_536, 1_338_424_665),
    (100_003, 671_344_090),
    (1_048_576, 1_004_485_211),
    (1_048_589, 2_613_139_201),
    (3_932_160, 1_021_571_515),
    (3_932_176, 528_289_493),
    (3_936_256, 2_055_659_079),
    (7_864_320, 1_111_425_008),
    (10_000_019, 3_068_598_071),
];

#[test]
fn golden_values() {
    let data = lcg_bytes(10_000_019);
    for &(len, hash) in GOLDEN {
        for level in SimdLevel::ALL {
            assert_eq!(simplehash_at(level, &data[..len]), hash, "{len} bytes, {level:?}");
        }
    }
}

#[test]
fn golden_value_of_155_megabytes() {
    assert_eq!(simplehash(&lcg_bytes(154_533_888)), 3_391_090_508);
}

#[test]
fn constant_data() {
    assert_eq!(simplehash(&[0]), 738_653_317);
    assert_eq!(simplehash(&[0; 16]), 2_884_949_318);
    assert_eq!(simplehash(&[0; 4096]), 4_089_848_220);
    assert_eq!(simplehash(&[0xff; 16]), 1_926_333_831);
    assert_eq!(simplehash(&[0xff; 4096]), 1_666_360_884);
}

/// The definition, word by word.
fn model(data: &[u8]) -> u32 {
    let mix = |a: u32, b: u32| (a ^ b.wrapping_add(0x9e37_79b1)).rotate_left(7).wrapping_mul(0x85eb_ca6b);
    let warp = |x: &[u32]| {
        let mut x = x.to_vec();
        for offset in [16, 8, 4, 2, 1] {
            for i in 0..offset {
                x[i] = mix(x[i], x[i + offset]);
            }
        }
        x[0]
    };
    let reduce = |x: &[u32]| {
        let mut sums: Vec<u32> = x.chunks(32).map(warp).collect();
        sums.resize(32, 0);
        warp(&sums)
    };
    let words: Vec<u32> = data.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
    let vectors = words.len() / 4;
    let grid = vectors.div_ceil(256).min(960);
    let mut hash = 0;
    if grid > 0 {
        let per = vectors.div_ceil(grid);
        let mut slots = vec![0; 256];
        for block in 0..grid {
            let mut lanes = vec![0; 256];
            for i in block * per..((block + 1) * per).min(vectors) {
                for word in &words[4 * i..4 * i + 4] {
                    let lane = &mut lanes[(i - block * per) % 256];
                    *lane = mix(*lane, *word);
                }
            }
            slots[block % 256] = mix(slots[block % 256], reduce(&lanes));
        }
        hash = reduce(&slots);
    }
    hash = words[4 * vectors..].iter().fold(hash, |h, w| mix(h, *w));
    let rest = &data[4 * words.len()..];
    if !rest.is_empty() {
        hash = mix(hash, rest.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
    }
    hash
}

#[test]
fn equals_the_model() {
    let data = Rng(1).bytes((16 << 20) + 5);
    let big = 960 * 4096;
    let mut lens: Vec<usize> = (0..=70).collect();
    lens.extend(4080..=4112);
    lens.extend([big - 16, big - 1, big, big + 1, big + 16, 2 * big + 48, data.len()]);
    for len in lens {
        let expected = model(&data[..len]);
        for level in SimdLevel::ALL {
            assert_eq!(simplehash_at(level, &data[..len]), expected, "{len} bytes, {level:?}");
        }
    }
}

#[test]
fn any_alignment() {
    let data = Rng(2).bytes(10_000);
    let expected = simplehash(&data);
    for shift in 0..64 {
        let mut moved = vec![0; shift];
        moved.extend_from_slice(&data);
        assert_eq!(simplehash(&moved[shift..]), expected);
    }
}
