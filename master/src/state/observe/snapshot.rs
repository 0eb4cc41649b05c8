//! A plain picture of the state, for a status line and for tests; and what must always hold.

use crate::state::MasterState;
use crate::state::groups::group::{Op, Sync};
use crate::state::membership::sender::Phase;
use crate::state::types::ClientKey;
use pccl_protocol::{
    Algorithm, GroupEpoch, GroupId, LinkGeneration, OpId, PeerId, Revision, SyncId, WorldEpoch,
};
use std::collections::BTreeSet;

/// How far a peer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerPhase {
    /// Waits for admission.
    Pending,
    /// In a ring that is being connected.
    Connecting,
    /// Full member.
    Accepted,
}

/// One registered peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer.
    pub peer: PeerId,
    /// Its connection.
    pub client: ClientKey,
    /// Its group.
    pub group: GroupId,
    /// How far it has come.
    pub phase: PeerPhase,
    /// It has voted for a topology round.
    pub topology_vote: bool,
    /// It has voted for the pending query.
    pub pending_vote: bool,
    /// It has voted to optimise.
    pub optimize_vote: bool,
}

/// One group with members in a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// The group.
    pub group: GroupId,
    /// Its epoch.
    pub epoch: GroupEpoch,
    /// Members in ring order.
    pub ring: Vec<PeerId>,
    /// Generation of the edge behind each member.
    pub generations: Vec<LinkGeneration>,
    /// All members confirmed this ring.
    pub confirmed: bool,
    /// Collectives whose votes are being collected.
    pub voting: Vec<OpId>,
    /// Collectives that run.
    pub running: Vec<OpId>,
    /// Tags that were used in this epoch, and outcomes that are kept because somebody may not know them.
    pub history: usize,
    /// The sync that runs after its election, if any.
    pub sync: Option<SyncId>,
    /// Whether votes for a sync are being collected.
    pub sync_voting: bool,
    /// The last committed revision.
    pub committed: Option<Revision>,
}

/// The state at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Epoch of the world.
    pub world_epoch: WorldEpoch,
    /// Connections that have not registered.
    pub unregistered: usize,
    /// A round of admission runs.
    pub round: bool,
    /// An optimisation runs.
    pub optimizing: bool,
    /// Groups of given members that are being formed.
    pub forming: usize,
    /// Edges of which something was measured.
    pub measured: usize,
    /// Rings that are being planned.
    pub planning: usize,
    /// Number of the last sync.
    pub last_sync: SyncId,
    /// Registrations so far.
    pub registrations: u64,
    /// Registered peers.
    pub peers: Vec<PeerStatus>,
    /// Groups.
    pub groups: Vec<GroupStatus>,
}

impl MasterState {
    /// A picture of the state.
    pub fn snapshot(&self) -> Snapshot {
        let peers = self.roll.peers.iter().map(|(id, peer)| PeerStatus {
            peer: *id,
            client: peer.client,
            group: peer.group(),
            phase: match peer.phase() {
                Phase::Pending => PeerPhase::Pending,
                Phase::Connecting => PeerPhase::Connecting,
                Phase::Accepted => PeerPhase::Accepted,
            },
            topology_vote: peer.topology().is_some(),
            pending_vote: peer.query().is_some(),
            optimize_vote: peer.optimize().is_some(),
        });
        let groups = self.groups.iter().map(|(id, group)| GroupStatus {
            group: *id,
            epoch: group.epoch,
            ring: group.ring.to_vec(),
            generations: group
                .ring_ends()
                .filter_map(|ends| Some(group.net.edges.get(ends)?.generation))
                .collect(),
            confirmed: group.ring_confirmed(&self.roll),
            voting: ops(group, |op| matches!(op, Op::Voting { .. })),
            running: ops(group, |op| matches!(op, Op::Running { .. })),
            history: group.work.history.len(),
            sync: group.shared.running(),
            sync_voting: matches!(group.shared.sync, Some(Sync::Voting { .. })),
            committed: group.shared.committed,
        });
        Snapshot {
            world_epoch: self.roll.world_epoch,
            unregistered: self.roll.strangers().count(),
            round: self.admission.round.is_some(),
            optimizing: self.optimizer.is_running(),
            forming: self.formings.len(),
            measured: self.measured.len(),
            planning: self.plans.len(),
            last_sync: self.last_sync,
            registrations: self.roll.registrations,
            peers: peers.collect(),
            groups: groups.collect(),
        }
    }

