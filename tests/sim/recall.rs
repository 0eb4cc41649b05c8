//! The master dies at any moment, and another one goes on with what it had written: nobody can tell the difference.

use crate::{Logging, Summary, fresh, rng::Rng, run, run_world, swarm::Model, world, world::World};
use pccl_master::state::MasterState;

/// Seeds of an ordinary run.
const SEEDS: u64 = 75;
/// Of a hundred turns of the master it dies after this number.
const PERCENT: u64 = 10;

impl World {
    /// If the choices say so, the master is forgotten, and made again of its bytes.
    pub(crate) fn recall_master(&mut self) {
        if !self.recalls.as_mut().is_some_and(|choices| choices.percent(PERCENT)) {
            return;
        }
        let bytes = self.master.remember().expect("everything can be written");
        let ids = std::mem::replace(&mut self.master, fresh()).into_ids();
        let options = world::options(&self.swarm);
        self.master = MasterState::recall(options, ids, &bytes).expect("everything can be read");
        assert_eq!(
            self.master.remember().expect("once more"),
            bytes,
            "seed {}: something got lost",
            self.seed
        );
    }
}

fn run_with_recalls(seed: u64) -> Summary {
    let mut world = World::new(seed, Model::Early, Logging::Counted);
    world.recalls = Some(Rng::new(seed ^ 0x5eed_0100));
    run_world(world)
}

#[test]
fn a_master_that_goes_on_for_another_one_does_what_that_would_have_done() {
    let seeds = crate::number("PCCL_SIM_SEEDS").map_or(SEEDS, |seeds| seeds / 40);
    for seed in 0..seeds {
        assert_eq!(run_with_recalls(seed), run(seed, Model::Early, Logging::Counted), "seed {seed}");
    }
}

/// The comparison can fail: the one that goes on has another setting here.
#[test]
fn a_master_that_differs_is_found_out() {
    let differs = |seed: &u64| {
        let mut world = World::new(*seed, Model::Early, Logging::Counted);
        world.recalls = Some(Rng::new(seed ^ 0x5eed_0100));
        world.swarm.min_world += 1;
        let other = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_world(world)));
        other.map_or(true, |summary| summary != run(*seed, Model::Early, Logging::Counted))
    };
    assert!((0..40).any(|seed| differs(&seed)));
}
