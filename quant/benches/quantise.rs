//! Speed of quantisation next to that of a plain read, copy and addition over memory of the same size, measured in
//! turns.
//!
//! Run with `cargo bench -p pccl-quant --bench quantise`; a word after `--` picks the lines that contain it. GB/s are
//! 10^9 bytes of elements per second. A ratio is the median over the rounds of: for encoding, its speed to that of a
//! plain read of the elements; for decoding, bytes read and written per second to those of a copy (to replace the
//! elements) or of an addition (to add to them) in the same round. So it holds up on a machine that others use too.
//!
//! Without the argument `--bench`, which cargo passes only when asked for benchmarks, it runs once on little data.

use std::{hint::black_box, time::Instant};

use half::{bf16, f16};
use pccl_quant::{
    DataType, Level,
    quantise::{Block, Codec, NoiseKey, Rounding, Scheme},
};

/// Each part of each round treats a slice of its own, which is no longer in any cache if there are enough of them.
/// Turns are short, so that few of them meet with somebody else's turn at the processor.
struct Sizes {
    slice_bytes: usize,
    slices: usize,
    calls: usize,
    rounds: usize,
}

/// Sums the u64 words in 32 accumulators, which vectorises: nothing reads memory with less work.
fn read(data: &[u8]) -> u64 {
    let mut sums = [0_u64; 32];
    for chunk in data.as_chunks::<256>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Reads two, writes one.
fn add(own: &mut [u8], other: &[u8]) {
    for (own, other) in own.as_chunks_mut::<8>().0.iter_mut().zip(other.as_chunks::<8>().0) {
        *own = u64::from_ne_bytes(*own).wrapping_add(u64::from_ne_bytes(*other)).to_ne_bytes();
    }
}

fn elements(data_type: DataType, bytes: usize) -> Vec<u8> {
    let value = |index: usize| ((index as u32).wrapping_mul(0x9E37_79B9) >> 8) as f32 / 1e6 - 8.0;
    let count = 0..bytes / data_type.size_bytes();
    match data_type {
        DataType::Float16 => count.flat_map(|index| f16::from_f32(value(index)).to_le_bytes()).collect(),
        DataType::BFloat16 => count.flat_map(|index| bf16::from_f32(value(index)).to_le_bytes()).collect(),
        DataType::Float32 => count.flat_map(|index| value(index).to_le_bytes()).collect(),
        _ => count.flat_map(|index| f64::from(value(index)).to_le_bytes()).collect(),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Takes a slice of elements, the place of their encoded form, and one of the target.
type Part<'a> = &'a mut dyn FnMut(&[u8], &mut [u8], &mut [u8]);

/// Number of parts that are measured in turns; the first three are what the others are compared with.
const PARTS: usize = 7;

fn compare(scheme: Scheme, data_type: DataType, level: Level, sizes: &Sizes) {
    let Some(codec) = Codec::new(scheme, data_type).ok().and_then(|codec| codec.at(level)) else { return };
    let bytes = sizes.slice_bytes;
    let data = elements(data_type, bytes * sizes.slices);
    let encoded_bytes = codec.encoded_len(bytes / data_type.size_bytes()).expect("it fits into memory");
    let mut encoded = vec![0; encoded_bytes * sizes.slices];
    let mut target = data.clone();
    for (slice, encoded) in data.chunks(bytes).zip(encoded.chunks_mut(encoded_bytes)) {
        codec.encode(slice, encoded, Rounding::NearestEven, 0).expect("encodes");
    }
    let stochastic = Rounding::Stochastic(NoiseKey::new(1, 2, 3));
    let rounding = if scheme.has_stochastic() { stochastic } else { Rounding::NearestEven };
    let (data_bytes, moved) = (bytes as f64, (bytes + encoded_bytes) as f64);
    let mut rates: Vec<[f64; PARTS]> = Vec::new();
    let mut turn = 0;
    for _ in 0..sizes.rounds {
        let mut rate = |moved: f64, run: Part<'_>| {
            let slice = turn % sizes.slices;
            turn += 1;
            let data = &data[slice * bytes..][..bytes];
            let target = &mut target[slice * bytes..][..bytes];
            let encoded = &mut encoded[slice * encoded_bytes..][..encoded_bytes];
            let start = Instant::now();
            (0..sizes.calls).for_each(|_| run(black_box(data), black_box(encoded), black_box(target)));
            moved * sizes.calls as f64 / start.elapsed().as_secs_f64() / 1e9
        };
        rates.push([
            rate(data_bytes, &mut |data, _, _| _ = black_box(read(data))),
            rate(2.0 * data_bytes, &mut |data, _, target| target.copy_from_slice(data)),
            rate(3.0 * data_bytes, &mut |data, _, target| add(target, data)),
            rate(data_bytes, &mut |data, encoded, _| {
                codec.encode(data, encoded, Rounding::NearestEven, 0).expect("encodes");
            }),
            rate(data_bytes, &mut |data, encoded, _| {
                codec.encode(data, encoded, rounding, 0).expect("encodes");
            }),
            rate(moved, &mut |_, encoded, target| codec.decode_set(encoded, target).expect("decodes")),
            rate(moved + data_bytes, &mut |_, encoded, target| {
                codec.decode_add(encoded, target).expect("decodes");
            }),
        ]);
    }
    let ratio = |part: usize, to: usize| median(rates.iter().map(|rate| rate[part] / rate[to]));
    // Speeds of decoding as bytes of elements, too.
    let elements_share = [data_bytes / moved, data_bytes / (moved + data_bytes)];
    let speed = |part: usize, share: f64| median(rates.iter().map(|rate| rate[part] * share));
    println!(
        "{data_type:4} {:24} {:6} {:6.1} |{:6.1} {:5.2} |{:6.1} {:5.2} |{:6.1} {:5.2} |{:6.1} {:5.2}",
        scheme.to_string(),
        format!("{level:?}"),
        speed(0, 1.0),
        speed(3, 1.0),
        ratio(3, 0),
        speed(4, 1.0),
        ratio(4, 0),
        speed(5, elements_share[0]),
        ratio(5, 1),
        speed(6, elements_share[1]),
        ratio(6, 2),
    );
}

fn table(sizes: &Sizes, wanted: &[String]) {
    let f32_schemes = [
        Scheme::BlockAffineU8(Block::B64),
        Scheme::BlockAffineU8(Block::B256),
        Scheme::BlockAffineU8(Block::B1024),
        Scheme::BlockSymmetricI8(Block::B64),
        Scheme::BlockSymmetricI8(Block::B256),
        Scheme::BlockAffineU4(Block::B64),
        Scheme::BlockAffineU4(Block::B256),
        Scheme::MinMax(DataType::Uint8),
        Scheme::ZeroPointScale(DataType::Uint8),
        Scheme::BlockE4m3(Block::B256),
        Scheme::BlockE5m2(Block::B256),
        Scheme::CastBf16,
        Scheme::CastF16,
    ];
    let Sizes { slice_bytes, slices, rounds, .. } = sizes;
    println!("{slices} slices of {slice_bytes} bytes of elements, {rounds} rounds; GB/s, then the ratio");
    println!("{:36} {:>6} |{:>12} |{:>12} |{:>12} |{:>12}", "", "read", "encode", "stochastic", "set", "add");
    let others = [DataType::Float64, DataType::BFloat16, DataType::Float16]
        .map(|data_type| (Scheme::BlockAffineU8(Block::B256), data_type));
    let lines = f32_schemes.map(|scheme| (scheme, DataType::Float32)).into_iter().chain(others);
    for (scheme, data_type) in lines {
        for level in Level::ALL {
            let name = format!("{data_type} {scheme} {level:?}");
            if wanted.iter().all(|word| name.contains(word.as_str())) {
                compare(scheme, data_type, level, sizes);
            }
        }
    }
}

fn main() {
    let (options, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    if options.iter().any(|option| option == "--bench") {
        table(&Sizes { slice_bytes: 2 << 20, slices: 96, calls: 1, rounds: 101 }, &words);
        table(&Sizes { slice_bytes: 256 << 10, slices: 1, calls: 10, rounds: 51 }, &words);
    } else {
        table(&Sizes { slice_bytes: 16 << 10, slices: 2, calls: 1, rounds: 1 }, &words);
    }
}
