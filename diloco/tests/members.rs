//! Members as threads of this process, with a real master: rounds with kills, newcomers, slow members and bad input.

use pccl::{Communicator, Error, Master, MasterConfig};
use pccl_diloco::{Compression, DiLoCo, Grace, OuterStep, RoundReport, Settings};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// The parameters: enough for several blocks on each rank.
const ELEMENTS: usize = 3000;

fn master() -> Master {
    let _ = env_logger::builder().is_test(true).try_init();
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        peer_timeout: Duration::from_secs(30),
        ..MasterConfig::default()
    };
    Master::launch(config).expect("master starts")
}

fn communicator(address: &str) -> Arc<Communicator> {
    Communicator::builder(address).first_ports(0, 0).build().expect("valid settings").into()
}

/// An inner step: down the slope of the distance to `goal`.
fn inner_step(weights: &mut [f32], goal: f32) {
    for (at, weight) in weights.iter_mut().enumerate() {
        *weight += 0.05 * (goal + at as f32 / ELEMENTS as f32 - *weight);
    }
}

/// The end of a member.
#[derive(Debug, Clone, PartialEq)]
struct End {
    weights: Vec<u32>,
    momentum: Vec<u32>,
    rounds: u64,
    weight: f64,
    reports: Vec<RoundReport>,
}

fn end_of(mut run: DiLoCo, weights: &mut [f32]) -> End {
    run.finish(weights, Some(PATIENCE)).expect("ends well");
    let outer = run.outer();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    assert_eq!(bits(weights), bits(outer.parameters()));
    End {
        weights: bits(outer.parameters()),
        momentum: bits(outer.momentum()),
        rounds: outer.rounds(),
        weight: outer.weight(),
        reports: run.take_reports(),
    }
}

/// A member that trains towards `goal` until `steps`.
fn train(address: &str, settings: Settings, goal: f32, steps: u64) -> End {
    let mut weights = vec![goal; ELEMENTS];
    let mut run = DiLoCo::join(communicator(address), settings, &mut weights).expect("joins");
    while run.step_index() < steps {
        inner_step(&mut weights, goal);
        run.step(&mut weights, f64::from(goal)).expect("a step");
    }
    end_of(run, &mut weights)
}

fn together(goals: &[f32], settings: &Settings, steps: u64) -> Vec<End> {
    let master = master();
    let address = master.local_addr().to_string();
    thread::scope(|scope| {
        let members: Vec<_> = goals
            .iter()
            .map(|goal| {
                let settings = Settings { min_world: goals.len(), ..settings.clone() };
                scope.spawn(|| train(&address, settings, *goal, steps))
            })
            .collect();
        members.into_iter().map(|member| member.join().expect("a member")).collect()
    })
}

fn same(ends: &[End]) -> &End {
    for end in ends {
        assert_eq!((end.rounds, end.weight), (ends[0].rounds, ends[0].weight));
        assert!(end.weights == ends[0].weights && end.momentum == ends[0].momentum, "outer states differ");
    }
    &ends[0]
}

fn mean(end: &End) -> f32 {
    end.weights.iter().map(|bits| f32::from_bits(*bits)).sum::<f32>() / ELEMENTS as f32
}

#[test]
fn all_compressions_end_with_the_same_bits_and_near_the_weighted_mean() {
    for compression in Compression::ALL {
        // Enough of them that each element has its turn in forty rounds.
        let compression =
            if let Compression::Largest(_) = compression { Compression::Largest(6) } else { compression };
        let settings = Settings {
            every: 10,
            fragments: 2,
            overlap: 2,
            compression,
            outer: OuterStep::Nesterov { rate: 0.7, momentum: 0.5 },
            ..Settings::default()
        };
        let ends = together(&[1.0, 2.0, 5.0], &settings, 400);
        let end = same(&ends);
        assert_eq!(end.rounds, 80, "{compression}");
        // The goals have weights 1, 2 and 5: (1 + 4 + 25) / 8, and one half for the slope.
        let mean = mean(end);
        assert!((mean - (3.75 + 0.5)).abs() < 0.3, "{compression}: {mean}");
    }
}

