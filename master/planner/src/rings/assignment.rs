//! The assignment problem: a successor for every peer, each taken once, as cheaply as possible. No ring is cheaper, so
//! it gives a bound, and its dual prices tell which edges a good ring uses.

use super::{budget::Budget, costs::Costs};

/// A successor for every peer, with proof that none is cheaper: the prices.
#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    /// The successor of each peer; `NOBODY` if the time was over before.
    pub(crate) next: Vec<u32>,
    /// The predecessor of each peer.
    pub(crate) before: Vec<u32>,
    /// Prices of leaving and of entering a peer; never more than the cost of any edge together.
    pub(crate) leave: Vec<i64>,
    pub(crate) enter: Vec<i64>,
}

/// No peer.
pub(crate) const NOBODY: u32 = u32::MAX;
/// No path.
const INFINITE: i64 = i64::MAX;

/// Memory for searches of paths.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    distance: Vec<i64>,
    parent: Vec<u32>,
    /// Peers to enter: first those that were reached at the least distance, then the others.
    columns: Vec<u32>,
}

impl Assignment {
    /// The cheapest assignment, or a part of it if the time was over; the prices hold in any case.
    pub(crate) fn solve(costs: &Costs, budget: &mut Budget<'_>) -> Self {
        let n = costs.n;
        let mut all =
            Self { next: vec![NOBODY; n], before: vec![NOBODY; n], leave: vec![0; n], enter: vec![0; n] };
        if n < 2 || budget.is_over() {
            return all;
        }
        all.reduce(costs);
        let mut scratch = Scratch::default();
        let no_rule = Rules { closed: &[], fixed: &[] };
        for peer in 0..n {
            if all.next[peer] == NOBODY {
                if budget.is_over() {
                    break;
                }
                let found = all.augment(costs, peer, INFINITE, no_rule, &mut scratch);
                debug_assert!(found, "every edge has a cost");
            }
        }
        all
    }

    /// Prices from the cheapest edges, and the assignments that follow from them at once.
    fn reduce(&mut self, costs: &Costs) {
        let n = costs.n;
        self.enter = vec![INFINITE; n];
        for from in 0..n {
            for (to, cost) in costs.row(from).iter().enumerate().filter(|(to, _)| *to != from) {
                self.enter[to] = self.enter[to].min(*cost);
            }
        }
        for from in 0..n {
            let reduced = |to: usize| costs.at(from, to) - self.enter[to];
            let columns = || (0..n).filter(|to| *to != from);
            let least = columns().map(reduced).min().unwrap_or(0);
            self.leave[from] = least;
            let free = columns().find(|&to| reduced(to) == least && self.before[to] == NOBODY);
            if let Some(to) = free {
                (self.next[from], self.before[to]) = (to as u32, from as u32);
            }
        }
    }

    /// Gives `peer` a successor along the cheapest path of reassignments, if that raises the total by less than `limit`
    /// and breaks no rule. The prices stay right.
    ///
    /// Jonker and Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment problems",
    /// 1987.
    pub(crate) fn augment(
        &mut self,
        costs: &Costs,
        peer: usize,
        limit: i64,
        rules: Rules<'_>,
        scratch: &mut Scratch,
    ) -> bool {
        let n = costs.n;
        scratch.start(n, rules, &self.before);
        let columns = scratch.columns.len();
        let Scratch { distance, parent, columns: list } = scratch;
        let row = costs.row(peer);
        for &to in list.iter() {
            let to = to as usize;
            let open = to != peer && !rules.is_closed(peer, to);
            distance[to] = if open { row[to] - self.leave[peer] - self.enter[to] } else { INFINITE };
            parent[to] = peer as u32;
        }
        // Before `done` the distances are final; before `ready` they equal the least one.
        let (mut done, mut ready) = (0, 0);
        let mut least;
        let end = 'search: loop {
            let scanned = done;
            least = list[done..].iter().map(|&to| distance[to as usize]).min().unwrap_or(INFINITE);
            if least >= limit {
                return false;
            }
            for at in done..columns {
                if distance[list[at] as usize] == least {
                    list.swap(at, ready.max(done));
                    ready = ready.max(done) + 1;
                }
            }
            if let Some(&free) = list[done..ready].iter().find(|to| self.before[**to as usize] == NOBODY) {
                break 'search (free, scanned);
            }
            while done < ready {
                let through = list[done] as usize;
                done += 1;
                let from = self.before[through] as usize;
                let row = costs.row(from);
                let shift = least - (row[through] - self.leave[from] - self.enter[through]);
                // Of what was looked at, some is moved in front of `ready`; what is moved behind it was looked at too.
                let first = ready;
                for at in first..columns {
                    let to = list[at] as usize;
                    if to == from {
                        continue;
                    }
                    let length = row[to] - self.leave[from] - self.enter[to] + shift;
                    if length >= distance[to] || rules.is_closed(from, to) {
                        continue;
                    }
                    (distance[to], parent[to]) = (length, from as u32);
                    if length == least {
                        if self.before[to] == NOBODY {
                            break 'search (to as u32, scanned);
                        }
                        list.swap(at, ready);
                        ready += 1;
                    }
                }
            }
        };
        self.finish(peer, end, least, scratch);
        true
    }

    /// Adjusts the prices of the columns whose distances are below the least one, and turns the path to `end` around.
    fn finish(&mut self, peer: usize, end: (u32, usize), least: i64, scratch: &Scratch) {
        let (free, scanned) = end;
        for &to in &scratch.columns[..scanned] {
            let gain = least - scratch.distance[to as usize];
            self.enter[to as usize] -= gain;
            self.leave[self.before[to as usize] as usize] += gain;
        }
        self.leave[peer] += least;
        let mut to = free;
        loop {
            let from = scratch.parent[to as usize];
            self.before[to as usize] = from;
            std::mem::swap(&mut self.next[from as usize], &mut to);
            if from as usize == peer {
                return;
            }
        }
    }

    /// The least that any ring can cost.
    pub(crate) fn bound(&self) -> i64 {
        self.leave.iter().sum::<i64>() + self.enter.iter().sum::<i64>()
    }

    /// Whether every peer has a successor.
    pub(crate) fn is_complete(&self) -> bool {
        !self.next.contains(&NOBODY)
    }

    /// The cost of an edge above what the prices say.
    pub(crate) fn reduced(&self, costs: &Costs, from: usize, to: usize) -> i64 {
        costs.at(from, to) - self.leave[from] - self.enter[to]
    }
}

