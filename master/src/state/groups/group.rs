//! Facts about one peer group, each kind in a part of its own.

use super::connectivity::Net;
use super::edges::{EdgeEnds, ring_of};
use super::formed::Formed;
use super::losses::{BrokenEdge, GivenUp, Loss};
use crate::state::membership::members::Roll;
use crate::state::membership::reachability::Check;
use crate::state::operations::work::Work;
use crate::state::optimise::plans::Better;
use crate::state::shared_state::fetches::Fetches;
use crate::state::shared_state::serving::{Agreed, Content};
use crate::state::types::Timestamp;
use pccl_protocol::{
    Algorithm, CollectiveId, CollectiveKind, Descriptor, GroupEpoch, LinkGeneration, OpFault, OpId, Pair,
    PeerId, Purpose, RequestId, Revision, SourceFault, StateEntry, SyncId, SyncStrategy, Tag, Text,
    TooFewPeers, VoteRef,
};
use std::collections::{BTreeMap, BTreeSet};

/// A vote to complete a collective.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Completion {
    pub(crate) fault: Option<OpFault>,
    pub(crate) at: Timestamp,
}

/// One attempt of a collective that has no outcome yet.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum Op {
    /// Votes to begin are collected.
    Voting {
        since: Timestamp,
        votes: BTreeMap<PeerId, Descriptor>,
        /// Members whose votes are missing.
        missing: BTreeSet<PeerId>,
        /// Voters that began early: their contributions are on their way, and some may have completed.
        begun: BTreeMap<PeerId, Participant>,
        /// A voter gave the attempt up before it began.
        given_up: Option<GivenUp>,
    },
    /// It runs; the participants are frozen.
    Running {
        since: Timestamp,
        kind: CollectiveKind,
        algorithm: Algorithm,
        participants: BTreeMap<PeerId, Participant>,
        /// Those of them that have not said that they are through.
        open: BTreeSet<PeerId>,
        lost: Vec<Loss>,
        /// A participant has reported a fault.
        faulty: bool,
        /// Bytes that lost participants had moved.
        lost_bytes: u64,
        /// Most bytes that one participant can move for this operation. A beat counts all operations together and may
        /// be a second old, so what it says is cut to this.
        most_bytes: u64,
        /// Edges that it runs on and that were judged broken, in this order. One that stood still ends the attempt. The
        /// others explain what their ring's replacement breaks for those who still move data.
        broken: Vec<BrokenEdge>,
        /// The generation of its edge, if it is between two members.
        edge: Option<LinkGeneration>,
        /// A participant gave it up.
        given_up: Option<GivenUp>,
    },
}

/// A living participant of a collective that has begun, for all or for itself.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Participant {
    /// Bytes that it had moved, over all operations, when this one began.
    pub(crate) base_bytes: u64,
    /// Bytes that it reported for this operation.
    pub(crate) reported_bytes: Option<u64>,
    pub(crate) complete: Option<Completion>,
}

impl Op {
    /// Its attempt `id` with the kind of collective: where the votes differ, the kind of the first one.
    pub(crate) fn named(&self, id: OpId) -> CollectiveId {
        let kind = match self {
            Self::Voting { votes, .. } => {
                votes.values().next().map_or(CollectiveKind::AllReduce, Descriptor::kind)
            }
            Self::Running { kind, .. } => *kind,
        };
        CollectiveId { kind, op: id }
    }

    /// The peers that have this attempt in flight.
    pub(crate) fn involved(&self) -> impl Iterator<Item = PeerId> {
        let (voters, participants) = match self {
            Self::Voting { votes, .. } => (Some(votes.keys()), None),
            Self::Running { participants, .. } => (None, Some(participants.keys())),
        };
        voters.into_iter().flatten().chain(participants.into_iter().flatten()).copied()
    }

    /// Whether `peer` has this attempt in flight.
    pub(crate) fn involves(&self, peer: PeerId) -> bool {
        match self {
            Self::Voting { votes, .. } => votes.contains_key(&peer),
            Self::Running { participants, .. } => participants.contains_key(&peer),
        }
    }
}

/// A vote to begin a sync.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct SyncVote {
    pub(crate) request: RequestId,
    pub(crate) revision: Revision,
    pub(crate) strategy: SyncStrategy,
    pub(crate) entries: Vec<StateEntry>,
}

/// A sync without outcome.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum Sync {
    /// Votes are collected.
    Voting {
        since: Timestamp,
        epoch: GroupEpoch,
        votes: BTreeMap<PeerId, SyncVote>,
        /// A voter gave it up before all had voted.
        given_up: Option<GivenUp>,
    },
    /// Content is elected; those who need it fetch it.
    Running {
        since: Timestamp,
        sync: SyncId,
        revision: Revision,
        /// The content that its voters will hold. Nothing in a formed group, which lends nothing.
        content: Content,
        voters: BTreeMap<PeerId, SyncVoter>,
        lost: Vec<Loss>,
        /// A voter gave it up.
        given_up: Option<GivenUp>,
    },
}

