//! The order of a ring: pure search, no input or output.
//!
//! [`Dials`] knows who can be dialed; [`ring_order`] only avoids edges that cannot be built, [`largest_ring`] leaves
//! out who cannot be in one; [`plan()`] looks for the best ring by what was measured.

mod assignment;
mod bottleneck;
mod branch;
mod budget;
mod chance;
mod cheapest;
mod costs;
mod dials;
mod family;
mod hamiltonian;
mod held_karp;
mod interfaces;
mod job;
mod kicks;
mod largest;
mod matrix;
mod necessary;
mod patch;
mod plan;
mod probes;
mod schedule;
mod search;
mod shares;
mod simplex;
mod sites;
#[cfg(test)]
mod test_support;
mod tour;
mod two_rings;

pub use bottleneck::NoPlan;
pub use dials::{Dialer, Dials};
pub use interfaces::{Interfaces, Uplink};
pub(crate) use job::to_link;
pub use job::{Answer, Job, JobLink};
pub use largest::{Candidate, largest_ring};
pub use matrix::{Link, MAX_COST, MAX_MATRIX_PEERS, Matrix, MatrixError};
pub use necessary::Obstacle;
pub use plan::{
    Certified, EQUALLY_FAST, EXACT_PEERS, EXACT_PEERS_BACKGROUND, MIN_GAIN, Objective, Options, Plan, plan,
};
pub use probes::{NEAR_ROUNDS, NEAR_STEPS, Probed, SAMPLE_ROUNDS, near_rounds, probe_rounds};
pub use schedule::{BySites, SCHEDULED_PEERS, Schedules, pairwise_rate, part_of_edge, sites_rate};
pub use search::{NoRing, ring_order};
pub use shares::SHARE_PARTS;
pub use sites::Sites;