#[test]
fn averaging_every_step_is_what_plain_averaging_gives() {
    let settings = Settings { every: 1, outer: OuterStep::Average, ..Settings::default() };
    let ends = together(&[1.0, 3.0], &settings, 20);
    let end = same(&ends);
    // They begin with what most had, and of two with the one whose hash is lower.
    let first = f32::from_bits(end.weights[0]);
    let other = plain_average(1.0);
    let another = plain_average(3.0);
    assert!((first - other).abs() < 1e-4 || (first - another).abs() < 1e-4, "{first}: {other} or {another}");
}

/// The first parameter after twenty averages with weights 1 and 3, by hand.
fn plain_average(begin: f32) -> f32 {
    (0..20).fold(begin, |value, _| {
        let step = |goal: f32| value + 0.05 * (goal - value);
        (step(1.0) + 3.0 * step(3.0)) / 4.0
    })
}

#[test]
fn a_run_of_one_goes_on_by_itself() {
    let settings = Settings { every: 4, compression: Compression::Int4, ..Settings::default() };
    let ends = together(&[2.0], &settings, 40);
    assert_eq!((ends[0].rounds, ends[0].reports.len()), (10, 10));
    assert_eq!(ends[0].reports[3].sent_bytes, 0);
}

#[test]
fn nobody_waits_for_a_member_that_computes() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings {
        every: 8,
        fragments: 2,
        quorum: 0.6,
        grace: Grace::Fixed(Duration::from_millis(20)),
        compression: Compression::Int8,
        min_world: 3,
        ..Settings::default()
    };
    let (fast_are_done, fast) = (AtomicBool::new(false), AtomicU64::new(0));
    let ends: Vec<End> = thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut weights = vec![0.0; ELEMENTS];
            let mut run =
                DiLoCo::join(communicator(&address), settings.clone(), &mut weights).expect("joins");
            // One inner step that is longer than the whole training of the others.
            let begun = Instant::now();
            while !fast_are_done.load(Ordering::Acquire) && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(1));
            }
            inner_step(&mut weights, 1.0);
            let rounds = run.outer().rounds();
            assert!(rounds >= 20, "only {rounds} rounds without this member");
            run.step(&mut weights, 1.0).expect("a step");
            // The step that nobody has counted is still there, on top of what the others have found meanwhile.
            let outer = run.outer();
            let apart = weights.iter().zip(outer.parameters()).filter(|(own, outer)| own != outer).count();
            assert!(apart > 0, "an inner step was lost");
            while run.step_index() < 120 {
                inner_step(&mut weights, 1.0);
                run.step(&mut weights, 1.0).expect("a step");
            }
            end_of(run, &mut weights)
        });
        let members: Vec<_> = [1.0, 1.0]
            .map(|goal| {
                let (address, settings, fast_are_done, fast) =
                    (&address, settings.clone(), &fast_are_done, &fast);
                scope.spawn(move || {
                    let mut weights = vec![0.0; ELEMENTS];
                    let mut run = DiLoCo::join(communicator(address), settings, &mut weights).expect("joins");
                    while run.step_index() < 120 {
                        if run.step_index() >= 84 && fast.fetch_add(1, Ordering::AcqRel) == 0 {
                            fast_are_done.store(true, Ordering::Release);
                        }
                        inner_step(&mut weights, goal);
                        run.step(&mut weights, 1.0).expect("a step");
                    }
                    end_of(run, &mut weights)
                })
            })
            .into_iter()
            .collect();
        members.into_iter().chain([sleeper]).map(|member| member.join().expect("a member")).collect()
    });
    let end = same(&ends);
    let alone = end.reports.iter().filter(|report| report.stand_ins.len() == 1).count();
    assert!(alone >= 20, "{alone} rounds with a stand-in");
}

