//! Results of all-reduces, compared by bytes with an independent oracle. The tests here check what
//! `docs/semantics/results.md` says.

use crate::fleet::Fleet;
use pccl::{DataType, ReduceOp};
use pccl_tests::{
    pattern,
    spec::{Spec, Way},
};

/// Fewer elements than peers, chunks of unequal size, and several frames per chunk.
const COUNTS: [usize; 7] = [0, 1, 2, 3, 5, 1025, 203_530];

/// Every type, operation and count, in place and out of place, on every peer.
fn everything(peers: usize) {
    let mut fleet = Fleet::new(peers);
    let order = order(&mut fleet);
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            for count in COUNTS {
                let seed = pattern::mix((count as u64) << 8 | u64::from(data_type.code()));
                let spec = Spec { data_type, op, count, seed, in_place: true, quantisation: None };
                let wanted = pattern::digest(&spec.result(&order, Way::Ring));
                for in_place in [true, false] {
                    let spec = Spec { in_place, ..spec };
                    for answer in fleet.all(format!("reduce {spec} 0 0")) {
                        let answer = answer.good();
                        assert_eq!(answer.field("digests"), wanted, "{spec} on {peers} peers");
                        assert_eq!(answer.field("sent"), "true", "{spec}: the send buffer was changed");
                        assert_eq!(answer.number("participants"), peers);
                    }
                }
            }
        }
    }
}

/// Numbers of the peers in ring order.
fn order(fleet: &mut Fleet) -> Vec<usize> {
    let ring = fleet.all("world")[0].clone().ring();
    ring.iter()
        .map(|id| fleet.peers.iter().find(|peer| peer.id.as_ref() == Some(id)).expect("known").index)
        .collect()
}

#[test]
fn every_type_and_operation_with_two_peers() {
    everything(2);
}

#[test]
fn every_type_and_operation_with_three_peers() {
    everything(3);
}

#[test]
fn every_type_and_operation_with_five_peers() {
    everything(5);
}

/// The traffic of a ring: each rank sends and receives `2 (n - 1) / n` of the tensor.
#[test]
fn traffic_is_that_of_a_ring() {
    let mut fleet = Fleet::new(3);
    let spec = Spec::sum(300_000, 1);
    for answer in fleet.reduce(spec) {
        assert_eq!(answer.number("tx"), 4 * 400_000);
        assert_eq!(answer.number("rx"), 4 * 400_000);
    }
}

/// A small operation takes half the hops: each rank gets the whole tensor of every other rank.
#[test]
fn small_operations_move_whole_contributions() {
    let mut fleet = Fleet::new(3);
    for _ in 0..10 {
        let mut moved: Vec<_> = fleet
            .reduce(Spec::sum(1000, 1))
            .iter()
            .map(|answer| (answer.number("tx"), answer.number("rx")))
            .collect();
        moved.sort_unstable();
        // Around the ring, or, once all are connected, by way of one of them.
        let (one, two) = ((4000, 4000), (8000, 8000));
        assert!(moved == [two, two, two] || moved == [one, one, two], "{moved:?}");
    }
}

/// The same call gives the same bytes, however the frames were scheduled.
#[test]
fn results_are_deterministic() {
    let mut fleet = Fleet::with(crate::fleet::config(), 3, &["pool=4"]);
    let spec = Spec { op: ReduceOp::Prod, ..Spec::sum(700_001, 3) };
    let first = fleet.reduce(spec)[0].field("digests").to_owned();
    for _ in 0..5 {
        assert!(fleet.reduce(spec).iter().all(|answer| answer.field("digests") == first));
    }
}
