//! What peers compute: which all-reduces each step has and what everybody contributes, as pure functions of the run's
//! seed, so that the supervisor can say without asking what the result has to be. The peers in C and Python have the
//! same in `clients/`, so only what is exact in every language may go in here.

use crate::coding::Coding;
use half::f16;
use pccl::ReduceOp;
use pccl_testkit::random::{GOLDEN, Rng, mix};
use std::ops::Range;

/// Tag of the operation with many tensors.
pub(crate) const MANY_TAG: u64 = 100;
/// Tags of the operations with many tensors of a pipelined step.
pub(crate) const PIPELINED_TAGS: Range<u64> = 200..204;

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

/// One all-reduce of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) tag: u64,
    pub(crate) in_place: bool,
    /// The callers choose pairwise exchange.
    pub(crate) pairwise: bool,
    pub(crate) parts: Vec<Part>,
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

/// Half of the operations, in turns of four steps: so each way of quantisation, and each reduction, has both.
fn chooses_pairwise(step: u64, tag: u64) -> bool {
    (step / 4 + tag).is_multiple_of(2)
}

/// What a run computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) seed: u64,
    /// Elements of the largest tensor.
    pub(crate) elements: usize,
}

impl Workload {
    /// The all-reduces that run at the same time in `step`.
    pub(crate) fn concurrent_jobs(&self, step: u64) -> Vec<Job> {
        use ReduceOp::{Avg, Max, Min, Prod, Sum};
        let mut rng = Rng::keyed(&[self.seed, 1, step]);
        let integer_ops = [Sum, Prod, Max, Min];
        let mut job = |tag, in_place, kind, op, share: usize| Job {
            tag,
            in_place,
            pairwise: chooses_pairwise(step, tag),
            parts: vec![Part { kind, op, count: self.size(&mut rng, share), coding: None }],
        };
        let integer_op = integer_ops[(step % 4) as usize];
        let mut jobs = vec![
            job(1, true, Kind::F32, Sum, 1),
            job(2, false, Kind::F64, Avg, 2),
            job(3, true, Kind::I64, integer_op, 4),
            job(4, false, Kind::U8, integer_op, 4),
            job(5, true, Kind::F16, if step.is_multiple_of(2) { Avg } else { Sum }, 8),
            job(6, step.is_multiple_of(4), Kind::F32, if step.is_multiple_of(2) { Sum } else { Avg }, 1),
        ];
        jobs[5].parts[0].coding = Some(Coding::ALL[(step % 3) as usize]);
        jobs
    }

    /// The operation with many tensors of `step` and this tag: its first tensor is the gradient.
    pub(crate) fn many_job(&self, step: u64, tag: u64) -> Job {
        let mut rng = Rng::keyed(&[self.seed, 2, step, tag]);
        let mut part = |kind, op, share| Part { kind, op, count: self.size(&mut rng, share), coding: None };
        let mut parts = vec![
            part(Kind::F32, ReduceOp::Avg, 2),
            part(Kind::I64, ReduceOp::Sum, 8),
            part(Kind::F64, ReduceOp::Min, 8),
        ];
        // Gradients travel as they are, in one of the ways, or in another.
        parts[0].coding = Coding::ALL.get(((step + tag) % 4) as usize).copied();
        let in_place = (step + tag).is_multiple_of(3);
        Job { tag, in_place, pairwise: chooses_pairwise(step, tag), parts }
    }

    /// The job of `step` with this tag.
    pub(crate) fn job(&self, step: u64, tag: u64) -> Option<Job> {
        if tag == MANY_TAG || PIPELINED_TAGS.contains(&tag) {
            return Some(self.many_job(step, tag));
        }
        self.concurrent_jobs(step).into_iter().find(|job| job.tag == tag)
    }

    /// What the peer with this identity puts into the job.
    pub(crate) fn inputs(&self, peer: u128, step: u64, job: &Job) -> Vec<Buffer> {
        let parts = job.parts.iter().enumerate();
        parts
            .map(|(index, part)| {
                let (high, low) = ((peer >> 64) as u64, peer as u64);
                let mut rng = Rng::keyed(&[self.seed, 3, high, low, step, job.tag, index as u64]);
                random_buffer(part.kind, part.count, &mut rng)
            })
            .collect()
    }

    /// About how many bytes an edge carries in one step.
    pub(crate) fn step_bytes(&self) -> u64 {
        // Sum of the shares below, and twice around the ring.
        self.elements as u64 * 23
    }

    /// Mostly near the largest size, now and then a handful: fewer elements than ranks, or just more.
    fn size(&self, rng: &mut Rng, share: usize) -> usize {
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
    fn jobs_depend_on_seed_and_step_only_and_stay_in_bounds() {
        let workload = Workload { seed: 5, elements: 1000 };
        let mut tiny = 0;
        for step in 0..200 {
            let jobs = workload.concurrent_jobs(step);
            assert_eq!(jobs, workload.concurrent_jobs(step));
            for job in jobs
                .iter()
                .chain([&workload.many_job(step, MANY_TAG), &workload.many_job(step, PIPELINED_TAGS.start)])
            {
                assert_eq!(workload.job(step, job.tag).as_ref(), Some(job));
                for part in &job.parts {
                    assert!((1..=1000).contains(&part.count), "{part:?}");
                    tiny += usize::from(part.count < 10);
                }
            }
        }
        assert!(tiny > 50, "{tiny} tensors were tiny");
        assert_eq!(workload.job(0, 77), None);
    }

    #[test]
    fn every_way_of_quantisation_goes_by_both_schedules() {
        let workload = Workload { seed: 5, elements: 1000 };
        let mut seen = std::collections::BTreeSet::new();
        for step in 0..24 {
            let single = workload.concurrent_jobs(step).swap_remove(5);
            for (kind, job) in [("single", single), ("many", workload.many_job(step, MANY_TAG))] {
                seen.insert((kind, format!("{:?}", job.parts[0].coding), job.pairwise));
            }
        }
        assert_eq!(seen.len(), 2 * 3 + 2 * 4);
    }

    #[test]
    fn smallest_workload_has_elements() {
        let workload = Workload { seed: 5, elements: 1 };
        assert!(workload.concurrent_jobs(3).iter().all(|job| job.parts[0].count == 1));
    }

    #[test]
    fn inputs_differ_between_peers_steps_and_tags() {
        let workload = Workload { seed: 5, elements: 100 };
        let sum = |peer, step, tag| {
            let job = Job { tag, ..workload.concurrent_jobs(0)[0].clone() };
            checksum(&workload.inputs(peer, step, &job))
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
