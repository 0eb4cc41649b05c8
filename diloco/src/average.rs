//! The weighted mean of contributions, compressed, with error feedback at both places where something is lost.
//!
//! Each rank owns a part of the elements. Contributions are compressed once, at their source, and go straight to the
//! owners (all-to-all). An owner adds them up in double precision, in the order of the ranks, compresses the mean once
//! more, and gives it to all (all-gather). So all ranks decode the same bytes.
//!
//! The error of the source is added to the next contribution of the same elements, the error of the owner to the next
//! mean. Both are local. Where ranks have changed meanwhile, an owner adds the errors that it still has for elements of
//! others to its own contribution, in proportion to its weight. The errors of a rank that dies are lost.

use crate::Compression;
use pccl::{Communicator, Error};
use std::ops::Range;

/// The weighted mean of contributions of all ranks, with compression and error feedback. Each rank owns a part of the
/// elements: contributions go to the owners compressed, are added there in double precision, and the mean is compressed
/// once more on its way to all.
#[derive(Debug, Clone)]
pub struct Averager {
    compression: Compression,
    elements: usize,
    /// Errors of the own contributions, of all elements; empty without compression, which makes none.
    source_errors: Vec<f32>,
    /// Errors of the means that this rank made, zero where it made none; empty as well.
    owner_errors: Vec<f32>,
    /// The errors of a try whose outcome is not known here.
    pending: Option<Pending>,
}

/// The errors that hold once a try has succeeded.
#[derive(Debug, Clone)]
struct Pending {
    at: Range<usize>,
    /// None for a rank that had nothing to contribute: then nothing changes but in its own part.
    source: Option<Vec<f32>>,
    part: Range<usize>,
    owner: Vec<f32>,
}

/// A mean.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Averaged {
    /// The weighted mean, the same bits on every rank.
    pub mean: Vec<f32>,
    /// Bytes that this rank sent to others.
    pub sent_bytes: u64,
    /// The same without compression.
    pub plain_bytes: u64,
    /// The master was lost after all had been exchanged: it is not known whether the others have the mean as well.
    pub unknown: Option<Error>,
}

impl Averager {
    /// For `elements` elements in all.
    pub fn new(elements: usize, compression: Compression) -> Self {
        let errors = || vec![0.0; if compression == Compression::None { 0 } else { elements }];
        Self { compression, elements, source_errors: errors(), owner_errors: errors(), pending: None }
    }

