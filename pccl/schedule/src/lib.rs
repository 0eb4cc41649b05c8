//! Schedules of collectives, as plain data: which rank sends which bytes to whom, and folds what in which order.
//!
//! Nothing here waits, sends or touches memory of tensors. A [`Shape`] says which rank owns which chunk of a tensor, a
//! [`Plan`] cuts chunks into frames and sends them around a ring, an [`Ownership`] sends them up and down a tree.
//!
//! Modules from top to bottom, each of which uses only those below it: `ownership`, `sites`, `plan`, `runs`, `shape`.
#![forbid(unsafe_code)]

mod ownership;
mod plan;
mod runs;
mod shape;
mod sites;

#[cfg(test)]
mod plan_tests;

pub use ownership::{Contributions, Folded, Ownership, frame_bytes};
pub use plan::{FRAME_BYTES, Frame, Plan, StageKind, Unit};
pub use runs::Run;
pub use shape::Shape;
pub use sites::Sites;
