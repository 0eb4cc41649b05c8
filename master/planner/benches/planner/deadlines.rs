//! Whether a plan ends when its time is over. Times are those of the processor.

use crate::{
    clock::Clock,
    instances::{KINDS, matrix, sites},
};
use pccl_planner::{Matrix, Objective, Options, plan};
use std::time::Duration;

/// Searches of each row.
const RUNS: u64 = 3;

struct Kept {
    over: Duration,
    /// The longest time between two looks at the clock, or from the last one to the end.
    blind: Duration,
    gap: f64,
}

fn search(matrix: &Matrix, objective: Objective, seed: u64, budget: Duration) -> Kept {
    let clock = Clock::new();
    let began = clock.now();
    let (mut last, mut blind) = (began, Duration::ZERO);
    let options = Options { objective, seed, ..Options::default() };
    let plan = plan(matrix, &options, &mut || {
        let now = clock.now();
        blind = blind.max(now - last);
        last = now;
        (began + budget).saturating_sub(now)
    });
    let end = clock.now();
    let figure = plan.ok().and_then(|plan| match objective {
        Objective::Sum => plan.total,
        _ => plan.bottleneck,
    });
    Kept {
        over: (end - began).saturating_sub(budget),
        blind: blind.max(end - last),
        gap: figure.map_or(f64::NAN, |figure| figure.gap()),
    }
}

pub(crate) fn kept(sizes: &[usize]) {
    println!(
        "\ntime kept: worst of {RUNS}; gap is that of the sum for `sum`, of the slowest edge for the others"
    );
    println!("peers  objective     budget, ms  over it, ms  longest without a look, ms  gap, %");
    for &n in sizes {
        let sites = sites(n, 7);
        let costs = matrix(n, &(KINDS[3].1)(n, 7));
        for (name, matrix, objective) in [
            ("balanced", &sites, Objective::Balanced),
            ("bottleneck", &sites, Objective::Bottleneck),
            ("sum", &costs, Objective::Sum),
            ("costs", &costs, Objective::Bottleneck),
        ] {
            for budget_ms in [1, 10, 50, 200, 1000] {
                let budget = Duration::from_millis(budget_ms);
                let runs: Vec<Kept> = (0..RUNS).map(|seed| search(matrix, objective, seed, budget)).collect();
                let ms = |of: fn(&Kept) -> Duration| {
                    runs.iter().map(of).max().unwrap_or_default().as_secs_f64() * 1000.0
                };
                println!(
                    "{n:5}  {name:12} {budget_ms:11} {:12.1} {:27.1} {:7.2}",
                    ms(|run| run.over),
                    ms(|run| run.blind),
                    runs.iter().map(|run| run.gap).fold(0.0, f64::max) * 100.0
                );
            }
        }
    }
}
