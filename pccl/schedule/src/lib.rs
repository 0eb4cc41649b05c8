//! Schedules of collectives, as plain data: which rank sends which bytes to whom, and folds what in which order.
//!
//! Nothing here waits, sends or touches memory of tensors. A [`Shape`] says which rank owns which chunk of a tensor,
//! and a [`Plan`] cuts chunks into frames. A [`Program`] is what one rank does with them: what it waits for, folds and
//! sends. Each algorithm is a [`Compiler`] of programs: `ring`, `tree`, `exchange`. Tests carry out the programs of all
//! ranks on names instead of numbers (`paper.rs`): every result is the fold of all contributions.
//!
//! Modules from top to bottom, each of which uses only those below it: `program`, `exchange`, `ring`, `tree`, `step`,
//! `ownership`, `sites`, `plan`, `runs`, `shape`.
#![forbid(unsafe_code)]

mod exchange;
mod ownership;
mod plan;
mod program;
mod ring;
mod runs;
mod shape;
mod sites;
mod step;
mod tree;

#[cfg(test)]
extern crate self as pccl_schedule;
#[cfg(test)]
mod paper;
#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod program_tests;

pub use ownership::{Ownership, frame_bytes};
pub use plan::{FRAME_BYTES, Frame, Plan, Unit};
pub use program::{Arrival, Program};
pub use runs::Run;
pub use shape::Shape;
pub use sites::Sites;
pub use step::{Compiler, Hop, Input, Step};
