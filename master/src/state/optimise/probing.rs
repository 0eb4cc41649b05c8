//! Which edges an optimisation measures, and in which rounds.

use super::measured::Measured;
use crate::state::groups::all_groups::Groups;
use crate::state::groups::edges::EdgeEnds;
use crate::state::groups::group::Group;
use crate::state::membership::members::Roll;
use pccl_planner::{NEAR_ROUNDS, Probed, SAMPLE_ROUNDS, SCHEDULED_PEERS, near_rounds, probe_rounds};
use pccl_protocol::PeerId;
use std::collections::{BTreeSet, VecDeque};

/// Of groups with more members only a sample of the edges is measured.
const ALL_EDGES_PEERS: usize = 64;

/// Whether only a sample of the edges of a group is measured.
pub(crate) fn is_sampled(group: &Group) -> bool {
    group.can_be_ordered() && group.ring.len() > ALL_EDGES_PEERS
}

/// All groups measure at the same time: the first round has the first of each, and so on. After `steps` that chose near
/// peers this is the next such step.
pub(crate) fn rounds_of_probes(
    groups: &Groups,
    roll: &Roll,
    measured: &Measured,
    steps: Option<usize>,
) -> VecDeque<Vec<EdgeEnds>> {
    let mut all: VecDeque<Vec<EdgeEnds>> = VecDeque::new();
    let is_concerned = |group: &&Group| group.can_be_ordered() && (steps.is_none() || is_sampled(group));
    for group in groups.values().filter(is_concerned) {
        let members = &group.ring;
        let is_due =
            |ends: EdgeEnds| roll.may_meet(ends) && measured.wants_probe(ends, roll.now, &roll.options);
        let rounds = if is_sampled(group) {
            sample(members, measured, is_due, steps)
        } else {
            probe_rounds(members.len(), members.len(), |from, to| is_due((members[from], members[to])))
        };
        for (at, round) in rounds.into_iter().enumerate() {
            if at == all.len() {
                all.push_back(Vec::new());
            }
            all[at].extend(round.into_iter().map(|(from, to)| (members[from], members[to])));
        }
    }
    all
}

/// Rounds of a sample, in numbers of members. A member that has enough edges, fresh ones of an earlier optimisation
/// among them, needs no more: a newcomer costs its own.
fn sample(
    members: &[PeerId],
    measured: &Measured,
    is_due: impl Fn(EdgeEnds) -> bool,
    steps: Option<usize>,
) -> Vec<Vec<(usize, usize)>> {
    let n = members.len();
    let ends = |from: usize, to: usize| (members[from], members[to]);
    let known = measured.among(members).into_iter().map(|(from, to, rate)| Probed {
        from: from.into(),
        to: to.into(),
        kbit_s: rate.kbit_s,
        latency_us: rate.latency_us,
    });
    let known: Vec<Probed> = known.collect();
    let (mut sends, mut receives) = (vec![0; n], vec![0; n]);
    for it in known.iter().filter(|it| !is_due(ends(it.from, it.to))) {
        sends[it.from] += 1;
        receives[it.to] += 1;
    }
    let enough = SAMPLE_ROUNDS + steps.map_or(0, |steps| (steps + 1) * NEAR_ROUNDS);
    let wanted = |from: usize, to: usize| {
        let is_wanted = (sends[from] < enough || receives[to] < enough) && is_due(ends(from, to));
        sends[from] += usize::from(is_wanted);
        receives[to] += usize::from(is_wanted);
        is_wanted
    };
    match steps {
        None => probe_rounds(n, SAMPLE_ROUNDS, wanted),
        Some(_) => near_rounds(n, &known, NEAR_ROUNDS, wanted),
    }
}

/// Edges on which all send to all: of groups that may have another schedule than a ring, all edges if one is wanted.
pub(crate) fn crowded_edges(groups: &Groups, roll: &Roll, measured: &Measured) -> BTreeSet<EdgeEnds> {
    let mut all = BTreeSet::new();
    let is_small = |group: &&Group| group.can_be_ordered() && SCHEDULED_PEERS.contains(&group.ring.len());
    for group in groups.values().filter(is_small) {
        let members = &group.ring;
        let pairs = members.iter().flat_map(|from| members.iter().map(move |to| (*from, *to)));
        let edges: Vec<EdgeEnds> = pairs.filter(|ends| ends.0 != ends.1 && roll.may_meet(*ends)).collect();
        let places = roll.places(members);
        let is_known = edges.iter().all(|ends| measured.rate(*ends).is_some());
        let wants = |ends: &EdgeEnds| measured.wants_crowd(*ends, roll.now, &roll.options);
        // Peers in one place have no network in common.
        if is_known && places.iter().any(|place| *place != places[0]) && edges.iter().any(wants) {
            all.extend(edges);
        }
    }
    all
}
