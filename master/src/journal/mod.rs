//! The journal of a master: a file from which another process of the same machine goes on when this one has died.
//!
//! It begins with all that the master knew at some moment, the *snapshot*, and goes on with everything that the state
//! machine was given since, the *entries*. Equal inputs give equal outputs, so whoever feeds them again knows what the
//! master knew, to the last packet that could have left. From time to time a new snapshot takes the place of the file.
//!
//! Masters that stand by are fed with the same.
//!
//! The parts, each uses only what stands before it: `entry` (what is written, and its form; pure), `file`.

mod entry;
mod file;

pub(crate) use entry::{Client, Entry, Open, Opening, StateSnapshot, TakeError, put, take};
pub(crate) use file::{FORMAT, Journal};
