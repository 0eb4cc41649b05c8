//! The reduce kernels next to a plain addition that moves the same bytes, in turns within one run.
//!
//! Run with `cargo bench -p pccl-quant --bench reduce`; words after `--` pick the lines that contain all of them. GB/s
//! are 10^9 bytes read and written per second. A ratio is the median over the rounds of the speed to that of the plain
//! loop in the same round: folds in place and out of place to `own += received` and `out = own + received` over u64, a
//! fold that saves to both that and a copy, a division to a loop that adds a constant. Turns are short, so that the
//! ratios hold up on a machine that others use too.
//!
//! Without the argument `--bench`, which cargo passes only when asked for benchmarks, it runs once on little data.

use std::{hint::black_box, time::Instant};

use pccl_quant::{DataType, Kernels, Level, ReduceOp};

/// Each part of each round treats a slice of its own, which is no longer in any cache if there are enough of them.
struct Sizes {
    slice_bytes: usize,
    slices: usize,
    calls: usize,
    rounds: usize,
}

/// As a float about 0.75 or 1.8 in each type: folded some hundred times it neither becomes subnormal, which processors
/// multiply slowly, nor NaN.
const PATTERN: u8 = 0x3F;

fn words(bytes: &[u8]) -> &[[u8; 8]] {
    bytes.as_chunks().0
}

fn words_mut(bytes: &mut [u8]) -> &mut [[u8; 8]] {
    bytes.as_chunks_mut().0
}

fn sum(a: [u8; 8], b: [u8; 8]) -> [u8; 8] {
    u64::from_ne_bytes(a).wrapping_add(u64::from_ne_bytes(b)).to_ne_bytes()
}

/// Reads two, writes one of them.
fn plain_in_place(own: &mut [u8], received: &[u8]) {
    words_mut(own).iter_mut().zip(words(received)).for_each(|(own, received)| *own = sum(*own, *received));
}

/// Reads two, writes a third.
fn plain_into(out: &mut [u8], own: &[u8], received: &[u8]) {
    for (out, (own, received)) in words_mut(out).iter_mut().zip(words(own).iter().zip(words(received))) {
        *out = sum(*own, *received);
    }
}

/// Reads one and writes it.
fn plain_update(data: &mut [u8]) {
    let one = black_box([1; 8]);
    words_mut(data).iter_mut().for_each(|word| *word = sum(*word, one));
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Parts that are measured in turns: a name, the bytes moved per byte of data, and the plain loop that it is compared
/// with.
const PARTS: [(&str, f64, usize); 8] = [
    ("plain in place", 3.0, 0),
    ("plain into", 3.0, 1),
    ("plain update", 2.0, 2),
    ("plain in place, then copied", 5.0, 3),
    ("in place", 3.0, 0),
    ("into", 3.0, 1),
    ("saving", 5.0, 3),
    ("average", 2.0, 2),
];

struct Memory {
    own: Vec<u8>,
    received: Vec<u8>,
    other: Vec<u8>,
}

fn compare(data_type: DataType, op: ReduceOp, kernels: Kernels, sizes: &Sizes, memory: &mut Memory) {
    let bytes = sizes.slice_bytes;
    memory.own.fill(PATTERN);
    let mut turn = 0;
    let mut rates = Vec::new();
    for _ in 0..sizes.rounds {
        rates.push(PARTS.map(|(name, moved, _)| {
            let range = (turn % sizes.slices) * bytes..(turn % sizes.slices + 1) * bytes;
            turn += 1;
            let (own, other) = (&mut memory.own[range.clone()], &mut memory.other[range.clone()]);
            let received = &memory.received[range];
            let start = Instant::now();
            for _ in 0..sizes.calls {
                let (own, other, received) =
                    (black_box(&mut *own), black_box(&mut *other), black_box(received));
                match name {
                    "plain in place" => plain_in_place(own, received),
                    "plain into" => plain_into(other, own, received),
                    "plain update" => plain_update(own),
                    "plain in place, then copied" => {
                        other.copy_from_slice(own);
                        plain_in_place(own, received);
                    }
                    "in place" => kernels.fold_in_place(data_type, op, own, received).expect("folds"),
                    "into" => kernels.fold_into(data_type, op, other, own, received).expect("folds"),
                    "saving" => {
                        kernels.fold_in_place_saving(data_type, op, own, received, other).expect("folds");
                    }
                    _ => kernels.finish_average(data_type, own, black_box(3)).expect("divides"),
                }
            }
            let seconds = start.elapsed().as_secs_f64();
            // The plain additions leave any bits, with which floats may be slow.
            if name.starts_with("plain") {
                own.fill(PATTERN);
            }
            moved * (bytes * sizes.calls) as f64 / seconds / 1e9
        }));
    }
    print!("{data_type:4} {op:4} {:6}", format!("{:?}", kernels.level()));
    for (part, (_, _, plain)) in PARTS.iter().enumerate().skip(4) {
        let speed = median(rates.iter().map(|rate| rate[part]));
        print!(" |{speed:6.1} {:5.2}", median(rates.iter().map(|rate| rate[part] / rate[*plain])));
    }
    println!();
}

fn table(sizes: &Sizes, wanted: &[String]) {
    let Sizes { slice_bytes, slices, rounds, .. } = sizes;
    println!("{slices} slices of {slice_bytes} bytes, {rounds} rounds; GB/s, then the ratio");
    println!("{:16} |{:>12} |{:>12} |{:>12} |{:>12}", "", "in place", "into", "saving", "average");
    let bytes = slice_bytes * slices;
    let mut memory =
        Memory { own: vec![PATTERN; bytes], received: vec![PATTERN; bytes], other: vec![0; bytes] };
    for data_type in DataType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
            for kernels in Level::ALL.into_iter().filter_map(Kernels::at) {
                let name = format!("{data_type} {op} {:?}", kernels.level());
                if wanted.iter().all(|word| name.contains(word.as_str())) {
                    compare(data_type, op, kernels, sizes, &mut memory);
                }
            }
        }
    }
}

fn main() {
    let (options, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    if options.iter().any(|option| option == "--bench") {
        table(&Sizes { slice_bytes: 1 << 20, slices: 72, calls: 1, rounds: 31 }, &words);
        table(&Sizes { slice_bytes: 64 << 10, slices: 1, calls: 10, rounds: 21 }, &words);
    } else {
        table(&Sizes { slice_bytes: 4 << 10, slices: 2, calls: 1, rounds: 1 }, &words);
    }
}
