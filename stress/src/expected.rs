//! Results that every collective of a job has to leave at each rank: the supervisor's own calculation.

use crate::{
    fold,
    workload::{Buffer, Collective, Job, Part, Place, Workload, checksum},
};
use half::f16;
use pccl::ReduceOp;

/// The checksums that the peers of a ring, in its order, have to report for the job of `(step, tag)`. `root` is a
/// member of the ring if the collective has one. `None` if nothing can be computed.
pub(crate) fn checksums(
    workload: &Workload,
    (step, tag): (u64, u64),
    ring: &[u128],
    root: Option<u128>,
    pairwise: bool,
) -> Option<Vec<u64>> {
    let job = workload.job(step, tag)?;
    let ranks = ring.len();
    let inputs: Vec<Vec<Buffer>> = ring
        .iter()
        .enumerate()
        .map(|(rank, &peer)| workload.inputs(peer, step, &job, Place { rank, ranks }))
        .collect();
    let root = || Place::of(root?, ring).map(|place| place.rank);
    let same = |buffers: &[Buffer]| vec![checksum(buffers); ranks];
    let Some(part) = job.parts.first() else { return Some(same(&[])) };
    let [send, _] = workload.pair_jobs(step);
    let firsts: Vec<&Buffer> = inputs.iter().map(|buffers| &buffers[0]).collect();
    Some(match job.collective {
        Collective::Barrier => same(&[]),
        Collective::Send => firsts.iter().map(|input| checksum([*input])).collect(),
        Collective::Recv => {
            let from = |rank| ring[Place { rank, ranks }.previous()];
            let sent = |rank| checksum(&workload.inputs(from(rank), step, &send, Place { rank, ranks }));
            (0..ranks).map(sent).collect()
        }
        Collective::AllReduce => same(&all_reduce(&job, &inputs, pairwise)?),
        Collective::Broadcast => same(&[rounded(firsts[root()?], part)?]),
        Collective::AllGather(_) => {
            let parts: Option<Vec<Buffer>> = firsts.iter().map(|input| rounded(input, part)).collect();
            same(&[concatenated(&parts?)?])
        }
        Collective::Reduce => {
            let root = root()?;
            let result = fold::to_owner(&firsts, root, 0..part.count, part.op, part.coding)?;
            // The others keep theirs.
            let of_rank = |rank: usize| checksum([if rank == root { &result } else { firsts[rank] }]);
            (0..ranks).map(of_rank).collect()
        }
        Collective::ReduceScatter(_) => {
            let mut begin = 0;
            let of_rank = |(rank, count)| {
                let elements = begin..begin + count;
                begin += count;
                Some(checksum([&fold::to_owner(&firsts, rank, elements, part.op, part.coding)?]))
            };
            job.counts(ranks).into_iter().enumerate().map(of_rank).collect::<Option<_>>()?
        }
        Collective::AllToAll => {
            let own = |rank: usize| {
                let part = |input: &&Buffer| input.part(rank * part.count..(rank + 1) * part.count);
                concatenated(&firsts.iter().map(part).collect::<Vec<_>>()).map(|all| checksum([&all]))
            };
            (0..ranks).map(own).collect::<Option<_>>()?
        }
        Collective::Gather => {
            let whole = concatenated(&firsts.iter().copied().cloned().collect::<Vec<_>>())?;
            let (root, nothing) = (root()?, whole.part(0..0));
            (0..ranks).map(|rank| checksum([if rank == root { &whole } else { &nothing }])).collect()
        }
        Collective::WeightedAverage => {
            let weights: Vec<f64> = ring.iter().map(|&peer| workload.weight(peer, step, &job)).collect();
            same(&[weighted_average(&firsts, &weights, part, pairwise)?])
        }
    })
}

fn all_reduce(job: &Job, inputs: &[Vec<Buffer>], pairwise: bool) -> Option<Vec<Buffer>> {
    let parts = job.parts.iter().enumerate();
    let result = parts.map(|(index, part)| {
        let of_part: Vec<&Buffer> = inputs.iter().map(|buffers| &buffers[index]).collect();
        fold::all_reduce(&of_part, part.op, part.coding, pairwise)
    });
    result.collect()
}

/// The values that arrive of a tensor that its owner sends, itself included.
fn rounded(buffer: &Buffer, part: &Part) -> Option<Buffer> {
    match (buffer, part.coding) {
        (_, None) => Some(buffer.clone()),
        (Buffer::F32(values), Some(coding)) => Some(Buffer::F32(coding.rounded(values))),
        (_, Some(_)) => None,
    }
}

/// Buffers of one type, one after the other.
fn concatenated(parts: &[Buffer]) -> Option<Buffer> {
    macro_rules! concatenated {
        ($($variant:ident)*) => {
            match parts.first()? {
                $(Buffer::$variant(_) => {
                    let mut all = Vec::new();
                    for part in parts {
                        let Buffer::$variant(values) = part else { return None };
                        all.extend_from_slice(values);
                    }
                    Some(Buffer::$variant(all))
                })*
            }
        };
    }
    concatenated!(F16 F32 F64 I64 U8)
}