#[test]
fn a_member_that_dies_and_one_that_comes_cost_nobody_the_run() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings {
        every: 6,
        fragments: 3,
        overlap: 1,
        compression: Compression::Int4,
        min_world: 2,
        ..Settings::default()
    };
    // The step at which all end: known once the third has come again.
    let last = AtomicU64::new(u64::MAX);
    let train_until = |run: &mut DiLoCo, weights: &mut [f32], is_over: &dyn Fn(u64) -> bool| {
        let begun = Instant::now();
        while !is_over(run.step_index()) {
            assert!(begun.elapsed() < PATIENCE, "nobody has come");
            inner_step(weights, 1.0);
            run.step(weights, 1.0).expect("a step");
        }
    };
    let is_last = |step: u64| step >= last.load(Ordering::Acquire);
    let ends: Vec<End> = thread::scope(|scope| {
        let members: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut weights = vec![1.0; ELEMENTS];
                    let comm = communicator(&address);
                    let mut run = DiLoCo::join(comm, settings.clone(), &mut weights).expect("joins");
                    train_until(&mut run, &mut weights, &is_last);
                    end_of(run, &mut weights)
                })
            })
            .collect();
        let third = scope.spawn(|| {
            let mut weights = vec![7.0; ELEMENTS];
            let comm = communicator(&address);
            let mut run = DiLoCo::join(comm, settings.clone(), &mut weights).expect("joins");
            let until = run.step_index() + 20;
            train_until(&mut run, &mut weights, &|step| step >= until);
            // In the midst of whatever its library is doing.
            drop(run);
            let mut weights = vec![9.0; ELEMENTS];
            let comm = communicator(&address);
            let mut run = DiLoCo::join(comm, settings.clone(), &mut weights).expect("joins again");
            assert!(weights.iter().all(|weight| *weight < 8.0), "it did not get the parameters of the run");
            last.store(run.step_index() + 60, Ordering::Release);
            train_until(&mut run, &mut weights, &is_last);
            end_of(run, &mut weights)
        });
        members.into_iter().chain([third]).map(|member| member.join().expect("a member")).collect()
    });
    same(&ends);
}

#[test]
fn a_contribution_that_was_given_up_is_not_waited_for_again() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings { every: 2, overlap: 1, ..Settings::default() };
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        let (address, other) = (&address, settings.clone());
        scope.spawn(move || {
            let mut weights = vec![1.0; ELEMENTS];
            let _run = DiLoCo::join(communicator(address), other, &mut weights).expect("joins");
            // Contributes nothing.
            let _ = is_over.recv();
        });
        // Dropped at the end, also of a test that fails.
        let _over = over;
        let mut weights = vec![1.0; ELEMENTS];
        let mut run = DiLoCo::join(communicator(address), settings, &mut weights).expect("joins");
        for _ in 0..2 {
            run.step(&mut weights, 1.0).expect("a step");
        }
        for _ in 0..2 {
            run.finish(&mut weights, Some(Duration::ZERO)).expect("given up");
        }
    });
}

#[test]
fn figures_of_the_program_leave_room_for_those_of_the_rounds() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings { every: 2, min_world: 1, ..Settings::default() };
    let mut weights = vec![0.0; ELEMENTS];
    let full = communicator(&address);
    (0..10).for_each(|at| full.report(&format!("own{at}"), 1.0).expect("a figure"));
    let error = DiLoCo::join(full, settings.clone(), &mut weights).expect_err("no room").to_string();
    assert!(error.contains("diloco.waited_s"), "{error}");
    let comm = communicator(&address);
    let mut run = DiLoCo::join(comm.clone(), settings, &mut weights).expect("joins");
    (0..9).for_each(|at| comm.report(&format!("own{at}"), 1.0).expect("a figure"));
    comm.report("own9", 1.0).expect_err("one too many");
    while run.step_index() < 20 {
        run.step(&mut weights, 1.0).expect("a step");
    }
    assert_eq!(end_of(run, &mut weights).rounds, 10);
}

