//! Shares against brute force, against proofs, and in networks of which the answer is known.

use super::*;
use crate::{
    chance::Chance,
    matrix::Link,
    schedules::loads::pairwise_rate,
    schedules::simplex::tests::proven_sum,
    test_support::{permutations, sparse},
};

fn matrix(n: usize, rate: impl Fn(usize, usize) -> f64) -> Matrix {
    let links: Vec<Option<Link>> =
        (0..n * n).map(|at| Some(Link { mbit_s: rate(at / n, at % n), latency_us: None })).collect();
    Matrix::of_links(n, &links).unwrap()
}

/// Rates of three kinds: from 10 to 100, few different ones, and from 1e-3 to 1e6.
fn drawn(chance: &mut Chance, n: usize, kind: usize) -> Matrix {
    let mut rate = || match kind {
        0 => 10.0 + 90.0 * chance.unit(),
        1 => [20.0, 100.0, 100.0, 400.0][chance.below(4)],
        _ => 10f64.powf(chance.unit() * 9.0 - 3.0),
    };
    let rates: Vec<f64> = (0..n * n).map(|_| rate()).collect();
    matrix(n, |from, to| rates[from * n + to])
}

/// Interfaces that carry up to three times as much as the fastest edge, and a place for each peer, or fewer.
fn with_surroundings(chance: &mut Chance, matrix: Matrix) -> (Matrix, Interfaces) {
    let n = matrix.peers();
    let matrix = if chance.below(2) == 0 {
        matrix
    } else {
        let places: Vec<usize> = (0..n).map(|peer| if peer < 2 { peer } else { chance.below(n) }).collect();
        matrix.with_places(&places)
    };
    let mut interfaces = Interfaces::of(&matrix);
    if chance.below(2) == 0 {
        let all = interfaces.sends.iter_mut().chain(&mut interfaces.receives);
        all.for_each(|rate| *rate *= 1.0 + 2.0 * chance.unit());
    }
    (matrix, interfaces)
}

fn limits_of_pairs(matrix: &Matrix, interfaces: &Interfaces) -> Vec<Row> {
    let n = matrix.peers();
    limits((matrix, interfaces), n, &|shares| Loads::pairwise(n, shares))
}

fn best_rate(matrix: &Matrix, interfaces: &Interfaces) -> f64 {
    let n = matrix.peers();
    proven_sum(n, &between(&limits_of_pairs(matrix, interfaces), 0.0, largest_of(n)))
}

fn largest(shares: &[u16], n: usize) -> f64 {
    shares.iter().max().map_or(1.0 / n as f64, |most| f64::from(*most) / f64::from(SHARE_PARTS))
}

/// All ways to divide `parts` parts among `n` owners.
fn divisions(n: usize, parts: u16) -> Vec<Vec<u16>> {
    if n == 1 {
        return vec![vec![parts]];
    }
    let first = |part: u16| {
        divisions(n - 1, parts - part).into_iter().map(move |mut rest| {
            rest.push(part);
            rest
        })
    };
    (0..=parts).flat_map(first).collect()
}

#[test]
fn nothing_on_a_grid_of_shares_is_faster_or_as_fast_and_more_even() {
    let mut chance = Chance::new(1);
    let (mut uneven, mut compared) = (0, 0);
    for (n, parts, draws) in [(3, 120, 60), (4, 40, 20)] {
        let step = 1.0 / f64::from(parts);
        let mut grid = divisions(n, parts);
        grid.retain(|shares| shares.iter().all(|part| f64::from(*part) * step <= largest_of(n)));
        for draw in 0..draws {
            let matrix = drawn(&mut chance, n, draw % 2);
            let (matrix, interfaces) = with_surroundings(&mut chance, matrix);
            let best = best_rate(&matrix, &interfaces);
            let shares = best_shares(&matrix, &interfaces).unwrap();
            let rates: Vec<f64> =
                grid.iter().map(|shares| pairwise_rate(&matrix, &interfaces, shares).unwrap()).collect();
            let fastest = rates.iter().copied().fold(0.0, f64::max);
            assert!(fastest <= best * (1.0 + 1e-9), "{fastest} {best}");
            assert!(fastest >= best * (1.0 - 2.0 * n as f64 * step), "{fastest} {best}");
            let good = grid.iter().zip(&rates).filter(|(_, rate)| **rate >= GOOD * best);
            // A coarse grid may have none.
            if let Some(most_even) = good.map(|(shares, _)| *shares.iter().max().unwrap()).min() {
                assert!(largest(&shares, n) <= f64::from(most_even) * step + 0.002, "{shares:?} {most_even}");
                compared += 1;
            }
            uneven += usize::from(!shares.is_empty());
        }
    }
    assert!((40..75).contains(&uneven) && compared > 60, "{uneven} {compared}");
}

