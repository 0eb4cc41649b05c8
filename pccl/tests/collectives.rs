//! Each kind of collective among peers that are threads of this process: what they end with.

mod failures;
mod late;
mod moves;

use crate::together::together;
use pccl::{
    Algorithm, Block, Call, Cause, CollectiveOptions, Communicator, Error, Master, MasterConfig, ReduceInfo,
    ReduceOp, ReduceOptions, Schedule, Scheme,
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// No elements, fewer than peers, some, and several frames in each chunk.
const COUNTS: [usize; 4] = [0, 1, 1000, 400_000];

fn new_master() -> Master {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    Master::launch(config).expect("master starts")
}

/// Peers of one run, by their ranks.
struct Peers {
    all: Vec<Communicator>,
    _master: Master,
}

impl Peers {
    fn new(count: usize) -> Self {
        let master = new_master();
        let address = master.local_addr().to_string();
        Self::at(&vec![address; count], master)
    }

    /// Each reaches the master under an address of its own.
    fn at(addresses: &[String], master: Master) -> Self {
        let count = addresses.len();
        let peer = |index: usize| {
            let builder =
                Communicator::builder(&addresses[index]).first_ports(0, 0).name(&format!("peer{index}"));
            builder.build().expect("valid settings")
        };
        let all: Vec<Communicator> = (0..count).map(peer).collect();
        let mut peers = Self { all, _master: master };
        peers.each(|comm| {
            comm.connect().expect("connect");
            comm.wait_for_world(count, Some(PATIENCE)).expect("all are there");
        });
        peers.all.sort_by_key(|comm| comm.world().rank);
        peers
    }

    /// Runs `call` on all peers at once; results by rank.
    fn each<R: Send>(&self, call: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        together(&self.all, |_, comm| call(comm))
    }
}

/// The content of a rank: whole numbers, so that every order of additions gives the same.
fn content(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| (rank * 1000 + index % 997) as f32).collect()
}

fn sum(ranks: usize, count: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| content(rank, count)).collect();
    (0..count).map(|index| all.iter().map(|of| of[index]).sum()).collect()
}

