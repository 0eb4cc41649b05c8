//! Trainings that go on after everything has ended: peers are threads of this process, with a real master.

use pccl::{Cause, Communicator, Error, Master, MasterConfig, ReduceOp, SharedState, SyncStrategy};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn master() -> Master {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    Master::launch(config).expect("master starts")
}

fn communicator(master: &Master) -> Communicator {
    let builder = Communicator::builder(&master.local_addr().to_string()).first_ports(0, 0);
    builder.build().expect("valid settings")
}

fn two_are_in(master: &Master) -> bool {
    let status = pccl_master::query_status(&master.local_addr().to_string(), None, PATIENCE);
    status.expect("a status").sizes.global == 2
}

/// The state of a trainer.
struct Trainer {
    weights: Vec<f32>,
    revision: u64,
}

/// Trains until `last` is committed, in the loop that the library gives. Says which revisions it has committed.
fn train(comm: &Communicator, trainer: &mut Trainer, last: u64) -> Result<Vec<u64>, Error> {
    let mut seen = Vec::new();
    let mut inner = (trainer, &mut seen);
    comm.run(
        &mut inner,
        2,
        |(_, seen)| seen.last() < Some(&last),
        |comm, (trainer, seen)| {
            let mut state = SharedState::new(trainer.revision);
            state.tensor("weights", &mut trainer.weights)?;
            comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
            trainer.revision = state.revision();
            seen.push(trainer.revision);
            comm.all_reduce(&mut trainer.weights, ReduceOp::Avg)?;
            trainer.weights[0] += 1.0;
            trainer.revision += 1;
            if comm.are_peers_pending()? {
                comm.update_topology()?;
            }
            Ok(())
        },
    )?;
    Ok(seen)
}

#[test]
fn two_fresh_peers_in_the_loop_of_the_library_go_on_from_what_the_third_brings() {
    let master = master();
    thread::scope(|scope| {
        let fresh: Vec<_> = (0..2)
            .map(|_| {
                let master = &master;
                scope.spawn(move || {
                    let comm = communicator(master);
                    comm.connect().expect("connects");
                    comm.wait_for_world(2, Some(PATIENCE)).expect("two are there");
                    // They make no step before the third has said what it brings.
                    while comm.status().expect("a status").peers.len() < 3 {
                        pccl_testkit::barrier::look_again();
                    }
                    let mut trainer = Trainer { weights: vec![0.0; 100], revision: 0 };
                    train(&comm, &mut trainer, 1005)
                })
            })
            .collect();
        let comm = communicator(&master);
        let mut trainer = Trainer { weights: vec![7.0; 100], revision: 1000 };
        let mut state = SharedState::new(trainer.revision);
        state.tensor("weights", &mut trainer.weights).expect("one tensor");
        comm.offer_resume(&state);
        // The first two let each other in, and nobody the third.
        while !two_are_in(&master) {
            pccl_testkit::barrier::look_again();
        }
        let trained = train(&comm, &mut trainer, 1005).expect("goes on");
        assert_eq!(trained, (1000..=1005).collect::<Vec<_>>());
        for peer in fresh {
            let seen = peer.join().expect("no panic").expect("goes on");
            assert_eq!(seen, trained);
        }
    });
}

#[test]
fn who_waits_for_a_state_that_is_lost_does_not_ask_all_the_time() {
    let master = master();
    let [holder, first, second] = [(); 3].map(|()| communicator(&master));
    let sync = |comm: &Communicator, revision| {
        let mut weights = [revision as f32; 4];
        let mut state = SharedState::new(revision);
        state.tensor("weights", &mut weights)?;
        comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).map(drop)
    };
    holder.connect().expect("connect");
    sync(&holder, 9).expect("synced");
    thread::scope(|scope| {
        for comm in [&first, &second] {
            scope.spawn(|| {
                comm.connect().expect("connect");
                comm.wait_for_world(3, None).expect("all are there");
            });
        }
        holder.wait_for_world(3, None).expect("all are there");
    });
    holder.close();
    let is_lost = |error: &Error| error.verdict().is_some_and(|verdict| verdict.cause == Cause::StateLost);
    let tries = |comm: &Communicator| {
        let (mut lost, mut began) = (0, Instant::now());
        while lost < 5 {
            let error = sync(comm, 0).expect_err("nobody has what was committed");
            if is_lost(&error) {
                lost += 1;
            } else {
                began = Instant::now();
            }
            comm.recover(&error, 2).expect("it waits");
        }
        began.elapsed()
    };
    // Pauses of 100, 200, 400, 800 and 1600 ms, by a quarter shorter or longer.
    thread::scope(|scope| {
        for comm in [&first, &second] {
            scope.spawn(|| assert!(tries(comm) >= Duration::from_millis(2_300)));
        }
    });
}
