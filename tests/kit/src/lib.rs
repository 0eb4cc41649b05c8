//! What tests, benches, examples and the stress run share. No library is built from it, and it knows none of them.
//!
//! * [`random`]: small seeded generators.
//! * [`training`]: a training whose peers are processes that are killed and replaced, watched and judged.
#![forbid(unsafe_code)]

pub mod random;
pub mod training;
