//! Contributions that are bounded by the median of the norms of all, before they are averaged.

use crate::together::together;
use pccl::{
    Call, Cause, Clip, ClipReport, Communicator, Error, LaunchOptions, Master, MasterConfig, Quantisation,
    ReduceOp, Remedy, Scheme, Source, Target,
};
use std::time::Duration;

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// No element, one, and more than one block of the sum.
const COUNTS: [usize; 3] = [0, 1, 10_001];

/// Peers of one run, by their ranks.
struct Peers {
    all: Vec<Communicator>,
    _master: Master,
}

impl Peers {
    fn new(count: usize) -> Self {
        Self::with(count, |comm| {
            comm.connect().expect("connects");
            comm.wait_for_world(count, Some(PATIENCE)).expect("all are there");
        })
    }

    fn with(count: usize, join: impl Fn(&Communicator) + Sync) -> Self {
        let _ = env_logger::builder().is_test(true).try_init();
        let config =
            MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
        let master = Master::launch(config).expect("master starts");
        let address = master.local_addr().to_string();
        let peer = |index: usize| {
            let builder = Communicator::builder(&address).first_ports(0, 0).name(&format!("peer-{index}"));
            builder.world_of_one(count == 1).build().expect("valid settings")
        };
        let mut peers = Self { all: (0..count).map(peer).collect(), _master: master };
        peers.each(|_, comm| join(comm));
        peers.all.sort_by_key(|comm| comm.world().rank);
        peers
    }

    /// All of them do this at once; results by rank.
    fn each<R: Send>(&self, work: impl Fn(usize, &Communicator) -> R + Sync) -> Vec<R> {
        together(&self.all, work)
    }
}