/// The verdict that all hear of a call that failed.
fn verdict_of(error: &Error) -> &pccl::Verdict {
    error.verdict().unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn a_broadcast_gives_all_what_the_root_has() {
    for ranks in [2, 3, 5] {
        let peers = Peers::new(ranks);
        for (count, root) in COUNTS.into_iter().flat_map(|count| [(count, 0), (count, ranks - 1)]) {
            let results = peers.each(|comm| {
                let mut data = content(comm.world().rank, count);
                let info = comm.broadcast(&mut data, root, 7).expect("all call it");
                assert_eq!((info.world_size, info.rank), (ranks, comm.world().rank));
                data
            });
            assert!(results.iter().all(|data| *data == content(root, count)), "{ranks} ranks, {count}");
        }
        let root = peers.all[1].id().expect("connected");
        let results = peers.each(|comm| {
            let mut data = [comm.world().rank as u64; 3];
            comm.broadcast(&mut data, root, ()).map(|_| data)
        });
        assert!(results.into_iter().all(|data| data == Ok([1; 3])));
    }
}

#[test]
fn an_all_gather_gives_all_what_each_one_has() {
    for ranks in [2, 3, 5] {
        let peers = Peers::new(ranks);
        for count in COUNTS {
            let expected: Vec<f32> = (0..ranks).flat_map(|rank| content(rank, count)).collect();
            let results = peers.each(|comm| {
                let (send, mut recv) = (content(comm.world().rank, count), vec![f32::NAN; ranks * count]);
                comm.all_gather(&send, &mut recv, ()).expect("all call it");
                recv
            });
            assert!(results.iter().all(|recv| *recv == expected), "{ranks} ranks, {count}");
            // The first one has nothing, the last one most.
            let counts: Vec<u64> = (0..ranks).map(|rank| (rank * count) as u64).collect();
            let expected: Vec<f32> = (0..ranks).flat_map(|rank| content(rank, rank * count)).collect();
            let results = peers.each(|comm| {
                let rank = comm.world().rank;
                let (send, mut recv) = (content(rank, rank * count), vec![f32::NAN; expected.len()]);
                comm.all_gather_counts(&send, &mut recv, &counts, ()).expect("all call it");
                recv
            });
            assert!(results.iter().all(|recv| *recv == expected), "{ranks} ranks, counts {counts:?}");
        }
    }
}

#[test]
fn a_reduce_gives_the_root_the_result_and_leaves_the_others_what_they_have() {
    for ranks in [2, 3, 5] {
        let peers = Peers::new(ranks);
        for (count, root) in COUNTS.into_iter().flat_map(|count| [(count, 0), (count, ranks - 1)]) {
            let results = peers.each(|comm| {
                let mut data = content(comm.world().rank, count);
                comm.reduce(&mut data, root, ReduceOp::Sum).expect("all call it");
                data
            });
            for (rank, data) in results.into_iter().enumerate() {
                let expected = if rank == root { sum(ranks, count) } else { content(rank, count) };
                assert!(data == expected, "rank {rank} of {ranks}, root {root}, {count}");
            }
        }
    }
}

#[test]
fn a_reduce_scatter_gives_each_one_its_part() {
    for ranks in [2, 3, 5] {
        let peers = Peers::new(ranks);
        for count in COUNTS {
            let expected = sum(ranks, ranks * count);
            let results = peers.each(|comm| {
                let (send, mut recv) = (content(comm.world().rank, ranks * count), vec![f32::NAN; count]);
                comm.reduce_scatter(&send, &mut recv, ReduceOp::Sum).expect("all call it");
                assert!(send == content(comm.world().rank, ranks * count));
                recv
            });
            assert!(results.concat() == expected, "{ranks} ranks, {count}");
            // The first one gets nothing, the last one most.
            let counts: Vec<u64> = (0..ranks).map(|rank| (rank * count) as u64).collect();
            let all = counts.iter().sum::<u64>() as usize;
            let results = peers.each(|comm| {
                let rank = comm.world().rank;
                let mut recv = vec![f32::NAN; rank * count];
                let sum = ReduceOptions::new(ReduceOp::Sum);
                comm.reduce_scatter_counts(&content(rank, all), &mut recv, &counts, sum)
                    .expect("all call it");
                recv
            });
            assert!(results.concat() == sum(ranks, all), "{ranks} ranks, counts {counts:?}");
        }
        let errors = peers.each(|comm| {
            let mut recv = [7_i32; 2];
            let error = comm.reduce_scatter(&[1; 14], &mut recv, ReduceOp::Sum).expect_err("for seven");
            assert_eq!(recv, [7; 2]);
            error
        });
        assert!(errors.iter().all(|error| verdict_of(error).cause == Cause::WorldChanged));
    }
}

#[test]
fn nobody_goes_on_from_a_barrier_before_all_have_come() {
    for ranks in [2, 3, 5] {
        let (peers, come) = (Peers::new(ranks), AtomicUsize::new(0));
        for round in 1..=5 {
            peers.each(|comm| {
                come.fetch_add(1, Ordering::SeqCst);
                let info = comm.barrier(()).expect("all call it");
                assert_eq!((info.world_size, info.tx_bytes, info.rx_bytes), (ranks, 0, 0));
                assert_eq!(come.load(Ordering::SeqCst), round * ranks);
            });
        }
    }
}

#[test]
fn a_weighted_average_divides_by_the_sum_of_the_weights() {
    let peers = Peers::new(3);
    for count in COUNTS {
        // Weights 0, 1 and 2.
        let expected: Vec<f32> = content(1, count).iter().map(|value| value + 2000.0 / 3.0).collect();
        let results = peers.each(|comm| {
            let rank = comm.world().rank;
            let mut data = content(rank, count);
            comm.weighted_average(&mut data, rank as f64, ()).expect("all call it");
            data
        });
        assert!(results.iter().all(|data| *data == results[0]), "all the same");
        let far = results[0].iter().zip(&expected).find(|(a, b)| (*a - *b).abs() > 1e-3);
        assert_eq!((results[0].len(), far), (count, None));
    }
    let errors = peers.each(|comm| {
        let mut data = [1.5_f64, -2.0];
        let error = comm.weighted_average(&mut data, 0.0, ()).expect_err("nobody has a weight");
        assert_eq!(data, [1.5, -2.0]);
        error
    });
    assert!(
        errors.iter().all(|error| matches!(error, Error::InvalidArgument(text) if text.contains("together")))
    );
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        let error = peers.all[0].weighted_average(&mut [1.0_f32], weight, ()).expect_err("no weight");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    let error = peers.all[0].weighted_average(&mut [1_u8], 1.0, ()).expect_err("no float");
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
}

/// Over the mesh there is one hop to each, or to the owner.
#[test]
fn small_ones_go_over_the_mesh_once_it_stands() {
    for ranks in [3, 4] {
        let peers = Peers::new(ranks);
        peers.each(|comm| {
            let rank = comm.world().rank;
            // All peers see the same way, so all stop trying at the same time.
            let stands = (0..100_000).any(|_| {
                let info = comm.broadcast(&mut [1_u8], 0, ()).expect("all call it");
                info.algorithm == Algorithm::Pairwise
            });
            assert!(stands, "the mesh does not stand");
            let direct = |info: Result<ReduceInfo, Error>| {
                assert_eq!(info.map(|info| info.algorithm), Ok(Algorithm::Pairwise));
            };
            let count = 1000;
            let mut data = content(rank, count);
            direct(comm.broadcast(&mut data, 1, ()));
            assert!(data == content(1, count));
            let (own, mut recv) = (content(rank, count), vec![f32::NAN; ranks * count]);
            direct(comm.all_gather(&own, &mut recv, ()));
            assert!(recv == (0..ranks).flat_map(|rank| content(rank, count)).collect::<Vec<_>>());
            let counts: Vec<u64> = (0..ranks).map(|rank| (rank * count) as u64).collect();
            let mut recv = vec![f32::NAN; counts.iter().sum::<u64>() as usize];
            direct(comm.all_gather_counts(&content(rank, rank * count), &mut recv, &counts, ()));
            assert!(recv == (0..ranks).flat_map(|rank| content(rank, rank * count)).collect::<Vec<_>>());
            let mut data = own.clone();
            direct(comm.reduce(&mut data, 1, ReduceOp::Sum));
            assert!(data == if rank == 1 { sum(ranks, count) } else { own.clone() });
            let (send, mut part) = (content(rank, ranks * count), vec![f32::NAN; count]);
            direct(comm.reduce_scatter(&send, &mut part, ReduceOp::Sum));
            assert!(part == sum(ranks, ranks * count)[rank * count..(rank + 1) * count]);
            let ring = CollectiveOptions { schedule: Schedule::Ring, ..CollectiveOptions::default() };
            let around = comm.broadcast(&mut data, 1, ring).expect("all call it");
            assert_eq!(around.algorithm, Algorithm::Ring);
            // One that is large goes along the chain, unless the callers choose.
            let mut large = content(rank, 400_000);
            let chain = comm.broadcast(&mut large, 2, ()).expect("all call it");
            assert_eq!(chain.algorithm, Algorithm::Ring);
            let schedule = Schedule::Pairwise;
            direct(comm.broadcast(
                &mut large,
                2,
                CollectiveOptions { schedule, ..CollectiveOptions::default() },
            ));
            assert!(large == content(2, 400_000));
        });
    }
}

#[test]
fn what_is_quantised_is_the_same_on_all_and_close() {
    let peers = Peers::new(3);
    let count = 100_000;
    let how = || CollectiveOptions {
        quantisation: Some(Scheme::BlockAffineU8(Block::B64).into()),
        ..CollectiveOptions::default()
    };
    let close = |data: &[f32], expected: &[f32], within: f32| {
        assert_eq!(data.len(), expected.len());
        assert!(data.iter().zip(expected).all(|(a, b)| (a - b).abs() <= within));
    };
    let results = peers.each(|comm| {
        let mut data = content(comm.world().rank, count);
        comm.broadcast(&mut data, 1, how()).expect("all call it");
        data
    });
    assert!(results.iter().all(|data| *data == results[0]) && results[0] != content(1, count));
    close(&results[0], &content(1, count), 3.0);
    let results = peers.each(|comm| {
        let mut recv = vec![0.0; 3 * count];
        comm.all_gather(&content(comm.world().rank, count), &mut recv, how()).expect("all call it");
        recv
    });
    assert!(results.iter().all(|recv| *recv == results[0]));
    close(&results[0], &(0..3).flat_map(|rank| content(rank, count)).collect::<Vec<_>>(), 3.0);
    let results = peers.each(|comm| {
        let mut data = content(comm.world().rank, count);
        let how = ReduceOptions::new(ReduceOp::Sum).quantisation(Scheme::BlockAffineU8(Block::B64));
        comm.reduce(&mut data, 2, how).expect("all call it");
        data
    });
    close(&results[2], &sum(3, count), 12.0);
    assert_eq!(results[0], content(0, count));
    let results = peers.each(|comm| {
        let mut data = content(comm.world().rank, count);
        comm.weighted_average(&mut data, 1.0, how()).expect("all call it");
        data
    });
    assert!(results.iter().all(|data| *data == results[0]));
    close(&results[0], &content(1, count), 6.0);
    let error = peers.all[0].broadcast(&mut [1_u8], 0, how()).expect_err("no float");
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
}

#[test]
fn several_of_different_kinds_are_in_flight_at_once() {
    let peers = Peers::new(3);
    let results = peers.each(|comm| {
        let rank = comm.world().rank;
        let mut first = content(rank, 50_000);
        let (send, mut gathered) = ([rank as i32; 2], [0; 6]);
        let (mut reduced, mut summed) = ([rank as u16 + 1], content(rank, 10));
        comm.scope(|scope| {
            let calls = [
                scope.launch(Call::broadcast(&mut first[..], 2), 1),
                scope.launch(Call::all_gather(&send[..], &mut gathered[..]), 2),
                scope.launch(Call::reduce(&mut reduced[..], 0, ReduceOp::Prod), 3),
                scope.all_reduce(&mut summed, ReduceOptions::new(ReduceOp::Sum).tag(4)),
            ];
            for call in calls {
                call.expect("launched").wait().expect("all call it");
            }
        });
        (first, gathered, reduced, summed)
    });
    for (rank, (first, gathered, reduced, summed)) in results.into_iter().enumerate() {
        assert!(first == content(2, 50_000) && summed == sum(3, 10));
        assert_eq!((gathered, reduced), ([0, 0, 1, 1, 2, 2], [if rank == 0 { 6 } else { rank as u16 + 1 }]));
    }
}

/// A process has its own sockets to all others beside ring and mesh when there are more than eight.
#[test]
fn each_sends_to_each_at_the_same_time() {
    for ranks in [2, 3, 5, 10] {
        let peers = Peers::new(ranks);
        let counts: &[usize] = if ranks == 10 { &[1000] } else { &COUNTS };
        for (count, shift) in counts.iter().flat_map(|count| (1..ranks).map(|shift| (*count, shift))) {
            peers.each(|comm| {
                let rank = comm.world().rank;
                let (to, from) = ((rank + shift) % ranks, (rank + ranks - shift) % ranks);
                let (own, mut other, mut all) = (content(rank, count), vec![-1.0; count], vec![1.0_f32]);
                // One number for three operations.
                let exchanged: Result<(), Error> = comm.scope(|scope| {
                    let sent = scope.launch(Call::send(&own[..], to), 3)?;
                    let received = scope.launch(Call::recv(&mut other[..], from), 3)?;
                    let reduced = scope.all_reduce(&mut all, ReduceOptions::new(ReduceOp::Sum).tag(3))?;
                    let (sent, received) = (sent.wait()?, received.wait()?);
                    assert_eq!((sent.world_size, sent.rank, received.rank), (2, 0, 1));
                    reduced.wait().map(drop)
                });
                exchanged.expect("all call it");
                assert!(own == content(rank, count) && other == content(from, count), "{ranks} {shift}");
                assert_eq!(all, [ranks as f32]);
            });
        }
    }
}
