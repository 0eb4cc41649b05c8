//! Two pairs of close hosts far from each other: what pairwise exchange is worth against the ring, and how soon operations
//! go back to the ring when an edge that only pairwise exchange uses becomes slow. See `docs/topology.md`.

use crate::{
    Args,
    fleet::{Fleet, Setup},
    lab::{Lab, Route},
};
use std::{error::Error, io, path::Path};

const HOSTS: usize = 4;
const NEAR_MBIT: f64 = 200.0;
const FAR_MBIT: f64 = 60.0;
/// What becomes of the pair 0, 2, which the ring does not need.
const SLOW_MBIT: f64 = 10.0;
const ROUTE: Route = Route { delay_ms: 5.0, rate_mbit: FAR_MBIT, loss_pct: 0.0 };
const BYTES: usize = 16 << 20;
const OPERATIONS: usize = 6;

/// Times of operations in seconds, and by which schedule each went.
fn operations(fleet: &mut Fleet, number: usize) -> io::Result<Vec<String>> {
    (0..number)
        .map(|_| {
            let seconds = fleet.measure(&format!("in_place {BYTES} 1"))?.seconds;
            fleet.tell_all("is_pairwise")?;
            let answers = fleet.answers()?;
            let schedule = if answers.iter().all(|(yes, _)| *yes == 1.0) { "pairwise" } else { "ring" };
            Ok(format!("{schedule} {seconds:.2}"))
        })
        .collect()
}

/// Prints the times of operations before and after an optimisation, and after an edge has become slow.
pub(crate) fn run(program: &Path, args: &Args) -> Result<(), Box<dyn Error>> {
    let mut lab = Lab::up(program, HOSTS, ROUTE, None)?;
    for (from, to) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
        lab.set_rate(from, to, NEAR_MBIT)?;
    }
    let setup = Setup { lab: Some(&lab), peers: HOSTS, checksums: args.checksums, pool: args.pool };
    let mut fleet = Fleet::start(setup)?;
    println!(
        "{HOSTS} hosts, {} ms apart, {NEAR_MBIT} Mbit/s in the pairs 0 1 and 2 3, else {FAR_MBIT}; {} MiB of float32, s",
        ROUTE.delay_ms,
        BYTES >> 20
    );
    println!("in the order of acceptance: {}", operations(&mut fleet, 2)?.join(", "));
    fleet.measure("optimize")?;
    println!("after optimize_topology: {}", operations(&mut fleet, OPERATIONS)?.join(", "));
    lab.set_rate(0, 2, SLOW_MBIT)?;
    lab.set_rate(2, 0, SLOW_MBIT)?;
    println!("{SLOW_MBIT} Mbit/s between 0 and 2: {}", operations(&mut fleet, OPERATIONS)?.join(", "));
    Ok(fleet.end()?)
}
