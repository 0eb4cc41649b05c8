//! The connection to the master is cut on the way while master and peers go on: nobody who calls notices.

mod proxy;

use pccl::{
    Cause, Communicator, Error, LossCause, Master, MasterConfig, ReduceOp, RunKey, SharedState, SyncStrategy,
};
use proxy::Proxy;
use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn master(config: MasterConfig) -> Master {
    let _ = env_logger::builder().is_test(true).try_init();
    Master::launch(MasterConfig {
        listen: "127.0.0.1:0".into(),
        peer_timeout: PATIENCE,
        beat_interval: Some(Duration::from_millis(50)),
        ..config
    })
    .expect("master starts")
}

fn builder(address: &str) -> pccl::Builder {
    Communicator::builder(address).first_ports(0, 0).master_grace(PATIENCE)
}

/// Everything that a step of a training may call, once. `what` says which step it is.
fn step(comm: &Communicator, state: &mut [f32], what: u64) {
    let mut data = vec![1f32; 3000];
    let info = comm.all_reduce(&mut data, ReduceOp::Sum).expect("all-reduce");
    assert!(data.iter().all(|sum| *sum == info.world_size as f32), "{what}");
    state.fill(what as f32);
    let mut shared = SharedState::new(what);
    shared.tensor("weights", &mut *state).expect("one tensor");
    comm.sync_shared_state(&mut shared, SyncStrategy::EnforcePopular).expect("sync");
    comm.update_topology().expect("update_topology");
    comm.are_peers_pending().expect("are_peers_pending");
}

/// A run of `peers`, of which the first reaches the master through a proxy that cuts its connection after this number
/// of bytes. Returns how many went through it.
fn cut_after(bytes: u64, peers: usize) -> u64 {
    let master = master(MasterConfig::default());
    let address = master.local_addr().to_string();
    let proxy = Proxy::start(&address, Some(bytes));
    let passed = proxy.address();
    thread::scope(|scope| {
        for index in 0..peers {
            let address = if index == 0 { &passed } else { &address };
            scope.spawn(move || {
                let comm = builder(address).build().expect("valid settings");
                comm.connect().expect("connect");
                comm.wait_for_world(peers, Some(PATIENCE)).expect("world complete");
                let mut state = vec![0f32; 500];
                (1..=2).for_each(|what| step(&comm, &mut state, what));
                assert_eq!(comm.last_verdict(), None);
                comm.optimize_topology().expect("optimize_topology");
                comm.close();
            });
        }
    });
    proxy.passed()
}

#[test]
fn a_cut_at_any_byte_of_the_conversation_is_noticed_by_nobody() {
    let all = cut_after(u64::MAX, 2);
    let (mut bytes, mut runs) = (0, 0);
    while bytes < all {
        cut_after(bytes, 2);
        runs += 1;
        // So that in some run each part of each packet is the last one.
        bytes += all / 40 + 1;
    }
    assert!(runs >= 30, "{runs} runs, {all} bytes");
}

#[test]
fn cuts_again_and_again_cost_no_step() {
    const STEPS: u64 = 150;
    let master = master(MasterConfig::default());
    let proxy = Proxy::start(&master.local_addr().to_string(), None);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let peers: Vec<_> = (0..3)
            .map(|_| {
                let address = proxy.address();
                scope.spawn(move || {
                    let comm = builder(&address).build().expect("valid settings");
                    comm.connect().expect("connect");
                    comm.wait_for_world(3, Some(PATIENCE)).expect("world complete");
                    let mut state = vec![0f32; 5000];
                    (1..=STEPS).for_each(|what| step(&comm, &mut state, what));
                    assert_eq!(comm.last_verdict(), None);
                    comm.close();
                })
            })
            .collect();
        let cutter = scope.spawn(|| {
            let mut cuts = 0;
            while !done.load(Ordering::Relaxed) {
                cuts += proxy.cut();
                // Between the cuts there is a step or two.
                thread::park_timeout(Duration::from_millis(15));
            }
            cuts
        });
        peers.into_iter().for_each(|peer| peer.join().expect("peer"));
        done.store(true, Ordering::Relaxed);
        let cuts = cutter.join().expect("cutter");
        assert!(cuts > 20, "{cuts} cuts");
    });
}

