//! Two runs that differ in one thing take turns.

use crate::{
    Args,
    fleet::{Fleet, Measured, Setup},
    median,
};
use std::error::Error;

/// Bytes of an operation, and how many of them are a measurement.
pub(crate) type Sizes = Vec<(usize, usize)>;

/// The sizes that the arguments ask for.
pub(crate) fn sizes(args: &Args) -> Sizes {
    let large = args.mib.iter().map(|mib| (mib << 20, ((args.volume_mib << 20) / (mib << 20)).max(1)));
    let small = args.kib.iter().filter(|_| !args.no_small).map(|kib| kib << 10);
    large.chain(small.map(|bytes| (bytes, ((64 << 20) / bytes).clamp(50, 2000)))).collect()
}

/// Measures all-reduces in place of both runs, and prints the second beside the first.
pub(crate) fn compare(
    (first, second): (Setup<'_>, Setup<'_>),
    rounds: usize,
    (name, other): (&str, &str),
    sizes: Sizes,
) -> Result<(), Box<dyn Error>> {
    let (mut first, mut second) = (Fleet::start(first)?, Fleet::start(second)?);
    println!(
        "\n{name}\n{:<14}{:>10}{:>10}{:>12}{:>12}{:>8}{:>10}",
        "", "GB/s", other, "CPU s/GB", other, "time", "CPU time"
    );
    for (bytes, repetitions) in sizes {
        let command = format!("in_place {bytes} {repetitions}");
        let mut runs: Vec<(Measured, Measured)> = Vec::new();
        for round in 0..=rounds {
            let both = (first.measure(&command)?, second.measure(&command)?);
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
    first.end()?;
    second.end()?;
    Ok(())
}
