//! The ring that peers should form, from what was measured.
//!
//! A pipelined ring runs at the rate of its slowest edge, so that counts first; see `docs/topology/README.md`.

use super::{
    bottleneck::{self, NoPlan, Widest},
    budget::Budget,
    cheapest::{self, Wish},
    costs::Costs,
    hamiltonian::{self, Answer},
};
use crate::matrix::Matrix;
use std::time::Duration;

/// Rings whose slowest edge has at least this part of the best possible rate count as equally fast.
pub const EQUALLY_FAST: f64 = 0.9;
/// The present ring stays unless another is better by this part.
pub const MIN_GAIN: f64 = 0.1;
/// Up to this many peers the plan is exact where somebody waits for it.
pub const EXACT_PEERS: usize = 16;
/// Up to this many peers it is exact in the background.
pub const EXACT_PEERS_BACKGROUND: usize = hamiltonian::MOST;
/// Part of the time that goes to the slowest edge; the rest goes to the sum.
const FOR_BOTTLENECK: f64 = 0.5;

/// The measure of a good ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// The lowest sum of latencies (or of 1 / rate) among rings that are [`EQUALLY_FAST`].
    #[default]
    Balanced,
    /// The fastest slowest edge; among rings with that, the lowest sum that is found, without need of a proof.
    Bottleneck,
    /// The lowest sum.
    Sum,
}

/// How to plan.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// The measure of a good ring.
    pub objective: Objective,
    /// Decides every choice that the matrix leaves open.
    pub seed: u64,
    /// Up to this many peers the plan is exact; at most [`EXACT_PEERS_BACKGROUND`].
    pub exact_peers: usize,
    /// The ring that is there now. One that is no ring of these peers over possible edges counts as none.
    pub present: Option<&'a [usize]>,
    /// How much better another ring must be.
    pub min_gain: f64,
    /// Spend part of the time on proofs by branch and bound. Beyond `exact_peers` only.
    pub prove: bool,
    /// The search for the lowest sum ends at a ring whose sum is no more than this. [`Objective::Sum`] without places
    /// only.
    pub enough: Option<u64>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        let objective = Objective::default();
        Self {
            objective,
            seed: 0,
            exact_peers: EXACT_PEERS,
            present: None,
            min_gain: MIN_GAIN,
            prove: true,
            enough: None,
        }
    }
}

/// A figure of a ring, and the best that any ring can have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certified {
    /// That of this ring.
    pub value: f64,
    /// No ring is better than this.
    pub bound: f64,
}

impl Certified {
    /// No ring is better.
    pub fn is_proven(&self) -> bool {
        self.value == self.bound
    }

    /// By what part a ring might be better: 0.02 is 2 percent of the value.
    pub fn gap(&self) -> f64 {
        if self.is_proven() { 0.0 } else { ((self.value - self.bound) / self.value).abs() }
    }
}

/// A ring, and how good it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Each peer is followed by the one it sends to, the last by the first. Begins with peer 0.
    pub order: Vec<usize>,
    /// The edge that binds; none for one peer.
    pub slowest: Option<(usize, usize)>,
    /// Its rate in Mbit/s, or its cost. None if it was not the objective, and for one peer.
    pub bottleneck: Option<Certified>,
    /// Sum of latencies in microseconds, of 10^9 / rate, or of costs, among rings that are fast enough. None if the
    /// present ring was kept for its slowest edge alone.
    pub total: Option<Certified>,
    /// No ring is better in the sense of the objective.
    pub proven: bool,
    /// This is the present ring, kept because no other is better by the least gain of the options.
    pub kept: bool,
    /// Places whose peers are not all next to each other, because no ring allows that or none was found.
    pub split_places: Vec<Vec<usize>>,
}