/// A living voter of a running sync.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct SyncVoter {
    pub(crate) request: RequestId,
    /// Peers that were named to it as sources, in this order.
    pub(crate) sources: Vec<PeerId>,
    /// Those that gave it what was missing.
    pub(crate) gave: Vec<PeerId>,
    pub(crate) report: VoterReport,
}

/// The report of a voter of a running sync.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum VoterReport {
    /// Nothing yet.
    Awaited,
    /// It has everything.
    Ready,
    /// It could not get what it needs.
    Failed {
        text: Text,
        at: Timestamp,
        /// Sources that failed it, as far as they were alive then.
        failures: Vec<(PeerId, SourceFault)>,
        /// Sources that were silent then, which explains the failure.
        silent: Vec<PeerId>,
    },
}

impl VoterReport {
    /// The sources that failed it, whether they were silent then or not.
    pub(crate) fn failed_sources(&self) -> impl Iterator<Item = PeerId> {
        let (failures, silent) = match self {
            Self::Failed { failures, silent, .. } => (&failures[..], &silent[..]),
            Self::Awaited | Self::Ready => (&[][..], &[][..]),
        };
        failures.iter().map(|one| one.0).chain(silent.iter().copied())
    }
}

impl SyncVoter {
    /// One that has reported nothing.
    pub(crate) const fn new(request: RequestId) -> Self {
        Self { request, sources: Vec::new(), gave: Vec::new(), report: VoterReport::Awaited }
    }
}

impl Sync {
    /// One that is about to fail without a plan.
    pub(crate) fn refused(since: Timestamp, sync: SyncId, voters: BTreeMap<PeerId, SyncVoter>) -> Self {
        let (revision, content, lost) = (Revision(0), Content::default(), Vec::new());
        Self::Running { since, sync, revision, content, voters, lost, given_up: None }
    }

    /// Whether `peer` waits for this sync.
    pub(crate) fn involves(&self, peer: PeerId) -> bool {
        match self {
            Self::Voting { votes, .. } => votes.contains_key(&peer),
            Self::Running { voters, .. } => voters.contains_key(&peer),
        }
    }
}

/// Facts about one group. It exists while it has members in a ring.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Group {
    /// The present epoch; 0 before the first ring.
    pub(crate) epoch: GroupEpoch,
    /// The members in the order of the ring.
    pub(crate) ring: Vec<PeerId>,
    pub(crate) net: Net,
    pub(crate) next: NextRing,
    pub(crate) reach: Reach,
    pub(crate) work: Work,
    pub(crate) shared: SharedState,
    /// Its members were given, and it has a ring of no others.
    pub(crate) formed: Option<Formed>,
}

/// The facts about the next ring of a group.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct NextRing {
    /// A new plan is needed although the members are the same.
    pub(crate) is_due: bool,
    /// The order that it is to have, if its members are these.
    pub(crate) order: Option<Vec<PeerId>>,
    /// A better ring than the present one.
    pub(crate) better: Option<Better>,
}

/// Whom the members of a group reach.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Reach {
    /// They are being asked.
    pub(crate) check: Option<Check>,
    /// The last ring whose members were asked because it did not stand in time.
    pub(crate) overdue_checked: GroupEpoch,
}

/// The shared state of a group.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct SharedState {
    pub(crate) sync: Option<Sync>,
    /// The last revision that all members held.
    pub(crate) committed: Option<Revision>,
    /// Those who held it when it was committed, as far as they live.
    pub(crate) holders: BTreeSet<PeerId>,
    pub(crate) fetches: Fetches,
    /// The state that the last committed sync has agreed on, and the members that lend it.
    pub(crate) agreed: Option<Agreed>,
    /// The epoch in which all members were at the same place of the program: in a sync that was committed, or told to
    /// go back to one.
    pub(crate) together_in: Option<GroupEpoch>,
}

impl SharedState {
    /// The sync that runs after its election.
    pub(crate) const fn running(&self) -> Option<SyncId> {
        match &self.sync {
            Some(Sync::Running { sync, .. }) => Some(*sync),
            Some(Sync::Voting { .. }) | None => None,
        }
    }

    /// Whatever was committed does not count any more.
    pub(crate) fn void(&mut self) {
        (self.committed, self.holders, self.agreed) = (None, BTreeSet::new(), None);
    }

    /// Whether a sync waits for a sign of life of sources that failed somebody.
    pub(crate) fn has_failed_fetches(&self) -> bool {
        let failed = |voter: &SyncVoter| matches!(voter.report, VoterReport::Failed { .. });
        matches!(&self.sync, Some(Sync::Running { voters, .. }) if voters.values().any(failed))
    }
}

