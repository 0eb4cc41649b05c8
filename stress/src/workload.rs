//! The computation of peers: which collectives each step has and what everybody contributes, as pure functions of the
//! run's seed, so that the supervisor can say without asking what the result has to be. The peers in C and Python have
//! the same in `clients/`, so only what is exact in every language may go in here.

use crate::coding::Coding;
use half::f16;
use pccl::{ReduceOp, Schedule};
use pccl_testkit::random::{GOLDEN, Rng, mix};
use std::ops::Range;

/// Tags of what goes to the next rank, and comes from the previous one, in reports. The calls have the first of them.
pub(crate) const SEND_TAG: u64 = 21;
pub(crate) const RECV_TAG: u64 = 22;

/// An element type of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F16,
    F32,
    F64,
    I64,
    U8,
}

/// One tensor of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) kind: Kind,
    pub(crate) op: ReduceOp,
    pub(crate) count: usize,
    /// How it is quantised; only f32 are.
    pub(crate) coding: Option<Coding>,
}

/// One collective of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) tag: u64,
    pub(crate) collective: Collective,
    /// The number that decides which rank is root, and which count each rank has.
    pub(crate) turn: u64,
    /// Of an all-reduce.
    pub(crate) in_place: bool,
    /// The schedule that the callers choose.
    pub(crate) schedule: Schedule,
    pub(crate) parts: Vec<Part>,
}

/// The collective of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    Broadcast,
    AllGather(Split),
    Reduce,
    ReduceScatter(Split),
    WeightedAverage,
    /// Each rank has a part for each rank, all of the same size.
    AllToAll,
    Gather,
    Barrier,
    /// To the next rank.
    Send,
    /// From the previous rank.
    Recv,
}

/// How a tensor is divided among the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    Equal,
    /// Other counts at each rank, given by the caller.
    Counts,
}

/// The place of a peer in the ring that a collective was called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

impl Place {
    /// The place of `peer`, if it is in the ring.
    pub(crate) fn of(peer: u128, ring: &[u128]) -> Option<Self> {
        let rank = ring.iter().position(|&member| member == peer)?;
        Some(Self { rank, ranks: ring.len() })
    }
}

impl Collective {
    /// Whether all peers end with the same bytes.
    pub(crate) fn is_same_for_all(self) -> bool {
        let is_same = !matches!(self, Self::Reduce | Self::ReduceScatter(_) | Self::AllToAll | Self::Gather);
        is_same && !self.is_between_two()
    }

    /// Whether only two peers take part.
    pub(crate) fn is_between_two(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// Whether the call depends on who is in the ring, so that it fails when that is another one.
    pub(crate) fn depends_on_ring(self) -> bool {
        self.has_root() || self.split().is_some()
    }

    pub(crate) fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather)
    }

    pub(crate) fn split(self) -> Option<Split> {
        match self {
            Self::AllGather(split) | Self::ReduceScatter(split) => Some(split),
            Self::AllToAll | Self::Gather => Some(Split::Equal),
            _ => None,
        }
    }
}

impl Place {
    pub(crate) fn next(self) -> usize {
        (self.rank + 1) % self.ranks
    }

    pub(crate) fn previous(self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }
}

impl Job {
    /// The rank of the root, if there is one.
    pub(crate) fn root(&self, ranks: usize) -> usize {
        self.turn as usize % ranks.max(1)
    }

    /// Elements of each rank, of a tensor that is divided.
    pub(crate) fn counts(&self, ranks: usize) -> Vec<usize> {
        let count = self.parts.first().map_or(0, |part| part.count);
        let of_rank = |rank: usize| match self.collective.split() {
            // None, half, or all; never none at all ranks.
            Some(Split::Counts) => (count * ((rank + self.turn as usize) % 3)).div_ceil(2),
            _ => count,
        };
        (0..ranks).map(of_rank).collect()
    }

    /// Elements that a peer puts into a part.
    pub(crate) fn sent(&self, part: &Part, place: Place) -> usize {
        match self.collective {
            Collective::AllGather(_) => self.counts(place.ranks)[place.rank],
            Collective::ReduceScatter(_) | Collective::AllToAll => self.counts(place.ranks).iter().sum(),
            _ => part.count,
        }
    }

