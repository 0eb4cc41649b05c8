//! Leaving on purpose, and looking at a run from inside: peers are threads of this process, with a real master.

use pccl::{
    CallKind, Cause, Communicator, Error, Master, MasterConfig, PeerStage, ReduceOp, SharedState,
    SyncStrategy,
};
use pccl_testkit::barrier::Barrier;
use std::{thread, time::Duration};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn master() -> Master {
    let _ = env_logger::builder().is_test(true).try_init();
    Master::launch(MasterConfig {
        listen: "127.0.0.1:0".into(),
        peer_timeout: PATIENCE,
        ..MasterConfig::default()
    })
    .expect("master starts")
}

fn peer(master: &Master, world: usize) -> Communicator {
    let comm = Communicator::builder(&master.local_addr().to_string())
        .first_ports(0, 0)
        .build()
        .expect("valid settings");
    comm.connect().expect("connect");
    comm.wait_for_world(world, Some(PATIENCE)).expect("world complete");
    comm
}

/// Sums ones; the result is the number of peers that took part.
fn count(comm: &Communicator, len: usize) -> Result<usize, Error> {
    let mut data = vec![1f32; len];
    let info = comm.all_reduce(&mut data, ReduceOp::Sum)?;
    assert!(data.iter().all(|&sum| sum == info.world_size as f32));
    Ok(info.world_size)
}

/// Polls what only another thread can make true.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        pccl_testkit::barrier::look_again();
    }
}

/// One of three peers leaves after `step` of its operations; the others go on. Returns the sizes that they saw.
fn one_leaves_after(step: usize, len: usize) {
    const STEPS: usize = 30;
    let master = master();
    let (start, end) = (Barrier::new(3), Barrier::new(2));
    thread::scope(|scope| {
        for index in 0..3 {
            let (master, start, end) = (&master, &start, &end);
            scope.spawn(move || {
                let comm = peer(master, 3);
                start.wait();
                let steps = if index == 0 { step } else { STEPS };
                for done in 0..steps {
                    let sizes = count(&comm, len).expect("no operation is aborted because a peer leaves");
                    assert_eq!(sizes, if done < step { 3 } else { 2 }, "step {done} of peer {index}");
                }
                if index == 0 {
                    comm.drain(PATIENCE).expect("nothing is in flight");
                    assert!(matches!(count(&comm, 1), Err(Error::InvalidUsage(_))));
                    comm.close();
                    assert_eq!(count(&comm, 1), Err(Error::NotConnected));
                } else {
                    assert_eq!(comm.last_verdict(), None);
                    end.wait();
                }
            });
        }
    });
}

#[test]
fn nobody_sees_an_abort_when_a_peer_leaves_between_its_operations() {
    for (step, len) in [(0, 10), (1, 50_000), (7, 1), (12, 200_000), (29, 1000)] {
        one_leaves_after(step, len);
    }
}

#[test]
fn closing_from_another_thread_lets_the_operation_in_flight_finish() {
    let master = master();
    let (start, late, end) = (Barrier::new(3), Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        for index in 1..3 {
            let (master, start, late, end) = (&master, &start, &late, &end);
            scope.spawn(move || {
                let comm = peer(master, 3);
                start.wait();
                if index == 1 {
                    // Only now can the operation of the one that leaves begin.
                    late.wait();
                }
                assert_eq!(count(&comm, 100_000), Ok(3));
                assert_eq!(count(&comm, 100_000), Ok(2));
                end.wait();
            });
        }
        let leaver = peer(&master, 3);
        start.wait();
        thread::scope(|calls| {
            let in_flight = calls.spawn(|| count(&leaver, 100_000));
            wait_until("its vote waits at the master", || {
                let status = leaver.status().expect("status");
                status.waits.iter().any(|wait| wait.text.as_str().contains("all-reduce"))
                    && status.peers.iter().filter(|peer| peer.operation.is_some()).count() >= 2
            });
            assert!(matches!(leaver.drain(Duration::from_millis(1)), Err(Error::TimedOut { .. })));
            let closing = calls.spawn(|| leaver.close_within(PATIENCE));
            late.wait();
            assert_eq!(in_flight.join().expect("no panic"), Ok(3));
            assert_eq!(closing.join().expect("no panic"), Ok(()));
        });
        assert!(!leaver.is_connected());
    });
}

