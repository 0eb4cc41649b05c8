//! Search among many rings: each is shaken a little, improved again, and kept if it is not much worse.

use super::{
    budget::Budget,
    costs::Costs,
    tour::{Neighbours, Queue, Tour, improve},
};
use crate::chance::Chance;

/// Edges from each peer that local search looks at.
pub(crate) const NEIGHBOURS: usize = 12;
/// Peers within which a kick stays, except for the few that go across the whole ring.
const KICK_PEERS: usize = 50;
/// Steps of local search between two looks at the clock.
const CLOCK_EVERY: u32 = 256;
/// At the beginning of a round a ring may be worse by this part of an edge's average cost and be kept half of the time.
const WARMEST: f64 = 0.1;

/// Iterated local search (Lourenço, Martin, Stützle: "Iterated local search", 2003), in rounds that cool down.
///
/// The first round begins with the given ring, later ones with the best ring, more or less shaken, in turn.
pub(crate) struct Kicks<'a> {
    costs: &'a Costs,
    neighbours: &'a Neighbours,
    chance: Chance,
    current: Tour,
    trial: Tour,
    best: Tour,
    current_cost: i64,
    best_cost: i64,
    queue: Queue,
    round: usize,
    done_in_round: usize,
}

impl<'a> Kicks<'a> {
    /// Begins with the given ring, brought to a local optimum if there is time for it.
    pub(crate) fn new(
        costs: &'a Costs,
        neighbours: &'a Neighbours,
        order: &[usize],
        seed: u64,
        budget: &mut Budget<'_>,
    ) -> Self {
        let tour = Tour::new(order);
        let cost = costs.ring(order);
        let mut kicks = Self {
            costs,
            neighbours,
            chance: Chance::new(seed),
            trial: tour.clone(),
            best: tour.clone(),
            current: tour,
            current_cost: cost,
            best_cost: cost,
            queue: Queue::new(costs.n),
            round: 0,
            done_in_round: 0,
        };
        kicks.push_all();
        kicks.settle(budget);
        kicks
    }

    pub(crate) fn best_cost(&self) -> i64 {
        self.best_cost
    }

    pub(crate) fn best(&self) -> Vec<usize> {
        self.best.order.iter().map(|peer| *peer as usize).collect()
    }

    /// Takes over a ring that another search found.
    pub(crate) fn take(&mut self, order: &[usize], cost: i64) {
        if cost < self.best_cost {
            self.best.set(order.iter().map(|peer| *peer as u32));
            self.best_cost = cost;
            self.current.copy(&self.best);
            self.current_cost = cost;
        }
    }

    /// Makes `number` kicks, or fewer if the time is over or a ring of cost `enough` is found.
    pub(crate) fn run(&mut self, number: usize, enough: i64, budget: &mut Budget<'_>) {
        if self.costs.n < 5 {
            return;
        }
        for at in 0..number {
            if self.best_cost <= enough || (at % 8 == 0 && budget.is_over()) {
                return;
            }
            if self.done_in_round >= self.round_length() {
                self.next_round(budget);
            }
            self.done_in_round += 1;
            self.kick_once(budget);
        }
    }

    fn round_length(&self) -> usize {
        // Short ones first, since they often suffice; then ever longer ones.
        (100 * self.costs.n) << (self.round / 4).min(4)
    }

    fn next_round(&mut self, budget: &mut Budget<'_>) {
        self.round += 1;
        self.done_in_round = 0;
        self.current.copy(&self.best);
        self.current_cost = self.best_cost;
        let n = self.costs.n;
        let shakes = match self.round % 4 {
            0 => return,
            1 => n.div_ceil(20),
            2 => n.div_ceil(6),
            _ => n,
        };
        for _ in 0..shakes {
            self.current_cost += shake(&mut self.current, self.costs, &mut self.chance, n, &mut self.queue);
        }
        self.push_all();
        self.settle(budget);
    }

    fn push_all(&mut self) {
        for peer in 0..self.costs.n {
            self.queue.push(peer);
        }
    }

    /// Improves the current ring as it is.
    fn settle(&mut self, budget: &mut Budget<'_>) {
        let mut stop = every(CLOCK_EVERY, budget);
        self.current_cost +=
            improve(&mut self.current, self.costs, self.neighbours, &mut self.queue, &mut stop);
        self.note_best();
    }

    fn note_best(&mut self) {
        if self.current_cost < self.best_cost {
            self.best_cost = self.current_cost;
            self.best.copy(&self.current);
        }
    }

