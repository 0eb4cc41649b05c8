//! End-to-end tests: real peer processes against a master in the test's own process, over loopback.
//!
//! Every wait has a deadline of a minute and every child is killed when its owner goes, so nothing hangs and nothing
//! stays. `PCCL_TEST_FULL=1` runs everything where the default is a selection.

mod fleet;
mod master_process;
mod peer;

mod kill;
mod membership;
mod state;
mod types;
