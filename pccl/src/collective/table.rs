//! Which attempts are under way: how a link's threads find the operation of a frame, and how packets of the master find
//! theirs.

use super::{attempt::Attempt, early::EarlyFrames, op::Op, slot::Slot};
use parking_lot::Mutex;
use pccl_protocol::{GroupEpoch, GroupPlan, OpId, Pair, Paths, PeerId, Tag};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};
use tinysockets::link::{Directory, EarlyFrame, Lookup, OpKey, Violation};

/// The attempts of one communicator, and the ring that new ones run on.
#[derive(Debug, Default)]
pub(crate) struct OpTable {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    epoch: GroupEpoch,
    ring: Option<Arc<GroupPlan>>,
    rank: usize,
    /// Outcomes of each tag since [`GroupPlan::counted_since`].
    outcomes: BTreeMap<Tag, u32>,
    active: BTreeMap<OpId, Entry>,
    early: EarlyFrames,
}

#[derive(Debug, Clone)]
struct Entry {
    op: Weak<Op>,
    attempt: Arc<Attempt>,
    /// It can take frames.
    is_open: bool,
}

impl Inner {
    /// The first epoch whose attempts count.
    fn counted_since(&self) -> GroupEpoch {
        self.ring.as_ref().map_or_else(GroupEpoch::default, |plan| plan.counted_since)
    }
}

impl Inner {
    /// The identity of the next attempt of a tag.
    fn next_id(&self, tag: Tag) -> OpId {
        OpId { epoch: self.epoch, tag, attempt: self.outcomes.get(&tag).copied().unwrap_or(0) }
    }

    /// The peers that take part in the next attempt of a tag, and its identity.
    fn slot(&self, tag: Tag) -> Option<Slot> {
        let (plan, id) = (self.ring.clone()?, self.next_id(tag));
        Some(match tag.pair {
            None => {
                let ring = plan.members.iter().map(|member| member.peer).collect();
                Slot { id, ring, rank: self.rank, paths: plan.paths, plan }
            }
            Some(Pair { from, to }) => {
                let rank = usize::from(plan.members.get(self.rank)?.peer == to);
                Slot { id, ring: vec![from, to], rank, paths: Paths::default(), plan }
            }
        })
    }
}

impl OpTable {
    /// Installs the ring of a newer epoch. `false`: the plan is old, or this peer is not in it.
    pub(crate) fn install(&self, plan: Arc<GroupPlan>, me: PeerId) -> bool {
        let Some(rank) = plan.rank_of(me) else { return false };
        let mut inner = self.inner.lock();
        if inner.ring.is_some() && plan.epoch <= inner.epoch {
            return false;
        }
        inner.epoch = plan.epoch;
        inner.rank = rank;
        if inner.counted_since() != plan.counted_since {
            inner.outcomes.clear();
        }
        inner.early.begin_epoch(plan.epoch);
        inner.ring = Some(plan);
        true
    }

    /// The newest plan.
    pub(crate) fn plan(&self) -> Option<Arc<GroupPlan>> {
        self.inner.lock().ring.clone()
    }

    /// The epochs of which attempts are under way.
    pub(crate) fn epochs(&self) -> BTreeSet<GroupEpoch> {
        self.inner.lock().active.keys().map(|id| id.epoch).collect()
    }

    /// Whether data of an operation moves, or is about to.
    pub(crate) fn moves_data(&self) -> bool {
        // Not under the lock: each operation has one of its own.
        let ops: Vec<_> = self.inner.lock().active.values().map(|entry| entry.op.clone()).collect();
        ops.iter().filter_map(Weak::upgrade).any(|op| op.is_running())
    }

    /// Whether `peer` is in the present ring.
    pub(crate) fn has_member(&self, peer: PeerId) -> bool {
        self.inner.lock().ring.as_ref().is_some_and(|ring| ring.rank_of(peer).is_some())
    }

    /// Whether there is, or was, a ring.
    pub(crate) fn has_ring(&self) -> bool {
        self.inner.lock().ring.is_some()
    }

    /// The present epoch.
    pub(crate) fn epoch(&self) -> GroupEpoch {
        self.inner.lock().epoch
    }

