//! The cost of several tensors, in one operation and in several ones in flight: each beside one operation of the same
//! bytes, in turns.

use crate::{
    Args,
    fleet::{Fleet, Measured, Setup},
    median,
};
use std::error::Error;

/// Name, tensors, bytes of each, and how they are reduced.
const CASES: [(&str, usize, usize, &str); 4] = [
    ("64 x 1 MiB in one operation", 64, 1 << 20, "many"),
    ("400 x 64 KiB in one operation", 400, 64 << 10, "many"),
    ("200 x (255 KiB and 1 KiB) in one", 200, 256 << 10, "pairs"),
    ("8 x 32 MiB in flight", 8, 32 << 20, "in_flight"),
];

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!("time and processor time: of one operation of the same bytes = 1");
    for &peers in &args.peers {
        let mut fleet = Fleet::start(Setup::here(args, peers))?;
        println!("\n{peers} peers\n{:<34}{:>8}{:>10}{:>8}{:>10}", "", "GB/s", "CPU s/GB", "time", "CPU time");
        for (name, tensors, bytes, command) in CASES {
            let all = tensors * bytes;
            let repetitions = ((args.volume_mib << 20) / all).max(1);
            let volume = (all * repetitions) as f64 / 1e9;
            let one = format!("in_place {all} {repetitions}");
            let several = format!("{command} {tensors} {bytes} {repetitions}");
            let mut runs: Vec<(Measured, Measured)> = Vec::new();
            for round in 0..=args.rounds {
                let both = (fleet.measure(&one)?, fleet.measure(&several)?);
                // The first round touches the memory for the first time.
                if round > 0 {
                    runs.push(both);
                }
            }
            let of = |value: fn(&(Measured, Measured)) -> f64| median(runs.iter().map(value));
            println!(
                "{name:<34}{:>8.2}{:>10.2}{:>8.2}{:>10.2}",
                volume / of(|run| run.1.seconds),
                of(|run| run.1.cpu_seconds) / volume,
                of(|run| run.1.seconds / run.0.seconds),
                of(|run| run.1.cpu_seconds / run.0.cpu_seconds),
            );
        }
        fleet.end()?;
    }
    Ok(())
}
