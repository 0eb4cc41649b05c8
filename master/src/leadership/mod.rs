//! Leadership of a run among its masters: terms, copies of the state, votes. Pure, without sockets or clocks.
//!
//! The results of a turn of the leader leave only when all complete copies have that turn. Each copy then knows all
//! that any peer can have seen, so a master with a complete copy may become leader with the votes of more than half
//! of the members. The leader takes a copy that does not keep up off the list of complete ones. The results that
//! waited for it leave when half of the members know the shorter list: none of these members votes for that copy any
//! more.
//!
//! The members change while this goes on, and a voter may not know of the last changes. So a candidate needs a quorum
//! of each set of members that there may have been since the last turn known to have left (`VoterSets`): the turn
//! that left last is in the range of every candidate, and two quorums of one set have a member in common.
//!
//! The parts, each of which uses only those before it: `quorum`, `leader`, `candidacy`. The part of a peer in this is
//! [`pccl_protocol::Allegiance`]. Terms, quorums and votes are those of Raft (Ongaro and Ousterhout 2014, section 5.2);
//! the voters are the peers and not the masters.

mod candidacy;
mod leader;
mod quorum;

pub use candidacy::Candidacy;
pub use leader::{Leader, Past};
pub use quorum::{Quorum, VoterSets};
