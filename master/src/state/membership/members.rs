//! The roll: connections and registered peers; and what is the same for all rules, the time and the settings. Every
//! rule may read it.

use super::client::{Client, CommonVote, Membership, Peer};
use super::sender::{Phase, Sender};
use crate::state::outbox::Outbox;
use crate::state::types::{ClientKey, Options, Timestamp};
use core::net::IpAddr;
use pccl_protocol::{Culprit, GroupId, M2c, PeerId, RunId, StateSource, WorldEpoch, WorldSizes};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry};

/// See the module's documentation.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Roll {
    #[serde(skip, default = "no_options")]
    pub(crate) options: Options,
    /// Time of the present input.
    pub(crate) now: Timestamp,
    /// Time of the last tick: deadlines that end a grace are judged against it.
    pub(crate) tick: Timestamp,
    pub(crate) clients: BTreeMap<ClientKey, Client>,
    /// Those of them that have not registered.
    strangers: BTreeSet<ClientKey>,
    /// Peers by when they were last heard, or earlier, see [`Roll::look_at_silence`]. Those that are away may be
    /// missing.
    heard: BTreeSet<(Timestamp, PeerId)>,
    /// Peers whose connection has ended.
    pub(crate) away: BTreeSet<PeerId>,
    /// Peers that wait to be let in.
    newcomers: BTreeSet<PeerId>,
    /// The peer that was found last not to have given a vote.
    #[serde(skip)]
    awaited: BTreeMap<CommonVote, PeerId>,
    /// The peers that have not given a vote, as long as nothing changes.
    #[serde(skip)]
    missing: BTreeMap<CommonVote, BTreeSet<PeerId>>,
    pub(crate) peers: BTreeMap<PeerId, Peer>,
    /// Peers that went, the latest last. Verdicts may still have to name them.
    gone: VecDeque<Culprit>,
    pub(crate) world_epoch: WorldEpoch,
    pub(crate) registrations: u64,
}

/// The settings are not a part of what is kept: a master has those with which it was started.
const fn no_options() -> Options {
    Options::new(RunId(0))
}

/// Peers that are remembered after they went.
const GONE_MAX: usize = 1024;

/// The sizes of the world at one time.
pub(crate) struct AllSizes {
    counts: BTreeMap<GroupId, u32>,
    common: WorldSizes,
}

impl AllSizes {
    /// As a member of `group` sees them.
    pub(crate) fn of(&self, group: GroupId) -> WorldSizes {
        WorldSizes { group: self.counts.get(&group).copied().unwrap_or(0), ..self.common }
    }
}

