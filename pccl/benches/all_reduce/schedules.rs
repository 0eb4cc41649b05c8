//! The ring and pairwise exchange between far hosts, in turns: which is faster, and whether the master takes that one.
//! Rates are limited per pair of hosts here; a host has no limit of its own but the processors of this machine. So
//! pairwise exchange is held against the best shares that there are for these rates.

use crate::{
    Args,
    best_ring::best_ring,
    child::{AUTOMATIC, PAIRWISE, RING, SITES},
    fleet::{Fleet, Setup},
    median,
};
use pccl_planner::{Interfaces, Link, Matrix, Schedules};
use pccl_testkit::lab::{Lab, Route};
use std::{error::Error, io, path::Path};

const HOSTS: usize = 5;
/// Sizes of the operations, in MiB.
const SIZES_MIB: [usize; 2] = [16, 64];
/// How much longer than the faster one the automatic choice may take, as a factor.
const TOLERANCE: f64 = 1.15;

/// One network: rates in Mbit/s from one host to another.
struct Network {
    name: &'static str,
    rate: fn(usize, usize) -> f64,
}

const NETWORKS: [Network; 4] = [
    Network { name: "50 Mbit/s in every pair", rate: |_, _| 50.0 },
    Network {
        name: "140 to 200 Mbit/s, one pair 20",
        rate: |from, to| {
            let is_slow = from.min(to) == 1 && from.max(to) == 2;
            if is_slow { 20.0 } else { [0.0, 200.0, 160.0, 180.0, 140.0][(to + HOSTS - from) % HOSTS] }
        },
    },
    Network {
        name: "two regions: 200 within, 40 between",
        rate: |from, to| if (from < 2) == (to < 2) { 200.0 } else { 40.0 },
    },
    Network {
        name: "host 0 sends and receives 30, others 150",
        rate: |from, to| if from == 0 || to == 0 { 30.0 } else { 150.0 },
    },
];

/// Measures all networks.
pub(crate) fn run(program: &Path, args: &Args) -> Result<(), Box<dyn Error>> {
    println!(
        "{HOSTS} hosts, 10 ms apart, float32, after optimize_topology; seconds of an operation (median of {}), and as \
         a\n\
         part of the bound by the rates of pairs: around the best ring, and by pairwise exchange with the best \
         shares. With equal\n\
         chunks the slowest pair takes as long as it says there",
        args.rounds
    );
    println!(
        "{:<44}{:>5}{:>18}{:>18}{:>16}{:>20}",
        "", "MiB", "ring", "pairwise", "equal chunks", "automatic"
    );
    let mut wrong = 0;
    for network in NETWORKS.iter().filter(|network| network.name.contains(&args.case)) {
        let route = Route { delay_ms: 10.0, rate_mbit: 100.0, loss_pct: 0.0 };
        let mut lab = Lab::up(program, HOSTS, route, None)?;
        let pairs = || (0..HOSTS * HOSTS).map(|at| (at / HOSTS, at % HOSTS)).filter(|(from, to)| from != to);
        for (from, to) in pairs() {
            lab.set_rate(from, to, (network.rate)(from, to))?;
        }
        let setup = Setup { lab: Some(&lab), ..Setup::here(args, HOSTS) };
        let mut fleet = Fleet::start(setup)?;
        let optimized = fleet.measure("optimize")?.seconds;
        let slowest = pairs().map(|(from, to)| (network.rate)(from, to)).fold(f64::INFINITY, f64::min);
        let (ring, exchange) = (best_ring(HOSTS, &network.rate), best_exchange(network.rate)?);
        for mib in SIZES_MIB {
            let mbit = (mib << 20) as f64 * 8e-6;
            let each = mbit * 2.0 / HOSTS as f64;
            let bounds = [each * (HOSTS - 1) as f64 / ring, mbit / exchange];
            let mut seconds = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..args.rounds {
                for (schedule, seconds) in [RING, PAIRWISE, AUTOMATIC].into_iter().zip(&mut seconds) {
                    seconds.push(fleet.measure(&format!("scheduled {schedule} {} 1", mib << 20))?.seconds);
                }
            }
            let chosen = what_ran(&mut fleet)?;
            let [ring, pairwise, automatic] = seconds.map(|seconds| median(seconds.into_iter()));
            let is_wrong = automatic > ring.min(pairwise) * TOLERANCE;
            wrong += usize::from(is_wrong);
            let cell = |seconds: f64, bound: f64| format!("{seconds:.2} s ({:.2})", bound / seconds);
            println!(
                "{:<44}{mib:>5}{:>18}{:>18}{:>16}{:>20}{}",
                network.name,
                cell(ring, bounds[0]),
                cell(pairwise, bounds[1]),
                format!("{:.2} s", each / slowest),
                format!("{automatic:.2} s, {chosen}"),
                if is_wrong { "  NOT THE FASTER ONE" } else { "" }
            );
        }
        println!("{:<44}     optimize_topology took {optimized:.1} s", "");
        if network.name == NETWORKS[0].name {
            wrong += usize::from(!follows_a_slow_pair(&mut lab, &mut fleet)?);
        }
        fleet.end()?;
    }
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} times not the faster one").into()) }
}

