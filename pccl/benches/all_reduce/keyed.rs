//! What a run key costs: the same operations with one and without, in turns.

use crate::{
    Args,
    fleet::{Fleet, Measured, Setup},
    median,
    wan::{CASES, HOSTS},
};
use pccl_testkit::lab::Lab;
use std::error::Error;

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!("wire mode {}; time and processor time: of the same operation without a key = 1", args.wire);
    let Some(program) = &args.wan else {
        for &peers in &args.peers {
            let large =
                args.mib.iter().map(|mib| (mib << 20, ((args.volume_mib << 20) / (mib << 20)).max(1)));
            let small = args.kib.iter().filter(|_| !args.no_small).map(|kib| kib << 10);
            let sizes = large.chain(small.map(|bytes| (bytes, ((64 << 20) / bytes).clamp(50, 2000))));
            compare(args, None, peers, &format!("{peers} peers"), sizes)?;
        }
        return Ok(());
    };
    for case in CASES.iter().filter(|case| case.name.contains(&args.case)) {
        let lab = Lab::up(program, HOSTS, case.route, case.slow_mbit)?;
        let sizes = case.sizes.iter().map(|mib| (mib << 20, 1));
        compare(args, Some(&lab), HOSTS, &format!("{HOSTS} hosts, {}", case.name), sizes)?;
    }
    Ok(())
}

/// Two runs that take turns, with operations of so many bytes, so many times.
fn compare(
    args: &Args,
    lab: Option<&Lab>,
    peers: usize,
    name: &str,
    sizes: impl Iterator<Item = (usize, usize)>,
) -> Result<(), Box<dyn Error>> {
    let start = |keyed| Fleet::start(Setup { lab, peers, checksums: args.checksums, pool: args.pool, keyed });
    let (mut plain, mut keyed) = (start(None)?, start(Some(args.wire))?);
    println!(
        "\n{name}\n{:<14}{:>10}{:>10}{:>12}{:>12}{:>8}{:>10}",
        "", "GB/s", "with key", "CPU s/GB", "with key", "time", "CPU time"
    );
    for (bytes, repetitions) in sizes {
        let command = format!("in_place {bytes} {repetitions}");
        let mut runs: Vec<(Measured, Measured)> = Vec::new();
        for round in 0..=args.rounds {
            let both = (plain.measure(&command)?, keyed.measure(&command)?);
            // The first round touches the memory for the first time, and new connections start slowly.
            if round > 0 {
                runs.push(both);
            }
        }
        let of = |value: fn(&(Measured, Measured)) -> f64| median(runs.iter().map(value));
        let volume = (bytes * repetitions) as f64 / 1e9;
        println!(
            "{:>8} KiB  {:>10.3}{:>10.3}{:>12.3}{:>12.3}{:>8.2}{:>10.2}",
            bytes >> 10,
            volume / of(|run| run.0.seconds),
            volume / of(|run| run.1.seconds),
            of(|run| run.0.cpu_seconds) / volume,
            of(|run| run.1.cpu_seconds) / volume,
            of(|run| run.1.seconds / run.0.seconds),
            of(|run| run.1.cpu_seconds / run.0.cpu_seconds),
        );
    }
    plain.end()?;
    keyed.end()?;
    Ok(())
}
