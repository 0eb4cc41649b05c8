//! A ring that is being improved, and the exchange of edges that keeps every direction.

use super::{budget::Budget, costs::Costs};

/// Rows of costs between two looks at the clock.
const ROWS_PER_LOOK: usize = 32;

/// A ring as an array of peers and the place of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tour {
    pub(crate) order: Vec<u32>,
    place: Vec<u32>,
    scratch: Vec<u32>,
}

impl Tour {
    pub(crate) fn new(order: &[usize]) -> Self {
        let mut tour = Self::default();
        tour.set(order.iter().map(|peer| *peer as u32));
        tour
    }

    pub(crate) fn set(&mut self, order: impl Iterator<Item = u32>) {
        self.order.clear();
        self.order.extend(order);
        self.place.resize(self.order.len(), 0);
        for (at, peer) in self.order.iter().enumerate() {
            self.place[*peer as usize] = at as u32;
        }
    }

    /// Takes over another ring of the same peers.
    pub(crate) fn copy(&mut self, other: &Self) {
        self.order.clone_from(&other.order);
        self.place.clone_from(&other.place);
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn place(&self, peer: usize) -> usize {
        self.place[peer] as usize
    }

    pub(crate) fn at(&self, place: usize) -> usize {
        self.order[place] as usize
    }

    pub(crate) fn next(&self, peer: usize) -> usize {
        let place = self.place(peer) + 1;
        self.at(if place == self.len() { 0 } else { place })
    }

    pub(crate) fn before(&self, peer: usize) -> usize {
        let place = self.place(peer);
        self.at(if place == 0 { self.len() - 1 } else { place - 1 })
    }

    /// Exchanges the `x` peers from a place on with the `y` peers behind them. Both are at least one, together at most
    /// all but one.
    pub(crate) fn swap_segments(&mut self, start: usize, x: usize, y: usize) {
        let n = self.len();
        let z = n - x - y;
        // Around a ring, exchanging x and y is the same as exchanging y with the rest or the rest with x: leave the
        // longest where it is.
        let (start, first, second) = if z >= x && z >= y {
            (start, x, y)
        } else if x >= y {
            (start + x, y, z)
        } else {
            (start + x + y, z, x)
        };
        let total = first + second;
        self.scratch.clear();
        for at in 0..total {
            self.scratch.push(self.order[(start + at) % n]);
        }
        for at in 0..total {
            let peer = self.scratch[if at < second { first + at } else { at - second }];
            let place = (start + at) % n;
            self.order[place] = peer;
            self.place[peer as usize] = place as u32;
        }
    }
}

/// The edges by which local search goes on from a peer: the best ones by reduced cost.
pub(crate) struct Neighbours {
    width: usize,
    /// Target and cost.
    edges: Vec<(u32, i64)>,
}

impl Neighbours {
    /// The `width` edges with the least `key` from every peer. None if the time was over before.
    pub(crate) fn new(
        costs: &Costs,
        width: usize,
        key: impl Fn(usize, usize) -> i64,
        budget: &mut Budget<'_>,
    ) -> Option<Self> {
        let n = costs.n;
        let width = width.min(n - 1);
        let mut edges = Vec::with_capacity(n * width);
        let mut row: Vec<(i64, u32)> = Vec::with_capacity(n);
        for from in 0..n {
            if from % ROWS_PER_LOOK == 0 && budget.is_over() {
                return None;
            }
            row.clear();
            row.extend((0..n).filter(|to| *to != from).map(|to| (key(from, to), to as u32)));
            if width < row.len() {
                row.select_nth_unstable(width - 1);
                row.truncate(width);
            }
            row.sort_unstable();
            edges.extend(row.iter().map(|&(_, to)| (to, costs.at(from, to as usize))));
        }
        Some(Self { width, edges })
    }

    /// Targets and costs of these edges, the best first.
    pub(crate) fn of(&self, peer: usize) -> &[(u32, i64)] {
        &self.edges[peer * self.width..(peer + 1) * self.width]
    }
}

/// Peers whose edges may be worth another look.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Vec<u32>,
    is_waiting: Vec<bool>,
}

impl Queue {
    pub(crate) fn new(n: usize) -> Self {
        Self { waiting: Vec::with_capacity(n), is_waiting: vec![false; n] }
    }

