//! Masters that stand by, at random: the office of the acting one, bids, and the allegiance of peers, with deaths,
//! sleep and connections that break. What the state machine of a run does is one number for each turn here.
//!
//! The rule: of all that peers were told, one is the beginning of the other. A master that does not know what a peer
//! was told, or two that act at the same time, break it. And if enough live, somebody acts.

mod nodes;
mod peers;
mod world;

use world::{Fault, World};

/// Seeds of an ordinary run.
const SEEDS: u64 = 1500;
const STEPS: usize = 1500;

fn run(seed: u64, fault: Fault) -> Result<(), String> {
    let mut world = World::new(seed, fault);
    for _ in 0..STEPS {
        world.step();
        world.verdict()?;
    }
    Ok(())
}

#[test]
fn what_a_peer_was_told_is_known_to_whoever_acts_next() {
    let seeds = crate::number("PCCL_SIM_SEEDS").map_or(SEEDS, |seeds| seeds / 4);
    let (mut terms, mut told) = (0, 0);
    for seed in 0..seeds {
        let mut world = World::new(seed, Fault::None);
        for _ in 0..STEPS {
            world.step();
            world.verdict().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        terms += world.newest_term();
        told += world.told_len() as u64;
    }
    // The run is about something.
    assert!(terms > seeds / 10 && told > 10 * seeds, "{terms} take-overs and {told} turns in {seeds} runs");
}

#[test]
fn somebody_acts_when_enough_live() {
    let seeds = crate::number("PCCL_SIM_SEEDS").map_or(SEEDS, |seeds| seeds / 4);
    for seed in 0..seeds / 4 {
        let mut world = World::calm(seed);
        let is_ready = (0..4000).any(|_| {
            world.step();
            world.kill_first()
        });
        assert!(is_ready, "seed {seed}: no copy is complete");
        let before = world.told_len();
        let has_gone_on = (0..4000).any(|_| {
            world.step();
            world.verdict().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            world.told_len() > before + 3
        });
        assert!(has_gone_on, "seed {seed}: nobody goes on\n{world:?}");
    }
}

/// Each of these defects is found.
#[test]
fn planted_defects_are_found() {
    for fault in Fault::ALL {
        let found = (0..20 * SEEDS).find_map(|seed| run(seed, fault).err());
        assert!(found.is_some(), "{fault:?} is not found");
    }
}
