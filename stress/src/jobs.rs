//! Which collectives each step has, in pure functions of the seed. The peers in C and Python have the same in
//! `clients/`.

use crate::coding::Coding;
use crate::workload::{Collective, Job, Kind, Part, RECV_TAG, SEND_TAG, Split, Workload};
use pccl::{
    ReduceOp::{self, Avg, Sum},
    Schedule,
};
use pccl_testkit::random::Rng;
use std::ops::Range;

/// Tag of the operation with many tensors.
pub(crate) const MANY_TAG: u64 = 100;
/// Tags of the operations with many tensors of a pipelined step.
pub(crate) const PIPELINED_TAGS: Range<u64> = 200..204;
/// Tags of the segments of one all-reduce; the call has the first of them.
pub(crate) const SEGMENT_TAGS: Range<u64> = 300..312;
/// Tags of the collectives beside all-reduces. Each step has every other one of them.
pub(crate) const OTHER_TAGS: Range<u64> = 11..21;
/// The last of them.
pub(crate) const BARRIER_TAG: u64 = OTHER_TAGS.end - 1;

/// An all-reduce of `step`. Half of them choose pairwise exchange, in turns of four steps: so each way of quantisation,
/// and each reduction, has both.
fn all_reduce(step: u64, tag: u64, in_place: bool, parts: Vec<Part>) -> Job {
    let schedule = if (step / 4 + tag).is_multiple_of(2) { Schedule::Pairwise } else { Schedule::Automatic };
    Job { tag, collective: Collective::AllReduce, turn: step + tag, in_place, schedule, parts }
}

