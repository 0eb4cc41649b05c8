//! Schedules of collectives, as plain data: which rank sends which bytes to whom, and folds what in which order.
//!
//! Nothing here waits, sends or touches memory of tensors. A [`Shape`] says which rank owns which chunk of a tensor, a
//! [`Plan`] cuts chunks into frames and sends them around a ring, an [`Ownership`] sends them up and down a tree.
//!
//! A [`Program`] is what one rank does: what it waits for, folds and sends. Tests carry out the programs of all ranks
//! on names instead of numbers (`paper.rs`): every result is the fold of all contributions.
//!
//! Modules from top to bottom, each of which uses only those below it: `program`, `ownership`, `sites`, `plan`, `runs`,
//! `shape`.
#![forbid(unsafe_code)]

mod ownership;
mod plan;
mod program;
mod runs;
mod shape;
mod sites;

#[cfg(test)]
mod paper;
#[cfg(test)]
mod plan_tests;

pub use ownership::{Contributions, Folded, Ownership, frame_bytes};
pub use plan::{FRAME_BYTES, Frame, Plan, StageKind, Unit};
pub use program::{Hop, Input, Node, Program};
pub use runs::Run;
pub use shape::Shape;
pub use sites::Sites;