    /// The mean of `values` over all ranks of the group, weighted by `weights`. All ranks give the same range of
    /// elements and the same weights, in the order of [`pccl::World::ring`]; a rank of weight zero gives no values.
    ///
    /// After an error nothing has changed, and the same call may be made again: no error is counted twice.
    ///
    /// # Errors
    /// `InvalidArgument` for weights or values that do not fit or are not finite; else as
    /// [`Communicator::all_to_all_counts`].
    pub fn weighted_mean(
        &mut self,
        comm: &Communicator,
        at: Range<usize>,
        values: &[f32],
        weights: &[f64],
    ) -> Result<Averaged, Error> {
        self.pending = None;
        let world = comm.world();
        let (ranks, rank) = (world.group_size, world.rank);
        self.check(&at, values, weights, (ranks, rank))?;
        let cut = Cut::new(at.len(), ranks, self.compression.piece_elements());
        let contributors = weights.iter().filter(|weight| **weight > 0.0).count();
        let of_mean = self.compression.of_mean(contributors);
        let sizes_of = |compression: Compression| -> Vec<u64> {
            (0..ranks).map(|to| compression.encoded_bytes(cut.part(to).len()) as u64).collect()
        };
        let (sizes, mean_sizes) = (sizes_of(self.compression), sizes_of(of_mean));

        let (source, sent) = self.contribution(&at, values, weights, (rank, &cut))?;
        let counts: Vec<u64> = weights
            .iter()
            .flat_map(|weight| sizes.iter().map(|size| if *weight > 0.0 { *size } else { 0 }))
            .collect();
        let own_size = sizes.get(rank).copied().unwrap_or_default();
        let (mut received, mut sent_bytes) = (vec![0_u8; own_size as usize * contributors], 0);
        match ranks {
            1 => received.copy_from_slice(&sent),
            _ => sent_bytes += comm.all_to_all_counts(&sent, &mut received, &counts, ())?.tx_bytes,
        }

        let (part, mut mean) = (cut.part(rank), Vec::new());
        self.add_up(&received, part.len(), weights, &mut mean)?;
        let whole = at.start + part.start..at.start + part.end;
        let lost = self.owner_errors.get(whole.clone()).unwrap_or_default();
        mean.iter_mut().zip(lost).for_each(|(mean, lost)| *mean += lost);
        let mut encoded = Vec::new();
        of_mean.encode(&mut mean, &mut encoded)?;
        self.pending = Some(Pending { at: at.clone(), source, part: whole, owner: mean });

        let mut gathered = vec![0_u8; mean_sizes.iter().sum::<u64>() as usize];
        let mut unknown = None;
        match ranks {
            1 => gathered.copy_from_slice(&encoded),
            _ => match comm.all_gather_counts(&encoded, &mut gathered, &mean_sizes, ()) {
                Ok(info) => sent_bytes += info.tx_bytes,
                Err(error @ Error::OutcomeUnknown(_)) => unknown = Some(error),
                Err(error) => {
                    // It failed for all, so it has not counted.
                    if matches!(error, Error::Aborted(_)) {
                        self.pending = None;
                    }
                    return Err(error);
                }
            },
        }
        let mut mean = Vec::with_capacity(at.len());
        let mut rest = gathered.as_slice();
        for to in 0..ranks {
            let (encoded, others) = rest.split_at(mean_sizes.get(to).copied().unwrap_or_default() as usize);
            of_mean.decode(encoded, cut.part(to).len(), &mut mean)?;
            rest = others;
        }
        self.settle(true);
        let plain_bytes = plain_bytes(&cut, ranks, weights, rank);
        Ok(Averaged { mean, sent_bytes, plain_bytes, unknown })
    }

    /// A try that has failed here counted after all, as another rank has told; or it did not.
    pub fn settle(&mut self, counted: bool) {
        let Some(Pending { at, source, part, owner }) = self.pending.take().filter(|_| counted) else {
            return;
        };
        if self.source_errors.is_empty() {
            return;
        }
        if let Some(source) = source {
            self.source_errors.get_mut(at.clone()).unwrap_or_default().copy_from_slice(&source);
            // They went with the contribution, but for those of the own part.
            self.owner_errors.get_mut(at).unwrap_or_default().fill(0.0);
        }
        self.owner_errors.get_mut(part).unwrap_or_default().copy_from_slice(&owner);
    }

    /// Whether the last try got so far that it may have counted without this rank knowing it.
    pub fn may_have_counted(&self) -> bool {
        self.pending.is_some()
    }

    fn check(
        &self,
        at: &Range<usize>,
        values: &[f32],
        weights: &[f64],
        (ranks, rank): (usize, usize),
    ) -> Result<(), Error> {
        let total: f64 = weights.iter().sum();
        let own = weights.get(rank).copied().unwrap_or_default();
        let refusal = if at.start > at.end || at.end > self.elements {
            format!("elements {at:?} of {}", self.elements)
        } else if weights.len() != ranks {
            format!("{} weights for {ranks} ranks", weights.len())
        } else if let Some(bad) = weights.iter().position(|weight| !(*weight >= 0.0 && weight.is_finite())) {
            format!("a weight of {} of rank {bad}: finite, and at least 0", weights.get(bad).unwrap_or(&0.0))
        } else if !(total > 0.0 && total.is_finite()) {
            format!("weights with a sum of {total}")
        } else if own > 0.0 && values.len() != at.len() {
            format!("{} values for {} elements", values.len(), at.len())
        } else if let Some(bad) = values.iter().position(|value| !value.is_finite()) {
            format!("element {bad} is {}", values.get(bad).unwrap_or(&0.0))
        } else {
            return Ok(());
        };
        Err(Error::InvalidArgument(refusal))
    }

