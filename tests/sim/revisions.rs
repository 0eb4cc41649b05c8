//! Which revisions are committed: never one that is older than what a group has known, unless somebody who held that
//! takes part, says so, or an operator chooses it. The operator of a run chooses what is there, after a while.

use crate::checker::Checker;
use crate::swarm::MS;
use crate::world::World;
use pccl_master::state::Input;
use pccl_protocol::*;
use std::collections::{BTreeMap, BTreeSet};

/// How long an operator waits for somebody who holds more.
const PATIENCE: u64 = 5_000 * MS;

/// The committed revisions, as everybody could know them.
#[derive(Debug, Default)]
pub(crate) struct Known {
    newest: BTreeMap<GroupId, Revision>,
    /// The highest that each group has ever committed: what the master may have forgotten is not known from outside.
    highest: BTreeMap<GroupId, Revision>,
    /// Groups of which somebody who held the newest revision has left on purpose since.
    left: BTreeSet<GroupId>,
    /// The revisions that newcomers said that they bring.
    offers: BTreeMap<u64, Revision>,
}

impl Known {
    pub(crate) fn registered(&mut self, client: u64, register: &Register) {
        self.offers.extend(register.resume.map(|offer| (client, offer.revision)));
    }

    /// A peer of those who hold the newest revision leaves on purpose.
    pub(crate) fn left(&mut self, group: GroupId) {
        self.left.insert(group);
    }

    /// The world is empty: the master forgets what nobody wants any more.
    pub(crate) fn emptied(&mut self) {
        for group in std::mem::take(&mut self.left) {
            self.newest.remove(&group);
        }
    }

    /// The revision that a newcomer said that it brings.
    pub(crate) fn offer_of(&self, client: u64) -> Option<Revision> {
        self.offers.get(&client).copied()
    }

    pub(crate) fn chosen(&mut self, group: GroupId, revision: Revision) {
        self.newest.insert(group, revision);
    }

    /// A sync was committed; `may_go_back` says that one of its voters held what was committed before, or voted for it.
    pub(crate) fn committed(
        &mut self,
        group: GroupId,
        revision: Revision,
        may_go_back: impl Fn(Revision) -> bool,
    ) {
        if let Some(newest) = self.newest.get(&group) {
            let is_fine = revision >= *newest || may_go_back(*newest);
            assert!(is_fine, "group {group} committed revision {revision} over {newest}");
        }
        self.newest.insert(group, revision);
        let highest = self.highest.entry(group).or_insert(revision);
        *highest = revision.max(*highest);
        self.left.remove(&group);
    }
}

impl Checker {
    /// A sync was refused because of a newer revision: there is one, and none of the members holds it.
    pub(crate) fn judge_revision(&self, client: u64, verdict: &Verdict) -> Result<(), String> {
        let (group, votes) = self.votes_near(client);
        let highest = votes.into_iter().max().ok_or("nobody has voted")?;
        let newer = match (verdict.cause, verdict.culprits.first()) {
            (Cause::StateLost, None) => self.known.highest.get(&group).copied(),
            (Cause::ResumeWaits, Some(culprit)) => {
                let offerer = self.connection_of(culprit.peer).ok_or("who offers is not there")?;
                self.known.offers.get(&offerer).copied()
            }
            _ => None,
        };
        match newer {
            Some(newer) if verdict.cause == Cause::ResumeWaits || newer > highest => Ok(()),
            _ => Err(format!("nothing newer than revision {highest} is known: {newer:?}")),
        }
    }
}

impl World {
    /// The operator looks at the run.
    pub(crate) fn operate(&mut self) {
        let undecided: BTreeMap<GroupId, Revision> = self.master.undecided_revisions().into_iter().collect();
        self.undecided.retain(|group, _| undecided.contains_key(group));
        for (group, revision) in undecided {
            let since = *self.undecided.entry(group).or_insert(self.now);
            if self.now < since + PATIENCE {
                continue;
            }
            self.undecided.remove(&group);
            self.note(format_args!("! an operator accepts revision {revision} for group {group}"));
            self.choices += 1;
            self.checker.chosen(group, revision);
            self.input(Input::AcceptRevision { group: Some(group), revision });
        }
    }
}
