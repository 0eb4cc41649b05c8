//! The C interface: what `include/pccl.h` declares.
//!
//! Each function turns its arguments into Rust values, all of them checked, makes one call of the library, and turns
//! the error into a code of the original. Handles are numbers, not addresses: whatever a program passes, it is looked
//! up. No panic leaves this crate.
//!
//! Modules from top to bottom, each of which uses only those below it: `iteration`, `diff`, `files`, `calls`,
//! `collectives`, `master`, `diagnosis`, `reduce`, `settings`, `world`, `groups`, `convert`, `logging`, `raw`, `fork`,
//! `communicator`, `masters`, `members`, `registry`, `failure`, `child`, `types`.

mod calls;
mod child;
mod collectives;
mod communicator;
mod convert;
mod diagnosis;
mod diff;
mod failure;
mod files;
mod fork;
mod groups;
mod iteration;
mod logging;
mod master;
mod masters;
mod members;
mod raw;
mod reduce;
mod registry;
mod settings;
mod types;
mod world;
