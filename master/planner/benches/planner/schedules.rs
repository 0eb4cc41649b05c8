//! How often another schedule than the best ring is predicted to be faster, among random peers of a measured table.

use crate::instances::Dice;
use pccl_planner::{
    Interfaces, Link, Matrix, Objective, Options, SCHEDULED_PEERS, SHARE_PARTS, Schedules, Uplink,
    offline::{Kind, read},
    pairwise_rate, plan,
};
use std::time::{Duration, Instant};

/// A schedule is worth its while from this gain on.
const WORTH_IT: f64 = 1.1;

/// Prints a table for each of two suppositions about interfaces.
pub(crate) fn compare(path: &str, draws: u64) {
    let text = std::fs::read_to_string(path).expect("the table can be read");
    let table = read(&text, Kind::Rates, None).expect("a table of rates").matrix;
    for (what, is_known) in [
        ("its fastest edge among the peers drawn, which is what a run knows", false),
        ("its fastest edge of the whole table", true),
    ] {
        println!(
            "\nan interface carries as much as {what}; {draws} draws; each against the best of those before it:"
        );
        println!("the best ring, pairwise exchange with equal shares, with the best shares");
        let columns = "  >= 1.1, %   mean there   most";
        println!("peers |  equal:{columns} |   best:{columns}   largest share, %   found in, us");
        for n in 3..=8 {
            row(&table, n, draws, is_known);
        }
    }
}

fn row(table: &Matrix, n: usize, draws: u64, is_known: bool) {
    let mut dice = Dice::new(n as u64);
    let whole = Interfaces::of(table);
    let (mut equal, mut best) = (Vec::new(), Vec::new());
    let (mut took, mut largest) = (Duration::ZERO, 0.0);
    while equal.len() < draws as usize {
        let peers = drawn(&mut dice, table.peers(), n);
        // A region to which there is no figure.
        let Some(matrix) = part(table, &peers) else { continue };
        let interfaces = if is_known {
            let of = |all: &[f64]| peers.iter().map(|peer| all[*peer]).collect();
            Interfaces { sends: of(&whole.sends), receives: of(&whole.receives), uplinks: Vec::new() }
        } else {
            Interfaces::of(&matrix)
        };
        let options = Options { objective: Objective::Bottleneck, ..Options::default() };
        let ring = plan(&matrix, &options, &mut || Duration::from_secs(60)).expect("every edge is possible");
        let began = Instant::now();
        let found = Schedules::of(&matrix, &interfaces, &ring.order).expect("a ring");
        took += began.elapsed();
        let most = found.shares.iter().max().map(|parts| f64::from(*parts) / f64::from(SHARE_PARTS));
        largest += most.unwrap_or(1.0 / n as f64);
        let rates = [Some(found.ring), pairwise_rate(&matrix, &interfaces, &[]), found.pairwise]
            .map(|rate| rate.expect("all edges"));
        let gain = |at: usize| rates[at] / rates[..at].iter().copied().fold(0.0, f64::max);
        equal.push(gain(1));
        best.push(gain(2));
    }
    let of_all = |sum: f64| sum / draws as f64;
    println!(
        "{n:5} |{} |{} {:18.0} {:14.0}",
        columns(19, &equal),
        columns(19, &best),
        of_all(largest * 100.0),
        of_all(took.as_secs_f64() * 1e6)
    );
}

/// Within a region hosts are so far apart, in Mbit/s.
const INSIDE_MBIT_S: f64 = 10_000.0;

/// Prints what sites are worth among hosts in random regions, for two suppositions about what hosts of a region share.
pub(crate) fn over_sites(path: &str, draws: usize) {
    let text = std::fs::read_to_string(path).expect("the table can be read");
    let table = read(&text, Kind::Rates, None).expect("a table of rates").matrix;
    for is_shared in [false, true] {
        let what = match is_shared {
            false => "every pair of hosts has what the table says of their regions",
            true => {
                "hosts of a region share an uplink that carries as much as their fastest edge to another region"
            }
        };
        println!(
            "\n{what}; {INSIDE_MBIT_S} Mbit/s within a region; {draws} draws; sites against the better of the other \
             two:"
        );
        println!(
            "regions hosts | sites are best, % | of ring | of pairwise | of the better one, and at most | regions \
             found, % | found in, ms"
        );
        for regions in 2..=8 {
            for hosts in (2..=8).filter(|hosts| SCHEDULED_PEERS.contains(&(regions * hosts))) {
                sites_row(&table, (regions, hosts), draws, is_shared);
            }
        }
    }
}