impl Plan {
    /// About how long an all-reduce of `bytes` bytes takes: 2 (n - 1) / n of them over the slowest edge, and all
    /// latencies once. None for a matrix of costs.
    pub fn predicted_time(&self, matrix: &Matrix, bytes: u64) -> Option<Duration> {
        if matrix.is_costs() {
            return None;
        }
        let n = self.order.len() as f64;
        let Some((from, to)) = self.slowest else { return Some(Duration::ZERO) };
        let bits_per_us = matrix.value(from, to)?;
        let latency_us: f64 =
            Matrix::edges(&self.order).filter_map(|(a, b)| matrix.latency_us(a, b)).map(f64::from).sum();
        let us = 2.0 * (n - 1.0) / n * bytes as f64 * 8.0 / bits_per_us + latency_us;
        Duration::try_from_secs_f64(us / 1e6).ok()
    }
}

/// Plans a ring; `left` says how much time is left and is asked at least every few milliseconds.
///
/// The same matrix, options and answers of `left` give the same plan; a search that ends by itself (by proof) gives the
/// same plan whatever the time.
///
/// # Errors
/// [`NoPlan`] if there is no ring, or none was found.
pub fn plan(
    matrix: &Matrix,
    options: &Options<'_>,
    left: &mut dyn FnMut() -> Duration,
) -> Result<Plan, NoPlan> {
    let mut budget = Budget::new(left);
    if matrix.peers() == 1 {
        return Ok(Plan::new(matrix, vec![0]));
    }
    let exact_peers = options.exact_peers.min(EXACT_PEERS_BACKGROUND);
    let planner = Planner::new(matrix, options, exact_peers, &mut budget)?;
    planner.run(&mut budget)
}

impl Plan {
    fn new(matrix: &Matrix, mut order: Vec<usize>) -> Self {
        let first = order.iter().position(|peer| *peer == 0).unwrap_or(0);
        order.rotate_left(first);
        let is_split = |place: &Vec<usize>| {
            let is_in = |peer: usize| place.contains(&peer);
            Matrix::edges(&order).filter(|&(from, to)| is_in(from) && !is_in(to)).count() > 1
        };
        let split_places = matrix.places().into_iter().filter(is_split).collect();
        let slowest = matrix.slowest(&order);
        Self { order, slowest, bottleneck: None, total: None, proven: true, kept: false, split_places }
    }
}

struct Planner<'a> {
    /// As given.
    given: &'a Matrix,
    /// With only those places whose peers can be next to each other.
    matrix: Matrix,
    options: &'a Options<'a>,
    present: Option<&'a [usize]>,
    /// A ring over possible edges.
    first: Vec<usize>,
    is_exact: bool,
    wish: Wish,
}

impl<'a> Planner<'a> {
    fn new(
        given: &'a Matrix,
        options: &'a Options<'a>,
        exact_peers: usize,
        budget: &mut Budget<'_>,
    ) -> Result<Self, NoPlan> {
        if let Some(none) = bottleneck::no_ring(given, budget) {
            return Err(none);
        }
        let is_exact = given.peers() <= exact_peers;
        let wish = Wish {
            exact_peers,
            seed: options.seed,
            prove: options.prove,
            enough: i64::MIN,
            hopeless: i64::MAX,
        };
        let (matrix, first) = if is_exact { exact_first(given, budget)? } else { (given.clone(), None) };
        let present = options.present.filter(|ring| is_ring_of(given, ring));
        // Most often every edge is possible, and any order will do to begin with.
        let plain = || Some((0..given.peers()).collect()).filter(|ring: &Vec<usize>| is_ring_of(given, ring));
        let as_it_is = present.map(<[usize]>::to_vec).or_else(plain);
        let fewest = matrix.fewest_crossings();
        let first = match first.or_else(|| as_it_is.filter(|ring| matrix.crossings(ring) == fewest)) {
            Some(first) => first,
            None => searched_first(&matrix, wish, budget)?,
        };
        Ok(Self { given, matrix, options, present, first, is_exact, wish })
    }

