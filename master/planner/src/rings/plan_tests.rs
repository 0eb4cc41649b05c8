use super::*;
use crate::{
    Link, Obstacle,
    chance::Chance,
    test_support::{all_rings, forever, looks, sparse, tied, uneven},
};

fn planned(matrix: &Matrix, options: &Options<'_>) -> Result<Plan, NoPlan> {
    let result = plan(matrix, options, &mut forever());
    if let Ok(plan) = &result {
        let mut sorted = plan.order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..matrix.peers()), "{plan:?}");
        assert!(Matrix::edges(&plan.order).all(|(from, to)| matrix.is_possible(from, to)), "{plan:?}");
        assert_eq!(plan.slowest, matrix.slowest(&plan.order));
    }
    result
}

fn objective(objective: Objective) -> Options<'static> {
    Options { objective, ..Options::default() }
}

/// Best slowest rate and best sum above the floor that the objective sets, over all rings that keep places together.
fn brute_force(matrix: &Matrix, objective: Objective) -> Option<(f64, u64)> {
    let possible = |ring: &Vec<usize>| matrix.total(ring).is_some();
    let rings: Vec<Vec<usize>> = all_rings(matrix.peers()).into_iter().filter(possible).collect();
    let fewest = rings.iter().map(|ring| matrix.crossings(ring)).min()?;
    let rings = || rings.iter().filter(|ring| matrix.crossings(ring) == fewest);
    let widest = rings().map(|ring| matrix.bottleneck(ring)).fold(f64::NEG_INFINITY, f64::max);
    let floor = match objective {
        Objective::Balanced if matrix.is_costs() => widest / 0.9,
        Objective::Balanced => widest * 0.9,
        Objective::Bottleneck => widest,
        Objective::Sum => f64::NEG_INFINITY,
    };
    let fast = rings().filter(|ring| matrix.bottleneck(ring) >= floor);
    Some((widest, fast.filter_map(|ring| matrix.total(ring)).min()?))
}

const OBJECTIVES: [Objective; 3] = [Objective::Balanced, Objective::Bottleneck, Objective::Sum];

fn check_against_brute_force(matrix: &Matrix, seed: u64, exact_peers: usize) {
    for wanted in OBJECTIVES {
        let what = format!("{} peers, seed {seed}, {wanted:?}", matrix.peers());
        let options = Options { exact_peers, ..objective(wanted) };
        match (planned(matrix, &options), brute_force(matrix, wanted)) {
            (Ok(plan), Some((widest, total))) => {
                assert_eq!(plan.total.expect("no present ring").value, total as f64, "{what}");
                assert!(plan.proven || exact_peers == 0, "{what}");
                if wanted != Objective::Sum {
                    let sign = if matrix.is_costs() { -1.0 } else { 1.0 };
                    let bottleneck = plan.bottleneck.expect("it was the objective");
                    let bound = bottleneck.bound * sign;
                    assert!(bound == widest || (bound > widest && !plan.proven), "{what}: {bound} {widest}");
                }
            }
            (Err(none), None) => assert!(none.proven, "{what}"),
            (result, best) => panic!("{what}: {result:?} {best:?}"),
        }
    }
}

#[test]
fn exact_plans_equal_brute_force() {
    for seed in 0..80 {
        let n = 2 + seed as usize % 6;
        check_against_brute_force(&tied(n, seed), seed, 16);
        check_against_brute_force(&uneven(n, seed), seed, 16);
        check_against_brute_force(&sparse(n, seed, 0.5), seed, 16);
        check_against_brute_force(&sparse(n, seed, 0.9), seed, 16);
    }
    check_against_brute_force(&sparse(8, 1, 0.8), 1, 16);
}

#[test]
fn searches_equal_brute_force_too() {
    for seed in 0..80 {
        let n = 2 + seed as usize % 6;
        check_against_brute_force(&tied(n, seed), seed, 0);
        check_against_brute_force(&sparse(n, seed, 0.7), seed, 0);
    }
}

