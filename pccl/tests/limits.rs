//! Limits of calls: whoever gives up does so for all, and both sides go on. Two peers are threads of this process.

use pccl::{
    CallKind, Cause, CollectiveKind, Communicator, Error, LaunchOptions, ManyOptions, Master, MasterConfig,
    ReduceOp, ReduceOptions, Remedy, SharedState, SyncOptions, SyncStrategy, Tensor, Verdict,
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The limit of whoever gives up.
const SHORT: Duration = Duration::from_millis(200);

/// A run of peers with these names; none makes a call unless a test says so.
fn peers<const N: usize>(names: [&str; N]) -> (Master, [Communicator; N]) {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    let peers = names.map(|name| {
        Communicator::builder(&address).first_ports(0, 0).name(name).build().expect("valid settings")
    });
    thread::scope(|scope| {
        for comm in &peers {
            scope.spawn(|| {
                comm.connect().expect("connect");
                comm.wait_for_world(N, Some(PATIENCE)).expect("all are there");
            });
        }
    });
    (master, peers)
}

fn pair() -> (Master, Communicator, Communicator) {
    let (master, [first, second]) = peers(["first", "second"]);
    (master, first, second)
}

/// The verdict of a call that timed out.
#[track_caller]
fn given_up<T: std::fmt::Debug>(result: Result<T, Error>, kind: CallKind) -> Verdict {
    let error = result.expect_err("nobody else made the call");
    let Error::TimedOut { call, verdict: Some(verdict), .. } = &error else { panic!("{error:?}") };
    assert_eq!((*call, verdict.cause, error.remedy()), (kind, Cause::CallTimeout, Remedy::Retry));
    assert_eq!(error.verdict(), Some(&**verdict));
    let detail = verdict.detail.as_str();
    assert!(detail.contains("first") && detail.contains("gave it up after 0.2 s"), "{detail}");
    assert_eq!(verdict.culprits[0].name.as_str(), "second");
    (**verdict).clone()
}

/// A plain sum, tried again as often as a limit of the other one wants.
fn sum(comm: &Communicator, tag: u64) -> usize {
    let mut data = [1f32; 4];
    loop {
        match comm.all_reduce(&mut data, ReduceOptions::new(ReduceOp::Sum).tag(tag)) {
            Ok(info) => return info.world_size,
            Err(error) => assert!(error.is_retryable() && data == [1.0; 4], "{error}"),
        }
    }
}

#[test]
fn every_way_to_reduce_has_a_limit() {
    let (_master, first, second) = pair();
    let ask = |tag| ReduceOptions::new(ReduceOp::Sum).tag(tag).timeout(SHORT);
    let mut data = vec![3f32; 100_000];
    given_up(first.all_reduce(&mut data, ask(1)), CallKind::Collective(CollectiveKind::AllReduce));
    assert!(first.buffer_bytes() >= size_of_val(&data[..]), "the backup is kept for the next operation");
    let (send, mut recv) = (data.clone(), vec![0f32; 100_000]);
    given_up(
        first.all_reduce_into(&send, &mut recv, ask(1)),
        CallKind::Collective(CollectiveKind::AllReduce),
    );
    // All retries together.
    let options = ManyOptions { tag: 1, timeout: Some(SHORT), ..ManyOptions::default() };
    let began = Instant::now();
    given_up(
        first.all_reduce_many(&mut [Tensor::in_place(&mut data, ReduceOp::Sum)], options),
        CallKind::Collective(CollectiveKind::AllReduce),
    );
    assert!(began.elapsed() >= SHORT);
    let (mut one, mut two, mut three) = ([3f32; 4], [3f32; 4], [3f32; 4]);
    first.scope(|scope| {
        let op = scope.all_reduce(&mut one, ReduceOptions::new(ReduceOp::Sum).tag(1)).expect("launched");
        given_up(op.wait_for(SHORT), CallKind::Collective(CollectiveKind::AllReduce));
        let options = LaunchOptions { tag: 2, timeout: Some(SHORT), ..LaunchOptions::default() };
        let tensors = vec![Tensor::in_place(&mut two, ReduceOp::Sum)];
        let op = scope.all_reduce_many(tensors, options).expect("launched");
        given_up(op.wait(), CallKind::Collective(CollectiveKind::AllReduce));
        // A caller that leaves the scope without waiting waits as long as the options say.
        drop(scope.all_reduce(&mut three, ask(3)).expect("launched"));
    });
    assert!(data.iter().all(|&value| value == 3.0) && one == [3.0; 4] && two == one && three == one);
    assert_eq!(first.last_verdict().map(|verdict| verdict.cause), Some(Cause::CallTimeout));
    // The one that comes late walks through the attempts that were given up.
    thread::scope(|scope| {
        let other = scope.spawn(|| (1..=3).map(|tag| sum(&second, tag)).collect::<Vec<_>>());
        assert_eq!((1..=3).map(|tag| sum(&first, tag)).collect::<Vec<_>>(), [2, 2, 2]);
        assert_eq!(other.join().expect("no panic"), [2, 2, 2]);
    });
}

#[test]
fn the_communicator_has_a_limit_for_calls_that_name_none() {
    let (_master, first, second) = pair();
    assert_eq!(first.call_timeout(), None);
    first.set_call_timeout(Some(SHORT));
    let mut data = [3f32; 4];
    given_up(first.all_reduce(&mut data, ReduceOp::Sum), CallKind::Collective(CollectiveKind::AllReduce));
    let mut weights = [1f32; 10];
    let mut state = SharedState::new(0);
    state.tensor("weights", &mut weights).expect("a new key");
    given_up(first.sync_shared_state(&mut state, SyncStrategy::EnforcePopular), CallKind::Sync);
    type Call<'a> = (CallKind, &'a dyn Fn() -> Result<(), Error>);
    let calls: [Call<'_>; 3] = [
        (CallKind::UpdateTopology, &|| first.update_topology()),
        (CallKind::ArePeersPending, &|| first.are_peers_pending().map(drop)),
        (CallKind::OptimizeTopology, &|| first.optimize_topology().map(drop)),
    ];
    for (kind, run) in calls {
        let error = run().expect_err("nobody else made the call");
        let Error::TimedOut { call, text, verdict: None } = &error else { panic!("{error:?}") };
        assert_eq!((*call, error.remedy()), (kind, Remedy::Retry));
        assert!(text.contains("second"), "{text}");
    }
    // The limit of one call counts for that one; a larger one for what the other does in time.
    let longer = SyncOptions::from(SyncStrategy::EnforcePopular).timeout(PATIENCE);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut weights = [2f32; 10];
            let mut state = SharedState::new(0);
            state.tensor("weights", &mut weights).expect("a new key");
            second.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("all sync");
            second.update_topology_within(Some(PATIENCE)).expect("both vote");
            second.are_peers_pending_within(None).expect("both ask")
        });
        first.sync_shared_state(&mut state, longer).expect("all sync");
        first.update_topology_within(Some(PATIENCE)).expect("both vote");
        assert!(!first.are_peers_pending_within(Some(PATIENCE)).expect("both ask"));
        assert!(!other.join().expect("no panic"));
    });
    let (id, other) = (first.id().expect("connected"), second.id().expect("connected"));
    assert!(id != other && first.world().ring.contains(&id) && first.name() == "first");
    first.close();
    assert_eq!(first.id(), None);
}

