//! All-reduce between processes of this machine, next to plain TCP that moves the same bytes between the same
//! processes: `cargo bench -p pccl --bench all_reduce -- --help`.
//!
//! The program starts itself once per peer. Each measurement is taken in turns with `ring_limit` (see `plain_ring`), on
//! sockets with the same settings, so that the ratio holds up on a machine that others use too. How to read the table
//! is in `docs/performance.md`.

mod beside;
mod best_ring;
mod checked;
mod child;
mod fleet;
mod keyed;
mod kill;
mod kill_master;
mod moves;
mod moving;
mod outlived;
mod plain_ring;
mod replace;
mod schedules;
mod several;
mod shared;
mod sites;
mod turns;
mod wan;

use child::{AUTOMATIC, PAIRWISE};
use clap::Parser;
use fleet::{Fleet, Measured, Memory, Setup};
use pccl::WireMode;
use std::{error::Error, io, path::PathBuf};

/// Measures all-reduces between processes of this machine.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Numbers of peers.
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    peers: Vec<usize>,
    /// Sizes of the large operations, in MiB.
    #[arg(long, value_delimiter = ',', default_value = "16,64,256")]
    mib: Vec<usize>,
    /// Sizes of the small operations, in KiB.
    #[arg(long, value_delimiter = ',', default_value = "1,64,1024")]
    kib: Vec<usize>,
    /// How often everything is measured; the table has the medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Leave out the small operations.
    #[arg(long)]
    no_small: bool,
    /// Frames carry checksums, as between hosts.
    #[arg(long)]
    checksums: bool,
    /// Measures what checksums cost instead, for operations of these sizes, in place.
    #[arg(long)]
    checked: bool,
    /// Peers of one machine share no memory: tensors go through TCP.
    #[arg(long)]
    tcp: bool,
    /// Measures what shared memory is worth instead, beside TCP, for operations of these sizes, in place; with
    /// `--wire` in a run with a key.
    #[arg(long)]
    shared: bool,
    /// Bytes of each large measurement, in MiB: smaller operations are repeated.
    #[arg(long, default_value_t = 512)]
    volume_mib: usize,
    /// Connections of each edge; 0 leaves the number to the library.
    #[arg(long, default_value_t = 0)]
    pool: u16,
    /// Path of the program `wanlab`: measures between far hosts instead. Needs root.
    #[arg(long)]
    wan: Option<PathBuf>,
    /// With `--wan`: absolute path of a program that is the peers, such as that of `peer.c`, through the C interface.
    #[arg(long, requires = "wan", value_name = "PATH")]
    peer: Option<PathBuf>,
    /// With `--wan`: what a planned ring is worth, and how it follows a slow pair of hosts that moves.
    #[arg(long, requires = "wan")]
    moving: bool,
    /// With `--wan`: what pairwise exchange is worth beside the ring, and which of them is chosen.
    #[arg(long, requires = "wan")]
    schedules: bool,
    /// With `--wan`: what two levels are worth over two sites, beside the ring and pairwise exchange, at the sizes of
    /// `--mib`.
    #[arg(long, requires = "wan")]
    sites: bool,
    /// Measures what the death of a peer costs instead, at the sizes of `--mib`.
    #[arg(long)]
    kill: bool,
    /// Measures what it costs instead that the master is killed in the middle of an operation: it goes on from its
    /// journal, or one that stands by takes over.
    #[arg(long)]
    kill_master: bool,
    /// With `--kill`: what this number of segments are worth when it comes late in an operation; with `--wan` between
    /// far hosts.
    #[arg(long, requires = "kill", value_name = "N", num_args = 0..=1, default_missing_value = "16")]
    segments: Option<usize>,
    /// With `--segments`: rates are measured before, so that data travels as the planner finds best.
    #[arg(long, requires = "segments")]
    optimize: bool,
    /// With `--segments`: what is kept of the rate instead if a peer is killed and replaced each time after this number
    /// of seconds.
    #[arg(long, requires = "segments", value_name = "SECONDS")]
    replace_every: Option<u64>,
    /// Measures what a run key costs instead, for operations of these sizes, in place; with `--wan` between far hosts.
    #[arg(long)]
    keyed: bool,
    /// Measures what a journal of the master costs instead, for operations of these sizes, in place.
    #[arg(long)]
    journaled: bool,
    /// Measures instead what this number of masters cost that stand by on this machine.
    #[arg(long, value_name = "N", conflicts_with = "journaled")]
    standbys: Option<usize>,
    /// With `--keyed` or `--shared`: how tensors travel in the run with a key.
    #[arg(long)]
    wire: Option<WireMode>,
    /// Measures several tensors instead, in one operation and in several ones in flight, beside one operation of the
    /// same bytes.
    #[arg(long)]
    several: bool,
    /// Measures all-to-alls of the sizes of `--kib` and `--mib` instead, beside the same parts in transfers between
    /// two.
    #[arg(long)]
    moves: bool,
    /// Measures operations of the sizes of `--kib` beside an attack on the master instead, in a run with a key: beside
    /// this command with the address of the master behind it.
    #[arg(long, value_name = "COMMAND")]
    beside: Option<String>,
    /// Only the cases of `--wan` whose names contain this.
    #[arg(long, default_value = "")]
    case: String,
    /// Set by cargo.
    #[arg(long, hide = true)]
    bench: bool,
    /// This process is a peer.
    #[arg(long, hide = true)]
    child: bool,
    /// This process is a master that listens on this address.
    #[arg(long, hide = true)]
    serve: Option<String>,
    /// Where that master keeps a journal.
    #[arg(long, hide = true)]
    journal: Option<PathBuf>,
    /// That master takes others that stand by for it.
    #[arg(long, hide = true)]
    accept_standbys: bool,
    /// That master stands by for this one.
    #[arg(long, hide = true)]
    standby_of: Vec<String>,
    /// Address of the master.
    #[arg(long, hide = true, default_value = "")]
    master: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let log = env_logger::Env::default().default_filter_or("error");
    env_logger::Builder::from_env(log).format_timestamp_millis().init();
    let args = Args::parse();
    if let Some(listen) = &args.serve {
        return child::serve(listen, &args);
    }
    if args.child {
        return child::run(&args);
    }
    if let Some(program) = args.wan.as_ref().filter(|_| args.moving) {
        return moving::run(program, &args);
    }
    if let Some(program) = args.wan.as_ref().filter(|_| args.schedules) {
        return schedules::run(program, &args);
    }
    if let Some(program) = args.wan.as_ref().filter(|_| args.sites) {
        return sites::run(program, &args);
    }
    if let Some(command) = &args.beside {
        return beside::run(command, &args);
    }
    if args.journaled {
        return outlived::run(&args, Memory::Journal);
    }
    if let Some(count) = args.standbys {
        return outlived::run(&args, Memory::Standbys(count));
    }
    if args.checked {
        return checked::run(&args);
    }
    if args.shared {
        return shared::run(&args);
    }
    if args.keyed {
        return keyed::run(&args);
    }
    if let Some(pieces) = args.segments {
        return kill::segments(&args, pieces);
    }
    if let Some(program) = &args.wan {
        return wan::run(program, &args);
    }
    if args.several {
        return several::run(&args);
    }
    if args.moves {
        return moves::run(&args);
    }
    if args.kill_master {
        return kill_master::run(&args);
    }
    if args.kill {
        return kill::run(&args);
    }
    println!(
        "GB/s: 10^9 bytes of the tensor per second; CPU s/GB: processor time of all processes; ratio: to ring_limit"
    );
    for &peers in &args.peers {
        let mut fleet = Fleet::start(Setup::here(&args, peers))?;
        println!("\n{peers} peers, float32, sum\n{:<34}{:>10}{:>12}{:>8}", "", "GB/s", "CPU s/GB", "ratio");
        for &mib in &args.mib {
            large(&mut fleet, &args, mib << 20)?;
        }
        if !args.no_small {
            println!("{:<34}{:>10}{:>12}{:>12}", "", "ops/s", "ms/op", "CPU ms/op");
            for &kib in &args.kib {
                small(&mut fleet, &args, kib << 10)?;
            }
        }
        fleet.end()?;
    }
    Ok(())
}

