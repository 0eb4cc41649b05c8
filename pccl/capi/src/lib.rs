//! The C interface: what `include/pccl.h`, `include/pccl_diloco.h` and `include/pccl_samples.h` declare.
//!
//! Each function turns its arguments into Rust values, all of them checked, makes one call of the library, and turns
//! the error into a code of the original. Handles are numbers, not addresses: whatever a program passes, it is looked
//! up. No panic leaves this crate.
//!
//! Modules from top to bottom, each of which uses only those below it: `samples`, `diloco`, `iteration`, `ahead`,
//! `diff`, `files`, `calls`, `clip`, `moves`, `collectives`, `master`, `diagnosis`, `reduce`, `device`, `settings`,
//! `world`, `groups`, `convert`, `raw`, `fork`, `logging`, `communicator`, `loans`, `masters`, `members`, `savings`,
//! `registry`, `failure`, `child`, `types`.

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

mod ahead;
mod calls;
mod child;
mod clip;
mod collectives;
mod communicator;
mod convert;
mod device;
mod diagnosis;
mod diff;
mod diloco;
mod failure;
mod files;
mod fork;
mod groups;
mod iteration;
mod loans;
mod logging;
mod master;
mod masters;
mod members;
mod moves;
mod raw;
mod reduce;
mod registry;
mod samples;
mod savings;
mod settings;
mod types;
mod world;
