//! Needs of every ring: a successor of its own for each peer, and a way from each peer to each other. Where that is
//! missing there is no ring, and it says which peers stand in the way; the best rate at which it holds bounds every
//! ring.

use super::budget::Budget;
use crate::matrix::Matrix;
use std::collections::VecDeque;

/// Why there is no ring over certain edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// This peer can reach nobody.
    NoWayOut(usize),
    /// Nobody can reach this peer.
    NoWayIn(usize),
    /// These peers can together reach only those, which are fewer.
    TooFewTargets {
        /// Peers that each need a successor of their own.
        peers: Vec<usize>,
        /// All that they can reach.
        targets: Vec<usize>,
    },
    /// There is no way back: none of the first peers reaches any other than themselves.
    OneWay {
        /// Peers that cannot be left.
        inside: Vec<usize>,
        /// All others.
        outside: Vec<usize>,
    },
    /// The search found no smaller reason than this: without these peers there is a ring of the others.
    Without(Vec<usize>),
}

impl Obstacle {
    /// The obstacle in words, with these names for the peers.
    pub fn describe(&self, names: &[String]) -> String {
        let all =
            |peers: &[usize]| peers.iter().map(|&peer| names[peer].as_str()).collect::<Vec<_>>().join(", ");
        match self {
            Self::NoWayOut(peer) => format!("{} can reach nobody", names[*peer]),
            Self::NoWayIn(peer) => format!("nobody can reach {}", names[*peer]),
            Self::TooFewTargets { peers, targets } => {
                format!("{} need a successor each, but reach only {}", all(peers), all(targets))
            }
            Self::OneWay { inside, outside } => {
                format!("there is no way from {} to {}", all(inside), all(outside))
            }
            Self::Without(peers) => format!("without {} there is one", all(peers)),
        }
    }
}

/// Halvings of the range of rates before the rates themselves are looked at.
const HALVINGS: u32 = 10;

/// Edges that are possible and at least as fast as some floor, as bits.
pub(crate) struct Graph {
    n: usize,
    words: usize,
    out: Vec<u64>,
}

impl Graph {
    pub(crate) fn new(matrix: &Matrix, floor: f64) -> Self {
        let n = matrix.peers();
        let words = n.div_ceil(64);
        let mut out = vec![0u64; n * words];
        for from in 0..n {
            for (to, rate) in matrix.rates_from(from).iter().enumerate() {
                if to != from && *rate >= floor && *rate > f64::NEG_INFINITY {
                    out[from * words + to / 64] |= 1 << (to % 64);
                }
            }
        }
        Self { n, words, out }
    }

    fn row(&self, from: usize) -> &[u64] {
        &self.out[from * self.words..(from + 1) * self.words]
    }

    fn has(&self, from: usize, to: usize) -> bool {
        self.row(from)[to / 64] >> (to % 64) & 1 == 1
    }

    /// The first thing that is missing for a ring, if any. None as well if the time is over.
    pub(crate) fn obstacle(&self, matching: &mut Matching, budget: &mut Budget<'_>) -> Option<Obstacle> {
        if self.n < 2 {
            return None;
        }
        if let Some(peer) = (0..self.n).find(|&from| self.row(from).iter().all(|word| *word == 0)) {
            return Some(Obstacle::NoWayOut(peer));
        }
        let entered = |to: usize| (0..self.n).any(|from| self.has(from, to));
        if let Some(peer) = (0..self.n).find(|&to| !entered(to)) {
            return Some(Obstacle::NoWayIn(peer));
        }
        self.one_way().or_else(|| matching.complete(self, budget))
    }

    fn one_way(&self) -> Option<Obstacle> {
        let split = |reached: Vec<bool>, forward: bool| {
            let of = |wanted: bool| (0..self.n).filter(|&i| reached[i] == wanted).collect::<Vec<_>>();
            let (inside, outside) = (of(forward), of(!forward));
            (!inside.is_empty() && !outside.is_empty()).then_some(Obstacle::OneWay { inside, outside })
        };
        split(self.reached(true), true).or_else(|| split(self.reached(false), false))
    }

