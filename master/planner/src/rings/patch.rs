//! First rings: cycles of an assignment put together, and the ring that always goes to the nearest peer.

use super::{assignment::Assignment, budget::Budget, costs::Costs};

/// The cycles of a complete assignment, the longest first.
pub(crate) fn cycles(next: &[u32]) -> Vec<Vec<usize>> {
    let mut seen = vec![false; next.len()];
    let mut cycles: Vec<Vec<usize>> = Vec::new();
    for start in 0..next.len() {
        let mut cycle = Vec::new();
        let mut at = start;
        while !seen[at] {
            seen[at] = true;
            cycle.push(at);
            at = next[at] as usize;
        }
        if !cycle.is_empty() {
            cycles.push(cycle);
        }
    }
    cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    cycles
}

/// A ring from a complete assignment: the two longest cycles are joined where that costs least, until one is left.
///
/// None if the time was over before. Karp, "A patching algorithm for the nonsymmetric traveling-salesman problem",
/// 1979. Takes n^2 steps in all.
pub(crate) fn patched(costs: &Costs, assignment: &Assignment, budget: &mut Budget<'_>) -> Option<Vec<usize>> {
    let mut next: Vec<usize> = assignment.next.iter().map(|to| *to as usize).collect();
    let mut cycles = cycles(&assignment.next).into_iter();
    let mut ring = cycles.next().unwrap_or_default();
    for cycle in cycles {
        if budget.is_over() {
            return None;
        }
        let mut best = (i64::MAX, 0, 0);
        for &a in &ring {
            let after = next[a];
            let (row, old) = (costs.row(a), costs.at(a, after));
            for &b in &cycle {
                let change = row[next[b]] + costs.at(b, after) - old - costs.at(b, next[b]);
                best = best.min((change, a, b));
            }
        }
        let (_, a, b) = best;
        next.swap(a, b);
        ring.extend(cycle);
    }
    Some(follow(&next))
}

fn follow(next: &[usize]) -> Vec<usize> {
    let mut at = 0;
    let step = |_| {
        let here = at;
        at = next[at];
        here
    };
    (0..next.len()).map(step).collect()
}

/// The ring that begins at `start` and always goes on to the cheapest peer that is left.
pub(crate) fn nearest(costs: &Costs, start: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..costs.n).filter(|peer| *peer != start).collect();
    let mut ring = vec![start];
    let mut last = start;
    while !left.is_empty() {
        let row = costs.row(last);
        let (at, _) = left.iter().enumerate().min_by_key(|(_, peer)| row[**peer]).unwrap_or((0, &0));
        last = left.swap_remove(at);
        ring.push(last);
    }
    ring
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        rings::budget::Budget,
        test_support::{forever, tied, uneven},
    };

    fn is_ring(n: usize, ring: &[usize]) -> bool {
        let mut sorted = ring.to_vec();
        sorted.sort_unstable();
        sorted == (0..n).collect::<Vec<_>>()
    }

    #[test]
    fn every_peer_is_in_the_ring_once() {
        for seed in 0..60 {
            let n = 2 + seed as usize;
            for matrix in [tied(n, seed), uneven(n, seed)] {
                let costs = Costs::of_sum(&matrix, f64::NEG_INFINITY);
                let assignment = Assignment::solve(&costs, &mut Budget::new(&mut forever()));
                let ring = patched(&costs, &assignment, &mut Budget::new(&mut forever())).unwrap();
                assert!(is_ring(n, &ring));
                assert!(costs.ring(&ring) >= assignment.bound());
                assert!(is_ring(n, &nearest(&costs, n / 2)));
                assert_eq!(cycles(&assignment.next).iter().map(Vec::len).sum::<usize>(), n);
            }
        }
    }
}
