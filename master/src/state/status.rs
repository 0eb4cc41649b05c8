//! The answer to whoever asks how the run is.

use super::MasterState;
use super::admit::Standing;
use super::client::{Peer, Phase};
use super::types::ClientKey;
use pccl_protocol::{
    GroupId, Host, M2c, PeerId, PeerStage, RequestId, Status, StatusGroup, StatusPeer, StatusWait, Text,
    WorldSizes, limits,
};
use std::time::Duration;

impl MasterState {
    pub(super) fn record_status_request(&mut self, client: ClientKey, who: Standing, request: RequestId) {
        let group = match who {
            Standing::Stranger(_) => None,
            Standing::Peer(_, group, _) => Some(group),
        };
        if let (None, Some(client)) = (group, self.clients.get_mut(&client)) {
            client.requests = client.requests.saturating_add(1);
        }
        self.asked.push((client, request, group));
    }

    /// Answers who asked for the status since the rules ran last: between facts and rules the state is half a state.
    pub(super) fn answer_status_requests(&mut self) {
        for (client, request, group) in std::mem::take(&mut self.asked) {
            if self.clients.contains_key(&client) {
                let status = self.status(request, group);
                self.send(client, M2c::Status(status));
            }
        }
    }

    /// The run as it is now, for a member of `group` or for somebody outside.
    pub(super) fn status(&self, request: RequestId, group: Option<GroupId>) -> Status {
        let sizes = match group {
            Some(group) => self.sizes(group),
            None => WorldSizes { group: 0, ..self.sizes(GroupId::default()) },
        };
        let groups = self.groups.iter().map(|(id, group)| StatusGroup {
            group: *id,
            epoch: group.epoch,
            connected: self.ring_confirmed(group),
            ring: group.ring.iter().map(|place| place.peer).collect(),
        });
        let mut peers: Vec<(&PeerId, &Peer)> = self.peers.iter().collect();
        peers.sort_by_key(|(_, peer)| peer.order);
        let mut waits = self.waits();
        waits.sort_by_key(|(since, _)| *since);
        let waits = waits.into_iter().take(limits::MAX_STATUS_WAITS).map(|(since, text)| StatusWait {
            since_ms: millis(self.now.since(since)),
            text: Text::new(text),
        });
        Status {
            request,
            run: self.options.run,
            uptime_ms: self.now.as_micros() / 1000,
            sizes,
            groups: groups.take(limits::MAX_PEERS).collect(),
            peers: peers
                .into_iter()
                .take(limits::MAX_PEERS)
                .map(|(id, peer)| self.status_of(*id, peer))
                .collect(),
            waits: waits.collect(),
        }
    }

    fn status_of(&self, id: PeerId, peer: &Peer) -> StatusPeer {
        let beat = peer.beat.as_ref().map(|(beat, at)| (beat, millis(self.now.since(*at))));
        StatusPeer {
            peer: id,
            host: Host::new(peer.remote.to_canonical().to_string()),
            group: peer.group(),
            stage: match peer.phase {
                Phase::Pending => PeerStage::Pending,
                Phase::Connecting => PeerStage::Connecting,
                Phase::Accepted => PeerStage::Accepted,
            },
            call: beat.map_or(pccl_protocol::CallKind::None, |(beat, _)| beat.call),
            call_ms: beat.map_or(0, |(beat, ago)| beat.call_ms.saturating_add(ago)),
            silent_ms: millis(self.now.since(peer.heard_at)),
            moved_bytes: peer.moved_bytes(),
            operation: beat.and_then(|(beat, _)| beat.operation),
        }
    }

    /// The registered peer whose identity, in hexadecimal digits, begins with `prefix`, and how it is called.
    ///
    /// # Errors
    /// Says in one sentence why there is no such peer, or who they are if there are several.
    pub fn find_peer(&self, prefix: &str) -> Result<(PeerId, String), String> {
        let prefix = prefix.trim().to_ascii_lowercase();
        if prefix.is_empty() || prefix.len() > 32 || !prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("a peer is named by the first hexadecimal digits of its identity".into());
        }
        let fits = |id: &PeerId| format!("{id:#}").starts_with(&prefix);
        let found: Vec<PeerId> = self.peers.keys().filter(|id| fits(id)).copied().collect();
        match found.as_slice() {
            [] => Err(format!("no peer's identity begins with {prefix}")),
            [one] => Ok((*one, self.name_of(*one))),
            several => Err(format!(
                "{} peers' identities begin with {prefix}: {}",
                several.len(),
                self.list_peers(several.iter().copied())
            )),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
