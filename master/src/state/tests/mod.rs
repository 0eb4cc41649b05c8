//! Tests of the rules, one table or one story each, driven through [`super::MasterState::handle`] alone.

mod admission;
mod collective;
mod fetches;
mod forming;
mod giving_up;
mod harness;
mod kicks;
mod kinds;
mod liveness;
mod mesh;
mod optimize;
mod paces;
mod pairs;
mod reach;
mod revisions;
mod ring;
mod schedule;
mod stalls;
mod status;
mod straggler;
mod sync;
