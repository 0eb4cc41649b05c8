//! End-to-end tests: real peer processes against a master in the test's own process, over loopback.
//!
//! Every wait has a deadline of a minute and every child is killed when its owner goes, so nothing hangs and nothing
//! stays. `PCCL_TEST_FULL=1` runs everything where the default is a selection.

#[allow(dead_code, reason = "other test programs use these modules as well")]
mod fleet;
mod forming;
#[allow(dead_code, reason = "as above")]
mod master_process;
#[allow(dead_code, reason = "as above")]
mod peer;

mod abort;
mod accuracy;
mod collectives;
mod connecting;
mod crossed;
mod families;
mod hostile;
mod journal;
mod keyed;
mod kill;
mod limits;
mod membership;
mod mesh;
mod names;
mod networks;
mod optimize;
mod outbound;
mod pairs;
mod pairwise;
mod quantised;
mod random_kill;
mod recorder;
mod resume;
mod revisions;
mod rogue;
mod scale;
mod segments;
mod semantics;
mod shared_memory;
mod sites;
mod standby;
mod state;
mod succession;
mod tickets;
mod types;
mod visits;

use pccl::RunKey;

/// The key of the runs here: that of the environment, if there is one.
fn run_key() -> Option<RunKey> {
    RunKey::from_environment().expect("a run key")
}
