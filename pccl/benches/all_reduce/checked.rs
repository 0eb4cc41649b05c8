//! The cost of checksums of frames: the same operations with them and without, in turns.

use crate::{Args, fleet::Setup, turns};
use std::error::Error;

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!("time and processor time: of the same operation without checksums = 1");
    for &peers in &args.peers {
        let plain = Setup { checksums: false, ..Setup::here(args, peers) };
        let both = (plain, Setup { checksums: true, ..plain });
        turns::compare(both, args.rounds, (&format!("{peers} peers"), "checksums"), turns::sizes(args))?;
    }
    Ok(())
}