/// Elements of both signs whose norm is `norm`, nearly.
fn content(count: usize, norm: f64) -> Vec<f32> {
    let each = norm / (count as f64).sqrt();
    (0..count).map(|index| if index % 2 == 0 { each as f32 } else { -each as f32 }).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn an_outlier_ends_at_the_bound_and_the_others_keep_their_bytes() {
    for (ranks, factor) in [(2, 3.0), (3, 3.0), (5, 1.5)] {
        let peers = Peers::new(ranks);
        let ring = peers.all[0].world().ring;
        for outlier in [0, ranks - 1] {
            // The others differ by less than the factor.
            let own = |rank: usize| if rank == outlier { 1000.0 } else { 1.0 + 0.1 * rank as f64 };
            let median = if ranks == 2 { own(1 - outlier) } else { 0.0 };
            for count in COUNTS {
                let results = peers.each(|rank, comm| {
                    let mut data = content(count, own(rank));
                    let clip = comm.clip_to_median(&mut data, factor, 7).expect("all call it");
                    (clip, data)
                });
                for (rank, (clip, data)) in results.iter().enumerate() {
                    let place = format!("rank {rank} of {ranks}, {outlier} is the outlier, {count} elements");
                    assert_eq!(clip.peers, results[0].0.peers, "{place}");
                    assert!(clip.peers.iter().map(|it| it.peer).eq(ring.iter().copied()), "{place}");
                    let before = content(count, own(rank));
                    if count == 0 || rank != outlier {
                        assert_eq!(bits(data), bits(&before), "{place}");
                        assert_eq!(clip.scale, 1.0, "{place}");
                        continue;
                    }
                    if median > 0.0 {
                        assert!((clip.median / median - 1.0).abs() < 1e-6, "{place}: {clip:?}");
                    }
                    assert!((clip.norm / norm(&before) - 1.0).abs() < 1e-12, "{place}: {clip:?}");
                    assert_eq!(clip.scale, factor * clip.median / clip.norm, "{place}");
                    assert!((norm(data) / (factor * clip.median) - 1.0).abs() < 1e-6, "{place}");
                    let outliers: Vec<_> = clip.outliers().map(|it| it.peer).collect();
                    assert_eq!(outliers, [ring[outlier]], "{place}");
                    let scaled: Vec<f32> =
                        before.iter().map(|value| (f64::from(*value) * clip.scale) as f32).collect();
                    assert_eq!(bits(data), bits(&scaled), "{place}");
                }
            }
        }
    }
}

#[test]
fn several_tensors_of_any_float_type_have_one_norm() {
    let peers = Peers::new(2);
    let results = peers.each(|rank, comm| {
        let large = if rank == 0 { 100.0 } else { 1.0 };
        let (mut single, mut double) = (vec![3.0 * large as f32; 1], vec![4.0 * large; 1]);
        // At rank 0 the second one is not what makes the norm large, and is clipped as well.
        let (mut none, mut small) = (Vec::<f64>::new(), vec![1e-3_f64; 1]);
        let tensors = vec![
            Target::from(&mut single[..]),
            Target::from(&mut double[..]),
            Target::from(&mut none[..]),
            Target::from(&mut small[..]),
        ];
        let clip = comm.clip_many_to_median(tensors, 2.0, ()).expect("all call it");
        (clip, single[0], double[0], small[0])
    });
    let (clip, single, double, small) = &results[0];
    assert!((clip.median - 5.0).abs() < 1e-5 && (clip.norm - 500.0).abs() < 1e-3, "{clip:?}");
    assert_eq!((*single, *double), ((300.0 * clip.scale) as f32, 400.0 * clip.scale));
    assert_eq!(*small, 1e-3 * clip.scale);
    assert!((clip.scale - 10.0 / 500.0).abs() < 1e-5, "{clip:?}");
    let (clip, single, double, small) = &results[1];
    assert_eq!((clip.scale, *single, *double, *small), (1.0, 3.0, 4.0, 1e-3));
}

#[test]
fn a_median_of_zero_bounds_nobody() {
    let peers = Peers::new(3);
    let results = peers.each(|rank, comm| {
        let mut data = vec![if rank == 2 { 1e30_f32 } else { 0.0 }; 100];
        let clip = comm.clip_to_median(&mut data, 0.5, ()).expect("all call it");
        (clip.median, clip.scale, data[99])
    });
    assert_eq!(results, [(0.0, 1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 1.0, 1e30)]);
}

#[test]
fn what_is_not_finite_fails_for_all_and_who_has_it_is_named() {
    let peers = Peers::new(3);
    for bad in [f32::NAN, f32::INFINITY] {
        let results = peers.each(|rank, comm| {
            let mut data = content(5000, 1.0);
            if rank == 1 {
                data[4321] = bad;
            }
            let before = bits(&data);
            let result = comm.clip_to_median(&mut data, 3.0, ());
            assert_eq!(bits(&data), before, "rank {rank}");
            result
        });
        let culprit = peers.all[1].id().expect("connected");
        for result in results {
            let error = result.expect_err("refused");
            let verdict = error.verdict().unwrap_or_else(|| panic!("{error}"));
            assert_eq!((verdict.cause, error.remedy()), (Cause::NotFinite, Remedy::GiveUp), "{error}");
            assert_eq!(verdict.culprits.iter().map(|it| it.peer).collect::<Vec<_>>(), [culprit]);
            assert!(verdict.detail.as_str().contains("in tensor 0 at element 4321"), "{error}");
        }
    }
    // A norm whose square is beyond all numbers is one.
    let results = peers.each(|rank, comm| {
        let mut data = [if rank == 0 { 1e200_f64 } else { 1.0 }; 4];
        comm.clip_to_median(&mut data, 3.0, ()).map(|clip| (clip.norm, data[0]))
    });
    assert_eq!(results, [Ok((2e200, 3.0)), Ok((2.0, 1.0)), Ok((2.0, 1.0))]);
}

#[test]
fn what_has_no_meaning_is_refused_before_anything_is_sent() {
    let peers = Peers::new(2);
    let comm = &peers.all[0];
    let mut data = [1.0_f32, 2.0];
    let refused = |result: Result<Clip, Error>, part: &str| {
        let error = result.expect_err("refused");
        assert!(matches!(&error, Error::InvalidArgument(text) if text.contains(part)), "{error}");
    };
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused(comm.clip_to_median(&mut data, factor, ()), "a factor of");
    }
    refused(comm.clip_to_median(&mut [1_i32; 3], 3.0, ()), "elements of");
    let mut whole = [1_u8];
    refused(
        comm.clip_many_to_median(vec![Target::from(&mut data[..]), Target::from(&mut whole[..])], 3.0, ()),
        "floats are",
    );
    let call = Call::clip_to_median(vec![Target::from(&mut data[..])], 3.0, &ClipReport::default());
    let quantised = call.quantised(Quantisation::new(Scheme::CastBf16));
    assert!(comm.call(quantised, ()).is_err_and(|error| matches!(error, Error::InvalidArgument(_))));
    assert_eq!(data, [1.0, 2.0]);
    // Nobody waits for the other one, and both can go on.
    assert!(peers.each(|_, comm| comm.barrier(())).iter().all(Result::is_ok));
}

#[test]
fn peers_that_do_not_call_it_alike_are_told_so_and_keep_their_data() {
    let peers = Peers::new(3);
    let clips = |factor: fn(usize) -> f64| {
        peers.each(|rank, comm| {
            let mut data = content(100, if rank == 1 { 50.0 } else { 1.0 });
            let before = bits(&data);
            let result = comm.clip_to_median(&mut data, factor(rank), ());
            assert_eq!(bits(&data), before, "rank {rank}");
            result.expect_err("they differ")
        })
    };
    let errors = clips(|rank| if rank == 2 { 2.5 } else { 2.0 });
    let ring = peers.all[0].world().ring;
    let text = format!("factors that differ: 2 by {}, 2.5 by {}", ring[0], ring[2]);
    for error in &errors {
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains(&text) && *error == errors[0], "{error}");
    }
    // The data that travels looks like any other all-gather, and is told from it.
    let results = peers.each(|rank, comm| {
        let mut data = content(100, 1.0);
        let (own, mut all) = ([1_u64; 4], [0_u64; 12]);
        match rank {
            0 => {
                comm.call(Call::all_gather(Source::from(&own[..]), Target::from(&mut all[..])), ()).map(drop)
            }
            _ => comm.clip_to_median(&mut data, 2.0, ()).map(drop),
        }
    });
    for result in results {
        let error = result.expect_err("they differ");
        assert_eq!(error.verdict().map(|verdict| verdict.cause), Some(Cause::MismatchedCall), "{error}");
    }
}

