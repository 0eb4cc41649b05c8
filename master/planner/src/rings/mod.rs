//! The order of a ring. `search` finds one that can be built at all, `largest` one of as many peers as possible; `plan`
//! finds the best one by measured rates: exactly for few peers (`held_karp`, `branch`), by local search for many
//! (`tour`, `kicks`, `family`). `necessary` says why there is none.

mod assignment;
mod bottleneck;
mod branch;
mod budget;
mod cheapest;
mod costs;
mod family;
mod hamiltonian;
mod held_karp;
mod kicks;
mod largest;
mod necessary;
mod patch;
mod plan;
mod search;
mod tour;

pub use bottleneck::NoPlan;
pub use largest::{Candidate, largest_ring};
pub use necessary::Obstacle;
pub use plan::{
    Certified, EQUALLY_FAST, EXACT_PEERS, EXACT_PEERS_BACKGROUND, MIN_GAIN, Objective, Options, Plan, plan,
};
pub use search::{NoRing, ring_order};
