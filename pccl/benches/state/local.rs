//! Between processes of this machine, over its loopback interface.

use crate::{
    Args, Result,
    fleet::{Fleet, Old, Synced},
    median,
    plain::Plain,
};
use std::time::{Duration, Instant};

/// Measures all cases, with one source and with more.
pub(crate) fn run(args: &Args) -> Result<()> {
    println!(
        "{} MiB of state, at most {} MiB beside it, medians of {} rounds",
        args.mib, args.memory_mib, args.rounds
    );
    println!(
        "{:<32} {:>8} {:>11} {:>10} {:>9} {:>9}",
        "", "seconds", "plain/this", "moved MiB", "peak MiB", "CPU s"
    );
    for sources in 1..=args.sources {
        // The senders of plain TCP take processor time of this machine as well, so there are as many.
        let mut tcp = Plain::connect(args, sources)?;
        let mut fleet = Fleet::new(None, args, sources)?;
        let (mut plain, mut same, mut scattered) = (vec![], vec![], vec![]);
        let (mut zeros, mut random) = (vec![], vec![]);
        for _ in 0..args.rounds {
            plain.push(tcp.measure()?);
            random.push(fleet.sync(Old::Changed(args.mib))?);
            zeros.push(fleet.sync(Old::Zeros)?);
            same.push(fleet.sync(Old::Changed(0))?);
            scattered.push(fleet.sync(Old::Changed(10))?);
        }
        if sources == 1 {
            line("identical", &same, &plain);
            line("10 MiB scattered", &scattered, &plain);
        }
        line(&format!("all, over zeros, from {sources}"), &zeros, &plain);
        line(&format!("all, over random old, from {sources}"), &random, &plain);
        let seconds = median(plain);
        println!("plain TCP from {sources}: {seconds:.3} s, {:.2} GiB/s", args.mib as f64 / 1024.0 / seconds);
        if sources == args.sources && sources > 1 {
            death(&mut fleet, args, median(random.iter().map(|sync| sync.seconds)))?;
        }
    }
    Ok(())
}

/// One line of the table, with the time of plain TCP measured at the same time.
fn line(name: &str, syncs: &[Synced], plain: &[f64]) {
    println!(
        "{name:<32} {:>8.3} {:>11.2} {:>10.1} {:>9} {:>9.2}",
        median(syncs.iter().map(|sync| sync.seconds)),
        median(syncs.iter().zip(plain).map(|(sync, plain)| plain / sync.seconds)),
        median(syncs.iter().map(|sync| sync.rx_bytes as f64)) / f64::from(1 << 20),
        syncs.iter().map(|sync| sync.peak_kib).max().unwrap_or(0) >> 10,
        median(syncs.iter().map(|sync| sync.cpu_seconds)),
    );
}

/// One of the sources is killed in the middle of the transfer.
fn death(fleet: &mut Fleet, args: &Args, whole: f64) -> Result<()> {
    fleet.begin(Old::Changed(args.mib))?;
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < whole / 2.0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    fleet.kill_source();
    let seconds = fleet.end()?.seconds;
    println!(
        "one of {} sources dies after {:.3} s: {seconds:.3} s, {:+.0} %",
        args.sources,
        whole / 2.0,
        (seconds / whole - 1.0) * 100.0
    );
    Ok(())
}
