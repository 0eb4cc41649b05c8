//! The loop's part in leadership: its journal, its followers, and what it does while another master leads.
//!
//! `journal_writer` writes what happens before anything leaves that follows from it, and `replay` reads it back.
//! `leader_side` sends it to masters that stand by, `follower_side` receives it, and `standby` waits to become leader.
//! `step_down` hands leadership over in order, `forced_failover` takes it without votes, and `successor` and
//! `second_run` find out that another master leads this run or another one. The decisions are those of
//! [`crate::leadership`].

pub(crate) mod follower_side;
pub(crate) mod forced_failover;
pub(crate) mod journal_writer;
pub(crate) mod leader_side;
pub(crate) mod replay;
pub(crate) mod second_run;
pub(crate) mod standby;
pub(crate) mod step_down;
pub(crate) mod successor;