/// Mbit of tensor a second by pairwise exchange with the best shares, where hosts have no limit.
fn best_exchange(rate: fn(usize, usize) -> f64) -> Result<f64, Box<dyn Error>> {
    let link = |at: usize| Some(Link { mbit_s: rate(at / HOSTS, at % HOSTS), latency_us: None });
    let matrix = Matrix::of_links(HOSTS, &(0..HOSTS * HOSTS).map(link).collect::<Vec<_>>())?;
    let mut interfaces = Interfaces::of(&matrix);
    interfaces.learn(&matrix, rate);
    let found = Schedules::of(&matrix, &interfaces, &(0..HOSTS).collect::<Vec<_>>());
    found.and_then(|found| found.pairwise).ok_or_else(|| "no pairwise exchange".into())
}

/// How the last operation travelled.
pub(crate) fn what_ran(fleet: &mut Fleet) -> io::Result<&'static str> {
    fleet.tell_all("travelled")?;
    let ways: Vec<f64> = fleet.answers()?.iter().map(|(way, _)| *way).collect();
    let names = [(RING, "ring"), (PAIRWISE, "pairwise"), (SITES, "sites")];
    let name = names.iter().find(|(number, _)| ways.iter().all(|way| *way == *number as f64));
    Ok(name.map_or("something else", |(_, name)| name))
}

/// One pair of equal ones becomes much slower, which equal chunks cannot avoid: how long operations take until its ends
/// own next to nothing, for which there is no probe. Says whether they are faster than any ring after three of them.
fn follows_a_slow_pair(lab: &mut Lab, fleet: &mut Fleet) -> Result<bool, Box<dyn Error>> {
    const RATE: f64 = 50.0;
    const SLOW: f64 = 5.0;
    const BYTES: usize = 8 << 20;
    lab.set_rate(1, 3, SLOW)?;
    lab.set_rate(3, 1, SLOW)?;
    let mut list = Vec::new();
    let mut seconds = Vec::new();
    for _ in 0..7 {
        seconds.push(fleet.measure(&format!("scheduled {AUTOMATIC} {BYTES} 1"))?.seconds);
        list.push(format!("{:.2} ({})", seconds[seconds.len() - 1], what_ran(fleet)?));
    }
    let mbit = BYTES as f64 * 8e-6;
    let ring = mbit * 2.0 * (HOSTS - 1) as f64 / HOSTS as f64 / RATE;
    let exchange =
        mbit / best_exchange(|from, to| if from.abs_diff(to) == 2 && from + to == 4 { SLOW } else { RATE })?;
    println!(
        "  then one pair {SLOW} Mbit/s, operations of {} MiB: {} s; a ring around it takes {ring:.2} s, an exchange \
         with the best \
         shares {exchange:.2} s",
        BYTES >> 20,
        list.join(" ")
    );
    Ok(median(seconds[3..].iter().copied()) <= ring)
}
