//! How good the rings are that the planner finds in a given time, how often it proves that, and whether it keeps the
//! time.
//!
//! Run with `cargo bench -p pccl-planner --features offline --bench planner`. Arguments behind `--` choose: `long`
//! takes more instances of each kind; `quality`, `success`, `planted`, `exact`, `bottlenecks`, `deadlines` only these
//! parts; a number only that many peers, a kind only that. Sums are compared with the proven best where there is a
//! proof, else with a planted best or with what a long search finds. `schedules FILE` takes a table of rates as
//! `pccl-master plan` does, and compares rings with other schedules; `sites FILE` does so for regions of several hosts
//! each; `sample FILE FILE` takes one table of rates and one of latencies, and compares rings by a sample of the edges
//! with those by all; each by itself only.

mod clock;
mod deadlines;
mod instances;
mod sample;
mod schedules;
mod success;

use instances::{KINDS, matrix, planted, sites};
use pccl_planner::offline::plan_in_time;
use pccl_planner::{EXACT_PEERS_BACKGROUND, Matrix, NoPlan, Objective, Options, Plan, plan};
use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "schedules") {
        let path = arguments.get(at + 1).expect("schedules FILE");
        return schedules::compare(path, 1000);
    }
    if let Some(at) = arguments.iter().position(|argument| argument == "sites") {
        let path = arguments.get(at + 1).expect("sites FILE");
        return schedules::over_sites(path, 300);
    }
    if let Some(at) = arguments.iter().position(|argument| argument == "sample") {
        let path = |nth: usize| arguments.get(at + nth).expect("sample RATES LATENCIES");
        return sample::compare(path(1), path(2), 8);
    }
    let is_long = arguments.iter().any(|argument| argument == "long");
    let instances = if is_long { 50 } else { 5 };
    let peers: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let wanted = |n: &usize| peers.is_empty() || peers.contains(n);
    let sizes = |all: &[usize]| all.iter().copied().filter(wanted).collect::<Vec<_>>();
    let kinds: Vec<&String> =
        arguments.iter().filter(|argument| KINDS.iter().any(|(name, _)| name == argument)).collect();
    let is_kind = |name: &str| kinds.is_empty() || kinds.iter().any(|kind| *kind == name);
    type Part<'a> = (&'a str, &'a dyn Fn());
    let parts: &[Part<'_>] = &[
        ("quality", &|| quality(&sizes(&[17, 30, 40, 70, 100, 170]), instances)),
        ("success", &|| {
            success::rates(&sizes(&[17, 30, 40, 53, 70, 100, 170, 323, 443]), instances, &is_kind)
        }),
        ("planted", &|| planted_rings(&sizes(&[50, 100, 200, 400]), instances)),
        ("exact", &|| exact_times(&sizes(&[8, 12, 14, 16, 18, 20]))),
        ("bottlenecks", &|| bottlenecks(&sizes(&[8, 16, 32, 71, 150, 300, 500]), instances)),
        ("deadlines", &|| deadlines::kept(&sizes(&[200, 500, 1000]))),
    ];
    let chosen = |name: &str| arguments.iter().any(|argument| argument == name);
    let all = !parts.iter().any(|(name, _)| chosen(name));
    for (_, part) in parts.iter().filter(|(name, _)| all || chosen(name)) {
        part();
    }
}

fn solve(matrix: &Matrix, options: &Options<'_>, budget: Duration) -> (Result<Plan, NoPlan>, Duration) {
    let began = Instant::now();
    let result = plan(matrix, options, &mut || budget.saturating_sub(began.elapsed()));
    (result, began.elapsed())
}

/// The work of `pccl-master plan`, without dynamic programming.
fn solve_twice(matrix: &Matrix, seed: u64, budget: Duration) -> (Plan, Duration) {
    let began = Instant::now();
    let options = Options { objective: Objective::Sum, exact_peers: 0, seed, ..Options::default() };
    let plan = plan_in_time(matrix, &options, budget, true).expect("every edge is possible");
    (plan, began.elapsed())
}

fn total(plan: &Plan) -> f64 {
    plan.total.expect("the objective is the sum").value
}

struct Row {
    runs: usize,
    best: usize,
    proven: usize,
    worst_gap: f64,
    slowest_proof_ms: u128,
}

impl Row {
    fn new() -> Self {
        Self { runs: 0, best: 0, proven: 0, worst_gap: 0.0, slowest_proof_ms: 0 }
    }

