//! The tree hash against XXH3 itself and a scalar model; independence of level, threads, alignment and pieces.

use crate::common::{full, lcg_bytes};
use pccl_hash::tree::{
    FORMAT_TAG, Level1CountError, MEBIBYTE, ROOT_SEED, level1_count, level1_digests_parallel,
    mebibyte_digest, tree_hash_at,
};
use pccl_hash::{
    Digest128, SimdLevel, Tree, TreeHasher, differing_mebibytes, level1_digests, root_from_level1, tree_hash,
    tree_hash_parallel,
};
use pccl_testkit::random::Rng;
use proptest::prelude::*;
use twox_hash::XxHash3_128;

/// The definition.
fn model(data: &[u8]) -> Digest128 {
    let xxh = |seed: u64, bytes: &[u8]| XxHash3_128::oneshot_with_seed(seed, bytes).to_le_bytes();
    let leaves = if data.is_empty() { vec![data] } else { data.chunks(4096).collect() };
    let mut nodes: Vec<[u8; 16]> = leaves.into_iter().map(|leaf| xxh(0, leaf)).collect();
    let mut level = 0;
    loop {
        level += 1;
        nodes = nodes.chunks(256).map(|children| xxh(level, &children.concat())).collect();
        if nodes.len() == 1 {
            break;
        }
    }
    let mut root = nodes[0].to_vec();
    root.extend((data.len() as u64).to_le_bytes());
    root.extend(FORMAT_TAG.to_le_bytes());
    Digest128(xxh(ROOT_SEED, &root))
}

fn streamed(data: &[u8], mut piece_len: impl FnMut() -> usize) -> Digest128 {
    let mut hasher = TreeHasher::new();
    let mut rest = data;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(piece_len().min(rest.len()));
        hasher.update(piece);
        rest = after;
    }
    hasher.finish()
}

#[test]
fn every_length_to_4097() {
    let data = Rng(1).bytes(4097);
    for len in 0..=4097 {
        let expected = model(&data[..len]);
        assert_eq!(tree_hash(&data[..len]), expected, "{len} bytes");
        assert_eq!(streamed(&data[..len], || 1000), expected, "{len} bytes streamed");
    }
}

#[test]
fn lengths_around_whole_leaves_and_nodes() {
    let data = Rng(2).bytes(3 * MEBIBYTE + 4097);
    let marks = [2, 3, 15, 16, 17, 255, 256, 257, 511, 512, 513, 768].map(|leaves| leaves * 4096);
    for len in marks.into_iter().flat_map(|mark| [mark - 1, mark, mark + 1]) {
        let expected = model(&data[..len]);
        for level in SimdLevel::ALL {
            assert_eq!(tree_hash_at(level, &data[..len]), expected, "{len} bytes, {level:?}");
        }
        assert_eq!(streamed(&data[..len], || 70_001), expected, "{len} bytes streamed");
    }
}

/// 256 MiB + 1 byte is the first length with a third level above the data's digests of 1 MiB.
#[test]
fn three_levels() {
    let digests: Vec<Digest128> = (0..257u128).map(Digest128::from_u128).collect();
    let xxh = |seed: u64, bytes: &[u8]| XxHash3_128::oneshot_with_seed(seed, bytes).to_le_bytes();
    let bytes: Vec<[u8; 16]> = digests.iter().map(|digest| digest.0).collect();
    let level2 = [xxh(2, &bytes[..256].concat()), xxh(2, &bytes[256])];
    let length: u64 = (256 << 20) + 1;
    let mut root = xxh(3, &level2.concat()).to_vec();
    root.extend(length.to_le_bytes());
    root.extend(FORMAT_TAG.to_le_bytes());
    assert_eq!(root_from_level1(&digests, length), Ok(Digest128(xxh(ROOT_SEED, &root))));
}

#[test]
fn three_levels_streamed() {
    if !full() {
        return;
    }
    let data = Rng(3).bytes((257 << 20) + 4097);
    for len in [256 << 20, (256 << 20) + 1, data.len()] {
        let expected = model(&data[..len]);
        assert_eq!(tree_hash(&data[..len]), expected);
        assert_eq!(tree_hash_parallel(&data[..len], 3), expected);
        assert_eq!(streamed(&data[..len], || 5_000_000), expected);
    }
}

/// Values that must never change: a change would be a new format. Made with the reference implementation of XXH3
/// (xxHash 0.8.4) and a scalar model.
#[test]
fn fixed_values() {
    let data = lcg_bytes(MEBIBYTE + 1);
    let hex = |len: usize| tree_hash(&data[..len]).to_string();
    assert_eq!(hex(0), "d8eb1d2ead3596ae875dc4b4f6f67df3");
    assert_eq!(hex(1), "cf25aa1d1d4ab8cc9e4816960870337d");
    assert_eq!(hex(4096), "e98635ef9998c10f2bf8578119215809");
    assert_eq!(hex(MEBIBYTE), "1d6961814cff50af7cf72b212f223b93");
    assert_eq!(hex(MEBIBYTE + 1), "af36b4b73f0ab5a8d9be59b261de7d3a");
}

