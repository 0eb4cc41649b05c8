//! All-reduces between far hosts: share of the bound `2 (n - 1) / n * size / rate` of the slowest link.

use crate::{
    Args,
    child::{PAIRWISE, RING},
    fleet::{Fleet, Setup},
    median,
};
use pccl_testkit::lab::{Lab, Route};
use std::{error::Error, io, path::Path};

pub(crate) const HOSTS: usize = 4;

/// One network and the sizes to measure on it, in MiB.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) route: Route,
    /// Rate of what the first host sends, if it is another.
    pub(crate) slow_mbit: Option<f64>,
    pub(crate) sizes: &'static [usize],
    /// Whether averages as 8 bits are measured as well.
    quantised: bool,
}

pub(crate) const CASES: [Case; 6] = [
    Case {
        name: "100 Mbit/s, 10 ms",
        route: Route { delay_ms: 10.0, rate_mbit: 100.0, loss_pct: 0.0 },
        slow_mbit: None,
        sizes: &[16, 64],
        quantised: true,
    },
    Case {
        name: "200 Mbit/s, 25 ms",
        route: Route { delay_ms: 25.0, rate_mbit: 200.0, loss_pct: 0.0 },
        slow_mbit: None,
        sizes: &[64],
        quantised: false,
    },
    Case {
        name: "200 Mbit/s, 25 ms, 0.1 % loss",
        route: Route { delay_ms: 25.0, rate_mbit: 200.0, loss_pct: 0.1 },
        slow_mbit: None,
        sizes: &[64],
        quantised: false,
    },
    Case {
        name: "500 Mbit/s, 75 ms",
        route: Route { delay_ms: 75.0, rate_mbit: 500.0, loss_pct: 0.0 },
        slow_mbit: None,
        sizes: &[64, 256],
        quantised: false,
    },
    Case {
        name: "500 Mbit/s, 75 ms, 0.05 % loss",
        route: Route { delay_ms: 75.0, rate_mbit: 500.0, loss_pct: 0.05 },
        slow_mbit: None,
        sizes: &[64, 256],
        quantised: false,
    },
    Case {
        name: "200 Mbit/s, 25 ms, one link 100 Mbit/s",
        route: Route { delay_ms: 25.0, rate_mbit: 200.0, loss_pct: 0.0 },
        slow_mbit: Some(100.0),
        sizes: &[64],
        quantised: false,
    },
];

/// Measures all cases.
pub(crate) fn run(program: &Path, args: &Args) -> Result<(), Box<dyn Error>> {
    println!(
        "{HOSTS} hosts, float32, sum, in place; share of the bound 2 (n - 1) / n * size / rate of the slowest link"
    );
    println!(
        "{:<44}{:>6}{:>10}{:>8}{:>8}{:>8}{:>8}",
        "", "MiB", "bound s", "first", "worst", "median", "best"
    );
    for case in CASES.iter().filter(|case| case.name.contains(&args.case)) {
        let mut lab = Lab::up(program, HOSTS, case.route, case.slow_mbit)?;
        let setup = Setup { lab: Some(&lab), ..Setup::here(args, HOSTS) };
        for &mib in case.sizes {
            // New connections for each size: the first operation starts slowly.
            let mut fleet = Fleet::start(setup)?;
            let plain = measure(&mut fleet, case, mib, args.rounds, Way::Plain)?;
            if case.quantised {
                let quantised = measure(&mut fleet, case, mib, args.rounds, Way::Quantised)?;
                println!("{:<44}{:>6}{:>10.2} times as fast as float32", "", "", plain / quantised);
                let plain = measure(&mut fleet, case, mib, args.rounds, Way::PlainPairwise)?;
                let quantised = measure(&mut fleet, case, mib, args.rounds, Way::QuantisedPairwise)?;
                println!("{:<44}{:>6}{:>10.2} times as fast as float32", "", "", plain / quantised);
            }
            fleet.end()?;
        }
        if !args.no_small {
            // The master is as far as the others are: a small operation is its round trips.
            for host in 0..HOSTS {
                lab.set_route(host, HOSTS, case.route)?;
                lab.set_route(HOSTS, host, case.route)?;
            }
            let setup = Setup { lab: Some(&lab), ..Setup::here(args, HOSTS) };
            let mut fleet = Fleet::start(setup)?;
            for &kib in &args.kib {
                small(&mut fleet, case, kib, args.rounds)?;
            }
            fleet.end()?;
        }
    }
    Ok(())
}

/// Measures one small size, in round trips between two hosts.
fn small(fleet: &mut Fleet, case: &Case, kib: usize, rounds: usize) -> io::Result<()> {
    const OPERATIONS: usize = 10;
    let command = format!("in_place {} {OPERATIONS}", kib << 10);
    fleet.measure(&command)?;
    let runs = (0..rounds).map(|_| Ok(fleet.measure(&command)?.seconds / OPERATIONS as f64));
    let seconds = median(runs.collect::<io::Result<Vec<f64>>>()?.into_iter());
    let trips = seconds * 1e3 / (2.0 * case.route.delay_ms);
    let name = format!("{}, master as far", case.name);
    println!("{name:<44}{kib:>4} KiB{:>8.1} ms, {trips:.2} round trips", seconds * 1e3);
    Ok(())
}

/// How elements travel.
#[derive(Debug, Clone, Copy)]
enum Way {
    Plain,
    /// Average as affine u8 in blocks of 256.
    Quantised,
    /// Either by pairwise exchange, of which the bound is that of the interfaces: as much per host as on the ring.
    PlainPairwise,
    QuantisedPairwise,
}

/// Measures one size and prints it; returns the median of the seconds.
fn measure(fleet: &mut Fleet, case: &Case, mib: usize, rounds: usize, way: Way) -> io::Result<f64> {
    let bytes = mib << 20;
    let as_u8 = bytes / 4 / 256 * 264;
    let (command, name, encoded) = match way {
        Way::Plain => (format!("scheduled {RING}"), "", bytes),
        Way::Quantised => (format!("quantised {RING}"), ", average as u8", as_u8),
        Way::PlainPairwise => (format!("scheduled {PAIRWISE}"), ", pairwise", bytes),
        Way::QuantisedPairwise => (format!("quantised {PAIRWISE}"), ", pairwise, u8", as_u8),
    };
    let name = format!("{}{name}", case.name);
    let rate = case.slow_mbit.unwrap_or(case.route.rate_mbit) * 1e6 / 8.0;
    let bound = 2.0 * (HOSTS - 1) as f64 / HOSTS as f64 * encoded as f64 / rate;
    let shares = (0..rounds)
        .map(|_| Ok(bound / fleet.measure(&format!("{command} {bytes} 1"))?.seconds))
        .collect::<io::Result<Vec<f64>>>()?;
    let (first, best) = (shares[0], shares.iter().copied().fold(0.0, f64::max));
    let worst = shares[1..].iter().copied().fold(best, f64::min);
    let median = median(shares.into_iter());
    println!("{name:<44}{mib:>6}{bound:>10.2}{first:>8.2}{worst:>8.2}{median:>8.2}{best:>8.2}");
    Ok(bound / median)
}
