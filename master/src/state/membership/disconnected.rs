//! Peers whose connection has ended and that may come back over another one.
//!
//! The end of a connection is mostly the end of a process, and then everybody waits for the news. But it may also be
//! something on the way that has closed it, while the peer goes on. So a peer is lost with its connection only together
//! with something else: another one has seen an edge to it break, nobody listens on its port any more, or it has not
//! come back in time.

use super::client::{Away, Peer};
use super::members::Roll;
use super::sender::Phase;
use crate::state::MasterState;
use crate::state::groups::group::Group;
use crate::state::groups::losses::Loss;
use crate::state::types::{ClientKey, Timestamp};
use pccl_protocol::{Cause, EdgeReport, PeerId, Register, Text, limits};
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

/// How long peers are waited for when another master goes on, at least.
const TAKE_OVER: Duration = Duration::from_millis(limits::TAKE_OVER_GRACE_MS);

impl Roll {
    /// Whether what was found about the ports of a peer says that it has died: it is away, and nobody listens at a port
    /// at which somebody did before. A newcomer may not have been tried before; it has nothing to lose but its place
    /// among those who wait.
    pub(crate) fn is_dead_away(&self, id: PeerId, closed: &[(bool, String)]) -> bool {
        // Of one that nobody can dial, closed ports say nothing.
        let may_tell = |peer: &&Peer| peer.away.is_some() && !peer.outbound_only;
        let Some(peer) = self.peers.get(&id).filter(may_tell) else { return false };
        let was_open = peer.tried && !peer.closed.iter().any(|closed| !closed.is_state);
        (was_open || peer.phase() == Phase::Pending) && closed.iter().any(|(is_state, _)| !is_state)
    }

    /// When the next one has not come back in time.
    pub(crate) fn return_deadline(&self) -> Option<Timestamp> {
        let away = self.away.iter().filter_map(|id| self.peers.get(id)?.away.as_ref());
        away.map(|away| away.until).min()
    }

    /// A member reports edges that broke: those at the other ends may be dead.
    pub(crate) fn note_broken_edges(&mut self, group: Option<&Group>, by: PeerId, report: &EdgeReport) {
        let Some(group) = group else { return };
        // A firewall that forgets edges forgets the connection to the master as well.
        for fault in report.broken.iter().filter(|fault| !fault.forgotten) {
            let is_planned = group.net.edges.named((fault.from, fault.to), fault.generation).is_some();
            let other = if fault.from == by { fault.to } else { fault.from };
            if let Some(peer) = self.peers.get_mut(&other).filter(|_| is_planned) {
                peer.edge_broke = Some(self.now);
            }
        }
    }

    /// If a peer is away, it does not come back: it has registered anew, or its port is closed.
    pub(crate) fn note_sign_of_death(&mut self, id: PeerId) {
        if let Some(away) = self.peers.get_mut(&id).and_then(|peer| peer.away.as_mut()) {
            away.is_dead = true;
        }
    }

    /// Whether a peer that is away is not to be waited for any longer.
    fn is_gone(&self, peer: &Peer, away: &Away) -> bool {
        let saw_it_break = |at: Timestamp| at + self.options.edge_grace >= away.since;
        let edge_says_so = !away.with_master && peer.edge_broke.is_some_and(saw_it_break);
        away.is_dead || edge_says_so || away.until <= self.tick
    }
}

impl MasterState {
    /// Whether a client whose connection has ended may come back over another one.
    pub fn may_return(&self, client: ClientKey) -> bool {
        !self.roll.options.return_grace.is_zero() && self.is_peer(client)
    }

    /// Whether a client has registered.
    pub fn is_peer(&self, client: ClientKey) -> bool {
        self.roll.clients.get(&client).is_some_and(|known| known.peer.is_some())
    }

    /// The client of a registered peer.
    pub fn client_of(&self, peer: PeerId) -> Option<ClientKey> {
        self.roll.peers.get(&peer).map(|peer| peer.client)
    }

    /// The peer of a client, once it has registered.
    pub fn peer_of(&self, client: ClientKey) -> Option<PeerId> {
        self.roll.clients.get(&client)?.peer
    }

    /// All who have registered: by which client each came, from where, and what it said of itself.
    pub fn registered(&self) -> impl Iterator<Item = (ClientKey, PeerId, IpAddr, &Register)> {
        self.roll.peers.iter().map(|(id, peer)| (peer.client, *id, peer.remote, &peer.info))
    }

    /// Those whose word counts for who leads the run: the members, or, as long as there are none, all who have
    /// registered.
    pub fn voters(&self) -> BTreeSet<PeerId> {
        let accepted = self.roll.peers.iter().filter(|(_, peer)| peer.phase() == Phase::Accepted);
        let members: BTreeSet<PeerId> = accepted.map(|(id, _)| *id).collect();
        if members.is_empty() { self.roll.peers.keys().copied().collect() } else { members }
    }

    /// The connection of a peer has ended: its own, or those of all with the master that this one takes the place of.
    pub(crate) fn note_away(&mut self, client: ClientKey, text: String, with_master: bool) {
        let since = self.roll.now;
        let usual = since + self.roll.options.return_grace;
        let silence = self.roll.options.peer_timeout;
        let id = self.roll.clients.get(&client).and_then(|known| known.peer);
        let Some((id, peer)) = id.and_then(|id| Some((id, self.roll.peers.get_mut(&id)?))) else { return };
        self.out.info(format!("the connection of {} has ended ({text})", peer.name(id)));
        // A peer that looks for the master elsewhere comes late.
        let until =
            if with_master { usual.max(since + TAKE_OVER) } else { usual.min(peer.heard_at + silence) };
        peer.away = Some(Away { since, until, with_master, is_dead: false, text });
        let has_ports = !peer.outbound_only;
        self.roll.away.insert(id);
        // Of one that nobody can dial, closed ports say nothing.
        if has_ports {
            self.roll.try_listeners(&mut self.out, id);
        }
    }

    pub(crate) fn note_returned(&mut self, client: ClientKey) {
        let Some(id) = self.roll.clients.get(&client).and_then(|known| known.peer) else { return };
        let Some(group) = self.roll.peers.get(&id).map(Peer::group) else { return };
        self.hear(id, group);
        let now = self.roll.now;
        let Some(peer) = self.roll.peers.get_mut(&id) else { return };
        let name = peer.name(id);
        if let Some(away) = peer.away.take() {
            self.roll.come_back(id);
            let millis = now.since(away.since).as_millis();
            self.out.info(format!("{name} is back after {millis} ms"));
        }
    }

    /// Rule: who is away and dead, or does not come back in time, is lost.
    pub(crate) fn lose_the_away(&mut self) -> bool {
        let gone = self.roll.away.iter().filter_map(|id| {
            let peer = self.roll.peers.get(id)?;
            let away = peer.away.as_ref().filter(|away| self.roll.is_gone(peer, away))?;
            let detail = Text::new(away.text.clone());
            let loss = Loss { cause: Cause::PeerDied, culprit: peer.culprit(*id), silent_ms: 0, detail };
            Some((*id, peer.client, loss))
        });
        let gone: Vec<_> = gone.collect();
        for (id, client, loss) in &gone {
            self.out.close(*client);
            self.remove_peer(*id, loss);
        }
        !gone.is_empty()
    }
}
