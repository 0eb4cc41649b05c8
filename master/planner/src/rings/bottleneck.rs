//! The ring whose slowest edge is as fast as possible.

use super::{
    budget::Budget,
    cheapest::{self, Wish},
    costs::Costs,
    hamiltonian::{self, Answer},
    necessary::{self, Graph, Matching, Obstacle, rates_between},
};
use crate::matrix::Matrix;

/// Part of its time that the search spends on one rate, when it may look for one in vain.
const ONE_RATE: f64 = 0.3;

/// Rates that are looked at to find one in the middle.
const SAMPLE: usize = 4000;

/// There is no ring, or none was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoPlan {
    /// Peers that stand in the way; empty if that is not known.
    pub obstacles: Vec<Obstacle>,
    /// It is certain that there is none; else none was found in the time.
    pub proven: bool,
}

impl std::fmt::Display for NoPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.proven { "there is no ring" } else { "no ring was found in the time" })
    }
}

impl std::error::Error for NoPlan {}

/// A ring, and a rate that the slowest edge of no ring exceeds.
#[derive(Debug, Clone)]
pub(crate) struct Widest {
    pub(crate) order: Vec<usize>,
    pub(crate) bound: f64,
}

/// A reason that there is no ring, of those that are quickly found.
pub(crate) fn no_ring(matrix: &Matrix, budget: &mut Budget<'_>) -> Option<NoPlan> {
    if matrix.is_complete() {
        return None;
    }
    let graph = Graph::new(matrix, f64::NEG_INFINITY);
    let obstacle = graph.obstacle(&mut Matching::new(matrix.peers()), budget)?;
    Some(NoPlan { obstacles: vec![obstacle], proven: true })
}

/// The peers, at most two, without which there is a ring of the others. Only for few peers.
pub(crate) fn in_the_way(matrix: &Matrix, budget: &mut Budget<'_>) -> NoPlan {
    let n = matrix.peers();
    let plain = matrix.with_only(&[]);
    let singles = (0..n).map(|a| vec![a]);
    let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| vec![a, b]));
    let works = |gone: &Vec<usize>| {
        let rest: Vec<usize> = (0..n).filter(|peer| !gone.contains(peer)).collect();
        matches!(hamiltonian::ring(&plain, &rest, f64::NEG_INFINITY, budget), Answer::Ring(_))
    };
    let gone = singles.chain(pairs).find(works);
    NoPlan { obstacles: gone.into_iter().map(Obstacle::Without).collect(), proven: true }
}

/// Exact: tries rates by halving the range. None if the time is over before. There must be a ring.
pub(crate) fn exact(matrix: &Matrix, bound: f64, budget: &mut Budget<'_>) -> Option<Widest> {
    let peers: Vec<usize> = (0..matrix.peers()).collect();
    let mut rates = distinct(rates_between(matrix, f64::NEG_INFINITY, bound));
    let mut best: Option<Widest> = None;
    // The bound is the answer more often than not.
    let mut at = rates.len().checked_sub(1);
    while let Some(middle) = at {
        match hamiltonian::ring(matrix, &peers, rates[middle], budget) {
            Answer::OutOfTime => return None,
            Answer::None => rates.truncate(middle),
            Answer::Ring(order) => {
                let rate = matrix.bottleneck(&order);
                rates.retain(|other| *other > rate);
                best = Some(Widest { order, bound: rate });
            }
        }
        at = (!rates.is_empty()).then_some(rates.len() / 2);
    }
    best
}

/// The highest of some rates that is below another one.
fn highest_below(rates: &[f64], other: f64) -> Option<f64> {
    rates.iter().copied().filter(|rate| *rate < other).max_by(f64::total_cmp)
}

/// A rate about in the middle of all: of many only a sample is put in order.
fn middle(rates: &[f64]) -> Option<f64> {
    let mut sample: Vec<f64> = rates.iter().copied().step_by(rates.len() / SAMPLE + 1).collect();
    let middle = sample.len() / 2;
    (!sample.is_empty()).then(|| *sample.select_nth_unstable_by(middle, f64::total_cmp).1)
}

fn distinct(mut rates: Vec<f64>) -> Vec<f64> {
    rates.sort_unstable_by(f64::total_cmp);
    rates.dedup();
    rates
}

/// The widest ring that is found in the time, at least as wide as `known` and with as few crossings.
pub(crate) fn search(
    matrix: &Matrix,
    known: Vec<usize>,
    bound: f64,
    wish: Wish,
    budget: &mut Budget<'_>,
) -> Widest {
    let mut search =
        Search { matrix, crossings: matrix.crossings(&known), best: Widest { order: known, bound }, wish };
    let mut tries = 0;
    // Rates at which nothing was found, though a ring is possible, are tried again with what time is left.
    while !budget.is_over() && search.round(tries, budget) {
        tries += 1;
    }
    search.best
}

struct Search<'a> {
    matrix: &'a Matrix,
    crossings: usize,
    best: Widest,
    wish: Wish,
}

impl Search<'_> {
    /// Halves the range between the best ring and the bound, beginning with the bound. Whether anything is left open.
    fn round(&mut self, tries: u64, budget: &mut Budget<'_>) -> bool {
        let mut rates = rates_between(self.matrix, self.rate(), self.best.bound);
        let mut next = highest_below(&rates, f64::INFINITY);
        while let Some(rate) = next {
            if budget.is_over() {
                return false;
            }
            let (seen, possible) = budget.share(ONE_RATE, |budget| self.attempt(rate, tries, budget));
            if !possible {
                self.best.bound = highest_below(&rates, rate).unwrap_or(self.rate());
            }
            if budget.is_over() {
                return false;
            }
            let best = self.rate();
            rates.retain(|other| *other > best && (seen || *other < rate));
            next = middle(&rates);
        }
        self.rate() < self.best.bound
    }

    fn rate(&self) -> f64 {
        self.matrix.bottleneck(&self.best.order)
    }

    /// Looks for a ring of at least this rate: whether one was found, and whether one is possible.
    fn attempt(&mut self, rate: f64, tries: u64, budget: &mut Budget<'_>) -> (bool, bool) {
        let costs = Costs::of_lack(self.matrix, rate);
        let enough = costs.charge(self.crossings);
        let seed = self.wish.seed.wrapping_add(tries.wrapping_mul(0x9e37));
        let wish = Wish { enough, hopeless: enough, seed, ..self.wish };
        let found = cheapest::ring(&costs, &[&self.best.order], 0, wish, budget);
        let better = found.cost < costs.broken
            && self.matrix.crossings(&found.order) <= self.crossings
            && self.matrix.bottleneck(&found.order) > self.rate();
        if better {
            self.best.order = found.order;
        }
        (found.cost <= enough, found.bound <= enough)
    }
}

/// The rate bound that follows from what every ring needs.
pub(crate) fn bound(matrix: &Matrix, budget: &mut Budget<'_>) -> f64 {
    necessary::bound(matrix, budget)
}
