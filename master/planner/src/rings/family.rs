//! Search by a family of rings: two of them differ in closed alternations of their edges, and taking over some of these
//! from the other makes a child that is made of good edges only.
//!
//! After Nagata, Soler: "A new genetic algorithm for the asymmetric traveling salesman problem", 2012.

use super::{budget::Budget, costs::Costs, kicks::Kicks, tour::Neighbours};
use crate::{chance::Chance, matrix::Matrix};

/// Rings of the first family; every family that follows is larger by half.
const FIRST_FAMILY: usize = 30;
const LARGEST_FAMILY: usize = 400;
/// Children of one pair.
const CHILDREN: usize = 30;
/// Generations without a better best ring after which a family has nothing more to give.
const STALE_GENERATIONS: usize = 12;
/// A cycle is joined by trying every exchange while there are no more of them than this.
const EXCHANGES: usize = 1200;
/// Kicks for each peer that a ring gets before it joins the family.
const KICKS: usize = 5;

#[derive(Debug, Clone)]
struct Ring {
    next: Vec<u32>,
    before: Vec<u32>,
    cost: i64,
}

/// Where a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its rings are being made.
    Birth,
    /// Children take over one alternation.
    One,
    /// Children take over several.
    Several,
}

/// One family after the other, each with rings of its own. See the module's documentation.
pub(crate) struct Family<'a> {
    costs: &'a Costs,
    neighbours: &'a Neighbours,
    chance: Chance,
    rings: Vec<Ring>,
    size: usize,
    stage: Stage,
    /// How many rings use an edge.
    users: Vec<u16>,
    /// The rings in the order in which they meet, and how many have met.
    meeting: Vec<usize>,
    met: usize,
    /// The best ring of this family, and for how many generations it has been that.
    least: i64,
    stale: usize,
    changed: bool,
    found: Option<Vec<usize>>,
    best: i64,
    child: Child,
}

/// Memory for children.
#[derive(Default)]
struct Child {
    /// Alternations between two rings: peers whose successors change, one alternation after the other.
    peers: Vec<u32>,
    ends: Vec<usize>,
    seen: Vec<bool>,
    /// The cycle that each peer is in, and the size of each.
    label: Vec<u32>,
    sizes: Vec<u32>,
    /// Peers that got another successor, each once, with the one they had at first.
    log: Vec<(u32, u32)>,
    is_logged: Vec<bool>,
    chosen: Vec<(u32, u32)>,
}

impl<'a> Family<'a> {
    pub(crate) fn new(costs: &'a Costs, neighbours: &'a Neighbours, seed: u64) -> Self {
        let n = costs.n;
        Self {
            costs,
            neighbours,
            chance: Chance::new(seed ^ 0xfa),
            rings: Vec::new(),
            size: FIRST_FAMILY,
            stage: Stage::Birth,
            users: vec![0; n * n],
            meeting: Vec::new(),
            met: 0,
            least: i64::MAX,
            stale: 0,
            changed: false,
            found: None,
            best: i64::MAX,
            child: Child {
                seen: vec![false; n],
                label: vec![0; n],
                is_logged: vec![false; n],
                ..Child::default()
            },
        }
    }

    /// A ring that is better than any given to `run`, once.
    pub(crate) fn take_found(&mut self) -> Option<Vec<usize>> {
        self.found.take()
    }

    /// Makes `number` meetings or births, or fewer if the time is over or a ring of cost `enough` is found. Rings of
    /// cost `best` and more are of no interest.
    pub(crate) fn run(&mut self, number: usize, best: i64, enough: i64, budget: &mut Budget<'_>) {
        self.best = best;
        for _ in 0..number {
            if self.best <= enough || budget.is_over() {
                return;
            }
            if self.stage == Stage::Birth {
                self.bear(budget);
            } else {
                self.meet(budget);
            }
        }
    }