impl Workload {
    /// The all-reduces that run at the same time in `step`, and at the same time as [`Workload::other_jobs`].
    pub(crate) fn concurrent_jobs(&self, step: u64) -> Vec<Job> {
        use ReduceOp::{Avg, Max, Min, Prod, Sum};
        let mut rng = Rng::keyed(&[self.seed, 1, step]);
        let integer_ops = [Sum, Prod, Max, Min];
        let mut job = |tag, in_place, kind, op, share: usize| {
            let part = Part { kind, op, count: self.size(&mut rng, share), coding: None };
            all_reduce(step, tag, in_place, vec![part])
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
        all_reduce(step, tag, in_place, parts)
    }

    /// The segments of the all-reduce in segments of `step`, each as an all-reduce of its own with a tag of its own:
    /// all of one size but the last one, which may be smaller.
    pub(crate) fn segment_jobs(&self, step: u64) -> Vec<Job> {
        let mut rng = Rng::keyed(&[self.seed, 10, step]);
        let (first, most) = (SEGMENT_TAGS.start, SEGMENT_TAGS.end - SEGMENT_TAGS.start);
        let (number, size) = (rng.between(3, most), self.size(&mut rng, 2));
        let last = rng.between(1, size as u64) as usize;
        let op = if step.is_multiple_of(2) { Avg } else { Sum };
        let coding = Coding::ALL.get((step % 4) as usize).copied();
        let job = |tag| {
            let count = if tag + 1 == first + number { last } else { size };
            // The choice of the callers is the same for all segments.
            Job { tag, ..all_reduce(step, first, true, vec![Part { kind: Kind::F32, op, count, coding }]) }
        };
        (first..first + number).map(job).collect()
    }

    /// The job of `step` with this tag.
    pub(crate) fn job(&self, step: u64, tag: u64) -> Option<Job> {
        if tag == MANY_TAG || PIPELINED_TAGS.contains(&tag) {
            return Some(self.many_job(step, tag));
        }
        let jobs = self.concurrent_jobs(step).into_iter().chain(self.other_jobs(step));
        let jobs = jobs.chain(self.pair_jobs(step)).chain(self.segment_jobs(step));
        jobs.into_iter().find(|job| job.tag == tag)
    }

    /// The operations around the ring of the beginning of `step`, each between two: to the next rank, and from the
    /// previous one. They run at the same time as the others, and are not made again after a failure, which both have
    /// alike.
    pub(crate) fn pair_jobs(&self, step: u64) -> [Job; 2] {
        let mut rng = Rng::keyed(&[self.seed, 9, step]);
        let kind = [Kind::F32, Kind::U8, Kind::F16, Kind::F64, Kind::I64][(step % 5) as usize];
        let part = Part { kind, op: Sum, count: self.size(&mut rng, 8), coding: None };
        let job = |tag, collective| Job {
            tag,
            turn: step,
            collective,
            in_place: true,
            schedule: Schedule::Automatic,
            parts: vec![part.clone()],
        };
        [job(SEND_TAG, Collective::Send), job(RECV_TAG, Collective::Recv)]
    }

    /// The collectives beside all-reduces that run at the same time in `step`.
    pub(crate) fn other_jobs(&self, step: u64) -> Vec<Job> {
        use Collective::{
            AllGather, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, WeightedAverage,
        };
        let mut rng = Rng::keyed(&[self.seed, 8, step]);
        // Each has its turn in every other step.
        let turn = step / 2;
        let op = if turn.is_multiple_of(2) { Avg } else { Sum };
        let weighted = [Kind::F32, Kind::F64, Kind::F32, Kind::F16, Kind::F32][(turn % 5) as usize];
        let mut job = |tag: u64, collective, kind, op, share| {
            // As they are, or in one of the ways; only f32 are quantised.
            let coding = Coding::ALL.get(((turn + tag) % 4) as usize).copied();
            let coding = coding.filter(|_| kind == Kind::F32);
            let part = Part { kind, op, count: self.size(&mut rng, share), coding };
            let parts = if collective == Barrier { Vec::new() } else { vec![part] };
            let way = Schedule::of_turn(step / 4 + tag);
            Job { tag, turn: step + tag, collective, in_place: true, schedule: way, parts }
        };
        let jobs = [
            job(11, Broadcast, Kind::F32, Sum, 4),
            job(12, AllGather(Split::Equal), Kind::F16, Sum, 16),
            job(13, AllGather(Split::Counts), Kind::F32, Sum, 16),
            job(14, Reduce, Kind::F32, op, 4),
            job(15, ReduceScatter(Split::Equal), Kind::F64, op, 16),
            job(16, ReduceScatter(Split::Counts), Kind::F32, op, 16),
            job(17, WeightedAverage, weighted, Sum, 4),
            job(18, AllToAll, Kind::I64, Sum, 16),
            job(19, Gather, Kind::U8, Sum, 16),
            job(BARRIER_TAG, Barrier, Kind::U8, Sum, 16),
        ];
        jobs.into_iter().filter(|job| job.turn.is_multiple_of(2)).collect()
    }

    /// The weight of the peer with this identity in a weighted average: exact in every type.
    pub(crate) fn weight(&self, peer: u128, step: u64, job: &Job) -> f64 {
        let (high, low) = ((peer >> 64) as u64, peer as u64);
        Rng::keyed(&[self.seed, 7, high, low, step, job.tag]).between(1, 4096) as f64 / 16.0
    }
}

/// The schedule of a collective beside all-reduce: a small one would never go around the ring by itself.
trait OfTurn {
    fn of_turn(turn: u64) -> Self;
}

impl OfTurn for Schedule {
    fn of_turn(turn: u64) -> Self {
        [Self::Pairwise, Self::Ring, Self::Automatic][(turn % 3) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Place;
    use std::collections::BTreeSet;

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
    fn segments_are_of_one_size_but_the_last_and_go_one_way() {
        let workload = Workload { seed: 5, elements: 1000 };
        for step in 0..50 {
            let jobs = workload.segment_jobs(step);
            assert!(
                SEGMENT_TAGS
                    .map(|tag| workload.job(step, tag))
                    .eq(SEGMENT_TAGS.map(|tag| jobs.get((tag - SEGMENT_TAGS.start) as usize).cloned()))
            );
            let [first, .., last] = &jobs[..] else { panic!("{} segments", jobs.len()) };
            assert!(last.parts[0].count <= first.parts[0].count);
            for job in &jobs[..jobs.len() - 1] {
                assert_eq!((&job.parts, job.schedule), (&first.parts, first.schedule));
            }
        }
    }

    #[test]
    fn what_one_sends_the_next_one_receives() {
        let workload = Workload { seed: 5, elements: 1000 };
        for step in 0..10 {
            let [send, recv] = workload.pair_jobs(step);
            assert_eq!(send.parts, recv.parts);
            assert_eq!(workload.job(step, SEND_TAG), Some(send));
            assert_eq!(workload.job(step, RECV_TAG), Some(recv));
        }
    }

    #[test]
    fn every_way_of_quantisation_goes_by_both_schedules() {
        let workload = Workload { seed: 5, elements: 1000 };
        let mut seen = std::collections::BTreeSet::new();
        for step in 0..24 {
            let single = workload.concurrent_jobs(step).swap_remove(5);
            for (kind, job) in [("single", single), ("many", workload.many_job(step, MANY_TAG))] {
                let pairwise = job.schedule == Schedule::Pairwise;
                seen.insert((kind, format!("{:?}", job.parts[0].coding), pairwise));
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
    fn every_collective_comes_in_every_way() {
        let workload = Workload { seed: 5, elements: 1000 };
        let mut seen = BTreeSet::new();
        for step in 0..120 {
            let jobs = workload.other_jobs(step);
            assert_eq!(jobs.len(), 5);
            for job in jobs {
                assert_eq!(workload.job(step, job.tag).as_ref(), Some(&job));
                let coding = job.parts.first().and_then(|part| part.coding);
                seen.insert((job.tag, format!("{:?}", job.schedule), format!("{coding:?}")));
            }
        }
        // By three schedules: what has f32 in four ways, the others as they are.
        let ways = |tag: u64| seen.iter().filter(|(of, ..)| *of == tag).count();
        assert_eq!(OTHER_TAGS.map(ways).collect::<Vec<_>>(), [12, 3, 12, 12, 3, 12, 12, 3, 3, 3]);
    }

    #[test]
    fn counts_are_never_all_zero_and_sizes_fit_together() {
        let workload = Workload { seed: 5, elements: 1 };
        for step in 0..12 {
            for job in workload.other_jobs(step).iter().filter(|job| job.collective.split().is_some()) {
                for ranks in 2..6 {
                    let counts = job.counts(ranks);
                    assert!(counts.iter().sum::<usize>() > 0);
                    let places = (0..ranks).map(|rank| Place { rank, ranks });
                    let own = |place| match job.collective {
                        Collective::AllGather(_) | Collective::Gather => job.sent(&job.parts[0], place),
                        Collective::AllToAll => job.sent(&job.parts[0], place) / ranks,
                        _ => job.received(&job.parts[0], place).unwrap_or(0),
                    };
                    assert_eq!(places.map(own).collect::<Vec<_>>(), counts);
                }
            }
        }
    }
}
