//! The kernels against a plain loop that moves the same bytes (reads two, writes one), in turns within one run, so that
//! the ratios mean something on a noisy machine. `cargo bench -p pccl-quant --bench reduce`.
//!
//! Without the argument `--bench`, which cargo passes only when asked for benchmarks, it runs once on little data.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use pccl_quant::{DataType, Kernels, Level, ReduceOp};

/// Reads two, writes one, and hardly computes.
fn plain_loop(own: &mut [u8], received: &[u8]) {
    for (own, received) in own.as_chunks_mut::<8>().0.iter_mut().zip(received.as_chunks::<8>().0) {
        *own = (u64::from_ne_bytes(*own) ^ u64::from_ne_bytes(*received)).to_ne_bytes();
    }
}

/// Best time of one call; noise only ever adds.
fn best(times: &[Duration]) -> f64 {
    times.iter().min().map_or(f64::NAN, Duration::as_secs_f64)
}

struct Sizes {
    bytes: usize,
    calls: usize,
    turns: usize,
}

fn compare(sizes: &Sizes) {
    let Sizes { bytes, calls, turns } = *sizes;
    println!("{bytes} bytes, best of {turns} turns; time relative to a plain loop over the same bytes");
    let levels: Vec<Kernels> = Level::ALL.into_iter().filter_map(Kernels::at).collect();
    // As a float about 0.75 or 1.8 in each type: folded some hundred times it neither becomes subnormal, which
    // processors multiply slowly, nor NaN.
    const PATTERN: u8 = 0x3F;
    let received = vec![PATTERN; bytes];
    let mut own = vec![PATTERN; bytes];
    let mut saved = vec![0_u8; bytes];
    let mut timed = |run: &mut dyn FnMut(&mut [u8])| {
        own.fill(PATTERN);
        let start = Instant::now();
        (0..calls).for_each(|_| run(black_box(&mut own)));
        start.elapsed()
    };
    for data_type in DataType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max] {
            let mut plain = Vec::new();
            let mut folds = vec![Vec::new(); levels.len()];
            let (mut saving, mut division) = (Vec::new(), Vec::new());
            for _ in 0..turns {
                plain.push(timed(&mut |own| plain_loop(own, black_box(&received))));
                for (kernels, times) in levels.iter().zip(&mut folds) {
                    times.push(timed(&mut |own| {
                        kernels.fold_in_place(data_type, op, own, black_box(&received)).unwrap();
                    }));
                }
                let fastest = Kernels::detect();
                saving.push(timed(&mut |own| {
                    fastest
                        .fold_in_place_saving(data_type, op, own, black_box(&received), &mut saved)
                        .unwrap();
                }));
                division.push(timed(&mut |own| {
                    fastest.finish_average(data_type, own, black_box(1)).unwrap();
                }));
            }
            let plain = best(&plain);
            let gigabytes = (bytes * calls) as f64 / 1e9;
            print!("{data_type:4} {op:4}: plain {:5.1} GB/s", gigabytes / plain);
            for (kernels, times) in levels.iter().zip(&folds) {
                print!("   {:?} {:5.2}x", kernels.level(), best(times) / plain);
            }
            println!("   saving {:5.2}x   division {:5.2}x", best(&saving) / plain, best(&division) / plain);
        }
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "--bench") {
        compare(&Sizes { bytes: 16 << 10, calls: 200, turns: 10 });
        compare(&Sizes { bytes: 32 << 20, calls: 1, turns: 5 });
    } else {
        compare(&Sizes { bytes: 4 << 10, calls: 1, turns: 1 });
    }
}
