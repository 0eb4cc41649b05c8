//! The ring of Patarasuk and Yuan ("Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
//!
//! A chunk of a [`Shape`](super::Shape) starts at the rank after its owner if the shape folds, else at the owner, and
//! goes from each rank to the next one. It makes `n - 1` hops in which it is folded, if the shape folds; the last rank
//! that gets it is the owner. Then it makes `n - 1` hops in which it replaces what is there, if the shape distributes.
//! A chunk that only moves makes as many hops as it is from its source to its owner; the ranks between pass it on. A
//! hop is a stage, counted from 0 for every chunk. Each frame runs through its stages on its own: there is no step
//! barrier.
//!
//! So an all-reduce is bandwidth-optimal: n ranks, n chunks, `2 (n - 1)` stages; at stage `s` rank `r` sends chunk
//! `(r - s) mod n` and receives chunk `(r - s - 1) mod n`. A broadcast and a reduce are pipelined chains, one from the
//! root, one to it.

use super::{
    plan::{Frame, Plan},
    step::{Compiler, Hop, Input, Step},
};
use pccl_protocol::Algorithm;

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring;

impl Compiler for Ring {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Ring
    }

    fn steps(&self, plan: &Plan, frame: &Frame) -> Vec<Step> {
        let (ranks, rank, shape) = (plan.ranks(), plan.rank(), plan.shape());
        let (folding, stages) = stages(plan, frame.chunk);
        let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let sends = |stage: usize| if stage < stages { vec![Hop::new(next, stage)] } else { Vec::new() };
        let is_result = |hops: usize| hops >= folding && (shape.distributes() || hops == stages);
        let hops = shape.hops_to(rank, frame.chunk);
        let mut steps = Vec::with_capacity(2);
        if hops == 0 {
            steps.push(Step::new(vec![Input::Own], sends(0), is_result(0)));
        }
        // The chunk comes after that many hops, and again after a round.
        for stage in ((hops + ranks - 1) % ranks..stages).step_by(ranks) {
            let received = Input::Received(Hop::new(before, stage));
            let inputs = if stage < folding { vec![received, Input::Own] } else { vec![received] };
            steps.push(Step::new(inputs, sends(stage + 1), is_result(stage + 1)));
        }
        steps
    }

    fn values_max(&self, _: &Plan) -> usize {
        2
    }

    fn hops(&self, plan: &Plan) -> Option<usize> {
        let rounds = usize::from(plan.shape().folds()) + usize::from(plan.shape().distributes());
        Some(rounds.max(1) * (plan.ranks() - 1))
    }

    fn is_by_chunk(&self) -> bool {
        true
    }
}

/// The stages in which a chunk is folded, and all of them.
fn stages(plan: &Plan, chunk: usize) -> (usize, usize) {
    let (shape, round) = (plan.shape(), plan.ranks() - 1);
    if shape.only_moves() {
        return (0, shape.hops_to(shape.owner(chunk), chunk));
    }
    let folding = if shape.folds() { round } else { 0 };
    (folding, folding + if shape.distributes() { round } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::{super::shape::Shape, *};
    use pccl_protocol::PartDescriptor;
    use pccl_quant::{DataType, ReduceOp};

    fn plans(shape: &Shape) -> Vec<Plan> {
        let parts = [PartDescriptor::new(100, DataType::Float32, ReduceOp::Sum)];
        (0..shape.ranks()).map(|rank| Plan::new(&parts, shape, rank, 512 << 10)).collect()
    }

    /// A chunk, the stages at which it is sent, and those at which it comes, each with whether it is folded.
    type OfChunk = (usize, Vec<usize>, Vec<(usize, bool)>);

    fn stages(plan: &Plan) -> Vec<OfChunk> {
        let of_frame = |frame: Frame| {
            let steps = Ring.steps(plan, &frame);
            let sent = steps.iter().flat_map(|step| &step.sends).map(|hop| hop.stage).collect();
            let received =
                |step: &Step| step.received().map(|hop| (hop.stage, step.streams())).collect::<Vec<_>>();
            (frame.chunk, sent, steps.iter().flat_map(received).collect())
        };
        plan.all_frames().map(of_frame).collect()
    }

    /// The schedule that the ring of an all-reduce has always had, so that ranks of one version agree with those of
    /// another.
    #[test]
    fn an_all_reduce_has_the_schedule_of_the_textbook() {
        for ranks in 2..=9 {
            for plan in plans(&Shape::all_reduce(ranks)) {
                let rank = plan.rank();
                let of_chunk = |chunk: usize, first: usize| {
                    (0..2 * (ranks - 1))
                        .filter(move |stage| (rank + 2 * ranks - stage - first) % ranks == chunk)
                };
                let wanted = |chunk: usize| {
                    let received = of_chunk(chunk, 1).map(|stage| (stage, stage + 1 < ranks));
                    (chunk, of_chunk(chunk, 0).collect(), received.collect())
                };
                assert_eq!(stages(&plan), (0..ranks).map(wanted).collect::<Vec<_>>());
            }
        }
    }

    /// Rank 2 of 4 is the root: rank 1 is the last to receive, and passes nothing on.
    #[test]
    fn a_broadcast_is_a_chain_from_the_root() {
        let all: Vec<_> = plans(&Shape::broadcast(4, 2)).iter().flat_map(stages).collect();
        let got = |stage| vec![(stage, false)];
        let wanted = [(0, vec![2], got(1)), (0, vec![], got(2)), (0, vec![0], vec![]), (0, vec![1], got(0))];
        assert_eq!(all, wanted);
    }

    /// Rank 1 of 3 is the root of a gather: what rank 2 has goes by rank 0, which keeps none of it.
    #[test]
    fn a_chunk_that_moves_goes_by_the_ranks_between() {
        let plans = plans(&Shape::gather(3, 1, &[]));
        let of = |rank: usize, chunk: usize| {
            let frame = plans[rank].frames_of(chunk).next().expect("a frame");
            let steps = Ring.steps(&plans[rank], &frame);
            steps.iter().map(|step| (step.is_own(), step.sends.len(), step.is_result)).collect::<Vec<_>>()
        };
        assert_eq!([of(0, 0), of(1, 0), of(2, 0)], [vec![(true, 1, false)], vec![(false, 0, true)], vec![]]);
        assert_eq!([of(0, 1), of(1, 1), of(2, 1)], [vec![], vec![(true, 0, true)], vec![]]);
        let by_rank_0 = [vec![(false, 1, false)], vec![(false, 0, true)], vec![(true, 1, false)]];
        assert_eq!([of(0, 2), of(1, 2), of(2, 2)], by_rank_0);
    }
}
