//! All-reduces in segments: what is done stays done, and each segment says who has contributed.

use pccl::{
    Block, Builder, Cause, Communicator, Error, Master, MasterConfig, Quantisation, ReduceOp, Remedy,
    Schedule, Scheme, Segment, SegmentedError, SegmentedInfo, Tensor,
};
use std::{path::Path, thread, time::Duration};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
const PEERS: usize = 3;

fn group() -> (Master, Vec<Communicator>) {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    let set = |builder: Builder| builder.first_ports(0, 0).call_timeout(PATIENCE);
    let peer = |number: usize| {
        set(Communicator::builder(&address)).name(&format!("peer-{number}")).build().expect("valid settings")
    };
    let peers: Vec<_> = (0..PEERS).map(peer).collect();
    at_once(&peers, |_, comm| {
        comm.connect().expect("connects");
        comm.wait_for_world(PEERS, None).expect("all are there");
    });
    (master, peers)
}

/// All of them do this at once.
fn at_once<R: Send>(peers: &[Communicator], work: impl Fn(usize, &Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> =
            peers.iter().enumerate().map(|(number, comm)| scope.spawn(move || work(number, comm))).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    })
}

/// The contribution of a peer: small integers, whose sums are exact.
fn input(number: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| element(index, number)).collect()
}

fn element(index: usize, number: usize) -> f32 {
    ((index * 7 + number * 31) % 512) as f32
}

/// The sum of what the first peers give.
fn sum(index: usize, peers: usize) -> f32 {
    (0..peers).map(|number| element(index, number)).sum()
}

/// Everything is in one segment, in order.
fn covers(segments: &[Segment], count: usize) {
    let ends: Vec<usize> = segments.iter().map(|segment| segment.elements.end).collect();
    let starts: Vec<usize> = segments.iter().map(|segment| segment.elements.start).collect();
    assert_eq!((starts[0], ends[ends.len() - 1]), (0, count));
    assert_eq!(starts[1..], ends[..ends.len() - 1]);
}

#[test]
fn all_get_the_sum_of_every_segment_in_place_and_not() {
    let (_master, peers) = group();
    for (round, (count, segment_bytes, segments)) in [
        (100_000, 40_000, 10),
        (100_001, 40_003, 11),
        (10, 4, 10),
        (1000, 1 << 20, 1),
        (0, 8, 1),
        (1_000_000, 1 << 20, 4),
    ]
    .into_iter()
    .enumerate()
    {
        let infos = at_once(&peers, |number, comm| {
            let (mut data, mut other) = (input(number, count), vec![0.5_f32; count]);
            let tensor = match round % 2 {
                0 => Tensor::in_place(&mut data, ReduceOp::Sum),
                _ => Tensor::out_of_place(&data, &mut other, ReduceOp::Sum).expect("as long"),
            };
            let info = comm.all_reduce_in_segments(tensor, segment_bytes, 7).expect("reduces");
            let result = if round % 2 == 0 { &data } else { &other };
            assert!(
                result.iter().enumerate().all(|(index, value)| *value == sum(index, PEERS)),
                "peer {number}"
            );
            info
        });
        let ring = peers[0].world().ring;
        for (info, comm) in infos.iter().zip(&peers) {
            assert_eq!((info.segments.len(), info.retries), (segments, 0));
            covers(&info.segments, count);
            let id = comm.id().expect("connected");
            assert!(info.segments.iter().all(|it| it.contributors == ring && it.contributors[it.rank] == id));
        }
    }
}

#[test]
fn quantisation_and_schedule_go_through() {
    let (_master, peers) = group();
    let quantisation = Quantisation::new(Scheme::BlockAffineU8(Block::B256)).stochastic(3);
    let results = at_once(&peers, |number, comm| {
        let mut data = input(number, 50_000);
        let tensor = Tensor::in_place(&mut data, ReduceOp::Avg).quantised(quantisation);
        let options = pccl::LaunchOptions { schedule: Schedule::Ring, ..9.into() };
        let info = comm.all_reduce_in_segments(tensor, 40_000, options).expect("reduces");
        assert!(info.segments.iter().all(|segment| segment.algorithm == pccl::Algorithm::Ring));
        assert!(info.tx_bytes < 50_000 * 2, "{} bytes are not quantised", info.tx_bytes);
        data
    });
    assert!(results.iter().all(|result| *result == results[0]));
    for (index, value) in results[0].iter().enumerate() {
        let exact = sum(index, PEERS) / PEERS as f32;
        assert!((value - exact).abs() < 12.0, "element {index}: {value} for {exact}");
    }
}

