//! Faults of every kind at every phase: real peer processes, and a network between them that can be broken.
//!
//! By default the time-outs are short and nothing needs privileges. `PCCL_FAULTS_FULL=1` uses the default time-outs of
//! the library and holds the bounds exactly. With `PCCL_WANLAB`, the path of `wanlab`, and root the matrix runs between
//! network namespaces instead of behind proxies, but for the faults that only proxies can bring about. The matrix is
//! printed as a table, also when it passes. All runs have a fresh run key, unless `PCCL_FAULTS_INSECURE=1` says that
//! there is none.

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
mod repair;
mod shares;
mod sites;
mod sources;
mod topology;

use pccl::RunKey;
use std::sync::OnceLock;

/// The key of all runs here.
fn run_key() -> Option<RunKey> {
    static KEY: OnceLock<Option<RunKey>> = OnceLock::new();
    let insecure = std::env::var_os("PCCL_FAULTS_INSECURE").is_some_and(|value| value != "0");
    let key = || match insecure {
        true => RunKey::from_environment().expect("a run key"),
        false => Some(RunKey::generate().expect("random numbers")),
    };
    KEY.get_or_init(key).clone()
}
