//! The master's own findings about the ports of peers, and what is said of them.

use super::client::{Closed, Peer};
use super::members::Roll;
use super::sender::Phase;
use crate::state::groups::all_groups::Groups;
use crate::state::groups::edges::EdgeEnds;
use crate::state::outbox::Outbox;
use crate::state::types::{Action, Timestamp};
use core::net::IpAddr;
use pccl_protocol::{M2c, PeerId, ReachTarget, Text};
use std::collections::{BTreeMap, BTreeSet};

impl Roll {
    /// Has the listeners of a peer tried that has just registered, unless it says that nobody can reach them.
    pub(crate) fn begin_to_dial(&mut self, out: &mut Outbox, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        if peer.info.outbound_only == Some(true) {
            return self.note_outbound_only(out, id, None);
        }
        self.try_listeners(out, id);
    }

    /// Has the listeners of a peer tried.
    pub(crate) fn try_listeners(&self, out: &mut Outbox, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        let target = peer.reach_target(id, peer);
        let (group, limit) = (peer.group(), self.options.dial_timeout);
        out.push(Action::Reach { target, group, limit });
    }

    /// Which ports of a peer the master has not reached: whether that of its state, and why.
    pub(crate) fn record_reached(
        &mut self,
        groups: &Groups,
        out: &mut Outbox,
        id: PeerId,
        closed: Vec<(bool, String)>,
    ) {
        let since = self.now;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let check = groups.get(&peer.group()).and_then(|group| group.reach.check.as_ref());
        let asked = check.is_some_and(|check| check.asks_about(id));
        let closed = closed.into_iter().map(|(is_state, why)| Closed { is_state, since, why, asked });
        peer.closed = closed.collect();
        peer.tried = true;
        let (client, may_be_hidden) = (peer.client, peer.info.outbound_only.is_none());
        // A peer that is in a ring already is dialed: the others find out.
        let is_outside = peer.phase() == Phase::Pending && !self.options.require_reachable;
        if may_be_hidden
            && is_outside
            && let [why, ..] = &self.closed_ports(id, "it")[..]
        {
            return self.note_outbound_only(out, id, Some(why));
        }
        for text in self.closed_ports(id, "you") {
            out.send(client, M2c::Warning(Text::new(text)));
        }
        for text in self.closed_ports(id, &self.name_of(id)) {
            out.warn(text);
        }
    }

    /// A sentence about the ports of a peer that nobody is known to reach, if there are any.
    fn closed_ports(&self, id: PeerId, who: &str) -> Vec<String> {
        let Some(peer) = self.peers.get(&id) else { return Vec::new() };
        let has_data = peer.closed.iter().any(|closed| !closed.is_state);
        let sentence = |closed: &Closed| {
            format!("{} (tried by the master: {})", self.nobody_reaches(id, who, closed.is_state), closed.why)
        };
        // The sentence about the port for data names that for state, too.
        peer.closed.iter().filter(|closed| !(has_data && closed.is_state)).map(sentence).collect()
    }

    /// Nobody reaches a port of a peer, or both, in one sentence.
    pub(crate) fn nobody_reaches(&self, id: PeerId, who: &str, is_state: bool) -> String {
        let Some(peer) = self.peers.get(&id) else { return format!("nobody reaches {who}") };
        let target = peer.reach_target(id, peer);
        let [data, state] = [target.p2p_port, target.state_port].map(|port| target.hosts.listed(port));
        let both = !is_state && peer.closed.iter().any(|closed| closed.is_state);
        let ports = match (is_state, both) {
            (true, _) => state,
            (false, false) => data,
            (false, true) => format!("{data} and {state}"),
        };
        format!("nobody reaches {who} at {ports}: open it or set advertised_host")
    }

    /// Ports that nobody is known to reach: since when, and the sentence.
    pub(crate) fn closed_waits(&self) -> Vec<(Timestamp, String)> {
        let of = |id: &PeerId| {
            let since =
                self.peers.get(id).into_iter().flat_map(|peer| &peer.closed).map(|closed| closed.since);
            since.zip(self.closed_ports(*id, &format!("peer {}", self.name_of(*id)))).collect::<Vec<_>>()
        };
        self.peers.keys().flat_map(of).collect()
    }

    /// Somebody reaches this port of a peer.
    pub(crate) fn note_reached(&mut self, id: PeerId, is_state: bool) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.closed.retain(|closed| closed.is_state != is_state);
        }
    }

    /// For how many edges that cannot be built each end is the likelier cause: the one that is to be reached if the
    /// master does not reach it either, and the one that dials if the master does.
    pub(crate) fn blame(&self, forbidden: &BTreeSet<EdgeEnds>) -> BTreeMap<PeerId, u32> {
        let is_closed = |id: &PeerId| {
            self.peers.get(id).is_some_and(|peer| peer.closed.iter().any(|closed| !closed.is_state))
        };
        let mut blame = BTreeMap::new();
        for (from, to) in &forbidden.iter().map(|ends| self.dialed(*ends)).collect::<Vec<_>>() {
            let was_tried = self.peers.get(to).is_some_and(|peer| peer.tried);
            if was_tried {
                *blame.entry(if is_closed(to) { *to } else { *from }).or_insert(0) += 1;
            }
        }
        blame
    }
}

impl Peer {
    /// Where `viewer` reaches this peer.
    pub(crate) fn reach_target(&self, id: PeerId, viewer: &Self) -> ReachTarget {
        self.reach_target_in(id, viewer.view())
    }

    /// Where who has this [`view`](super::client::view) reaches this peer.
    pub(crate) fn reach_target_in(&self, id: PeerId, view: Option<IpAddr>) -> ReachTarget {
        ReachTarget {
            peer: id,
            hosts: self.hosts_in(view),
            p2p_port: self.info.p2p_port,
            state_port: self.info.state_port,
        }
    }
}