    fn run(self, budget: &mut Budget<'_>) -> Result<Plan, NoPlan> {
        if self.options.objective == Objective::Sum {
            return Ok(self.lowest_sum(budget));
        }
        let widest = budget.share(FOR_BOTTLENECK, |budget| self.widest(budget));
        let best = self.matrix.bottleneck(&widest.order);
        let is_proven = best >= widest.bound;
        let bottleneck = |order: &[usize]| {
            // The present ring may beat what was found without its places.
            let value = self.matrix.bottleneck(order);
            Some(self.certified(value, if is_proven { best.max(value) } else { widest.bound }))
        };
        let equal = match self.options.objective {
            Objective::Balanced if self.matrix.is_costs() => best / EQUALLY_FAST,
            Objective::Balanced => best * EQUALLY_FAST,
            _ => best,
        };
        let mut floor = equal;
        let stays =
            self.present.filter(|ring| self.matrix.crossings(ring) <= self.matrix.crossings(&widest.order));
        if let Some(present) = stays {
            let rate = self.matrix.bottleneck(present);
            if rate < equal || self.options.objective == Objective::Bottleneck {
                let wanted = self.gained(rate);
                if best < wanted {
                    let mut plan = Plan::new(self.given, present.to_vec());
                    plan.bottleneck = bottleneck(present);
                    plan.kept = true;
                    plan.proven = is_proven;
                    return Ok(plan);
                }
                floor = floor.max(wanted);
            }
        }
        let mut plan = self.cheapest_above(floor, &widest.order, budget);
        if let Some(present) = stays.filter(|ring| self.matrix.bottleneck(ring) >= floor) {
            self.keep_unless_gain(&mut plan, present);
        }
        plan.bottleneck = bottleneck(&plan.order);
        plan.proven = is_proven
            && (self.options.objective == Objective::Bottleneck
                || plan.total.is_some_and(|total| total.is_proven()));
        Ok(plan)
    }

    /// The widest ring; exact if that is possible in the time.
    fn widest(&self, budget: &mut Budget<'_>) -> Widest {
        let bound = bottleneck::bound(&self.matrix, budget);
        if self.is_exact
            && let Some(widest) = bottleneck::exact(&self.matrix, bound, budget)
        {
            return widest;
        }
        bottleneck::search(&self.matrix, self.first.clone(), bound, self.wish, budget)
    }

    fn lowest_sum(&self, budget: &mut Budget<'_>) -> Plan {
        let mut plan = self.cheapest_above(f64::NEG_INFINITY, &self.first, budget);
        if let Some(present) = self.present {
            self.keep_unless_gain(&mut plan, present);
        }
        plan.proven = plan.total.is_some_and(|total| total.is_proven());
        plan
    }

    /// The ring with the lowest sum of those over edges of at least this rate; `known` is one of them.
    fn cheapest_above(&self, floor: f64, known: &[usize], budget: &mut Budget<'_>) -> Plan {
        if budget.is_over() {
            let mut plan = Plan::new(self.given, known.to_vec());
            let value = self.matrix.total(known).unwrap_or(u64::MAX) as f64;
            plan.total = Some(Certified { value, bound: 0.0 });
            return plan;
        }
        let costs = Costs::of_sum(&self.matrix, floor);
        let mut rings = vec![known];
        rings.extend(self.present);
        let enough = self.options.enough.filter(|_| floor == f64::NEG_INFINITY && !self.matrix.has_places());
        let wish =
            Wish { enough: enough.and_then(|e| i64::try_from(e).ok()).unwrap_or(i64::MIN), ..self.wish };
        let mut found = cheapest::ring(&costs, &rings, 0, wish, budget);
        if found.cost >= costs.broken {
            // Only if the time was over at once.
            found.order = known.to_vec();
        }
        let charge = costs.charge(self.matrix.crossings(&found.order));
        let value = self.matrix.total(&found.order).unwrap_or(u64::MAX) as f64;
        // Without its charge the bound may be below zero where places are not kept together.
        let bound = if found.cost <= found.bound { value } else { (found.bound - charge).max(0) as f64 };
        let mut plan = Plan::new(self.given, found.order);
        plan.total = Some(Certified { value, bound });
        plan
    }

