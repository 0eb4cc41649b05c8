//! Branch and bound: proves that no ring is cheaper, where the assignment bound is close enough for that.

use super::{
    assignment::{Assignment, NOBODY, Rules, Scratch},
    budget::Budget,
    costs::Costs,
    patch::{cycles, patched},
};

/// Memory for open nodes, in bytes. With more of them open the search gives up.
const MOST_BYTES: usize = 64 << 20;

/// A part of all rings: those with some edges and without some others.
struct Node {
    assignment: Assignment,
    bound: i64,
    /// Edges that these rings do not have.
    without: Vec<(u32, u32)>,
    /// Peers whose successor is settled.
    settled: Vec<u32>,
}

/// The search: depth first, the best part first. Rings are split where an assignment falls into cycles: its shortest
/// cycle lacks at least one of its edges.
///
/// Carpaneto, Dell'Amico, Toth: "Exact solution of large-scale, asymmetric traveling salesman problems", 1995.
pub(crate) struct Branches<'a> {
    costs: &'a Costs,
    open: Vec<Node>,
    most_open: usize,
    closed: Vec<u64>,
    fixed: Vec<bool>,
    scratch: Scratch,
    /// The best ring found here, if it is better than what others found.
    found: Option<Vec<usize>>,
    /// Parts that were dropped for lack of memory.
    gave_up: bool,
}

impl<'a> Branches<'a> {
    /// Begins with the complete assignment of all edges.
    pub(crate) fn new(costs: &'a Costs, root: Assignment) -> Self {
        let n = costs.n;
        let bytes = n * 40 + 200;
        let bound = root.bound();
        Self {
            costs,
            open: vec![Node { assignment: root, bound, without: vec![], settled: vec![] }],
            most_open: MOST_BYTES / bytes,
            closed: vec![0; n * n.div_ceil(64)],
            fixed: vec![false; n],
            scratch: Scratch::default(),
            found: None,
            gave_up: false,
        }
    }

    /// The least that any ring can cost, `best` being known; equal to `best` once that is proven.
    pub(crate) fn bound(&self, best: i64) -> i64 {
        let open = self.open.iter().map(|node| node.bound).min();
        open.unwrap_or(best).min(best)
    }

    /// Nothing is left to do, or it cannot be done here.
    pub(crate) fn is_over(&self) -> bool {
        self.open.is_empty() || self.gave_up
    }

    /// A ring that is better than any given to `run`, once.
    pub(crate) fn take_found(&mut self) -> Option<Vec<usize>> {
        self.found.take()
    }

    /// Looks at `number` parts, or fewer if the time is over. Rings of cost `best` and more are of no interest.
    pub(crate) fn run(&mut self, number: usize, mut best: i64, budget: &mut Budget<'_>) {
        for _ in 0..number {
            if self.gave_up || budget.is_over() {
                return;
            }
            let Some(node) = self.open.pop() else { return };
            if node.bound >= best {
                continue;
            }
            let cycles = cycles(&node.assignment.next);
            if let [ring] = cycles.as_slice() {
                best = node.bound;
                self.found = Some(ring.clone());
                continue;
            }
            if let Some(ring) = patched(self.costs, &node.assignment, budget) {
                let cost = self.costs.ring(&ring);
                if cost < best {
                    best = cost;
                    self.found = Some(ring);
                }
            }
            if self.open.len() + self.costs.n > self.most_open {
                self.open.push(node);
                self.gave_up = true;
                return;
            }
            self.split(&node, &cycles, best, budget);
        }
    }