#[test]
fn what_a_caller_gave_up_is_not_tried_again_by_itself() {
    // The third one makes no call, so nothing can succeed.
    let (_master, [first, second, _third]) = peers(["first", "second", "third"]);
    let mut data = [3f32; 4];
    let error = thread::scope(|scope| {
        let tries = scope.spawn(|| {
            let options = ManyOptions { timeout: Some(PATIENCE), ..ManyOptions::default() };
            first.all_reduce_many(&mut [Tensor::in_place(&mut data, ReduceOp::Sum)], options)
        });
        // Until one of them meets the vote of the first.
        while !tries.is_finished() {
            let mut other = [1f32; 4];
            second.scope(|scope| {
                let op = scope.all_reduce(&mut other, ReduceOp::Sum).expect("launched");
                op.abort();
                assert_eq!(
                    op.wait().expect_err("given up").verdict().expect("for all").cause,
                    Cause::CallerAbort
                );
            });
        }
        tries.join().expect("no panic").expect_err("it was given up")
    });
    let Error::Aborted(verdict) = &error else { panic!("{error:?}") };
    assert_eq!((verdict.cause, error.remedy(), data), (Cause::CallerAbort, Remedy::Retry, [3.0; 4]));
}

#[test]
fn a_drain_that_takes_too_long_may_be_tried_again() {
    let (_master, first, _second) = pair();
    let mut data = [3f32; 4];
    first.scope(|scope| {
        let op = scope.all_reduce(&mut data, ReduceOp::Sum).expect("launched");
        for _ in 0..2 {
            let error = first.drain(SHORT).expect_err("the other one makes no call");
            assert!(matches!(error, Error::TimedOut { .. }) && error.remedy() == Remedy::Retry, "{error:?}");
        }
        op.abort();
        drop(op);
    });
    assert_eq!(first.drain(PATIENCE), Ok(()));
    assert_eq!(first.close_within(SHORT), Ok(()));
}

/// A clock cannot add such a time.
#[test]
fn a_limit_may_be_as_long_as_a_duration_can_be() {
    let (_master, first, second) = pair();
    thread::scope(|scope| {
        for comm in [&first, &second] {
            scope.spawn(|| {
                let options = ReduceOptions::new(ReduceOp::Sum).timeout(Duration::MAX);
                let mut data = [3f32; 4];
                comm.all_reduce(&mut data, options).expect("both call it");
                assert_eq!(data, [6.0; 4]);
                comm.set_call_timeout(Some(Duration::MAX));
                comm.barrier(1).expect("both call it");
                comm.update_topology_within(Some(Duration::MAX)).expect("nobody is waiting");
                assert_eq!(comm.close_within(Duration::MAX), Ok(()));
            });
        }
    });
}

#[test]
fn tensors_in_flight_are_bounded() {
    let (_master, first, _second) = pair();
    let mut numbers = vec![1_f32; 9 * 16_384];
    let mut rest = &mut numbers[..];
    first.scope(|scope| {
        for tag in 0..9 {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(16_384);
            rest = later;
            let tensors: Vec<_> = now.chunks_mut(1).map(|one| Tensor::in_place(one, ReduceOp::Sum)).collect();
            let options = LaunchOptions { tag, timeout: Some(SHORT), ..LaunchOptions::default() };
            match scope.all_reduce_many(tensors, options) {
                Ok(_) => assert!(tag < 8),
                Err(Error::InvalidUsage(text)) => {
                    assert_eq!(tag, 8);
                    assert!(text.starts_with("147456 tensors in operations in flight"), "{text}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
}