#[test]
fn no_round_is_made_by_fewer_members_than_there_have_to_be() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings { every: 2, compression: Compression::Int8, ..Settings::default() };
    let train_to = |from: f32, steps: u64| {
        let mut weights = vec![from; ELEMENTS];
        let mut run = DiLoCo::join(communicator(&address), settings.clone(), &mut weights).expect("joins");
        while run.step_index() < steps {
            inner_step(&mut weights, 1.0);
            run.step(&mut weights, 1.0).expect("a step");
        }
        end_of(run, &mut weights)
    };
    let reports = thread::scope(|scope| {
        let stays = scope.spawn(|| train_to(0.0, 120).reports);
        // Each leaves in the midst of the run; the one that stays waits for the next.
        for steps in [30, 60, 120] {
            train_to(0.0, steps);
        }
        stays.join().expect("a member")
    });
    let fewest = reports.iter().map(|report| report.contributors.len() + report.stand_ins.len()).min();
    assert_eq!((reports.len(), fewest), (60, Some(2)));
}

#[test]
fn a_group_waits_for_members_of_its_own() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings { every: 2, ..Settings::default() };
    let train_in = |group: u32, steps: u64| {
        let comm = Communicator::builder(&address).first_ports(0, 0).peer_group(group);
        let mut weights = vec![0.0; ELEMENTS];
        let comm = comm.build().expect("valid settings").into();
        let mut run = DiLoCo::join(comm, settings.clone(), &mut weights).expect("joins");
        while run.step_index() < steps {
            inner_step(&mut weights, 1.0);
            run.step(&mut weights, 1.0).expect("a step");
        }
        end_of(run, &mut weights).reports
    };
    let reports = thread::scope(|scope| {
        let waits = scope.spawn(|| train_in(0, 40));
        let others = [(); 2].map(|()| scope.spawn(|| train_in(1, 40)));
        for other in others {
            other.join().expect("a member of the other group");
        }
        train_in(0, 40);
        waits.join().expect("a member")
    });
    let counts: Vec<_> =
        reports.iter().map(|report| report.contributors.len() + report.stand_ins.len()).collect();
    assert_eq!(counts, [2; 20]);
}

#[test]
fn other_settings_are_refused_with_both_and_the_run_goes_on() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings { every: 4, ..Settings::default() };
    let refused = AtomicBool::new(false);
    let ends: Vec<End> = thread::scope(|scope| {
        let members: Vec<_> = (0..2)
            .map(|_| {
                let (address, settings, refused) = (&address, settings.clone(), &refused);
                scope.spawn(move || {
                    let mut weights = vec![1.0; ELEMENTS];
                    let mut run = DiLoCo::join(communicator(address), settings, &mut weights).expect("joins");
                    let begun = Instant::now();
                    while !refused.load(Ordering::Acquire) || run.step_index() < 400 {
                        assert!(begun.elapsed() < PATIENCE);
                        inner_step(&mut weights, 1.0);
                        match run.step(&mut weights, 1.0) {
                            Ok(()) => {}
                            // The other has ended.
                            Err(error) => panic!("{error}"),
                        }
                        if refused.load(Ordering::Acquire)
                            && run.stats().members == 2
                            && run.step_index() >= 400
                        {
                            break;
                        }
                    }
                    let rounds = run.outer().rounds();
                    drop(run);
                    End { weights: vec![], momentum: vec![], rounds, weight: 0.0, reports: vec![] }
                })
            })
            .collect();
        for (word, other) in [
            ("every 8", Settings { every: 8, ..settings.clone() }),
            ("compression int8", Settings { compression: Compression::Int8, ..settings.clone() }),
            ("2 fragments", Settings { fragments: 2, ..settings.clone() }),
        ] {
            let mut weights = vec![0.0; ELEMENTS];
            let error =
                DiLoCo::join(communicator(&address), other, &mut weights).expect_err("other settings");
            let text = error.to_string();
            assert!(matches!(error, Error::InvalidArgument(_)), "{text}");
            assert!(
                text.contains(word) && text.contains("the run trains with every 4, 1 fragments"),
                "{text}"
            );
        }
        refused.store(true, Ordering::Release);
        members.into_iter().map(|member| member.join().expect("a member")).collect()
    });
    assert!(ends.iter().all(|end| end.rounds > 0));
}

