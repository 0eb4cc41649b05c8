//! What a death costs: the time from the death of a peer in the middle of an operation to the errors of the others, and
//! how long their next try takes, next to undisturbed operations of the same peers. And what it costs late in a large
//! operation, in one piece and in segments.

use crate::{
    Args,
    fleet::{Fleet, Setup},
    median,
};
use std::{error::Error, thread, time::Duration};

const PEERS: usize = 4;

/// Segments of an operation in segments.
const SEGMENTS: usize = 16;

/// When a peer dies, in parts of an undisturbed operation.
const LATE: f64 = 0.9;

/// One death.
struct Death {
    /// Until the last survivor had its error.
    abort_seconds: f64,
    /// The longest next try, repair of the ring included.
    retry_seconds: f64,
    /// An operation of the survivors when nothing happens.
    undisturbed_seconds: f64,
}

/// Measures `args.rounds` deaths for each size.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!("{PEERS} peers, float32, sum, in place; one is killed in the middle of an operation");
    println!(
        "{:<12}{:>12}{:>12}{:>10}{:>16}{:>8}",
        "", "abort ms", "slowest", "retry s", "undisturbed s", "ratio"
    );
    for &mib in &args.mib {
        let mut deaths = Vec::new();
        for _ in 0..args.rounds {
            deaths.extend(death(args, mib << 20)?);
        }
        let of = |value: fn(&Death) -> f64| median(deaths.iter().map(value));
        let slowest = deaths.iter().map(|death| death.abort_seconds).fold(0.0, f64::max);
        println!(
            "{:<12}{:>12.1}{:>12.1}{:>10.3}{:>16.3}{:>8.2}",
            format!("{mib:>5} MiB"),
            of(|death| death.abort_seconds * 1e3),
            slowest * 1e3,
            of(|death| death.retry_seconds),
            of(|death| death.undisturbed_seconds),
            of(|death| death.retry_seconds / death.undisturbed_seconds),
        );
    }
    Ok(())
}

/// `None`: the operation was over before the kill.
fn death(args: &Args, bytes: usize) -> Result<Option<Death>, Box<dyn Error>> {
    let setup = Setup::here(args, PEERS);
    let mut fleet = Fleet::start(setup)?;
    // Twice: the first one touches the memory for the first time.
    fleet.measure(&format!("in_place {bytes} 1"))?;
    let whole = fleet.measure(&format!("in_place {bytes} 1"))?.seconds;
    fleet.tell_all(&format!("until_done {bytes}"))?;
    // The moment is what is measured: halfway, by the clock.
    thread::sleep(Duration::from_secs_f64(whole / 2.0));
    let killed_at = fleet.kill_last()?;
    let mut death = Death { abort_seconds: f64::NAN, retry_seconds: 0.0, undisturbed_seconds: 0.0 };
    let mut failed = 0;
    for (failed_at, retry_seconds) in fleet.answers()? {
        if failed_at > 0.0 {
            failed += 1;
            death.abort_seconds = death.abort_seconds.max(failed_at - killed_at);
            death.retry_seconds = death.retry_seconds.max(retry_seconds);
        }
    }
    if failed < PEERS - 1 {
        fleet.end()?;
        return Ok(None);
    }
    let undisturbed = (0..3)
        .map(|_| Ok(fleet.measure(&format!("in_place {bytes} 1"))?.seconds))
        .collect::<Result<Vec<f64>, Box<dyn Error>>>()?;
    death.undisturbed_seconds = median(undisturbed.into_iter());
    fleet.end()?;
    Ok(Some(death))
}

/// Measures `args.rounds` late deaths for each size, with and without segments in turns.
pub(crate) fn segments(args: &Args) -> Result<(), Box<dyn Error>> {
    println!(
        "{PEERS} peers, float32, sum, in place, in one piece and in {SEGMENTS} segments; one is killed after \
         {LATE} of the time of an undisturbed operation"
    );
    println!(
        "{:<12}{:<10}{:>16}{:>16}{:>8}{:>8}",
        "", "", "undisturbed s", "with death s", "ratio", "deaths"
    );
    for &mib in &args.mib {
        let bytes = mib << 20;
        let ways = [("whole", 0), ("segments", bytes / SEGMENTS)];
        let mut all = [const { Vec::new() }; 2];
        for _ in 0..args.rounds {
            for ((_, segment_bytes), late) in ways.iter().zip(&mut all) {
                late.extend(late_death(args, &format!("whole {bytes} {segment_bytes}"))?);
            }
        }
        for ((name, _), late) in ways.iter().zip(&all) {
            let of = |value: fn(&Late) -> f64| median(late.iter().map(value));
            println!(
                "{:<12}{name:<10}{:>16.3}{:>16.3}{:>8.2}{:>8}",
                format!("{mib:>5} MiB"),
                of(|late| late.undisturbed_seconds),
                of(|late| late.seconds),
                of(|late| late.seconds / late.undisturbed_seconds),
                late.len(),
            );
        }
    }
    Ok(())
}

/// An operation in which a peer has died.
struct Late {
    undisturbed_seconds: f64,
    /// Until the last survivor had the result.
    seconds: f64,
}

/// `None`: the operation was over before the kill.
fn late_death(args: &Args, command: &str) -> Result<Option<Late>, Box<dyn Error>> {
    let setup = Setup::here(args, PEERS);
    let mut fleet = Fleet::start(setup)?;
    // The first one touches the memory for the first time.
    fleet.measure(command)?;
    let undisturbed =
        (0..3).map(|_| Ok(fleet.measure(command)?.seconds)).collect::<Result<Vec<f64>, Box<dyn Error>>>()?;
    let undisturbed_seconds = median(undisturbed.into_iter());
    fleet.tell_all(command)?;
    // The moment is what is measured.
    thread::sleep(Duration::from_secs_f64(LATE * undisturbed_seconds));
    fleet.kill_last()?;
    let answers = fleet.answers()?;
    fleet.end()?;
    let longest = |of: fn(&(f64, f64)) -> f64| answers.iter().map(of).fold(0.0, f64::max);
    let (seconds, fewest) = (longest(|answer| answer.0), longest(|answer| answer.1));
    Ok((fewest < PEERS as f64).then_some(Late { undisturbed_seconds, seconds }))
}
