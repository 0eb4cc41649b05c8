//! How often another schedule than the best ring is predicted to be faster, among random peers of a measured table.

use crate::instances::Dice;
use pccl_master::{
    offline::{Kind, read},
    topology::{Interfaces, Link, Matrix, Objective, Options, SCHEDULED_PEERS, Schedules, plan},
};
use std::time::Duration;

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
            "\nan interface carries as much as {what}; {draws} draws; rates as parts of the best ring's"
        );
        println!(
            "peers  pairwise: >= 1.1, %  mean there  9 of 10  most   two rings: >= 1.1, %  mean there  9 of 10  most   \
             >= 1.1 of ring and pairwise, %  mean there"
        );
        for n in SCHEDULED_PEERS {
            row(&table, n, draws, is_known);
        }
    }
}

fn row(table: &Matrix, n: usize, draws: u64, is_known: bool) {
    let mut dice = Dice::new(n as u64);
    let whole = Interfaces::of(table);
    let (mut pairwise, mut two_rings, mut over_both) = (Vec::new(), Vec::new(), Vec::new());
    while pairwise.len() < draws as usize {
        let peers = drawn(&mut dice, table.peers(), n);
        // A region to which there is no figure.
        let Some(matrix) = part(table, &peers) else { continue };
        let interfaces = if is_known {
            let of = |all: &[f64]| peers.iter().map(|peer| all[*peer]).collect();
            Interfaces { sends: of(&whole.sends), receives: of(&whole.receives) }
        } else {
            Interfaces::of(&matrix)
        };
        let options = Options { objective: Objective::Bottleneck, ..Options::default() };
        let ring = plan(&matrix, &options, &mut || Duration::from_secs(60)).expect("every edge is possible");
        let found = Schedules::of(&matrix, &interfaces, &ring.order).expect("a ring");
        let found = found.with_two_rings(&matrix, &interfaces);
        let (direct, two) = (found.pairwise.expect("all edges"), found.two_rings.expect("all edges"));
        pairwise.push(direct / found.ring);
        two_rings.push(two / found.ring);
        over_both.extend(Some(two / direct.max(found.ring)).filter(|gain| *gain >= WORTH_IT));
    }
    let share = |count: usize| count as f64 / draws as f64 * 100.0;
    let mean = |gains: &[f64]| gains.iter().sum::<f64>() / gains.len().max(1) as f64;
    let column = |gains: &mut Vec<f64>| {
        gains.sort_by(f64::total_cmp);
        let at = |part: f64| gains[((gains.len() - 1) as f64 * part).round() as usize];
        let worth = &gains[gains.partition_point(|gain| *gain < WORTH_IT)..];
        format!("{:20.1}  {:10.2}  {:7.2}  {:4.2}", share(worth.len()), mean(worth), at(0.9), at(1.0))
    };
    println!(
        "{n:5} {}  {}  {:29.1}  {:10.2}",
        column(&mut pairwise),
        column(&mut two_rings),
        share(over_both.len()),
        mean(&over_both)
    );
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