#[test]
fn shares_are_whole_nearly_the_best_and_never_worse_than_equal_ones() {
    let mut chance = Chance::new(2);
    let mut uneven = [0; 3];
    for draw in 0..900 {
        let (n, kind) = (3 + chance.below(6), draw % 3);
        let matrix = drawn(&mut chance, n, kind);
        let (matrix, interfaces) = with_surroundings(&mut chance, matrix);
        let best = best_rate(&matrix, &interfaces);
        let shares = best_shares(&matrix, &interfaces).unwrap();
        let rate = pairwise_rate(&matrix, &interfaces, &shares).unwrap();
        let equal = pairwise_rate(&matrix, &interfaces, &[]).unwrap();
        assert!(rate <= best * (1.0 + 1e-9), "{rate} {best}");
        assert!(rate >= equal, "{rate} {equal}");
        // Parts of a thousand cannot follow rates that differ by a factor of a billion.
        assert!(rate >= best * (GOOD - if kind < 2 { 0.01 } else { 1.0 }), "{rate} of {best}: {shares:?}");
        if shares.is_empty() {
            assert!(equal >= best * GOOD * (1.0 - 1e-9) || kind == 2);
            continue;
        }
        assert!(equal < best * GOOD);
        assert_eq!((shares.len(), shares.iter().sum::<u16>()), (n, SHARE_PARTS));
        uneven[kind] += 1;
        assert!(largest(&shares, n) < largest_of(n) + 0.001, "{shares:?}");
        // With a smaller largest share nothing is good enough.
        let most = largest(&shares, n) - 0.008;
        let less: f64 = rates(&limits_of_pairs(&matrix, &interfaces), 0.0, most).iter().sum();
        assert!(most <= 1.0 / n as f64 || less < best * GOOD, "{shares:?}");
    }
    assert!(uneven.iter().all(|count| *count > 100), "{uneven:?}");
}

#[test]
fn the_numbers_of_peers_do_not_matter() {
    let mut chance = Chance::new(4);
    for draw in 0..12 {
        let n = 3 + draw % 3;
        let rates = drawn(&mut chance, n, draw % 2);
        let (matrix, interfaces) = with_surroundings(&mut chance, rates);
        let shares = best_shares(&matrix, &interfaces).unwrap();
        let rate = pairwise_rate(&matrix, &interfaces, &shares).unwrap();
        for order in permutations(n) {
            let places: Vec<usize> = order.iter().map(|peer| matrix.group(*peer)).collect();
            let turned =
                self::matrix(n, |i, j| matrix.value(order[i], order[j]).unwrap_or(1.0)).with_places(&places);
            // The rate of an interface is found by the first peer of its place.
            let of = |all: &[f64]| order.iter().map(|peer| all[matrix.group(*peer)]).collect();
            let turned_interfaces = Interfaces {
                sends: of(&interfaces.sends),
                receives: of(&interfaces.receives),
                uplinks: Vec::new(),
            };
            let (a, b) = (best_rate(&matrix, &interfaces), best_rate(&turned, &turned_interfaces));
            assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
            let turned_shares = best_shares(&turned, &turned_interfaces).unwrap();
            assert!((largest(&shares, n) - largest(&turned_shares, n)).abs() < 0.01);
            let turned_rate = pairwise_rate(&turned, &turned_interfaces, &turned_shares).unwrap();
            assert!((rate / turned_rate - 1.0).abs() < 0.01, "{rate} {turned_rate}");
        }
    }
}

fn shares_of(matrix: &Matrix, interfaces: &Interfaces) -> (Vec<u16>, f64) {
    let shares = best_shares(matrix, interfaces).unwrap();
    let rate = pairwise_rate(matrix, interfaces, &shares).unwrap();
    (shares, rate)
}

#[test]
fn equal_edges_have_equal_shares_and_so_have_nearly_equal_ones() {
    let mut chance = Chance::new(6);
    for n in 3..=8 {
        let rates: Vec<f64> = (0..n * n).map(|_| 100.0 + 3.0 * chance.unit()).collect();
        let matrix = matrix(n, |from, to| rates[from * n + to]);
        assert_eq!(shares_of(&matrix, &Interfaces::of(&matrix)).0, []);
    }
}

