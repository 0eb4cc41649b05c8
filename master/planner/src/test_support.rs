//! Matrices and clocks for tests.

use super::{
    chance::Chance,
    matrix::{Link, Matrix},
};
use std::time::Duration;

/// A clock that stands still.
pub(crate) fn forever() -> impl FnMut() -> Duration {
    || Duration::from_secs(3600)
}

/// A clock that can be read `number` times before the time is over.
pub(crate) fn looks(mut number: u32) -> impl FnMut() -> Duration {
    move || {
        number = number.saturating_sub(1);
        Duration::from_millis(number.into())
    }
}

/// All permutations of 0..n.
pub(crate) fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let smaller = permutations(n - 1);
    smaller
        .iter()
        .flat_map(|p| {
            (0..n).map(|at| {
                let mut p = p.clone();
                p.insert(at, n - 1);
                p
            })
        })
        .collect()
}

/// All rings of n peers, each from its last peer.
pub(crate) fn all_rings(n: usize) -> Vec<Vec<usize>> {
    let mut rings = permutations(n - 1);
    rings.iter_mut().for_each(|ring| ring.push(n - 1));
    rings
}

/// Rates of 10 to 100 Mbit/s; each edge exists with the given probability.
pub(crate) fn sparse(n: usize, seed: u64, density: f64) -> Matrix {
    let mut chance = Chance::new(seed);
    let links: Vec<Option<Link>> = (0..n * n)
        .map(|_| {
            let rate = 10.0 + 90.0 * chance.unit();
            (chance.unit() < density).then_some(Link { mbit_s: rate.round(), latency_us: None })
        })
        .collect();
    Matrix::of_links(n, &links).expect("a matrix")
}

/// Costs from 0 to 4: many ties, many zeros.
pub(crate) fn tied(n: usize, seed: u64) -> Matrix {
    let mut chance = Chance::new(seed ^ 0x7ed);
    let costs: Vec<Option<u32>> = (0..n * n).map(|_| Some(chance.below(5) as u32)).collect();
    Matrix::of_costs(n, &costs).expect("a matrix")
}

/// Asymmetric costs without structure.
pub(crate) fn uneven(n: usize, seed: u64) -> Matrix {
    let mut chance = Chance::new(seed ^ 0xa5);
    let costs: Vec<Option<u32>> = (0..n * n).map(|_| Some(chance.below(1000) as u32)).collect();
    Matrix::of_costs(n, &costs).expect("a matrix")
}
