//! The model of a client process: what it knows. How it acts is in `calls` and `links`.

use crate::ahead::{Fetching, Lent};
use pccl_protocol::*;
use std::collections::{BTreeMap, BTreeSet};

/// A directed edge with its generation.
pub(crate) type EdgeKey = (PeerId, PeerId, LinkGeneration);

/// Whether the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Power {
    /// No process.
    Down,
    Up,
    /// Stopped; it will go on.
    Paused,
    /// The host is gone; nobody was told.
    Vanished,
}

/// Which call the caller's thread is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Connecting,
    Thinking,
    Pending(RequestId),
    Topology(RequestId, u32),
    /// An optimisation; whether a round of admission follows.
    Optimizing(RequestId, bool),
    /// A sync vote that is not answered.
    SyncVoting(RequestId),
    /// A sync whose plan has arrived.
    Syncing {
        request: RequestId,
        sync: SyncId,
        fetched: bool,
    },
    Reducing,
    Leaving,
}

/// A caller that calls `update_topology` or `optimize_topology` where the others do something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrongCall {
    No,
    /// Instead of its next sync, or of its next collectives.
    Due,
    /// It is there; whether the sync is to follow, or the collectives.
    InsteadOfSync,
    InsteadOfCollectives,
}

/// One tag of the running step.
#[derive(Debug, Clone)]
pub(crate) struct TagWork {
    pub(crate) op: OpId,
    /// How it is to go, by the plan.
    pub(crate) algorithm: Algorithm,
    pub(crate) stage: TagStage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TagStage {
    Voting,
    /// Runs on the edges given: those of the ring, inbound and outbound, and those of the mesh if it goes over that.
    Running {
        algorithm: Algorithm,
        edges: Vec<EdgeKey>,
        members: Vec<PeerId>,
    },
    /// Voted complete; whether without fault.
    Completed(bool),
    /// Over for this step; whether it has the result.
    Finished(bool),
}

/// A tensor of the model state: name, whether contents may differ, content.
pub(crate) const KEYS: [(&str, bool); 3] = [("bias", false), ("rng", true), ("weight", false)];

/// One process slot. A slot lives several lives.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) life: u32,
    pub(crate) power: Power,
    pub(crate) hostile: bool,
    pub(crate) conn: Option<u64>,
    pub(crate) peer: Option<PeerId>,
    pub(crate) before: Option<PreviousIdentity>,
    pub(crate) group: GroupId,
    pub(crate) call: Call,
    pub(crate) next_request: u64,
    pub(crate) admitted: bool,
    pub(crate) sizes: WorldSizes,
    pub(crate) plan: Option<GroupPlan>,
    /// Edges of which the master knows that they stand at this end, or that they do not.
    pub(crate) said: BTreeMap<EdgeKey, bool>,
    pub(crate) attempts: BTreeMap<Tag, u32>,
    pub(crate) work: BTreeMap<Tag, TagWork>,
    pub(crate) serving: Option<SyncId>,
    pub(crate) sync_plan: Option<SyncPlan>,
    pub(crate) staged: Vec<FetchItem>,
    /// Sources that it has asked in vain in this sync.
    pub(crate) fetch_failures: Vec<SourceFailure>,
    /// Nobody can fetch state from it.
    pub(crate) state_closed: bool,
    /// It can fetch state from nobody.
    pub(crate) state_filtered: bool,
    /// Keys of the last sync vote whose contents may not differ.
    pub(crate) strict: BTreeSet<String>,
    pub(crate) synced: bool,
    pub(crate) popular_only: bool,
    pub(crate) first_sync: bool,
    pub(crate) revision: u64,
    pub(crate) content: BTreeMap<String, u128>,
    pub(crate) steps: u64,
    pub(crate) beats: u64,
    /// It has lived before and may bring a revision that its group does not know.
    pub(crate) returned: bool,
    /// It knows why its connection ends.
    pub(crate) told: bool,
    /// When the master was last heard.
    pub(crate) heard_at: u64,
    /// When the last beat was sent.
    pub(crate) beat_at: u64,
    /// The outbound edges on which bytes wait that do not move, and since when.
    pub(crate) stuck: BTreeMap<EdgeKey, u64>,
    /// Its data moves very slowly until then.
    pub(crate) slow_until: u64,
    /// Its caller is going to make another call than the others, or is in it.
    pub(crate) wrong_call: WrongCall,
    /// The state that the last sync has committed, if it has voted for no other one since, and whether it lends that.
    pub(crate) lent: Option<Lent>,
    /// It fetches the shared state before it is let in.
    pub(crate) fetching: Option<Fetching>,
    /// The probe that it makes.
    pub(crate) probes: Vec<ProbePlan>,
}

impl Client {
    pub(crate) fn new(group: GroupId) -> Self {
        Self {
            life: 0,
            power: Power::Down,
            hostile: false,
            conn: None,
            peer: None,
            before: None,
            group,
            call: Call::Connecting,
            next_request: 0,
            admitted: false,
            sizes: WorldSizes::default(),
            plan: None,
            said: BTreeMap::new(),
            attempts: BTreeMap::new(),
            work: BTreeMap::new(),
            serving: None,
            sync_plan: None,
            staged: Vec::new(),
            fetch_failures: Vec::new(),
            state_closed: false,
            state_filtered: false,
            strict: BTreeSet::new(),
            synced: false,
            popular_only: false,
            first_sync: true,
            revision: 0,
            content: KEYS.iter().map(|(key, _)| ((*key).to_owned(), 0)).collect(),
            steps: 0,
            beats: 0,
            returned: false,
            told: false,
            heard_at: 0,
            beat_at: 0,
            stuck: BTreeMap::new(),
            slow_until: 0,
            wrong_call: WrongCall::No,
            lent: None,
            fetching: None,
            probes: Vec::new(),
        }
    }

    /// The same slot with a new process, which may have kept its state.
    pub(crate) fn reborn(&self, keeps_state: bool) -> Self {
        let mut next = Self::new(self.group);
        next.life = self.life + 1;
        if keeps_state {
            next.revision = self.revision;
            next.content = self.content.clone();
            next.returned = self.life > 0;
        }
        next
    }

    pub(crate) fn running(&self) -> bool {
        self.power == Power::Up && self.conn.is_some()
    }

    pub(crate) fn request(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    pub(crate) fn epoch(&self) -> GroupEpoch {
        self.plan.as_ref().map_or(GroupEpoch(0), |plan| plan.epoch)
    }

    /// The first epoch of which attempts are counted.
    pub(crate) fn counted_since(&self) -> GroupEpoch {
        self.plan.as_ref().map_or(GroupEpoch(0), |plan| plan.counted_since)
    }

    /// The edges of the present ring that touch this peer: inbound and outbound. None if it is alone.
    pub(crate) fn edges(&self) -> Option<(EdgeKey, EdgeKey)> {
        let (plan, me) = (self.plan.as_ref()?, self.peer?);
        let key = |name: EdgeName| (name.from, name.to, name.generation);
        let inbound = plan.edges_for(Purpose::Ring).find(|name| name.to == me)?;
        let outbound = plan.edges_for(Purpose::Ring).find(|name| name.from == me)?;
        Some((key(inbound), key(outbound)))
    }

    /// Contents that must be equal on all peers after the sync that it voted for last.
    pub(crate) fn strict_content(&self) -> Vec<(String, u128)> {
        let all = self.content.iter().filter(|(key, _)| self.strict.contains(*key));
        all.map(|(key, value)| (key.clone(), *value)).collect()
    }
}
