//! Simulation, end-to-end and tidiness tests of PCCL.

pub mod collectives;
pub mod pattern;
pub mod spec;
