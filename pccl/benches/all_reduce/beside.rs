//! The cost of an attack on the master for a run that goes on: small operations without it, beside it, and beside the
//! same attack on the master of another run, which costs what the attackers themselves take of the machine.

use crate::{
    Args,
    fleet::{Fleet, Setup},
    median,
};
use std::{
    error::Error,
    io,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How long operations go on beside an attack before they are measured, and while they are.
const WARM_UP: Duration = Duration::from_secs(7);
const MEASURED: Duration = Duration::from_secs(6);

pub(crate) fn run(command: &str, args: &Args) -> Result<(), Box<dyn Error>> {
    for &peers in &args.peers {
        let setup = Setup { keyed: Some(args.wire.unwrap_or_default()), ..Setup::here(args, peers) };
        let (mut fleet, other) = (Fleet::start(setup)?, Fleet::start(setup)?);
        println!(
            "\n{peers} peers, operations/s\n{:<14}{:>10}{:>14}{:>16}{:>14}{:>16}",
            "", "alone", "this master", "another master", "this/alone", "this/another"
        );
        for &kib in &args.kib {
            let mut runs: Vec<[f64; 3]> = Vec::new();
            for _ in 0..args.rounds {
                let alone = rate(&mut fleet, kib, None)?;
                let another = rate(&mut fleet, kib, Some((command, other.address())))?;
                let address = fleet.address().to_owned();
                let this = rate(&mut fleet, kib, Some((command, &address)))?;
                runs.push([alone, this, another]);
            }
            let of = |value: fn(&[f64; 3]) -> f64| median(runs.iter().map(value));
            println!(
                "{kib:>8} KiB  {:>10.0}{:>14.0}{:>16.0}{:>14.2}{:>16.2}",
                of(|run| run[0]),
                of(|run| run[1]),
                of(|run| run[2]),
                of(|run| run[1] / run[0]),
                of(|run| run[1] / run[2]),
            );
        }
        fleet.end()?;
        other.end()?;
    }
    Ok(())
}

/// Operations per second, beside this command with this address behind it.
fn rate(fleet: &mut Fleet, kib: usize, attack: Option<(&str, &str)>) -> Result<f64, Box<dyn Error>> {
    let mut attacker = attack.map(|(command, address)| Attacker::start(command, address)).transpose()?;
    let mut repeat = |time| -> Result<f64, Box<dyn Error>> {
        const OPERATIONS: usize = 100;
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < time {
            fleet.measure(&format!("in_place {} {OPERATIONS}", kib << 10))?;
            done += OPERATIONS;
        }
        Ok(done as f64 / start.elapsed().as_secs_f64())
    };
    repeat(WARM_UP)?;
    let rate = repeat(MEASURED)?;
    if let Some(Attacker(child)) = &mut attacker
        && let Some(status) = child.try_wait()?
    {
        return Err(format!("the attackers have given up: {status}").into());
    }
    Ok(rate)
}

/// The process of the attackers, ended with this. It has the lower priority: on a small machine it is not to win by
/// taking the processor from everybody.
struct Attacker(Child);

impl Attacker {
    fn start(command: &str, address: &str) -> io::Result<Self> {
        let words = command.split_whitespace();
        let nice =
            Command::new("nice").args(["-n", "10"]).args(words).arg(address).stdin(Stdio::null()).spawn();
        nice.map(Self)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
