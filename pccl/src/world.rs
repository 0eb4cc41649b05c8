//! The run as a caller sees it, and the knowledge of this peer about it and itself.

use crate::{relay::Relay, tickets::Wallet, ways::Ways};
use parking_lot::Mutex;
use pccl_hash::Tree;
use pccl_protocol::{Allegiance, GroupPlan, PeerId, Registered, RunId, WireMode, WorldSizes};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

/// The run as it was when the master answered the last call of this communicator that agrees with others (`connect`,
/// `update_topology`, `wait_for_world`, an all-reduce, a sync). Events after that answer show only after the next call,
/// so that all peers that got the same answer see the same, and those that branch on it branch alike. After a
/// collective that succeeds it is the run in which that began, with those who took part, if somebody was lost before
/// the answer came. All sizes count accepted peers only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct World {
    /// Peers in the run.
    pub global_size: usize,
    /// Peers in the own group.
    pub group_size: usize,
    /// Groups with at least one peer.
    pub groups: usize,
    /// Size of the largest group.
    pub largest_group: usize,
    /// Peers that the run needs; below it collectives and syncs return `TooFewPeers`.
    pub min_world_size: usize,
    /// Own position in [`World::ring`].
    pub rank: usize,
    /// The own group in the order in which data flows; the index is the rank.
    pub ring: Vec<PeerId>,
}

/// A world, and how many pieces of news led to it: of two of one session, the one with more is newer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) world: World,
    news: u64,
}

impl Known {
    pub(crate) fn apply_sizes(&mut self, sizes: &WorldSizes) {
        self.world.apply_sizes(sizes);
        self.news += 1;
    }

    pub(crate) fn apply_plan(&mut self, plan: &GroupPlan, rank: usize) {
        self.world.apply_plan(plan, rank);
        self.news += 1;
    }

    /// Whether this is what came out of `other` by more news.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        self.news > other.news
    }
}

impl World {
    fn apply_sizes(&mut self, sizes: &WorldSizes) {
        self.global_size = sizes.global as usize;
        self.group_size = sizes.group as usize;
        self.groups = sizes.groups as usize;
        self.largest_group = sizes.largest_group as usize;
        self.min_world_size = sizes.min_world as usize;
    }

    fn apply_plan(&mut self, plan: &GroupPlan, rank: usize) {
        self.apply_sizes(&plan.sizes);
        self.ring = plan.members.iter().map(|member| member.peer).collect();
        self.rank = rank;
    }
}

/// The identity of this peer in the run, and the statements of the master about the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) run: RunId,
    pub(crate) peer: PeerId,
    /// A peer that is silent for this long is dropped.
    pub(crate) peer_timeout: Duration,
    /// How bulk data travels, in a run with a key.
    pub(crate) wire: WireMode,
    /// The master goes on after its death: where nobody listens it will be again.
    pub(crate) comes_back: bool,
}

impl Identity {
    /// That of a peer that has been registered.
    pub(crate) fn new(registered: &Registered) -> Self {
        let peer_timeout = Duration::from_millis(registered.peer_timeout_ms.clamp(10, 86_400_000));
        let wire = registered.wire.unwrap_or_default();
        let comes_back = registered.comes_back;
        Self { run: registered.run, peer: registered.peer, peer_timeout, wire, comes_back }
    }
}

/// The facts that the master has told this peer in one session: its identity, and the run as it is now.
#[derive(Debug, Default)]
pub(crate) struct Told {
    identity: OnceLock<Identity>,
    /// To which master it belongs.
    pub(crate) allegiance: Mutex<Allegiance>,
    world: Mutex<Arc<Known>>,
    /// The world with the answer to the last call that goes alone, until that call takes it.
    answer_world: Mutex<Option<Arc<Known>>>,
    /// The tickets that it gave to connect to others with.
    pub(crate) wallet: Wallet,
    /// The findings about the addresses that it told.
    pub(crate) ways: Arc<Ways>,
    /// The way to the relay, if the master has one.
    pub(crate) relay: OnceLock<Relay>,
    /// By which digests shared state is voted on.
    tree: OnceLock<Tree>,
}

impl Told {
    /// Identity in the run; only after registration.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.identity.get().copied()
    }

    /// This peer has been registered.
    pub(crate) fn registered(&self, registered: &Registered) {
        let tree = registered.state_key.as_ref().map_or(Tree::Plain, |key| Tree::keyed(*key.bytes()));
        let _ = self.tree.set(tree);
        let _ = self.identity.set(Identity::new(registered));
    }

    /// By which digests shared state is voted on, in syncs, loans and what newcomers fetch.
    pub(crate) fn tree(&self) -> Tree {
        self.tree.get().cloned().unwrap_or_default()
    }

    /// The world as the master last described it.
    pub(crate) fn world(&self) -> Arc<Known> {
        self.world.lock().clone()
    }

    /// Takes in news of the run.
    pub(crate) fn learn(&self, apply: impl FnOnce(&mut Known)) {
        apply(Arc::make_mut(&mut self.world.lock()));
    }

    /// Notes the world as it is with the answer to a call that goes alone: what happens between the answer and the
    /// moment in which the caller runs again is not for this call.
    pub(crate) fn answered(&self) {
        *self.answer_world.lock() = Some(self.world());
    }

    /// The world with the answer to the call that goes alone; none if that call was not answered.
    pub(crate) fn take_answer_world(&self) -> Option<Arc<Known>> {
        self.answer_world.lock().take()
    }
}