#[test]
fn the_ends_of_one_slow_pair_own_little() {
    let matrix = matrix(5, |from, to| if from + to == 1 { 20.0 } else { 200.0 });
    let mut interfaces = Interfaces::of(&matrix);
    // z_0 + z_1 = 20, and the others' interfaces are full: 3 z + 20 + 3 z = 200.
    assert!((best_rate(&matrix, &interfaces) - 110.0).abs() < 1e-6);
    let (shares, rate) = shares_of(&matrix, &interfaces);
    assert!((106.0..=110.0).contains(&rate), "{rate}");
    assert!(shares[0].abs_diff(shares[1]) <= 2 && shares[0] + shares[1] <= 190, "{shares:?}");
    assert!(shares[2..].iter().all(|share| (270..=280).contains(share)), "{shares:?}");
    // Where only edges bind, each other pair carries 200, and the ring is far behind.
    interfaces.learn(&matrix, |_, _| 200.0);
    let (shares, rate) = shares_of(&matrix, &interfaces);
    assert!((310.0..=320.0).contains(&rate), "{rate}");
    assert!(shares[0] + shares[1] <= 66, "{shares:?}");
}

#[test]
fn a_slow_host_owns_next_to_nothing() {
    let matrix = matrix(6, |from, to| if from == 5 || to == 5 { 30.0 } else { 150.0 });
    let (shares, rate) = shares_of(&matrix, &Interfaces::of(&matrix));
    // All has to pass its interface once, not 10 / 6 times.
    assert!((29.0..=30.0).contains(&rate), "{rate}");
    assert!(shares[5] <= 10 && shares[..5].iter().all(|share| (196..=202).contains(share)), "{shares:?}");
}

#[test]
fn the_larger_of_two_regions_owns_more() {
    let matrix = matrix(5, |from, to| if (from < 3) == (to < 3) { 200.0 } else { 40.0 });
    let (shares, rate) = shares_of(&matrix, &Interfaces::of(&matrix));
    // a + b = 40 and 3 a + 3 a + 2 b = 200.
    assert!((106.0..=110.0).contains(&rate), "{rate}");
    let (large, small) = shares.split_at(3);
    assert!(large.iter().all(|share| (245..=252).contains(share)), "{shares:?}");
    assert!(small.iter().all(|share| (120..=130).contains(share)), "{shares:?}");
}

#[test]
fn peers_that_share_an_interface_own_what_the_others_do_not() {
    // Two hosts, of two peers and three: what the two own crosses three times, what the three own twice.
    let edges = matrix(5, |from, to| if (from < 2) == (to < 2) { 10_000.0 } else { 100.0 });
    let two_hosts = edges.clone().with_places(&[0, 0, 2, 2, 2]);
    let (shares, rate) = shares_of(&two_hosts, &Interfaces::of(&two_hosts));
    assert!((48.5..=50.0).contains(&rate), "{rate}");
    assert!(shares[0] + shares[1] <= 65, "{shares:?}");
    // Of equal hosts it does not matter who owns what.
    let even = matrix(4, |from, to| if from / 2 == to / 2 { 10_000.0 } else { 100.0 });
    let even = even.with_places(&[0, 0, 2, 2]);
    assert_eq!(shares_of(&even, &Interfaces::of(&even)).0, []);
    let one_host = edges.with_places(&[0; 5]);
    assert_eq!(best_shares(&one_host, &Interfaces::of(&one_host)), None);
}

#[test]
fn where_there_is_no_exchange_there_are_no_shares() {
    for n in [1, 2, 33] {
        let matrix = matrix(n, |_, _| 100.0);
        assert_eq!(best_shares(&matrix, &Interfaces::of(&matrix)), None);
    }
    // The ends of an edge that cannot be used might own nothing, but there is no mesh without it.
    let mut holes = 0;
    for seed in 0..100 {
        let matrix = sparse(5, seed, 0.95);
        holes += usize::from(!matrix.is_complete());
        assert_eq!(best_shares(&matrix, &Interfaces::of(&matrix)).is_some(), matrix.is_complete());
    }
    assert!((20..80).contains(&holes), "{holes}");
}

#[test]
fn odd_interfaces_are_survived() {
    let matrix = matrix(4, |from, to| if from + to == 1 { 1e-3 } else { 1e6 });
    for odd in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX] {
        for at in 0..4 {
            let mut interfaces = Interfaces::of(&matrix);
            interfaces.sends[at] = odd;
            let shares = best_shares(&matrix, &interfaces);
            let sum = shares.map(|shares| shares.iter().sum());
            assert!(matches!(sum, None | Some(0 | SHARE_PARTS)), "{odd} {sum:?}");
        }
    }
}