    pub(crate) fn push(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.is_waiting[peer], true) {
            self.waiting.push(peer as u32);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<usize> {
        let peer = self.waiting.pop()? as usize;
        self.is_waiting[peer] = false;
        Some(peer)
    }
}

/// Exchanges segments as long as that makes the ring cheaper, starting at the peers in the queue; gives the change of
/// its cost. `stop` is asked before every step; what is then left in the queue was not looked at.
pub(crate) fn improve(
    tour: &mut Tour,
    costs: &Costs,
    neighbours: &Neighbours,
    queue: &mut Queue,
    mut stop: impl FnMut() -> bool,
) -> i64 {
    let mut change = 0;
    if tour.len() < 3 {
        return 0;
    }
    while let Some(peer) = queue.pop() {
        if stop() {
            queue.push(peer);
            return change;
        }
        while let Some((gain, ends)) = best_exchange(tour, costs, neighbours, peer) {
            change -= gain;
            apply(tour, ends);
            ends.iter().for_each(|end| queue.push(*end));
        }
    }
    change
}

/// The best exchange that removes the edge behind `a`: with a b .. c d .. e f .. around the ring it puts a d .. e b ..
/// c f, which turns no segment around. The one Or-3opt move with three edges (Kanellakis and Papadimitriou, 1980).
///
/// Of the three differences between an edge removed and the one put in, some beginning has only positive sums, so it is
/// enough to go on while the sum is positive.
fn best_exchange(tour: &Tour, costs: &Costs, neighbours: &Neighbours, a: usize) -> Option<(i64, [usize; 6])> {
    let n = tour.len();
    let b = tour.next(a);
    let old = costs.at(a, b);
    let start = tour.place(a);
    // Steps from a along the ring, so that a itself as an end is n.
    let steps = |peer: usize| {
        let place = tour.place(peer);
        if place > start { place - start } else { place + n - start }
    };
    let mut best: Option<(i64, [usize; 6])> = None;
    let mut least = 0;
    for &(d, cost) in neighbours.of(a) {
        let (d, first) = (d as usize, old - cost);
        if first <= 0 || d == b {
            continue;
        }
        let c = tour.before(d);
        let second = first + costs.at(c, d);
        let steps_d = steps(d);
        for &(f, cost) in neighbours.of(c) {
            let (f, sum) = (f as usize, second - cost);
            if sum <= least || steps(f) <= steps_d {
                continue;
            }
            let e = tour.before(f);
            let gain = sum + costs.at(e, f) - costs.at(e, b);
            if gain > least {
                least = gain;
                best = Some((gain, [a, b, c, d, e, f]));
            }
        }
    }
    best
}

fn apply(tour: &mut Tour, ends: [usize; 6]) {
    let n = tour.len();
    let [_, b, c, d, e, _] = ends;
    let length = |from: usize, to: usize| (tour.place(to) + n - tour.place(from)) % n + 1;
    let (x, y) = (length(b, c), length(d, e));
    tour.swap_segments(tour.place(b), x, y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chance::Chance,
        test_support::{forever, tied, uneven},
    };

    fn from_first(order: &[u32]) -> Vec<u32> {
        let mut order = order.to_vec();
        let at = order.iter().position(|peer| *peer == 0).unwrap();
        order.rotate_left(at);
        order
    }

    #[test]
    fn segments_are_exchanged_wherever_they_lie() {
        for n in 3..9 {
            for start in 0..n {
                for x in 1..n - 1 {
                    for y in 1..n - x {
                        let mut tour = Tour::new(&(0..n).collect::<Vec<_>>());
                        tour.swap_segments(start, x, y);
                        let at = |k: usize| ((start + k) % n) as u32;
                        let expected: Vec<u32> = (x..x + y).chain(0..x).chain(x + y..n).map(at).collect();
                        assert_eq!(from_first(&tour.order), from_first(&expected), "{n} {start} {x} {y}");
                        assert!((0..n).all(|peer| tour.at(tour.place(peer)) == peer));
                    }
                }
            }
        }
    }

    #[test]
    fn the_gain_is_what_the_ring_loses_and_no_exchange_is_left() {
        let mut chance = Chance::new(3);
        for seed in 0..80 {
            let n = 2 + seed as usize % 12;
            let matrix = if seed % 2 == 0 { tied(n, seed) } else { uneven(n, seed) };
            let costs = Costs::of_sum(&matrix, f64::NEG_INFINITY);
            let mut order: Vec<usize> = (0..n).collect();
            (1..n).for_each(|i| order.swap(i, chance.below(i + 1)));
            let mut tour = Tour::new(&order);
            let mut queue = Queue::new(n);
            let key = |from, to| costs.at(from, to);
            let neighbours = Neighbours::new(&costs, n, key, &mut Budget::new(&mut forever())).unwrap();
            let mut change = 0;
            // An exchange may open another one far from its ends, where the queue does not lead.
            loop {
                (0..n).for_each(|peer| queue.push(peer));
                match improve(&mut tour, &costs, &neighbours, &mut queue, || false) {
                    0 => break,
                    more => change += more,
                }
            }
            let ring = |tour: &Tour| tour.order.iter().map(|peer| *peer as usize).collect::<Vec<_>>();
            let total = costs.ring(&ring(&tour));
            assert_eq!(total, costs.ring(&order) + change);
            for start in 0..n {
                for x in 1..n.max(2) - 1 {
                    for y in 1..n - x {
                        let mut other = tour.clone();
                        other.swap_segments(start, x, y);
                        assert!(costs.ring(&ring(&other)) >= total, "seed {seed}: an exchange is left");
                    }
                }
            }
        }
    }
}
