//! Communicators as programs use them: one program, since linking costs more than the tests. Tests that need a logger,
//! a signal handler or the threads of a process to themselves are programs of their own.

mod ahead;
mod clip;
mod collectives;
mod connect;
mod cut;
mod diff;
mod doctor;
mod edge_fails;
mod fast;
mod finite;
mod flight;
mod formed;
mod formed_collectives;
mod forming;
mod half_lost;
mod keyed_state;
mod leave;
#[allow(dead_code, reason = "each test binary tells its own lies")]
#[path = "repair/liar.rs"]
mod liar;
mod limits;
mod listeners;
mod mesh;
mod pairwise;
mod revisions;
mod segments;
mod sites;
mod together;
