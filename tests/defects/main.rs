//! One test for each known defect of the C++ PCCL that no other test shows to be absent here.
//!
//! The names begin with the number that the defect has in `docs/defects-of-the-original.md`; a comment says what the
//! original does. The table of that document is held to the tree by the tests of [`table`]. Peers are threads against a
//! master in this process where that suffices, processes otherwise. `PCCL_TEST_FULL=1` moves a tensor of more than 4
//! GiB.

#[allow(dead_code)]
#[path = "../e2e/fleet.rs"]
mod fleet;
#[allow(dead_code)]
#[path = "../e2e/master_process.rs"]
mod master_process;
#[allow(dead_code)]
#[path = "../e2e/peer.rs"]
mod peer;
#[path = "../../master/tests/common/mod.rs"]
mod raw;

mod addresses;
mod calls;
mod membership;
mod process;
mod state;
mod strangers;
mod support;
mod table;

use pccl::RunKey;

/// The key of the runs here: that of the environment, if there is one.
fn run_key() -> Option<RunKey> {
    RunKey::from_environment().expect("a run key")
}