    /// Adds a ring that has nothing to do with the others: any one, improved by kicks.
    fn bear(&mut self, budget: &mut Budget<'_>) {
        let n = self.costs.n;
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).for_each(|i| order.swap(i, self.chance.below(i + 1)));
        let mut kicks = Kicks::new(self.costs, self.neighbours, &order, self.chance.number(), budget);
        kicks.run(KICKS * n, i64::MIN, budget);
        let mut ring = Ring { next: vec![0; n], before: vec![0; n], cost: kicks.best_cost() };
        for (peer, next) in Matrix::edges(&kicks.best()) {
            ring.next[peer] = next as u32;
            ring.before[next] = peer as u32;
            self.users[peer * n + next] += 1;
        }
        self.note(&ring);
        self.rings.push(ring);
        if self.rings.len() >= self.size {
            self.stage = Stage::One;
            self.gather();
        }
    }

    fn note(&mut self, ring: &Ring) {
        if ring.cost < self.least {
            self.least = ring.cost;
            self.stale = 0;
        }
        if ring.cost < self.best {
            self.best = ring.cost;
            let step = |at: &usize| Some(ring.next[*at] as usize);
            self.found = Some(std::iter::successors(Some(0), step).take(ring.next.len()).collect());
        }
    }

    /// A new generation.
    fn gather(&mut self) {
        self.meeting = (0..self.rings.len()).collect();
        (1..self.meeting.len()).for_each(|i| self.meeting.swap(i, self.chance.below(i + 1)));
        self.met = 0;
        self.changed = false;
        self.stale += 1;
    }

    fn meet(&mut self, budget: &mut Budget<'_>) {
        let count = self.meeting.len();
        if self.met < count {
            let (a, b) = (self.meeting[self.met], self.meeting[(self.met + 1) % count]);
            self.met += 1;
            self.cross(a, b, budget);
            return;
        }
        if self.changed && self.stale < STALE_GENERATIONS {
            return self.gather();
        }
        if self.stage == Stage::One {
            (self.stage, self.stale) = (Stage::Several, 0);
            return self.gather();
        }
        // Nothing more to expect: another family.
        self.stage = Stage::Birth;
        self.size = (self.size * 3 / 2).min(LARGEST_FAMILY);
        self.rings.clear();
        self.users.fill(0);
        (self.least, self.stale) = (i64::MAX, 0);
    }

    /// Replaces ring `a` by the best child of it and `b`, if that is better.
    fn cross(&mut self, a: usize, b: usize, budget: &mut Budget<'_>) {
        if a == b {
            return;
        }
        let mut ring = std::mem::replace(&mut self.rings[a], Ring { next: vec![], before: vec![], cost: 0 });
        let mut child = std::mem::take(&mut self.child);
        child.alternations(&ring, &self.rings[b]);
        let number = child.ends.len();
        let children = if self.stage == Stage::One { number.min(CHILDREN) } else { CHILDREN };
        let mut most = 0.0;
        child.chosen.clear();
        for at in 0..if number == 0 { 0 } else { children } {
            if (at % 8 == 7 || self.costs.n > 200) && budget.is_over() {
                break;
            }
            let one = if number <= CHILDREN { at } else { self.chance.below(number) };
            let mut gain = 0;
            for alternation in 0..number {
                let takes = match self.stage {
                    Stage::Several => self.chance.below(2) == 0,
                    _ => alternation == one,
                };
                if takes {
                    gain += child.take_over(alternation, &mut ring, &self.rings[b], self.costs);
                }
            }
            gain += child.join(&mut ring, self.costs, self.neighbours);
            if gain > 0 {
                let worth = gain as f64 / self.loss_of_variety(&child.log, &ring).max(1e-9);
                if worth > most {
                    most = worth;
                    child.chosen.clear();
                    child.chosen.extend(child.log.iter().map(|&(peer, _)| (peer, ring.next[peer as usize])));
                }
            }
            child.undo(&mut ring);
        }
        if !child.chosen.is_empty() {
            self.replace(&mut ring, &child.chosen);
        }
        self.child = child;
        self.rings[a] = ring;
    }

    /// How much less the rings of the family differ if this child takes the place of its parent; zero or less if they
    /// differ more.
    fn loss_of_variety(&self, log: &[(u32, u32)], ring: &Ring) -> f64 {
        let n = self.costs.n;
        let users = |from: u32, to: u32| f64::from(self.users[from as usize * n + to as usize]);
        let term = |count: f64| if count > 0.0 { count * count.ln() } else { 0.0 };
        log.iter()
            .map(|&(peer, old)| {
                let new = ring.next[peer as usize];
                if new == old {
                    return 0.0;
                }
                let (out, into) = (users(peer, old), users(peer, new));
                term(out - 1.0) - term(out) + term(into + 1.0) - term(into)
            })
            .sum()
    }

    fn replace(&mut self, ring: &mut Ring, chosen: &[(u32, u32)]) {
        let n = self.costs.n;
        for &(peer, next) in chosen {
            let from = peer as usize;
            let old = std::mem::replace(&mut ring.next[from], next);
            ring.cost += self.costs.at(from, next as usize) - self.costs.at(from, old as usize);
            self.users[from * n + old as usize] -= 1;
            self.users[from * n + next as usize] += 1;
        }
        for &(peer, next) in chosen {
            ring.before[next as usize] = peer;
        }
        self.changed = true;
        self.note(ring);
    }
}