    /// Opens the parts of a node, the one with the least bound last. If the time is over meanwhile, the node stays.
    fn split(&mut self, node: &Node, cycles: &[Vec<usize>], best: i64, budget: &mut Budget<'_>) {
        self.mark(node, true);
        let is_settled = |peer: &usize| self.fixed[*peer];
        let loose = |cycle: &&Vec<usize>| cycle.iter().filter(|peer| !is_settled(peer)).count();
        let Some(cycle) = cycles.iter().min_by_key(loose) else { return };
        let edges: Vec<usize> = cycle.iter().copied().filter(|peer| !is_settled(peer)).collect();
        let mut parts = Vec::new();
        let mut in_time = true;
        let mut settled = node.settled.clone();
        for &from in &edges {
            if budget.is_over() {
                in_time = false;
                break;
            }
            let to = node.assignment.next[from];
            if let Some((assignment, bound)) = self.without_edge(node, from, best) {
                let mut without = node.without.clone();
                without.push((from as u32, to));
                parts.push(Node { assignment, bound, without, settled: settled.clone() });
            }
            self.fixed[from] = true;
            settled.push(from as u32);
        }
        edges.iter().for_each(|&peer| self.fixed[peer] = false);
        self.mark(node, false);
        if in_time {
            parts.sort_by_key(|part| std::cmp::Reverse(part.bound));
            self.open.extend(parts);
        } else {
            let Node { assignment, bound, without, settled } = node;
            let (assignment, bound) = (assignment.clone(), *bound);
            self.open.push(Node { assignment, bound, without: without.clone(), settled: settled.clone() });
        }
    }

    /// The best assignment of a node without the edge from this peer, if it is better than `best`.
    fn without_edge(&mut self, node: &Node, from: usize, best: i64) -> Option<(Assignment, i64)> {
        let mut assignment = node.assignment.clone();
        let to = std::mem::replace(&mut assignment.next[from], NOBODY);
        assignment.before[to as usize] = NOBODY;
        let (word, bit) = self.bit(from, to);
        self.closed[word] |= bit;
        let rules = Rules { closed: &self.closed, fixed: &self.fixed };
        // The price of the edge taken out is that of both its ends; what replaces it costs at least as much.
        let limit = best - node.bound;
        let found = assignment.augment(self.costs, from, limit, rules, &mut self.scratch);
        self.closed[word] &= !bit;
        let bound = assignment.bound();
        found.then_some((assignment, bound))
    }

    fn bit(&self, from: usize, to: u32) -> (usize, u64) {
        let words = self.costs.n.div_ceil(64);
        (from * words + to as usize / 64, 1 << (to % 64))
    }

    /// Puts the conditions of a node in force, or takes them away.
    fn mark(&mut self, node: &Node, on: bool) {
        for &(from, to) in &node.without {
            let (word, bit) = self.bit(from as usize, to);
            if on { self.closed[word] |= bit } else { self.closed[word] &= !bit }
        }
        node.settled.iter().for_each(|&peer| self.fixed[peer as usize] = on);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        rings::held_karp,
        test_support::{forever, looks, sparse, tied, uneven},
    };

    fn solved(costs: &Costs, clock: &mut dyn FnMut() -> std::time::Duration) -> (Option<i64>, i64, bool) {
        let root = Assignment::solve(costs, &mut Budget::new(&mut forever()));
        let mut branches = Branches::new(costs, root);
        let mut best = i64::MAX;
        branches.run(1_000_000, best, &mut Budget::new(clock));
        if let Some(ring) = branches.take_found() {
            best = costs.ring(&ring);
        }
        (Some(best).filter(|best| *best < i64::MAX), branches.bound(best), branches.is_over())
    }

    #[test]
    fn agrees_with_dynamic_programming() {
        for seed in 0..90 {
            let n = 3 + seed as usize % 10;
            let matrix = match seed % 3 {
                0 => tied(n, seed),
                1 => uneven(n, seed),
                _ => sparse(n, seed, 0.8),
            };
            let costs = Costs::of_sum(&matrix, f64::NEG_INFINITY);
            let known: Vec<usize> = (0..n).collect();
            let exact = held_karp::cheapest(&costs, &known, &mut Budget::new(&mut forever())).unwrap();
            let (best, bound, over) = solved(&costs, &mut forever());
            assert_eq!(
                (best, bound, over),
                (Some(costs.ring(&exact)), costs.ring(&exact), true),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn the_bound_holds_whenever_the_time_is_over() {
        let costs = Costs::of_sum(&uneven(30, 3), f64::NEG_INFINITY);
        let (best, _, over) = solved(&costs, &mut forever());
        assert!(over);
        for number in [1, 2, 3, 5, 10, 30, 100] {
            let (_, bound, _) = solved(&costs, &mut looks(number));
            assert!(Some(bound) <= best, "{bound} {best:?}");
        }
    }
}