    /// Elements that a peer gets in a buffer of its own, if it gets them there.
    pub(crate) fn received(&self, part: &Part, place: Place) -> Option<usize> {
        match self.collective {
            Collective::AllGather(_) | Collective::AllToAll => Some(self.counts(place.ranks).iter().sum()),
            Collective::Gather if place.rank != self.root(place.ranks) => Some(0),
            Collective::Gather => Some(self.counts(place.ranks).iter().sum()),
            Collective::ReduceScatter(_) => Some(self.counts(place.ranks)[place.rank]),
            Collective::AllReduce if !self.in_place => Some(part.count),
            _ => None,
        }
    }
}

/// Numbers of one of the types.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Buffer {
    F16(Vec<f16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    I64(Vec<i64>),
    U8(Vec<u8>),
}

impl Buffer {
    /// Some of its elements.
    pub(crate) fn part(&self, elements: Range<usize>) -> Self {
        match self {
            Self::F16(values) => Self::F16(values[elements].to_vec()),
            Self::F32(values) => Self::F32(values[elements].to_vec()),
            Self::F64(values) => Self::F64(values[elements].to_vec()),
            Self::I64(values) => Self::I64(values[elements].to_vec()),
            Self::U8(values) => Self::U8(values[elements].to_vec()),
        }
    }

    /// As many elements, taken from the beginning again and again, or of value 0 if there are none. The own input is
    /// no right result of two or more peers, so a result that was never written is noticed.
    pub(crate) fn repeated(&self, count: usize) -> Self {
        fn fill<T: Lane>(values: &[T], count: usize) -> Vec<T> {
            let values = if values.is_empty() { &[T::default()][..] } else { values };
            values.iter().copied().cycle().take(count).collect()
        }
        match self {
            Self::F16(values) => Self::F16(fill(values, count)),
            Self::F32(values) => Self::F32(fill(values, count)),
            Self::F64(values) => Self::F64(fill(values, count)),
            Self::I64(values) => Self::I64(fill(values, count)),
            Self::U8(values) => Self::U8(fill(values, count)),
        }
    }
}

/// Evaluates an expression with the vector inside a buffer, whatever its type.
macro_rules! with_vector {
    ($buffer:expr, $data:ident => $result:expr) => {
        match $buffer {
            $crate::workload::Buffer::F16($data) => $result,
            $crate::workload::Buffer::F32($data) => $result,
            $crate::workload::Buffer::F64($data) => $result,
            $crate::workload::Buffer::I64($data) => $result,
            $crate::workload::Buffer::U8($data) => $result,
        }
    };
}
pub(crate) use with_vector;

/// How elements are made and read.
pub(crate) trait Lane: Copy + Default {
    /// An element from random bits; floats are finite and spread over magnitudes, so that a sum in another order rounds
    /// to another result.
    fn from_random(bits: u64) -> Self;
    /// The exact content.
    fn bits(self) -> u64;
}

/// A float of either sign between about 2^-8 and 2^8.
fn random_float(bits: u64) -> f64 {
    let fraction = 1.0 + (bits >> 40) as f64 / (1u64 << 24) as f64;
    let exponent = (bits & 15) as i32 - 8;
    let sign = if bits & 16 == 0 { 1.0 } else { -1.0 };
    sign * fraction * f64::from(exponent).exp2()
}

macro_rules! lane {
    ($ty:ty, $bits:ident => $make:expr, $value:ident => $read:expr) => {
        impl Lane for $ty {
            fn from_random($bits: u64) -> Self {
                $make
            }
            fn bits(self) -> u64 {
                let $value = self;
                $read
            }
        }
    };
}
// By way of f32: whether the direct conversion rounds once or twice depends on the processor.
lane!(f16, bits => Self::from_f32(random_float(bits) as f32), value => u64::from(value.to_bits()));
lane!(f32, bits => random_float(bits) as Self, value => u64::from(value.to_bits()));
lane!(f64, bits => random_float(bits), value => value.to_bits());
lane!(i64, bits => bits as Self, value => value as u64);
lane!(u8, bits => (bits >> 7) as Self, value => u64::from(value));

/// A hash of exact contents, not shared with the library: each element is mixed with its position, and all are added,
/// which arrays can do as well as loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Checksum {
    sum: u64,
    count: u64,
}

