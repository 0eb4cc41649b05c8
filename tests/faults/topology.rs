//! `optimize_topology` on a network that is not the same everywhere.

use crate::{
    arena::{Arena, Times},
    quiet,
};
use pccl_tests::spec::Spec;

/// Whether `a` and `b` are next to each other in a ring, in whichever direction.
fn adjacent(ring: &[usize], a: usize, b: usize) -> bool {
    let n = ring.len();
    (0..n).any(|at| [(a, b), (b, a)].contains(&(ring[at], ring[(at + 1) % n])))
}

/// A slow pair of peers, then one that cannot connect: the ring goes around both, without anybody being dropped.
#[test]
fn the_ring_goes_around_slow_and_blocked_edges() {
    let _alone = quiet::alone();
    let mut arena = Arena::insecure_on_loopback(Times::with_slow_edges(), 5);
    assert_eq!(arena.ring(5), [0, 1, 2, 3, 4]);
    arena.network.throttle(0, 1);
    arena.network.block(3, 4);
    for answer in arena.fleet.all("optimize") {
        let answer = answer.good();
        assert_eq!((answer.field("changed"), answer.number("group")), ("true", 5), "{answer:?}");
        assert_eq!(answer.number("unmeasured"), 1, "{answer:?}");
    }
    arena.fleet.meet();
    let ring = arena.ring(5);
    assert!(!adjacent(&ring, 0, 1), "{ring:?}");
    let at = ring.iter().position(|node| *node == 3).expect("a member");
    assert_ne!(ring[(at + 1) % 5], 4, "{ring:?}");
    // At 25,000 bytes a second this would take minutes.
    for answer in arena.fleet.reduce(Spec::sum(1_000_000, 1)) {
        assert_eq!((answer.field("errors"), answer.number("participants")), ("", 5), "{answer:?}");
    }
}

/// Probes that all peers together were told to make.
fn probes(arena: &Arena) -> usize {
    arena.fleet.iter().map(|peer| peer.log().matches("from master: ProbePlan").count()).sum()
}

/// A link becomes slow after it was measured: operations show it, and the ring goes around it without new probes.
#[test]
fn an_edge_that_becomes_slow_is_left_within_three_operations() {
    let _alone = quiet::alone();
    let mut arena = Arena::insecure_on_loopback(Times::with_slow_edges(), 4);
    arena.fleet.all("optimize").into_iter().for_each(|answer| drop(answer.good()));
    arena.fleet.meet();
    let measured = probes(&arena);
    let ring = arena.ring(4);
    let (from, to) = (ring[1], ring[2]);
    arena.network.throttle(from, to);
    // Each edge carries 300,000 bytes: 12 s at that rate.
    for round in 0..3 {
        // Rates that a busy machine measures may say that another schedule is faster.
        for answer in arena.fleet.reduce_by("ring", Spec::sum(50_000, round)) {
            assert_eq!((answer.field("errors"), answer.number("participants")), ("", 4), "{answer:?}");
        }
        arena.fleet.meet();
    }
    let after = arena.ring(4);
    assert!(!adjacent(&after, from, to), "{ring:?} became {after:?}, but {from} -> {to} is slow");
    assert_eq!(probes(&arena), measured, "probes were made");
}
