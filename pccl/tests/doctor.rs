//! The doctor beside a run that is up: peers are threads of this process, with a real master.

use pccl::{
    Communicator, Master, MasterConfig, ReduceOp, RunKey, WireMode,
    doctor::{Health, Report},
};
use pccl_testkit::barrier::Barrier;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn communicator(master: &Master, key: Option<&RunKey>) -> Communicator {
    let mut builder = Communicator::builder(&master.local_addr().to_string());
    if let Some(key) = key {
        builder = builder.run_key(&key.to_text());
    }
    builder.first_ports(0, 0).build().expect("valid settings")
}

/// Trains until told to stop, by the sum of what all say; returns how many steps that were.
fn train(comm: &Communicator, start: &Barrier, over: &AtomicBool) -> usize {
    comm.connect().expect("connect");
    comm.wait_for_world(2, Some(PATIENCE)).expect("world complete");
    let ring = comm.world().ring;
    start.wait();
    for step in 1.. {
        let mut data = vec![1_f32; 100_000];
        data[0] = if over.load(Ordering::Relaxed) { 1.0 } else { 0.0 };
        let info = comm.all_reduce(&mut data, ReduceOp::Sum).expect("no operation fails");
        assert_eq!((info.world_size, data[1]), (2, 2.0));
        if data[0] > 0.0 {
            assert_eq!((comm.last_verdict(), comm.world().ring), (None, ring));
            return step;
        }
    }
    0
}

/// Whether the report has a rate to everybody.
fn is_measured(report: &Report) -> bool {
    let mut ways = report.findings.iter().filter(|finding| finding.subject.starts_with("peer "));
    ways.all(|way| way.numbers.iter().any(|(name, _)| *name == "kbit_s"))
}

/// Asks the doctor three times beside a training run of two; the run goes on, and each report has the rate to each.
fn look_at_a_run(key: Option<RunKey>, wire: WireMode) {
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), run_key: key.clone(), wire, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let (start, over) = (Barrier::new(3), AtomicBool::new(false));
    let peers = [(); 2].map(|()| communicator(&master, key.as_ref()));
    let (reports, steps) = thread::scope(|scope| {
        let trains = peers.each_ref().map(|comm| scope.spawn(|| train(comm, &start, &over)));
        start.wait();
        let patient = communicator(&master, key.as_ref());
        // A probe has half a second for its bytes, which a busy machine may not give it.
        let deadline = Instant::now() + PATIENCE;
        let measured = || {
            let asked = std::iter::repeat_with(|| patient.doctor());
            asked.into_iter().find(|report| is_measured(report) || Instant::now() > deadline)
        };
        let reports: Vec<Report> = (0..3).map(|_| measured().expect("endless")).collect();
        over.store(true, Ordering::Relaxed);
        (reports, trains.map(|thread| thread.join().expect("no panic")))
    });
    assert_eq!(steps[0], steps[1]);
    for report in reports {
        assert!(report.passed(), "{report}");
        let ways = report.findings.iter().filter(|finding| finding.subject.starts_with("peer "));
        let ways: Vec<_> = ways.collect();
        assert_eq!(ways.len(), 2, "{report}");
        for way in ways {
            let names: Vec<&str> = way.numbers.iter().map(|(name, _)| *name).collect();
            assert_eq!(
                (way.health, &names[..]),
                (Health::Fine, &["round_trip_us", "kbit_s"][..]),
                "{report}"
            );
        }
    }
    drop(master);
}

#[test]
fn a_training_run_beside_it_does_not_see_it() {
    look_at_a_run(None, WireMode::default());
}

#[test]
fn so_with_a_key_in_each_wire_mode() {
    for &wire in WireMode::ALL {
        look_at_a_run(Some(RunKey::generate().expect("random numbers")), wire);
    }
}
