//! Simulation, end-to-end and tidiness tests of PCCL.

pub mod pattern;
pub mod spec;
