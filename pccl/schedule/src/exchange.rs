//! The exchange of whole contributions, for what is small: every rank gets those of all others, and folds them itself.
//!
//! A small operation costs what its hops cost. The ring has `2 (n - 1)` of them; the ring all-gather (Thakur,
//! Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4.1) has
//! `n - 1`, for more bytes: each rank sends its contribution to the next one, and so on. Where all ranks are connected
//! with each other, there is one hop: every rank sends its contribution to every other. Or there are two: the
//! contributions go to rank 0 only, and it sends the result back.
//!
//! All tensors of the operation travel as one frame. Its stage is the rank whose contribution it carries, or the number
//! of ranks for the result.

use super::{
    plan::{Frame, Plan},
    step::{Compiler, Hop, Input, Step},
};
use pccl_protocol::Algorithm;

/// The rank that folds for all, if one does.
const ROOT: usize = 0;

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    /// All-gather, direct, or reduce and broadcast.
    pub(crate) algorithm: Algorithm,
    /// Bytes of a contribution.
    pub(crate) bytes: usize,
}

impl Compiler for Exchange {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    fn steps(&self, plan: &Plan, frame: &Frame) -> Vec<Step> {
        let (ranks, rank) = (plan.ranks(), plan.rank());
        let mut steps = Vec::with_capacity(if self.algorithm == Algorithm::AllGather { ranks } else { 2 });
        steps.extend(self.folding_step(plan, frame));
        match self.algorithm {
            Algorithm::ReduceBroadcast if rank == ROOT => {}
            Algorithm::ReduceBroadcast => {
                steps.push(Step::new(vec![Input::Own], vec![Hop::new(ROOT, rank)], false));
                steps.push(Step::new(vec![Input::Received(Hop::new(ROOT, ranks))], Vec::new(), true));
            }
            Algorithm::AllGather => {
                let next = (rank + 1) % ranks;
                for whose in (0..ranks).filter(|whose| *whose != next) {
                    steps.push(Step::new(vec![self.input(plan, whose)], vec![Hop::new(next, whose)], false));
                }
            }
            _ => steps.push(Step::new(vec![Input::Own], to_all(plan, rank), false)),
        }
        steps
    }

    /// The elements of a chunk begin in the fold with the rank of that number, as on the ring: so all algorithms give
    /// the same bytes.
    fn folding_step(&self, plan: &Plan, frame: &Frame) -> Option<Step> {
        let (ranks, rank) = (plan.ranks(), plan.rank());
        let all = || (0..ranks).map(|step| self.input(plan, (frame.chunk + step) % ranks)).collect();
        match self.algorithm {
            Algorithm::ReduceBroadcast if rank == ROOT => Some(Step::new(all(), to_all(plan, ranks), true)),
            Algorithm::ReduceBroadcast => None,
            _ => Some(Step::new(all(), Vec::new(), true)),
        }
    }

    fn whole(&self) -> Option<Frame> {
        Some(Frame { part: 0, chunk: 0, slot: 0, offset: 0, len: self.bytes })
    }
}

impl Exchange {
    /// The contribution of a rank, which others may pass on.
    fn input(&self, plan: &Plan, whose: usize) -> Input {
        let (ranks, rank) = (plan.ranks(), plan.rank());
        let from = if self.algorithm == Algorithm::AllGather { (rank + ranks - 1) % ranks } else { whose };
        if whose == rank { Input::Own } else { Input::Received(Hop::new(from, whose)) }
    }
}

/// To all other ranks.
fn to_all(plan: &Plan, stage: usize) -> Vec<Hop> {
    let (ranks, rank) = (plan.ranks(), plan.rank());
    (1..ranks).map(|step| Hop::new((rank + step) % ranks, stage)).collect()
}
