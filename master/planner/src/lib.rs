//! Rings, shares, sites and schedules of a run, computed from measured rates: pure search, without sockets, clocks or
//! state of a run.
//!
//! [`Dials`] knows who can be dialed; [`ring_order`] only avoids edges that cannot be built, [`largest_ring`] leaves
//! out who cannot be in one; [`plan()`] looks for the best ring by what was measured, [`Schedules`] for the fastest way
//! of large operations over it.
//!
//! Modules from top to bottom, each of which uses only those below it: `offline`, `probes`, `job`, `schedules`,
//! `rings`, `dials`, `matrix`, `chance`.
#![forbid(unsafe_code)]

mod chance;
mod dials;
mod job;
mod matrix;
#[cfg(feature = "offline")]
pub mod offline;
mod probes;
mod rings;
mod schedules;
#[cfg(test)]
mod test_support;

pub use dials::{Dialer, Dials};
pub use job::{Answer, Job, JobLink, to_link};
pub use matrix::{Link, MAX_COST, MAX_MATRIX_PEERS, Matrix, MatrixError};
pub use probes::{NEAR_ROUNDS, NEAR_STEPS, Probed, SAMPLE_ROUNDS, near_rounds, probe_rounds};
pub use rings::{
    Candidate, Certified, EQUALLY_FAST, EXACT_PEERS, EXACT_PEERS_BACKGROUND, MIN_GAIN, NoPlan, NoRing,
    Objective, Obstacle, Options, Plan, largest_ring, plan, ring_order,
};
pub use schedules::{
    BySites, Interfaces, SCHEDULED_PEERS, SHARE_PARTS, Schedules, Sites, Uplink, pairwise_rate, part_of_edge,
    sites_rate,
};
