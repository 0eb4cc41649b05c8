//! Connections beside the ring that cannot be built.

use crate::{
    arena::{Arena, Times, full},
    peer::WATCHDOG,
    quiet,
};
use pccl::{DataType, ReduceOp};
use pccl_tests::spec::Spec;
use std::time::Instant;

/// Every type and operation among peers on different hosts: results are those of the ring, bit for bit.
#[test]
fn every_type_and_operation_goes_directly_between_hosts() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 5);
    arena.fleet.await_mesh();
    let before = arena.fleet.algorithms(0).len();
    let mut operations = 0;
    for data_type in DataType::ALL {
        for (at, op) in ReduceOp::ALL.into_iter().enumerate() {
            operations += 1;
            let count = if at % 2 == 0 { 3 } else { 1025 };
            let in_place = operations % 2 == 0;
            arena.fleet.reduce(Spec { data_type, op, count, seed: 7, in_place, quantisation: None });
        }
    }
    assert_eq!(arena.fleet.algorithms(0).split_off(before), vec!["direct"; operations]);
}

/// Two peers that are no neighbours in the ring cannot connect: that costs nobody its place, and all
/// operations go around the ring.
#[test]
fn a_pair_beside_the_ring_that_cannot_connect_costs_nobody_anything() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 3);
    let ring = arena.ring(3);
    // The newcomer gets its place behind the last member, so the one in the middle is beside it.
    let (middle, newcomer) = (ring[1], 3);
    arena.network.block(middle, newcomer);
    arena.network.block(newcomer, middle);
    assert_eq!(arena.spawn(), newcomer);
    arena.fleet[newcomer].send("connect");
    arena.fleet.peers[..newcomer].iter_mut().for_each(|peer| peer.send("wait 4 0"));
    for answer in arena.fleet.answers() {
        answer.good();
    }
    arena.meet();
    assert_eq!(arena.ring(4), [ring[0], middle, ring[2], newcomer]);
    let reduce = |arena: &mut Arena, seed: u64| {
        for answer in arena.fleet.reduce(Spec::sum(1000, seed)) {
            assert_eq!((answer.field("errors"), answer.number("participants")), ("", 4), "{answer:?}");
        }
        assert_eq!(arena.fleet.algorithms(0).pop().as_deref(), Some("all-gather"));
    };
    // While they still try, and after they have given up.
    reduce(&mut arena, 1);
    for node in [middle, newcomer] {
        arena.fleet[node].await_log("cannot connect to");
    }
    (2..5).for_each(|seed| reduce(&mut arena, seed));
    // Nor is there pairwise exchange, whatever the callers choose.
    let spec = Spec::sum(200_000, 5);
    let answers = arena.fleet.all(format!("reduce {spec} 0 0 pairwise"));
    assert!(answers.iter().all(|answer| answer.field("algorithm") == "ring"), "{answers:?}");
    arena.fleet.check(&[spec], &answers);
}

/// The mesh is tried again after a minute, which only a full run waits for.
#[test]
fn a_mesh_that_broke_stands_again() {
    if !full() {
        return;
    }
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 4);
    arena.fleet.await_mesh();
    let ring = arena.ring(4);
    arena.network.reset(ring[0], ring[2]);
    // First until an end has told the master, then until that has forgotten it.
    for algorithm in ["all-gather", "direct"] {
        let deadline = Instant::now() + WATCHDOG * 2;
        while arena.fleet.algorithms(0).pop().as_deref() != Some(algorithm) {
            assert!(Instant::now() < deadline, "small operations do not go by {algorithm}");
            arena.fleet.reduce(Spec::sum(1000, 1));
        }
    }
    assert_eq!(arena.ring(4), ring);
    arena.fleet.reduce_by("pairwise", Spec::sum(200_000, 2));
    assert_eq!(arena.fleet.algorithms(0).pop().as_deref(), Some("pairwise"));
}
