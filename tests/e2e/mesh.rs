//! Small operations that go over connections between all members. Here all peers share one host.

use crate::{
    fleet::Fleet,
    kill::{Seen, reduce_with_death},
};
use pccl::{DataType, ReduceOp};
use pccl_tests::{pattern::mix, spec::Spec};

/// Sizes of groups with and without a mesh.
const SIZES: [usize; 5] = [2, 3, 5, 8, 9];

/// Every type and operation; results are those of the ring, bit for bit.
#[test]
fn every_type_and_operation_goes_over_the_mesh_in_groups_of_three_to_eight() {
    for peers in SIZES {
        let mut fleet = Fleet::new(peers);
        let is_meshed = (3..=8).contains(&peers);
        if is_meshed {
            fleet.await_mesh();
        }
        let before = fleet.algorithms(0).len();
        let mut operations = 0;
        for (at, data_type) in DataType::ALL.into_iter().enumerate() {
            for (op_at, op) in ReduceOp::ALL.into_iter().enumerate() {
                // One that fewer elements than peers have, and one of unequal chunks.
                let count = if (at + op_at) % 2 == 0 { 2 } else { 1025 };
                let seed = mix((at * 8 + op_at) as u64);
                let in_place = op_at % 2 == 0;
                fleet.reduce(Spec { data_type, op, count, seed, in_place, quantisation: None });
                operations += 1;
            }
        }
        let algorithms = fleet.algorithms(0).split_off(before);
        let wanted = if is_meshed { "reduce-broadcast" } else { "all-gather" };
        assert_eq!(algorithms, vec![wanted; operations], "{peers} peers");
    }
}

/// A large operation goes around the ring all the same.
#[test]
fn what_is_large_goes_around_the_ring() {
    let mut fleet = Fleet::new(3);
    fleet.await_mesh();
    fleet.reduce(Spec::sum(100_000, 1));
    assert_eq!(fleet.algorithms(0).pop().as_deref(), Some("ring"));
    assert_eq!(fleet.algorithms(1).pop().as_deref(), Some("ring"));
}

/// After a death and after a newcomer the others connect anew what is missing.
#[test]
fn the_mesh_follows_who_is_in_the_run() {
    let mut fleet = Fleet::new(4);
    fleet.await_mesh();
    fleet[1].kill();
    fleet.remove(1);
    fleet.await_mesh();
    fleet.join(&[]);
    fleet.await_mesh();
    assert!(fleet.iter().all(|peer| !peer.log().contains("dropped by the master")));
}

/// Points of a small operation of four over the mesh that each rank passes, and how the others see a death there.
/// Frames of others may come before the own vote, and the vote to complete may go with it.
const POINTS: [(&str, usize, Seen); 6] = [
    ("begins early", 1, Seen::Nothing),
    ("to master: Initiate", 1, Seen::Nothing),
    ("frame begins", 1, Seen::Any),
    ("frame complete", 1, Seen::Any),
    ("to master: Complete", 1, Seen::Any),
    ("from master: Outcome", 1, Seen::Success),
];

#[test]
fn a_death_at_each_point_of_an_operation_over_the_mesh() {
    let mut fleet = Fleet::new(4);
    for (case, (point, nth, seen)) in POINTS.into_iter().enumerate() {
        // Rank 0 folds for all; the others do all the same.
        for rank in [0, 2] {
            fleet.await_mesh();
            let ring = fleet[0].ask("world").good().ring();
            let victim =
                fleet.iter().position(|peer| peer.id.as_ref() == Some(&ring[rank])).expect("a member");
            let spec = Spec { in_place: case % 2 == 0, ..Spec::sum(1000, case as u64) };
            reduce_with_death(&mut fleet, victim, point, nth, spec, seen);
            fleet.join(&[]);
        }
    }
}
