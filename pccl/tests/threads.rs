//! Peers as threads of one process: the whole client library against a real master, over loopback.

use pccl::{
    Algorithm, Communicator, Master, MasterConfig, ReduceOp, ReduceOptions, Schedule, SharedState,
    SyncStrategy,
};
use pccl_testkit::barrier::Barrier;
use std::time::Duration;

fn config() -> MasterConfig {
    let _ = env_logger::builder().is_test(true).try_init();
    MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() }
}

fn master() -> Master {
    Master::launch(config()).expect("master starts")
}

fn peer(master: &Master) -> Communicator {
    Communicator::builder(&master.local_addr().to_string()).first_ports(0, 0).build().expect("valid settings")
}

/// Connects `n` peers and runs `body` on each, on a thread of its own; all of them are in the world.
fn run(n: usize, body: impl Fn(usize, &Communicator) + Sync) {
    run_with(&master(), n, body);
}

/// [`run`] with this master.
fn run_with(master: &Master, n: usize, body: impl Fn(usize, &Communicator) + Sync) {
    let start = Barrier::new(n);
    std::thread::scope(|scope| {
        for index in 0..n {
            let (start, body) = (&start, &body);
            scope.spawn(move || {
                let comm = peer(master);
                comm.connect().expect("connect");
                comm.wait_for_world(n, Some(Duration::from_secs(60))).expect("world complete");
                start.wait();
                body(index, &comm);
                start.wait();
            });
        }
    });
}

#[test]
fn three_peers_sum_in_place_and_average_out_of_place() {
    run(3, |index, comm| {
        assert_eq!(comm.world().group_size, 3);
        let mut data: Vec<f32> = (0..100_000).map(|i| (i + index) as f32).collect();
        let info = comm.all_reduce(&mut data, ReduceOp::Sum).expect("sum");
        assert_eq!(info.world_size, 3);
        assert!(data.iter().enumerate().all(|(i, &v)| v == (3 * i + 3) as f32));
        let send = vec![index as f64; 17];
        let mut recv = vec![0f64; 17];
        comm.all_reduce_into(&send, &mut recv, ReduceOp::Avg).expect("average");
        assert!(recv.iter().all(|&v| v == 1.0));
        assert!(send.iter().all(|&v| v == index as f64));
    });
}

#[test]
fn two_peers_share_state() {
    run(2, |index, comm| {
        let (mut w, mut m) = (vec![index as f32; 1000], vec![7u8; 3]);
        let mut state = SharedState::new(if index == 0 { 5 } else { 0 });
        state.tensor("w", &mut w).expect("key").tensor("m", &mut m).expect("key");
        let info = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("sync");
        assert_eq!(info.revision, 5);
        assert_eq!(info.rx_bytes, if index == 0 { 0 } else { 4000 });
        assert_eq!(state.revision(), 5);
        assert!(w.iter().all(|&v| v == 0.0));
    });
}

/// A lone peer whose waits time out again and again while another one joins: either the wait that admits the newcomer
/// succeeds, or the newcomer is still outside. Were the answer lost, the two would wait for each other in different
/// calls.
#[test]
fn a_wait_that_times_out_never_loses_a_newcomer() {
    for round in 0..20u32 {
        let master = master();
        let (first, second) = (peer(&master), peer(&master));
        first.connect().expect("connect");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                second.connect().expect("connect");
                second.all_reduce(&mut [1.0f32], ReduceOp::Sum).expect("two peers");
            });
            let timeout = Duration::from_micros(u64::from(200 + 150 * round));
            while first.wait_for_world(2, Some(timeout)).is_err() {
                assert_eq!(first.world().global_size, 1, "a wait that failed has admitted nobody");
            }
            first.all_reduce(&mut [1.0f32], ReduceOp::Sum).expect("two peers");
        });
    }
}

/// Small operations with tags of their own end while a large one moves that began right behind them, and with them an
/// epoch of the group: what runs goes on.
fn large_operations_beside_many_tags(peers: usize, schedule: Schedule, algorithm: Algorithm) {
    const LARGE: usize = 4 << 20;
    const BATCH: usize = 4;
    let settings = MasterConfig { tag_history: 1, peer_timeout: Duration::from_secs(60), ..config() };
    let master = Master::launch(settings).expect("master starts");
    run_with(&master, peers, |index, comm| {
        let sum = |tag: u64| ReduceOptions::new(ReduceOp::Sum).tag(tag);
        for round in 0..40 {
            let (mut small, mut large) = ([[1u64]; BATCH], vec![index as f32; LARGE]);
            comm.scope(|ops| {
                let tags = round * (BATCH as u64 + 1)..;
                let launched: Vec<_> = small
                    .iter_mut()
                    .zip(tags)
                    .map(|(data, tag)| ops.all_reduce(data, sum(tag)).expect("launched"))
                    .collect();
                let options = ReduceOptions { schedule, ..sum(1_000_000 + round) };
                let large = ops.all_reduce(&mut large, options).expect("launched");
                for op in launched {
                    op.wait().expect("a small operation of healthy peers");
                }
                let info = large.wait().expect("a large operation of healthy peers");
                assert_eq!(info.algorithm, algorithm);
            });
            assert_eq!(small, [[peers as u64]; BATCH]);
            let ranks = (0..peers).sum::<usize>() as f32;
            assert!(large.iter().all(|sum| *sum == ranks));
        }
    });
}

#[test]
fn large_operations_around_the_ring_outlive_the_end_of_an_epoch() {
    large_operations_beside_many_tags(2, Schedule::Ring, Algorithm::Ring);
}

#[test]
fn large_operations_over_the_mesh_outlive_the_end_of_an_epoch() {
    large_operations_beside_many_tags(3, Schedule::Pairwise, Algorithm::Pairwise);
}
