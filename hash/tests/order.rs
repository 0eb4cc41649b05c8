//! The tree hash sees every change of order. The inputs that it tells apart are equal in content.

use crate::common::full;
use pccl_hash::tree::MEBIBYTE;
use pccl_hash::{Digest128, level1_digests, root_from_level1, tree_hash};
use pccl_testkit::random::Rng;

/// Swaps the units `i` and `j` of `unit` bytes.
fn swap(data: &mut [u8], unit: usize, i: usize, j: usize) {
    let (low, high) = (i.min(j) * unit, i.max(j) * unit);
    let (before, after) = data.split_at_mut(high);
    before[low..low + unit].swap_with_slice(&mut after[..unit]);
}

fn assert_swap_seen(data: &mut [u8], expected: Digest128, unit: usize, i: usize, j: usize) {
    swap(data, unit, i, j);
    assert_ne!(tree_hash(data), expected, "units {i} and {j} of {unit} bytes");
    swap(data, unit, i, j);
}

#[test]
fn any_two_words_of_a_leaf_and_its_neighbour() {
    let mut rng = Rng(1);
    let mut data = rng.bytes(2 * 4096);
    let expected = tree_hash(&data);
    for unit in [2, 4, 8] {
        let units = data.len() / unit;
        for i in 1..units {
            assert_swap_seen(&mut data, expected, unit, i - 1, i);
            // Words that meet the same accumulator of XXH3.
            assert_swap_seen(&mut data, expected, unit, i, (i + 64 / unit) % units);
            assert_swap_seen(&mut data, expected, unit, i, (i + 1024 / unit) % units);
            assert_swap_seen(&mut data, expected, unit, i, (i + 4096 / unit) % units);
        }
    }
    let trials = if full() { 1_000_000 } else { 5000 };
    for _ in 0..trials {
        let (i, j) = (rng.index(1024), rng.index(1024));
        if i != j {
            assert_swap_seen(&mut data, expected, 8, i, j);
        }
    }
}

#[test]
fn stripes_blocks_leaves() {
    let mut rng = Rng(2);
    let mut data = rng.bytes(40 * 4096 + 100);
    let expected = tree_hash(&data);
    for unit in [64, 1024, 4096] {
        let units = data.len() / unit;
        for i in 1..units.min(if full() { units } else { 200 }) {
            assert_swap_seen(&mut data, expected, unit, i - 1, i);
            let other = (i + 1 + rng.index(units - 1)) % units;
            assert_swap_seen(&mut data, expected, unit, i, other);
        }
    }
}

#[test]
fn mebibytes_and_halves() {
    let mut data = Rng(3).bytes(4 * MEBIBYTE);
    let expected = tree_hash(&data);
    for i in 0..4 {
        for j in 0..i {
            assert_swap_seen(&mut data, expected, MEBIBYTE, i, j);
        }
    }
    assert_swap_seen(&mut data, expected, 2 * MEBIBYTE, 0, 1);
}

/// Nodes of level 2, each above 256 digests of level 1, without the 512 MiB of data.
#[test]
fn nodes_of_level_2() {
    let digests: Vec<Digest128> = (0..512u128).map(Digest128::from_u128).collect();
    let expected = root_from_level1(&digests, 512 << 20).unwrap();
    let mut swapped = digests.clone();
    swapped.rotate_left(256);
    assert_ne!(root_from_level1(&swapped, 512 << 20).unwrap(), expected);
    for i in 1..512 {
        let mut swapped = digests.clone();
        swapped.swap(i - 1, i);
        assert_ne!(root_from_level1(&swapped, 512 << 20).unwrap(), expected);
    }
}

#[test]
fn rotation_and_reversal() {
    for len in [32, 4096, 3 * 4096, MEBIBYTE + 8192] {
        let data = Rng(len as u64).bytes(len);
        let expected = tree_hash(&data);
        for element in [1, 2, 4, 8] {
            let mut changed = data.clone();
            changed.rotate_left(element);
            assert_ne!(tree_hash(&changed), expected, "{len} bytes rotated by {element}");
            changed.rotate_right(2 * element);
            assert_ne!(tree_hash(&changed), expected, "{len} bytes rotated by -{element}");
            let reversed = data.chunks_exact(element).rev().collect::<Vec<_>>().concat();
            assert_ne!(tree_hash(&reversed), expected, "{len} bytes reversed by {element}");
        }
    }
}

/// Equal blocks have equal digests: the control that the tests above see order and not just any write.
#[test]
fn permuting_equal_blocks_changes_nothing() {
    let block = Rng(4).bytes(MEBIBYTE);
    let mut data = block.repeat(3);
    let expected = tree_hash(&data);
    swap(&mut data, MEBIBYTE, 0, 2);
    assert_eq!(tree_hash(&data), expected);
    let digests = level1_digests(&data);
    assert!(digests.iter().all(|digest| *digest == digests[0]));
}
