//! Better rings from measured rates: `optimize_topology` and what follows from it.
//!
//! The room owns what was measured of edges (`measured`, and `rates` from running operations) and the rings that
//! are being planned (`plans`). `optimize` runs the vote and its phases, `probing` chooses which edges are measured
//! when, `result` says what came of it. The search itself is the crate `pccl-planner`, on a thread of the caller.

pub(crate) mod measured;
pub(crate) mod optimize;
pub(crate) mod plans;
pub(crate) mod probing;
pub(crate) mod rates;
pub(crate) mod result;
