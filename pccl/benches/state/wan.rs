//! Between far hosts: what more than one source is worth, what a few changes cost, and what a death does.

use crate::{
    Args, Result,
    fleet::{Fleet, Old},
    join, median,
};
use pccl_testkit::lab::{Lab, Route};
use std::{
    path::Path,
    time::{Duration, Instant},
};

const ROUTE: Route = Route { delay_ms: 25.0, rate_mbit: 200.0, loss_pct: 0.0 };
pub(crate) const SOURCES: usize = 3;
pub(crate) const HOSTS: usize = SOURCES + 1;
/// The state of which little has changed, and how much of it, in MiB.
const LARGE_MIB: usize = 1024;
const CHANGED: usize = 10;

/// Measures all cases.
pub(crate) fn run(program: &Path, args: &Args) -> Result<()> {
    println!(
        "each host sends {} Mbit/s at most, to all others together, which are {} ms away; medians of {} rounds",
        ROUTE.rate_mbit, ROUTE.delay_ms, args.rounds
    );
    let lab = Lab::up(program, HOSTS, ROUTE, None)?;
    for host in 0..HOSTS {
        lab.cap_uplink(host, ROUTE.rate_mbit)?;
    }
    let cases =
        [("sources", sources as Case), ("scattered", scattered), ("death", death), ("join", join::run)];
    for (name, case) in cases {
        if name.contains(&args.case) {
            case(&lab, args)?;
        }
    }
    Ok(())
}

type Case = fn(&Lab, &Args) -> Result<()>;

/// The whole state, from one source and from all, in turns.
fn sources(lab: &Lab, args: &Args) -> Result<()> {
    let mut few = Fleet::new(Some((lab, HOSTS)), args, 1)?;
    let mut many = Fleet::new(Some((lab, HOSTS)), args, SOURCES)?;
    let mut turns = Vec::new();
    for _ in 0..args.rounds {
        let old = Old::Changed(args.mib);
        turns.push((few.sync(old)?.seconds, many.sync(old)?.seconds));
    }
    let (one, all) = (median(turns.iter().map(|it| it.0)), median(turns.iter().map(|it| it.1)));
    let rate = (args.mib << 20) as f64 * 8.0 / 1e6;
    println!("{} MiB from 1 source: {one:.2} s, {:.0} Mbit/s", args.mib, rate / one);
    println!(
        "{} MiB from {SOURCES} sources: {all:.2} s, {:.0} Mbit/s, {:.2} times as fast",
        args.mib,
        rate / all,
        median(turns.iter().map(|(one, all)| one / all))
    );
    Ok(())
}

/// Little of a large state.
fn scattered(lab: &Lab, args: &Args) -> Result<()> {
    let args = &Args { mib: LARGE_MIB, ..args.clone() };
    let mut fleet = Fleet::new(Some((lab, HOSTS)), args, SOURCES)?;
    let mut turns = Vec::new();
    for _ in 0..args.rounds {
        turns.push((fleet.sync(Old::Changed(0))?, fleet.sync(Old::Changed(CHANGED))?));
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{CHANGED} of {LARGE_MIB} MiB from {SOURCES} sources: {:.2} s, {:.1} MiB on the wire ({:.2} s and {:.2} MiB \
         where nothing differs)",
        median(turns.iter().map(|(_, some)| some.seconds)),
        median(turns.iter().map(|(_, some)| mib(some.wire_bytes))),
        median(turns.iter().map(|(none, _)| none.seconds)),
        median(turns.iter().map(|(none, _)| mib(none.wire_bytes))),
    );
    Ok(())
}

/// One of the sources is killed in the middle. Those that are left send no faster than before: the least that it takes
/// then is half of the time, and the other half times the number of sources over what is left of it.
fn death(lab: &Lab, args: &Args) -> Result<()> {
    let (mut undisturbed, mut took, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let mut fleet = Fleet::new(Some((lab, HOSTS)), args, SOURCES)?;
        let old = Old::Changed(args.mib);
        let whole = fleet.sync(old)?.seconds;
        fleet.begin(old)?;
        let began = Instant::now();
        // The moment is what is measured: halfway, by the clock.
        std::thread::sleep(Duration::from_secs_f64(whole / 2.0));
        let at = began.elapsed().as_secs_f64().min(whole);
        fleet.kill_source();
        let seconds = fleet.end()?.seconds;
        let least = at + (whole - at) * SOURCES as f64 / (SOURCES - 1) as f64;
        undisturbed.push(whole);
        took.push(seconds);
        costs.push((seconds / least - 1.0) * 100.0);
    }
    println!(
        "{} MiB from {SOURCES} sources, one dies halfway: {:.2} s ({:.2} s undisturbed), {:+.0} % of what the others \
         need at least",
        args.mib,
        median(took),
        median(undisturbed),
        median(costs)
    );
    Ok(())
}
