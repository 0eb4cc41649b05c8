//! By which schedule large operations go.

use super::harness::Rig;
use pccl_protocol::*;

const RATE: u64 = 100_000;

/// Two pairs of clients that are close to each other: no ring is without an edge of [`RATE`], and interfaces carry more.
fn pairs(from: u64, to: u64) -> u64 {
    if from.div_ceil(2) == to.div_ceil(2) { 3 * RATE } else { RATE }
}

fn alike(_: u64, _: u64) -> u64 {
    RATE
}

impl Rig {
    /// All optimise; what one of them learns.
    fn optimize(&mut self, rate: &dyn Fn(u64, u64) -> u64) -> OptimizeDone {
        let all = self.accepted();
        self.mail.clear();
        self.vote_optimize(&all);
        self.rounds(rate);
        self.plan();
        self.confirm_all();
        let done: Vec<OptimizeDone> = all.into_iter().map(|n| self.optimized(n)).collect();
        assert!(
            done.windows(2).all(|two| OptimizeDone { request: two[0].request, ..two[1].clone() } == two[0])
        );
        done[0].clone()
    }

    fn is_pairwise(&self) -> bool {
        let told: Vec<bool> = self.accepted().iter().map(|n| self.plans[n].pairwise).collect();
        assert!(told.windows(2).all(|two| two[0] == two[1]), "{told:?}");
        told[0]
    }

    fn all_meshed(&mut self) {
        for n in self.accepted() {
            let epoch = self.epoch(n);
            self.send(n, C2m::MeshReport(MeshReport { epoch, fault: None }));
        }
    }
}

#[test]
fn pairwise_exchange_is_taken_where_it_is_faster() {
    let mut rig = Rig::world(4);
    let before = rig.plans[&1].clone();
    assert!(!before.pairwise);
    let done = rig.optimize(&pairs);
    // 3 edges of 0.5 tensors through an interface of 300 Mbit/s, against 1.5 tensors over an edge of 100.
    assert_eq!((done.changed, done.pairwise, done.pairwise_pct), (false, true, 300));
    // The same ring, and nothing of it is built anew.
    let after = rig.plans[&1].clone();
    assert!(after.epoch > before.epoch && rig.is_pairwise());
    assert_eq!((after.ring, after.mesh), (before.ring, before.mesh));
    rig.all_meshed();
    let op = rig.op(1, 7, 0);
    for n in 1..=4 {
        rig.send(n, C2m::Initiate(Initiate { op, descriptor: super::harness::descriptor(1 << 20) }));
    }
    assert_eq!(rig.answer(1), M2c::Commence(Commence { op, algorithm: Algorithm::Pairwise }));
    (1..=4).for_each(|n| rig.complete(n, op, None));
    // Once more, with nothing new.
    let epoch = rig.epoch(1);
    assert!(rig.optimize(&pairs).pairwise);
    assert_eq!(rig.epoch(1), epoch);
}

#[test]
fn the_ring_stays_where_it_is_as_fast_and_where_a_rate_is_missing() {
    let mut rig = Rig::world(4);
    let epoch = rig.epoch(1);
    let done = rig.optimize(&alike);
    assert_eq!((done.pairwise, done.pairwise_pct, rig.is_pairwise()), (false, 100, false));
    assert_eq!(rig.epoch(1), epoch);
    let mut rig = Rig::world(4);
    let done = rig.optimize(&|from, to| if (from, to) == (1, 3) { 0 } else { pairs(from, to) });
    assert_eq!((done.pairwise, done.pairwise_pct, rig.is_pairwise()), (false, 0, false));
    let mut rig = Rig::world(9);
    let done = rig.optimize(&pairs);
    assert_eq!((done.pairwise, done.pairwise_pct, rig.is_pairwise()), (false, 0, false));
}

#[test]
fn every_ring_goes_by_what_is_known_of_its_members() {
    let mut rig = Rig::world(4);
    rig.optimize(&pairs);
    rig.join(&[5], 0);
    assert!(!rig.is_pairwise(), "nothing is known of the newcomer");
    rig.die(5);
    assert!(rig.is_pairwise());
    rig.confirm_all();
    // Of three, two are close to each other.
    rig.die(4);
    assert_eq!(rig.accepted(), [1, 2, 3]);
    assert!(!rig.is_pairwise(), "the third has no faster edge");
    rig.confirm_all();
    rig.die(3);
    assert!(!rig.is_pairwise());
}

#[test]
fn a_change_has_to_gain_a_tenth_either_way() {
    let mut rig = Rig::world(4);
    assert!(rig.optimize(&pairs).pairwise);
    // An edge beside the ring sets the rate of pairwise exchange, as a part of the ring's.
    let beside =
        |part: u64| move |from: u64, to: u64| if (from, to) == (1, 3) { RATE * part / 300 } else { RATE };
    for (part, pairwise) in [(95, true), (85, false), (95, false), (100, false)] {
        rig.pass(601_000, &[1, 2, 3, 4]);
        let done = rig.optimize(&beside(part));
        assert_eq!(done.pairwise, pairwise, "{part}");
        assert!((i64::from(done.pairwise_pct) - part as i64).abs() <= 1, "{part}: {done:?}");
        assert_eq!(rig.is_pairwise(), pairwise);
    }
}

#[test]
fn without_a_mesh_there_is_no_pairwise_exchange() {
    let mut rig = Rig::world(4);
    rig.optimize(&pairs);
    rig.all_meshed();
    let edge = *rig.plans[&1].mesh.iter().find(|edge| edge.from == rig.peers[&1]).expect("an edge");
    let fault =
        EdgeFault { from: edge.from, to: edge.to, generation: edge.generation, text: Text::new("reset") };
    let epoch = rig.epoch(1);
    rig.send(1, C2m::MeshReport(MeshReport { epoch, fault: Some(fault) }));
    let done = rig.optimize(&pairs);
    assert_eq!((done.pairwise, done.pairwise_pct, rig.is_pairwise()), (false, 300, false));
    // The edge is built anew when its fault is forgotten.
    rig.pass(61_000, &[1, 2, 3, 4]);
    assert!(rig.optimize(&pairs).pairwise && !rig.plans[&1].mesh.is_empty());
}
