//! Results that quantised reductions have to yield: the supervisor's own arithmetic, which has no code in common with
//! the library's.
//!
//! Chunks and order are those of [`crate::fold`]. A rank hands on what decodes to [`Coding::rounded`] of its partial
//! sum; the last one divides an average before. By pairwise exchange every rank but the owner of a chunk, the one
//! before that whose number it has, sends what decodes to [`Coding::rounded`] of its own; the owner adds, divides, and
//! sends that of the sum.

use half::bf16;
use pccl::{Block, DataType, Quantisation, ReduceOp, Scheme};
use std::ops::Range;

/// A way in which f32 travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// 8 bits, from minimum to maximum of each 256 elements.
    Affine,
    /// 8 bits, from minimum to maximum of each chunk.
    MinMax,
    /// As bf16.
    Bf16,
}

impl Coding {
    pub(crate) const ALL: [Self; 3] = [Self::Affine, Self::MinMax, Self::Bf16];

    /// The library's value for it.
    pub(crate) fn quantisation(self) -> Quantisation {
        Quantisation::new(match self {
            Self::Affine => Scheme::BlockAffineU8(Block::B256),
            Self::MinMax => Scheme::MinMax(DataType::Uint8),
            Self::Bf16 => Scheme::CastBf16,
        })
    }

    /// A chunk of finite elements, encoded and decoded.
    pub(crate) fn rounded(self, chunk: &[f32]) -> Vec<f32> {
        match self {
            Self::Affine => chunk.chunks(256).flat_map(affine).collect(),
            Self::MinMax => min_max(chunk),
            Self::Bf16 => chunk.iter().map(|&value| bf16::from_f32(value).to_f32()).collect(),
        }
    }
}

/// The elements of each of `ranks` nearly equal chunks.
pub(crate) fn chunks(ranks: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let begin = move |chunk: usize| chunk * (count / ranks) + chunk.min(count % ranks);
    (0..ranks).map(move |chunk| begin(chunk)..begin(chunk + 1))
}

fn extent(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::MAX, f32::MIN), |(min, max), &value| (min.min(value), max.max(value)))
}

/// Each operation is rounded to f32 by itself. The scale has 8 mantissa bits less, rounded up.
fn affine(block: &[f32]) -> Vec<f32> {
    let (min, max) = extent(block);
    if min == max {
        return block.to_vec();
    }
    let middle = min / 2.0 + max / 2.0;
    let scale = (f32::max(max - middle, middle - min) / 127.5).max(f32::MIN_POSITIVE);
    let scale = f32::from_bits(scale.to_bits().next_multiple_of(256));
    let inverse = 1.0 / scale;
    let code = |value: f32| ((value - middle) * inverse + 127.5).round_ties_even();
    block.iter().map(|&value| middle + (code(value) - 127.5) * scale).collect()
}

/// All in f64.
fn min_max(chunk: &[f32]) -> Vec<f32> {
    let (min, max) = extent(chunk);
    if min == max {
        return chunk.to_vec();
    }
    let (min, max) = (f64::from(min), f64::from(max));
    let (middle, scale) = ((min + max) / 2.0, (max / 2.0 - min / 2.0) / 127.5);
    let inverse = 1.0 / scale;
    let code = |value: f64| ((value - middle) * inverse + 127.5).clamp(0.0, 255.0).round_ties_even();
    chunk.iter().map(|&value| (middle + (code(f64::from(value)) - 127.5) * scale) as f32).collect()
}

/// The values that the last of the ranks from `first` on has of a chunk, before it rounds. The inputs are in ring
/// order, of one length.
pub(crate) fn chain(
    inputs: &[&Vec<f32>],
    first: usize,
    elements: Range<usize>,
    op: ReduceOp,
    coding: Coding,
) -> Vec<f32> {
    let ranks = inputs.len();
    let mut sum = inputs[first % ranks][elements.clone()].to_vec();
    for step in 1..ranks {
        let own = &inputs[(first + step) % ranks][elements.clone()];
        sum = own.iter().zip(coding.rounded(&sum)).map(|(own, value)| own + value).collect();
    }
    if op == ReduceOp::Avg {
        sum.iter_mut().for_each(|value| *value /= ranks as f32);
    }
    sum
}

/// The result of an all-reduce around the ring.
pub(crate) fn ring(inputs: &[&Vec<f32>], op: ReduceOp, coding: Coding) -> Vec<f32> {
    let chunks = chunks(inputs.len(), inputs[0].len()).enumerate();
    chunks.flat_map(|(chunk, elements)| coding.rounded(&chain(inputs, chunk, elements, op, coding))).collect()
}

