//! The answer to whoever asks how the run is.

use crate::state::MasterState;
use crate::state::groups::group::Group;
use crate::state::membership::client::Peer;
use crate::state::membership::members::Roll;
use crate::state::membership::packet_guard::protocol;
use crate::state::membership::sender::{Phase, Sender};
use crate::state::optimise::measured::Measured;
use crate::state::types::{ClientKey, Timestamp};
use pccl_protocol::{
    EdgeRate, GroupId, Host, KickReason, M2c, MeasuredEdge, PeerId, PeerStage, RatedPeer, Rates,
    RatesRequest, RequestId, Status, StatusGroup, StatusLead, StatusPeer, StatusWait, Term, Text, WorldSizes,
    limits,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The clients that want to know how the run is.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct StatusRequests {
    /// Clients that have asked since the rules ran last.
    fresh: BTreeSet<ClientKey>,
    /// Clients that ask too often to be answered at once, and when they are answered.
    later: BTreeMap<ClientKey, Timestamp>,
}

impl StatusRequests {
    /// When the next one is answered that was put off.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        self.later.values().min().copied()
    }

    /// The clients that may be answered now.
    fn take_due(&mut self, now: Timestamp) -> BTreeSet<ClientKey> {
        let mut due = std::mem::take(&mut self.fresh);
        due.extend(self.later.iter().filter(|(_, at)| **at <= now).map(|(client, _)| *client));
        self.later.retain(|client, _| !due.contains(client));
        due
    }
}

impl Group {
    /// The slowest edge of a ring, if all of them have been measured.
    pub(crate) fn slowest_edge(&self, measured: &Measured) -> Option<EdgeRate> {
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
    pub(crate) fn count_question(&mut self, client: ClientKey, who: Sender) {
        if let (Sender::Stranger(_), Some(client)) = (who, self.clients.get_mut(&client)) {
            client.requests = client.requests.saturating_add(1);
        }
    }

    /// A peer asks one question after the other, from few threads.
    pub(crate) fn admit_question(&self, id: PeerId) -> Result<(), KickReason> {
        let client = self.peers.get(&id).and_then(|peer| self.clients.get(&peer.client));
        match client.map_or(0, |client| client.questions.len()) {
            open if open < limits::MAX_OPEN_QUESTIONS => Ok(()),
            open => Err(protocol(format!(
                "asked for the status again while {open} questions were open, the limit"
            ))),
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
            stage: match peer.phase() {
                Phase::Pending => PeerStage::Pending,
                Phase::Connecting => PeerStage::Connecting,
                Phase::Accepted => PeerStage::Accepted,
            },
            call: beat.map_or(pccl_protocol::CallKind::None, |(beat, _)| beat.call),
            call_ms: beat.map_or(0, |(beat, ago)| beat.call_ms.saturating_add(ago)),
            silent_ms: millis(self.now.since(peer.heard_at)),
            moved_bytes: peer.moved_bytes(),
            operation: beat.and_then(|(beat, _)| beat.operation),
            fetch: beat.and_then(|(beat, _)| beat.fetch),
            outbound_only: peer.outbound_only,
            figures: beat.map_or(Vec::new(), |(beat, _)| beat.figures.clone()),
        }
    }
}

impl MasterState {
    pub(crate) fn record_question(&mut self, client: ClientKey, who: Sender, request: RequestId) {
        self.roll.count_question(client, who);
        let Some(known) = self.roll.clients.get_mut(&client) else { return };
        known.questions.push_back(request);
        if !self.asked.later.contains_key(&client) {
            self.asked.fresh.insert(client);
        }
    }

    /// Answers the clients that asked for the status since the rules ran last: between facts and rules the state is
    /// half a state. A client that asks often is answered later.
    pub(crate) fn answer_status_requests(&mut self) {
        let due = self.asked.take_due(self.roll.now);
        let mut known: BTreeMap<Option<GroupId>, Status> = BTreeMap::new();
        for client in due {
            let (group, requests) = self.questions_to_answer(client);
            for request in requests {
                let status = known.entry(group).or_insert_with(|| self.status(request, group));
                self.out.send(client, M2c::Status(Status { request, ..status.clone() }));
            }
        }
    }

    /// The questions of a client that are answered now, and the group of which it is a member. The others are put off.
    fn questions_to_answer(&mut self, client: ClientKey) -> (Option<GroupId>, Vec<RequestId>) {
        let (now, mut requests) = (self.roll.now, Vec::new());
        let (group, phase) = match self.roll.sender_of(client) {
            Some(Sender::Peer(_, group, phase)) => (Some(group), Some(phase)),
            Some(Sender::Stranger(_)) | None => (None, None),
        };
        let Some(known) = self.roll.clients.get_mut(&client) else { return (None, requests) };
        while let Some(request) = known.questions.front().copied() {
            if let Err(wait) = known.allowance.may_answer(phase, now) {
                self.asked.later.insert(client, now + wait);
                break;
            }
            known.questions.pop_front();
            requests.push(request);
        }
        (group, requests)
    }

    pub(crate) fn record_rates_request(&mut self, client: ClientKey, who: Sender, asked: RatesRequest) {
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
    pub(crate) fn status(&self, request: RequestId, group: Option<GroupId>) -> Status {
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
            schedule: group.net.large(),
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
            // The event loop, which sends it, knows their number.
            run_keys: 0,
            wire: self.roll.options.wire,
            trusted_seeders: self.roll.options.trusted_seeders.clone(),
            sizes,
            groups: groups.take(limits::MAX_PEERS).collect(),
            peers: peers
                .into_iter()
                .take(limits::MAX_PEERS)
                .map(|(id, peer)| self.roll.status_of(*id, peer))
                .collect(),
            waits: waits.collect(),
            // The event loop, which sends it, knows the relay.
            relay: None,
            lead: StatusLead { term: Term(0), acts: true, standbys: Vec::new(), text: None, journal: None },
        }
    }

    /// The registered peer that an operator means, and how it is called: its name, or the first hexadecimal digits of
    /// its identity.
    ///
    /// # Errors
    /// Says in one sentence why there is no such peer, or who they are if there are several.
    pub fn find_peer(&self, wanted: &str) -> Result<(PeerId, String), String> {
        let wanted = wanted.trim();
        let prefix = wanted.to_ascii_lowercase();
        if wanted.is_empty() {
            return Err(
                "a peer is named by its name, or by the first hexadecimal digits of its identity".into()
            );
        }
        let fits = |id: PeerId, peer: &Peer| {
            peer.info.name.as_str() == wanted || format!("{id:#}").starts_with(&prefix)
        };
        let fitting = self.roll.peers.iter().filter(|(id, peer)| fits(**id, peer));
        let found: Vec<PeerId> = fitting.map(|(id, _)| *id).collect();
        match found.as_slice() {
            [] => Err(format!(
                "no peer has the name {wanted:?}, or an identity that begins so; {}",
                match self.roll.peers.is_empty() {
                    true => "there is none".to_owned(),
                    false => format!("there are {}", self.roll.list_peers(self.roll.peers.keys().copied())),
                }
            )),
            [one] => Ok((*one, self.roll.name_of(*one))),
            several => Err(format!(
                "{wanted} names {} peers: {}; give more digits of an identity",
                several.len(),
                self.roll.list_peers(several.iter().copied())
            )),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
