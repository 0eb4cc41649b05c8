//! The answer to whoever asks how the run is.

use super::MasterState;
use super::admit::Standing;
use super::client::{Peer, Phase};
use super::group::Group;
use super::measured::Measured;
use super::roll::Roll;
use super::types::ClientKey;
use pccl_protocol::{
    EdgeRate, GroupId, Host, M2c, MeasuredEdge, PeerId, PeerStage, RatedPeer, Rates, RatesRequest, RequestId,
    Status, StatusGroup, StatusPeer, StatusWait, Text, WorldSizes, limits,
};
use std::time::Duration;

/// Who wants to know how the run is, and as a member of which group.
pub(super) type StatusRequests = Vec<(ClientKey, RequestId, Option<GroupId>)>;

impl Group {
    /// The slowest edge of a ring, if all of them have been measured.
    pub(super) fn slowest_edge(&self, measured: &Measured) -> Option<EdgeRate> {
        if self.ring.len() < 2 {
            return None;
        }
        let rated = |(from, to)| Some(EdgeRate { from, to, kbit_s: measured.rate((from, to))?.kbit_s });
        let rates: Option<Vec<EdgeRate>> = self.ring_ends().map(rated).collect();
        rates?.into_iter().min_by_key(|rate| rate.kbit_s)
    }
}

impl Roll {
    /// A client that has not registered may ask a few times only.
    fn count_question(&mut self, client: ClientKey, who: Standing) {
        if let (Standing::Stranger(_), Some(client)) = (who, self.clients.get_mut(&client)) {
            client.requests = client.requests.saturating_add(1);
        }
    }

    fn status_of(&self, id: PeerId, peer: &Peer) -> StatusPeer {
        let beat = peer.beat.as_ref().map(|(beat, at)| (beat, millis(self.now.since(*at))));
        StatusPeer {
            peer: id,
            host: Host::new(peer.remote.to_canonical().to_string()),
            name: peer.info.name.clone(),
            p2p_port: peer.info.p2p_port,
            state_port: peer.info.state_port,
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
}

impl MasterState {
    pub(super) fn record_status_request(&mut self, client: ClientKey, who: Standing, request: RequestId) {
        self.roll.count_question(client, who);
        let group = match who {
            Standing::Stranger(_) => None,
            Standing::Peer(_, group, _) => Some(group),
        };
        self.asked.push((client, request, group));
    }

    /// Answers who asked for the status since the rules ran last: between facts and rules the state is half a state.
    pub(super) fn answer_status_requests(&mut self) {
        for (client, request, group) in std::mem::take(&mut self.asked) {
            if self.roll.clients.contains_key(&client) {
                let status = self.status(request, group);
                self.out.send(client, M2c::Status(status));
            }
        }
    }

    pub(super) fn record_rates_request(&mut self, client: ClientKey, who: Standing, asked: RatesRequest) {
        self.roll.count_question(client, who);
        let group = asked.group.or_else(|| self.groups.keys().next().copied());
        let found = group.and_then(|id| Some((id, self.groups.get(&id)?)));
        let mut answer =
            Rates { request: asked.request, group: None, peers: Vec::new(), edges: Vec::new(), left_out: 0 };
        if let Some((id, group)) = found {
            answer.group = Some(id);
            let ring: Vec<PeerId> = group.ring.to_vec();
            let rated = |peer: &PeerId| RatedPeer { peer: *peer, name: self.roll.culprit_of(*peer).name };
            answer.peers = ring.iter().map(rated).collect();
            for (from, to, rate) in self.measured.among(&ring) {
                if answer.edges.len() < limits::MAX_RATES {
                    let (kbit_s, latency_us) = (rate.kbit_s, rate.latency_us);
                    answer.edges.push(MeasuredEdge { from, to, kbit_s, latency_us });
                } else {
                    answer.left_out += 1;
                }
            }
        }
        self.out.send(client, M2c::Rates(answer));
    }

    /// The run as it is now, for a member of `group` or for somebody outside.
    pub(super) fn status(&self, request: RequestId, group: Option<GroupId>) -> Status {
        let sizes = match group {
            Some(group) => self.roll.sizes(group),
            None => WorldSizes { group: 0, ..self.roll.sizes(GroupId::default()) },
        };
        let groups = self.groups.iter().map(|(id, group)| StatusGroup {
            group: *id,
            epoch: group.epoch,
            connected: group.ring_confirmed(&self.roll),
            ring: group.ring.to_vec(),
            revision: group.shared.committed,
            slowest: group.slowest_edge(&self.measured),
            pairwise: group.net.paths.pairwise,
        });
        let mut peers: Vec<(&PeerId, &Peer)> = self.roll.peers.iter().collect();
        peers.sort_by_key(|(_, peer)| peer.order);
        let mut waits = self.waits();
        waits.sort_by_key(|(since, _)| *since);
        let waits = waits.into_iter().take(limits::MAX_STATUS_WAITS).map(|(since, text)| StatusWait {
            since_ms: millis(self.roll.now.since(since)),
            text: Text::new(text),
        });
        Status {
            request,
            run: self.roll.options.run,
            uptime_ms: self.roll.now.as_micros() / 1000,
            sizes,
            groups: groups.take(limits::MAX_PEERS).collect(),
            peers: peers
                .into_iter()
                .take(limits::MAX_PEERS)
                .map(|(id, peer)| self.roll.status_of(*id, peer))
                .collect(),
            waits: waits.collect(),
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
        let found: Vec<PeerId> = self.roll.peers.keys().filter(|id| fits(id)).copied().collect();
        match found.as_slice() {
            [] => Err(format!("no peer's identity begins with {prefix}")),
            [one] => Ok((*one, self.roll.name_of(*one))),
            several => Err(format!(
                "{} peers' identities begin with {prefix}: {}",
                several.len(),
                self.roll.list_peers(several.iter().copied())
            )),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
