//! Faults of every kind at every phase: real peer processes, and a network between them that can be broken.
//!
//! By default the time-outs are short and nothing needs privileges. `PCCL_FAULTS_FULL=1` uses the default time-outs of the
//! library and holds the bounds exactly. The matrix is printed as a table, also when it passes.

#[allow(dead_code)]
#[path = "../e2e/fleet.rs"]
mod fleet;
#[allow(dead_code)]
#[path = "../e2e/master_process.rs"]
mod master_process;
#[allow(dead_code)]
#[path = "../e2e/peer.rs"]
mod peer;

mod arena;
mod cell;
mod master_dies;
mod matrix;
mod network;
mod nobody_lost;
mod phase;
mod quiet;