    /// Makes an attempt for `tag` and registers it for the epoch that it was made for. It receives frames from
    /// [`OpTable::open`] on. `make` copies and encodes, so it runs outside of the lock that receiving threads take, and
    /// again if a newer ring comes meanwhile. `None`: there is no ring yet.
    pub(crate) fn register(
        &self,
        op: &Arc<Op>,
        tag: Tag,
        mut make: impl FnMut(&Slot) -> Arc<Attempt>,
    ) -> Option<Arc<Attempt>> {
        loop {
            let slot = self.inner.lock().slot(tag)?;
            let attempt = make(&slot);
            let mut inner = self.inner.lock();
            if inner.next_id(tag) == slot.id {
                let op = Arc::downgrade(op);
                inner.active.insert(slot.id, Entry { op, attempt: attempt.clone(), is_open: false });
                return Some(attempt);
            }
        }
    }

    /// From now on the frames of a registered attempt can be received. Returns those that came early; `None`: of those
    /// some were thrown away.
    pub(crate) fn open(&self, id: OpId) -> Option<Vec<EarlyFrame>> {
        let mut inner = self.inner.lock();
        if let Some(entry) = inner.active.get_mut(&id) {
            entry.is_open = true;
        }
        let frames = inner.early.take(id);
        (!inner.early.has_lost(id)).then_some(frames)
    }

    /// The operation that an attempt belongs to.
    pub(crate) fn op(&self, id: OpId) -> Option<Arc<Op>> {
        self.inner.lock().active.get(&id)?.op.upgrade()
    }

    /// Takes an attempt out. If it had an outcome, the next attempt of its tag has the next number.
    pub(crate) fn retire(&self, id: OpId, had_outcome: bool) {
        let mut inner = self.inner.lock();
        inner.active.remove(&id);
        if had_outcome && inner.counted_since() <= id.epoch {
            let count = inner.outcomes.entry(id.tag).or_insert(0);
            *count = (*count).max(id.attempt + 1);
        }
        if had_outcome {
            inner.early.decided(id);
        }
    }

    /// Every operation that is registered.
    pub(crate) fn all(&self) -> Vec<Arc<Op>> {
        self.inner.lock().active.values().filter_map(|entry| entry.op.upgrade()).collect()
    }

    /// Takes an early frame from a neighbour.
    fn keep(&self, from: PeerId, id: OpId, frame: EarlyFrame) -> Result<(), Violation> {
        let mut inner = self.inner.lock();
        match inner.find(id) {
            Lookup::Unknown => inner.early.keep(from, id, frame),
            Lookup::Retired => Ok(()),
            Lookup::Active(attempt) => {
                drop(inner);
                frame.hand_over(&*attempt)
            }
        }
    }
}

impl Inner {
    fn find(&self, id: OpId) -> Lookup {
        if let Some(entry) = self.active.get(&id) {
            return if entry.is_open { Lookup::Active(entry.attempt.clone()) } else { Lookup::Unknown };
        }
        let outcomes = self.outcomes.get(&id.tag).copied().unwrap_or(0);
        if id.epoch < self.epoch || (id.epoch == self.epoch && id.attempt < outcomes) {
            Lookup::Retired
        } else {
            Lookup::Unknown
        }
    }
}

/// The table as the link from one peer sees it.
#[derive(Debug)]
pub(crate) struct LinkDirectory {
    table: Arc<OpTable>,
    ends: Pair,
}

impl LinkDirectory {
    /// A view for the link between these two.
    pub(crate) fn new(table: Arc<OpTable>, ends: Pair) -> Self {
        Self { table, ends }
    }

    fn id_of(&self, op: &OpKey) -> OpId {
        let tag = Tag { number: op.tag, pair: op.pair.then_some(self.ends), track: op.track };
        OpId { epoch: GroupEpoch(op.epoch), tag, attempt: op.attempt }
    }
}

impl Directory for LinkDirectory {
    fn find(&self, op: &OpKey) -> Lookup {
        self.table.inner.lock().find(self.id_of(op))
    }

    fn keep(&self, frame: EarlyFrame) -> Result<(), Violation> {
        self.table.keep(self.ends.from, self.id_of(&frame.header().op), frame)
    }
}
