//! The end of an optimisation: what it came to, for those who voted and for the log.

use super::measured::Measured;
use super::optimize::{Means, Optimization, Optimizer};
use super::plans::{Planned, Purpose, SMALLEST_PLANNED};
use crate::state::groups::all_groups::Groups;
use crate::state::membership::members::Roll;
use pccl_planner::Schedules;
use pccl_protocol::{Algorithm, GroupId, M2c, OptimizeDone, PeerId, RequestId, Text, WorldSizes};
use std::collections::BTreeMap;

impl Optimizer {
    /// Rule: an optimisation ends when every ring stands. Votes are answered, and better rings are looked for.
    pub(crate) fn end(&mut self, mut means: Means<'_>) -> bool {
        let Means { groups, roll, measured, out, .. } = &mut means;
        if !groups.values().all(|group| group.formed.is_some() || group.ring_confirmed(roll)) {
            return false;
        }
        let Some(optimization) = self.running.take_if(|it| it.is_connecting()) else { return false };
        let took = roll.now.since(optimization.since).as_millis();
        out.info(format!(
            "optimisation {} is over after {took} ms{}",
            optimization.number,
            groups.rings_in_words(roll, measured)
        ));
        let mut answers = Vec::new();
        for (id, peer) in &mut roll.peers {
            answers.extend(peer.take_optimize(|_| true).map(|vote| (*id, peer.group(), vote.request)));
        }
        let all = roll.all_sizes();
        let mut reviews: BTreeMap<GroupId, OptimizeDone> = BTreeMap::new();
        for (id, group, request) in answers {
            let review = || optimization.review(groups, roll, measured, group, all.of(group));
            let done = OptimizeDone { request, ..reviews.entry(group).or_insert_with(review).clone() };
            if let Some(peer) = roll.peers.get_mut(&id) {
                peer.sizes_told = Some(done.sizes);
                out.send(peer.client, M2c::OptimizeDone(done));
            }
        }
        for (id, planned) in &optimization.planned {
            if planned.result.as_ref().is_ok_and(|answer| !answer.proven) {
                means.start_plan(*id, Purpose::Improvement);
            }
        }
        true
    }

    /// The things that an optimisation waits for, in words.
    pub(crate) fn sentence(&self, roll: &Roll, groups: &Groups) -> String {
        let reason = match &self.running {
            None => roll.missing_for_optimization(),
            Some(optimization) => optimization.sentence(roll, groups),
        };
        format!("optimize_topology waits for {reason}")
    }
}

impl Groups {
    /// The slowest edge of each ring and how large operations go, for the log.
    fn rings_in_words(&self, roll: &Roll, measured: &Measured) -> String {
        let mut text = String::new();
        for (id, group) in self.iter().filter(|(_, group)| group.ring.len() > 1 && group.formed.is_none()) {
            let slowest = match group.slowest_edge(measured) {
                Some(edge) => {
                    let ends = roll.name_of_edge((edge.from, edge.to));
                    format!("the slowest of {} edges is {ends} with {}", group.ring.len(), edge.rate())
                }
                None => format!("not all of the {} edges of its ring have a rate", group.ring.len()),
            };
            let is_ring = group.net.large() == Algorithm::Ring;
            let schedule = if is_ring { ", around the ring".into() } else { group.describe_schedule() };
            text.push_str(&format!("; group {id}: {slowest}{schedule}"));
        }
        text
    }
}

impl Optimization {
    /// Its result, for all members of a group of this size.
    fn review(
        &self,
        groups: &Groups,
        roll: &Roll,
        measured: &Measured,
        group_id: GroupId,
        sizes: WorldSizes,
    ) -> OptimizeDone {
        let group = groups.get(&group_id);
        let ring: Vec<PeerId> = group.map(|group| group.ring.clone()).unwrap_or_default();
        let edges = ring.len() * ring.len().saturating_sub(1);
        let unmeasured = edges.saturating_sub(measured.among(&ring).len());
        let planned = self.planned.get(&group_id);
        let answer = planned.and_then(|planned| planned.result.as_ref().ok());
        let found = group.and_then(|group| group.schedules(roll, measured, &ring));
        let found = found.as_ref();
        let pct = |gain: Option<f64>| gain.map_or(0, |gain| (100.0 * (1.0 + gain)).round() as u32);
        let note = match planned {
            Some(Planned { result: Err(text), .. }) => text.clone(),
            Some(_) => String::new(),
            None if ring.len() < SMALLEST_PLANNED => "there is only one ring".to_owned(),
            None => "no ring was planned in time".to_owned(),
        };
        OptimizeDone {
            request: RequestId(0),
            sizes,
            changed: self.before.get(&group_id) != Some(&ring),
            slowest: group.and_then(|group| group.slowest_edge(measured)),
            bound_kbit_s: answer.map_or(0, |answer| answer.bound_kbit_s),
            proven: answer.is_some_and(|answer| answer.proven),
            unmeasured: u32::try_from(unmeasured).unwrap_or(u32::MAX),
            schedule: group.map_or(Algorithm::Ring, |group| group.net.large()),
            pairwise_pct: pct(found.and_then(Schedules::pairwise_gain)),
            sites_pct: pct(found.and_then(Schedules::sites_gain)),
            note: Text::new(note),
        }
    }
}
