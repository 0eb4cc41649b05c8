//! The best two rings that have no edge in common, each with a share of the tensor in proportion to its slowest edge.

use super::{interfaces::Interfaces, schedule::Loads};
use crate::matrix::Matrix;

/// Most peers for which all rings are looked at.
pub(crate) const MAX_TWO_RINGS: usize = 8;

/// A ring with its edges as a set: edge i -> k is bit 8 i + k.
struct Ring {
    order: Vec<usize>,
    edges: u64,
    slowest: f64,
}

/// How much tensor they reduce in a second together, in Mbit. All pairs of rings are looked at that can be better than
/// the best so far. For at most [`MAX_TWO_RINGS`] peers.
pub(crate) fn two_rings(matrix: &Matrix, interfaces: &Interfaces) -> Option<f64> {
    let n = matrix.peers() as f64;
    let mut rings = all_rings(matrix);
    rings.sort_by(|a, b| b.slowest.total_cmp(&a.slowest));
    let passes = 2.0 * (n - 1.0) / n;
    // Every place has to be entered and left.
    let carried = interfaces.sends.iter().chain(&interfaces.receives).copied().filter(|rate| *rate > 0.0);
    let bound = carried.fold(f64::INFINITY, f64::min) / passes;
    let mut best = 0.0_f64;
    for (at, first) in rings.iter().enumerate() {
        for second in &rings[at + 1..] {
            let most = ((first.slowest + second.slowest) / passes).min(bound);
            if most <= best {
                break;
            }
            if first.edges & second.edges == 0 {
                let found = together(matrix, interfaces, first, second);
                best = found.map_or(best, |found| best.max(found));
            }
        }
        let most = (2.0 * first.slowest / passes).min(bound);
        if most <= best {
            break;
        }
    }
    Some(best).filter(|best| *best > 0.0)
}

fn together(matrix: &Matrix, interfaces: &Interfaces, first: &Ring, second: &Ring) -> Option<f64> {
    let mut loads = Loads::none(matrix.peers());
    for ring in [first, second] {
        loads.add_ring(&ring.order, ring.slowest / (first.slowest + second.slowest));
    }
    loads.mbit_s(matrix, interfaces)
}

/// All rings over possible edges.
fn all_rings(matrix: &Matrix) -> Vec<Ring> {
    debug_assert!(matrix.peers() <= MAX_TWO_RINGS);
    let mut rings = Vec::new();
    extend(matrix, &mut vec![0], &mut rings);
    rings
}

fn extend(matrix: &Matrix, order: &mut Vec<usize>, rings: &mut Vec<Ring>) {
    let n = matrix.peers();
    let last = order[order.len() - 1];
    if order.len() == n {
        if matrix.is_possible(last, 0) {
            let edges = Matrix::edges(order).fold(0, |edges, (from, to)| edges | 1 << (8 * from + to));
            rings.push(Ring { order: order.clone(), edges, slowest: matrix.bottleneck(order) });
        }
        return;
    }
    for next in 1..n {
        if !order.contains(&next) && matrix.is_possible(last, next) {
            order.push(next);
            extend(matrix, order, rings);
            order.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chance::Chance,
        matrix::Link,
        test_support::{all_rings as every_ring, sparse},
    };

    #[test]
    fn nothing_is_passed_over() {
        let mut chance = Chance::new(9);
        let mut found_some = 0;
        for seed in 0..300 {
            let n = 3 + chance.below(3);
            let places: Vec<usize> =
                (0..n).map(|peer| if seed % 3 == 0 { chance.below(n) } else { peer }).collect();
            let matrix = sparse(n, seed, if seed % 2 == 0 { 1.1 } else { 0.8 }).with_places(&places);
            let interfaces = Interfaces::of(&matrix);
            let edges = |ring: &[usize]| Matrix::edges(ring).collect::<Vec<_>>();
            let rings: Vec<Vec<usize>> = every_ring(n)
                .into_iter()
                .filter(|ring| edges(ring).iter().all(|(a, b)| matrix.is_possible(*a, *b)))
                .collect();
            let mut best = 0.0_f64;
            for a in &rings {
                for b in rings.iter().filter(|b| !edges(b).iter().any(|edge| edges(a).contains(edge))) {
                    let (p, q) = (matrix.bottleneck(a), matrix.bottleneck(b));
                    let mut loads = Loads::none(n);
                    loads.add_ring(a, p / (p + q));
                    loads.add_ring(b, q / (p + q));
                    best = best.max(loads.mbit_s(&matrix, &interfaces).unwrap_or(0.0));
                }
            }
            let found = two_rings(&matrix, &interfaces);
            assert_eq!(found.is_some(), best > 0.0, "seed {seed}");
            if let Some(found) = found {
                assert!((found / best - 1.0).abs() < 1e-9, "seed {seed}: {found} {best}");
                found_some += 1;
            }
        }
        assert!(found_some > 200, "{found_some}");
    }

    #[test]
    fn a_second_ring_only_divides_what_an_interface_carries() {
        let link = Some(Link { mbit_s: 100.0, latency_us: None });
        for n in 3..=8 {
            let matrix = Matrix::of_links(n, &vec![link; n * n]).unwrap();
            let mut interfaces = Interfaces::of(&matrix);
            let rate = |interfaces: &Interfaces| two_rings(&matrix, interfaces).unwrap();
            let one = 100.0 * n as f64 / (2.0 * (n as f64 - 1.0));
            assert!((rate(&interfaces) / one - 1.0).abs() < 1e-9);
            interfaces.sends.iter_mut().chain(&mut interfaces.receives).for_each(|rate| *rate = 1000.0);
            assert!((rate(&interfaces) / one - 2.0).abs() < 1e-9);
        }
    }
}
