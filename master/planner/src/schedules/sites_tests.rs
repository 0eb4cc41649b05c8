//! Sites that are found, and what is predicted of them, against messages that are counted one by one.

use super::*;
use crate::{Schedules, Uplink, chance::Chance, matrix::Link, test_support::sparse};
use std::collections::BTreeMap;

fn matrix(n: usize, link: impl Fn(usize, usize) -> (f64, Option<u32>)) -> Matrix {
    let links = (0..n * n).map(|at| {
        let (mbit_s, latency_us) = link(at / n, at % n);
        Some(Link { mbit_s, latency_us })
    });
    Matrix::of_links(n, &links.collect::<Vec<_>>()).unwrap()
}

/// Messages of a tensor that is cut so finely that every choice of owners occurs as often as its shares say: from, to,
/// part.
fn messages(sites: &Sites) -> Vec<(usize, usize, f64)> {
    let members = |site: usize| (0..sites.of.len()).filter(move |peer| usize::from(sites.of[*peer]) == site);
    let sizes = sites.sizes();
    let weight = |site: usize| sites.shares.get(site).map_or(sizes[site], |share| f64::from(*share));
    let all: f64 = (0..sites.count()).map(weight).sum();
    let mut messages = Vec::new();
    for root_site in 0..sites.count() {
        for root in members(root_site) {
            let part = weight(root_site) / all / sizes[root_site];
            for (site, size) in sizes.iter().enumerate() {
                for owner in members(site).filter(|owner| site != root_site || *owner == root) {
                    let part = if site == root_site { part } else { part / size };
                    for other in members(site).filter(|other| *other != owner) {
                        messages.extend([(other, owner, part), (owner, other, part)]);
                    }
                    if owner != root {
                        messages.extend([(owner, root, part), (root, owner, part)]);
                    }
                }
            }
        }
    }
    messages
}

fn counted(matrix: &Matrix, interfaces: &Interfaces, messages: &[(usize, usize, f64)]) -> f64 {
    let mut times: BTreeMap<String, f64> = BTreeMap::new();
    for &(from, to, part) in messages {
        let mut add = |what: String, rate: f64| *times.entry(what).or_default() += part / rate;
        add(format!("{from} {to}"), matrix.rate(from, to));
        let (here, there) = (matrix.group(from), matrix.group(to));
        if here != there {
            add(format!("from {here}"), interfaces.sends[here]);
            add(format!("to {there}"), interfaces.receives[there]);
        }
        for (at, uplink) in interfaces.uplinks.iter().enumerate() {
            match (uplink.behind[from], uplink.behind[to]) {
                (true, false) => add(format!("up {at}"), uplink.sends),
                (false, true) => add(format!("down {at}"), uplink.receives),
                _ => {}
            }
        }
    }
    1.0 / times.into_values().fold(0.0, f64::max)
}

#[test]
fn the_prediction_equals_that_of_counted_messages() {
    let mut chance = Chance::new(9);
    let mut two_levels = 0;
    for seed in 0..400 {
        let n = 3 + chance.below(9);
        let mut matrix = sparse(n, seed, 1.1);
        if chance.below(2) == 0 {
            let places: Vec<usize> =
                (0..n).map(|peer| if peer < 2 { peer } else { chance.below(n) }).collect();
            matrix = matrix.with_places(&places);
        }
        let names: Vec<u16> = (0..n).map(|_| chance.below(4) as u16).collect();
        let mut sites = Sites::new(&names);
        let mut interfaces = Interfaces::of(&matrix);
        if chance.below(2) == 0 {
            sites.shares = (0..sites.count()).map(|_| 1 + chance.below(500) as u16).collect();
            let behind = sites.of.iter().map(|site| *site == 0).collect();
            interfaces.uplinks.push(Uplink { behind, sends: 1.0 + chance.unit(), receives: 2.0 });
        }
        let found = sites_rate(&matrix, &interfaces, &sites);
        assert_eq!(found.is_some(), sites.have_two_levels());
        if let Some(rate) = found {
            two_levels += 1;
            let counted = counted(&matrix, &interfaces, &messages(&sites));
            assert!((rate / counted - 1.0).abs() < 1e-9, "{rate} {counted} {sites:?}");
        }
    }
    assert!(two_levels > 200, "{two_levels}");
}

/// In `sites` of these sizes, 1000 Mbit/s inside; what is between two sites is given by their numbers.
fn regions(sizes: &[usize], between: impl Fn(usize, usize) -> f64) -> (Matrix, Vec<u16>) {
    let of: Vec<u16> = sizes.iter().enumerate().flat_map(|(site, size)| vec![site as u16; *size]).collect();
    let rate = |from: usize, to: usize| match (of[from], of[to]) {
        (a, b) if a == b => (1000.0, Some(500)),
        (a, b) => (between(usize::from(a), usize::from(b)), Some(20_000)),
    };
    (matrix(of.len(), rate), of)
}

