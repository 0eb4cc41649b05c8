//! Gather, scatter and all-to-all: each part goes to one peer, over the ring, over the mesh, and by ranks between.

use super::{COUNTS, Peers, content, verdict_of};
use pccl::{
    Algorithm, Block, Call, Cause, CollectiveOptions, Communicator, Error, ReduceInfo, Schedule, Scheme,
};

/// Around the ring, or as the library has it.
fn ways() -> [CollectiveOptions; 2] {
    [Schedule::Ring, Schedule::Automatic]
        .map(|schedule| CollectiveOptions { schedule, ..CollectiveOptions::default() })
}

/// The elements of each rank, where they are not equal: the first one has none.
fn rising(ranks: usize, count: usize) -> Vec<u64> {
    (0..ranks).map(|rank| (rank * count) as u64).collect()
}

/// How many elements a rank gives another one, where parts are not equal.
fn part(from: usize, to: usize, count: usize) -> usize {
    if (from + to).is_multiple_of(3) { 0 } else { (from + 2 * to) * count }
}

/// The elements that a rank gives another one: each says who gives it to whom.
fn block(from: usize, to: usize, count: usize) -> Vec<f32> {
    content(100 * from + to, count)
}

#[test]
fn a_gather_gives_the_root_what_each_one_has() {
    for ranks in [2, 3, 5, 10] {
        let peers = Peers::new(ranks);
        let counts: &[usize] = if ranks == 10 { &[1000] } else { &COUNTS };
        for (count, root, how) in counts.iter().flat_map(|count| {
            ways().map(|how| (*count, 0, how)).into_iter().chain(ways().map(|how| (*count, ranks - 1, how)))
        }) {
            let given = peers.each(|comm| {
                let rank = comm.world().rank;
                let (send, size) = (content(rank, count), if rank == root { ranks * count } else { 0 });
                let mut recv = vec![f32::NAN; size];
                let info = comm.gather(&send, &mut recv, root, how).expect("all call it");
                assert_eq!((info.world_size, info.rank), (ranks, rank));
                assert!(send == content(rank, count));
                recv
            });
            let expected: Vec<f32> = (0..ranks).flat_map(|rank| content(rank, count)).collect();
            assert!(given[root] == expected, "{ranks} ranks, root {root}, {count}");
            let counts = rising(ranks, count);
            let given = peers.each(|comm| {
                let rank = comm.world().rank;
                let all = counts.iter().sum::<u64>() as usize;
                let mut recv = vec![f32::NAN; if rank == root { all } else { 0 }];
                let send = content(rank, rank * count);
                comm.gather_counts(&send, &mut recv, &counts, root, how).expect("all call it");
                recv
            });
            let expected: Vec<f32> = (0..ranks).flat_map(|rank| content(rank, rank * count)).collect();
            assert!(given[root] == expected, "{ranks} ranks, root {root}, counts {counts:?}");
        }
    }
}

#[test]
fn a_scatter_gives_each_one_its_part_of_what_the_root_has() {
    for ranks in [2, 3, 5, 10] {
        let peers = Peers::new(ranks);
        let counts: &[usize] = if ranks == 10 { &[1000] } else { &COUNTS };
        for (count, root, how) in counts.iter().flat_map(|count| {
            ways().map(|how| (*count, 0, how)).into_iter().chain(ways().map(|how| (*count, ranks - 1, how)))
        }) {
            let whole = content(7, ranks * count);
            let taken = peers.each(|comm| {
                let send: &[f32] = if comm.world().rank == root { &whole } else { &[] };
                let mut recv = vec![f32::NAN; count];
                comm.scatter(send, &mut recv, root, how).expect("all call it");
                recv
            });
            assert!(taken.concat() == whole, "{ranks} ranks, root {root}, {count}");
            let counts = rising(ranks, count);
            let whole = content(8, counts.iter().sum::<u64>() as usize);
            let taken = peers.each(|comm| {
                let rank = comm.world().rank;
                let send: &[f32] = if rank == root { &whole } else { &[] };
                let mut recv = vec![f32::NAN; rank * count];
                comm.scatter_counts(send, &mut recv, &counts, root, how).expect("all call it");
                recv
            });
            assert!(taken.concat() == whole, "{ranks} ranks, root {root}, counts {counts:?}");
        }
    }
}

