//! The cheapest ring, exact, for few peers.

use super::{budget::Budget, costs::Costs};

/// Most peers. The table has one number for each subset of all peers but one and each end of a path through it: 40 MB
/// for 20 peers where the numbers fit into 32 bits, as they do unless the costs are very uneven.
pub(crate) const MOST: usize = 20;
/// Subsets between two looks at the clock.
const CLOCK_EVERY: usize = 1 << 10;

/// The cheapest ring, if it costs less than `known`; `known` as a ring otherwise. None if the time was over before.
///
/// Held and Karp, "A dynamic programming approach to sequencing problems", 1962.
pub(crate) fn cheapest(costs: &Costs, known: &[usize], budget: &mut Budget<'_>) -> Option<Vec<usize>> {
    let n = costs.n;
    assert!((1..=MOST).contains(&n), "wrong number of peers for an exact search");
    if n < 3 {
        return Some(known.to_vec());
    }
    // Every ring leaves every peer once: what all edges of a row have in common does not matter.
    let base: Vec<i64> =
        (0..n).map(|from| others(n, from).map(|to| costs.at(from, to)).min().unwrap_or(0)).collect();
    let limit = costs.ring(known) - base.iter().sum::<i64>();
    let reduced = |from: usize, to: usize| costs.at(from, to) - base[from];
    // A number at the limit or above is as good as infinite. Two of them must not overflow.
    if limit < i64::from(u32::MAX / 2) {
        let table = Table::<u32>::fill(n, limit as u32, &|a, b| reduced(a, b).min(limit) as u32, budget)?;
        Some(table.ring().unwrap_or_else(|| known.to_vec()))
    } else {
        let limit = limit as u64;
        let table = Table::<u64>::fill(n, limit, &|a, b| (reduced(a, b) as u64).min(limit), budget)?;
        Some(table.ring().unwrap_or_else(|| known.to_vec()))
    }
}

fn others(n: usize, not: usize) -> impl Iterator<Item = usize> {
    (0..n).filter(move |i| *i != not)
}

/// Lengths of paths: numbers that can be added and compared.
trait Length: Copy + Ord + std::ops::Add<Output = Self> {
    const ZERO: Self;
}

impl Length for u32 {
    const ZERO: Self = 0;
}

impl Length for u64 {
    const ZERO: Self = 0;
}

/// The shortest path from the last peer through each set of the others to each end, row by set.
struct Table<T> {
    /// Peers without the last one.
    others: usize,
    /// Nothing this long or longer is of interest.
    limit: T,
    length: Vec<T>,
    /// Costs, turned: those into peer `to` begin at `to * n`.
    into: Vec<T>,
}

impl<T: Length> Table<T> {
    fn fill(n: usize, limit: T, cost: &dyn Fn(usize, usize) -> T, budget: &mut Budget<'_>) -> Option<Self> {
        let others = n - 1;
        let into: Vec<T> = (0..n * n)
            .map(|at| if at / n == at % n { limit } else { cost(at % n, at / n).min(limit) })
            .collect();
        let mut table = Self { others, limit, length: vec![limit; others << others], into };
        for set in 1..1usize << others {
            if set % CLOCK_EVERY == 0 && budget.is_over() {
                return None;
            }
            for last in (0..others).filter(|last| set >> last & 1 == 1) {
                table.length[set * others + last] = table.to(set & !(1 << last), last);
            }
        }
        Some(table)
    }

    /// The shortest path from the start through `set` to `next`.
    fn to(&self, set: usize, next: usize) -> T {
        let into = &self.into[next * (self.others + 1)..(next + 1) * (self.others + 1)];
        if set == 0 {
            return into[self.others];
        }
        let paths = &self.length[set * self.others..(set + 1) * self.others];
        // Ends that are not in the set are at the limit already.
        let best = paths.iter().zip(into).map(|(path, step)| *path + *step).fold(self.limit, T::min);
        best.min(self.limit)
    }

    /// The shortest ring, unless it is not below the limit.
    fn ring(&self) -> Option<Vec<usize>> {
        let mut set = (1usize << self.others) - 1;
        let mut next = self.others;
        let mut length = self.to(set, next);
        if length >= self.limit {
            return None;
        }
        let mut ring = vec![next];
        while set != 0 {
            let step = |last: usize| self.into[next * (self.others + 1) + last];
            let last = (0..self.others)
                .filter(|last| set >> last & 1 == 1)
                .find(|&last| self.length[set * self.others + last] + step(last) == length)?;
            length = self.length[set * self.others + last];
            set &= !(1 << last);
            ring.push(last);
            next = last;
        }
        debug_assert!(length >= T::ZERO);
        ring.reverse();
        Some(ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        matrix::Matrix,
        test_support::{all_rings, forever, sparse, tied},
    };
    use std::time::Duration;

    fn check(matrix: &Matrix, seed: u64) {
        let costs = Costs::of_sum(matrix, f64::NEG_INFINITY);
        let n = costs.n;
        let best = all_rings(n).iter().map(|order| costs.ring(order)).min().expect("at least one order");
        let known: Vec<usize> = (0..n).collect();
        let found = cheapest(&costs, &known, &mut Budget::new(&mut forever())).expect("there was time");
        assert_eq!(costs.ring(&found), best, "seed {seed}");
        let mut sorted = found;
        sorted.sort_unstable();
        assert_eq!(sorted, known);
    }

    #[test]
    fn agrees_with_trying_every_order() {
        for seed in 0..60 {
            let n = 1 + seed as usize % 7;
            check(&sparse(n, seed, 0.7), seed);
            check(&tied(n, seed), seed);
            check(&sparse(n, seed, 0.9).with_places(&(0..n).map(|i| i % 3).collect::<Vec<_>>()), seed);
            // Numbers that need 64 bits.
            let huge: Vec<Option<u32>> =
                (0..n * n).map(|i| Some(4_000_000_000 - (i as u32 * 7919) % 100)).collect();
            check(&Matrix::of_costs(n, &huge).expect("a matrix").with_places(&vec![0; n]), seed);
        }
    }

    #[test]
    fn the_clock_is_heeded() {
        let costs = Costs::of_sum(&tied(14, 1), f64::NEG_INFINITY);
        let known: Vec<usize> = (0..14).collect();
        assert_eq!(cheapest(&costs, &known, &mut Budget::new(&mut || Duration::ZERO)), None);
    }
}
