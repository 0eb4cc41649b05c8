//! How often a second of search on two cores ends with the best ring.
//!
//! The time is that of the processor, each thread's its own, so that other jobs on the machine do not count. A run ends
//! as soon as its ring is as good as the best known one, which changes no answer.

use crate::{
    clock::Clock,
    instances::{KINDS, matrix},
};
use pccl_planner::{Matrix, Objective, Options, plan};
use std::time::{Duration, Instant};

/// Time of each thread.
const BUDGET: Duration = Duration::from_secs(1);
/// Time for the search that a run is compared with, where nothing is proven; three of them.
const REFERENCE: Duration = Duration::from_secs(3);
/// Runs of each instance.
const SEEDS: u64 = 4;

struct Run {
    sum: u64,
    proven: bool,
    took: Duration,
}

fn search(matrix: &Matrix, seed: u64, prove: bool, budget: Duration, enough: Option<u64>) -> Run {
    let clock = Clock::new();
    let began = clock.now();
    let options =
        Options { objective: Objective::Sum, exact_peers: 0, seed, prove, enough, ..Options::default() };
    // The processor's clock is slow to read, and need not be read each time.
    let mut asked = Instant::now();
    let mut left = budget;
    let plan = plan(matrix, &options, &mut || {
        if asked.elapsed() > Duration::from_micros(200) {
            asked = Instant::now();
            left = (began + budget).saturating_sub(clock.now());
        }
        left
    });
    let plan = plan.expect("every edge is possible");
    let sum = plan.total.expect("the objective is the sum").value as u64;
    Run { sum, proven: plan.proven, took: clock.now().saturating_sub(began) }
}

/// Two threads that end with the first that has enough: the time is that of the quicker one.
fn both(matrix: &Matrix, seed: u64, budget: Duration, enough: Option<u64>) -> Run {
    let first = search(matrix, seed, true, budget, enough);
    if first.proven || enough.is_some_and(|enough| first.sum <= enough && first.took < budget / 20) {
        return first;
    }
    let other = search(matrix, seed ^ 0x5851_f42d_4c95_7f2d, false, budget, enough);
    let took = if first.sum == other.sum { first.took.min(other.took) } else { first.took.max(other.took) };
    let took = if other.sum < first.sum {
        other.took
    } else if first.sum < other.sum {
        first.took
    } else {
        took
    };
    Run { sum: first.sum.min(other.sum), proven: false, took }
}

#[derive(Default)]
struct Row {
    proven_instances: usize,
    runs: usize,
    hits: usize,
    worst: f64,
    times: Vec<Duration>,
}

pub(crate) fn rates(sizes: &[usize], instances: u64, is_wanted: &dyn Fn(&str) -> bool) {
    println!("\nsuccess in 1 s of two processors, {SEEDS} seeds of each instance");
    println!("instances        peers  proven  runs  best known  worst, %  median, ms  90 %, ms");
    let mut all = Row::default();
    for &n in sizes {
        for (name, generate) in KINDS.iter().filter(|(name, _)| is_wanted(name)) {
            let mut row = Row::default();
            for seed in 0..instances {
                add(&mut row, &matrix(n, &generate(n, seed + 100)));
            }
            row.times.sort();
            let time = |part: usize| row.times[(row.times.len() - 1) * part / 10].as_secs_f64() * 1000.0;
            println!(
                "{name:16} {n:5} {:7} {:5} {:11} {:9.3} {:11.1} {:9.1}",
                row.proven_instances,
                row.runs,
                row.hits,
                row.worst * 100.0,
                time(5),
                time(9)
            );
            all.runs += row.runs;
            all.hits += row.hits;
            all.worst = all.worst.max(row.worst);
        }
    }
    let part = 100.0 * all.hits as f64 / all.runs.max(1) as f64;
    println!("all: {} of {} runs ({part:.2} %), worst gap {:.3} %", all.hits, all.runs, all.worst * 100.0);
}

fn add(row: &mut Row, matrix: &Matrix) {
    let mut known = both(matrix, 1000, BUDGET, None);
    for seed in 1001..1003 {
        if !known.proven {
            let other = both(matrix, seed, REFERENCE, None);
            known = Run { sum: known.sum.min(other.sum), proven: other.proven, took: other.took };
        }
    }
    // A run that finds something better makes all that went before it doubtful.
    let mut runs: Vec<Run> = Vec::new();
    let mut seed = 0;
    while runs.len() < SEEDS as usize {
        let run = both(matrix, seed, BUDGET, Some(known.sum));
        seed += 1;
        if run.sum < known.sum {
            assert!(!known.proven, "a ring below the optimum");
            known.sum = run.sum;
            runs.clear();
        } else {
            runs.push(run);
        }
    }
    row.proven_instances += usize::from(known.proven);
    for run in runs {
        row.runs += 1;
        row.hits += usize::from(run.sum == known.sum);
        row.worst = row.worst.max((run.sum - known.sum) as f64 / known.sum.max(1) as f64);
        row.times.push(run.took);
    }
}