#[test]
fn in_an_all_to_all_each_one_gets_a_part_of_each() {
    for ranks in [2, 3, 5, 10] {
        let peers = Peers::new(ranks);
        let counts: &[usize] = if ranks == 10 { &[1000] } else { &COUNTS };
        for (count, how) in counts.iter().flat_map(|count| ways().map(|how| (*count, how))) {
            peers.each(|comm| {
                let rank = comm.world().rank;
                let send: Vec<f32> = (0..ranks).flat_map(|to| block(rank, to, count)).collect();
                let mut recv = vec![f32::NAN; send.len()];
                comm.all_to_all(&send, &mut recv, how).expect("all call it");
                let expected: Vec<f32> = (0..ranks).flat_map(|from| block(from, rank, count)).collect();
                assert!(recv == expected, "rank {rank} of {ranks}, {count}");
            });
            let count = count / 10;
            peers.each(|comm| {
                let rank = comm.world().rank;
                let of = |counts: &dyn Fn(usize) -> usize| -> Vec<u64> {
                    (0..ranks).map(|other| counts(other) as u64).collect()
                };
                let (given, taken) = (of(&|to| part(rank, to, count)), of(&|from| part(from, rank, count)));
                let counts = comm.exchange_counts(&given, &taken, ()).expect("they fit");
                let send: Vec<f32> =
                    (0..ranks).flat_map(|to| block(rank, to, part(rank, to, count))).collect();
                let mut recv = vec![f32::NAN; taken.iter().sum::<u64>() as usize];
                comm.all_to_all_counts(&send, &mut recv, &counts, how).expect("all call it");
                let expected: Vec<f32> =
                    (0..ranks).flat_map(|from| block(from, rank, part(from, rank, count))).collect();
                assert!(recv == expected, "rank {rank} of {ranks}, parts of {count}");
            });
        }
    }
}

/// Each byte goes over one edge, however large the parts are.
#[test]
fn over_the_mesh_parts_go_straight() {
    let (ranks, count) = (4, 200_000);
    let peers = Peers::new(ranks);
    peers.each(|comm| {
        let stands = (0..100_000).any(|_| {
            let info = comm.broadcast(&mut [1_u8], 0, ()).expect("all call it");
            info.algorithm == Algorithm::Pairwise
        });
        assert!(stands, "the mesh does not stand");
        let rank = comm.world().rank;
        let moved = |info: Result<ReduceInfo, Error>| {
            let info = info.expect("all call it");
            (info.algorithm, info.tx_bytes as usize / 4 / count, info.rx_bytes as usize / 4 / count)
        };
        let (send, mut recv) = (content(rank, ranks * count), vec![0.0; ranks * count]);
        let others = ranks - 1;
        assert_eq!(moved(comm.all_to_all(&send, &mut recv, ())), (Algorithm::Pairwise, others, others));
        let gathered = moved(comm.gather(&send[..count], &mut recv, 1, ()));
        let at_root = rank == 1;
        let (tx, rx) = if at_root { (0, others) } else { (1, 0) };
        assert_eq!(gathered, (Algorithm::Pairwise, tx, rx));
        let scattered = moved(comm.scatter(&send, &mut recv[..count], 1, ()));
        assert_eq!(scattered, (Algorithm::Pairwise, rx, tx));
        // Around the ring ranks pass on what is for others, in memory of their own.
        let [ring, _] = ways();
        let around = moved(comm.all_to_all(&send, &mut recv, ring));
        assert_eq!(around, (Algorithm::Ring, ranks * others / 2, ranks * others / 2));
    });
}

