//! Simulation, end-to-end and tidiness tests of PCCL.
//!
//! Modules from top to bottom, each of which uses only those below it: `collectives`, `spec`, `pattern`.

pub mod collectives;
pub mod pattern;
pub mod spec;