    /// The errors and the bytes of the own contribution.
    fn contribution(
        &self,
        at: &Range<usize>,
        values: &[f32],
        weights: &[f64],
        (rank, cut): (usize, &Cut),
    ) -> Result<(Option<Vec<f32>>, Vec<u8>), Error> {
        let own = weights.get(rank).copied().unwrap_or_default();
        if own <= 0.0 {
            return Ok((None, Vec::new()));
        }
        let mut rest = values.to_vec();
        let lost = self.source_errors.get(at.clone()).unwrap_or_default();
        rest.iter_mut().zip(lost).for_each(|(value, lost)| *value += lost);
        // Errors of a mean, of elements that another rank owns now: as a part of the mean this has their size again.
        let share = (weights.iter().sum::<f64>() / own) as f32;
        let part = cut.part(rank);
        let foreign = self.owner_errors.get(at.clone()).unwrap_or_default().iter().enumerate();
        for ((_, lost), value) in foreign.zip(&mut rest).filter(|((at, _), _)| !part.contains(at)) {
            *value += share * lost;
        }
        let mut encoded = Vec::new();
        for to in 0..weights.len() {
            self.compression.encode(rest.get_mut(cut.part(to)).unwrap_or_default(), &mut encoded)?;
        }
        Ok((Some(rest), encoded))
    }

    /// The weighted mean of the contributions, added up in the order of the ranks.
    fn add_up(
        &self,
        received: &[u8],
        elements: usize,
        weights: &[f64],
        mean: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let size = self.compression.encoded_bytes(elements);
        let (mut sums, mut values) = (vec![0.0_f64; elements], Vec::new());
        let contributors = weights.iter().filter(|weight| **weight > 0.0);
        for (encoded, weight) in received.chunks(size.max(1)).zip(contributors) {
            values.clear();
            self.compression.decode(encoded, elements, &mut values)?;
            sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += weight * f64::from(*value));
        }
        let total: f64 = weights.iter().sum();
        mean.extend(sums.iter().map(|sum| (sum / total) as f32));
        Ok(())
    }
}

/// Which rank owns which elements: parts that begin where compressed pieces do.
#[derive(Debug)]
struct Cut {
    elements: usize,
    ranks: usize,
    piece: usize,
}

impl Cut {
    fn new(elements: usize, ranks: usize, piece: usize) -> Self {
        Self { elements, ranks, piece }
    }

    fn part(&self, rank: usize) -> Range<usize> {
        let pieces = self.elements.div_ceil(self.piece);
        let bound = |at: usize| (pieces * at / self.ranks.max(1) * self.piece).min(self.elements);
        bound(rank)..bound(rank + 1)
    }
}

fn plain_bytes(cut: &Cut, ranks: usize, weights: &[f64], rank: usize) -> u64 {
    let own = cut.part(rank).len();
    let given = if weights.get(rank).is_some_and(|weight| *weight > 0.0) { cut.elements - own } else { 0 };
    ((given + own * (ranks - 1)) * size_of::<f32>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_all_and_begin_with_pieces(
            elements in 0_usize..5000, ranks in 1_usize..20, piece in 1_usize..300,
        ) {
            let cut = Cut::new(elements, ranks, piece);
            let mut end = 0;
            for rank in 0..ranks {
                let part = cut.part(rank);
                prop_assert_eq!(part.start, end);
                prop_assert!(part.is_empty() || part.start.is_multiple_of(piece));
                end = part.end;
            }
            prop_assert_eq!(end, elements);
        }
    }
}