fn found(matrix: &Matrix, interfaces: &Interfaces, named: &[Option<u16>]) -> Schedules {
    let order: Vec<usize> = (0..matrix.peers()).collect();
    let found = Schedules::of(matrix, interfaces, &order).expect("a ring of all");
    found.with_sites(matrix, interfaces, named)
}

#[test]
fn two_sites_are_found_and_cross_the_slow_way_once() {
    let (matrix, of) = regions(&[3, 3], |_, _| 100.0);
    let interfaces = Interfaces::of(&matrix);
    let all = found(&matrix, &interfaces, &[]);
    let sites = all.sites.clone().expect("there are sites");
    assert_eq!((sites.sites.of, sites.sites.shares), (of, vec![]));
    // Nine pairs share what crosses once; an interface of 1000 moves 4/3 inside and 1/3 between.
    assert!((sites.rate - 600.0).abs() < 1e-6, "{}", sites.rate);
    assert!((all.pairwise.expect("all edges") - 300.0).abs() < 1e-6 && (all.ring - 60.0).abs() < 1e-6);
    assert_eq!(all.preferred(pccl_protocol::Algorithm::Ring), pccl_protocol::Algorithm::Sites);
}

#[test]
fn an_uplink_that_sites_share_is_crossed_by_each_byte_once() {
    let (matrix, of) = regions(&[4, 4], |_, _| 100.0);
    let sites = Sites::new(&of);
    // Rates measured when all sent to all: together as much as one edge, while those within went on.
    let carried = |from: usize, to: usize| if of[from] == of[to] { 300.0 } else { 100.0 / 16.0 };
    let interfaces = Interfaces::of(&matrix).with_uplinks(&matrix, &sites, carried);
    assert_eq!(interfaces.uplinks.iter().map(|uplink| uplink.sends).collect::<Vec<_>>(), [100.0, 100.0]);
    let all = found(&matrix, &interfaces, &[]);
    assert!((all.sites.expect("sites").rate - 100.0).abs() < 1e-6);
    assert!((all.ring - 100.0 / 1.75).abs() < 1e-6 && (all.pairwise.expect("all edges") - 25.0).abs() < 1e-6);
    // Where an edge was not measured so, nothing is said, nor where hosts are what is slow.
    let is_unknown = |from: usize, to: usize| if from == 0 { 0.0 } else { carried(from, to) };
    let slow_hosts = |from: usize, to: usize| if of[from] == of[to] { 100.0 } else { 100.0 / 16.0 };
    for carried in [&is_unknown as &dyn Fn(usize, usize) -> f64, &slow_hosts] {
        assert!(Interfaces::of(&matrix).with_uplinks(&matrix, &sites, carried).uplinks.is_empty());
    }
}

#[test]
fn a_slow_site_owns_less_and_sites_may_be_uneven_or_of_one() {
    let slow = |a: usize, b: usize| if a == 2 || b == 2 { 20.0 } else { 200.0 };
    let (matrix, of) = regions(&[3, 2, 1], slow);
    let interfaces = Interfaces::of(&matrix);
    let named: Vec<Option<u16>> = of.iter().map(|site| Some(*site)).collect();
    let best = found(&matrix, &interfaces, &named).sites.expect("sites");
    assert_eq!(best.sites.of, of);
    let equal = sites_rate(&matrix, &interfaces, &Sites::new(&of)).expect("sites");
    // All has to reach it once, and more than that if it owns something.
    assert!(best.sites.shares[2] <= 30 && best.rate <= 20.0 && best.rate > 1.1 * equal, "{best:?} {equal}");
}

#[test]
fn names_win_over_what_is_measured() {
    let (matrix, _) = regions(&[3, 3], |_, _| 100.0);
    let interfaces = Interfaces::of(&matrix);
    let sites = |named: &[Option<u16>]| found(&matrix, &interfaces, named).sites.map(|found| found.sites.of);
    let crosswise = [0, 1, 0, 1, 0, 1].map(Some);
    assert_eq!(sites(&crosswise), Some(vec![0, 1, 0, 1, 0, 1]));
    // Those without a name are put together among themselves.
    assert_eq!(sites(&[Some(7), None, None, None, None, None]), Some(vec![0, 1, 1, 2, 2, 2]));
    // All in one site: there is one level only.
    assert_eq!(sites(&[Some(7); 6]), None);
}

#[test]
fn round_trips_show_sites_that_rates_do_not() {
    // Every pair by itself is as fast as an interface; the ways between sites are shared, and long.
    let of = [0, 1, 0, 1];
    let matrix = matrix(4, |from, to| (100.0, Some(if of[from] == of[to] { 300 } else { 30_000 })));
    let seen = divisions(&matrix, &[]);
    assert!(seen.contains(&Sites::new(&of)), "{seen:?}");
}

#[test]
fn where_all_is_alike_there_is_nothing_to_gain_from_sites() {
    let matrix = matrix(6, |_, _| (100.0, None));
    let all = found(&matrix, &Interfaces::of(&matrix), &[]);
    assert_eq!(all.preferred(pccl_protocol::Algorithm::Ring), pccl_protocol::Algorithm::Ring);
}