#[test]
fn places_are_kept_together_unless_that_is_impossible() {
    for seed in 0..120 {
        let n = 3 + seed as usize % 5;
        let places: Vec<usize> = (0..n).map(|i| (i * 5 + seed as usize) % (2 + seed as usize % 3)).collect();
        let matrix = sparse(n, seed, 0.95).with_places(&places);
        let Some((_, total)) = brute_force(&matrix, Objective::Balanced) else { continue };
        let plan = planned(&matrix, &Options::default()).expect("there is one");
        if matrix.crossings(&plan.order) == matrix.fewest_crossings() {
            assert!(plan.split_places.is_empty(), "seed {seed}: {plan:?}");
            assert_eq!(plan.total.expect("not kept").value, total as f64, "seed {seed}");
        } else {
            let fits = |ring: &Vec<usize>| {
                matrix.total(ring).is_some() && matrix.crossings(ring) == matrix.fewest_crossings()
            };
            assert!(!all_rings(n).iter().any(fits), "seed {seed}");
            assert!(!plan.split_places.is_empty(), "seed {seed}");
        }
    }
}

#[test]
fn places_are_kept_together_in_large_rings() {
    let places: Vec<usize> = (0..60).map(|i| i % 12).collect();
    let matrix = sparse(60, 3, 1.0).with_places(&places);
    for wanted in OBJECTIVES {
        let plan = plan(&matrix, &objective(wanted), &mut looks(20_000)).expect("every edge is possible");
        assert_eq!(plan.split_places, Vec::<Vec<usize>>::new(), "{wanted:?}");
    }
}

#[test]
fn exact_and_searched_plans_agree_for_fourteen_peers() {
    for seed in 0..6 {
        for matrix in [sparse(14, seed, 0.6), uneven(14, seed), tied(13, seed)] {
            for wanted in OBJECTIVES {
                let exact = planned(&matrix, &objective(wanted)).expect("there is one");
                let options = Options { exact_peers: 0, ..objective(wanted) };
                let searched = plan(&matrix, &options, &mut looks(50_000)).expect("there is one");
                assert_eq!(searched.bottleneck.map(|b| b.value), exact.bottleneck.map(|b| b.value), "{seed}");
                assert_eq!(
                    searched.total.map(|t| t.value),
                    exact.total.map(|t| t.value),
                    "{seed} {wanted:?}"
                );
                let bound = searched.total.expect("not kept").bound;
                assert!(bound <= exact.total.expect("not kept").value, "a bound that does not hold");
            }
        }
    }
}

#[test]
fn the_sum_of_inverse_rates_is_the_wrong_objective() {
    // Ring 0 1 2 3: 10000, 400, 10000, 10000. Ring 0 2 1 3: 1000, 1000, 1000, 10000. The sum prefers the first, at 400.
    let mut links = [None; 16];
    for (from, to, mbit_s) in
        [(0, 1, 10e3), (1, 2, 400.0), (2, 3, 10e3), (3, 0, 10e3), (0, 2, 1e3), (2, 1, 1e3), (1, 3, 1e3)]
    {
        links[from * 4 + to] = Some(Link { mbit_s, latency_us: None });
    }
    links[12] = Some(Link { mbit_s: 1e4, latency_us: None });
    let matrix = Matrix::of_links(4, &links).expect("a matrix");
    assert_eq!(planned(&matrix, &objective(Objective::Sum)).unwrap().order, [0, 1, 2, 3]);
    let plan = planned(&matrix, &Options::default()).unwrap();
    assert_eq!((plan.order.as_slice(), plan.bottleneck.unwrap().value), ([0, 2, 1, 3].as_slice(), 1000.0));
    // 1.5 times 1 GB at 1000 Mbit/s.
    assert_eq!(plan.predicted_time(&matrix, 1_000_000_000), Some(Duration::from_secs(12)));
}

#[test]
fn other_numbers_for_the_peers_give_an_equally_good_ring() {
    let mut chance = Chance::new(8);
    for seed in 0..20 {
        let n = 5 + seed as usize % 8;
        let matrix = sparse(n, seed, 0.8);
        let mut names: Vec<usize> = (0..n).collect();
        (1..n).for_each(|i| names.swap(i, chance.below(i + 1)));
        let renamed: Vec<Option<Link>> = (0..n * n)
            .map(|at| {
                let rate = matrix.value(names[at / n], names[at % n]);
                rate.map(|mbit_s| Link { mbit_s, latency_us: None })
            })
            .collect();
        let renamed = Matrix::of_links(n, &renamed).expect("a matrix");
        let (one, other) = (planned(&matrix, &Options::default()), planned(&renamed, &Options::default()));
        let figures = |plan: Result<Plan, NoPlan>| plan.map(|plan| (plan.bottleneck, plan.total)).ok();
        assert_eq!(figures(one), figures(other), "seed {seed}");
    }
}

