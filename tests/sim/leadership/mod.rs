//! Masters that stand by, at random: the leader, candidacies, and the allegiance of peers, with deaths,
//! sleep and connections that break. The work of the state machine of a run is one number for each turn here.
//!
//! The rule: of all that peers were told, one is the beginning of the other. A master that does not know what a peer
//! was told, or two that act at the same time, break it. And if enough live, somebody acts.

mod copy;
mod forced;
mod looks;
mod nodes;
mod peers;
mod world;

use std::ops::Range;
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
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    let (mut terms, mut told) = (0, 0);
    for seed in seeds {
        let mut world = World::new(seed, Fault::None);
        for _ in 0..STEPS {
            world.step();
            world.verdict().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        terms += world.newest_term();
        told += world.told_len() as u64;
    }
    // The run is about something.
    assert!(terms > count / 10 && told > 10 * count, "{terms} take-overs and {told} turns in {count} runs");
}

#[test]
fn somebody_acts_when_enough_live() {
    let seeds = seeds();
    for seed in seeds.start..seeds.start + (seeds.end - seeds.start).div_ceil(4) {
        let mut world = World::calm(seed);
        assert!(happens(&mut world, |world| world.kill_first(1)), "seed {seed}: no copy is complete");
        expect_progress(world, seed);
    }
}

/// Promises to a standby that dies do not keep others from taking over.
#[test]
fn somebody_acts_though_one_has_died_with_promises() {
    let seeds = seeds();
    for seed in seeds.start..seeds.start + (seeds.end - seeds.start).div_ceil(4) {
        let mut world = World::calm(seed);
        let standbys = world.nodes.len() - 1;
        if standbys < 2 {
            continue;
        }
        assert!(happens(&mut world, |world| world.kill_first(standbys)), "seed {seed}: not all are complete");
        let is_ready = happens(&mut world, World::kill_one_with_promises);
        assert!(is_ready, "seed {seed}: nobody promises anything\n{world:#?}");
        expect_progress(world, seed);
    }
}

fn seeds() -> Range<u64> {
    let from = crate::number("PCCL_SIM_FROM").unwrap_or(0);
    from..from + crate::number("PCCL_SIM_SEEDS").unwrap_or(SEEDS)
}

fn happens(world: &mut World, mut what: impl FnMut(&mut World) -> bool) -> bool {
    // Peers look around at random here, so it may take long until enough of them meet at one place.
    (0..20_000).any(|_| {
        world.step();
        what(world)
    })
}

fn expect_progress(mut world: World, seed: u64) {
    let before = world.told_len();
    let has_gone_on = happens(&mut world, |world| {
        world.verdict().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        world.told_len() > before + 3
    });
    assert!(has_gone_on, "seed {seed}: nobody goes on\n{world:?}");
}

/// After a while whoever acts is lost, together with half of the members or not, and one that stands by acts by an
/// operator's word, if none of the others objects. Whether that came about.
fn run_forced(seed: u64, fault: Fault) -> Result<bool, String> {
    let mut world = World::new(seed, fault);
    let lost = world.rng.range(200, 800) as usize;
    // An operator may err: with more than half of the members another one may take over at the same time, or before.
    let (errs, again) = (!seed.is_multiple_of(2), lost + world.rng.range(50, 300) as usize);
    for step in 0..2 * STEPS {
        world.step();
        world.verdict()?;
        if step == lost || errs && step == again {
            world.lose_acting(!errs);
        }
        if step >= lost && !world.is_forced {
            world.want_one_to_act();
        }
    }
    Ok(world.is_forced)
}

/// Turns that were lost with the others are lost; all else is one history.
#[test]
fn whoever_acts_by_an_operators_word_goes_on_with_what_it_knows() {
    let seeds = seeds();
    let count = (seeds.end - seeds.start).div_ceil(2);
    let forced = (seeds.start..seeds.start + count)
        .filter(|seed| run_forced(*seed, Fault::None).unwrap_or_else(|error| panic!("seed {seed}: {error}")))
        .count() as u64;
    assert!(forced > count / 2, "{forced} of {count}");
}

/// Each of these defects is found.
#[test]
fn planted_defects_are_found() {
    for fault in Fault::FORCED {
        let found = (0..20 * SEEDS).find_map(|seed| run_forced(seed, fault).err());
        assert!(found.is_some(), "{fault:?} is not found");
    }
    for fault in Fault::ALL {
        let found = (0..20 * SEEDS).find_map(|seed| run(seed, fault).err());
        assert!(found.is_some(), "{fault:?} is not found");
    }
}