impl Child {
    /// The alternations between two rings: from a peer along the first ring, back along the second, and so on.
    fn alternations(&mut self, a: &Ring, b: &Ring) {
        self.peers.clear();
        self.ends.clear();
        self.seen.fill(false);
        for start in 0..a.next.len() {
            if self.seen[start] || a.next[start] == b.next[start] {
                continue;
            }
            let mut at = start;
            while !self.seen[at] {
                self.seen[at] = true;
                self.peers.push(at as u32);
                at = b.before[a.next[at] as usize] as usize;
            }
            self.ends.push(self.peers.len());
        }
    }

    /// Gives the peers of an alternation the successors that they have in the other ring; how much cheaper that is.
    fn take_over(&mut self, alternation: usize, ring: &mut Ring, other: &Ring, costs: &Costs) -> i64 {
        let begin = if alternation == 0 { 0 } else { self.ends[alternation - 1] };
        let mut gain = 0;
        for at in begin..self.ends[alternation] {
            let peer = self.peers[at];
            gain += self.set(ring, peer as usize, other.next[peer as usize] as usize, costs);
        }
        gain
    }

    /// Gives a peer another successor.
    fn set(&mut self, ring: &mut Ring, from: usize, to: usize, costs: &Costs) -> i64 {
        let old = std::mem::replace(&mut ring.next[from], to as u32);
        ring.before[to] = from as u32;
        if !std::mem::replace(&mut self.is_logged[from], true) {
            self.log.push((from as u32, old));
        }
        costs.at(from, old as usize) - costs.at(from, to)
    }

    /// Joins the cycles to a ring, the smallest first; how much cheaper that is, which is mostly below zero.
    fn join(&mut self, ring: &mut Ring, costs: &Costs, neighbours: &Neighbours) -> i64 {
        self.label_cycles(ring);
        let mut gain = 0;
        let mut left = self.sizes.len();
        while left > 1 {
            let smallest =
                (0..self.sizes.len()).filter(|i| self.sizes[*i] > 0).min_by_key(|i| self.sizes[*i]);
            let Some(cycle) = smallest else { break };
            let start = self.label.iter().position(|label| *label as usize == cycle).unwrap_or(0);
            let (change, u, w) = self.best_exchange(start, ring, costs, neighbours);
            let (after_u, after_w) = (ring.next[u] as usize, ring.next[w] as usize);
            let other = self.label[w];
            let mut at = start;
            while self.label[at] != other {
                self.label[at] = other;
                at = ring.next[at] as usize;
            }
            self.set(ring, u, after_w, costs);
            self.set(ring, w, after_u, costs);
            gain -= change;
            self.sizes[other as usize] += std::mem::take(&mut self.sizes[cycle]);
            left -= 1;
        }
        gain
    }

    fn label_cycles(&mut self, ring: &Ring) {
        self.label.fill(u32::MAX);
        self.sizes.clear();
        for start in 0..ring.next.len() {
            if self.label[start] != u32::MAX {
                continue;
            }
            let number = self.sizes.len() as u32;
            let (mut at, mut size) = (start, 0);
            while self.label[at] == u32::MAX {
                self.label[at] = number;
                size += 1;
                at = ring.next[at] as usize;
            }
            self.sizes.push(size);
        }
    }