    fn add(&mut self, plan: &Plan, took: Duration, optimum: f64) {
        let gap = (total(plan) - optimum) / optimum.max(1.0);
        assert!(gap >= 0.0, "a ring below the optimum: {} {optimum}", total(plan));
        self.runs += 1;
        self.best += usize::from(gap == 0.0);
        self.worst_gap = self.worst_gap.max(gap);
        if plan.proven {
            self.proven += 1;
            self.slowest_proof_ms = self.slowest_proof_ms.max(took.as_millis());
        }
    }

    fn print(&self, name: &str, n: usize) {
        let Self { runs, best, proven, worst_gap, slowest_proof_ms } = self;
        println!(
            "{name:16} {n:5} {runs:5} {best:8} {:9.2} {proven:7} {slowest_proof_ms:11}",
            worst_gap * 100.0
        );
    }
}

const HEAD: &str = "instances        peers  runs  optimal  worst, %  proven  slowest, ms";

/// Sums within 1 s on two threads, without dynamic programming, against the optimum, which a long search proves.
fn quality(sizes: &[usize], instances: u64) {
    println!("lowest sum, two threads of 1 s; the optimum is that of a proof, or else of 10 s of search");
    println!("{HEAD}");
    for &n in sizes {
        for (name, generate) in KINDS {
            let mut row = Row::new();
            let mut unknown = 0;
            for seed in 0..instances {
                let matrix = matrix(n, &generate(n, seed));
                let (plan, took) = solve_twice(&matrix, seed, Duration::from_secs(1));
                let optimum = if plan.proven {
                    total(&plan)
                } else {
                    let (other, _) = solve_twice(&matrix, seed + 1000, Duration::from_secs(10));
                    unknown += usize::from(!other.proven);
                    total(&other).min(total(&plan))
                };
                row.add(&plan, took, optimum);
            }
            row.print(name, n);
            if unknown > 0 {
                println!("{:16} optimum not proven for {unknown}", "");
            }
        }
    }
}

fn planted_rings(sizes: &[usize], instances: u64) {
    println!("\nplanted best rings, two threads of 1 s\n{HEAD}");
    for &n in sizes {
        let mut row = Row::new();
        for seed in 0..instances {
            let (costs, optimum) = planted(n, seed);
            let (plan, took) = solve_twice(&matrix(n, &costs), seed, Duration::from_secs(1));
            row.add(&plan, took, optimum as f64);
        }
        row.print("planted", n);
    }
}

fn exact_times(sizes: &[usize]) {
    println!("\nexact plans, one thread: peers, ms for the sum, ms for the slowest edge and the sum");
    for &n in sizes {
        let options =
            |objective| Options { objective, exact_peers: EXACT_PEERS_BACKGROUND, ..Options::default() };
        let time = |objective| {
            let (plan, took) = solve(&sites(n, 1), &options(objective), Duration::from_secs(60));
            assert!(plan.is_ok_and(|plan| plan.proven));
            took.as_secs_f64() * 1000.0
        };
        println!("{n:5} {:9.1} {:9.1}", time(Objective::Sum), time(Objective::Balanced));
    }
}

fn bottlenecks(sizes: &[usize], instances: u64) {
    println!(
        "\nslowest edges between sites on a globe, one thread of 1 s: bound reached, and what the lowest sum costs"
    );
    println!("peers  runs  proven  mean gap, %  slowest edge of the lowest latency, mean part of it");
    for &n in sizes {
        let (mut proven, mut gap, mut part) = (0, 0.0, 0.0);
        for seed in 0..instances {
            let matrix = sites(n, seed);
            let run = |objective| {
                let options = Options { objective, ..Options::default() };
                solve(&matrix, &options, Duration::from_secs(1)).0.expect("every edge is possible")
            };
            let widest = run(Objective::Bottleneck);
            let bottleneck = widest.bottleneck.expect("that was the objective");
            proven += usize::from(bottleneck.is_proven());
            gap += bottleneck.gap() * 100.0;
            let (from, to) = run(Objective::Sum).slowest.expect("several peers");
            part += matrix.value(from, to).expect("possible") / bottleneck.value;
        }
        let runs = instances as f64;
        println!("{n:5} {instances:5} {proven:7} {:12.2} {:12.2}", gap / runs, part / runs);
    }
}