    /// The peers that can be reached from peer 0, or that can reach it.
    fn reached(&self, forward: bool) -> Vec<bool> {
        let mut seen = vec![false; self.n];
        seen[0] = true;
        let mut unseen: Vec<usize> = (1..self.n).collect();
        let mut queue = VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            unseen.retain(|&next| {
                let edge = if forward { self.has(at, next) } else { self.has(next, at) };
                if edge {
                    seen[next] = true;
                    queue.push_back(next);
                }
                !edge
            });
        }
        seen
    }
}

/// Successors found so far; what one graph left over is the beginning for the next.
#[derive(Debug, Clone)]
pub(crate) struct Matching {
    next: Vec<Option<usize>>,
    before: Vec<Option<usize>>,
}

impl Matching {
    pub(crate) fn new(n: usize) -> Self {
        Self { next: vec![None; n], before: vec![None; n] }
    }

    /// Gives every peer a successor of its own (Kuhn, 1955). Returns the obstacle if that cannot be done.
    fn complete(&mut self, graph: &Graph, budget: &mut Budget<'_>) -> Option<Obstacle> {
        for from in 0..graph.n {
            if let Some(to) = self.next[from].filter(|to| !graph.has(from, *to)) {
                (self.next[from], self.before[to]) = (None, None);
            }
        }
        for from in 0..graph.n {
            if self.next[from].is_some() {
                continue;
            }
            if budget.is_over() {
                return None;
            }
            if let Some(obstacle) = self.augment(graph, from) {
                return Some(obstacle);
            }
        }
        None
    }

    fn augment(&mut self, graph: &Graph, start: usize) -> Option<Obstacle> {
        let mut fresh = vec![u64::MAX; graph.words];
        let mut parent = vec![0; graph.n];
        let mut queue = vec![start];
        let mut at = 0;
        while at < queue.len() {
            let from = queue[at];
            at += 1;
            for (word, fresh) in fresh.iter_mut().enumerate() {
                let mut bits = graph.row(from)[word] & *fresh;
                *fresh &= !bits;
                while bits != 0 {
                    let to = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    parent[to] = from;
                    match self.before[to] {
                        Some(owner) => queue.push(owner),
                        None => {
                            self.turn(start, to, &parent);
                            return None;
                        }
                    }
                }
            }
        }
        let seen = |to: &usize| fresh[to / 64] >> (to % 64) & 1 == 0;
        queue.sort_unstable();
        Some(Obstacle::TooFewTargets { peers: queue, targets: (0..graph.n).filter(seen).collect() })
    }

    fn turn(&mut self, start: usize, free: usize, parent: &[usize]) {
        let mut to = free;
        loop {
            let from = parent[to];
            self.before[to] = Some(from);
            let old = self.next[from].replace(to);
            match old {
                Some(old) if from != start => to = old,
                _ => return,
            }
        }
    }
}