impl Checksum {
    pub(crate) fn add(&mut self, bits: u64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(mix(bits.wrapping_add(self.count.wrapping_mul(GOLDEN))));
    }

    pub(crate) fn add_buffer(&mut self, buffer: &Buffer) {
        with_vector!(buffer, data => {
            self.add(data.len() as u64);
            data.iter().for_each(|value| self.add(value.bits()));
        });
    }

    pub(crate) fn value(self) -> u64 {
        self.sum
    }
}

/// The checksum of several buffers.
pub(crate) fn checksum<'a>(buffers: impl IntoIterator<Item = &'a Buffer>) -> u64 {
    let mut sum = Checksum::default();
    buffers.into_iter().for_each(|buffer| sum.add_buffer(buffer));
    sum.value()
}

/// The computation of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) seed: u64,
    /// Elements of the largest tensor.
    pub(crate) elements: usize,
}

impl Workload {
    /// The buffers that the peer with this identity puts into the job, at this place of the ring that it is called for.
    pub(crate) fn inputs(&self, peer: u128, step: u64, job: &Job, place: Place) -> Vec<Buffer> {
        let parts = job.parts.iter().enumerate();
        parts
            .map(|(index, part)| {
                let (high, low) = ((peer >> 64) as u64, peer as u64);
                let mut rng = Rng::keyed(&[self.seed, 3, high, low, step, job.tag, index as u64]);
                random_buffer(part.kind, job.sent(part, place), &mut rng)
            })
            .collect()
    }

    /// About how many bytes an edge carries in one step.
    pub(crate) fn step_bytes(&self) -> u64 {
        // Sum of the shares above, and twice around the ring; of the other collectives, once.
        self.elements as u64 * 27
    }

    /// Mostly near the largest size, now and then a handful: fewer elements than ranks, or just more.
    pub(crate) fn size(&self, rng: &mut Rng, share: usize) -> usize {
        let most = (self.elements / share).max(1) as u64;
        let size =
            if rng.below(8) == 0 { rng.between(1, most.min(9)) } else { rng.between(most / 2 + 1, most) };
        size.min(most) as usize
    }
}

/// `count` random elements.
pub(crate) fn random_buffer(kind: Kind, count: usize, rng: &mut Rng) -> Buffer {
    fn fill<T: Lane>(count: usize, rng: &mut Rng) -> Vec<T> {
        (0..count).map(|_| T::from_random(rng.next())).collect()
    }
    match kind {
        Kind::F16 => Buffer::F16(fill(count, rng)),
        Kind::F32 => Buffer::F32(fill(count, rng)),
        Kind::F64 => Buffer::F64(fill(count, rng)),
        Kind::I64 => Buffer::I64(fill(count, rng)),
        Kind::U8 => Buffer::U8(fill(count, rng)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_differ_between_peers_steps_and_tags() {
        let workload = Workload { seed: 5, elements: 100 };
        let sum = |peer, step, tag| {
            let job = Job { tag, ..workload.concurrent_jobs(0)[0].clone() };
            checksum(&workload.inputs(peer, step, &job, Place { rank: 0, ranks: 2 }))
        };
        let base = sum(1, 0, 1);
        assert_eq!(base, sum(1, 0, 1));
        assert!([sum(2, 0, 1), sum(1 << 64, 0, 1), sum(1, 1, 1), sum(1, 0, 2)].iter().all(|&s| s != base));
    }

    #[test]
    fn checksum_sees_every_bit_and_the_order() {
        let base = checksum(&[Buffer::F32(vec![0.0, 1.0])]);
        assert_ne!(base, checksum(&[Buffer::F32(vec![-0.0, 1.0])]));
        assert_ne!(base, checksum(&[Buffer::F32(vec![1.0, 0.0])]));
        assert_ne!(base, checksum(&[Buffer::F32(vec![0.0]), Buffer::F32(vec![1.0])]));
    }

    #[test]
    fn floats_are_finite_and_of_many_magnitudes() {
        let Buffer::F16(values) = random_buffer(Kind::F16, 1000, &mut Rng::keyed(&[9])) else {
            panic!("kind")
        };
        assert!(values.iter().all(|value| value.is_finite()));
        let large = values.iter().filter(|value| value.to_f32().abs() > 8.0).count();
        assert!((100..900).contains(&large), "{large}");
    }
}
