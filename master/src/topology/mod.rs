//! The order of a ring: pure search, no input or output.

mod removal;
mod search;

pub use removal::{Candidate, fewest_removals};
pub use search::{NoRing, ring_order};