/// The highest rate at which nothing that a ring needs is missing: no ring's slowest edge is faster. Minus infinity if
/// something is missing at every rate. If the time is over, a bound that is not as good.
pub(crate) fn bound(matrix: &Matrix, budget: &mut Budget<'_>) -> f64 {
    let n = matrix.peers();
    // The fastest edge into each peer, and the slowest of these and of the fastest ones out of each.
    let mut into = vec![f64::NEG_INFINITY; n];
    let mut high = f64::INFINITY;
    for from in 0..n {
        let mut out = f64::NEG_INFINITY;
        for (to, rate) in matrix.rates_from(from).iter().enumerate().filter(|(to, _)| *to != from) {
            into[to] = into[to].max(*rate);
            out = out.max(*rate);
        }
        high = high.min(out);
    }
    high = into.into_iter().fold(high, f64::min);
    let mut matching = Matching::new(n);
    let mut good = f64::NEG_INFINITY;
    // First by halving the range, which needs no list of all rates.
    let mut low = (0..n)
        .flat_map(|from| matrix.rates_from(from))
        .copied()
        .filter(|r| r.is_finite())
        .fold(high, f64::min);
    for _ in 0..HALVINGS {
        let rate = low + (high - low) / 2.0;
        if budget.is_over() {
            return high;
        }
        let mut tried = matching.clone();
        let obstacle = Graph::new(matrix, rate).obstacle(&mut tried, budget);
        if budget.is_over() {
            return high;
        }
        if obstacle.is_none() {
            (low, good, matching) = (rate, rate, tried);
        } else {
            high = rate;
        }
    }
    let below = |rate: &f64| if good.is_finite() { *rate >= good } else { true };
    let mut rates = rates_between(matrix, f64::NEG_INFINITY, high);
    rates.retain(below);
    // All that is in `rates` and not above `high` may still be the answer.
    while !rates.is_empty() {
        let middle = rates.len() / 2;
        let (_, &mut rate, _) = rates.select_nth_unstable_by(middle, f64::total_cmp);
        let mut tried = matching.clone();
        let obstacle = Graph::new(matrix, rate).obstacle(&mut tried, budget);
        if budget.is_over() {
            return high;
        }
        if obstacle.is_none() {
            good = rate;
            matching = tried;
            rates.retain(|other| *other > rate);
        } else {
            rates.retain(|other| *other < rate);
            high = rates.iter().copied().fold(good, f64::max);
        }
    }
    good
}

/// Rates of edges above `low` and up to `high`, in no order and not all different.
pub(crate) fn rates_between(matrix: &Matrix, low: f64, high: f64) -> Vec<f64> {
    let rows = (0..matrix.peers()).flat_map(|from| matrix.rates_from(from).iter().copied());
    rows.filter(|rate| *rate > low && *rate <= high).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{all_rings, forever, sparse};

    fn obstacle(n: usize, edges: &[(usize, usize)]) -> Option<Obstacle> {
        let mut costs = vec![None; n * n];
        edges.iter().for_each(|(from, to)| costs[from * n + to] = Some(1));
        let matrix = Matrix::of_costs(n, &costs).expect("a matrix");
        let graph = Graph::new(&matrix, f64::NEG_INFINITY);
        graph.obstacle(&mut Matching::new(n), &mut Budget::new(&mut forever()))
    }

    #[test]
    fn each_obstacle_names_its_peers() {
        assert_eq!(obstacle(1, &[]), None);
        assert_eq!(obstacle(2, &[(0, 1)]), Some(Obstacle::NoWayOut(1)));
        assert_eq!(obstacle(3, &[(0, 1), (1, 0), (2, 0)]), Some(Obstacle::NoWayIn(2)));
        // 1 and 2 lead to 0 alone.
        let star = [(0, 1), (1, 0), (0, 2), (2, 0)];
        let expected = Obstacle::TooFewTargets { peers: vec![1, 2], targets: vec![0] };
        assert_eq!(obstacle(3, &star), Some(expected));
        let pairs = [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2)];
        let expected = Obstacle::OneWay { inside: vec![2, 3], outside: vec![0, 1] };
        let found = obstacle(4, &pairs);
        assert!(found == Some(expected), "{found:?}");
    }

    #[test]
    fn the_bound_is_never_below_the_best_ring_and_often_equals_it() {
        let mut equal = 0;
        for seed in 0..100 {
            let n = 2 + seed as usize % 6;
            let matrix = sparse(n, seed, 0.8);
            let bound = bound(&matrix, &mut Budget::new(&mut forever()));
            let best =
                all_rings(n).iter().map(|ring| matrix.bottleneck(ring)).fold(f64::NEG_INFINITY, f64::max);
            assert!(bound >= best, "seed {seed}: {bound} {best}");
            equal += usize::from(bound == best);
        }
        assert!(equal > 60, "{equal}");
    }
}
