//! An all-to-all beside the same parts in transfers between two, and beside plain TCP that moves as many bytes of each
//! peer, in turns.

use crate::{
    Args,
    fleet::{Fleet, Measured, Setup},
    median,
};
use std::{error::Error, io};

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!("ratio: to ring_limit for as many bytes of each peer; pairs, counts: time of the other way = 1");
    for &peers in &args.peers {
        let mut fleet = Fleet::start(Setup::here(args, peers))?;
        println!(
            "\n{peers} peers{:<26}{:>10}{:>12}{:>8}{:>8}{:>8}",
            "", "ms", "CPU ms", "ratio", "pairs", "counts"
        );
        for kib in args.kib.iter().copied().chain(args.mib.iter().map(|mib| mib << 10)) {
            size(&mut fleet, args, peers, kib << 10)?;
        }
        fleet.end()?;
    }
    Ok(())
}

/// All-to-alls in which each peer gives that number of bytes.
fn size(fleet: &mut Fleet, args: &Args, peers: usize, bytes: usize) -> io::Result<()> {
    // Equal parts of whole elements.
    let bytes = bytes.next_multiple_of(4 * peers);
    let repetitions = ((args.volume_mib << 20) / bytes).clamp(1, 500);
    // An all-reduce moves each byte but those of the own chunk twice.
    let limit = format!("limit {} {repetitions}", bytes / 2);
    let commands = [
        limit,
        format!("all_to_all {bytes} {repetitions}"),
        format!("in_pairs {bytes} {repetitions}"),
        format!("with_counts {bytes} {repetitions}"),
    ];
    let mut runs: Vec<Vec<Measured>> = vec![Vec::new(); commands.len()];
    for round in 0..=args.rounds {
        for (run, command) in runs.iter_mut().zip(&commands) {
            let measured = fleet.measure(command)?;
            // The first round touches the memory for the first time, and connects pairs.
            if round > 0 {
                run.push(measured);
            }
        }
    }
    let own = &runs[1];
    let of = |value: fn(&Measured) -> f64| median(own.iter().map(value)) / repetitions as f64 * 1e3;
    let beside = |other: &[Measured]| median(own.iter().zip(other).map(|(own, it)| own.seconds / it.seconds));
    println!(
        "{:>9} KiB each{:<17}{:>10.3}{:>12.3}{:>8.2}{:>8.2}{:>8.2}",
        bytes >> 10,
        "",
        of(|run| run.seconds),
        of(|run| run.cpu_seconds),
        1.0 / beside(&runs[0]),
        beside(&runs[2]),
        beside(&runs[3]),
    );
    Ok(())
}