/// Restrictions of an assignment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    /// Edges that must not be used, as a table of bits; empty if there are none.
    pub(crate) closed: &'a [u64],
    /// Peers whose successor stays as it is; empty if there are none.
    pub(crate) fixed: &'a [bool],
}

impl Rules<'_> {
    fn is_closed(&self, from: usize, to: usize) -> bool {
        let words = self.closed.len().checked_div(self.rows()).unwrap_or(0);
        words > 0 && self.closed[from * words + to / 64] >> (to % 64) & 1 == 1
    }

    fn rows(&self) -> usize {
        self.fixed.len()
    }
}

impl Scratch {
    fn start(&mut self, n: usize, rules: Rules<'_>, before: &[u32]) {
        self.distance.resize(n, INFINITE);
        self.parent.resize(n, NOBODY);
        let is_fixed = |to: usize| rules.fixed.get(before[to] as usize).copied().unwrap_or(false);
        self.columns.clear();
        self.columns.extend((0..n as u32).filter(|to| !is_fixed(*to as usize)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{forever, looks, permutations, sparse, tied};

    fn check_prices(costs: &Costs, all: &Assignment) {
        for from in 0..costs.n {
            for to in (0..costs.n).filter(|to| *to != from) {
                assert!(all.reduced(costs, from, to) >= 0, "a price is too high");
            }
        }
        let used = (0..costs.n).filter(|from| all.next[*from] != NOBODY);
        for from in used {
            assert_eq!(all.reduced(costs, from, all.next[from] as usize), 0);
            assert_eq!(all.before[all.next[from] as usize] as usize, from);
        }
    }

    #[test]
    fn agrees_with_trying_every_assignment() {
        for seed in 0..200 {
            let n = 2 + seed as usize % 6;
            let matrix = if seed % 2 == 0 { tied(n, seed) } else { sparse(n, seed, 0.7) };
            let costs = Costs::of_sum(&matrix, f64::NEG_INFINITY);
            let all = Assignment::solve(&costs, &mut Budget::new(&mut forever()));
            assert!(all.is_complete());
            check_prices(&costs, &all);
            let total =
                |p: &Vec<usize>| p.iter().enumerate().map(|(from, to)| costs.at(from, *to)).sum::<i64>();
            let legal = |p: &Vec<usize>| p.iter().enumerate().all(|(from, to)| from != *to);
            let best = permutations(n).into_iter().filter(legal).map(|p| total(&p)).min();
            assert_eq!(Some(all.bound()), best, "seed {seed}");
        }
    }

    #[test]
    fn prices_hold_when_the_time_is_over_in_the_middle() {
        for steps in 0..30 {
            let mut clock = looks(steps);
            let costs = Costs::of_sum(&sparse(40, 5, 0.8), f64::NEG_INFINITY);
            let part = Assignment::solve(&costs, &mut Budget::new(&mut clock));
            check_prices(&costs, &part);
            let whole = Assignment::solve(&costs, &mut Budget::new(&mut forever()));
            assert!(part.bound() <= whole.bound());
        }
    }
}