#[test]
fn the_present_ring_stays_unless_the_gain_is_a_tenth() {
    // Ring 0 1 2 has 100 Mbit/s throughout, ring 0 2 1 has what the case says.
    let matrix = |other: f64, latency_us: u32| {
        let link = |at: usize| {
            let forward = (at % 3 + 3 - at / 3) % 3 == 1;
            let (mbit_s, latency_us) = if forward { (100.0, 1000) } else { (other, latency_us) };
            Some(Link { mbit_s, latency_us: Some(latency_us) })
        };
        Matrix::of_links(3, &(0..9).map(link).collect::<Vec<_>>()).expect("a matrix")
    };
    let present = [0, 1, 2];
    let moves = |matrix: &Matrix, wanted: Objective| {
        let options = Options { present: Some(&present), ..objective(wanted) };
        let plan = planned(matrix, &options).expect("there is one");
        assert_eq!(plan.kept, plan.order == present);
        !plan.kept
    };
    for (other, latency_us, wanted, expected) in [
        (109.0, 1000, Objective::Bottleneck, false),
        (110.5, 1000, Objective::Bottleneck, true),
        (115.0, 9000, Objective::Balanced, true),
        // Equally fast: the latency decides.
        (109.0, 950, Objective::Balanced, false),
        (95.0, 900, Objective::Balanced, true),
        (85.0, 100, Objective::Balanced, false),
        (10.0, 950, Objective::Sum, false),
        (10.0, 900, Objective::Sum, true),
    ] {
        assert_eq!(moves(&matrix(other, latency_us), wanted), expected, "{other} {latency_us} {wanted:?}");
    }
    // A present ring that is none counts as none.
    let options = Options { present: Some(&[0, 1, 1]), ..Options::default() };
    assert!(!planned(&matrix(50.0, 1), &options).expect("there is one").kept);
}

#[test]
fn noise_does_not_move_a_ring() {
    let mut chance = Chance::new(2);
    for seed in 0..40 {
        let n = 4 + seed as usize % 6;
        let matrix = sparse(n, seed, 1.0);
        let best = planned(&matrix, &objective(Objective::Bottleneck)).expect("every edge is possible");
        // Each measurement is off by up to 4.5 percent, so two differ by less than a tenth.
        let noisy: Vec<Option<Link>> = (0..n * n)
            .map(|at| {
                let factor = 0.955 + 0.09 * chance.unit();
                let rate = matrix.value(at / n, at % n);
                rate.map(|mbit_s| Link { mbit_s: mbit_s * factor, latency_us: None })
            })
            .collect();
        let noisy = Matrix::of_links(n, &noisy).expect("a matrix");
        let options = Options { present: Some(&best.order), ..objective(Objective::Bottleneck) };
        assert!(planned(&noisy, &options).expect("every edge is possible").kept, "seed {seed}");
    }
}