    fn kick_once(&mut self, budget: &mut Budget<'_>) {
        let n = self.costs.n;
        self.trial.copy(&self.current);
        let within = if self.chance.below(20) == 0 { n } else { KICK_PEERS.min(n) };
        let mut cost =
            self.current_cost + shake(&mut self.trial, self.costs, &mut self.chance, within, &mut self.queue);
        let stop = every(CLOCK_EVERY, budget);
        cost += improve(&mut self.trial, self.costs, self.neighbours, &mut self.queue, stop);
        if cost <= self.current_cost || self.chance.unit() < self.tolerance(cost - self.current_cost) {
            std::mem::swap(&mut self.trial, &mut self.current);
            self.current_cost = cost;
            self.note_best();
        }
    }

    /// How probable it is to keep a ring that is worse by this much.
    fn tolerance(&self, worse: i64) -> f64 {
        let cold = self.done_in_round as f64 / self.round_length() as f64;
        let warmth =
            WARMEST * (1.0 - cold) * (self.best_cost - self.costs.least) as f64 / self.costs.n as f64;
        if warmth <= 0.0 { 0.0 } else { (-(worse as f64) / warmth).exp() * 0.5 }
    }
}

/// Whether to stop, by a clock that is looked at only now and then.
fn every<'b>(steps: u32, budget: &'b mut Budget<'_>) -> impl FnMut() -> bool + 'b {
    let mut taken = 0;
    move || {
        taken += 1;
        taken % steps == 0 && budget.is_over()
    }
}

/// Cuts the ring at three or four places within `within` peers and puts it together in another order, no segment turned
/// around: of a b c rest it makes c b a rest or, of a b rest, b a rest. Gives the change of the cost, and queues the
/// peers at the cuts.
fn shake(tour: &mut Tour, costs: &Costs, chance: &mut Chance, within: usize, queue: &mut Queue) -> i64 {
    let n = tour.len();
    let longest = ((within.min(n) - 1) / 3).max(1);
    let start = chance.below(n);
    let mut length = || 1 + chance.below(longest);
    let (a, b, c) = (length(), length(), length());
    let c = if a + b + c < n && chance.below(2) == 0 { c } else { 0 };
    // `swap_segments` may move the rest instead, so ends are found by peer, not by place.
    let peer = |tour: &Tour, steps: usize| tour.at((start + steps) % n);
    let heads = [peer(tour, 0), peer(tour, a), peer(tour, a + b), peer(tour, a + b + c)];
    let heads = if c == 0 { &heads[..3] } else { &heads[..] };
    let joints = |tour: &Tour| heads.iter().map(|&head| costs.at(tour.before(head), head)).sum::<i64>();
    let old = joints(tour);
    for &head in heads {
        queue.push(tour.before(head));
        queue.push(head);
    }
    let first = heads[0];
    tour.swap_segments(start, a, b + c);
    if c > 0 {
        // Now b c a rest: b is in front of c, which ends in front of a.
        let place = (tour.place(first) + n - b - c) % n;
        tour.swap_segments(place, b, c);
    }
    joints(tour) - old
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{forever, uneven};

    #[test]
    fn a_shaken_ring_costs_what_the_shake_says() {
        let mut chance = Chance::new(5);
        for n in 3..30 {
            let costs = Costs::of_sum(&uneven(n, 1), f64::NEG_INFINITY);
            let mut tour = Tour::new(&(0..n).collect::<Vec<_>>());
            let total = |tour: &Tour| costs.ring(&tour.order.iter().map(|p| *p as usize).collect::<Vec<_>>());
            for _ in 0..200 {
                let before = total(&tour);
                let change = shake(&mut tour, &costs, &mut chance, n, &mut Queue::new(n));
                assert_eq!(total(&tour), before + change, "{n} peers");
            }
        }
    }

    #[test]
    fn the_cost_that_is_kept_is_that_of_the_ring() {
        let costs = Costs::of_sum(&uneven(40, 2), f64::NEG_INFINITY);
        let order: Vec<usize> = (0..40).collect();
        let search = |seed| {
            let mut clock = forever();
            let mut budget = Budget::new(&mut clock);
            let key = |from, to| costs.at(from, to);
            let neighbours = Neighbours::new(&costs, NEIGHBOURS, key, &mut budget).unwrap();
            let mut kicks = Kicks::new(&costs, &neighbours, &order, seed, &mut budget);
            kicks.run(20_000, 0, &mut budget);
            assert_eq!(costs.ring(&kicks.best()), kicks.best_cost());
            assert_eq!(
                costs.ring(&kicks.current.order.iter().map(|p| *p as usize).collect::<Vec<_>>()),
                kicks.current_cost
            );
            kicks.best()
        };
        assert_eq!(search(1), search(1));
    }
}
