//! The cost of a death: the time from the death of a peer in the middle of an operation to the errors of the others,
//! and how long their next try takes, next to undisturbed operations of the same peers. And what it costs late in a
//! large operation, in one piece and in segments.

use crate::{
    Args,
    fleet::{Fleet, Setup},
    median, replace,
    wan::{CASES, Case},
};
use pccl_testkit::lab::Lab;
use std::{error::Error, io, thread, time::Duration};

const PEERS: usize = 4;

/// When a peer dies, in parts of an undisturbed operation; in the mean of several deaths.
const LATE: f64 = 0.9;

/// When it dies in one of `rounds` rounds. The loss depends on how far the segments in flight are, which end two at
/// a time; so the moments are spread evenly over the time of two.
fn moment(round: usize, rounds: usize, pieces: usize) -> f64 {
    LATE + ((round as f64 + 0.5) / rounds as f64 - 0.5) * 2.0 / pieces as f64
}

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
    death.undisturbed_seconds = undisturbed(&mut fleet, &format!("in_place {bytes} 1"))?;
    fleet.end()?;
    Ok(Some(death))
}

/// Measures late deaths, in one piece and in this number of segments, or what many deaths leave of the rate; here, or
/// between far hosts.
pub(crate) fn segments(args: &Args, pieces: usize) -> Result<(), Box<dyn Error>> {
    let lab = args.wan.as_ref().map(|program| {
        let case = case(args)?;
        println!("{} between hosts", case.name);
        Ok::<_, Box<dyn Error>>(Lab::up(program, PEERS, case.route, case.slow_mbit)?)
    });
    let lab = lab.transpose()?;
    let setup = Setup { lab: lab.as_ref(), ..Setup::here(args, PEERS) };
    match args.replace_every {
        Some(seconds) => replace::run(args, setup, pieces, Duration::from_secs(seconds)),
        None => late_deaths(args, setup, pieces),
    }
}

/// The network that `--case` names; by default one of the middle.
fn case(args: &Args) -> Result<&'static Case, String> {
    let name = if args.case.is_empty() { "200 Mbit/s, 25 ms" } else { &args.case };
    CASES.iter().find(|case| case.name.contains(name)).ok_or_else(|| format!("no case {name:?}"))
}

/// Measures `args.rounds` late deaths for each size, with and without segments in turns.
fn late_deaths(args: &Args, setup: Setup<'_>, pieces: usize) -> Result<(), Box<dyn Error>> {
    println!(
        "{PEERS} peers, float32, sum, in place, in one piece and in {pieces} segments{}; one is killed after \
         about {LATE} of the time of an undisturbed operation; ratio: to an undisturbed one of the survivors in one \
         piece",
        if args.optimize { ", after optimize_topology" } else { "" }
    );
    println!(
        "{:<12}{:<10}{:>14}{:>14}{:>14}{:>8}{:>8}{:>8}",
        "", "", "undisturbed s", "survivors s", "with death s", "ratio", "worst", "deaths"
    );
    for &mib in &args.mib {
        let bytes = mib << 20;
        let ways = [("whole", 0), ("segments", bytes.div_ceil(pieces))];
        let mut all = [const { Vec::new() }; 2];
        for round in 0..args.rounds {
            let part = moment(round, args.rounds, pieces);
            for ((_, segment_bytes), late) in ways.iter().zip(&mut all) {
                late.extend(late_death(setup, bytes, *segment_bytes, part)?);
            }
        }
        for ((name, _), late) in ways.iter().zip(&all) {
            let of = |value: fn(&Late) -> f64| median(late.iter().map(value));
            println!(
                "{:<12}{name:<10}{:>14.3}{:>14.3}{:>14.3}{:>8.2}{:>8.2}{:>8}",
                format!("{mib:>5} MiB"),
                of(|late| late.undisturbed_seconds),
                of(|late| late.survivors_seconds),
                of(|late| late.seconds),
                of(Late::ratio),
                late.iter().map(Late::ratio).fold(0.0, f64::max),
                late.len(),
            );
        }
    }
    Ok(())
}

/// An operation in which a peer has died.
struct Late {
    /// One of all in the same way, when nothing happens.
    undisturbed_seconds: f64,
    /// One of the survivors in one piece, when nothing happens.
    survivors_seconds: f64,
    /// Until the last survivor had the result.
    seconds: f64,
}

impl Late {
    fn ratio(&self) -> f64 {
        self.seconds / self.survivors_seconds
    }
}

/// A death after this part of an undisturbed operation. `None`: the operation was over before the kill.
fn late_death(
    setup: Setup<'_>,
    bytes: usize,
    segment_bytes: usize,
    part: f64,
) -> Result<Option<Late>, Box<dyn Error>> {
    let mut fleet = Fleet::start(setup)?;
    let (command, whole) = (format!("whole {bytes} {segment_bytes}"), format!("whole {bytes} 0"));
    // The first one touches the memory for the first time, and new connections start slowly.
    fleet.measure(&command)?;
    let undisturbed_seconds = undisturbed(&mut fleet, &command)?;
    fleet.tell_all(&command)?;
    // The moment is what is measured.
    thread::sleep(Duration::from_secs_f64(part * undisturbed_seconds));
    fleet.kill_last()?;
    let answers = fleet.answers()?;
    let longest = |of: fn(&(f64, f64)) -> f64| answers.iter().map(of).fold(0.0, f64::max);
    let (seconds, fewest) = (longest(|answer| answer.0), longest(|answer| answer.1));
    if fewest == PEERS as f64 {
        fleet.end()?;
        return Ok(None);
    }
    let survivors_seconds = undisturbed(&mut fleet, &whole)?;
    fleet.end()?;
    Ok(Some(Late { undisturbed_seconds, survivors_seconds, seconds }))
}

/// The median of three.
fn undisturbed(fleet: &mut Fleet, command: &str) -> io::Result<f64> {
    let seconds = (0..3).map(|_| Ok(fleet.measure(command)?.seconds)).collect::<io::Result<Vec<f64>>>()?;
    Ok(median(seconds.into_iter()))
}