    /// The cheapest way to join the cycle of `start` with another one: peers of both that exchange their successors.
    fn best_exchange(
        &self,
        start: usize,
        ring: &Ring,
        costs: &Costs,
        neighbours: &Neighbours,
    ) -> (i64, usize, usize) {
        let own = self.label[start];
        let mut best = (i64::MAX, start, start);
        let size = self.sizes[own as usize] as usize;
        let n = ring.next.len();
        let mut u = start;
        if size * n > EXCHANGES {
            loop {
                let after = ring.next[u] as usize;
                let old = costs.at(u, after);
                for &(v, cost) in neighbours.of(u) {
                    let v = v as usize;
                    if self.label[v] == own {
                        continue;
                    }
                    let w = ring.before[v] as usize;
                    let change = cost - old + costs.at(w, after) - costs.at(w, v);
                    best = best.min((change, u, w));
                }
                u = after;
                if u == start {
                    break;
                }
            }
        }
        if best.0 < i64::MAX {
            return best;
        }
        loop {
            let after = ring.next[u] as usize;
            let (row, old) = (costs.row(u), costs.at(u, after));
            for w in (0..n).filter(|w| self.label[*w] != own) {
                let next = ring.next[w] as usize;
                let change = row[next] - old + costs.at(w, after) - costs.at(w, next);
                best = best.min((change, u, w));
            }
            u = after;
            if u == start {
                return best;
            }
        }
    }

    /// Makes the ring what it was.
    fn undo(&mut self, ring: &mut Ring) {
        for (peer, old) in self.log.drain(..) {
            self.is_logged[peer as usize] = false;
            ring.next[peer as usize] = old;
            ring.before[old as usize] = peer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        rings::held_karp,
        rings::kicks::NEIGHBOURS,
        test_support::{forever, looks, sparse, tied, uneven},
    };

    fn neighbours(costs: &Costs, width: usize) -> Neighbours {
        let key = |from, to| costs.at(from, to);
        Neighbours::new(costs, width, key, &mut Budget::new(&mut forever())).expect("there was time")
    }

    /// The cost, the links in both directions and the numbers of users are those of the rings.
    fn check(family: &Family<'_>) {
        let n = family.costs.n;
        let mut users = vec![0; n * n];
        for ring in &family.rings {
            let step = |at: &usize| Some(ring.next[*at] as usize);
            let order: Vec<usize> = std::iter::successors(Some(0), step).take(n).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..n), "no ring: {order:?}");
            assert_eq!(family.costs.ring(&order), ring.cost);
            for (from, to) in Matrix::edges(&order) {
                assert_eq!(ring.before[to] as usize, from);
                users[from * n + to] += 1;
            }
        }
        assert_eq!(users, family.users);
    }

    #[test]
    fn rings_stay_rings_and_no_child_is_worse_than_its_parent() {
        for seed in 0..30 {
            let n = 8 + seed as usize * 2;
            let matrix = if seed % 2 == 0 { tied(n, seed) } else { uneven(n, seed) };
            let costs = Costs::of_sum(&matrix, f64::NEG_INFINITY);
            // Few neighbours, so that cycles have to be joined by other edges, too.
            let neighbours = neighbours(&costs, 3);
            let mut family = Family::new(&costs, &neighbours, seed);
            let mut total = i64::MAX;
            for _ in 0..400 {
                family.run(1, 0, i64::MIN, &mut Budget::new(&mut forever()));
                check(&family);
                let costs: i64 = family.rings.iter().map(|ring| ring.cost).sum();
                assert!(family.stage == Stage::Birth || costs <= total || total == 0, "seed {seed}");
                total = if family.stage == Stage::Birth { i64::MAX } else { costs };
            }
        }
    }

    #[test]
    fn a_family_alone_finds_what_dynamic_programming_finds() {
        for seed in 0..40 {
            let n = 8 + seed as usize % 6;
            for matrix in [tied(n, seed), uneven(n, seed), sparse(n, seed, 0.8)] {
                let costs = Costs::of_sum(&matrix, f64::NEG_INFINITY);
                let known: Vec<usize> = (0..n).collect();
                let exact = held_karp::cheapest(&costs, &known, &mut Budget::new(&mut forever()));
                let least = costs.ring(&exact.expect("there was time"));
                let neighbours = neighbours(&costs, NEIGHBOURS);
                let mut family = Family::new(&costs, &neighbours, seed);
                family.run(3000, i64::MAX, least, &mut Budget::new(&mut forever()));
                let found = family.take_found().expect("it is better than none");
                assert_eq!(costs.ring(&found), least, "{n} peers, seed {seed}");
            }
        }
    }

    #[test]
    fn the_clock_ends_it_anywhere() {
        let costs = Costs::of_sum(&uneven(60, 2), f64::NEG_INFINITY);
        let neighbours = neighbours(&costs, NEIGHBOURS);
        for number in (0..4000).step_by(97) {
            let mut family = Family::new(&costs, &neighbours, 1);
            family.run(100_000, i64::MAX, i64::MIN, &mut Budget::new(&mut looks(number)));
            check(&family);
        }
    }
}
