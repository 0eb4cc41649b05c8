//! The loss of a ring that is planned by a sample of the edges, as a run with many peers measures it.

use crate::instances::Dice;
use pccl_planner::{
    Link, Matrix, NEAR_ROUNDS, NEAR_STEPS, Objective, Options, Probed, SAMPLE_ROUNDS, near_rounds,
    offline::{Kind, read},
    plan, probe_rounds,
};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Time for each plan.
const BUDGET: Duration = Duration::from_secs(1);

/// Peers in `draws` orders of a table of rates, with a table of latencies, which may have holes: all of them, and those
/// of which there are latencies.
pub(crate) fn compare(rates: &str, latencies: &str, draws: u64) {
    let table = |path: &str| {
        let text = std::fs::read_to_string(path).expect("the table can be read");
        read(&text, Kind::Rates, None).expect("a table of numbers").matrix
    };
    let (rates, latencies) = (table(rates), table(latencies));
    let all: Vec<usize> = (0..rates.peers()).collect();
    let has_latencies = |from: &&usize| all.iter().any(|to| latencies.value(**from, *to).is_some());
    let known: Vec<usize> = all.iter().filter(has_latencies).copied().collect();
    compare_some(&rates, &latencies, &all, draws);
    compare_some(&rates, &latencies, &known, draws);
}

fn compare_some(rates: &Matrix, latencies: &Matrix, peers: &[usize], draws: u64) {
    let n = peers.len();
    let all: Vec<Option<Link>> = (0..n * n).map(|at| link(rates, peers[at / n], peers[at % n])).collect();
    let (bound, sum) = (found(n, &all, Objective::Bottleneck), found(n, &all, Objective::Sum));
    println!("{n} peers, all edges: the slowest has {bound:.0} Mbit/s, the least sum is {sum:.4}");
    for draw in 1..=draws {
        let order: Vec<usize> = Dice::new(draw).permutation(n).into_iter().map(|at| peers[at]).collect();
        let known = sampled(rates, latencies, &order);
        let edges = known.iter().flatten().count();
        println!(
            "order {draw}: {edges} of {} edges ({:.0} %), the slowest {:.3} of that, the sum {:.3}",
            all.iter().flatten().count(),
            100.0 * edges as f64 / all.iter().flatten().count() as f64,
            found(n, &known, Objective::Bottleneck) / bound,
            found(n, &known, Objective::Sum) / sum,
        );
    }
}

fn link(rates: &Matrix, from: usize, to: usize) -> Option<Link> {
    rates.value(from, to).map(|mbit_s| Link { mbit_s, latency_us: None })
}

/// The figure of the best ring.
fn found(n: usize, links: &[Option<Link>], objective: Objective) -> f64 {
    let matrix = Matrix::of_links(n, links).expect("a matrix");
    let began = Instant::now();
    let options = Options { objective, ..Options::default() };
    let plan = plan(&matrix, &options, &mut || BUDGET.saturating_sub(began.elapsed())).expect("a ring");
    match objective {
        Objective::Sum => plan.total.expect("the objective").value,
        _ => plan.bottleneck.expect("the objective").value,
    }
}

fn sampled(rates: &Matrix, latencies: &Matrix, order: &[usize]) -> Vec<Option<Link>> {
    let n = order.len();
    let (mut known, mut probed, mut done) = (vec![None; n * n], Vec::new(), BTreeSet::new());
    for step in 0..=NEAR_STEPS {
        let is_new = |from: usize, to: usize| !done.contains(&(from, to));
        let rounds = match step {
            0 => probe_rounds(n, SAMPLE_ROUNDS, is_new),
            _ => near_rounds(n, &probed, NEAR_ROUNDS, is_new),
        };
        for (from, to) in rounds.concat() {
            let (a, b) = (order[from], order[to]);
            done.insert((from, to));
            known[from * n + to] = link(rates, a, b);
            let (Some(mbit_s), Some(ms)) = (rates.value(a, b), latencies.value(a, b)) else { continue };
            let (kbit_s, latency_us) = ((mbit_s * 1e3) as u64, (ms * 1e3) as u32);
            probed.push(Probed { from, to, kbit_s, latency_us });
        }
    }
    known
}
