//! Clip: everybody learns the norms of what all are about to contribute, and a peer that is beyond a multiple of their
//! median makes its own contribution shorter, before the average.
//!
//! It is an all-gather of four numbers of each peer, in memory of the library. The caller's tensors are read before the
//! vote and written after the outcome, so a failure leaves them as they are. The vote says whether they are finite, as
//! that of a reduction which asks for it: if not, nothing begins, and all are told whose are not.
//!
//! Gradients are clipped to a norm after R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent
//! neural networks", ICML 2013: one norm over all tensors, one factor for all elements. There the bound is a constant;
//! here it follows from the median of the group, which up to half of the peers cannot raise beyond the norms of the
//! others.

use super::{Beside, Call, Context, Place, Prepared, Report, Signals};
use crate::{
    Error,
    memory::{Backup, RawTensor, Span, Target},
};
use pccl_protocol::{Collective, Descriptor, Finite, NotFinite, Nothing, PartDescriptor, PeerId, Split};
use pccl_quant::{DataType, ReduceOp, first_non_finite, norm, scale, sum_of_squares, weighted_type};
use std::{borrow::Cow, ops::Range, sync::Arc};

/// Numbers that a peer gives: norm, factor, and both halves of its identity. 64 bits each.
const NUMBERS: usize = 4;
const ENTRY_BYTES: usize = NUMBERS * size_of::<u64>();

/// The result of a clip, the same on all peers but for what is their own.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Clip {
    /// Euclidean norm of what this peer is to contribute, before the clip.
    pub norm: f64,
    /// The factor by which each element of this peer was multiplied: less than 1 if it was clipped; at 1 no byte was
    /// touched.
    pub scale: f64,
    /// The median of the norms: of an even number of peers the lesser of the two in the middle.
    pub median: f64,
    /// All peers, by rank.
    pub peers: Vec<PeerNorm>,
}

/// The norm and the scale of one peer, for the contribution that it was about to make.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PeerNorm {
    /// The peer.
    pub peer: PeerId,
    /// Its norm, as it says itself.
    pub norm: f64,
    /// The factor by which its elements are multiplied.
    pub scale: f64,
}

impl Clip {
    /// Those that were clipped.
    pub fn outliers(&self) -> impl Iterator<Item = &PeerNorm> {
        self.peers.iter().filter(|it| it.scale < 1.0)
    }

    /// The result that follows from the entries of all. The same error for all if they differ in the factor.
    fn judge(entries: &[Entry], rank: usize) -> Result<Self, Error> {
        let Some(first) = entries.first() else {
            return Err(Error::InvalidArgument("a clip among no peers".into()));
        };
        if let Some(other) = entries.iter().find(|it| it.factor.to_bits() != first.factor.to_bits()) {
            let text = |it: &Entry| format!("{} by {}", it.factor, it.peer);
            return Err(Error::InvalidArgument(format!(
                "peers clip with factors that differ: {}, {}",
                text(first),
                text(other)
            )));
        }
        let mut sorted: Vec<f64> = entries.iter().map(|it| it.norm).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let median = sorted[(sorted.len() - 1) / 2];
        let of = |it: &Entry| PeerNorm {
            peer: it.peer,
            norm: it.norm,
            scale: scale_of(it.norm, median, first.factor),
        };
        let peers: Vec<PeerNorm> = entries.iter().map(of).collect();
        let (norm, scale) = peers.get(rank).map_or((0.0, 1.0), |own| (own.norm, own.scale));
        Ok(Self { norm, scale, median, peers })
    }
}

/// The factor for elements that together have that norm. A median of zero bounds nothing: there is no size that an
/// outlier could be told by.
fn scale_of(norm: f64, median: f64, factor: f64) -> f64 {
    let bound = factor * median;
    if median > 0.0 && norm > bound { bound / norm } else { 1.0 }
}

/// Where a [`Call::clip_to_median`] leaves what it has found.
pub type ClipReport = Report<Clip>;

