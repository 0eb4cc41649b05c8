//! Who is here: connections and registered peers; and what is the same for all rules, the time and the settings.
//! Every rule may read it.

use super::admit::Standing;
use super::client::{Client, Peer, Phase};
use super::types::{ClientKey, Options, Timestamp};
use core::net::IpAddr;
use pccl_protocol::{Culprit, GroupId, PeerId, RunId, StateSource, WorldEpoch, WorldSizes};
use std::collections::{BTreeMap, VecDeque};

/// See the module's documentation.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Roll {
    #[serde(skip, default = "no_options")]
    pub(super) options: Options,
    /// Time of the present input.
    pub(super) now: Timestamp,
    /// Time of the last tick: deadlines that end a grace are judged against it.
    pub(super) tick: Timestamp,
    pub(super) clients: BTreeMap<ClientKey, Client>,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    /// Peers that went, the latest last. Verdicts may still have to name them.
    gone: VecDeque<Culprit>,
    pub(super) world_epoch: WorldEpoch,
    pub(super) registrations: u64,
}

/// The settings are not a part of what is kept: a master has those with which it was started.
const fn no_options() -> Options {
    Options::new(RunId(0))
}

/// Peers that are remembered after they went.
const GONE_MAX: usize = 1024;

impl Roll {
    /// Nobody is here yet.
    pub(super) fn new(options: Options) -> Self {
        Self {
            options,
            now: Timestamp::default(),
            tick: Timestamp::default(),
            clients: BTreeMap::new(),
            peers: BTreeMap::new(),
            gone: VecDeque::new(),
            world_epoch: WorldEpoch(0),
            registrations: 0,
        }
    }

    /// A peer goes. What it was called is remembered for a while.
    pub(super) fn remove(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.peers.remove(&id)?;
        self.clients.remove(&peer.client);
        if self.gone.len() == GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(peer.culprit(id));
        Some(peer)
    }

    /// How a peer was called that went not long ago.
    pub(super) fn who_went(&self, id: PeerId) -> Option<&Culprit> {
        self.gone.iter().rev().find(|culprit| culprit.peer == id)
    }

    /// Everybody has gone: what was counted and remembered begins anew.
    pub(super) fn forget(&mut self) {
        self.world_epoch = WorldEpoch(0);
        self.registrations = 0;
        self.gone.clear();
    }

    /// The set of accepted peers changes.
    pub(super) fn begin_world_epoch(&mut self) {
        self.world_epoch = WorldEpoch(self.world_epoch.0 + 1);
    }

    /// Where `client` stands; `None` if the machine does not know it (any more).
    pub(super) fn standing(&self, client: ClientKey) -> Option<Standing> {
        let known = self.clients.get(&client)?;
        let Some(id) = known.peer else { return Some(Standing::Stranger(known.requests)) };
        let peer = self.peers.get(&id)?;
        Some(Standing::Peer(id, peer.group(), peer.phase))
    }

    /// Whether a peer has been silent for so long that it may be dead, or its connection has ended.
    pub(super) fn suspect(&self, id: PeerId) -> bool {
        let is_silent = |peer: &Peer| self.now.since(peer.heard_at) > self.options.suspicion();
        self.peers.get(&id).is_some_and(|peer| peer.away.is_some() || is_silent(peer))
    }

    /// Whether a peer is here, and accepted.
    pub(super) fn is_accepted(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(Peer::accepted)
    }

    /// Peers whose votes for the whole run are needed.
    pub(super) fn voters(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.peers.iter().filter(|(_, peer)| peer.has_a_say()).map(|(id, peer)| (*id, peer))
    }

    /// Newcomers whose rings are being connected.
    pub(super) fn connecting(&self) -> impl Iterator<Item = PeerId> {
        let connects = |peer: &Peer| peer.phase == Phase::Connecting && !peer.info.formed;
        self.peers.iter().filter(move |(_, peer)| connects(peer)).map(|(id, _)| *id)
    }

    /// Accepted peers in the world.
    pub(super) fn accepted_count(&self) -> u32 {
        count(self.peers.values().filter(|peer| peer.accepted()).count())
    }

    /// Accepted peers of each group that has any.
    pub(super) fn group_counts(&self) -> BTreeMap<GroupId, u32> {
        let mut counts = BTreeMap::new();
        for peer in self.peers.values().filter(|peer| peer.accepted()) {
            *counts.entry(peer.group()).or_insert(0) += 1;
        }
        counts
    }

    /// The sizes of the world as a member of `group` sees them.
    pub(super) fn sizes(&self, group: GroupId) -> WorldSizes {
        self.sizes_from(&self.group_counts(), group)
    }

    pub(super) fn sizes_from(&self, counts: &BTreeMap<GroupId, u32>, group: GroupId) -> WorldSizes {
        WorldSizes {
            world_epoch: self.world_epoch,
            global: counts.values().sum(),
            group: counts.get(&group).copied().unwrap_or(0),
            groups: count(counts.len()),
            largest_group: counts.values().copied().max().unwrap_or(0),
            min_world: self.options.min_world_size,
        }
    }

    /// Where `viewer` fetches shared state from `source`; `None` if they cannot meet.
    pub(super) fn state_source(&self, viewer: PeerId, source: PeerId) -> Option<StateSource> {
        let relayed = self.is_relayed((viewer, source));
        if !relayed && !self.may_meet((viewer, source)) {
            return None;
        }
        let (viewer, peer) = (self.peers.get(&viewer)?, self.peers.get(&source)?);
        let (hosts, port, back) = (peer.hosts_for(viewer), peer.info.state_port, peer.outbound_only);
        Some(StateSource { peer: source, hosts, port, back, relayed })
    }

    /// Whether peers reach the master from one address.
    pub(super) fn are_on_one_host(&self, peers: &[PeerId]) -> bool {
        let hosts: Vec<_> =
            peers.iter().filter_map(|id| Some(self.peers.get(id)?.remote.to_canonical())).collect();
        hosts.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Peers behind one address are in one place.
    pub(super) fn places(&self, peers: &[PeerId]) -> Vec<usize> {
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
