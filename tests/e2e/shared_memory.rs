//! Tensors between processes of one machine go through memory that two of them share, if both want that.

use crate::{
    fleet::{Fleet, config},
    kill::{Seen, reduce_with_death},
    peer::WATCHDOG,
};
use pccl::{MasterConfig, RunKey};
use pccl_tests::spec::Spec;
use std::time::Instant;

/// Several times what the memory of a connection holds.
const LARGE: usize = 3_000_000;

fn keyed() -> MasterConfig {
    MasterConfig { run_key: Some(RunKey::from_bytes([3; 32])), ..config() }
}

/// How many pieces of shared memory each peer has mapped.
fn mapped(fleet: &Fleet) -> Vec<usize> {
    let rings = |pid: u32| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a living peer");
        maps.lines().filter(|line| line.contains("/memfd:pccl-ring")).count()
    };
    fleet.iter().map(|peer| rings(peer.pid())).collect()
}

/// Waits until each peer has this number of them: links of edges that are over close in their own time.
#[track_caller]
fn await_mapped(fleet: &Fleet, rings: usize) {
    let deadline = Instant::now() + WATCHDOG;
    while mapped(fleet) != vec![rings; fleet.len()] {
        assert!(Instant::now() < deadline, "{:?} instead of {rings}", mapped(fleet));
        pccl_testkit::barrier::look_again();
    }
}

fn reduce(fleet: &mut Fleet) {
    for (seed, count) in [1, 1000, LARGE, LARGE + 1].into_iter().enumerate() {
        fleet.reduce(Spec::sum(count, seed as u64));
        fleet.reduce(Spec { in_place: false, ..Spec::sum(count, seed as u64) });
    }
}

#[test]
fn each_edge_has_its_own_if_both_ends_want_it() {
    for config in [config(), keyed()] {
        // Two peers have an edge in each direction.
        let cases: [([&[&str]; 2], usize); 4] = [
            ([&[], &[]], 2),
            ([&["shared=0"], &["shared=0"]], 0),
            ([&["shared=0"], &[]], 0),
            ([&["pool=3"], &["pool=3"]], 6),
        ];
        for (settings, rings) in cases {
            let mut fleet = Fleet::with_each(config.clone(), &settings);
            reduce(&mut fleet);
            await_mapped(&fleet, rings);
        }
    }
}

/// As with sockets: the others hear of a death at once, name it, and keep nothing of it.
#[test]
fn a_peer_dies_in_the_middle_and_leaves_nothing_behind() {
    for config in [config(), keyed()] {
        let mut fleet = Fleet::with(config, 3, &[]);
        fleet.await_mesh();
        reduce(&mut fleet);
        // Two edges to each of the others, one from each.
        await_mapped(&fleet, 4);
        for (victim, nth) in [(1, 1), (0, 3)] {
            reduce_with_death(&mut fleet, victim, "frame begins", nth, Spec::sum(LARGE, 5), Seen::Verdict);
            fleet.reduce(Spec::sum(LARGE, 6));
            await_mapped(&fleet, 2);
            fleet.join(&[]);
            fleet.await_mesh();
            reduce(&mut fleet);
            await_mapped(&fleet, 4);
        }
    }
}