/// The same by pairwise exchange.
pub(crate) fn pairwise(inputs: &[&Vec<f32>], op: ReduceOp, coding: Coding) -> Vec<f32> {
    let (ranks, count) = (inputs.len(), inputs[0].len());
    let mut result = Vec::with_capacity(count);
    for (chunk, range) in chunks(ranks, count).enumerate() {
        let mut sum = vec![0.0; range.len()];
        for step in 0..ranks {
            let own = &inputs[(chunk + step) % ranks][range.clone()];
            let contribution = if step + 1 == ranks { own.to_vec() } else { coding.rounded(own) };
            for (sum, value) in sum.iter_mut().zip(contribution) {
                *sum = if step == 0 { value } else { *sum + value };
            }
        }
        if op == ReduceOp::Avg {
            sum.iter_mut().for_each(|value| *value /= ranks as f32);
        }
        result.append(&mut coding.rounded(&sum));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_by_hand() {
        // Scale 2/255 and middle 1 of 0 to 2; a quarter of the way is code 64 (63.75).
        for coding in [Coding::Affine, Coding::MinMax] {
            let got = coding.rounded(&[0.0, 0.5, 2.0]);
            for (got, wanted) in got.iter().zip([0.0, 64.0 * 2.0 / 255.0, 2.0]) {
                assert!((got - wanted).abs() < 1e-4, "{coding:?}: {got}");
            }
            assert_eq!(coding.rounded(&[0.1; 300]), [0.1; 300]);
            assert!(coding.rounded(&[]).is_empty());
        }
        assert_eq!(Coding::Bf16.rounded(&[257.0, 259.0]), [256.0, 260.0]);
    }

    #[test]
    fn blocks_are_those_of_the_chunk() {
        let mut values = vec![0.5; 300];
        (values[10], values[298], values[299]) = (0.75, 0.75, 1e6);
        let got = Coding::Affine.rounded(&values);
        assert!((got[10] - 0.75).abs() < 1e-3);
        assert!((got[298] - 0.75).abs() > 0.1, "the second block is coarse");
        assert!((Coding::MinMax.rounded(&values)[10] - 0.75).abs() > 0.1, "and so is the chunk");
    }

    #[test]
    fn every_hop_rounds() {
        let inputs = [vec![256.0, 1.0], vec![1.0, 1.0], vec![1.0, 256.0]];
        let inputs: Vec<_> = inputs.iter().collect();
        // 256 + 1 is 256 in bf16, twice; 1 (rank 1), + 256 (rank 2) is 256, + 1 again.
        assert_eq!(ring(&inputs, ReduceOp::Sum, Coding::Bf16), [256.0, 256.0]);
        assert_eq!(ring(&inputs, ReduceOp::Avg, Coding::Bf16), [85.5, 85.5]);
    }

    #[test]
    fn who_keeps_a_sum_does_not_round_it() {
        let inputs = [vec![1.0], vec![256.0], vec![1.0]];
        let inputs: Vec<_> = inputs.iter().collect();
        // 1 (rank 0), + 256 is 257 and travels as 256, + 1 is 257 at rank 2.
        assert_eq!(chain(&inputs, 0, 0..1, ReduceOp::Sum, Coding::Bf16), [257.0]);
    }

    #[test]
    fn the_owner_rounds_once() {
        let inputs = [vec![256.0, 1.0], vec![1.0, 1.0], vec![1.0, 256.0]];
        let inputs: Vec<_> = inputs.iter().collect();
        // 256 + 1 + 1 is there in f32, and in bf16.
        assert_eq!(pairwise(&inputs, ReduceOp::Sum, Coding::Bf16), [258.0, 258.0]);
        assert_eq!(pairwise(&inputs, ReduceOp::Avg, Coding::Bf16), [86.0, 86.0]);
        // The owner of a chunk does not round its own values before it adds. Of chunk 0 that is rank 2: 2.5 + 256.75,
        // where rank 0 would add 256.
        let (few, many) = (vec![2.5], vec![256.75]);
        assert_eq!(pairwise(&[&few, &vec![0.0], &many], ReduceOp::Sum, Coding::Bf16), [260.0]);
        assert_eq!(pairwise(&[&many, &vec![0.0], &few], ReduceOp::Sum, Coding::Bf16), [258.0]);
    }
}
