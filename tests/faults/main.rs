//! Faults of every kind at every phase: real peer processes, and a network between them that can be broken.
//!
//! By default the time-outs are short and nothing needs privileges. `PCCL_FAULTS_FULL=1` uses the default time-outs of
//! the library and holds the bounds exactly. With `PCCL_WANLAB`, the path of `wanlab`, and root the matrix runs between
//! network namespaces instead of behind proxies, but for the faults that only proxies can bring about. The matrix is
//! printed as a table, also when it passes.

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
mod lab;
mod master_dies;
mod matrix;
mod mesh;
mod network;
mod nobody_lost;
mod phase;
mod proxies;
mod quiet;
mod shares;
mod sources;
mod topology;
