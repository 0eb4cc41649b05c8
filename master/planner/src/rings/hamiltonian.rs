//! Whether a ring exists at all: exact, for few peers.

use super::budget::Budget;
use crate::matrix::Matrix;

/// Most peers for which the question is answered. The tables take 4 bytes for each subset of all peers but one.
pub(crate) const MOST: usize = 20;
/// Subsets between two looks at the clock.
const CLOCK_EVERY: usize = 1 << 14;

/// The outcome of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This ring.
    Ring(Vec<usize>),
    /// There is none.
    None,
    /// The time was over before it was clear.
    OutOfTime,
}

/// A ring over edges of at least `floor` between the given peers in which co-located peers are next to each other.
///
/// For every subset of the peers, in one bit each: where can a path from the first peer end that visits exactly these
/// (Held and Karp, 1962; Bellman, 1962)?
pub(crate) fn ring(matrix: &Matrix, peers: &[usize], floor: f64, budget: &mut Budget<'_>) -> Answer {
    assert!(peers.len() <= MOST, "too many peers for an exact search");
    if peers.len() < 2 {
        return Answer::Ring(peers.to_vec());
    }
    let graph = Graph::new(matrix, peers, floor);
    match graph.ends(budget) {
        None => Answer::OutOfTime,
        Some(ends) => match graph.path(&ends) {
            None => Answer::None,
            Some(path) => Answer::Ring(path.into_iter().map(|at| peers[at]).collect()),
        },
    }
}

/// Sets of peers are bits; the first peer is not among them, so bit i stands for the peer at i + 1.
struct Graph {
    others: usize,
    /// From whom a peer can be reached.
    into: Vec<u32>,
    /// Whom the first peer can reach, and who can reach it.
    from_first: u32,
    to_first: u32,
    /// All peers in one place with this one; the first peer's place is empty of itself.
    place: Vec<u32>,
    first_place: u32,
}

impl Graph {
    fn new(matrix: &Matrix, peers: &[usize], floor: f64) -> Self {
        let others = peers.len() - 1;
        let usable = |from: usize, to: usize| {
            from != to && matrix.is_possible(from, to) && matrix.rate(from, to) >= floor
        };
        let bits = |wanted: &dyn Fn(usize) -> bool| {
            (0..others).filter(|&i| wanted(peers[i + 1])).fold(0u32, |bits, i| bits | 1 << i)
        };
        let place = |of: usize| bits(&|peer| matrix.group(peer) == matrix.group(of));
        Self {
            others,
            into: (0..others).map(|i| bits(&|from| usable(from, peers[i + 1]))).collect(),
            from_first: bits(&|to| usable(peers[0], to)),
            to_first: bits(&|from| usable(from, peers[0])),
            place: (0..others).map(|i| place(peers[i + 1])).collect(),
            first_place: place(peers[0]),
        }
    }

    /// The members of `set` that the path may leave for another place: a place is left when all of it was visited, but
    /// that of the first peer, where the path also ends, is left at any time.
    fn may_leave(&self, set: u32) -> u32 {
        let done = |i: &usize| set >> i & 1 == 1 && self.place[*i] & !set == 0;
        (0..self.others).filter(done).fold(set & self.first_place, |bits, i| bits | 1 << i)
    }

    /// The members of `set` from which the path may go on to `next`.
    fn sources(&self, set: u32, leave: u32, next: usize) -> u32 {
        let all = (1u32 << self.others) - 1;
        let place = self.place[next];
        let comes_home = place == self.first_place && set & !place != 0;
        // Back in the first place only when everything else was visited.
        let from_outside = if comes_home && (set | self.first_place) != all { 0 } else { leave };
        set & self.into[next] & (place | from_outside)
    }

    /// For each set, where a path from the first peer through all of it can end.
    fn ends(&self, budget: &mut Budget<'_>) -> Option<Vec<u32>> {
        let mut ends = vec![0u32; 1 << self.others];
        for set in 1..ends.len() {
            if set % CLOCK_EVERY == 0 && budget.is_over() {
                return None;
            }
            let bits = set as u32;
            let mut found = 0;
            let mut rest = bits;
            while rest != 0 {
                let last = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                let before = bits & !(1 << last);
                let reached = if before == 0 {
                    self.from_first >> last & 1 == 1
                } else {
                    let possible = ends[before as usize] & self.into[last];
                    possible != 0 && possible & self.sources(before, self.may_leave(before), last) != 0
                };
                found |= u32::from(reached) << last;
            }
            ends[set] = found;
        }
        Some(ends)
    }

    /// The ring, as indices of the given peers, read from the back.
    fn path(&self, ends: &[u32]) -> Option<Vec<usize>> {
        let mut set = (1u32 << self.others) - 1;
        let mut possible = ends[set as usize] & self.to_first;
        let mut path = Vec::with_capacity(self.others + 1);
        while set != 0 {
            if possible == 0 {
                return None;
            }
            let last = possible.trailing_zeros() as usize;
            path.push(last + 1);
            set &= !(1 << last);
            possible = ends[set as usize] & self.sources(set, self.may_leave(set), last);
        }
        path.push(0);
        path.reverse();
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{all_rings, forever, sparse};
    use std::time::Duration;

    #[test]
    fn agrees_with_trying_every_order_with_and_without_places() {
        for seed in 0..400 {
            let n = 2 + seed as usize % 6;
            let mut matrix = sparse(n, seed, 0.55);
            if seed % 3 > 0 {
                let places: Vec<usize> = (0..n).map(|i| (i * (seed as usize % 7 + 1)) % 3).collect();
                matrix = matrix.with_places(&places);
            }
            let peers: Vec<usize> = (0..n).collect();
            let fewest = matrix.fewest_crossings();
            let good =
                |order: &Vec<usize>| matrix.bottleneck(order) >= 30.0 && matrix.crossings(order) == fewest;
            match ring(&matrix, &peers, 30.0, &mut Budget::new(&mut forever())) {
                Answer::Ring(order) => assert!(good(&order), "seed {seed}: {order:?}"),
                Answer::None => assert!(!all_rings(n).iter().any(good), "seed {seed}"),
                Answer::OutOfTime => panic!("there was time"),
            }
        }
    }

    #[test]
    fn twenty_peers_and_a_clock_that_runs_out() {
        let matrix = sparse(20, 1, 0.9);
        let peers: Vec<usize> = (0..20).collect();
        let answer = ring(&matrix, &peers, 20.0, &mut Budget::new(&mut forever()));
        let Answer::Ring(order) = answer else { panic!("{answer:?}") };
        assert!(matrix.bottleneck(&order) >= 20.0);
        let answer = ring(&matrix, &peers, 20.0, &mut Budget::new(&mut || Duration::ZERO));
        assert_eq!(answer, Answer::OutOfTime);
    }
}
