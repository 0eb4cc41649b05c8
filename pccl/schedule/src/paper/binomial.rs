//! A broadcast along a binomial tree, for tests: in each round every rank that has the tensor sends it to another one,
//! so that all have it after `log2(n)` rounds (Thakur, Rabenseifner and Gropp, "Optimization of collective
//! communication operations in MPICH", 2005, section 4.3). It shows how much a new algorithm is.

use pccl_protocol::Algorithm;
use pccl_schedule::{Compiler, Frame, Hop, Input, Plan, Step};

/// See the module's documentation. It carries out shapes that fold nothing: each chunk goes from its owner to all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binomial;

impl Compiler for Binomial {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Pairwise
    }

    /// Ranks count from the owner on. Rank `r` has the tensor from the rank that is `r` without its lowest bit, and
    /// sends it to those that are `r` with a lower bit. The stage is the rank that sends.
    fn steps(&self, plan: &Plan, frame: &Frame) -> Vec<Step> {
        let (ranks, owner) = (plan.ranks(), plan.start_of(frame.chunk));
        let from_owner = (plan.rank() + ranks - owner) % ranks;
        let rank = |from_owner: usize| (from_owner + owner) % ranks;
        let lowest_bit = match from_owner {
            0 => ranks.next_power_of_two(),
            _ => from_owner & from_owner.wrapping_neg(),
        };
        // The rank with most others behind it comes first.
        let bits =
            std::iter::successors(Some(lowest_bit / 2), |bit| Some(bit / 2)).take_while(|bit| *bit > 0);
        let others = bits.map(|bit| from_owner + bit).filter(|other| *other < ranks);
        let sends = others.map(|other| Hop::new(rank(other), plan.rank())).collect();
        let input = match from_owner {
            0 => Input::Own,
            _ => {
                let parent = rank(from_owner - lowest_bit);
                Input::Received(Hop::new(parent, parent))
            }
        };
        vec![Step::new(vec![input], sends, true)]
    }

    fn values_max(&self, _: &Plan) -> usize {
        1
    }

    fn is_by_chunk(&self) -> bool {
        true
    }
}
