//! Costs that a search for the cheapest ring works on: wishes and prohibitions are folded into one number per edge.

use crate::matrix::Matrix;

/// Cost of the slowest of the edges that are too slow, in the search for a ring without them.
const LARGEST_LACK: f64 = 1000.0;

/// Stands for an edge that must not be used, until it is known what outweighs all others.
const NEVER: i64 = -1;

/// Costs of all edges, row by row. The diagonal is never used.
#[derive(Debug, Clone)]
pub(crate) struct Costs {
    pub(crate) n: usize,
    cost: Vec<i64>,
    /// The charge that every ring bears, because it has to go from place to place.
    pub(crate) least: i64,
    /// A ring that costs as much as this uses an edge that must not be used.
    pub(crate) broken: i64,
    /// Added to each edge between different places.
    crossing: i64,
}

impl Costs {
    /// The sum of costs, over edges that are at least as fast as `floor`.
    pub(crate) fn of_sum(matrix: &Matrix, floor: f64) -> Self {
        let floor = floor.max(f64::MIN);
        Self::build(matrix, |rate, cost| if rate >= floor { i64::from(cost) } else { NEVER })
    }

    /// Nothing for edges that are at least as fast as `floor`, and the more the slower for others.
    pub(crate) fn of_lack(matrix: &Matrix, floor: f64) -> Self {
        let floor = floor.max(f64::MIN);
        let scale = LARGEST_LACK / floor.abs().max(f64::MIN_POSITIVE);
        Self::build(matrix, |rate, _| {
            if rate >= floor {
                0
            } else if rate == f64::NEG_INFINITY {
                NEVER
            } else {
                ((floor - rate) * scale).clamp(1.0, LARGEST_LACK) as i64
            }
        })
    }

    fn build(matrix: &Matrix, entry: impl Fn(f64, u32) -> i64) -> Self {
        let n = matrix.peers();
        let mut cost: Vec<i64> = Vec::with_capacity(n * n);
        for from in 0..n {
            let row = matrix.rates_from(from).iter().zip(matrix.costs_from(from));
            cost.extend(row.map(|(rate, cost)| entry(*rate, *cost)));
            cost[from * n + from] = NEVER;
        }
        let largest = cost.iter().copied().max().unwrap_or(0).max(0);
        let size = n as i64;
        // One crossing outweighs every sum of costs, one prohibited edge outweighs both.
        let crossing = if matrix.has_places() { size * largest + 1 } else { 0 };
        let broken = size * (largest + crossing) + 1;
        for from in 0..n {
            let row = &mut cost[from * n..(from + 1) * n];
            for (to, cost) in row.iter_mut().enumerate() {
                if *cost < 0 {
                    *cost = broken;
                } else if crossing > 0 && matrix.group(from) != matrix.group(to) {
                    *cost += crossing;
                }
            }
        }
        Self { n, cost, least: matrix.fewest_crossings() as i64 * crossing, broken, crossing }
    }

    pub(crate) fn at(&self, from: usize, to: usize) -> i64 {
        self.cost[from * self.n + to]
    }

    pub(crate) fn row(&self, from: usize) -> &[i64] {
        &self.cost[from * self.n..(from + 1) * self.n]
    }

    pub(crate) fn ring(&self, order: &[usize]) -> i64 {
        Matrix::edges(order).map(|(from, to)| self.at(from, to)).sum()
    }

    /// The charge of a ring for going from place to place so often.
    pub(crate) fn charge(&self, crossings: usize) -> i64 {
        crossings as i64 * self.crossing
    }
}
