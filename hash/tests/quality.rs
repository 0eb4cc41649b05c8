//! Does the tree hash tell data apart as well as 128 random bits would? simplehash serves as the control: it
//! is known to fail some of these tests, which shows that they bite.

use std::collections::HashSet;

use crate::common::full;
use pccl_hash::tree::{MEBIBYTE, mebibyte_digest};
use pccl_hash::{level1_digests, root_from_level1, simplehash, tree_hash};
use pccl_testkit::random::Rng;

#[test]
fn every_single_bit_of_small_data() {
    let mut data = Rng(1).bytes(if full() { 64 << 10 } else { 16 << 10 });
    let mut seen = HashSet::from([tree_hash(&data)]);
    for bit in 0..8 * data.len() {
        data[bit / 8] ^= 1 << (bit % 8);
        assert!(seen.insert(tree_hash(&data)), "bit {bit}");
        data[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn random_single_bits_of_large_data() {
    let mut rng = Rng(2);
    let (mebibytes, flips) = if full() { (64, 1000) } else { (16, 200) };
    let mut data = rng.bytes(mebibytes * MEBIBYTE);
    let length = data.len() as u64;
    let digests = level1_digests(&data);
    let mut seen = HashSet::from([tree_hash(&data)]);
    for flip in 0..flips {
        let at = rng.index(data.len());
        let mask = 1 << rng.below(8);
        data[at] ^= mask;
        // Only the path from the touched MiB to the root is new.
        let mut changed = digests.clone();
        let piece = at / MEBIBYTE;
        changed[piece] = mebibyte_digest(&data[piece * MEBIBYTE..(piece + 1) * MEBIBYTE]);
        let root = root_from_level1(&changed, length).unwrap();
        if flip == 0 {
            assert_eq!(root, tree_hash(&data));
        }
        data[at] ^= mask;
        assert!(seen.insert(root), "byte {at}");
    }
}

/// How often flipping each of `bits` flips each of the `WIDTH` output bits, over `trials` random inputs.
fn flip_counts<const WIDTH: usize>(
    len: usize,
    bits: &[usize],
    trials: usize,
    hash: impl Fn(&[u8]) -> u128,
) -> Vec<[u32; WIDTH]> {
    let mut rng = Rng(3);
    let mut counts = vec![[0; WIDTH]; bits.len()];
    for _ in 0..trials {
        let mut data = rng.bytes(len);
        let base = hash(&data);
        for (bit, counts) in bits.iter().zip(&mut counts) {
            data[bit / 8] ^= 1 << (bit % 8);
            let changed = base ^ hash(&data);
            data[bit / 8] ^= 1 << (bit % 8);
            for (out, count) in counts.iter_mut().enumerate() {
                *count += (changed >> out) as u32 & 1;
            }
        }
    }
    counts
}

/// The distances from half of the trials, in standard deviations.
fn deviations<const WIDTH: usize>(counts: &[[u32; WIDTH]], trials: usize) -> Vec<f64> {
    let sigma = (trials as f64).sqrt() / 2.0;
    counts
        .as_flattened()
        .iter()
        .map(|count| (f64::from(*count) - trials as f64 / 2.0).abs() / sigma)
        .collect()
}

#[test]
fn avalanche() {
    let trials = if full() { 2000 } else { 1000 };
    // A word at the start, one at the end of the first leaf, one in the last whole leaf, and the short last leaf.
    let len = 2 * 4096 + 8;
    let bits: Vec<usize> =
        [0, 4088, 4096 + 2000, 2 * 4096].iter().flat_map(|at| 8 * at..8 * at + 64).collect();
    let counts = flip_counts::<128>(len, &bits, trials, |data| tree_hash(data).to_u128());
    let deviations = deviations(&counts, trials);
    // Of these 32768 values 2 are expected beyond 4 sigma, and 0.00006 beyond 6.
    let beyond_4 = deviations.iter().filter(|deviation| **deviation > 4.0).count();
    assert!(beyond_4 <= 10, "{beyond_4} beyond 4 sigma");
    let worst = deviations.into_iter().fold(0.0, f64::max);
    assert!(worst < 6.0, "worst {worst} sigma");
}

#[test]
fn avalanche_test_finds_the_weak_tail_of_simplehash() {
    let trials = 400;
    let bits: Vec<usize> = (8 * 16..8 * 20).collect();
    let counts = flip_counts::<32>(20, &bits, trials, |data| u128::from(simplehash(data)));
    let never = counts.as_flattened().iter().filter(|count| **count == 0).count();
    let always = counts.as_flattened().iter().filter(|count| **count == trials as u32).count();
    // Of 1024 pairs; with 128 random bits there would be none.
    assert!(never > 200 && always > 20, "never {never}, always {always}");
}

/// Calls `visit` with all keys of `len` bytes that have exactly two bits set.
fn two_bit_keys(len: usize, mut visit: impl FnMut(&[u8])) {
    let mut key = vec![0u8; len];
    for i in 0..8 * len {
        for j in 0..i {
            key[i / 8] ^= 1 << (i % 8);
            key[j / 8] ^= 1 << (j % 8);
            visit(&key);
            key[i / 8] ^= 1 << (i % 8);
            key[j / 8] ^= 1 << (j % 8);
        }
    }
}

/// How many values are equal to an earlier one.
fn collisions<T: Ord>(mut values: Vec<T>) -> usize {
    values.sort_unstable();
    values.windows(2).filter(|pair| pair[0] == pair[1]).count()
}

/// Whether all four quarters of the digests collide as often as random 32-bit numbers, within 5 sigma, and the
/// digests not at all.
fn assert_like_random(digests: Vec<u128>) {
    let expected = (digests.len() as f64).powi(2) / 2.0 / 2f64.powi(32);
    for shift in [0, 32, 64, 96] {
        let found = collisions(digests.iter().map(|digest| (digest >> shift) as u32).collect());
        let distance = (found as f64 - expected).abs();
        assert!(distance <= 5.0 * expected.sqrt() + 1.0, "{found} collisions, {expected:.0} expected");
    }
    assert_eq!(collisions(digests), 0);
}

#[test]
fn two_bit_keys_collide_like_random_numbers() {
    let mut digests = Vec::with_capacity(2_096_128);
    two_bit_keys(256, |key| digests.push(tree_hash(key).to_u128()));
    assert_like_random(digests);
}

#[test]
fn two_bit_keys_find_the_weakness_of_simplehash() {
    let mut hashes = Vec::with_capacity(2_096_128);
    two_bit_keys(256, |key| hashes.push(simplehash(key)));
    // Of random numbers 512 would collide. The exact count is that of the original implementation.
    assert_eq!(collisions(hashes), 132_942);
}

#[test]
fn zero_runs() {
    let zeros = vec![0; 8192];
    let digests: Vec<u128> = (0..=zeros.len()).map(|len| tree_hash(&zeros[..len]).to_u128()).collect();
    assert_like_random(digests);
    let long: HashSet<_> = (1..20)
        .map(|i| tree_hash(&vec![0; i << 16]))
        .chain((1..4).map(|i| tree_hash(&vec![0; i << 20])))
        .collect();
    // 16 << 16 is 1 << 20.
    assert_eq!(long.len(), 19 + 3 - 1);
}

#[test]
fn repeated_bytes() {
    let lens = [1, 2, 3, 4, 8, 15, 16, 17, 64, 240, 241, 1024, 4095, 4096, 4097, 65_536];
    let digests =
        lens.iter().flat_map(|&len| (0..=255u8).map(move |byte| tree_hash(&vec![byte; len]).to_u128()));
    assert_like_random(digests.collect());
    let periods: Vec<u128> = (1..=300)
        .map(|period: usize| {
            tree_hash(&(0..20_000).map(|i| (i % period) as u8).collect::<Vec<_>>()).to_u128()
        })
        .collect();
    assert_eq!(collisions(periods), 0);
}

#[test]
fn counters() {
    let count = if full() { 4_000_000 } else { 1_000_000u64 };
    assert_like_random((0..count).map(|i| tree_hash(&i.to_le_bytes()).to_u128()).collect());
    assert_like_random((0..count as u32).map(|i| tree_hash(&i.to_be_bytes()).to_u128()).collect());
    // Leaves full of the same counter.
    let leaf = |i: u64| tree_hash(i.to_le_bytes().repeat(513).as_slice()).to_u128();
    assert_like_random((0..count / 40).map(leaf).collect());
}

#[test]
fn appended_zeros() {
    let mut rng = Rng(5);
    for len in [0, 1, 3, 16, 17, 100, 4090, 4096, 10_000] {
        let mut data = rng.bytes(len);
        let mut seen = HashSet::new();
        for _ in 0..300 {
            assert!(seen.insert(tree_hash(&data)), "{len} bytes and {} zeros", data.len() - len);
            data.push(0);
        }
    }
    let mut data = rng.bytes(17);
    data.resize(20, 0);
    assert!((17..20).all(|len| simplehash(&data[..len]) == simplehash(&data)), "control");
}

/// Bytes are what counts: numbers that compare equal, or are both no number, hash apart.
#[test]
fn float_encodings_differ() {
    let hash = |bits: u32| tree_hash(&bits.to_le_bytes().repeat(1000));
    assert_ne!(hash(0.0f32.to_bits()), hash((-0.0f32).to_bits()));
    assert_ne!(hash(0x7fc0_0000), hash(0x7fc0_0001));
    assert_ne!(hash(0x7fc0_0000), hash(0xffc0_0000));
}
