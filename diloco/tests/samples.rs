//! Runs that count samples, in which members leave in the middle, come, and miss rounds: what the parameters have
//! learned from each sample is looked at in the parameters themselves.

use pccl::{Communicator, Error, Master, MasterConfig};
use pccl_diloco::{DiLoCo, Grace, OuterStep, Settings};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// Samples of the data set, and parameters: each sample changes the parameter of its number.
const SAMPLES: usize = 3000;
const BATCH: u64 = 7;

/// By round, what it has counted, as the first member that was in it says.
type Audit = Mutex<BTreeMap<u64, Vec<u64>>>;

fn settings() -> Settings {
    // Grows by one for each round in which anybody has learned from the sample.
    let learned: OuterStep = OuterStep::Own(
        "count",
        Arc::new(|parameters, _, mean| {
            parameters
                .iter_mut()
                .zip(mean)
                .for_each(|(parameter, mean)| *parameter += f32::from(*mean != 0.0));
        }),
    );
    Settings {
        every: 5,
        outer: learned,
        min_world: 1,
        samples: SAMPLES as u64,
        samples_seed: Some(9),
        samples_held: 4 * 5 * BATCH,
        samples_members: 8,
        ..Settings::default()
    }
}

fn launch() -> Master {
    let _ = env_logger::builder().is_test(true).try_init();
    Master::launch(MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() })
        .expect("a master")
}

fn join(address: &str, settings: Settings, parameters: &mut [f32]) -> Result<DiLoCo, Error> {
    let comm = Communicator::builder(address).first_ports(0, 0).build().expect("valid settings");
    DiLoCo::join(comm.into(), settings, parameters)
}

/// Trains until all samples are counted, or for `steps` steps, after which it is gone without a word.
fn train(
    address: &str,
    settings: Settings,
    steps: Option<u64>,
    pause: Duration,
    audit: &Audit,
) -> Option<Vec<f32>> {
    let mut parameters = vec![0.0; SAMPLES];
    let mut run = join(address, settings, &mut parameters).expect("joins");
    let mut made = 0;
    while !run.samples_are_over() {
        let batch = run.take_samples(BATCH);
        batch.iter().for_each(|sample| parameters[*sample as usize] += 1.0);
        thread::sleep(pause);
        run.count_samples(batch.len() as u64).expect("taken");
        run.step(&mut parameters, batch.len() as f64).expect("a step");
        made += 1;
        if steps == Some(made) {
            return None;
        }
    }
    run.finish(&mut parameters, None).expect("the end");
    let mut audit = audit.lock().expect("no panic");
    for round in 0..run.outer().rounds() {
        if let Some(counted) = run.counted_samples(round) {
            assert_eq!(audit.entry(round).or_insert_with(|| counted.clone()), &counted, "round {round}");
        }
    }
    // A sample that two members have learned from in the same round shows in the sum of the weights.
    assert_eq!(run.stats().weight, SAMPLES as f64);
    Some(parameters)
}

fn check(ends: &[Vec<f32>], audit: Audit) {
    for end in ends {
        let wrong: Vec<_> = (0..SAMPLES).filter(|at| end[*at] != 1.0).map(|at| (at, end[at])).collect();
        assert!(wrong.is_empty(), "learned from never or twice: {wrong:?}");
    }
    let audit = audit.into_inner().expect("no panic");
    let mut counted: Vec<_> = audit.into_values().flatten().collect();
    counted.sort_unstable();
    assert!(counted.into_iter().eq(0..SAMPLES as u64), "the audit does not add up");
}

#[test]
fn each_sample_is_learned_from_once_whoever_leaves_and_comes() {
    let master = launch();
    let (address, audit) = (master.local_addr().to_string(), Audit::default());
    let (address, kept) = (&address, &audit);
    let ends: Vec<_> = thread::scope(|scope| {
        let stays = scope.spawn(move || train(address, settings(), None, Duration::from_millis(1), kept));
        let others: Vec<_> = (0..2_u64)
            .map(|member| {
                scope.spawn(move || {
                    // Several that leave in the middle of a round, one after the other, then one that stays.
                    for life in 0..6 {
                        let steps = Some(3 + 4 * life + member);
                        train(address, settings(), steps, Duration::from_millis(1), kept);
                    }
                    train(address, settings(), None, Duration::from_millis(2), kept)
                })
            })
            .collect();
        let others = others.into_iter().filter_map(|other| other.join().expect("no panic"));
        let ends: Vec<_> = others.collect();
        ends.into_iter().chain(stays.join().expect("no panic")).collect()
    });
    assert!(!ends.is_empty());
    check(&ends, audit);
}

#[test]
fn a_member_that_misses_rounds_loses_no_sample() {
    let master = launch();
    let (address, audit) = (master.local_addr().to_string(), Audit::default());
    let settings = Settings { quorum: 0.5, grace: Grace::Fixed(Duration::ZERO), min_world: 3, ..settings() };
    let (address, settings, kept) = (&address, &settings, &audit);
    let ends: Vec<_> = thread::scope(|scope| {
        let pauses = [0, 1, 30].map(Duration::from_millis);
        let members = pauses.map(|pause| {
            scope.spawn(move || {
                // At the end members leave one after the other.
                let last = Settings { min_world: 3, ..settings.clone() };
                train(address, last, None, pause, kept)
            })
        });
        members.into_iter().filter_map(|member| member.join().expect("no panic")).collect()
    });
    assert_eq!(ends.len(), 3);
    check(&ends, audit);
}

#[test]
fn what_makes_no_sense_is_named() {
    let master = launch();
    let address = master.local_addr().to_string();
    let mut parameters = vec![0.0; SAMPLES];
    for (words, wrong) in [
        ("0 epochs", Settings { samples_epochs: 0, ..settings() }),
        ("samples_held 0", Settings { samples_held: 0, ..settings() }),
        ("samples_members", Settings { samples_members: usize::MAX, ..settings() }),
    ] {
        let error = join(&address, wrong, &mut parameters).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let mut run = join(&address, settings(), &mut parameters).expect("joins");
    let taken = run.take_samples(BATCH);
    assert_eq!((taken.len() as u64, run.samples_outstanding()), (BATCH, BATCH));
    let error = run.count_samples(BATCH + 1).expect_err("more than taken").to_string();
    assert!(error.contains("only 7 were taken"), "{error}");
    let plain = Settings { samples: 0, ..settings() };
    let other = launch();
    let mut run = join(&other.local_addr().to_string(), plain, &mut parameters).expect("joins");
    assert!(run.take_samples(1).is_empty() && !run.samples_are_over());
    assert!(run.count_samples(0).expect_err("no samples").to_string().contains("counts no samples"));
}