    /// Goes back to the present ring unless the sum of the plan is lower by the least gain of the options.
    fn keep_unless_gain(&self, plan: &mut Plan, present: &[usize]) {
        let (Some(new), Some(old)) = (plan.total, self.matrix.total(present)) else { return };
        let is_split = self.matrix.crossings(present) > self.matrix.crossings(&plan.order);
        if is_split || old as f64 >= new.value * (1.0 + self.options.min_gain) && (old as f64) > new.value {
            return;
        }
        let bound = if new.is_proven() { new.value } else { new.bound };
        *plan = Plan::new(self.given, present.to_vec());
        plan.total = Some(Certified { value: old as f64, bound });
        plan.kept = true;
    }

    /// The rate that is better than this one by the least gain of the options.
    fn gained(&self, rate: f64) -> f64 {
        let factor = 1.0 + self.options.min_gain;
        if self.matrix.is_costs() { rate / factor } else { rate * factor }
    }

    fn certified(&self, value: f64, bound: f64) -> Certified {
        let sign = if self.matrix.is_costs() { -1.0 } else { 1.0 };
        Certified { value: value * sign, bound: bound * sign }
    }
}

fn is_ring_of(matrix: &Matrix, order: &[usize]) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    sorted.iter().copied().eq(0..matrix.peers())
        && Matrix::edges(order).all(|(from, to)| matrix.is_possible(from, to))
}

/// A ring of few peers, or proof that there is none. Places that cannot be kept together are given up, the fewest peers
/// first. No ring if the time is over.
fn exact_first(given: &Matrix, budget: &mut Budget<'_>) -> Result<(Matrix, Option<Vec<usize>>), NoPlan> {
    let peers: Vec<usize> = (0..given.peers()).collect();
    let mut try_it = |matrix: &Matrix| hamiltonian::ring(matrix, &peers, f64::NEG_INFINITY, budget);
    match try_it(given) {
        Answer::Ring(order) => return Ok((given.clone(), Some(order))),
        Answer::OutOfTime => return Ok((given.clone(), None)),
        Answer::None => {}
    }
    let mut matrix = given.with_only(&[]);
    let mut ring = match try_it(&matrix) {
        Answer::Ring(order) => order,
        Answer::OutOfTime => return Ok((given.clone(), None)),
        Answer::None => return Err(bottleneck::in_the_way(given, budget)),
    };
    let mut kept = Vec::new();
    for place in given.places() {
        kept.push(place);
        let tried = given.with_only(&kept);
        match try_it(&tried) {
            Answer::Ring(order) => (matrix, ring) = (tried, order),
            _ => {
                kept.pop();
            }
        }
    }
    Ok((matrix, Some(ring)))
}

/// A ring over possible edges, with as few crossings as can be found.
fn searched_first(matrix: &Matrix, wish: Wish, budget: &mut Budget<'_>) -> Result<Vec<usize>, NoPlan> {
    let costs = Costs::of_lack(matrix, f64::NEG_INFINITY);
    let wish = Wish { enough: costs.least, ..wish };
    let mut found = budget.share(0.3, |budget| cheapest::ring(&costs, &[], 0, wish, budget));
    if found.cost >= costs.broken {
        // Better late than none, and places do not matter any more.
        let wish = Wish { enough: costs.broken - 1, hopeless: costs.broken - 1, ..wish };
        found = cheapest::ring(&costs, &[&found.order], found.bound, wish, budget);
    }
    if found.cost >= costs.broken {
        return Err(NoPlan { obstacles: vec![], proven: found.bound >= costs.broken });
    }
    Ok(found.order)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
