//! A connection and the peer behind it.

use super::formed::Past;
use super::ports::Closed;
use super::types::{ClientKey, Timestamp};
use core::net::IpAddr;
use pccl_protocol::{Beat, Culprit, GroupId, Host, Named, PeerId, Register, RequestId, WorldSizes};

/// One control connection.
#[derive(Debug)]
pub(super) struct Client {
    /// Source address.
    pub(super) remote: IpAddr,
    /// Address of the master that the client reached.
    pub(super) local: IpAddr,
    /// When the connection came.
    pub(super) connected_at: Timestamp,
    /// The peer, once it has registered.
    pub(super) peer: Option<PeerId>,
    /// How often it has asked for the status without being registered.
    pub(super) requests: u32,
}

/// How far a peer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Waits for a round that admits it.
    Pending,
    /// Member of a ring that is being connected in a running round.
    Connecting,
    /// Full member: votes and is counted.
    Accepted,
}

/// A vote of `update_topology` or `wait_for_world`.
#[derive(Debug)]
pub(super) struct TopologyVote {
    pub(super) request: RequestId,
    /// 0, or the size of the world that the vote waits for.
    pub(super) wait_for_world: u32,
    pub(super) since: Timestamp,
    /// Taken back while a round was running: it counts until the end of that round.
    pub(super) withdrawn: bool,
    /// The count of accepted peers in the last progress report for this vote.
    pub(super) told: Option<u32>,
}

/// A vote of `optimize_topology`.
#[derive(Debug)]
pub(super) struct OptimizeVote {
    pub(super) request: RequestId,
    pub(super) since: Timestamp,
}

/// A vote of `are_peers_pending`.
#[derive(Debug)]
pub(super) struct PendingVote {
    pub(super) request: RequestId,
    pub(super) since: Timestamp,
}

/// A registered peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) client: ClientKey,
    pub(super) info: Register,
    pub(super) remote: IpAddr,
    pub(super) local: IpAddr,
    pub(super) phase: Phase,
    /// Counts registrations; newcomers join a ring in this order.
    pub(super) order: u64,
    /// When the last packet came.
    pub(super) heard_at: Timestamp,
    /// The last beat and when it came.
    pub(super) beat: Option<(Beat, Timestamp)>,
    pub(super) topology: Option<TopologyVote>,
    pub(super) pending: Option<PendingVote>,
    pub(super) optimize: Option<OptimizeVote>,
    /// Ports of it that the master did not reach, and of which nobody else said that it did.
    pub(super) closed: Vec<Closed>,
    /// The master has tried its ports.
    pub(super) tried: bool,
    /// The sizes that this peer was told last.
    pub(super) sizes_told: Option<WorldSizes>,
    /// The group of given members that it is in.
    pub(super) formed: Option<GroupId>,
    /// What it brings along from such groups.
    pub(super) past: Past,
}

impl Peer {
    /// Its group: the one that it was formed into, or the one for which it registered.
    pub(super) const fn group(&self) -> GroupId {
        match self.formed {
            Some(group) => group,
            None => self.info.group,
        }
    }

    /// Whether votes for the whole run need its vote. A peer of a formed group lets nobody in.
    pub(super) fn has_a_say(&self) -> bool {
        self.accepted() && !self.info.formed
    }

    pub(super) fn accepted(&self) -> bool {
        self.phase == Phase::Accepted
    }

    /// Bytes that the peer had moved, over all operations, by its last beat.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.beat.as_ref().map_or(0, |(beat, _)| beat.moved_bytes)
    }

    /// How verdicts name this peer.
    pub(super) fn culprit(&self, id: PeerId) -> Culprit {
        Culprit {
            peer: id,
            host: Host::new(self.remote.to_canonical().to_string()),
            name: self.info.name.clone(),
        }
    }

    /// Identity, name and address in one phrase, for sentences.
    pub(super) fn name(&self, id: PeerId) -> String {
        Named(id, &self.info.name, &self.remote.to_canonical().to_string()).to_string()
    }

    /// Whether others reach this peer under different hosts, see [`Peer::host_for`].
    pub(super) fn host_depends_on_viewer(&self) -> bool {
        self.info.advertised_host.is_none() && self.remote.to_canonical().is_loopback()
    }

    /// What [`Peer::host_for`] makes of this peer as the viewer.
    pub(super) fn view(&self) -> Option<IpAddr> {
        (!self.remote.to_canonical().is_loopback()).then(|| self.local.to_canonical())
    }

    /// Host under which `viewer` reaches this peer.
    ///
    /// A peer that reached the master over loopback lives on the master's machine. Others reach that machine under the
    /// address under which they reach the master.
    pub(super) fn host_for(&self, viewer: &Self) -> Host {
        if let Some(host) = &self.info.advertised_host {
            return host.clone();
        }
        let seen = viewer.view().filter(|_| self.host_depends_on_viewer());
        Host::new(seen.unwrap_or(self.remote.to_canonical()).to_string())
    }
}
