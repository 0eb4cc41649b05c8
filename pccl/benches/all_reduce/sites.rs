//! Two sites of three hosts: the ring, pairwise exchange and two levels over sites, in turns, and what the master takes
//! after `optimize_topology`. Rates are limited per pair of hosts; a host has no limit of its own but the processors of
//! this machine, which all hosts share with the network.

use crate::{
    Args,
    child::{AUTOMATIC, PAIRWISE, RING, SITES},
    fleet::{Fleet, Setup},
    median,
    schedules::what_ran,
};
use pccl_testkit::lab::{Lab, Route};
use std::{error::Error, path::Path};

const HOSTS: usize = 6;
const INSIDE: Route = Route { delay_ms: 1.0, rate_mbit: 1000.0, loss_pct: 0.0 };
const BETWEEN: Route = Route { delay_ms: 40.0, rate_mbit: 100.0, loss_pct: 0.0 };

/// Measures all sizes.
pub(crate) fn run(program: &Path, args: &Args) -> Result<(), Box<dyn Error>> {
    println!(
        "two sites of {} hosts, {} Mbit/s and {} ms within, {} Mbit/s and {} ms per pair between; float32, sum, in \
         place; seconds of an\noperation, median of {}, and how many times as fast as the ring",
        HOSTS / 2,
        INSIDE.rate_mbit,
        INSIDE.delay_ms,
        BETWEEN.rate_mbit,
        BETWEEN.delay_ms,
        args.rounds
    );
    let mut lab = Lab::up(program, HOSTS, BETWEEN, None)?;
    let pairs = (0..HOSTS * HOSTS).map(|at| (at / HOSTS, at % HOSTS));
    for (from, to) in pairs.filter(|(from, to)| from != to && from % 2 == to % 2) {
        lab.set_route(from, to, INSIDE)?;
    }
    let setup = Setup { lab: Some(&lab), ..Setup::here(args, HOSTS) };
    let mut fleet = Fleet::start(setup)?;
    let optimized = fleet.measure("optimize")?.seconds;
    println!("optimize_topology took {optimized:.1} s");
    println!("{:>5}{:>10}{:>18}{:>18}{:>26}", "MiB", "ring", "pairwise", "sites", "automatic");
    for mib in &args.mib {
        let mut seconds = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..args.rounds {
            for (schedule, seconds) in [RING, PAIRWISE, SITES, AUTOMATIC].into_iter().zip(&mut seconds) {
                seconds.push(fleet.measure(&format!("scheduled {schedule} {} 1", mib << 20))?.seconds);
            }
        }
        let chosen = what_ran(&mut fleet)?;
        let [ring, pairwise, sites, automatic] = seconds.map(|seconds| median(seconds.into_iter()));
        let cell = |seconds: f64| format!("{seconds:.2} ({:.2})", ring / seconds);
        let automatic = format!("{}, {chosen}", cell(automatic));
        println!("{mib:>5}{ring:>10.2}{:>18}{:>18}{automatic:>26}", cell(pairwise), cell(sites));
    }
    Ok(fleet.end()?)
}