#[test]
fn in_a_run_with_a_key_too() {
    let key: RunKey = RunKey::generate().expect("random bytes");
    let config = MasterConfig { run_key: Some(key.clone()), ..MasterConfig::default() };
    let master = master(config);
    let proxy = Proxy::start(&master.local_addr().to_string(), None);
    thread::scope(|scope| {
        for index in 0..2 {
            let (proxy, key) = (&proxy, key.to_text());
            scope.spawn(move || {
                let comm = builder(&proxy.address()).run_key(&key).build().expect("valid settings");
                comm.connect().expect("connect");
                comm.wait_for_world(2, Some(PATIENCE)).expect("world complete");
                let mut state = vec![0f32; 5000];
                for what in 1..=20 {
                    if index == 0 {
                        proxy.cut();
                    }
                    step(&comm, &mut state, what);
                }
                comm.close();
            });
        }
    });
}

/// Two peers, of which the second reaches the master through a proxy. Runs `first` and `second` on them once both have
/// seen the other; both communicators are open until both are done.
fn two(
    config: MasterConfig,
    grace: Duration,
    first: impl FnOnce(&Communicator) + Send,
    second: impl FnOnce(&Communicator, &Proxy) + Send,
) {
    let master = master(config);
    let address = master.local_addr().to_string();
    let proxy = Proxy::start(&address, None);
    let meet = |address: String| {
        let comm = builder(&address).master_grace(grace).build().expect("valid settings");
        comm.connect().expect("connect");
        comm.wait_for_world(2, Some(PATIENCE)).expect("world complete");
        comm
    };
    let (one, other) = thread::scope(|scope| {
        let (one, other) = (scope.spawn(|| meet(address)), scope.spawn(|| meet(proxy.address())));
        (one.join().expect("first"), other.join().expect("second"))
    });
    thread::scope(|scope| {
        scope.spawn(|| first(&one));
        scope.spawn(|| second(&other, &proxy));
    });
}

#[test]
fn without_a_grace_the_master_is_lost_with_the_connection() {
    two(
        MasterConfig { return_grace: Some(Duration::ZERO), ..MasterConfig::default() },
        Duration::ZERO,
        |comm| {
            let error = comm.all_reduce(&mut [1f32; 8], ReduceOp::Sum).expect_err("nobody else is there");
            assert!(
                matches!(&error, Error::Aborted(verdict) if verdict.cause == Cause::PeerDied)
                    || matches!(error, Error::TooFewPeers { .. }),
                "{error}"
            );
        },
        |comm, proxy| {
            let began = Instant::now();
            assert_eq!(proxy.cut(), 1);
            let error = comm.all_reduce(&mut [1f32; 8], ReduceOp::Sum).expect_err("there is no master");
            // It may have begun before it noticed.
            let (Error::MasterLost(why) | Error::OutcomeUnknown(why)) = &error else { panic!("{error}") };
            assert!(matches!(why.kind(), LossCause::Closed | LossCause::Broken), "{error}");
            assert!(began.elapsed() < PATIENCE / 2);
        },
    );
}

#[test]
fn who_does_not_come_back_is_lost_and_is_told_so_when_it_does() {
    let grace = Duration::from_millis(300);
    let (dropped, is_dropped) = mpsc::channel();
    two(
        MasterConfig { return_grace: Some(grace), ..MasterConfig::default() },
        PATIENCE,
        move |comm| {
            let error = comm.all_reduce(&mut [1f32; 8], ReduceOp::Sum).expect_err("nobody else is there");
            let is_too_few = matches!(error, Error::TooFewPeers { .. });
            assert!(is_too_few, "{error}");
            dropped.send(()).expect("the other one waits");
        },
        move |comm, proxy| {
            proxy.shut_and_cut();
            is_dropped.recv().expect("the other one was told");
            proxy.let_in();
            let error = comm.all_reduce(&mut [1f32; 8], ReduceOp::Sum).expect_err("it was dropped");
            assert!(matches!(error, Error::Kicked(_)), "{error}");
        },
    );
}