#[test]
fn what_cannot_finish_in_time_is_cut_off() {
    let master = master();
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _never_votes = peer(&master, 2);
            start.wait();
            end.wait();
        });
        let comm = peer(&master, 2);
        start.wait();
        let mut data = [1f32; 4];
        comm.scope(|ops| {
            let op = ops.all_reduce(&mut data, ReduceOp::Sum).expect("launched");
            let closed = comm.close_within(Duration::from_millis(50));
            assert!(matches!(closed, Err(Error::TimedOut { .. })), "{closed:?}");
            assert_eq!(op.wait().unwrap_err(), Error::NotConnected);
        });
        assert_eq!(data, [1.0; 4]);
        // Nothing to leave any more.
        assert_eq!(comm.close_within(PATIENCE), Ok(()));
        end.wait();
    });
}

#[test]
fn the_status_is_there_while_other_calls_wait() {
    let master = master();
    let (start, asked) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let comm = peer(&master, 2);
            start.wait();
            asked.wait();
            comm.update_topology().expect("update");
        });
        let comm = peer(&master, 2);
        start.wait();
        thread::scope(|calls| {
            let waiting = calls.spawn(|| comm.update_topology());
            let mut last = None;
            wait_until("the vote shows in the status", || {
                let status = comm.status().expect("status");
                let shown = status.waits.iter().any(|wait| wait.text.as_str().starts_with("update_topology"))
                    && status.peers.iter().any(|peer| peer.call == CallKind::UpdateTopology);
                last = Some(status);
                shown
            });
            let status = last.expect("asked");
            assert_eq!(status.run.0, master.run_id().0);
            assert_eq!((status.sizes.global, status.peers.len(), status.groups.len()), (2, 2, 1));
            assert!(status.peers.iter().all(|peer| peer.stage == PeerStage::Accepted));
            assert_eq!(status.groups[0].ring, comm.world().ring);
            asked.wait();
            waiting.join().expect("no panic").expect("the status disturbed nothing");
        });
        comm.close();
        assert_eq!(comm.status().unwrap_err(), Error::NotConnected);
    });
}

#[test]
fn the_last_verdict_stays_until_the_next_one() {
    let master = master();
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        for index in 0..2 {
            let (master, start, end) = (&master, &start, &end);
            scope.spawn(move || {
                let comm = peer(master, 2);
                assert_eq!(comm.last_verdict(), None);
                start.wait();
                let error = count(&comm, 10 + index).unwrap_err();
                let verdict = comm.last_verdict().expect("a verdict");
                assert_eq!((Some(&verdict), verdict.cause), (error.verdict(), Cause::MismatchedCall));
                assert_eq!(count(&comm, 10), Ok(2));
                assert_eq!(comm.last_verdict(), Some(verdict.clone()));
                let mut weights = vec![0u8; 3];
                let mut state = SharedState::new(0);
                state.tensor("w", &mut weights).expect("key");
                let strategies = [SyncStrategy::EnforcePopular, SyncStrategy::ReceiveOnly];
                comm.sync_shared_state(&mut state, strategies[index]).unwrap_err();
                let next = comm.last_verdict().expect("a verdict");
                assert_ne!(next, verdict);
                end.wait();
                comm.close();
                assert_eq!(comm.last_verdict(), Some(next));
            });
        }
    });
}

/// One of three peers leaves when the all-reduce of all is answered, and before one of the others has returned from it.
#[test]
fn who_leaves_after_the_answer_is_still_there_when_the_call_returns() {
    let master = master();
    let (answered, left, compared) = (Barrier::new(3), Barrier::new(3), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let leaver = peer(&master, 3);
            assert_eq!(count(&leaver, 10), Ok(3));
            answered.wait();
            leaver.close();
            left.wait();
        });
        for late in [false, true] {
            let (master, answered, left, compared) = (&master, &answered, &left, &compared);
            scope.spawn(move || {
                let comm = peer(master, 3);
                let mut data = [1f32; 10];
                comm.scope(|calls| {
                    let reduce = calls.all_reduce(&mut data, ReduceOp::Sum).expect("launched");
                    if late {
                        wait_until("nothing holds it up", || reduce.is_done());
                        answered.wait();
                        left.wait();
                        // The news of the smaller world comes before this answer, on the same connection.
                        wait_until("the master has let it go", || {
                            comm.status().expect("status").peers.len() == 2
                        });
                        assert_eq!(reduce.wait().expect("done").world_size, 3);
                    } else {
                        assert_eq!(reduce.wait().expect("done").world_size, 3);
                        answered.wait();
                        left.wait();
                    }
                });
                let world = comm.world();
                assert_eq!((world.global_size, world.group_size, world.ring.len()), (3, 3, 3));
                assert_eq!(comm.are_peers_pending(), Ok(false));
                let world = comm.world();
                assert_eq!((world.global_size, world.group_size, world.ring.len()), (2, 2, 2));
                compared.wait();
            });
        }
    });
}