impl Roll {
    /// Nobody is here yet.
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            now: Timestamp::default(),
            tick: Timestamp::default(),
            clients: BTreeMap::new(),
            strangers: BTreeSet::new(),
            heard: BTreeSet::new(),
            away: BTreeSet::new(),
            newcomers: BTreeSet::new(),
            awaited: BTreeMap::new(),
            missing: BTreeMap::new(),
            peers: BTreeMap::new(),
            gone: VecDeque::new(),
            world_epoch: WorldEpoch(0),
            registrations: 0,
        }
    }

    /// A peer goes. Its name is remembered for a while.
    pub(crate) fn remove(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.peers.remove(&id)?;
        self.forget_client(peer.client);
        self.away.remove(&id);
        self.newcomers.remove(&id);
        if self.gone.len() == GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(peer.culprit(id));
        Some(peer)
    }

    /// Somebody has connected.
    pub(crate) fn connect(&mut self, key: ClientKey, client: Client) {
        if let Entry::Vacant(place) = self.clients.entry(key) {
            place.insert(client);
            self.strangers.insert(key);
        }
    }

    /// A client has registered as this peer.
    pub(crate) fn add(&mut self, id: PeerId, peer: Peer) {
        self.strangers.remove(&peer.client);
        self.heard.insert((peer.heard_at, id));
        if !peer.info.formed {
            self.newcomers.insert(id);
        }
        self.peers.insert(id, peer);
    }

    pub(crate) fn forget_client(&mut self, key: ClientKey) {
        self.clients.remove(&key);
        self.strangers.remove(&key);
    }

    /// Peers that wait to be let in.
    pub(crate) fn newcomers(&self) -> impl ExactSizeIterator<Item = (PeerId, &Peer)> {
        self.newcomers.iter().map(|id| (*id, &self.peers[id]))
    }

    /// One of them is let in once its ring stands.
    pub(crate) fn connect_newcomer(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.membership = Membership::Connecting;
            self.newcomers.remove(&id);
        }
    }

    /// Clients that have not registered.
    pub(crate) fn strangers(&self) -> impl Iterator<Item = (ClientKey, &Client)> {
        self.strangers.iter().filter_map(|key| Some((*key, self.clients.get(key)?)))
    }

    /// Finds out who has been silent for longest. A peer that was heard since it was last looked at moves back when it
    /// is at the front, and not with each packet.
    pub(crate) fn look_at_silence(&mut self) {
        while let Some((at, id)) = self.heard.first().copied() {
            // Of who is away it is known why nothing is heard.
            let here = self.peers.get(&id).filter(|peer| peer.away.is_none());
            let heard_at = here.map(|peer| peer.heard_at);
            if heard_at == Some(at) {
                return;
            }
            self.heard.pop_first();
            self.heard.extend(heard_at.map(|heard_at| (heard_at, id)));
        }
    }

    /// All have another time at which they were last heard.
    pub(crate) fn sort_by_silence(&mut self) {
        self.heard = self.peers.iter().map(|(id, peer)| (peer.heard_at, *id)).collect();
    }

    /// One that was away is back.
    pub(crate) fn come_back(&mut self, id: PeerId) {
        self.away.remove(&id);
        self.heard.extend(self.peers.get(&id).map(|peer| (peer.heard_at, id)));
    }

    /// When the one was heard that has been silent for longest.
    pub(crate) fn longest_silent(&self) -> Option<Timestamp> {
        self.heard.first().map(|(at, _)| *at)
    }

    /// How a peer was called that went not long ago.
    pub(crate) fn who_went(&self, id: PeerId) -> Option<&Culprit> {
        self.gone.iter().rev().find(|culprit| culprit.peer == id)
    }

    /// Everybody has gone: what was counted and remembered begins anew.
    pub(crate) fn forget(&mut self) {
        self.world_epoch = WorldEpoch(0);
        self.registrations = 0;
        self.gone.clear();
    }

    /// The set of accepted peers changes.
    pub(crate) fn begin_world_epoch(&mut self) {
        self.world_epoch = WorldEpoch(self.world_epoch.0 + 1);
    }

    /// Where `client` stands; `None` if the machine does not know it (any more).
    pub(crate) fn sender_of(&self, client: ClientKey) -> Option<Sender> {
        let known = self.clients.get(&client)?;
        let Some(id) = known.peer else { return Some(Sender::Stranger(known.requests)) };
        let peer = self.peers.get(&id)?;
        Some(Sender::Peer(id, peer.group(), peer.phase()))
    }

    /// Whether a peer has been silent for so long that it may be dead, or its connection has ended.
    pub(crate) fn suspect(&self, id: PeerId) -> bool {
        let is_silent = |peer: &Peer| self.now.since(peer.heard_at) > self.options.suspicion();
        self.peers.get(&id).is_some_and(|peer| peer.away.is_some() || is_silent(peer))
    }

    /// Whether a peer is here, and accepted.
    pub(crate) fn is_accepted(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(Peer::accepted)
    }

    /// Peers whose votes for the whole run are needed.
    pub(crate) fn voters(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.peers.iter().filter(|(_, peer)| peer.has_a_say()).map(|(id, peer)| (*id, peer))
    }

    /// The peers that have a vote and have not given it.
    pub(crate) fn missing_for(&self, vote: CommonVote) -> Cow<'_, BTreeSet<PeerId>> {
        let look = || self.voters().filter(|(_, peer)| !vote.is_given(peer)).map(|(id, _)| id).collect();
        self.missing.get(&vote).map_or_else(|| Cow::Owned(look()), Cow::Borrowed)
    }

    /// Many are about to ask who has not given a vote.
    pub(crate) fn remember_missing(&mut self, vote: CommonVote) {
        if !self.missing.contains_key(&vote) {
            let missing = self.missing_for(vote).into_owned();
            self.missing.insert(vote, missing);
        }
    }

    /// Others may be missing now.
    pub(crate) fn forget_missing(&mut self) {
        self.missing.clear();
    }

    /// A peer has given a vote. Whether all have given it.
    pub(crate) fn note_voted(&mut self, id: PeerId, vote: CommonVote) -> bool {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.took_back.remove(&vote);
        }
        if let Some(missing) = self.missing.get_mut(&vote) {
            missing.remove(&id);
        }
        self.have_voted(vote)
    }

    /// Whether all have given a vote who have one. Looks on from the one that was missing last, so that all looks of
    /// one voting together pass over everybody twice at most.
    fn have_voted(&mut self, vote: CommonVote) -> bool {
        let from = self.awaited.get(&vote).copied().unwrap_or(PeerId(0));
        let is_missing = |(_, peer): &(&PeerId, &Peer)| peer.has_a_say() && !vote.is_given(peer);
        let mut all = self.peers.range(from..).chain(self.peers.range(..from));
        let missing = all.find(is_missing).map(|(id, _)| *id);
        self.awaited.extend(missing.map(|id| (vote, id)));
        missing.is_none()
    }

    /// Newcomers whose rings are being connected.
    pub(crate) fn connecting(&self) -> impl Iterator<Item = PeerId> {
        let connects = |peer: &Peer| peer.phase() == Phase::Connecting && !peer.info.formed;
        self.peers.iter().filter(move |(_, peer)| connects(peer)).map(|(id, _)| *id)
    }

    /// Accepted peers in the world.
    pub(crate) fn accepted_count(&self) -> u32 {
        count(self.peers.values().filter(|peer| peer.accepted()).count())
    }

    /// Accepted peers of each group that has any.
    fn group_counts(&self) -> BTreeMap<GroupId, u32> {
        let mut counts = BTreeMap::new();
        for peer in self.peers.values().filter(|peer| peer.accepted()) {
            *counts.entry(peer.group()).or_insert(0) += 1;
        }
        counts
    }

    /// The sizes of the world as a member of `group` sees them.
    pub(crate) fn sizes(&self, group: GroupId) -> WorldSizes {
        self.all_sizes().of(group)
    }

    /// The sizes of the world as everybody sees them.
    pub(crate) fn all_sizes(&self) -> AllSizes {
        let counts = self.group_counts();
        let common = WorldSizes {
            world_epoch: self.world_epoch,
            global: counts.values().sum(),
            group: 0,
            groups: count(counts.len()),
            largest_group: counts.values().copied().max().unwrap_or(0),
            min_world: self.options.min_world_size,
        };
        AllSizes { counts, common }
    }

    /// Where `viewer` fetches shared state from `source`; `None` if they cannot meet.
    pub(crate) fn state_source(&self, viewer: PeerId, source: PeerId) -> Option<StateSource> {
        let relayed = self.is_relayed((viewer, source));
        if !relayed && !self.may_meet((viewer, source)) {
            return None;
        }
        let (viewer, peer) = (self.peers.get(&viewer)?, self.peers.get(&source)?);
        let (hosts, port, back) = (peer.hosts_for(viewer), peer.info.state_port, peer.outbound_only);
        Some(StateSource { peer: source, hosts, port, back, relayed })
    }

    /// Whether peers reach the master from one address.
    pub(crate) fn are_on_one_host(&self, peers: &[PeerId]) -> bool {
        let hosts: Vec<_> =
            peers.iter().filter_map(|id| Some(self.peers.get(id)?.remote.to_canonical())).collect();
        hosts.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Peers behind one address are in one place.
    pub(crate) fn places(&self, peers: &[PeerId]) -> Vec<usize> {
        let mut hosts: Vec<IpAddr> = Vec::new();
        let mut place = |peer: &Peer| {
            let host = peer.remote.to_canonical();
            hosts.iter().position(|known| *known == host).unwrap_or_else(|| {
                hosts.push(host);
                hosts.len() - 1
            })
        };
        peers.iter().filter_map(|id| self.peers.get(id)).map(&mut place).collect()
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Packets to peers.
impl Outbox {
    /// To one peer, if it is still there.
    pub(crate) fn send_peer(&mut self, roll: &Roll, id: PeerId, packet: M2c) {
        if let Some(peer) = roll.peers.get(&id) {
            self.send(peer.client, packet);
        }
    }

    /// To those of these peers that are still there.
    pub(crate) fn send_peers(&mut self, roll: &Roll, ids: &[PeerId], packet: M2c) {
        let clients = ids.iter().filter_map(|id| roll.peers.get(id)).map(|peer| peer.client).collect();
        self.send_all(clients, packet);
    }
}
