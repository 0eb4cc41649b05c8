//! Each kind of collective among peers that are threads of this process: what they end with, and what fails.

use pccl::{
    Algorithm, Block, Call, CallKind, Cause, CollectiveKind, CollectiveOptions, Communicator, Error, Master,
    MasterConfig, ReduceInfo, ReduceOp, ReduceOptions, Remedy, Schedule, Scheme,
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// No elements, fewer than peers, some, and several frames in each chunk.
const COUNTS: [usize; 4] = [0, 1, 1000, 400_000];

/// Peers of one run, by their ranks.
struct Peers {
    all: Vec<Communicator>,
    _master: Master,
}

impl Peers {
    fn new(count: usize) -> Self {
        let _ = env_logger::builder().is_test(true).try_init();
        let config =
            MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
        let master = Master::launch(config).expect("master starts");
        let address = master.local_addr().to_string();
        let peer = |index: usize| {
            let builder = Communicator::builder(&address).first_ports(0, 0).name(&format!("peer{index}"));
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
        thread::scope(|scope| {
            let call = &call;
            let threads: Vec<_> = self.all.iter().map(|comm| scope.spawn(move || call(comm))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }
}

/// What a rank has: whole numbers, so that every order of additions gives the same.
fn content(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| (rank * 1000 + index % 997) as f32).collect()
}

fn sum(ranks: usize, count: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| content(rank, count)).collect();
    (0..count).map(|index| all.iter().map(|of| of[index]).sum()).collect()
}

/// Retries what fails because a mesh has come to stand, or the like.
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

#[test]
fn different_calls_with_one_tag_fail_for_all_and_name_both() {
    let peers = Peers::new(2);
    let errors = peers.each(|comm| {
        let mut data = [1.0_f32; 4];
        let error = match comm.world().rank {
            0 => comm.broadcast(&mut data, 1, ()).expect_err("the other one reduces"),
            _ => comm.all_reduce(&mut data, ReduceOp::Sum).expect_err("the other one broadcasts"),
        };
        assert_eq!(data, [1.0; 4]);
        error
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!((verdict_of(&errors[0]).cause, errors[0].remedy()), (Cause::MismatchedCall, Remedy::GiveUp));
    let text = errors[0].to_string();
    assert!(text.contains("as broadcast from") && text.contains("as all-reduce"), "{text}");
    // Roots that differ are calls that differ.
    let errors =
        peers.each(|comm| comm.broadcast(&mut [1_u8], comm.world().rank, ()).expect_err("two roots"));
    assert!(errors[0].to_string().starts_with("broadcast tag 0"), "{}", errors[0]);
}

#[test]
fn calls_for_members_that_are_gone_fail_for_all_and_may_be_made_again() {
    let mut peers = Peers::new(3);
    let gone = peers.all.pop().expect("three");
    let root = gone.id().expect("connected");
    gone.close();
    let errors = peers.each(|comm| {
        let mut data = [2.5_f64; 3];
        let error = comm.broadcast(&mut data, root, ()).expect_err("the root has left");
        assert_eq!(data, [2.5; 3]);
        error
    });
    assert_eq!(errors[0], errors[1]);
    let verdict = verdict_of(&errors[0]);
    assert_eq!((verdict.cause, errors[0].remedy()), (Cause::WorldChanged, Remedy::Retry));
    assert_eq!(verdict.culprits.iter().map(|culprit| culprit.peer).collect::<Vec<_>>(), [root]);
    let errors = peers.each(|comm| comm.all_gather(&[1_u8], &mut [0; 3], ()).expect_err("for three"));
    assert_eq!(verdict_of(&errors[0]).cause, Cause::WorldChanged);
    assert!(errors[0].to_string().contains("called for 3 peers, and the group has 2"), "{}", errors[0]);
    // The verdict has brought the world with it.
    let results = peers.each(|comm| {
        let world = comm.world();
        let mut recv = vec![9; world.ring.len()];
        comm.all_gather(&[world.rank as u8], &mut recv, ()).map(|_| recv)
    });
    assert!(results.into_iter().all(|recv| recv == Ok(vec![0, 1])));
}

#[test]
fn a_call_that_fits_no_world_is_wrong_for_good_the_second_time() {
    let peers = Peers::new(3);
    let gather = |comm: &Communicator, parts: usize| comm.all_gather(&[1_u8], &mut vec![0; parts], ());
    // A loop of steps ends with it, and does not try for ever.
    let errors = peers.each(|comm| {
        let mut steps = 0;
        let result = comm.run(
            &mut steps,
            3,
            |_| true,
            |comm, steps| {
                *steps += 1;
                gather(comm, 4).map(drop)
            },
        );
        (result.expect_err("there are three"), steps)
    });
    let ids: Vec<String> = peers.all.iter().map(|comm| comm.id().expect("connected").to_string()).collect();
    for (error, steps) in &errors {
        let text = error.to_string();
        assert!(matches!(error, Error::InvalidArgument(_)) && error.remedy() == Remedy::GiveUp, "{text}");
        assert!(
            text.contains("all-gather of 4 equal parts") && ids.iter().all(|id| text.contains(id)),
            "{text}"
        );
        assert_eq!((*steps, text), (2, errors[0].0.to_string()));
    }
    // What fits goes on, and another kind has a row of its own.
    assert!(peers.each(|comm| gather(comm, 3)).iter().all(Result::is_ok));
    let errors = peers.each(|comm| gather(comm, 4).expect_err("there are three"));
    assert!(errors.iter().all(|error| verdict_of(error).cause == Cause::WorldChanged));
}

#[test]
fn each_has_a_limit() {
    let peers = Peers::new(2);
    let (comm, short) = (&peers.all[0], Duration::from_millis(200));
    let options = || CollectiveOptions { timeout: Some(short), ..CollectiveOptions::default() };
    let mut data = [3.0_f32; 2];
    let call = |error: Error| match error {
        Error::TimedOut { call, verdict: Some(_), .. } => call,
        other => panic!("{other}"),
    };
    let kinds = [
        (comm.broadcast(&mut data, 1, options()), CollectiveKind::Broadcast),
        (comm.all_gather(&[1.0], &mut [0.0_f32; 2], options()), CollectiveKind::AllGather),
        (comm.reduce(&mut data, 0, ReduceOptions::new(ReduceOp::Max).timeout(short)), CollectiveKind::Reduce),
        (comm.weighted_average(&mut data, 1.0, options()), CollectiveKind::AllReduce),
    ];
    for (result, kind) in kinds {
        assert_eq!(call(result.expect_err("nobody else calls it")), CallKind::Collective(kind));
    }
    assert_eq!(data, [3.0; 2]);
}

#[test]
fn buffers_that_do_not_fit_are_refused_at_once() {
    let peers = Peers::new(2);
    let comm = &peers.all[0];
    let mut data = [0.0_f32; 5];
    let refused = [
        comm.broadcast(&mut data, 2, ()),
        comm.reduce(&mut data, 2, ReduceOp::Sum),
        comm.all_gather(&[1.0, 2.0], &mut data, ()),
        comm.all_gather_counts(&[1.0, 2.0], &mut data, &[2, 4], ()),
        comm.all_gather_counts(&[1.0], &mut data, &[1, 2, 2], ()),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
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

#[test]
fn two_who_do_not_agree_on_what_is_sent_both_learn_it() {
    let peers = Peers::new(3);
    let errors = peers.each(|comm| {
        let (mut data, before) = (vec![7.0_f32; 10], vec![7.0_f32; 10]);
        let result = match comm.world().rank {
            0 => comm.send(&data, 1, ()),
            1 => comm.recv(&mut data[..9], 0, ()),
            // Nobody waits for this one.
            _ => return None,
        };
        assert_eq!(data, before);
        Some(result.expect_err("lengths differ"))
    });
    for error in errors.iter().flatten() {
        let verdict = verdict_of(error);
        assert_eq!(verdict.cause, Cause::MismatchedCall);
        assert_eq!(verdict.culprits.len(), 2);
    }
    // The tag is usable again.
    let sums = peers.each(|comm| {
        let mut data = content(0, 100);
        match comm.world().rank {
            0 => comm.send(&data, 1, ()).map(drop),
            1 => {
                data.fill(0.0);
                comm.recv(&mut data, 0, ()).map(drop)
            }
            _ => Ok(()),
        }
        .expect("fits");
        data
    });
    assert!(sums.iter().all(|data| *data == content(0, 100)));
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let peers = Peers::new(2);
    let comm = &peers.all[0];
    let refused = |result: Result<ReduceInfo, Error>, part: &str| {
        let error = result.expect_err("refused");
        assert!(matches!(&error, Error::InvalidArgument(text) if text.contains(part)), "{error}");
    };
    refused(comm.send(&[1.0_f32], 0, ()), "to itself");
    refused(comm.recv(&mut [1.0_f32], comm.id().expect("connected"), ()), "to itself");
    refused(comm.send(&[1.0_f32], 2, ()), "no rank 2 in a group of 2");
    let quantised =
        CollectiveOptions { quantisation: Some(Scheme::BlockAffineU8(Block::B64).into()), ..().into() };
    refused(comm.send(&[1.0_f32], 1, quantised), "not quantised");
    let gone = pccl::PeerId(77);
    let error = comm.send(&[1.0_f32], gone, ()).expect_err("no such member");
    let verdict = verdict_of(&error);
    assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::WorldChanged, gone));
}

#[test]
fn who_receives_waits_as_long_as_it_wants_and_the_end_of_a_third_is_none_of_its_business() {
    let mut peers = Peers::new(4);
    let timeout = Some(Duration::from_millis(300));
    let options = CollectiveOptions { timeout, ..CollectiveOptions::default() };
    let error = peers.all[1].recv(&mut [0.0_f32; 4], 0, options).expect_err("nobody sends");
    assert!(matches!(&error, Error::TimedOut { .. }), "{error}");
    let verdict = verdict_of(&error);
    assert_eq!(verdict.culprits.len(), 1, "{verdict}");
    assert_eq!(Some(verdict.culprits[0].peer), peers.all[0].id(), "{verdict}");
    // The sender learns the outcome of the try that was given up.
    let late = peers.all[0].send(&[0.0_f32; 4], 1, ()).expect_err("was given up");
    assert_eq!(verdict_of(&late).cause, Cause::CallTimeout);
    let third = peers.all.pop().expect("four");
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut data = vec![0.0_f32; 100_000];
            peers.all[1].recv(&mut data, 0, 5).expect("it comes");
            data
        });
        let _ = third.close_within(PATIENCE);
        drop(third);
        let data = content(0, 100_000);
        peers.all[0].send(&data, 1, 5).expect("it is received");
        assert!(receiver.join().expect("no panic") == data);
    });
}
