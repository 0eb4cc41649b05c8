//! The rate of large operations in segments that is left when a peer is killed and replaced again and again. A
//! replacement is let in between two operations.

use crate::{
    Args,
    fleet::{Fleet, Setup},
};
use std::{
    error::Error,
    time::{Duration, Instant},
};

/// Measures `args.rounds` operations of each size, beside undisturbed ones.
pub(crate) fn run(
    args: &Args,
    setup: Setup<'_>,
    pieces: usize,
    every: Duration,
) -> Result<(), Box<dyn Error>> {
    println!(
        "{} peers, float32, sum, in place, in {pieces} segments; one is killed and replaced every {} s; MB of the \
         tensor per second",
        setup.peers,
        every.as_secs()
    );
    for &mib in &args.mib {
        let bytes = mib << 20;
        let mut fleet = Fleet::start(setup)?;
        let command = format!("whole {bytes} {}", bytes.div_ceil(pieces));
        // The first one touches the memory for the first time, and new connections start slowly.
        fleet.measure(&format!("whole {} 0", bytes / pieces))?;
        let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
        let whole = rate(fleet.measure(&format!("whole {bytes} 0"))?.seconds);
        let segments = rate(fleet.measure(&command)?.seconds);
        println!("{mib:>5} MiB  undisturbed: in one piece {whole:.2}, in segments {segments:.2}");
        let begin = Instant::now();
        let mut due = begin + every;
        for _ in 0..args.rounds {
            let operation = Instant::now();
            let answers = fleet.disturbed(setup, &command, (&mut due, every))?;
            let seconds = operation.elapsed().as_secs_f64();
            let fewest = answers.iter().map(|answer| answer.1).fold(f64::INFINITY, f64::min);
            fleet.gather()?;
            let gathered = operation.elapsed().as_secs_f64() - seconds;
            println!(
                "           {seconds:.1} s, at the end among {fewest} peers, then {gathered:.1} s until all are in"
            );
        }
        let disturbed = rate(begin.elapsed().as_secs_f64() / args.rounds as f64);
        println!(
            "           with deaths {disturbed:.2}, {:.2} of undisturbed in one piece",
            disturbed / whole
        );
        fleet.end()?;
    }
    Ok(())
}