    /// Asserts what must hold between two inputs. For tests.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn check_invariants(&self) {
        for (id, peer) in &self.roll.peers {
            let client = self.roll.clients.get(&peer.client).map(|client| client.peer);
            assert_eq!(client, Some(Some(*id)), "peer {id} has lost its connection");
            let connecting = peer.phase() == Phase::Connecting;
            assert!(
                !connecting || peer.info.formed || self.admission.round.is_some(),
                "peer {id} connects, but no round runs"
            );
            let votes = peer.topology().is_some() || peer.query().is_some() || peer.optimize().is_some();
            assert!(!votes || peer.has_a_say(), "peer {id} votes without being accepted");
        }
        let optimizes = self.optimizer.is_running();
        assert!(!optimizes || self.admission.round.is_none(), "a round and an optimisation run at once");
        let all = self.roll.peers.values().filter(|p| p.has_a_say()).all(|p| p.optimize().is_some());
        assert!(!optimizes || all, "an optimisation runs without the vote of an accepted peer");
        let registered = self.roll.clients.values().filter(|client| client.peer.is_some()).count();
        assert_eq!(registered, self.roll.peers.len(), "a connection belongs to a peer that is not there");
        for (id, group) in self.groups.iter() {
            let ring: BTreeSet<PeerId> = group.ring.iter().copied().collect();
            let members =
                self.roll.peers.iter().filter(|(_, p)| p.group() == *id && p.phase() != Phase::Pending);
            let members: BTreeSet<PeerId> = members.map(|(peer, _)| *peer).collect();
            assert_eq!(ring, members, "group {id} has a ring of other peers than its members");
            assert_eq!(ring.len(), group.ring.len(), "a member stands twice in the ring of group {id}");
            assert!(!group.ring.is_empty() && !group.next.is_due, "group {id} waits for a plan");
            assert!(
                group.net.large() == Algorithm::Ring || group.net.has_mesh(),
                "group {id} has no edges for its schedule"
            );
            let shares = &group.net.shares;
            let is_shared = shares.keys().copied().collect::<BTreeSet<_>>() == ring
                && shares.values().any(|share| *share > 0);
            assert!(shares.is_empty() || is_shared, "group {id} has shares of others, or none that count");
            for (op, state) in group.work.ops.iter() {
                let mut peers = self.roll.peers.keys().filter(|peer| state.involves(**peer));
                assert!(peers.next().is_some(), "{op} belongs to nobody");
                let voting = matches!(state, Op::Voting { .. });
                assert!(!voting || op.epoch == group.epoch, "{op} is voted for in an old epoch");
            }
            let servers = group.shared.agreed.iter().flat_map(|agreed| agreed.servers());
            for server in servers {
                assert!(ring.contains(server), "{server} lends what is of group {id}, and is not there");
            }
            if let Some(sync) = &group.shared.sync {
                assert!(
                    ring.iter().any(|peer| sync.involves(*peer)),
                    "the sync of group {id} belongs to nobody"
                );
            }
        }
        let grouped = self.roll.peers.values().filter(|peer| peer.phase() != Phase::Pending);
        for peer in grouped {
            assert!(self.groups.contains_key(&peer.group()), "group {} is missing", peer.group());
        }
        let mut others = self.roll.peers.values().filter(|peer| !peer.info.formed).peekable();
        assert!(
            others.peek().is_none()
                || others.any(|peer| {
                    peer.phase() != Phase::Pending
                        || peer.is_to_be_tested(self.roll.options.require_reachable)
                }),
            "everybody waits for admission and nobody can vote for it"
        );
    }
}

fn ops(group: &crate::state::groups::group::Group, wanted: impl Fn(&Op) -> bool) -> Vec<OpId> {
    group.work.ops.iter().filter(|(_, op)| wanted(op)).map(|(id, _)| *id).collect()
}