#[test]
fn a_contribution_that_is_not_finite_is_left_out_and_its_member_goes_on() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings { every: 2, compression: Compression::Bf16, ..Settings::default() };
    let ends: Vec<End> = thread::scope(|scope| {
        let members: Vec<_> = [false, true]
            .map(|is_bad| {
                let (address, settings) = (&address, settings.clone());
                scope.spawn(move || {
                    let mut weights = vec![1.0; ELEMENTS];
                    let mut run = DiLoCo::join(communicator(address), settings, &mut weights).expect("joins");
                    let mut errors = 0;
                    while run.step_index() < 40 {
                        inner_step(&mut weights, 2.0);
                        if is_bad && run.step_index() == 13 {
                            weights[17] = f32::NAN;
                        }
                        if let Err(error) = run.step(&mut weights, 1.0) {
                            assert!(error.to_string().contains("parameter 17 of fragment 0"), "{error}");
                            errors += 1;
                        }
                    }
                    assert_eq!(errors, u32::from(is_bad));
                    end_of(run, &mut weights)
                })
            })
            .into_iter()
            .collect();
        members.into_iter().map(|member| member.join().expect("a member")).collect()
    });
    let end = same(&ends);
    let alone: Vec<_> = end.reports.iter().filter(|report| report.contributors.len() == 1).collect();
    assert_eq!(alone.iter().map(|report| report.round).collect::<Vec<_>>(), [6]);
    assert!(end.weights.iter().all(|bits| f32::from_bits(*bits).is_finite()));
}