/// Each value times the weight, rounded once; summed as an all-reduce does, and so are the weights; divided, rounded.
fn weighted_average(inputs: &[&Buffer], weights: &[f64], part: &Part, pairwise: bool) -> Option<Buffer> {
    let sum = |buffers: &[Buffer]| {
        fold::all_reduce(&buffers.iter().collect::<Vec<_>>(), ReduceOp::Sum, part.coding, pairwise)
    };
    if let Buffer::F64(_) = inputs.first()? {
        // Weight and values are of one type, and so they are cut as one tensor: the weight first.
        let weighted = inputs.iter().zip(weights).map(|(input, &weight)| match input {
            Buffer::F64(values) => {
                let values = values.iter().map(|value| value * weight);
                Some(Buffer::F64(std::iter::once(weight).chain(values).collect()))
            }
            _ => None,
        });
        let Buffer::F64(sums) = sum(&weighted.collect::<Option<Vec<_>>>()?)? else { return None };
        let (all, sums) = sums.split_first()?;
        return Some(Buffer::F64(sums.iter().map(|sum| sum / all).collect()));
    }
    // The weights are a tensor of one element, whose chunk begins at rank 0. They are sixteenths: exact in any order.
    let all: f64 = weights.iter().sum();
    let weighted = inputs.iter().zip(weights).map(|(input, weight)| match input {
        Buffer::F16(values) => {
            Some(Buffer::F32(values.iter().map(|value| (value.to_f64() * weight) as f32).collect()))
        }
        Buffer::F32(values) => {
            Some(Buffer::F32(values.iter().map(|value| (f64::from(*value) * weight) as f32).collect()))
        }
        _ => None,
    });
    let Buffer::F32(sums) = sum(&weighted.collect::<Option<Vec<_>>>()?)? else { return None };
    let quotients = sums.iter().map(|&sum| (f64::from(sum) / all) as f32);
    match inputs.first()? {
        Buffer::F32(_) => Some(Buffer::F32(quotients.collect())),
        Buffer::F16(_) => Some(Buffer::F16(quotients.map(f16::from_f32).collect())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{coding::Coding, workload::Kind};

    fn part(kind: Kind, coding: Option<Coding>) -> Part {
        Part { kind, op: ReduceOp::Sum, count: 1, coding }
    }

    #[test]
    fn weighted_averages_by_hand() {
        let average = |inputs: &[Buffer], weights: &[f64], part: &Part| {
            weighted_average(&inputs.iter().collect::<Vec<_>>(), weights, part, false)
        };
        let inputs = [vec![1.0, 4.0], vec![5.0, 8.0]].map(Buffer::F32);
        let f32 = part(Kind::F32, None);
        assert_eq!(average(&inputs, &[3.0, 1.0], &f32), Some(Buffer::F32(vec![2.0, 5.0])));
        let inputs = [vec![1.0], vec![5.0]].map(Buffer::F64);
        assert_eq!(average(&inputs, &[1.0, 3.0], &part(Kind::F64, None)), Some(Buffer::F64(vec![4.0])));
        let inputs = [2048.0, 2050.0].map(|value| Buffer::F16(vec![f16::from_f32(value)]));
        // 2049 lies between two halves, and goes to the even one.
        let even = Buffer::F16(vec![f16::from_f32(2048.0)]);
        assert_eq!(average(&inputs, &[1.0, 1.0], &part(Kind::F16, None)), Some(even));
        // 257 travels as 256, and the sum, 512, as it is.
        let inputs = [vec![257.0], vec![256.0]].map(Buffer::F32);
        let bf16 = part(Kind::F32, Some(Coding::Bf16));
        assert_eq!(average(&inputs, &[1.0, 1.0], &bf16), Some(Buffer::F32(vec![256.0])));
        assert_eq!(average(&[Buffer::U8(vec![1])], &[1.0], &f32), None);
    }

    #[test]
    fn each_rank_has_what_its_collective_leaves_there() {
        let workload = Workload { seed: 3, elements: 400 };
        let ring = [7, 8, 9];
        for step in 0..6 {
            for job in workload.other_jobs(step) {
                let root = ring[job.root(3)];
                let all =
                    checksums(&workload, (step, job.tag), &ring, Some(root), false).expect("computable");
                let differ = all.iter().any(|sum| *sum != all[0]);
                assert_eq!(differ, !job.collective.is_same_for_all(), "{job:?}");
                let own = |rank: usize| {
                    checksum(&workload.inputs(ring[rank], step, &job, Place { rank, ranks: 3 }))
                };
                if job.collective == Collective::Reduce {
                    for rank in (0..3).filter(|rank| *rank != job.root(3)) {
                        assert_eq!(all[rank], own(rank), "who is not the root keeps its tensor");
                    }
                    assert_ne!(all[job.root(3)], own(job.root(3)));
                }
            }
        }
        assert_eq!(checksums(&workload, (0, 14), &ring, Some(1), false), None, "the root is not there");
    }

    #[test]
    fn a_broadcast_leaves_what_the_root_has_as_it_travels() {
        let values: Vec<f32> = vec![257.0, 1.0];
        let sent = Buffer::F32(values);
        assert_eq!(rounded(&sent, &part(Kind::F32, None)), Some(sent.clone()));
        let travels = Buffer::F32(vec![256.0, 1.0]);
        assert_eq!(rounded(&sent, &part(Kind::F32, Some(Coding::Bf16))), Some(travels));
        let both = concatenated(&[sent.clone(), sent]);
        assert_eq!(both, Some(Buffer::F32(vec![257.0, 1.0, 257.0, 1.0])));
    }
}
