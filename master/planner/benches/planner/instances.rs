//! Asymmetric costs of the kinds that are known to differ in what makes them hard.

use pccl_planner::{Link, Matrix};
use pccl_testkit::random::Rng;

/// Numbers that follow from a seed.
pub(crate) struct Dice(Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng(seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1)))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0.next()
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((u128::from(self.number()) * u128::from(end)) >> 64) as u32
    }

    pub(crate) fn unit(&mut self) -> f64 {
        self.0.uniform()
    }

    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).for_each(|i| order.swap(i, self.below(i as u32 + 1) as usize));
        order
    }
}

pub(crate) type Generate = fn(usize, u64) -> Vec<u32>;

/// Name and generator of each kind. After Cirasella, Johnson, McGeoch, Zhang: "The asymmetric traveling salesman
/// problem: algorithms, instance generators, and tests", 2001.
pub(crate) const KINDS: &[(&str, Generate)] = &[
    ("uniform", uniform),
    ("shortest paths", closure),
    ("one-way streets", streets),
    ("plane, tilted", plane),
    ("crane", crane),
    ("small integers", ties),
    ("stacker crane", stacker),
    ("plane, uneven", uneven_plane),
];

fn uniform(n: usize, seed: u64) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    (0..n * n).map(|_| dice.below(10_000)).collect()
}

/// Uniform costs, replaced by the shortest paths over them.
fn closure(n: usize, seed: u64) -> Vec<u32> {
    let mut cost = uniform(n, seed);
    shortest_paths(&mut cost, n);
    cost
}

fn shortest_paths(cost: &mut [u32], n: usize) {
    for via in 0..n {
        for from in 0..n {
            for to in 0..n {
                let detour = cost[from * n + via].saturating_add(cost[via * n + to]);
                cost[from * n + to] = cost[from * n + to].min(detour);
            }
        }
    }
}

/// Ways through a town: a grid of streets, a third of them one-way, and customers at some corners.
fn streets(n: usize, seed: u64) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    let side = (((2 * n) as f64).sqrt().ceil() as usize).max(2);
    let corners = side * side;
    let mut cost = vec![u32::MAX / 4; corners * corners];
    for corner in 0..corners {
        let (x, y) = (corner % side, corner / side);
        for next in [(x + 1 < side).then_some(corner + 1), (y + 1 < side).then_some(corner + side)] {
            let Some(next) = next else { continue };
            let length = 20 + dice.below(60);
            let way = dice.below(6);
            if way != 0 {
                cost[corner * corners + next] = length;
            }
            if way != 1 {
                cost[next * corners + corner] = length + dice.below(10);
            }
        }
    }
    // A ring road keeps every corner within reach.
    for corner in 0..corners {
        let next = (corner + 1) % corners;
        cost[corner * corners + next] = cost[corner * corners + next].min(150);
    }
    shortest_paths(&mut cost, corners);
    let customers = dice.permutation(corners);
    pairs(n, |from, to| cost[customers[from] * corners + customers[to]])
}

/// Distances in a plane, each direction up to a tenth longer.
fn plane(n: usize, seed: u64) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    let points: Vec<(f64, f64)> = (0..n).map(|_| (4000.0 * dice.unit(), 2000.0 * dice.unit())).collect();
    pairs(n, |from, to| {
        let (a, b) = (points[from], points[to]);
        ((a.0 - b.0).hypot(a.1 - b.1) * (1.0 + dice.unit() / 10.0)) as u32
    })
}

/// A crane that carries things: from where one was put down to where the next one waits.
fn crane(n: usize, seed: u64) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    let near = 10_000.0 / (n as f64).sqrt();
    let jobs: Vec<[f64; 4]> = (0..n)
        .map(|_| {
            let (x, y) = (10_000.0 * dice.unit(), 10_000.0 * dice.unit());
            [x, y, x + near * (dice.unit() - 0.5), y + near * (dice.unit() - 0.5)]
        })
        .collect();
    pairs(n, |from, to| (jobs[from][2] - jobs[to][0]).hypot(jobs[from][3] - jobs[to][1]) as u32)
}