#[test]
fn threads_do_not_matter() {
    let data = Rng(4).bytes(if full() { 100 << 20 } else { 33 << 20 });
    for len in [0, 1, 8 * MEBIBYTE, data.len() - 1, data.len()] {
        let expected = tree_hash(&data[..len]);
        let digests = level1_digests(&data[..len]);
        for threads in 0..=16 {
            assert_eq!(tree_hash_parallel(&data[..len], threads), expected, "{len} bytes, {threads} threads");
        }
        assert_eq!(level1_digests_parallel(&data[..len], 3), digests);
    }
}

#[test]
fn alignment_does_not_matter() {
    let data = Rng(5).bytes(3 * 4096 + 17);
    let expected = tree_hash(&data);
    for shift in 0..64 {
        let mut moved = vec![0; shift];
        moved.extend_from_slice(&data);
        for level in SimdLevel::ALL {
            assert_eq!(tree_hash_at(level, &moved[shift..]), expected, "shift {shift}, {level:?}");
        }
        assert_eq!(streamed(&moved[shift..], || 4096), expected, "shift {shift}");
    }
}

#[test]
fn pieces_do_not_matter() {
    let mut rng = Rng(6);
    let data = rng.bytes(2 * MEBIBYTE + 70_000);
    let expected = tree_hash(&data);
    for limit in [5000, 70_000, 600_000, 3 * MEBIBYTE] {
        assert_eq!(streamed(&data, || rng.index(limit) + 1), expected, "pieces up to {limit} bytes");
    }
    for first in [1, 4095, 4096, MEBIBYTE, MEBIBYTE + 1] {
        let mut first = Some(first);
        assert_eq!(streamed(&data, || first.take().unwrap_or(usize::MAX)), expected);
    }
}

#[test]
fn a_hasher_goes_on_after_finish() {
    let data = Rng(7).bytes(20_000);
    let mut hasher = TreeHasher::default();
    assert_eq!(hasher.finish(), tree_hash(&[]));
    for (i, piece) in data.chunks(777).enumerate() {
        hasher.update(&[]);
        hasher.update(piece);
        assert_eq!(hasher.finish(), tree_hash(&data[..(777 * (i + 1)).min(data.len())]));
    }
}

#[test]
fn root_from_level1_checks_the_count() {
    let digests = [Digest128::default(); 3];
    let mebibyte = MEBIBYTE as u64;
    assert!(root_from_level1(&digests, 2 * mebibyte + 1).is_ok());
    assert!(root_from_level1(&digests, 3 * mebibyte).is_ok());
    let error = root_from_level1(&digests, 3 * mebibyte + 1).unwrap_err();
    assert_eq!(error, Level1CountError { length_bytes: 3 * mebibyte + 1, expected: 4, found: 3 });
    assert_eq!(error.to_string(), "3145729 bytes have 4 digests of one MiB each, the list has 3");
    assert!(root_from_level1(&[], 0).is_err());
    assert!(root_from_level1(&digests, u64::MAX).is_err());
    assert_eq!([0, 1, mebibyte, mebibyte + 1, u64::MAX].map(level1_count), [1, 1, 1, 2, 1 << 44]);
}

/// A peer finds what differs from the digests alone, and can check each fetched piece.
#[test]
fn repair_names_exactly_what_was_touched() {
    let mut rng = Rng(8);
    let mebibytes = if full() { 256 } else { 24 };
    let original = rng.bytes(mebibytes * MEBIBYTE - 4000);
    let digests = level1_digests(&original);
    assert_eq!(root_from_level1(&digests, original.len() as u64), Ok(tree_hash(&original)));
    let mut damaged = original.clone();
    let mut touched = std::collections::BTreeSet::new();
    for _ in 0..mebibytes / 3 {
        let at = rng.index(original.len());
        damaged[at] = !original[at];
        touched.insert(at / MEBIBYTE);
    }
    let found = differing_mebibytes(&level1_digests(&damaged), &digests);
    assert!(found.iter().eq(&touched));
    for i in found {
        let range = i * MEBIBYTE..((i + 1) * MEBIBYTE).min(original.len());
        assert_ne!(mebibyte_digest(&damaged[range.clone()]), digests[i]);
        damaged[range.clone()].copy_from_slice(&original[range.clone()]);
        assert_eq!(mebibyte_digest(&damaged[range]), digests[i]);
    }
    assert_eq!(tree_hash(&damaged), tree_hash(&original));
}