fn sites_row(table: &Matrix, (regions, hosts): (usize, usize), draws: usize, is_shared: bool) {
    let mut dice = Dice::new((regions * 10 + hosts) as u64);
    let of: Vec<usize> = (0..regions * hosts).map(|host| host / hosts).collect();
    let (mut gains, mut of_ring, mut of_pairwise) = (Vec::new(), Vec::new(), Vec::new());
    let (mut as_regions, mut took) = (0, Duration::ZERO);
    while gains.len() < draws {
        let drawn = drawn(&mut dice, table.peers(), regions);
        let Some(between) = part(table, &drawn) else { continue };
        let link = |at: usize| {
            let (from, to) = (of[at / of.len()], of[at % of.len()]);
            let mbit_s = if from == to { INSIDE_MBIT_S } else { between.value(from, to)? };
            Some(Link { mbit_s, latency_us: None })
        };
        let links: Vec<Option<Link>> = (0..of.len() * of.len()).map(link).collect();
        let matrix = Matrix::of_links(of.len(), &links).expect("rates of a table");
        let uplinks = Interfaces::of(&between);
        let shared = |region: usize| Uplink {
            behind: of.iter().map(|other| *other == region).collect(),
            sends: uplinks.sends[region],
            receives: uplinks.receives[region],
        };
        let uplinks = (0..regions).filter(|_| is_shared).map(shared).collect();
        let interfaces = Interfaces { uplinks, ..Interfaces::of(&matrix) };
        // Hosts of a region are alike: the best ring goes through the regions in the best order.
        let options = Options { objective: Objective::Bottleneck, ..Options::default() };
        let order =
            plan(&between, &options, &mut || Duration::from_secs(60)).expect("every edge is possible").order;
        let ring: Vec<usize> = order.iter().flat_map(|region| region * hosts..(region + 1) * hosts).collect();
        let began = Instant::now();
        let found = Schedules::of(&matrix, &interfaces, &ring).expect("a ring");
        let found = found.with_sites(&matrix, &interfaces, &[]);
        took += began.elapsed();
        let (sites, pairwise) = (found.sites.expect("sites"), found.pairwise.expect("all edges"));
        as_regions +=
            usize::from(sites.sites.of.iter().map(|site| usize::from(*site)).eq(of.iter().copied()));
        of_ring.push(sites.rate / found.ring);
        of_pairwise.push(sites.rate / pairwise);
        gains.push(sites.rate / found.ring.max(pairwise));
    }
    let of_all = |count: f64| count / draws as f64;
    let mean = |all: &[f64]| of_all(all.iter().sum());
    let best = gains.iter().filter(|gain| **gain >= WORTH_IT).count();
    println!(
        "{regions:7} {hosts:5} | {:17.0} | {:7.2} | {:11.2} | {:17.2} {:12.2} | {:16.0} | {:12.1}",
        of_all(100.0 * best as f64),
        mean(&of_ring),
        mean(&of_pairwise),
        mean(&gains),
        gains.iter().copied().fold(0.0, f64::max),
        of_all(100.0 * as_regions as f64),
        of_all(took.as_secs_f64() * 1e3),
    );
}

/// How often something is worth its while, by what it is faster there, and at most.
fn columns(width: usize, gains: &[f64]) -> String {
    let worth = || gains.iter().filter(|gain| **gain >= WORTH_IT);
    let count = worth().count() as f64;
    let mean = if count > 0.0 { format!("{:.2}", worth().sum::<f64>() / count) } else { "-".to_owned() };
    let most = gains.iter().copied().fold(0.0, f64::max);
    format!("{:width$.1} {mean:>12} {most:6.2}", count / gains.len() as f64 * 100.0)
}

fn drawn(dice: &mut Dice, of: usize, n: usize) -> Vec<usize> {
    let mut peers = dice.permutation(of);
    peers.truncate(n);
    peers
}

/// The table of some of its peers, if all edges between them have a rate.
fn part(table: &Matrix, peers: &[usize]) -> Option<Matrix> {
    let n = peers.len();
    let link = |at: usize| {
        let mbit_s = table.value(peers[at / n], peers[at % n])?;
        Some(Link { mbit_s, latency_us: None })
    };
    let links: Vec<Option<Link>> = (0..n * n).map(link).collect();
    let missing = (0..n * n).any(|at| at / n != at % n && links[at].is_none());
    (!missing).then(|| Matrix::of_links(n, &links).expect("rates of a table"))
}
