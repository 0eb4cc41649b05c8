//! The kernels, run by the stand-in, against the hashes of the host.

use crate::common::{Filled, memory, noise};
use pccl_hash::tree::{MEBIBYTE, level1_digests};
use pccl_testkit::standin::{Count, Standin};

/// Every length up to a bit more than a stripe of each kind of XXH3, and around all that is a boundary of the tree.
fn lengths() -> Vec<usize> {
    let mut lengths: Vec<usize> = (0..=520).collect();
    for boundary in [1024, 4096, 8192, 15 * 4096, 16 * 4096, MEBIBYTE, 2 * MEBIBYTE] {
        for near in [0, 1, 15, 16, 17, 63, 64, 65, 240, 241] {
            lengths.extend([boundary - near, boundary + near]);
        }
    }
    lengths
}

#[test]
fn the_tree_is_that_of_the_host_for_every_length() {
    let standin = Standin::load().expect("the stand-in");
    for (seed, length) in (0..).zip(lengths()) {
        let content = noise(length, seed);
        let filled = Filled::new(&standin, &content, 0);
        let digests = filled.memory.level1_digests().expect("digests");
        assert_eq!(digests, level1_digests(&content), "{length} bytes");
    }
    assert!(standin.count(Count::Kernels) > 0, "the kernels have run");
}

#[test]
fn the_tree_does_not_depend_on_alignment() {
    let standin = Standin::load().expect("the stand-in");
    for length in [5, 200, 5000, MEBIBYTE + 4097] {
        let content = noise(length, 3);
        for skew in 1..17 {
            let filled = Filled::new(&standin, &content, skew);
            assert_eq!(filled.memory.level1_digests().expect("digests"), level1_digests(&content), "{skew}");
        }
    }
}

#[test]
fn many_tensors_are_hashed_by_one_launch() {
    let standin = Standin::load().expect("the stand-in");
    let contents: Vec<Vec<u8>> = [0, 1, 4096, 3 * MEBIBYTE + 5, 17, MEBIBYTE, 70_000]
        .into_iter()
        .map(|it| noise(it, it as u64))
        .collect();
    let filled: Vec<Filled> = contents.iter().map(|it| Filled::new(&standin, it, 0)).collect();
    let memories: Vec<_> = filled.iter().map(|it| &it.memory).collect();
    let before = standin.count(Count::Kernels);
    let digests = pccl_cuda::DeviceMemory::level1_digests_of(&memories[1..]).expect("digests");
    assert_eq!(standin.count(Count::Kernels) - before, 1);
    let all = pccl_cuda::DeviceMemory::level1_digests_of(&memories).expect("digests");
    let expected: Vec<_> = contents.iter().map(|it| level1_digests(it)).collect();
    assert_eq!(digests, expected[1..]);
    assert_eq!(all, expected);
    let some = filled[3].memory.mebibyte_digests(&[3, 1]).expect("digests");
    assert_eq!(some, [expected[3][3], expected[3][1]]);
}

#[test]
fn addresses_beyond_32_bits_are_hashed() {
    // Only the last pages of this memory are ever touched: the launch begins near the end.
    const BYTES: usize = (80 << 30) + 12_345;
    let standin = Standin::load().expect("the stand-in");
    let address = standin.device_memory(BYTES);
    let whole = memory(address, BYTES, 0);
    let last = BYTES / MEBIBYTE;
    let from = last - 2;
    let content = noise(BYTES - from * MEBIBYTE, 5);
    standin.put(address + (from * MEBIBYTE) as u64, &content);
    let digests = whole.level1_digests_from(from as u64).expect("digests");
    assert_eq!(digests, level1_digests(&content));
    drop(whole);
    standin.free(address);
}

#[test]
fn simplehash_is_that_of_the_host() {
    let standin = Standin::load().expect("the stand-in");
    let boundaries = [4096, 8192].into_iter().flat_map(|at| at - 17..at + 18);
    let all_blocks = [960 * 4096 - 1, 960 * 4096, 960 * 4096 + 16, (5 << 20) + 5];
    for length in (0..70).chain(boundaries).chain(all_blocks) {
        let content = noise(length, length as u64);
        for skew in [0, 3] {
            let filled = Filled::new(&standin, &content, skew);
            let hash = filled.memory.simplehash().expect("a hash");
            assert_eq!(hash, pccl_hash::simplehash(&content), "{length} bytes, {skew} off");
        }
    }
}
