//! The handwritten digits, split into training and test data, and who trains on what.

use std::io::Read;

use flate2::read::GzDecoder;
use thiserror::Error;

use crate::rng::Rng;

/// Pixels of an image, 8 by 8.
pub(crate) const PIXELS: usize = 64;
/// Digits 0 to 9.
pub(crate) const CLASSES: usize = 10;
/// Parts into which the training data is cut; see [`shard_of`].
pub(crate) const SHARDS: usize = 8;

const PIXEL_MAX: u8 = 16;
/// The file has 0.2 MiB when unpacked; more is not the file that we know.
const UNPACKED_BYTES_MAX: u64 = 1 << 20;
/// Every n-th sample of the shuffled file is test data.
const TEST_EVERY: usize = 5;
const ARCHIVE: &[u8] = include_bytes!("../data/digits.csv.gz");

/// Why the data could not be read.
#[derive(Debug, Error)]
pub(crate) enum DataError {
    /// The archive is damaged.
    #[error("the digits archive cannot be unpacked: {0}")]
    Unpack(#[from] std::io::Error),
    /// The archive unpacks to more than the limit.
    #[error("the digits archive unpacks to more than {UNPACKED_BYTES_MAX} bytes")]
    TooLarge,
    /// A line is not 64 pixels and a label.
    #[error("digits, line {line}: {what}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Nothing to train on.
    #[error("the digits file has no samples")]
    Empty,
}

/// Images and their labels.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Dataset {
    /// `PIXELS` values for each image, scaled to `[0, 1]`.
    pixels: Vec<f32>,
    labels: Vec<u8>,
}

impl Dataset {
    /// How many images there are.
    pub(crate) const fn len(&self) -> usize {
        self.labels.len()
    }

    /// The pixels of image `index`, `[0, 1]`.
    pub(crate) fn image(&self, index: usize) -> &[f32] {
        &self.pixels[index * PIXELS..(index + 1) * PIXELS]
    }

    /// The digit that image `index` shows, below [`CLASSES`].
    pub(crate) fn label(&self, index: usize) -> usize {
        usize::from(self.labels[index])
    }

    fn push(&mut self, image: &[f32], label: u8) {
        self.pixels.extend_from_slice(image);
        self.labels.push(label);
    }
}

/// What is trained on and what accuracy is measured on; they share no sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Split {
    /// Four fifths.
    pub(crate) train: Dataset,
    /// One fifth.
    pub(crate) test: Dataset,
}

/// Unpacks the built-in file and splits it; the same split in every process.
pub(crate) fn load() -> Result<Split, DataError> {
    let mut text = String::new();
    let mut unpacked = GzDecoder::new(ARCHIVE).take(UNPACKED_BYTES_MAX + 1);
    if unpacked.read_to_string(&mut text)? as u64 > UNPACKED_BYTES_MAX {
        return Err(DataError::TooLarge);
    }
    Ok(split(&parse(&text)?))
}

/// Samples of `train` on which the peer with number `shard_id` does its local steps before outer step `outer_step`.
///
/// The training data is cut into [`SHARDS`] fixed parts. A peer starts with the part of its own number and moves on
/// by one part at each outer step. So peers with different numbers (modulo [`SHARDS`]) never share a sample within a
/// step, and whoever joins or dies, every peer that lives sees all of the data within [`SHARDS`] steps: nothing
/// depends on how many peers there are, and no sample goes away with a peer.
pub(crate) fn shard_of(train: &Dataset, shard_id: u64, outer_step: u64) -> Vec<usize> {
    let part = (shard_id % SHARDS as u64 + outer_step % SHARDS as u64) as usize % SHARDS;
    (part..train.len()).step_by(SHARDS).collect()
}

fn split(all: &Dataset) -> Split {
    // The file is in order of writing, with long runs of 0 1 2 .. 9: taking every fifth of those would leave
    // two digits only. So shuffle first, always in the same way.
    let mut order: Vec<usize> = (0..all.len()).collect();
    Rng::from_parts(&[0x000d_1617]).shuffle(&mut order);
    let mut split = Split { train: Dataset::default(), test: Dataset::default() };
    for (position, &index) in order.iter().enumerate() {
        let target = if position % TEST_EVERY == 0 { &mut split.test } else { &mut split.train };
        target.push(all.image(index), all.labels[index]);
    }
    split
}

