//! Shared parts of tests, benches, examples and the stress run. No library is built from it, and it knows none of them.
//!
//! * [`barrier`]: threads of a test meet, or the test fails.
//! * [`directory`]: directories of tests.
//! * [`lab`]: hosts that are far apart, on one machine.
//! * [`library`]: libpccl, as a test links it.
//! * [`ports`]: ports for programs that cannot be asked for theirs.
//! * [`process`]: processes that are told and asked by lines, stopped and killed.
//! * [`random`]: small seeded generators.
//! * [`standin`]: a device of CUDA where there is none.
//! * [`training`]: a training whose peers are processes that are killed and replaced, watched and judged.
//! * [`usage`]: what a process has used of its machine.
//!
//! Modules from top to bottom, each of which uses only those below it: `training`, `barrier`,
//! `directory`, `lab`, `library`, `ports`, `process`, `random`, `standin`, `usage`.
#![deny(unsafe_code)]

pub mod barrier;
pub mod directory;
pub mod lab;
pub mod library;
pub mod ports;
#[allow(unsafe_code)]
pub mod process;
pub mod random;
#[allow(unsafe_code)]
pub mod standin;
pub mod training;
pub mod usage;