impl<'a> Call<'a> {
    /// Makes the elements of `tensors` shorter if they are an outlier among those of all peers. The result is in
    /// `report` when it has succeeded. See [`Communicator::clip_to_median`](crate::Communicator::clip_to_median).
    pub fn clip_to_median(tensors: impl Into<Vec<Target<'a>>>, factor: f64, report: &ClipReport) -> Self {
        let tensors: Vec<_> = tensors.into().iter().map(|it| (it.data_type(), it.span())).collect();
        let report = report.clone();
        Self::new(move |context| {
            check(context, &tensors, factor)?;
            report.take();
            let looked = look(&tensors);
            let failure = looked.as_ref().err().cloned();
            // Nobody gets to see the numbers of a peer whose tensors could not be read.
            let unread = || Looked { tensors: tensors.clone(), norm: 0.0, finite: Finite::All(Nothing {}) };
            let Looked { tensors, norm, finite } = looked.unwrap_or_else(|_| unread());
            let own = Entry { norm, factor, peer: context.me };
            // A peer that knows of no other one is alone; whether that is so is for the master to say.
            let ranks = context.world.ring.len().max(1);
            let half = ranks * ENTRY_BYTES;
            let room = context.backups.take(2 * half);
            let raw = RawTensor::within(&room, 0..half, half..2 * half);
            let part = PartDescriptor::new((ranks * NUMBERS) as u64, DataType::Uint64, ReduceOp::Sum);
            let split = Split::Equal(u32::try_from(ranks).unwrap_or(u32::MAX));
            let gather = context.descriptor(Collective::AllGather(split), vec![part]);
            let beside = Clipping { tensors, own, room: room.clone(), half, report: report.clone() };
            let prepared = Prepared::of(Descriptor { finite, ..gather }, raw);
            Ok(Prepared { rooms: vec![room], beside: vec![Box::new(beside)], failure, ..prepared })
        })
    }
}

fn check(context: &Context<'_>, tensors: &[(DataType, Span)], factor: f64) -> Result<(), Error> {
    if !factor.is_finite() || factor <= 0.0 {
        return Err(Error::InvalidArgument(format!("a factor of {factor}")));
    }
    if context.quantisation.is_some() {
        return Err(Error::InvalidArgument("a clip moves norms, which are not quantised".into()));
    }
    match tensors.iter().find(|(data_type, _)| weighted_type(*data_type).is_none()) {
        Some((data_type, _)) => {
            Err(Error::InvalidArgument(format!("elements of {data_type} are not clipped, floats are")))
        }
        None => Ok(()),
    }
}

/// Tensors with what has been found out about them.
struct Looked {
    /// After what is queued on their streams.
    tensors: Vec<(DataType, Span)>,
    norm: f64,
    /// The statement of the vote about their values.
    finite: Finite,
}

