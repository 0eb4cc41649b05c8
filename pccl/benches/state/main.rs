//! Syncs of shared state between processes of this machine, next to plain TCP that moves the same bytes:
//! `cargo bench -p pccl --bench state -- --help`.
//!
//! The program starts itself once per peer. Plain TCP is measured in turns with everything else, so that a ratio holds
//! up on a machine that others use too. How to read the table is in `docs/performance.md`.

mod child;
mod fleet;
mod plain;

use clap::Parser;
use fleet::{Fleet, Synced};
use std::{
    error::Error,
    time::{Duration, Instant},
};

/// Measures syncs of shared state between processes of this machine.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Args {
    /// Size of the state, in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// How often everything is measured; the table has the medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Memory that the receiver may take beside its tensors, in MiB.
    #[arg(long, default_value_t = 256)]
    memory_mib: usize,
    /// Most sources.
    #[arg(long, default_value_t = 3)]
    sources: usize,
    /// Set by cargo.
    #[arg(long, hide = true)]
    bench: bool,
    /// This process is a peer of the run with this master, or one end of a plain connection.
    #[arg(long, hide = true)]
    child: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args = Args::parse();
    match &args.child {
        Some(role) => child::run(role, &args),
        None => measure(&args),
    }
}

fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    values[values.len() / 2]
}

/// One line of the table, with the rate of plain TCP measured at the same time.
fn line(name: &str, syncs: &[Synced], plain: &[Duration]) {
    let seconds = median(syncs.iter().map(|sync| sync.time.as_secs_f64()).collect());
    let ratios = syncs.iter().zip(plain).map(|(sync, plain)| plain.as_secs_f64() / sync.time.as_secs_f64());
    let moved = median(syncs.iter().map(|sync| sync.rx_bytes).collect());
    let peak = syncs.iter().map(|sync| sync.peak_kib).max().unwrap_or(0);
    println!(
        "{name:<28} {seconds:>8.3} {:>10.2} {:>10.1} {:>8}",
        median(ratios.collect()),
        moved as f64 / f64::from(1 << 20),
        peak >> 10
    );
}

fn measure(args: &Args) -> Result<()> {
    println!(
        "{} MiB of state, at most {} MiB beside it, medians of {} rounds",
        args.mib, args.memory_mib, args.rounds
    );
    println!("{:<28} {:>8} {:>10} {:>10} {:>8}", "", "seconds", "plain/this", "moved MiB", "peak MiB");
    let mut all_plain = Vec::new();
    for sources in 1..=args.sources {
        let mut fleet = Fleet::new(args, sources)?;
        let (mut plain, mut pulls, mut same, mut scattered) = (vec![], vec![], vec![], vec![]);
        for _ in 0..args.rounds {
            plain.push(plain::measure(args)?);
            pulls.push(fleet.sync(args.mib)?);
            same.push(fleet.sync(0)?);
            scattered.push(fleet.sync(10)?);
        }
        if sources == 1 {
            line("identical", &same, &plain);
            line("10 MiB scattered", &scattered, &plain);
        }
        line(&format!("all, from {sources}"), &pulls, &plain);
        all_plain.extend(plain);
        if sources == args.sources && sources > 1 {
            let whole = median(pulls.iter().map(|sync| sync.time).collect());
            death(&mut fleet, args, whole)?;
        }
    }
    let seconds = median(all_plain).as_secs_f64();
    println!("plain TCP: {seconds:.3} s, {:.2} GiB/s", args.mib as f64 / 1024.0 / seconds);
    Ok(())
}

/// One of the sources is killed in the middle of the transfer.
fn death(fleet: &mut Fleet, args: &Args, whole: Duration) -> Result<()> {
    fleet.begin(args.mib)?;
    let began = Instant::now();
    while began.elapsed() < whole / 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    fleet.kill_source();
    let synced = fleet.end()?;
    let cost = synced.time.as_secs_f64() / whole.as_secs_f64() - 1.0;
    println!(
        "one of {} sources dies after {:.3} s: {:.3} s, {:+.0} %",
        args.sources,
        (whole / 2).as_secs_f64(),
        synced.time.as_secs_f64(),
        cost * 100.0
    );
    Ok(())
}