#[test]
fn lists_of_different_length_differ_in_the_excess() {
    let digests: Vec<Digest128> = (0..5).map(Digest128::from_u128).collect();
    assert_eq!(differing_mebibytes(&digests, &digests), []);
    assert_eq!(differing_mebibytes(&digests, &digests[..3]), [3, 4]);
    assert_eq!(differing_mebibytes(&[], &digests[..2]), [0, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_data_equals_the_model(seed: u64, len in 0usize..300_000, piece in 1usize..50_000, threads in 0usize..5) {
        let data = Rng(seed).bytes(len);
        let expected = model(&data);
        prop_assert_eq!(tree_hash(&data), expected);
        prop_assert_eq!(tree_hash_parallel(&data, threads), expected);
        prop_assert_eq!(streamed(&data, || piece), expected);
    }
}

/// From the top down: each list folds to the digest above it, and the highest to the root.
#[test]
fn the_levels_of_a_tree_lead_to_its_root() {
    use pccl_hash::tree::{level_count, top_level};
    for tree in [Tree::Plain, Tree::keyed([7; 32])] {
        for (count, top) in [(1, 1), (2, 1), (255, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 3)] {
            let length = count * MEBIBYTE as u64 - 5;
            let digests: Vec<_> = (0..count).map(|i| Digest128::from_u128(u128::from(i) * 7 + 1)).collect();
            let mut list = digests.clone();
            for level in 1..top {
                assert_eq!(level_count(length, level), list.len() as u64);
                let above = tree.parent_digests(&list, level + 1);
                let last = list.chunks(256).next_back().expect("not empty");
                assert_eq!(above.last(), Some(&tree.parent_digest(last, level + 1)));
                list = above;
            }
            assert_eq!((top_level(length), level_count(length, top)), (top, list.len() as u64));
            assert_eq!(tree.root_from_top(&list, length), tree.root_from_level1(&digests, length));
            let mut wrong = list.clone();
            wrong[0] = Digest128::default();
            assert_ne!(tree.root_from_top(&wrong, length), tree.root_from_top(&list, length));
            list.push(Digest128::default());
            assert!(tree.root_from_top(&list, length).is_err() && tree.root_from_top(&[], length).is_err());
        }
    }
    assert_eq!((top_level(0), level_count(0, 1)), (1, 1));
}

/// The definition of the tree with a key.
fn keyed_model(key: &[u8; 32], data: &[u8]) -> Digest128 {
    let node = |level: u64, bytes: &[u8]| -> [u8; 16] {
        let input = [bytes, &level.to_le_bytes()].concat();
        blake3::keyed_hash(key, &input).as_bytes()[..16].try_into().expect("16 bytes")
    };
    let pieces = if data.is_empty() { vec![data] } else { data.chunks(1 << 20).collect() };
    let mut nodes: Vec<[u8; 16]> = pieces.into_iter().map(|piece| node(1, piece)).collect();
    let mut level = 1;
    while nodes.len() > 1 {
        level += 1;
        nodes = nodes.chunks(256).map(|children| node(level, &children.concat())).collect();
    }
    let mut root = nodes[0].to_vec();
    root.extend((data.len() as u64).to_le_bytes());
    root.extend(FORMAT_TAG.to_le_bytes());
    Digest128(node(ROOT_SEED, &root))
}

#[test]
fn the_tree_with_a_key_is_as_defined() {
    let data = Rng(9).bytes(9 * MEBIBYTE + 5);
    let key = [0x5a; 32];
    let tree = Tree::keyed(key);
    for len in [0, 1, 1023, 1024, 1025, 4096, MEBIBYTE - 1, MEBIBYTE, MEBIBYTE + 1, data.len()] {
        let expected = keyed_model(&key, &data[..len]);
        for threads in [1, 2, 3] {
            assert_eq!(tree.hash(&data[..len], threads), expected, "{len} bytes, {threads} threads");
        }
        let digests = tree.level1_digests_parallel(&data[..len], 2);
        let pieces: Vec<_> = data[..len].chunks(MEBIBYTE).map(|piece| tree.mebibyte_digest(piece)).collect();
        assert!(len == 0 || digests == pieces);
        assert_eq!(tree.root_from_level1(&digests, len as u64), Ok(expected));
    }
}

#[test]
fn another_key_is_another_tree() {
    let data = Rng(10).bytes(3 * MEBIBYTE);
    let (one, other) = (Tree::keyed([1; 32]), Tree::keyed([2; 32]));
    assert_ne!(one, other);
    assert_ne!(one.hash(&data, 1), other.hash(&data, 1));
    assert_ne!(one.hash(&data, 1), Tree::Plain.hash(&data, 1));
    assert_eq!(Tree::Plain.hash(&data, 2), tree_hash(&data));
    assert_eq!(format!("{one:?}"), "Keyed(TreeKey(not shown))");
    // A node of one level is none of another one.
    let children = [Digest128::from_u128(5); 4];
    assert_ne!(one.parent_digest(&children, 2), one.parent_digest(&children, 3));
}
