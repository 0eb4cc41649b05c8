//! The order of a ring: pure search, no input or output.

mod search;

pub use search::{NoRing, ring_order};