/// Looks at all elements. Those on devices are copied for it, whole: the norm is that of the same elements on the host,
/// to the last bit.
fn look(tensors: &[(DataType, Span)]) -> Result<Looked, Error> {
    let settled = tensors.iter().map(|(data_type, data)| Ok((*data_type, data.settled()?)));
    let settled: Vec<(DataType, Span)> = settled.collect::<Result<_, Error>>()?;
    let contents =
        settled.iter().map(|(data_type, data)| Ok((*data_type, data.read(0..data.range().len())?)));
    let contents: Vec<(DataType, Cow<'_, [u8]>)> = contents.collect::<Result<_, Error>>()?;
    let squares = |(data_type, elements): &(DataType, Cow<'_, [u8]>), scale| {
        sum_of_squares(*data_type, elements, scale)
    };
    let norm = norm(|scale| contents.iter().map(|it| squares(it, scale)).sum());
    let finite = finite(&contents, norm);
    drop(contents);
    Ok(Looked { tensors: settled, norm, finite })
}

/// The statement of the vote: the first value that is not finite, if there is one.
fn finite(tensors: &[(DataType, Cow<'_, [u8]>)], norm: f64) -> Finite {
    if norm.is_finite() {
        return Finite::All(Nothing {});
    }
    let bad = (0..).zip(tensors).find_map(|(tensor, (data_type, data))| {
        let element = first_non_finite(*data_type, data)?;
        Some(NotFinite { tensor, element: element as u64 })
    });
    bad.map_or(Finite::All(Nothing {}), Finite::Not)
}

/// The entry that a peer gives about itself.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    norm: f64,
    factor: f64,
    peer: PeerId,
}

impl Entry {
    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let peer = self.peer.0;
        let numbers = [self.norm.to_bits(), self.factor.to_bits(), (peer >> 64) as u64, peer as u64];
        let mut bytes = [0; ENTRY_BYTES];
        for (to, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *to = number.to_ne_bytes();
        }
        bytes
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let number = |index: usize| bytes.as_chunks().0.get(index).map_or(0, |it| u64::from_ne_bytes(*it));
        let peer = PeerId(u128::from(number(2)) << 64 | u128::from(number(3)));
        Self { norm: f64::from_bits(number(0)), factor: f64::from_bits(number(1)), peer }
    }
}

/// Where the numbers of all are, and what they mean for the caller's tensors.
#[derive(Debug)]
struct Clipping {
    tensors: Vec<(DataType, Span)>,
    own: Entry,
    room: Arc<Backup>,
    half: usize,
    report: ClipReport,
}

impl Beside for Clipping {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        self.tensors.iter().map(|(_, data)| (data.range(), true)).collect()
    }

    fn before(&self, place: Place, _: &[RawTensor], _: Signals) {
        let start = place.rank * ENTRY_BYTES;
        self.room.fill(start..start + ENTRY_BYTES, |out| out.copy_from_slice(&self.own.encode()));
    }

    fn after(&self, place: Place, _: &[RawTensor]) -> Result<(), Error> {
        let decode = |bytes: &[u8]| -> Vec<Entry> {
            bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(Entry::decode).collect()
        };
        let clip = Clip::judge(&self.room.view(self.half..2 * self.half, decode), place.rank)?;
        if clip.scale < 1.0 {
            let Clip { norm, median, .. } = clip;
            log::info!("clipped the own contribution: its norm was {norm}, the median of all is {median}");
            for (data_type, data) in &self.tensors {
                data.pieces().try_for_each(|piece| {
                    data.change(piece, |elements| scale(*data_type, elements, clip.scale))
                })?;
            }
        }
        self.report.put(clip);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(norms: &[f64], factor: f64) -> Clip {
        let entry = |(index, norm): (u128, &f64)| Entry { norm: *norm, factor, peer: PeerId(index) };
        let entries: Vec<Entry> = (1..).zip(norms).map(entry).collect();
        Clip::judge(&entries, 0).expect("one factor")
    }

    fn scales(norms: &[f64], factor: f64) -> Vec<f64> {
        judged(norms, factor).peers.iter().map(|it| it.scale).collect()
    }

    #[test]
    fn the_median_is_one_of_the_norms() {
        for (norms, median) in [
            (&[7.0][..], 7.0),
            (&[9.0, 4.0], 4.0),
            (&[3.0, 1.0, 2.0], 2.0),
            (&[8.0, 1.0, 4.0, 2.0], 2.0),
            (&[0.0, 5.0, 0.0], 0.0),
        ] {
            assert_eq!(judged(norms, 1.0).median, median, "{norms:?}");
        }
    }

    #[test]
    fn who_is_beyond_the_bound_ends_at_it() {
        assert_eq!(scales(&[1.0, 2.0, 16.0], 2.0), [1.0, 1.0, 0.25]);
        assert_eq!(scales(&[1.0, 2.0, 4.0], 2.0), [1.0, 1.0, 1.0]);
        // Of two the larger one is bounded by the smaller one.
        assert_eq!(scales(&[1.0, 8.0], 2.0), [1.0, 0.25]);
        // A factor below 1 makes shorter what is alone, or like the others.
        assert_eq!(scales(&[8.0], 0.5), [0.5]);
        assert_eq!(scales(&[0.0, 0.0, 9.0], 2.0), [1.0; 3]);
        assert_eq!(scales(&[0.0, 1.0, 1.0], 2.0), [1.0; 3]);
        // A bound beyond all numbers bounds nothing.
        assert_eq!(scales(&[f64::MAX; 3], 2.0), [1.0; 3]);
        let clip = judged(&[16.0, 2.0, 1.0], 2.0);
        assert_eq!((clip.norm, clip.scale), (16.0, 0.25));
        assert_eq!(clip.outliers().map(|it| it.peer).collect::<Vec<_>>(), [PeerId(1)]);
    }

    #[test]
    fn factors_that_differ_are_named_with_their_peers() {
        let entry = |peer, factor| Entry { norm: 1.0, factor, peer: PeerId(peer) };
        let error = Clip::judge(&[entry(1, 2.0), entry(2, 2.0), entry(3, 2.5)], 1).expect_err("they differ");
        let wanted = format!("factors that differ: 2 by {}, 2.5 by {}", PeerId(1), PeerId(3));
        assert!(error.to_string().contains(&wanted), "{error}");
    }

    #[test]
    fn what_a_peer_says_is_read_as_it_was_written() {
        let entry = Entry { norm: 0.1, factor: 3.0, peer: PeerId(u128::MAX - 7) };
        assert_eq!(Entry::decode(&entry.encode()), entry);
    }
}
