//! Peers that are heard, silent or late; and how a peer goes.

use super::members::Roll;
use super::sender::Phase;
use crate::state::MasterState;
use crate::state::groups::group::Group;
use crate::state::groups::losses::Loss;
use crate::state::types::{ClientKey, Timestamp};
use pccl_protocol::{Cause, KickCode, KickReason, M2c, Nothing, PeerId, Purpose, Text};

impl Group {
    /// Members who let the time for the present ring pass, if that can be judged: while another member may be dead or
    /// a broken edge is being judged, nobody is blamed for a ring that cannot stand.
    pub(crate) fn late_members(&self, roll: &Roll) -> Vec<PeerId> {
        let due = self.net.planned_at + roll.options.ring_timeout;
        let members = || self.ring.iter().copied();
        let doubtful = |id: PeerId| !roll.peers.contains_key(&id) || roll.suspect(id);
        if due > roll.now || self.net.edges.any_held() || members().any(doubtful) {
            return Vec::new();
        }
        self.net.edges.missing(Purpose::Ring).into_iter().collect()
    }

    /// When members who let the time for the present ring pass have to be judged.
    pub(crate) fn ring_deadline(&self, roll: &Roll) -> Option<Timestamp> {
        if self.net.stands_since.is_some() {
            return None;
        }
        let due = self.net.planned_at + roll.options.ring_timeout;
        let open = self.net.edges.any_missing(Purpose::Ring, |id| roll.peers.contains_key(&id));
        // In the past, it is due only if it can be judged now; otherwise the next packet or drop changes that.
        (open && (due > roll.now || !self.late_members(roll).is_empty())).then_some(due)
    }
}

impl MasterState {
    /// Judges the deadlines that end in a drop.
    pub(crate) fn judge_deadlines(&mut self) {
        let strangers: Vec<ClientKey> = self
            .roll
            .strangers()
            .filter(|(_, client)| {
                client.registration_due(self.roll.options.registration_timeout) <= self.roll.now
            })
            .map(|(key, _)| key)
            .collect();
        for client in strangers {
            let text =
                format!("did not register within {} ms", self.roll.options.registration_timeout.as_millis());
            self.refuse(client, KickReason::new(KickCode::RegistrationTimeout, text));
        }
        let silent: Vec<PeerId> = self
            .roll
            .peers
            .iter()
            // Of who is away it is known why nothing is heard.
            .filter(|(_, peer)| peer.away.is_none())
            .filter(|(_, peer)| peer.heard_at + self.roll.options.peer_timeout <= self.roll.now)
            .map(|(id, _)| *id)
            .collect();
        for id in silent {
            self.drop_silent(id);
        }
        let late: Vec<PeerId> =
            self.groups.values().flat_map(|group| group.late_members(&self.roll)).collect();
        for id in late {
            let text = format!("confirmed no ring within {} ms", self.roll.options.ring_timeout.as_millis());
            self.kick(id, KickReason::new(KickCode::RingTimeout, text));
        }
        loop {
            self.stragglers.watch(&self.roll, &self.groups, &self.admission);
            let Some((id, reason)) = self.stragglers.late(&self.roll) else { return };
            self.kick(id, reason);
        }
    }

    fn drop_silent(&mut self, id: PeerId) {
        let Some(peer) = self.roll.peers.get(&id) else { return };
        let silent_ms = u64::try_from(self.roll.now.since(peer.heard_at).as_millis()).unwrap_or(u64::MAX);
        let last = match &peer.beat {
            Some((beat, _)) => format!("last seen in {}", beat.call),
            None => "it never sent a beat".to_owned(),
        };
        let loss =
            Loss { cause: Cause::PeerSilent, culprit: peer.culprit(id), silent_ms, detail: Text::new(last) };
        let client = peer.client;
        let text = format!("nothing was heard from this peer for {silent_ms} ms");
        self.out.send(client, M2c::Kicked(KickReason::new(KickCode::Silent, text)));
        self.out.close(client);
        self.remove_peer(id, &loss);
    }

    /// Refuses a client: tells it why, closes, and treats the peer behind it, if any, as lost.
    pub(crate) fn refuse(&mut self, client: ClientKey, reason: KickReason) {
        match self.roll.clients.get(&client).map(|client| client.peer) {
            Some(Some(id)) => self.kick(id, reason),
            Some(None) => {
                self.out.warn(format!("refused {client}: {reason}"));
                self.out.send(client, M2c::Kicked(reason));
                self.out.close(client);
                self.roll.forget_client(client);
            }
            None => {}
        }
    }

    /// Drops a peer for something that it did or that only its going can repair.
    pub(crate) fn kick(&mut self, id: PeerId, reason: KickReason) {
        let Some(peer) = self.roll.peers.get(&id) else { return };
        let cause =
            if reason.code == KickCode::MasterStopping { Cause::MasterStopping } else { Cause::PeerDropped };
        let loss =
            Loss { cause, culprit: peer.culprit(id), silent_ms: 0, detail: Text::new(reason.to_string()) };
        let client = peer.client;
        self.out.send(client, M2c::Kicked(reason));
        self.out.close(client);
        self.remove_peer(id, &loss);
    }

    /// The connection of a client ended.
    pub(crate) fn lose_client(&mut self, client: ClientKey, text: &str) {
        let Some(known) = self.roll.clients.get(&client) else { return };
        match known.peer.and_then(|id| Some((id, self.roll.peers.get(&id)?))) {
            Some((id, peer)) => {
                let loss = Loss {
                    cause: Cause::PeerDied,
                    culprit: peer.culprit(id),
                    silent_ms: 0,
                    detail: Text::new(text),
                };
                self.remove_peer(id, &loss);
            }
            None => {
                self.roll.forget_client(client);
            }
        }
    }

    /// A peer leaves on purpose.
    pub(crate) fn leave(&mut self, id: PeerId) {
        let Some(peer) = self.roll.peers.get(&id) else { return };
        let loss =
            Loss { cause: Cause::PeerLeft, culprit: peer.culprit(id), silent_ms: 0, detail: Text::default() };
        let client = peer.client;
        self.out.send(client, M2c::Goodbye(Nothing {}));
        self.out.close(client);
        self.remove_peer(id, &loss);
    }

    /// Forgets a peer. The rules draw the consequences.
    pub(crate) fn remove_peer(&mut self, id: PeerId, loss: &Loss) {
        let Some(peer) = self.roll.remove(id) else { return };
        self.measured.forget(id);
        self.note_lost_holder(peer.group(), id, loss);
        if let Some(group) = self.groups.get_mut(&peer.group()) {
            group.work.lose(id, peer.moved_bytes(), loss);
            Self::lose_voter(group, id, loss);
            group.lose_member(id, loss);
        }
        if peer.info.formed {
            self.formings.lose(peer.info.group, id, loss);
        }
        if peer.phase() == Phase::Accepted {
            self.roll.begin_world_epoch();
        }
        let silent =
            if loss.silent_ms > 0 { format!(", silent for {} ms", loss.silent_ms) } else { String::new() };
        let why = if loss.detail.as_str().is_empty() { String::new() } else { format!(" ({})", loss.detail) };
        let text = format!("lost {}: {}{silent}{why}", peer.name(id), loss.cause);
        if loss.cause == Cause::PeerLeft { self.out.info(text) } else { self.out.warn(text) }
    }
}