#[test]
fn a_call_that_fails_leaves_the_data_as_it_was() {
    let mut peers = Peers::new(3);
    // Given up, by the caller of the one who would be clipped.
    let report = ClipReport::default();
    let mut data = content(1000, 100.0);
    let before = bits(&data);
    peers.all[0].scope(|scope| {
        let call = Call::clip_to_median(vec![Target::from(&mut data[..])], 2.0, &report);
        let flying = scope.launch(call, 3).expect("connected");
        flying.abort();
        let error = flying.wait().expect_err("given up");
        assert_eq!(error.verdict().map(|verdict| verdict.cause), Some(Cause::CallerAbort), "{error}");
    });
    assert_eq!((bits(&data), report.take()), (before.clone(), None));
    // A limit that passes since one peer does not come.
    let results = peers.each(|rank, comm| {
        let mut data = content(1000, if rank == 0 { 100.0 } else { 1.0 });
        let before = bits(&data);
        let limit = Some(Duration::from_millis(300)).filter(|_| rank == 0);
        let options = LaunchOptions { timeout: limit, ..LaunchOptions::default() };
        let result = (rank < 2).then(|| comm.clip_to_median(&mut data, 2.0, options));
        assert_eq!(bits(&data), before, "rank {rank}");
        result
    });
    assert!(matches!(results[0], Some(Err(Error::TimedOut { .. }))), "{:?}", results[0]);
    let told = results[1].as_ref().and_then(|result| result.as_ref().err()).and_then(Error::verdict);
    assert_eq!(told.map(|verdict| verdict.cause), Some(Cause::CallTimeout), "{:?}", results[1]);
    // A member that leaves: the others hear of the new world, and call again in it.
    drop(peers.all.pop());
    let results = peers.each(|rank, comm| {
        let mut data = content(1000, if rank == 0 { 100.0 } else { 1.0 });
        let before = bits(&data);
        let mut failures = 0;
        let clip = loop {
            match comm.clip_to_median(&mut data, 2.0, ()) {
                Ok(clip) => break clip,
                Err(error) => {
                    assert_eq!(error.remedy(), Remedy::Retry, "{error}");
                    assert_eq!(bits(&data), before, "rank {rank}");
                    failures += 1;
                }
            }
        };
        (failures, clip.peers.len(), norm(&data))
    });
    for (rank, (failures, ranks, norm)) in results.into_iter().enumerate() {
        assert!(failures >= 1, "rank {rank} knew of three");
        assert_eq!(ranks, 2);
        assert!((norm / [2.0, 1.0][rank] - 1.0).abs() < 1e-5, "rank {rank}: {norm}");
    }
}

#[test]
fn alone_a_factor_below_one_is_all_that_clips() {
    let peers = Peers::with(1, |comm| comm.connect().expect("connects"));
    let comm = &peers.all[0];
    let mut data = content(100, 8.0);
    let before = bits(&data);
    let clip = comm.clip_to_median(&mut data, 1.0, ()).expect("a world of one");
    assert_eq!((clip.scale, clip.peers.len(), clip.norm), (1.0, 1, clip.median));
    assert_eq!(bits(&data), before);
    comm.clip_to_median(&mut data, 0.5, ()).expect("a world of one");
    assert!((norm(&data) - 4.0).abs() < 1e-5);
}

#[test]
fn an_average_after_it_is_bounded_and_the_same_for_all() {
    let peers = Peers::new(5);
    let results = peers.each(|rank, comm| {
        // One that is faulty: far too large, and of the wrong sign.
        let mut data = vec![if rank == 3 { -1e20_f32 } else { 1.0 }; 1000];
        comm.scope(|scope| {
            let report = ClipReport::default();
            let call = Call::clip_to_median(vec![Target::from(&mut data[..])], 2.0, &report);
            scope.launch(call, 1).expect("connected").wait().expect("all call it");
            assert_eq!(report.take().expect("it has succeeded").outliers().count(), 1);
        });
        comm.all_reduce(&mut data, ReduceOp::Avg).expect("all call it");
        data
    });
    assert!(results.iter().all(|data| bits(data) == bits(&results[0])));
    // (4 * 1 - 2) / 5
    assert!(results[0].iter().all(|value| (value - 0.4).abs() < 1e-5), "{}", results[0][0]);
}