fn parse(text: &str) -> Result<Dataset, DataError> {
    let mut all = Dataset::default();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (image, label) = parse_line(line).map_err(|what| DataError::Line { line: index + 1, what })?;
        all.push(&image, label);
    }
    // One of each is the least that can be split and trained on.
    if all.len() < 2 { Err(DataError::Empty) } else { Ok(all) }
}

fn parse_line(line: &str) -> Result<([f32; PIXELS], u8), String> {
    let mut image = [0.0; PIXELS];
    let mut fields = line.split(',').map(str::trim);
    for (position, pixel) in image.iter_mut().enumerate() {
        let field = fields.next().ok_or_else(|| format!("{position} fields, expected {}", PIXELS + 1))?;
        let value = parse_up_to(field, PIXEL_MAX)?;
        *pixel = f32::from(value) / f32::from(PIXEL_MAX);
    }
    let label = fields.next().ok_or_else(|| format!("{PIXELS} fields, the label is missing"))?;
    let label = parse_up_to(label, CLASSES as u8 - 1)?;
    if fields.next().is_some() {
        return Err(format!("more than {} fields", PIXELS + 1));
    }
    Ok((image, label))
}

fn parse_up_to(field: &str, max: u8) -> Result<u8, String> {
    match field.parse::<u8>() {
        Ok(value) if value <= max => Ok(value),
        _ => Err(format!("'{field}' is not a number from 0 to {max}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn line(pixel: &str, label: &str) -> String {
        let mut fields = vec![pixel; PIXELS];
        fields.push(label);
        fields.join(",")
    }

    #[test]
    fn built_in_file_is_whole_and_balanced() {
        let split = load().unwrap();
        assert_eq!(split.train.len() + split.test.len(), 1797);
        assert_eq!(split.test.len(), 360);
        for data in [&split.train, &split.test] {
            let mut counts = [0usize; CLASSES];
            (0..data.len()).for_each(|i| counts[data.label(i)] += 1);
            let expected = data.len() / CLASSES;
            assert!(counts.iter().all(|&c| c > expected / 2 && c < expected * 2), "{counts:?}");
            assert!((0..data.len()).all(|i| data.image(i).iter().all(|p| (0.0..=1.0).contains(p))));
        }
    }

    #[test]
    fn split_is_repeatable() {
        assert_eq!(load().unwrap(), load().unwrap());
    }

    #[test]
    fn a_lone_peer_sees_everything_and_peers_of_one_step_share_nothing() {
        let train = load().unwrap().train;
        for id in [0, 5, u64::MAX] {
            let seen: BTreeSet<usize> =
                (u64::MAX - 7..=u64::MAX).flat_map(|step| shard_of(&train, id, step)).collect();
            assert_eq!(seen.len(), train.len(), "peer {id} misses data");
        }
        let mut seen = BTreeSet::new();
        for id in 40..40 + SHARDS as u64 {
            for index in shard_of(&train, id, 17) {
                assert!(seen.insert(index), "sample {index} trained twice in one step");
            }
        }
        assert_eq!(seen.len(), train.len());
    }

    #[test]
    fn bad_lines_are_named() {
        let good = line("3", "7");
        assert_eq!(parse(&format!("{good}\n\n{good}\n")).unwrap().len(), 2);
        for (bad, part) in [
            (line("17", "7"), "'17' is not a number from 0 to 16"),
            (line("-1", "7"), "'-1' is not a number"),
            (line("3", "10"), "'10' is not a number from 0 to 9"),
            (line("3", ""), "'' is not a number"),
            (format!("{good},1"), "more than 65 fields"),
            ("1,2".to_owned(), "2 fields, expected 65"),
        ] {
            let error = parse(&format!("{good}\n{bad}")).unwrap_err().to_string();
            assert!(error.starts_with("digits, line 2: ") && error.contains(part), "{error}");
        }
        assert!(matches!(parse(""), Err(DataError::Empty)));
    }
}
