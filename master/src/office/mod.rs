//! Who acts as the master of a run: terms, copies, promises. Pure, without sockets or clocks.
//!
//! Everything that follows from a turn of the acting master leaves only when all complete copies have the turn. So each
//! of them knows what any peer can have seen, and whoever has one may take over, with the promises of more than half of
//! the members. A copy that does not keep up is taken off the list of complete ones, and what waited leaves when half
//! of the members know the shorter list: none of these gives a promise to it any more.
//!
//! Who the members are changes while this goes on, and those who count may not know of the last changes. So as many are
//! wanted of all of them, each time that they may have been others since what is known to have left (`Electorates`):
//! what left last is in the range of everybody who counts, and two quorums of that have a member in common.
//!
//! The parts, each uses only what stands before it: `electorates`, `acting` (the office of the acting master), `bid`
//! (that of one who wants to take over). What a peer does about all this is [`pccl_protocol::Allegiance`].

mod acting;
mod bid;
mod electorates;

pub use acting::{Acting, Past};
pub use bid::Bid;
pub use electorates::{Electorates, Quorum};
