//! The collectives of one group that have no outcome yet, and which of them the rules have to look at.
//!
//! An input touches few of the operations in flight, so the rules look at those only whose facts have changed since
//! they last did, and at those that time alone, or a sign of life of a peer, may change. The facts that all operations
//! depend on, such as whether the ring stands, are one value per group ([`Gate`]); when it changes, all are looked at.

use crate::state::groups::group::{Op, Participant};
use crate::state::types::Timestamp;
use pccl_protocol::{Descriptor, GroupEpoch, OpId, PeerId, TooFewPeers, VoteRef};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// The facts that all votes of a group depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Gate {
    pub(crate) epoch: GroupEpoch,
    /// The ring stands and consists of voters only.
    pub(crate) ready: bool,
    /// There are too few peers: how many there are, how many are needed, and whether the group or the world is too
    /// small.
    pub(crate) few: Option<(u32, u32, bool)>,
    /// Whether somebody who asks for the mesh by name may still get it.
    pub(crate) mesh_is_coming: bool,
}

impl Gate {
    /// The answer for a vote that cannot count because peers are missing.
    pub(crate) fn too_few(&self, op: OpId) -> Option<TooFewPeers> {
        let (have, need, need_in_group) = self.few?;
        Some(TooFewPeers { vote: VoteRef::Collective(op), have, need, need_in_group })
    }
}

/// Operations by their identity. Reads as a map; whatever changes one notes that.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ops {
    all: BTreeMap<OpId, Op>,
    /// Facts about these have changed since the rules looked at them.
    changed: BTreeSet<OpId>,
    /// Time alone, or a sign of life, may change what is to be done about these.
    timed: BTreeSet<OpId>,
    /// The operations that each peer has in flight.
    of: BTreeMap<PeerId, BTreeSet<OpId>>,
    running: usize,
    gate: Gate,
}

impl Deref for Ops {
    type Target = BTreeMap<OpId, Op>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Ops {
    /// Whether any of them runs.
    pub(crate) const fn any_runs(&self) -> bool {
        self.running > 0
    }

    /// The gate as it was when the rules last looked.
    pub(crate) const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// An operation whose facts are about to change.
    pub(crate) fn change(&mut self, id: OpId) -> Option<&mut Op> {
        let op = self.all.get_mut(&id)?;
        self.changed.insert(id);
        Some(op)
    }

    /// A peer votes for an operation, and takes part already if it has begun early. The first vote makes it, of these
    /// members.
    pub(crate) fn vote(
        &mut self,
        id: OpId,
        (by, descriptor): (PeerId, Descriptor),
        begun: Option<Participant>,
        now: Timestamp,
        members: impl FnOnce() -> BTreeSet<PeerId>,
    ) {
        self.changed.insert(id);
        let begin = || Op::Voting {
            since: now,
            votes: BTreeMap::new(),
            missing: members(),
            begun: BTreeMap::new(),
            given_up: None,
        };
        if let Op::Voting { votes, missing, begun: its, .. } = self.all.entry(id).or_insert_with(begin) {
            votes.insert(by, descriptor);
            its.extend(begun.map(|begun| (by, begun)));
            missing.remove(&by);
            self.of.entry(by).or_default().insert(id);
        }
    }

    /// The operations that a peer has in flight.
    pub(crate) fn of(&self, peer: PeerId) -> impl Iterator<Item = (OpId, &Op)> {
        let ids = self.of.get(&peer).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    /// The first operation that a peer has in flight.
    pub(crate) fn first_of(&self, peer: PeerId) -> Option<(OpId, &Op)> {
        self.of(peer).next()
    }

    /// A peer has gone: all that it had in flight changes.
    pub(crate) fn lose(&mut self, peer: PeerId, mut change: impl FnMut(&mut Op)) {
        for id in self.of.remove(&peer).unwrap_or_default() {
            if let Some(op) = self.all.get_mut(&id) {
                change(op);
                self.changed.insert(id);
            }
        }
    }

    /// Changes those for which `change` says that it did.
    pub(crate) fn change_some(&mut self, mut change: impl FnMut(OpId, &mut Op) -> bool) {
        for (id, op) in &mut self.all {
            if change(*id, op) {
                self.changed.insert(*id);
            }
        }
    }

    /// All have voted: it runs.
    pub(crate) fn run(&mut self, id: OpId, running: Op) {
        debug_assert!(matches!(running, Op::Running { .. }));
        if let Some(op) = self.change(id) {
            *op = running;
            self.running += 1;
        }
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, id: OpId) -> Option<Op> {
        self.changed.remove(&id);
        self.timed.remove(&id);
        let op = self.all.remove(&id)?;
        self.running -= usize::from(matches!(op, Op::Running { .. }));
        op.involved().for_each(|peer| {
            self.of.get_mut(&peer).map(|its| its.remove(&id));
        });
        Some(op)
    }

    /// Takes in what votes depend on now.
    pub(crate) fn set_gate(&mut self, gate: Gate) {
        if self.gate != gate {
            self.gate = gate;
            let voting = self.all.iter().filter(|(_, op)| matches!(op, Op::Voting { .. }));
            self.changed.extend(voting.map(|(id, _)| *id));
        }
    }

    /// Time has passed, or somebody was heard again.
    pub(crate) fn change_timed(&mut self) {
        self.changed.extend(&self.timed);
    }

    /// Those that are to be looked at; from then on they count as looked at.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<OpId> {
        std::mem::take(&mut self.changed)
    }

    /// Nothing is to be done about an operation now; `is_timed`: unless time passes.
    pub(crate) fn rest(&mut self, id: OpId, is_timed: bool) {
        if is_timed {
            self.timed.insert(id);
        } else {
            self.timed.remove(&id);
        }
    }

    /// Those that time alone may change.
    pub(crate) fn timed(&self) -> impl Iterator<Item = &Op> {
        self.timed.iter().filter_map(|id| self.all.get(id))
    }
}
