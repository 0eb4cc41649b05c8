//! Speed of the hashes next to that of a plain read of the same memory, measured in turns.
//!
//! Run with `cargo bench -p pccl-hash`. GB/s are 10^9 bytes per second; "ratio" is the median over the rounds of
//! (speed of the hash / speed of the read in the same round), which holds up on a machine that others use too.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use pccl_hash::tree::{level1_digests_parallel, tree_hash_at};
use pccl_hash::{Checksum, SimdLevel, Tree, TreeHasher, crc32c, simplehash, tree_hash, tree_hash_parallel};

/// Something to measure: takes data and a number of threads.
type Work = fn(&[u8], usize);

const SERIAL: &[(&str, Work)] = &[
    ("plain read", |data, _| {
        black_box(read(data));
    }),
    ("tree", |data, _| {
        black_box(tree_hash(data));
    }),
    ("tree, streamed by 1 MB", |data, _| {
        let mut hasher = TreeHasher::new();
        data.chunks(1_000_000).for_each(|piece| hasher.update(piece));
        black_box(hasher.finish());
    }),
    ("tree, SSE4.2 level", |data, _| {
        black_box(tree_hash_at(SimdLevel::Sse42, data));
    }),
    ("tree, portable", |data, _| {
        black_box(tree_hash_at(SimdLevel::Portable, data));
    }),
    ("twox-hash per 4 KiB", |data, _| {
        data.chunks(4096).for_each(|leaf| {
            black_box(twox_hash::XxHash3_128::oneshot(leaf));
        });
    }),
    ("simplehash", |data, _| {
        black_box(simplehash(data));
    }),
    ("tree with a key", |data, _| {
        black_box(Tree::keyed([7; 32]).hash(data, 1));
    }),
    ("crc32c", |data, _| {
        black_box(crc32c(data));
    }),
    ("checksum of frames", |data, _| {
        let mut checksum = Checksum::new();
        checksum.append(data);
        black_box(checksum.value());
    }),
];

const PARALLEL: &[(&str, Work)] = &[
    ("plain read", |data, threads| {
        thread::scope(|scope| {
            let (mine, others) = data.split_at(data.len() / threads);
            for part in others.chunks(others.len().div_ceil(threads - 1)) {
                scope.spawn(move || black_box(read(part)));
            }
            black_box(read(mine));
        });
    }),
    ("tree", |data, threads| {
        black_box(tree_hash_parallel(data, threads));
    }),
    ("tree with a key", |data, threads| {
        black_box(Tree::keyed([7; 32]).hash(data, threads));
    }),
    ("tree, digests of 1 MiB", |data, threads| {
        black_box(level1_digests_parallel(data, threads));
    }),
];

/// Sums the u64 words in 32 accumulators, which vectorises: nothing reads memory with less work.
fn read(data: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in data.as_chunks::<256>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn gigabytes_per_second(work: Work, data: &[u8], threads: usize, calls: usize) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        work(black_box(data), threads);
    }
    (data.len() * calls) as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures every entry of `works` once per round, the first one being the reference, and prints a table.
fn compare(title: &str, works: &[(&str, Work)], data: &[u8], threads: usize, calls: usize, rounds: usize) {
    let mut speeds = vec![Vec::new(); works.len()];
    for _ in 0..rounds {
        for ((_, work), speeds) in works.iter().zip(&mut speeds) {
            speeds.push(gigabytes_per_second(*work, data, threads, calls));
        }
    }
    println!("{title:<36} {:>6} {:>7} {:>6}", "best", "median", "ratio");
    let reference = speeds[0].clone();
    for ((name, _), mut speeds) in works.iter().zip(speeds) {
        let mut ratios: Vec<f64> = speeds.iter().zip(&reference).map(|(speed, read)| speed / read).collect();
        let best = speeds.iter().copied().fold(0.0, f64::max);
        println!("  {name:<34} {best:>6.1} {:>7.1} {:>6.2}", median(&mut speeds), median(&mut ratios));
    }
}

fn main() {
    let large: Vec<u8> = (0..256u32 << 20).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let small = &large[..512 << 10];
    println!("CPU level: {:?}; speeds in GB/s", SimdLevel::best());
    compare("256 MiB, 1 thread", SERIAL, &large, 1, 1, 15);
    compare("256 MiB, 2 threads", PARALLEL, &large, 2, 1, 25);
    compare("512 KiB (in cache), 1 thread", SERIAL, small, 1, 200, 15);
}