/// One size: the limit, in place, out of place, as 64 tensors in one operation, and an average as 8 bits.
fn large(fleet: &mut Fleet, args: &Args, bytes: usize) -> io::Result<()> {
    let repetitions = ((args.volume_mib << 20) / bytes).max(1);
    let volume = (bytes * repetitions) as f64 / 1e9;
    let tensors = 64;
    let mut commands = vec![
        ("ring_limit", format!("limit {bytes} {repetitions}")),
        ("in place", format!("in_place {bytes} {repetitions}")),
        ("out of place", format!("out_of_place {bytes} {repetitions}")),
        ("average as u8, block 256", format!("quantised {AUTOMATIC} {bytes} {repetitions}")),
        ("64 tensors in one operation", format!("many {tensors} {} {repetitions}", bytes / tensors)),
    ];
    if fleet.peers() > 2 {
        commands.push(("by pairwise exchange", format!("scheduled {PAIRWISE} {bytes} {repetitions}")));
        commands.push(("u8, by pairwise exchange", format!("quantised {PAIRWISE} {bytes} {repetitions}")));
    }
    let mut runs: Vec<Vec<Measured>> = vec![Vec::new(); commands.len()];
    for round in 0..=args.rounds {
        for (run, (_, command)) in runs.iter_mut().zip(&commands) {
            let measured = fleet.measure(command)?;
            // The first round touches the memory for the first time.
            if round > 0 {
                run.push(measured);
            }
        }
    }
    let limits = runs[0].clone();
    for (run, (name, _)) in runs.iter().zip(&commands) {
        let rate = median(run.iter().map(|it| volume / it.seconds));
        let cpu = median(run.iter().map(|it| it.cpu_seconds / volume));
        let ratio = median(run.iter().zip(&limits).map(|(it, limit)| limit.seconds / it.seconds));
        let name = format!("{:>5} MiB  {name}", bytes >> 20);
        println!("{name:<34}{rate:>10.2}{cpu:>12.2}{ratio:>8.2}");
    }
    Ok(())
}

fn small(fleet: &mut Fleet, args: &Args, bytes: usize) -> io::Result<()> {
    let operations = ((64 << 20) / bytes).clamp(50, 2000);
    fleet.measure(&format!("in_place {bytes} {}", operations / 10))?;
    let runs = (0..args.rounds)
        .map(|_| fleet.measure(&format!("in_place {bytes} {operations}")))
        .collect::<io::Result<Vec<_>>>()?;
    let seconds = median(runs.iter().map(|it| it.seconds / operations as f64));
    let cpu = median(runs.iter().map(|it| it.cpu_seconds / operations as f64));
    let name = format!("{:>5} KiB", bytes >> 10);
    println!("{name:<34}{:>10.0}{:>12.3}{:>12.3}", 1.0 / seconds, seconds * 1e3, cpu * 1e3);
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