impl Group {
    /// A new epoch, of the same ring or of another one.
    pub(crate) fn begin_epoch(&mut self) {
        self.epoch = GroupEpoch(self.epoch.0 + 1);
    }

    /// From the present epoch on attempts are counted anew.
    pub(crate) fn count_anew(&mut self) {
        self.work.count_from(self.epoch);
    }

    /// Whether something that waits for a moment in which nothing runs may go on.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.work.ops.any_runs() && (self.next.better.is_some() || self.net.mesh.has_faults())
    }

    /// Edges of the ring, in its order.
    pub(crate) fn ring_ends(&self) -> impl Iterator<Item = EdgeEnds> {
        ring_of(&self.ring)
    }

    /// Whether these are its members, in any order.
    pub(crate) fn has_members(&self, peers: &[PeerId]) -> bool {
        peers.len() == self.ring.len() && self.ring.iter().all(|peer| peers.contains(peer))
    }

    /// Members as a set.
    pub(crate) fn members(&self) -> BTreeSet<PeerId> {
        self.ring.iter().copied().collect()
    }

    /// Members that have not voted.
    pub(crate) fn members_without(&self, has_voted: impl Fn(PeerId) -> bool) -> Vec<PeerId> {
        self.ring.iter().copied().filter(|peer| !has_voted(*peer)).collect()
    }

    /// How many votes an operation needs to begin.
    pub(crate) fn votes_for(&self, tag: Tag) -> usize {
        match tag.pair {
            None => self.ring.len(),
            Some(Pair { from, to }) => [from, to].iter().filter(|end| self.ring.contains(end)).count(),
        }
    }

    /// Whether all edges of the ring stand, at newcomers too, and nothing is held against any of them.
    pub(crate) fn ring_confirmed(&self, roll: &Roll) -> bool {
        self.net.edges.all_up(Purpose::Ring)
            && !self.net.edges.ring_is_doubtful()
            && self.ring.iter().all(|peer| roll.peers.contains_key(peer))
    }

    /// Whether no newcomer is in the ring.
    pub(crate) fn all_accepted(&self, roll: &Roll) -> bool {
        self.ring.iter().all(|id| roll.is_accepted(*id))
    }

    /// Whether a collective may begin: the ring stands and consists of voters only.
    pub(crate) fn ring_ready(&self, roll: &Roll) -> bool {
        self.ring_confirmed(roll) && self.all_accepted(roll)
    }

    /// The answer for a vote that cannot count because peers are missing: `in_group` are needed in the group, and the
    /// least size of the run in the world.
    pub(crate) fn too_few(&self, roll: &Roll, vote: VoteRef, in_group: u32) -> Option<TooFewPeers> {
        let (have, need, need_in_group) = self.few(roll, in_group)?;
        Some(TooFewPeers { vote, have, need, need_in_group })
    }

    /// Whether there are too few peers: how many there are, how many are needed, and whether the group is too small.
    pub(crate) fn few(&self, roll: &Roll, in_group: u32) -> Option<(u32, u32, bool)> {
        // Its list says how many are needed.
        if self.formed.is_some() {
            return None;
        }
        let (have, need) = (roll.accepted_count(), roll.options.min_world_size);
        if have < need {
            return Some((have, need, false));
        }
        let here = self.ring.iter().filter(|peer| roll.is_accepted(**peer)).count();
        let have = u32::try_from(here).unwrap_or(u32::MAX);
        (have < in_group).then_some((have, in_group, true))
    }

    /// Whether the only member wants its collectives done all the same.
    pub(crate) fn may_be_alone(&self, roll: &Roll) -> bool {
        let wants = |id: &PeerId| roll.peers.get(id).is_some_and(|peer| peer.info.alone);
        self.ring.len() == 1 && self.ring.iter().all(wants)
    }

    /// For the log: how large operations go, if not around the ring.
    pub(crate) fn describe_schedule(&self) -> String {
        let (schedule, nobody) = (self.net.large(), BTreeMap::new());
        let shares = match schedule {
            Algorithm::Ring => return String::new(),
            Algorithm::Sites => &nobody,
            _ => &self.net.shares,
        };
        let all: f64 = shares.values().map(|share| f64::from(*share)).sum();
        let owners = self.ring.iter().filter_map(|peer| Some((*peer, shares.get(peer)?)));
        let shares: Vec<String> = owners
            .map(|(peer, share)| format!("{peer} owns {:.1} %", 100.0 * f64::from(*share) / all))
            .collect();
        let colon = if shares.is_empty() { "" } else { ": " };
        format!(", large operations go {}{colon}{}", schedule.in_words(), shares.join(", "))
    }
}
