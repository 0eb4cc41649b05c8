//! Whole runs of the training loop, with peers that die, come back and come late.

use std::sync::Arc;
use std::time::Duration;

use crate::dataset::{self, Split, shard_of};
use crate::diloco::OuterState;
use crate::model;
use crate::peer::{self, Collective, CommError, PeerConfig, PeerError, ReduceInfo, SyncInfo};
use crate::report::{Event, FinalReport, Report};
use crate::rng::Rng;
use crate::sim::{Cluster, Fault, Kind, SimPeer};

type Outcome = Result<(OuterState, FinalReport), PeerError>;

fn config(steps: u64, id: u32) -> PeerConfig {
    let mut config = PeerConfig::new(steps, u64::from(id), 1, Duration::ZERO);
    config.pause = Duration::from_millis(1);
    config
}

/// Runs `peer` to its end; `at` sees its reports.
fn train(
    mut peer: impl Collective,
    steps: u64,
    id: u32,
    data: &Split,
    mut at: impl FnMut(&Report),
) -> Outcome {
    let mut sink = |report: &Report| {
        at(report);
        Ok(())
    };
    peer::run(&mut peer, data, config(steps, id), &mut sink)
}

/// Runs founders `0..n` and, once founder 0 has done `join_at` steps, the replacement 100.
fn run_with_replacement(cluster: &Arc<Cluster>, n: u32, steps: u64, join_at: Option<u64>) -> Vec<Outcome> {
    let data = dataset::load().unwrap();
    std::thread::scope(|scope| {
        let (data, (start, started)) = (&data, std::sync::mpsc::channel());
        let mut handles = Vec::new();
        for id in 0..n {
            let start = start.clone();
            handles.push(scope.spawn(move || {
                train(cluster.peer(id), steps, id, data, |report| match report {
                    Report::Step(step) if id == 0 && Some(step.step) == join_at => {
                        start.send(()).unwrap();
                        cluster.wait_for_newcomer();
                    }
                    Report::Event { event: Event::Alone, .. } if id == 0 => start.send(()).unwrap(),
                    _ => {}
                })
            }));
        }
        drop(start);
        if started.recv().is_ok() {
            handles.push(scope.spawn(move || train(cluster.peer(100), steps, 100, data, |_| {})));
        }
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

/// The finished peers, after checking that they agree.
fn agreed(outcomes: Vec<Outcome>, steps: u64) -> (OuterState, Vec<FinalReport>) {
    let finished: Vec<_> = outcomes.into_iter().filter_map(Result::ok).collect();
    let state = finished[0].0.clone();
    for (other, report) in &finished {
        assert!(*other == state, "states differ");
        assert_eq!((report.step, report.hash), (steps, state.hash()));
        assert_eq!(report.drifts, 0);
        assert_eq!(report.revision, finished[0].1.revision);
    }
    (state, finished.into_iter().map(|(_, report)| report).collect())
}

#[test]
fn three_peers_reach_the_accuracy_and_do_the_textbook_computation() {
    let steps = 100;
    let cluster = Cluster::new(3, &[]);
    let outcomes = run_with_replacement(&cluster, 3, steps, None);
    let (state, reports) = agreed(outcomes, steps);
    assert_eq!(reports.len(), 3);
    for report in &reports {
        assert!(report.accuracy >= 0.95, "accuracy {}", report.accuracy);
        assert_eq!((report.aborts, report.retries, report.joins), (0, 0, 0));
        assert_eq!(report.revision, steps + 1);
    }
    // The same without any communication: one after the other, averaged by hand.
    let data = dataset::load().unwrap();
    let mut expected = OuterState::new(1);
    for step in 0..steps {
        let mut sum: Option<Vec<f32>> = None;
        for id in 0..3 {
            let config = config(steps, id);
            let mut local = expected.params.clone();
            let indices = shard_of(&data.train, u64::from(id), step);
            let mut rng = Rng::from_parts(&[1, u64::from(id), step]);
            config.local.train(&mut local, &data.train, &indices, &mut rng);
            let delta = expected.delta_from(&local);
            sum = Some(match sum {
                None => delta,
                Some(sum) => sum.iter().zip(&delta).map(|(sum, value)| sum + value).collect(),
            });
        }
        let average: Vec<f32> = sum.unwrap().iter().map(|sum| sum / 3.0).collect();
        expected.apply(config(steps, 0).outer, &average);
    }
    assert!(state == expected, "the run computed something else");
    assert_eq!(reports[0].accuracy, model::evaluate(&expected.params, &data.test).accuracy);
}

#[test]
fn a_peer_dies_in_an_all_reduce_and_its_replacement_takes_the_state_over() {
    let steps = 80;
    let cluster = Cluster::new(3, &[(Kind::Reduce, 30, Fault::Kill(1))]);
    let outcomes = run_with_replacement(&cluster, 3, steps, Some(40));
    assert_eq!(cluster.faults_left(), 0);
    assert!(matches!(&outcomes[1], Err(PeerError::Comm(reason)) if reason == "all-reduce: killed"));
    let (_, reports) = agreed(outcomes, steps);
    let told: Vec<_> = reports.iter().map(|r| (r.aborts, r.retries, r.joins)).collect();
    assert_eq!(told, [(1, 1, 0), (1, 1, 0), (0, 0, 1)]);
    assert!(reports.iter().all(|report| report.accuracy >= 0.95), "{reports:?}");
    assert!(reports[2].traffic.rx_bytes > 2 * 4 * model::PARAMS as u64, "the newcomer received the state");
}

#[test]
fn the_last_survivor_waits_and_goes_on_with_whoever_comes() {
    for kind in [Kind::Reduce, Kind::Sync, Kind::Update] {
        let steps = 20;
        let cluster = Cluster::new(2, &[(kind, 9, Fault::Kill(1))]);
        let outcomes = run_with_replacement(&cluster, 2, steps, None);
        assert_eq!(outcomes.len(), 3, "{kind:?}: the survivor never said that it was alone");
        let (_, reports) = agreed(outcomes, steps);
        assert_eq!(reports.len(), 2, "{kind:?}");
        assert_eq!(reports[1].joins, 1, "{kind:?}");
        assert_eq!(reports[0].retries, 1, "{kind:?}");
        assert_eq!(reports[0].aborts, u64::from(kind == Kind::Reduce), "{kind:?}");
    }
}

#[test]
fn failures_without_a_death_are_just_tried_again() {
    let steps = 12;
    let faults = [Kind::Reduce, Kind::Sync, Kind::Update].map(|kind| (kind, 4, Fault::Abort));
    let faults = [&faults[..], &[(Kind::Reduce, 5, Fault::Abort), (Kind::Sync, 1, Fault::Abort)]].concat();
    let cluster = Cluster::new(3, &faults);
    let (_, reports) = agreed(run_with_replacement(&cluster, 3, steps, None), steps);
    assert_eq!(cluster.faults_left(), 0);
    for report in reports {
        assert_eq!((report.aborts, report.retries, report.joins), (2, 5, 0));
    }
}

#[test]
fn a_peer_that_lost_the_run_comes_back() {
    let steps = 20;
    for kind in [Kind::Reduce, Kind::Sync, Kind::Update] {
        let cluster = Cluster::new(3, &[(kind, 6, Fault::Kick(2))]);
        let data = dataset::load().unwrap();
        let outcomes = std::thread::scope(|scope| {
            let (data, cluster) = (&data, &cluster);
            let handles: Vec<_> = (0..3u32)
                .map(|id| {
                    scope.spawn(move || {
                        train(cluster.peer(id), steps, id, data, |report| match report {
                            // Nobody may be through before the lost one is back.
                            Report::Step(step) if step.step == 12 && step.world < 3 => {
                                cluster.wait_for_newcomer()
                            }
                            _ => {}
                        })
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        });
        let (_, reports) = agreed(outcomes, steps);
        assert_eq!(reports.len(), 3, "{kind:?}");
        // Lost in an update it has missed nothing, if it is back before the others go on.
        let joins_min = u64::from(kind != Kind::Update);
        assert!((joins_min..=1).contains(&reports[2].joins), "{kind:?}: {:?}", reports[2]);
    }
}

/// Goes wrong in a way of its own.
struct Wrapped<F> {
    peer: SimPeer,
    before_sync: F,
    reduce_error: Option<CommError>,
}

impl<F: FnMut(&mut OuterState)> Collective for Wrapped<F> {
    fn connect(&mut self) -> Result<(), CommError> {
        self.peer.connect()
    }
    fn world(&self) -> usize {
        self.peer.world()
    }
    fn update_topology(&mut self) -> Result<(), CommError> {
        self.peer.update_topology()
    }
    fn sync(&mut self, revision: u64, state: &mut OuterState) -> Result<SyncInfo, CommError> {
        (self.before_sync)(state);
        self.peer.sync(revision, state)
    }
    fn all_reduce_avg(&mut self, values: &mut [f32]) -> Result<ReduceInfo, CommError> {
        self.reduce_error.clone().map_or_else(|| self.peer.all_reduce_avg(values), Err)
    }
}

#[test]
fn state_that_differs_is_repaired_and_told() {
    let cluster = Cluster::new(3, &[]);
    let data = dataset::load().unwrap();
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let (data, cluster) = (&data, &cluster);
        let handles: Vec<_> = (0..3u32)
            .map(|id| {
                scope.spawn(move || {
                    let before_sync = move |state: &mut OuterState| {
                        if id == 1 && state.step() == 4 {
                            state.params[7] += 1.0;
                        }
                    };
                    let peer = Wrapped { peer: cluster.peer(id), before_sync, reduce_error: None };
                    train(peer, 8, id, data, |_| {})
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    let finished: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    let told: Vec<_> = finished.iter().map(|(_, report)| report.drifts).collect();
    assert_eq!(told, [0, 1, 0]);
    assert!(finished.iter().all(|(state, _)| *state == finished[0].0));
}

#[test]
fn a_call_that_always_fails_ends_the_peer_with_the_reason() {
    let data = dataset::load().unwrap();
    for (error, expected) in [
        (CommError::Retry("cut".to_owned()), "all-reduce failed 101 times in a row, at last: cut"),
        (CommError::Fatal("bad".to_owned()), "all-reduce: bad"),
    ] {
        let cluster = Cluster::new(2, &[]);
        std::thread::scope(|scope| {
            for id in 0..2 {
                let (data, cluster, error) = (&data, &cluster, error.clone());
                scope.spawn(move || {
                    let before_sync = |_: &mut OuterState| {};
                    let peer = Wrapped { peer: cluster.peer(id), before_sync, reduce_error: Some(error) };
                    let stopped = train(peer, 8, id, data, |_| {}).unwrap_err();
                    assert_eq!(stopped.to_string(), expected);
                });
            }
        });
    }
}

#[test]
fn a_peer_that_nobody_listens_to_stops() {
    let data = dataset::load().unwrap();
    let cluster = Cluster::new(1, &[]);
    let mut sink = |_: &Report| Err(std::io::ErrorKind::BrokenPipe.into());
    let stopped = peer::run(&mut cluster.peer(0), &data, config(5, 0), &mut sink).unwrap_err();
    assert!(matches!(stopped, PeerError::Sink(_)), "{stopped}");
}
