//! The cheapest ring: exact for few peers, else the best that is found in the time, with a bound.

use super::{
    assignment::Assignment,
    branch::Branches,
    budget::Budget,
    costs::Costs,
    family::Family,
    held_karp,
    kicks::{Kicks, NEIGHBOURS},
    patch::{nearest, patched},
    tour::Neighbours,
};

/// Up to this many peers an exact search takes less than a millisecond and is tried first.
const AT_ONCE: usize = 12;
/// Most peers for branch and bound; for more of them one step takes too long.
const BRANCH_PEERS: usize = 400;
/// For fewer peers families are of no use, for more the first one takes too long.
const FAMILY_PEERS: std::ops::RangeInclusive<usize> = 8..=500;
/// Kicks, meetings of a family, and parts of branch and bound, in the first slice; later slices are longer.
const FIRST_KICKS: usize = 2000;
const FIRST_MEETINGS: usize = 100;
const FIRST_BRANCHES: usize = 100;

/// A request for a cheap ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Up to this many peers exactly.
    pub(crate) exact_peers: usize,
    pub(crate) seed: u64,
    /// Branch and bound as well.
    pub(crate) prove: bool,
    /// A ring as cheap as this is enough.
    pub(crate) enough: i64,
    /// If no ring can be as cheap as this, nothing more is asked.
    pub(crate) hopeless: i64,
}

/// A ring and what is known about all others.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) order: Vec<usize>,
    pub(crate) cost: i64,
    /// No ring costs less.
    pub(crate) bound: i64,
}

/// Searches for the cheapest ring; `known` are rings to begin with, `bound` is what every ring is known to cost at
/// least. Always gives a ring, but that may use edges that must not be used: it then costs at least `costs.broken`.
pub(crate) fn ring(
    costs: &Costs,
    known: &[&[usize]],
    bound: i64,
    wish: Wish,
    budget: &mut Budget<'_>,
) -> Found {
    let n = costs.n;
    let first = (known.is_empty() || !budget.is_over()).then(|| nearest(costs, 0));
    let starts = known.iter().map(|ring| ring.to_vec()).chain(first);
    let start = starts.min_by_key(|ring| costs.ring(ring)).unwrap_or_default();
    let mut found = Found { cost: costs.ring(&start), order: start, bound: bound.max(costs.least) };
    if n <= AT_ONCE.min(wish.exact_peers) && found.solve_exactly(costs, budget) {
        return found;
    }
    let assignment = Assignment::solve(costs, budget);
    found.bound = found.bound.max(assignment.bound());
    if assignment.is_complete()
        && let Some(ring) = patched(costs, &assignment, budget)
    {
        found.offer(costs, ring);
    }
    if found.is_over(wish) || budget.is_over() {
        return found;
    }
    if n <= wish.exact_peers.min(held_karp::MOST) && found.solve_exactly(costs, budget) {
        return found;
    }
    let key = |from: usize, to: usize| assignment.reduced(costs, from, to);
    if let Some(neighbours) = Neighbours::new(costs, NEIGHBOURS, key, budget) {
        search(costs, &neighbours, assignment, wish, &mut found, budget);
    }
    found
}

/// Kicks, families and branches in turn, in slices that are counted, not timed: the same seed takes the same way.
fn search(
    costs: &Costs,
    neighbours: &Neighbours,
    root: Assignment,
    wish: Wish,
    found: &mut Found,
    budget: &mut Budget<'_>,
) {
    let mut kicks = Kicks::new(costs, neighbours, &found.order, wish.seed, budget);
    // Fewer than five peers have no kicks, only branches.
    let can_branch = root.is_complete() && costs.n <= BRANCH_PEERS && (wish.prove || costs.n < 5);
    let mut branches = can_branch.then(|| Branches::new(costs, root));
    let mut family = FAMILY_PEERS.contains(&costs.n).then(|| Family::new(costs, neighbours, wish.seed));
    let mut slice = 1;
    loop {
        // The bound may rise to what is known already, and then the search is over as well.
        kicks.run(FIRST_KICKS * slice, wish.enough.max(found.bound), budget);
        if kicks.best_cost() < found.cost {
            (found.cost, found.order) = (kicks.best_cost(), kicks.best());
        }
        if found.is_over(wish) || budget.is_over() {
            return;
        }
        if let Some(family) = &mut family {
            family.run(FIRST_MEETINGS * slice, found.cost, wish.enough.max(found.bound), budget);
            if let Some(ring) = family.take_found() {
                found.offer(costs, ring);
                kicks.take(&found.order, found.cost);
            }
            if found.is_over(wish) || budget.is_over() {
                return;
            }
        }
        if let Some(tree) = &mut branches {
            tree.run(FIRST_BRANCHES * slice, found.cost, budget);
            if let Some(ring) = tree.take_found() {
                found.offer(costs, ring);
                kicks.take(&found.order, found.cost);
            }
            found.bound = found.bound.max(tree.bound(found.cost));
            if tree.is_over() {
                branches = None;
            }
        }
        let stuck = costs.n < 5 && branches.is_none();
        if found.is_over(wish) || stuck || budget.is_over() {
            return;
        }
        slice = (slice * 2).min(64);
    }
}

impl Found {
    fn solve_exactly(&mut self, costs: &Costs, budget: &mut Budget<'_>) -> bool {
        let Some(ring) = held_karp::cheapest(costs, &self.order, budget) else { return false };
        self.offer(costs, ring);
        self.bound = self.cost;
        true
    }

    fn offer(&mut self, costs: &Costs, ring: Vec<usize>) {
        let cost = costs.ring(&ring);
        if cost < self.cost {
            (self.cost, self.order) = (cost, ring);
        }
    }

    fn is_over(&self, wish: Wish) -> bool {
        self.cost <= self.bound.max(wish.enough) || self.bound > wish.hopeless
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{forever, sparse, tied, uneven};
    use std::time::Duration;

    fn wish(exact_peers: usize) -> Wish {
        Wish { exact_peers, seed: 1, prove: true, enough: i64::MIN, hopeless: i64::MAX }
    }

    fn solved(costs: &Costs, exact_peers: usize) -> Found {
        let found = ring(costs, &[], 0, wish(exact_peers), &mut Budget::new(&mut forever()));
        assert_eq!(costs.ring(&found.order), found.cost);
        found
    }

    #[test]
    fn searching_finds_and_proves_what_dynamic_programming_finds() {
        for seed in 0..60 {
            let n = 2 + seed as usize % 13;
            for matrix in [tied(n, seed), uneven(n, seed), sparse(n, seed, 0.8)] {
                let costs = Costs::of_sum(&matrix, f64::NEG_INFINITY);
                let (exact, searched) = (solved(&costs, 16), solved(&costs, 0));
                assert_eq!(
                    (exact.cost, exact.bound),
                    (searched.cost, searched.bound),
                    "{n} peers, seed {seed}"
                );
                assert_eq!(exact.cost, exact.bound);
            }
        }
    }

    #[test]
    fn a_clock_that_stands_at_zero_still_gives_a_ring() {
        for n in [1, 2, 5, 16, 300] {
            let costs = Costs::of_sum(&uneven(n, 4), f64::NEG_INFINITY);
            let found = ring(&costs, &[], 0, wish(16), &mut Budget::new(&mut || Duration::ZERO));
            let mut order = found.order;
            order.sort_unstable();
            assert_eq!(order, (0..n).collect::<Vec<_>>());
            assert!(found.bound <= found.cost);
        }
    }
}
