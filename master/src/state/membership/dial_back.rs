//! Connections that a peer wants from one that cannot be dialed: the master hands the wish on, and that one dials.
//!
//! Nothing is kept of it. The peer that asks has its own limit for the connection, and hears when the other one is
//! lost.

use super::members::Roll;
use super::packet_guard::protocol;
use super::sender::Phase;
use crate::state::MasterState;
use crate::state::outbox::Outbox;
use pccl_protocol::{Call, CallMe, KickReason, M2c, PeerId, TicketRole};

impl MasterState {
    /// Only what a peer may fetch or measure can be asked for.
    pub(crate) fn admit_call(&self, wish: &CallMe) -> Result<(), KickReason> {
        match wish.role {
            TicketRole::StateBack | TicketRole::ProbeBack => Ok(()),
            other => Err(protocol(format!("asked another peer to dial it for {other}"))),
        }
    }
}

impl Roll {
    /// Has a peer dialed by one that cannot be dialed. Nothing happens if that one has gone meanwhile, or need not be
    /// asked.
    pub(crate) fn hand_on_call(&self, out: &mut Outbox, id: PeerId, wish: CallMe) {
        let (Some(caller), Some(dialer)) = (self.peers.get(&id), self.peers.get(&wish.peer)) else { return };
        // A newcomer fetches what is lent to it.
        let may_fetch = caller.phase() != Phase::Pending || caller.ahead().is_some();
        let relayed = self.is_relayed((id, wish.peer)) && wish.role == TicketRole::StateBack;
        let is_reachable = dialer.outbound_only && (!caller.outbound_only || relayed);
        if !may_fetch || !is_reachable || caller.group() != dialer.group() || dialer.phase() == Phase::Pending
        {
            return;
        }
        let CallMe { role, index, count, .. } = wish;
        let is_state = role == TicketRole::StateBack;
        let port = if is_state { caller.info.state_port } else { caller.info.p2p_port };
        let hosts = caller.hosts_for(dialer);
        out.send(dialer.client, M2c::Call(Call { peer: id, hosts, port, role, index, count, relayed }));
    }
}
