//! What tests, benches, examples and the stress run share. No library is built from it, and it knows none of them.
//!
//! * [`process`]: processes that are told and asked by lines, stopped and killed.
//! * [`random`]: small seeded generators.
//! * [`training`]: a training whose peers are processes that are killed and replaced, watched and judged.
//!
//! Modules from top to bottom, each of which uses only those below it: `training`, `process`, `random`.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod process;
pub mod random;
pub mod training;
