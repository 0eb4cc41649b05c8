//! The events to which the conductor reacts.

use super::edge::Dialed;
use crate::collective::{links::Name, op::Op};
use pccl_protocol::{C2m, GroupPlan, ReachPlan};
use std::sync::Arc;
use tinysockets::{conn::Conn, link::LinkFault, preamble::Preamble};

/// The events to which the conductor reacts.
#[derive(Debug)]
pub(crate) enum Event {
    /// A new plan for the group.
    Plan(Arc<GroupPlan>),
    /// The master asks whom this peer reaches.
    Reach(ReachPlan),
    /// A connection to the data listener.
    Inbound(Preamble, Conn),
    /// A dial has ended.
    Dialed(Dialed),
    /// A link broke.
    Broken(LinkFault),
    /// Nothing passes on an edge that has nothing to do.
    Listen,
    /// The ends of such edges at this peer whose other ends have been reached over another connection.
    Heard(Vec<(bool, Name)>),
    /// An operation begins while an edge may be such a one: it votes when that is known.
    Begin(Arc<Op>),
    /// An operation has to vote, in the new epoch or after what has been found out about edges.
    Revote(Arc<Op>),
    /// A packet to the master that a thread could not write without waiting.
    Send(C2m),
    /// The session is over.
    Stop,
}
