//! Edges between two members that send to each other.

use super::super::MasterState;
use super::super::groups::point_to_point::PairState;
use super::harness::*;
use pccl_protocol::*;

/// The edge between two clients in the last plan.
fn planned(rig: &Rig, from: u64, to: u64) -> Option<EdgeName> {
    let plan = &rig.plans[&1];
    plan.edges_for(Purpose::Pair).find(|name| (name.from, name.to) == (rig.peers[&from], rig.peers[&to]))
}

fn state(rig: &Rig, from: u64, to: u64) -> PairState {
    rig.state.groups[&GroupId(0)].pair_state((rig.peers[&from], rig.peers[&to]), rig.now)
}

pub(super) fn ask(rig: &mut Rig, from: u64, to: u64) {
    let (from, to) = (rig.peers[&from], rig.peers[&to]);
    let MasterState { groups, roll, out, .. } = &mut rig.state;
    let group = groups.get_mut(&GroupId(0)).expect("the group of all");
    out.changed |= group.want_pair(Pair { from, to }, roll.now);
    rig.tick();
}

#[test]
fn an_edge_is_planned_for_who_asks_and_what_runs_goes_on() {
    let mut rig = Rig::world(10);
    let op = rig.op(1, 7, 0);
    rig.commence(op);
    let before = rig.plans[&1].clone();
    ask(&mut rig, 2, 5);
    let name = planned(&rig, 2, 5).expect("planned");
    let after = &rig.plans[&1];
    assert_eq!((after.epoch.0, after.counted_since), (before.epoch.0 + 1, before.counted_since));
    assert!(before.edges.iter().all(|edge| after.edges.contains(edge)));
    assert_eq!((after.edges.len(), state(&rig, 2, 5)), (before.edges.len() + 1, PairState::Coming));
    for n in [2, 5] {
        rig.send(n, C2m::EdgeReport(EdgeReport { epoch: GroupEpoch(0), up: vec![name], broken: vec![] }));
    }
    assert_eq!(state(&rig, 2, 5), PairState::Stands);
    (1..=10).for_each(|n| rig.complete(n, op, None));
    assert!(is_done(&rig.answer(1)));
    // The ring has this one.
    let epoch = rig.epoch(1);
    ask(&mut rig, 1, 2);
    assert_eq!((rig.epoch(1), state(&rig, 1, 2)), (epoch, PairState::Stands));
    // It stays as long as both of its ends do.
    rig.die(10);
    assert_eq!(planned(&rig, 2, 5), Some(name));
    rig.die(5);
    assert!(rig.plans[&1].edges_for(Purpose::Pair).next().is_none());
}

#[test]
fn an_edge_that_fails_goes_and_comes_back_when_it_is_asked_for_later() {
    let mut rig = Rig::world(10);
    ask(&mut rig, 2, 5);
    let EdgeName { from, to, generation } = planned(&rig, 2, 5).expect("planned");
    let fault = EdgeFault { from, to, generation, forgotten: false, text: Text::new("refused") };
    rig.send(2, C2m::EdgeReport(EdgeReport { epoch: GroupEpoch(0), up: vec![], broken: vec![fault] }));
    assert_eq!((planned(&rig, 2, 5), state(&rig, 2, 5)), (None, PairState::Failed(Text::new("refused"))));
    ask(&mut rig, 2, 5);
    assert_eq!(planned(&rig, 2, 5), None, "not at once");
    rig.pass(3000, &(1..=10).collect::<Vec<_>>());
    ask(&mut rig, 2, 5);
    assert!(planned(&rig, 2, 5).expect("planned").generation > generation);
    ask(&mut rig, 3, 3);
    assert_eq!(planned(&rig, 3, 3), None);
}
