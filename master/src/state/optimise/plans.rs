//! Rings that are being planned, on whatever thread the caller of this machine chooses, and what becomes of them.

use super::measured::Measured;
use crate::state::groups::all_groups::Groups;
use crate::state::groups::group::Group;
use crate::state::membership::members::Roll;
use crate::state::outbox::Outbox;
use crate::state::types::{Action, PlanKey};
use pccl_planner::{Answer, EXACT_PEERS, EXACT_PEERS_BACKGROUND, Job};
use pccl_protocol::{GroupId, PeerId};
use std::collections::BTreeMap;

/// Groups with fewer members have one ring only.
pub(crate) const SMALLEST_PLANNED: usize = 3;

/// The purpose for which a ring is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Purpose {
    /// An optimisation, in which all wait for it.
    Optimization,
    /// A better one than the optimisation found; the next call of all adopts it.
    Improvement,
    /// Around an edge that has become slow; adopted as soon as the group does nothing.
    Repair,
}

/// A ring that was planned without anybody waiting for it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Better {
    pub(crate) order: Vec<PeerId>,
    purpose: Purpose,
}

/// A ring that is being planned.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pending {
    key: PlanKey,
    /// In the order of their numbers in the plan, which is that of the present ring.
    members: Vec<PeerId>,
    pub(crate) purpose: Purpose,
}

/// At most one plan for each group.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Plans {
    last: u64,
    open: BTreeMap<GroupId, Pending>,
}

impl Plans {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn get(&self, group: GroupId) -> Option<&Pending> {
        self.open.get(&group)
    }

    /// Has the ring of a group planned. Whatever is planned for it already is dropped.
    pub(crate) fn start(
        &mut self,
        groups: &mut Groups,
        roll: &Roll,
        measured: &Measured,
        out: &mut Outbox,
        (group_id, purpose): (GroupId, Purpose),
    ) {
        self.drop(groups, out, group_id);
        // One after the other is planned.
        let count = groups.values().filter(|group| group.can_be_ordered()).count();
        let Some(group) = groups.get(&group_id) else { return };
        let job = group.plan_job(roll, measured, purpose, (count, self.last));
        self.last += 1;
        let plan = PlanKey(self.last);
        self.open.insert(group_id, Pending { key: plan, members: group.ring.clone(), purpose });
        let background = purpose != Purpose::Optimization;
        out.push(Action::Plan { plan, job: Box::new(job), background });
    }

    /// The members of a group have changed, or its plan is not wanted any more for another reason.
    pub(crate) fn drop(&mut self, groups: &mut Groups, out: &mut Outbox, group_id: GroupId) {
        if let Some(pending) = self.open.remove(&group_id) {
            out.push(Action::DropPlan { plan: pending.key });
        }
        if let Some(group) = groups.get_mut(&group_id) {
            group.next.better = None;
        }
    }

    pub(crate) fn drop_of_missing_groups(&mut self, groups: &mut Groups, out: &mut Outbox) {
        let gone: Vec<GroupId> = self.open.keys().copied().filter(|id| !groups.contains_key(id)).collect();
        gone.into_iter().for_each(|id| self.drop(groups, out, id));
    }

    pub(crate) fn drop_all(&mut self, out: &mut Outbox) {
        for pending in std::mem::take(&mut self.open).into_values() {
            out.push(Action::DropPlan { plan: pending.key });
        }
    }

    /// The result of a plan; nothing if it was dropped meanwhile.
    fn take(&mut self, key: PlanKey, result: Result<Answer, String>) -> Option<(GroupId, Purpose, Planned)> {
        let group = self.open.iter().find(|(_, pending)| pending.key == key).map(|(group, _)| *group)?;
        let Pending { members, purpose, .. } = self.open.remove(&group)?;
        Some((group, purpose, Planned { members, result }))
    }

    /// Takes in what the planner has found; one for which an optimisation waits is handed to it.
    pub(crate) fn record(
        &mut self,
        groups: &mut Groups,
        roll: &Roll,
        measured: &Measured,
        out: &mut Outbox,
        (key, result): (PlanKey, Result<Answer, String>),
    ) -> Option<(GroupId, Planned)> {
        let (group_id, purpose, planned) = self.take(key, result)?;
        if purpose == Purpose::Optimization {
            return Some((group_id, planned));
        }
        let better = planned.result.as_ref().is_ok_and(|answer| !answer.kept);
        let order = planned.order().filter(|_| better);
        if order.is_some() {
            out.info(format!("group {group_id}: a better ring was found"));
        }
        let group = groups.get_mut(&group_id)?;
        // The present ring is better if large operations leave it, or come back to it.
        let is_outdated = || group.schedule_is_outdated(roll, measured);
        if let Some(order) = order.or_else(|| is_outdated().then_some(planned.members)) {
            group.next.better = Some(Better { order, purpose });
        }
        None
    }
}

/// The result of a plan for a group.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Planned {
    /// Its members when it was planned, in the order of the numbers in the answer.
    pub(crate) members: Vec<PeerId>,
    /// The ring, or why there is none.
    pub(crate) result: Result<Answer, String>,
}

impl Planned {
    /// The planned order.
    pub(crate) fn order(&self) -> Option<Vec<PeerId>> {
        let answer = self.result.as_ref().ok()?;
        answer.order.iter().map(|at| self.members.get(*at).copied()).collect()
    }
}

impl Group {
    /// Whether its members can be in more than one ring. That of a list is the list's.
    pub(crate) fn can_be_ordered(&self) -> bool {
        self.ring.len() >= SMALLEST_PLANNED && self.formed.is_none()
    }

    /// Whether it has members that can be in more than one ring, and does nothing else.
    pub(crate) fn can_be_planned(&self) -> bool {
        self.can_be_ordered() && !self.work.ops.any_runs()
    }

    /// The job of the planner; `groups` share the time in which others wait for it.
    fn plan_job(
        &self,
        roll: &Roll,
        measured: &Measured,
        purpose: Purpose,
        (groups, seed): (usize, u64),
    ) -> Job {
        let (exact_peers, budget) = if purpose == Purpose::Improvement {
            (EXACT_PEERS_BACKGROUND, roll.options.background_budget)
        } else {
            (EXACT_PEERS, roll.options.plan_budget / u32::try_from(groups.max(1)).unwrap_or(u32::MAX))
        };
        Job {
            names: self.ring.iter().map(|id| roll.name_of(*id)).collect(),
            present: (0..self.ring.len()).collect(),
            links: self.known_links(roll, measured, &self.ring),
            // One flow enters a place and one leaves it.
            places: roll.places(&self.ring),
            seed,
            exact_peers,
            budget,
        }
    }
}

impl Groups {
    /// Rule: better rings that were found meanwhile are adopted: in a round of admission, and one around an edge that
    /// has become slow as soon as the group does nothing. Groups that get newcomers have lost theirs. An optimisation
    /// sees to it itself.
    pub(crate) fn adopt_better_rings(&mut self, in_round: bool) -> bool {
        let mut fired = false;
        for group in self.values_mut() {
            let idle = group.work.ops.is_empty() && group.shared.sync.is_none();
            let may = |better: &mut Better| in_round || (idle && better.purpose == Purpose::Repair);
            if let Some(better) = group.next.better.take_if(may) {
                group.next.order = Some(better.order);
                group.next.is_due = true;
                fired = true;
            }
        }
        fired
    }
}
