//! The worth of shared memory on one machine: the same operations through TCP and without it, in turns.

use crate::{Args, fleet::Setup, turns};
use std::error::Error;

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!("time and processor time: of the same operation through TCP = 1");
    for &peers in &args.peers {
        let tcp = Setup { tcp: true, keyed: args.wire, ..Setup::here(args, peers) };
        let both = (tcp, Setup { tcp: false, ..tcp });
        turns::compare(both, args.rounds, (&format!("{peers} peers"), "memory"), turns::sizes(args))?;
    }
    Ok(())
}
