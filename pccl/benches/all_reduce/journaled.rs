//! What a journal of the master costs a run that nothing happens to: operations with one and without, in turns.

use crate::{Args, fleet::Setup, turns};
use std::error::Error;

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    println!("time and processor time: of the same operation without a journal = 1");
    for &peers in &args.peers {
        let plain = Setup::here(args, peers);
        let both = (plain, Setup { journal: true, ..plain });
        turns::compare(both, args.rounds, (&format!("{peers} peers"), "journal"), turns::sizes(args))?;
    }
    Ok(())
}
