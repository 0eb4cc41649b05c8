//! Rings that are being planned, on whatever thread the caller of this machine chooses, and what becomes of them.

use super::MasterState;
use super::group::Group;
use super::types::{Action, PlanKey};
use crate::topology::{Answer, EXACT_PEERS, EXACT_PEERS_BACKGROUND, Job};
use pccl_protocol::{GroupId, PeerId};
use std::collections::{BTreeMap, BTreeSet};

/// Groups with fewer members have one ring only.
pub(super) const SMALLEST_PLANNED: usize = 3;

/// What a ring is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// An optimisation, in which all wait for it.
    Optimization,
    /// A better one than the optimisation found; the next call of all adopts it.
    Improvement,
    /// Around an edge that has become slow; adopted as soon as the group does nothing.
    Repair,
}

/// A ring that was planned without anybody waiting for it.
#[derive(Debug)]
pub(super) struct Better {
    pub(super) order: Vec<PeerId>,
    purpose: Purpose,
}

/// A ring that is being planned.
#[derive(Debug)]
pub(super) struct Pending {
    key: PlanKey,
    /// In the order of their numbers in the plan, which is that of the present ring.
    members: Vec<PeerId>,
    pub(super) purpose: Purpose,
}

/// At most one plan for each group.
#[derive(Debug, Default)]
pub(super) struct Plans {
    last: u64,
    open: BTreeMap<GroupId, Pending>,
}

impl Plans {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn get(&self, group: GroupId) -> Option<&Pending> {
        self.open.get(&group)
    }
}

/// What a plan for a group came to.
#[derive(Debug)]
pub(super) struct Planned {
    /// Its members when it was planned, in the order of the numbers in the answer.
    pub(super) members: Vec<PeerId>,
    /// The ring, or why there is none.
    pub(super) result: Result<Answer, String>,
}

impl Planned {
    /// The planned order.
    pub(super) fn order(&self) -> Option<Vec<PeerId>> {
        let answer = self.result.as_ref().ok()?;
        answer.order.iter().map(|at| self.members.get(*at).copied()).collect()
    }
}

impl Group {
    /// Whether its members can be in more than one ring. That of a list is the list's.
    pub(super) fn can_be_ordered(&self) -> bool {
        self.ring.len() >= SMALLEST_PLANNED && self.formed.is_none()
    }
}

impl MasterState {
    /// Has the ring of a group planned. Whatever is planned for it already is dropped.
    pub(super) fn start_plan(&mut self, group_id: GroupId, purpose: Purpose) {
        self.drop_plan(group_id);
        let Some(job) = self.plan_job(group_id, purpose) else { return };
        let Some(group) = self.groups.get(&group_id) else { return };
        let members = group.ring.to_vec();
        self.plans.last += 1;
        let plan = PlanKey(self.plans.last);
        self.plans.open.insert(group_id, Pending { key: plan, members, purpose });
        let background = purpose != Purpose::Optimization;
        self.out.push(Action::Plan { plan, job: Box::new(job), background });
    }

    fn plan_job(&self, group_id: GroupId, purpose: Purpose) -> Option<Job> {
        let group = self.groups.get(&group_id)?;
        let members: Vec<PeerId> = group.ring.to_vec();
        let (exact_peers, budget) = if purpose == Purpose::Improvement {
            (EXACT_PEERS_BACKGROUND, self.options.background_budget)
        } else {
            // One after the other is planned.
            let groups = self.groups.values().filter(|group| group.can_be_ordered()).count();
            (EXACT_PEERS, self.options.plan_budget / u32::try_from(groups.max(1)).unwrap_or(u32::MAX))
        };
        Some(Job {
            names: members.iter().map(|id| self.name_of(*id)).collect(),
            present: (0..members.len()).collect(),
            links: self.known_links(group, &members),
            // One flow enters a place and one leaves it.
            places: self.places(&members),
            seed: self.plans.last,
            exact_peers,
            budget,
        })
    }

    /// The members of a group have changed, or its plan is not wanted any more for another reason.
    pub(super) fn drop_plan(&mut self, group_id: GroupId) {
        if let Some(pending) = self.plans.open.remove(&group_id) {
            self.out.push(Action::DropPlan { plan: pending.key });
        }
        if let Some(group) = self.groups.get_mut(&group_id) {
            group.better = None;
        }
    }

    pub(super) fn drop_plans_of_missing_groups(&mut self) {
        let gone: Vec<GroupId> =
            self.plans.open.keys().copied().filter(|id| !self.groups.contains_key(id)).collect();
        gone.into_iter().for_each(|id| self.drop_plan(id));
    }

    pub(super) fn drop_all_plans(&mut self) {
        for pending in std::mem::take(&mut self.plans.open).into_values() {
            self.out.push(Action::DropPlan { plan: pending.key });
        }
    }

    pub(super) fn record_plan(&mut self, key: PlanKey, result: Result<Answer, String>) {
        let found = self.plans.open.iter().find(|(_, pending)| pending.key == key).map(|(group, _)| *group);
        // One that was dropped meanwhile.
        let Some((group_id, pending)) = found.and_then(|id| Some((id, self.plans.open.remove(&id)?))) else {
            return;
        };
        let planned = Planned { members: pending.members, result };
        if pending.purpose == Purpose::Optimization {
            return self.take_urgent_plan(group_id, planned);
        }
        let better = planned.result.as_ref().is_ok_and(|answer| !answer.kept);
        let order = planned.order().filter(|_| better);
        if order.is_some() {
            self.info(format!("group {group_id}: a better ring was found"));
        }
        // The present ring is better if large operations leave it, or come back to it.
        let order = order.or_else(|| self.schedule_is_outdated(group_id).then_some(planned.members));
        if let (Some(order), Some(group)) = (order, self.groups.get_mut(&group_id)) {
            group.better = Some(Better { order, purpose: pending.purpose });
        }
    }

    /// Rule: better rings that were found meanwhile are adopted: in a round of admission, and one around an edge that
    /// has become slow as soon as the group does nothing. Groups that get newcomers have lost theirs. An optimisation
    /// sees to it itself.
    pub(super) fn adopt_better_rings(&mut self) -> bool {
        if self.optimization.is_some() {
            return false;
        }
        let round = self.round.is_some();
        let mut fired = false;
        for group in self.groups.values_mut() {
            let idle = group.ops.is_empty() && group.sync.is_none();
            if let Some(better) =
                group.better.take_if(|better| round || (idle && better.purpose == Purpose::Repair))
            {
                group.next_order = Some(better.order);
                group.replan = true;
                fired = true;
            }
        }
        fired
    }

    /// Whether a group has members that can be in more than one ring, and does nothing else.
    pub(super) fn can_be_planned(&self, group_id: GroupId) -> bool {
        let Some(group) = self.groups.get(&group_id) else { return false };
        group.can_be_ordered() && !group.ops.any_runs()
    }

    /// Members of the ring of a group.
    pub(super) fn ring_members(&self, group_id: GroupId) -> BTreeSet<PeerId> {
        self.groups.get(&group_id).into_iter().flat_map(|group| &group.ring).copied().collect()
    }
}