#[test]
fn who_stands_in_the_way_is_said() {
    let none = |n: usize, edges: &[(usize, usize)]| {
        let mut costs = vec![None; n * n];
        edges.iter().for_each(|(from, to)| costs[from * n + to] = Some(1));
        planned(&Matrix::of_costs(n, &costs).expect("a matrix"), &Options::default()).expect_err("no ring")
    };
    assert_eq!(none(2, &[(0, 1)]).obstacles, [Obstacle::NoWayOut(1)]);
    // Two triangles that share peer 0: everybody has a way in and out, and to everybody.
    let none = none(5, &[(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (4, 0), (2, 1), (1, 0), (4, 3), (3, 0)]);
    assert!(none.proven);
    assert!(!none.obstacles.is_empty(), "{none:?}");
}

#[test]
fn peers_without_which_there_is_a_ring_are_found() {
    // The graph of Petersen has no ring, though nothing simple is missing; without any one peer it has.
    let mut costs = vec![None; 100];
    for i in 0..5 {
        for (a, b) in [(i, (i + 1) % 5), (i, i + 5), (i + 5, (i + 2) % 5 + 5)] {
            costs[a * 10 + b] = Some(1);
            costs[b * 10 + a] = Some(1);
        }
    }
    let matrix = Matrix::of_costs(10, &costs).expect("a matrix");
    let none = planned(&matrix, &Options::default()).expect_err("no ring");
    assert_eq!(none, NoPlan { obstacles: vec![Obstacle::Without(vec![0])], proven: true });
    let searched = Options { exact_peers: 0, ..Options::default() };
    assert_eq!(planned(&matrix, &searched), Err(NoPlan { obstacles: vec![], proven: true }));
}

#[test]
fn the_seed_and_the_clock_decide_everything() {
    let matrix = sparse(50, 9, 0.9);
    let run = |seed, number| {
        let options = Options { seed, ..Options::default() };
        plan(&matrix, &options, &mut looks(number)).expect("there is one")
    };
    for number in [50, 500, 5000] {
        assert_eq!(run(1, number), run(1, number));
    }
    // More time never makes the slowest edge slower.
    let rate = |plan: &Plan| plan.bottleneck.expect("it was the objective").value;
    assert!(rate(&run(1, 5000)) >= 0.9 * rate(&run(1, 50)));
}

#[test]
fn without_time_there_is_still_a_ring_if_no_edge_is_missing() {
    for n in [1, 2, 3, 13, 16, 40, 200] {
        for wanted in OBJECTIVES {
            let matrix = sparse(n, 1, 1.0);
            let plan = plan(&matrix, &objective(wanted), &mut || Duration::ZERO).expect("a ring");
            let mut order = plan.order;
            order.sort_unstable();
            assert!(order.into_iter().eq(0..n));
        }
    }
}

#[test]
fn the_best_slowest_edge_is_proven_without_the_sum() {
    // So few looks prove no sum of 60 peers.
    let proven = |objective: Objective| {
        let options = Options { objective, prove: false, ..Options::default() };
        let plan = plan(&uneven_links(60), &options, &mut looks(3000)).expect("every edge is possible");
        assert_eq!(plan.bottleneck, Some(Certified { value: 100.0, bound: 100.0 }));
        assert!(!plan.total.expect("it counts").is_proven(), "{plan:?}");
        plan.proven
    };
    assert!(proven(Objective::Bottleneck));
    assert!(!proven(Objective::Balanced));
}

/// One edge in ten is slow, and latencies are distances in a plane, whose lowest sum is hard to prove.
fn uneven_links(n: usize) -> Matrix {
    let mut chance = Chance::new(3);
    let points: Vec<(f64, f64)> = (0..n).map(|_| (chance.unit(), chance.unit())).collect();
    let links: Vec<Option<Link>> = (0..n * n)
        .map(|at| {
            let (a, b) = (points[at / n], points[at % n]);
            let latency_us = (100_000.0 * (a.0 - b.0).hypot(a.1 - b.1)) as u32;
            let mbit_s = if chance.below(10) == 0 { 10.0 } else { 100.0 };
            Some(Link { mbit_s, latency_us: Some(latency_us) })
        })
        .collect();
    Matrix::of_links(n, &links).expect("a matrix")
}

#[test]
fn when_the_time_is_over_few_looks_at_the_clock_follow() {
    for (n, ends) in [(40, &[0, 1, 30, 300, 3000][..]), (300, &[0, 1, 10, 100])] {
        for matrix in [uneven_links(n), sparse(n, 2, 0.9)] {
            for (wanted, &end) in OBJECTIVES.into_iter().flat_map(|o| ends.iter().map(move |end| (o, end))) {
                let mut looks = 0;
                let mut clock = || {
                    looks += 1;
                    Duration::from_millis(u64::from(looks < end))
                };
                let _ = plan(&matrix, &objective(wanted), &mut clock);
                assert!(looks <= end + 40, "{n} peers, {wanted:?}, {end}: {looks}");
            }
        }
    }
}
