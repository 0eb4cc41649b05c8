//! The handwritten digits, split into training and test data, and who trains on what.

use flate2::read::GzDecoder;
use pccl_testkit::random::Rng;
use std::io::{self, Read};

/// Pixels of an image, 8 by 8.
pub(crate) const PIXELS: usize = 64;
/// Digits 0 to 9.
pub(crate) const CLASSES: usize = 10;
/// Parts into which the training data is cut; see [`shard_of`].
const SHARDS: u64 = 8;
/// Brightest pixel of the file.
const PIXEL_MAX: u8 = 16;
/// Every n-th sample of the shuffled file is test data.
const TEST_EVERY: usize = 5;
const ARCHIVE: &[u8] = include_bytes!("../data/digits.csv.gz");

/// An image and what it shows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    /// `PIXELS` values from 0 to 1.
    pub(crate) image: Vec<f32>,
    /// The digit, below [`CLASSES`].
    pub(crate) label: usize,
}

/// The samples to train on and those to measure accuracy on; the two sets share no sample.
#[derive(Debug, PartialEq)]
pub(crate) struct Split {
    /// Four fifths.
    pub(crate) train: Vec<Sample>,
    /// One fifth.
    pub(crate) test: Vec<Sample>,
}

/// Unpacks the built-in file and splits it; the same split in every process.
pub(crate) fn load() -> io::Result<Split> {
    let mut text = String::new();
    GzDecoder::new(ARCHIVE).read_to_string(&mut text)?;
    let samples: Option<Vec<Sample>> = text.lines().map(parse).collect();
    let mut samples = samples.ok_or_else(|| io::Error::other("the digits file is damaged"))?;
    // The file is in order of writing, with long runs of 0 1 2 .. 9: every fifth of those would be two digits only.
    Rng::keyed(&[0x000d_1617]).shuffle(&mut samples);
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (position, sample) in samples.into_iter().enumerate() {
        if position % TEST_EVERY == 0 { test.push(sample) } else { train.push(sample) }
    }
    Ok(Split { train, test })
}

/// A line of the file: the pixels and the label.
fn parse(line: &str) -> Option<Sample> {
    let numbers: Vec<u8> = line.split(',').map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let (label, pixels) = numbers.split_last()?;
    let is_whole = pixels.len() == PIXELS && pixels.iter().all(|pixel| *pixel <= PIXEL_MAX);
    let image = pixels.iter().map(|pixel| f32::from(*pixel) / f32::from(PIXEL_MAX)).collect();
    (is_whole && usize::from(*label) < CLASSES).then_some(Sample { image, label: (*label).into() })
}

/// Samples of `train` on which the peer with number `shard` does its local steps before outer step `step`.
///
/// A peer starts with the part of its own number and moves on by one part at each outer step. So peers with different
/// numbers (modulo [`SHARDS`]) never share a sample within a step, and whoever joins or dies, every peer that lives
/// sees all of the data within [`SHARDS`] steps: nothing depends on how many peers there are, and no sample goes away
/// with a peer.
pub(crate) fn shard_of(train: &[Sample], shard: u64, step: u64) -> Vec<usize> {
    let part = (shard % SHARDS + step % SHARDS) % SHARDS;
    (part as usize..train.len()).step_by(SHARDS as usize).collect()
}

#[test]
fn the_file_is_whole_and_balanced_and_everybody_sees_all_of_it() {
    let split = load().expect("the file");
    assert_eq!((split.train.len(), split.test.len()), (1437, 360));
    for data in [&split.train, &split.test] {
        for class in 0..CLASSES {
            let count = data.iter().filter(|sample| sample.label == class).count() * CLASSES;
            assert!(count > data.len() / 2 && count < data.len() * 2, "{class}: {count}");
        }
    }
    let mut lone: Vec<usize> = (0..SHARDS).flat_map(|step| shard_of(&split.train, 5, step)).collect();
    let mut step: Vec<usize> = (40..40 + SHARDS).flat_map(|id| shard_of(&split.train, id, 17)).collect();
    lone.sort_unstable();
    step.sort_unstable();
    let all: Vec<usize> = (0..split.train.len()).collect();
    assert_eq!((&lone, &step), (&all, &all));
}
