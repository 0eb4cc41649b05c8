//! The cost, for a run to which nothing happens, of a journal or of standbys that outlive its master: operations with
//! it and without, in turns.

use crate::{
    Args,
    fleet::{Memory, Setup},
    turns,
};
use std::error::Error;

pub(crate) fn run(args: &Args, memory: Memory) -> Result<(), Box<dyn Error>> {
    let name = match memory {
        Memory::Nothing => "nothing",
        Memory::Journal => "journal",
        Memory::Standbys(_) => "standbys",
    };
    println!("time and processor time: of the same operation with a master that nothing outlives = 1");
    for &peers in &args.peers {
        let plain = Setup::here(args, peers);
        let both = (plain, Setup { memory, ..plain });
        turns::compare(both, args.rounds, (&format!("{peers} peers"), name), turns::sizes(args))?;
    }
    Ok(())
}