/// How many attempts of this peer have their outcome, by its flight recorder.
fn decided(comm: &Communicator, dir: &Path) -> usize {
    let file = comm.dump_flight(dir).expect("a file");
    let text = std::fs::read_to_string(file).expect("it can be read");
    text.lines().filter(|line| line.contains(" op-decided ")).count()
}

#[test]
fn who_leaves_between_segments_is_in_the_average_of_those_before_only() {
    let (_master, peers) = group();
    let dir = std::env::temp_dir().join(format!("pccl-segments-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let count = 64 * 16_384;
    let results: Vec<Option<(SegmentedInfo, Vec<f32>)>> = thread::scope(|scope| {
        let leaver = &peers[PEERS - 1];
        let dir = &dir;
        scope.spawn(move || {
            // Three segments, and how all cut.
            while decided(leaver, dir) < 4 {
                pccl_testkit::barrier::look_again();
            }
            leaver.close();
        });
        at_once(&peers, |number, comm| {
            let mut data = input(number, count);
            let result = comm.all_reduce_in_segments(Tensor::in_place(&mut data, ReduceOp::Avg), 65_536, 1);
            if number == PEERS - 1 {
                let failed = result.expect_err("it has left");
                left(&failed, &data);
                return None;
            }
            Some((result.expect("goes on"), data))
        })
    });
    std::fs::remove_dir_all(&dir).expect("it is there");
    let survivors: Vec<_> = results.into_iter().flatten().collect();
    let (info, data) = &survivors[0];
    covers(&info.segments, count);
    assert!(survivors.iter().all(|(_, other)| other == data), "survivors hold different bytes");
    for (other, _) in &survivors {
        let same =
            |(a, b): (&Segment, &Segment)| a.contributors == b.contributors && a.elements == b.elements;
        assert!(other.segments.iter().zip(&info.segments).all(same), "survivors tell different contributors");
        assert_eq!(other.retries, info.retries);
    }
    let with = |number: usize| info.segments.iter().filter(|it| it.contributors.len() == number).count();
    assert!(with(PEERS) >= 3 && with(PEERS - 1) > 0, "{} and {}", with(PEERS), with(PEERS - 1));
    for segment in &info.segments {
        let number = segment.contributors.len();
        for index in segment.elements.clone() {
            assert_eq!(data[index], sum(index, number) / number as f32, "element {index} of {number} peers");
        }
    }
}

/// A peer that has failed holds what it has put in, but for the segments that it names.
fn left(failed: &SegmentedError, data: &[f32]) {
    assert!(matches!(failed.error, Error::NotConnected | Error::OutcomeUnknown(_)), "{failed}");
    let whole = |index: &usize| {
        failed.done.iter().any(|it| it.elements.contains(index))
            || failed.unknown.iter().any(|it| it.contains(index))
    };
    assert!(failed.done.len() >= 3, "{failed}");
    let own = input(PEERS - 1, data.len());
    for index in 0..data.len() {
        let average = sum(index, PEERS) / PEERS as f32;
        assert_eq!(
            data[index],
            if whole(&index) { average } else { own[index] },
            "element {index}: {failed}"
        );
    }
}

#[test]
fn calls_that_cut_in_another_way_are_told_both_and_the_next_one_goes_well() {
    let (_master, peers) = group();
    let count = 30_000;
    for (text, other) in [
        ("as a whole", None),
        ("in segments of 8000 bytes", Some(8000)),
        ("in segments of 400000 bytes", Some(400_000)),
    ] {
        let results = at_once(&peers, |number, comm| {
            let mut data = input(number, count);
            let tensor = Tensor::in_place(&mut data, ReduceOp::Sum);
            let result = match other {
                Some(bytes) if number == 1 => comm.all_reduce_in_segments(tensor, bytes, 3).map(drop),
                None if number == 1 => comm.call(vec![tensor], 3).map(drop).map_err(SegmentedError::from),
                _ => comm.all_reduce_in_segments(tensor, 12_000, 3).map(drop),
            };
            assert!(data == input(number, count), "peer {number}");
            result
        });
        for result in results {
            let failed = result.expect_err("they differ");
            let verdict = failed.error.verdict().expect("a verdict");
            assert_eq!(
                (verdict.cause, failed.error.remedy()),
                (Cause::MismatchedCall, Remedy::GiveUp),
                "{failed}"
            );
            let detail = verdict.detail.as_str();
            assert!(detail.contains(text) && detail.contains("in segments of 12000 bytes"), "{failed}");
            assert!(failed.done.is_empty());
        }
        // The next operation is not behind on any track.
        let sums = at_once(&peers, |number, comm| {
            let mut data = input(number, count);
            comm.all_reduce_in_segments(Tensor::in_place(&mut data, ReduceOp::Sum), 12_000, 3)
                .expect("reduces");
            data
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]));
    }
}

#[test]
fn a_limit_ends_the_call_for_all_and_says_what_is_done() {
    let (_master, peers) = group();
    let count = 40_000;
    let results = at_once(&peers, |number, comm| {
        let mut data = input(number, count);
        let tensor = Tensor::in_place(&mut data, ReduceOp::Sum);
        let limit = if number == 0 { Duration::from_millis(1) } else { PATIENCE };
        let options = pccl::LaunchOptions { timeout: Some(limit), ..5.into() };
        let result = comm.all_reduce_in_segments(tensor, 4, options);
        let done = result.as_ref().map_or_else(|failed| failed.done.clone(), |info| info.segments.clone());
        let own = input(number, count);
        for (index, value) in data.iter().enumerate() {
            let whole = done.iter().any(|it| it.elements.contains(&index));
            assert_eq!(*value, if whole { sum(index, PEERS) } else { own[index] }, "element {index}");
        }
        (number, result.expect_err("nobody does 40,000 segments in a millisecond"))
    });
    let done: Vec<_> = results[0].1.done.iter().map(|it| it.elements.clone()).collect();
    for (number, failed) in &results {
        let verdict = failed.error.verdict().expect("a verdict");
        assert!(matches!(verdict.cause, Cause::CallTimeout | Cause::CallerAbort), "peer {number}: {failed}");
        assert_eq!(
            failed.done.iter().map(|it| it.elements.clone()).collect::<Vec<_>>(),
            done,
            "peer {number}"
        );
    }
    assert!(matches!(results[0].1.error, Error::TimedOut { .. }));
    // All are in step again.
    let infos = at_once(&peers, |number, comm| {
        let mut data = input(number, count);
        comm.all_reduce_in_segments(Tensor::in_place(&mut data, ReduceOp::Sum), 16_000, 5)
            .expect("reduces")
            .segments
            .len()
    });
    assert_eq!(infos, vec![10; PEERS]);
}

#[test]
fn the_tag_is_taken_and_nothing_else_begins_that_needs_peace() {
    let (_master, peers) = group();
    let (first, others) = peers.split_first().expect("peers");
    let reduce = |comm: &Communicator, number: usize| {
        let mut data = input(number, 50_000);
        comm.all_reduce_in_segments(Tensor::in_place(&mut data, ReduceOp::Sum), 20_000, 2)
            .map(|info| info.segments.len())
    };
    thread::scope(|scope| {
        let early = scope.spawn(|| reduce(first, 0));
        let mut spare = [1.0_f32; 4];
        let waits = |text: &str| {
            let status = first.status().expect("a status");
            status.waits.iter().any(|wait| wait.text.as_str().contains(text))
        };
        while !waits("all-reduce") {
            pccl_testkit::barrier::look_again();
        }
        let vote = first.update_topology();
        assert!(matches!(vote, Err(Error::PendingAsyncOps { count: 1 })), "{vote:?}");
        let again = first.all_reduce(&mut spare, pccl::ReduceOptions::new(ReduceOp::Sum).tag(2));
        assert!(matches!(&again, Err(Error::InvalidUsage(text)) if text.contains("in flight")), "{again:?}");
        let again = first.all_reduce_in_segments(Tensor::in_place(&mut spare, ReduceOp::Sum), 8, 2);
        assert!(again.is_err_and(|failed| matches!(failed.error, Error::InvalidUsage(_))));
        let late = at_once(others, |number, comm| reduce(comm, number + 1));
        assert_eq!(late, vec![Ok(10); PEERS - 1]);
        assert_eq!(early.join().expect("no panic"), Ok(10));
    });
    assert!(first.all_reduce_in_segments(Tensor::in_place(&mut [1.0_f32], ReduceOp::Sum), 0, 2).is_err());
}
