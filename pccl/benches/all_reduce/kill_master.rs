//! The cost that the death of the master in the middle of an operation has for its peers: the time of that operation,
//! next to undisturbed ones of the same peers. It is started again at once and goes on from its journal, or one that
//! stands by takes over.

use crate::{
    Args,
    fleet::{Fleet, Memory, Setup},
    median,
};
use std::{error::Error, thread, time::Duration};

const PEERS: usize = 4;

/// One death.
struct Death {
    undisturbed_seconds: f64,
    /// Of the operation in which the master died.
    seconds: f64,
    /// From the death until the next process listens; 0 if another one stood by.
    restart_seconds: f64,
}

/// Measures `args.rounds` deaths for each size and way.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!("{PEERS} peers, float32, sum, in place; the master is killed in the middle of an operation");
    println!(
        "{:<12}{:<12}{:>16}{:>10}{:>12}{:>10}{:>10}",
        "", "", "undisturbed s", "with s", "restart s", "more s", "most s"
    );
    for &mib in &args.mib {
        for (name, memory) in [("journal", Memory::Journal), ("standby", Memory::Standbys(1))] {
            let deaths: Result<Vec<Death>, _> =
                (0..args.rounds).map(|_| death(args, memory, mib << 20)).collect();
            let deaths = deaths?;
            let of = |value: fn(&Death) -> f64| median(deaths.iter().map(value));
            let more = |death: &Death| death.seconds - death.undisturbed_seconds - death.restart_seconds;
            println!(
                "{:<12}{name:<12}{:>16.3}{:>10.3}{:>12.3}{:>10.3}{:>10.3}",
                format!("{mib:>5} MiB"),
                of(|death| death.undisturbed_seconds),
                of(|death| death.seconds),
                of(|death| death.restart_seconds),
                of(more),
                deaths.iter().map(more).fold(f64::NEG_INFINITY, f64::max),
            );
        }
    }
    println!("more: beyond an undisturbed operation and the restart");
    Ok(())
}

fn death(args: &Args, memory: Memory, bytes: usize) -> Result<Death, Box<dyn Error>> {
    let mut fleet = Fleet::start(Setup { memory, ..Setup::here(args, PEERS) })?;
    let command = format!("in_place {bytes} 1");
    // The first one touches the memory for the first time.
    fleet.measure(&command)?;
    let undisturbed =
        (0..3).map(|_| Ok(fleet.measure(&command)?.seconds)).collect::<Result<Vec<f64>, Box<dyn Error>>>()?;
    let undisturbed_seconds = median(undisturbed.into_iter());
    fleet.tell_all(&command)?;
    // The moment is what is measured: halfway, by the clock.
    thread::sleep(Duration::from_secs_f64(undisturbed_seconds / 2.0));
    let restart_seconds = fleet.kill_master()?;
    let seconds = fleet.answers()?.into_iter().map(|(seconds, _)| seconds).fold(0.0, f64::max);
    fleet.end()?;
    Ok(Death { undisturbed_seconds, seconds, restart_seconds })
}