/// A crane in front of a shelf, which moves in both directions at once, in whole steps: small numbers, many ties.
fn stacker(n: usize, seed: u64) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    let jobs: Vec<[u32; 4]> = (0..n).map(|_| [40, 10, 40, 10].map(|end| dice.below(end))).collect();
    pairs(n, |from, to| jobs[from][2].abs_diff(jobs[to][0]).max(2 * jobs[from][3].abs_diff(jobs[to][1])))
}

/// Distances in a plane, to each of which luck adds something of its own.
fn uneven_plane(n: usize, seed: u64) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    let points: Vec<(f64, f64)> = (0..n).map(|_| (4000.0 * dice.unit(), 2000.0 * dice.unit())).collect();
    pairs(n, |from, to| {
        let (a, b) = (points[from], points[to]);
        (a.0 - b.0).hypot(a.1 - b.1) as u32 + dice.below(700)
    })
}

fn ties(n: usize, seed: u64) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    pairs(n, |_, _| dice.below(n as u32 / 2 + 2))
}

fn pairs(n: usize, mut cost: impl FnMut(usize, usize) -> u32) -> Vec<u32> {
    (0..n * n).map(|at| if at / n == at % n { 0 } else { cost(at / n, at % n) }).collect()
}

/// A ring that is known to be the best, by prices, among decoys: other assignments at the same cost that are no rings.
/// Gives its cost too.
pub(crate) fn planted(n: usize, seed: u64) -> (Vec<u32>, u64) {
    let mut dice = Dice::new(seed);
    let price: Vec<(u32, u32)> = (0..n).map(|_| (dice.below(1000), dice.below(1000))).collect();
    let mut cost = pairs(n, |from, to| price[from].0 + price[to].1 + 1 + dice.below(500));
    for decoy in 0..3 {
        let order = dice.permutation(n);
        // The first is the ring; the others are cut into cycles of five.
        for at in 0..n {
            let block = at / 5 * 5;
            let inside = block + (at + 1 - block) % 5.min(n - block);
            let (from, to) = (order[at], order[if decoy == 0 { (at + 1) % n } else { inside }]);
            if from != to {
                cost[from * n + to] = price[from].0 + price[to].1;
            }
        }
    }
    let total = price.iter().map(|(a, b)| u64::from(a + b)).sum();
    (cost, total)
}

pub(crate) fn matrix(n: usize, costs: &[u32]) -> Matrix {
    let costs: Vec<Option<u32>> = costs.iter().map(|cost| Some(*cost)).collect();
    Matrix::of_costs(n, &costs).expect("a matrix")
}

/// Sites on a globe: latency by distance, rate limited by latency, by both ends, and by luck.
pub(crate) fn sites(n: usize, seed: u64) -> Matrix {
    let mut dice = Dice::new(seed);
    let sites: Vec<(f64, f64, f64)> = (0..n)
        .map(|_| (dice.unit() * 360.0, dice.unit() * 120.0 - 60.0, 2_000.0 + 14_000.0 * dice.unit()))
        .collect();
    let links = (0..n * n).map(|at| {
        let (a, b) = (sites[at / n], sites[at % n]);
        let east = (a.0 - b.0).abs().min(360.0 - (a.0 - b.0).abs());
        let latency_ms = 0.5 + east.hypot(a.1 - b.1) * 0.8;
        let luck = (-0.5 * dice.unit().max(1e-9).ln()).sqrt().clamp(0.2, 1.5);
        let mbit_s = (a.2.min(b.2)).min(400_000.0 / latency_ms) * luck;
        (at / n != at % n).then_some(Link { mbit_s, latency_us: Some((latency_ms * 1000.0) as u32) })
    });
    Matrix::of_links(n, &links.collect::<Vec<_>>()).expect("a matrix")
}