#[test]
fn numbers_that_do_not_fit_each_other_are_told_to_all() {
    let peers = Peers::new(3);
    let errors = peers.each(|comm| {
        let taken = if comm.world().rank == 2 { [1, 4, 1] } else { [1; 3] };
        comm.exchange_counts(&[1; 3], &taken, ()).expect_err("rank 2 wants more")
    });
    for error in &errors {
        assert!(error.to_string().contains("rank 1 gives rank 2 1 elements, and rank 2 takes 4"), "{error}");
    }
    // Two who have other numbers than the third one.
    let errors = peers.each(|comm| {
        let mut counts = vec![2; 9];
        if comm.world().rank == 0 {
            (counts[1], counts[2], counts[4], counts[5]) = (1, 3, 3, 1);
        }
        comm.all_to_all_counts(&[1_u8; 6], &mut [0_u8; 6], &counts, ()).expect_err("they differ")
    });
    for error in &errors {
        let verdict = verdict_of(error);
        assert_eq!(verdict.cause, Cause::MismatchedCall, "{error}");
        assert!(error.to_string().contains("counts"), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_refused_at_once() {
    let peers = Peers::new(2);
    let (comm, rank) = (&peers.all[0], 0);
    let quantised =
        CollectiveOptions { quantisation: Some(Scheme::BlockAffineU8(Block::B64).into()), ..().into() };
    let (send, mut recv) = ([1.0_f32; 4], [0.0_f32; 4]);
    type Try<'a> = &'a mut dyn FnMut(&Communicator, &mut [f32]) -> Result<ReduceInfo, Error>;
    let mut refused = |text: &str, call: Try<'_>| {
        let error = call(comm, &mut recv).expect_err(text);
        assert!(matches!(&error, Error::InvalidArgument(said) if said.contains(text)), "{text}: {error}");
        assert_eq!(recv, [0.0; 4]);
    };
    refused("no rank 2", &mut |comm, recv| comm.gather(&send, recv, 2, ()));
    refused("not one part of 3", &mut |comm, recv| comm.gather(&send[..3], recv, 0, ()));
    refused("another sum", &mut |comm, recv| comm.gather_counts(&send[..1], recv, &[1, 2], 0, ()));
    refused("a count of 1", &mut |comm, recv| comm.gather_counts(&send[..2], recv, &[1, 2], 1, ()));
    refused("not one part of 4", &mut |comm, recv| comm.scatter(&send[..3], recv, 0, ()));
    refused("no equal part", &mut |comm, recv| comm.all_to_all(&send[..3], &mut recv[..3], ()));
    refused("no equal part", &mut |comm, recv| comm.all_to_all(&send[..2], recv, ()));
    refused("3 counts for a group of 2", &mut |comm, recv| {
        comm.all_to_all_counts(&send, recv, &[4, 0, 0], ())
    });
    refused("rank 0 gives 3", &mut |comm, recv| comm.all_to_all_counts(&send, recv, &[1, 2, 3, 4], ()));
    refused("too many", &mut |comm, recv| comm.all_to_all_counts(&send, recv, &[u64::MAX, 2, 3, 4], ()));
    // Nobody has memory for what the others are said to have, so it is not known before.
    let (far, farther) = (1 << 40, u64::MAX - 1);
    let counts = |count: u64| if rank == 0 { [1, count] } else { [count, 1] };
    let other = 1 - rank;
    refused("of all ranks", &mut |comm, recv| comm.gather_counts(&send[..1], recv, &counts(far), other, ()));
    refused("of all ranks", &mut |comm, recv| {
        comm.scatter_counts(&send, &mut recv[..1], &counts(far), other, ())
    });
    refused("of all ranks", &mut |comm, recv| {
        comm.gather_counts(&send[..1], recv, &counts(farther), other, ())
    });
    refused("not quantised", &mut |comm, recv| comm.all_to_all(&send, recv, quantised));
    refused("not quantised", &mut |comm, recv| comm.gather(&send[..2], recv, 0, quantised));
    let overlap = comm.exchange_counts(&[1; 3], &[1; 2], ()).expect_err("three counts");
    assert!(matches!(overlap, Error::InvalidArgument(_)), "{overlap}");
}

/// Some are under way at once, with other collectives, and their handles are kept.
#[test]
fn several_are_in_flight_at_once() {
    let peers = Peers::new(3);
    peers.each(|comm| {
        let rank = comm.world().rank;
        let (send, own) = (content(rank, 30_000), content(rank, 10_000));
        let (mut first, mut second, mut gathered) =
            (vec![0.0_f32; 30_000], vec![0.0_f32; 30_000], vec![0.0_f32; 30_000]);
        let mut part = vec![0.0_f32; 10_000];
        let counts = [10_000; 9];
        comm.scope(|scope| {
            let calls = [
                scope.launch(Call::all_to_all(&send[..], &mut first[..]), 1),
                scope.launch(Call::all_to_all_counts(&send[..], &mut second[..], &counts), 2),
                scope.launch(Call::gather(&own[..], &mut gathered[..], 2), 3),
                scope.launch(Call::scatter(&send[..], &mut part[..], 1), 4),
            ];
            for call in calls {
                call.expect("launched").wait().expect("all call it");
            }
        });
        let mine = |of: usize| content(of, 30_000)[rank * 10_000..(rank + 1) * 10_000].to_vec();
        assert!(first == [mine(0), mine(1), mine(2)].concat() && second == first && part == mine(1));
        let all: Vec<f32> = (0..3).flat_map(|of| content(of, 10_000)).collect();
        assert!(gathered == if rank == 2 { all } else { vec![0.0; 30_000] });
    });
}