#[test]
fn an_outer_step_that_panics_ends_the_calls_of_its_member() {
    let step: pccl_diloco::OwnStep = Arc::new(|_, _, _| panic!("no such step"));
    let outer = OuterStep::Own("panics", step);
    let settings = Settings { every: 2, min_world: 1, outer, ..Settings::default() };
    let master = master();
    let mut weights = vec![0.0; ELEMENTS];
    let comm = communicator(&master.local_addr().to_string());
    let mut run = DiLoCo::join(comm, settings, &mut weights).expect("joins");
    let error = (0..4).find_map(|_| run.step(&mut weights, 1.0).err()).expect("an error");
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn contributions_beyond_all_numbers_break_nothing() {
    let settings = Settings {
        every: 2,
        compression: Compression::Bf16,
        outer: OuterStep::Average,
        min_world: 1,
        ..Settings::default()
    };
    let master = master();
    let mut weights = vec![0.0; ELEMENTS];
    let comm = communicator(&master.local_addr().to_string());
    let mut run = DiLoCo::join(comm, settings, &mut weights).expect("joins");
    while run.step_index() < 20 {
        // As bf16 this is infinite.
        weights[5] = if run.step_index() == 9 { -f32::MAX } else { 1.0 };
        run.step(&mut weights, 1.0).expect("a step");
        assert!(weights.iter().all(|weight| weight.is_finite()));
    }
    let end = end_of(run, &mut weights);
    assert_eq!((end.rounds, f32::from_bits(end.weights[5])), (10, 1.0));
}

/// Shards of one model, as FSDP2 has them: each has a group of its own, in one run.
#[test]
fn groups_of_one_run_train_beside_each_other() {
    let master = master();
    let address = master.local_addr().to_string();
    let settings = Settings { every: 4, fragments: 2, overlap: 1, ..Settings::default() };
    let ends: Vec<(u32, End)> = thread::scope(|scope| {
        let members: Vec<_> = [(0, 1.0), (1, 5.0), (0, 2.0), (1, 7.0)]
            .map(|(group, goal)| {
                let (address, settings) = (&address, settings.clone());
                scope.spawn(move || {
                    let comm = Communicator::builder(address).first_ports(0, 0).peer_group(group);
                    let mut weights = vec![goal; ELEMENTS];
                    let comm = comm.build().expect("valid settings").into();
                    let mut run = DiLoCo::join(comm, settings, &mut weights).expect("joins");
                    while run.step_index() < 80 {
                        inner_step(&mut weights, goal);
                        run.step(&mut weights, 1.0).expect("a step");
                    }
                    (group, end_of(run, &mut weights))
                })
            })
            .into_iter()
            .collect();
        members.into_iter().map(|member| member.join().expect("a member")).collect()
    });
    let of =
        |group| ends.iter().filter(move |end| end.0 == group).map(|end| end.1.clone()).collect::<Vec<_>>();
    let (first, second) = (of(0), of(1));
    assert!(mean(same(&first)) < 3.0 && mean(same(&second)) > 5.0);
    assert_eq!((first[0].rounds, second[0].rounds), (40, 40));
}

#[test]
fn rounds_of_weight_zero_change_nothing() {
    let settings = Settings { every: 2, ..Settings::default() };
    let ends = together(&[0.0, 0.0], &settings, 20);
    let end = same(&ends);
    assert_eq!((end.rounds, end.weight), (10, 0.0));
    assert!(end.weights.iter().all(|bits| f32::from_bits(*bits) == 0.0));
}

#[test]
fn a_run_goes_on_from_a_file() {
    let directory = std::env::temp_dir().join(format!("pccl-diloco-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = Arc::new(directory.join("outer.state"));
    let settings = Settings { every: 4, compression: Compression::Int4, ..Settings::default() };
    let run = |resume: Option<std::path::PathBuf>, steps: u64| {
        let master = master();
        let address = master.local_addr().to_string();
        thread::scope(|scope| {
            let members: Vec<_> = [true, false]
                .map(|has_file| {
                    let resume = resume.clone().filter(|_| has_file);
                    let (settings, address, path) =
                        (Settings { resume, ..settings.clone() }, &address, path.clone());
                    scope.spawn(move || {
                        let mut weights = vec![1.0; ELEMENTS];
                        let mut run =
                            DiLoCo::join(communicator(address), settings, &mut weights).expect("joins");
                        let begun = run.step_index();
                        while run.step_index() < steps {
                            inner_step(&mut weights, 2.0);
                            run.step(&mut weights, 1.0).expect("a step");
                        }
                        let end = end_of_saved(run, &mut weights, has_file.then_some(path.as_path()));
                        (begun, end)
                    })
                })
                .into_iter()
                .collect();
            members.into_iter().map(|member| member.join().expect("a member")).collect::<Vec<_>>()
        })
    };
    let first = run(None, 40);
    let second = run(Some(path.to_path_buf()), 80);
    assert_eq!(first.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(second.iter().map(|it| it.0).collect::<Vec<_>>(), [40, 40]);
    assert_eq!((second[0].1.rounds, second[0].1.weight), (20, 160.0));
    assert!(second[0].1.weights == second[1].1.weights);
    std::fs::remove_dir_all(directory).expect("cleaned up");
}

fn end_of_saved(run: DiLoCo, weights: &mut [f32], path: Option<&std::path::Path>) -> End {
    let mut run = run;
    run.finish(weights, Some(PATIENCE)).expect("ends well");
    if let Some(path) = path {
        run.save(path).expect("saves");
    }
    end_of(run, weights)
}
