//! Examinations: how the master sees a machine that is about to take part, and whether it reaches its ports. Nothing of
//! the run depends on them, and no peer hears of them.

use super::client::{Client, Peer, candidates, view};
use super::members::Roll;
use super::sender::Sender;
use crate::state::MasterState;
use crate::state::types::{Action, ClientKey};
use pccl_protocol::{
    Examine, Examined, ExaminedPeer, GroupId, Host, Hosts, M2c, PeerId, ReachTarget, Text, Unreached, limits,
};
use std::time::Duration;

/// Time for the ports of a machine that is examined: a first packet that was lost is sent again after a second. Others
/// whose ports are tried at the same time wait as long.
const LIMIT: Duration = Duration::from_secs(2);

impl Client {
    /// Where others would reach the machine that asks.
    fn hosts_of(&self, asked: &Examine, is_encrypted: bool) -> Hosts {
        if let Some(host) = &asked.advertised_host {
            return host.clone().into();
        }
        let mut others = candidates(&asked.addresses, self.remote, is_encrypted);
        others.retain(|address| address.ip() != self.remote.to_canonical());
        Hosts { host: self.seen(), others }
    }

    /// Address from which the master sees it come.
    fn seen(&self) -> Host {
        Host::new(self.remote.to_canonical().to_string())
    }
}

impl Roll {
    /// The client that is examined under this identity.
    fn examined(&self, id: PeerId) -> Option<ClientKey> {
        let asks = |client: &Client| client.examined.as_ref().is_some_and(|asked| asked.peer == id);
        self.clients.iter().find(|(_, client)| asks(client)).map(|(key, _)| *key)
    }

    /// Whether somebody is examined under this identity.
    pub(crate) fn examines(&self, id: PeerId) -> bool {
        self.examined(id).is_some()
    }

    /// Whether nobody can be examined under this identity: it is that of a peer, or of another examination.
    pub(crate) fn is_taken(&self, id: PeerId) -> bool {
        self.peers.contains_key(&id) || self.examines(id)
    }
}

impl MasterState {
    /// Has the ports of a machine tried. A second question before the answer takes the place of the first one.
    pub(crate) fn record_examination(&mut self, key: ClientKey, who: Sender, asked: Examine) {
        self.roll.count_question(key, who);
        let (now, limit) = (self.roll.now, self.roll.options.dial_timeout.min(LIMIT));
        let is_encrypted = self.roll.options.is_encrypted();
        let Some(client) = self.roll.clients.get_mut(&key) else { return };
        client.connected_at = now;
        let target = ReachTarget {
            peer: asked.peer,
            hosts: client.hosts_of(&asked, is_encrypted),
            p2p_port: asked.p2p_port,
            state_port: asked.state_port,
        };
        self.out.info(format!(
            "{} asks whether ports {} and {} at {} are reached",
            client.remote.to_canonical(),
            target.p2p_port,
            target.state_port,
            target.hosts
        ));
        client.examined = Some(asked);
        self.out.push(Action::Reach { target, group: GroupId::default(), limit });
    }

    /// The client that is this peer, or is examined as it.
    pub fn asker(&self, id: PeerId) -> Option<ClientKey> {
        self.client_of(id).or_else(|| self.roll.examined(id))
    }

    /// The ports of a machine have been tried: whether that of its state was not reached, and why.
    pub(crate) fn answer_examination(&mut self, id: PeerId, closed: Vec<(bool, String)>, unix_us: u64) {
        let Some(key) = self.roll.examined(id) else { return };
        let is_encrypted = self.roll.options.is_encrypted();
        let Some(client) = self.roll.clients.get_mut(&key) else { return };
        let Some(asked) = client.examined.take() else { return };
        let view = view((client.remote, client.local));
        let (seen, hosts) = (client.seen(), client.hosts_of(&asked, is_encrypted));
        let unreached = closed.into_iter();
        let unreached =
            unreached.map(|(is_state, why)| Unreached { peer: id, is_state, text: Text::new(why) }).collect();
        // Nobody dials the others.
        let dialed = self.roll.peers.iter().filter(|(_, peer)| !peer.outbound_only);
        let mut peers: Vec<(&PeerId, &Peer)> = dialed.collect();
        peers.sort_by_key(|(_, peer)| peer.order);
        let peers = peers.into_iter().take(limits::MAX_PEERS).map(|(id, peer)| ExaminedPeer {
            target: peer.reach_target_in(*id, view),
            group: peer.group(),
            name: peer.info.name.clone(),
        });
        let answer = Examined {
            request: asked.request,
            peer: id,
            wire: self.roll.options.wire,
            run: self.roll.options.run,
            seen,
            unix_us,
            hosts,
            require_reachable: self.roll.options.require_reachable,
            unreached,
            peers: peers.collect(),
            padding: asked.padding,
        };
        self.out.send(key, M2c::Examined(answer));
    }
}
