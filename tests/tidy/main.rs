//! Rules about the repository itself: who may use whom, what sources may contain, that documents lead somewhere.
//!
//! Each rule is a function from the files to a list of problems. The tests below apply the rules to the repository; the
//! tests beside the rules plant violations and demand that they are found.

mod circles;
mod code_lines;
mod columns;
mod documents;
mod durations;
mod guides;
mod manifests;
mod modules;
mod packet_tables;
mod planted;
mod python_declarations;
#[allow(dead_code, unreachable_pub, missing_docs, reason = "it is a program of its own in the README")]
mod readme_example;
mod rust_source;
mod settings_table;
mod sources;
#[allow(dead_code, unreachable_pub, missing_docs, reason = "it is a program of its own in docs/training.md")]
mod training_example;
mod tree;
mod unused;
mod words;

use std::collections::BTreeSet;

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn dependencies_point_one_way() {
    assert_none(&manifests::problems(&tree::read()));
}

#[test]
fn users_of_the_library_get_no_command_line() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree =
        ["tree", "--offline", "--locked", "--package", "pccl", "--edges", "no-dev", "--prefix", "none"];
    let output = std::process::Command::new(cargo).args(tree).current_dir(tree::root()).output();
    let output = output.expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    let packages: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(packages.contains("pccl-master") && packages.contains("mio"), "{packages:?}");
    let foreign = ["clap", "env_logger", "anstream", "jiff"].map(|name| packages.contains(name));
    assert_eq!(foreign, [false; 4], "{packages:?}");
}

#[test]
fn no_modules_of_a_folder_use_each_other_in_a_circle() {
    assert_none(&circles::problems(&tree::read()));
}

#[test]
fn tables_of_packets_say_what_is_declared() {
    assert_none(&packet_tables::problems(&tree::read()));
}

#[test]
fn the_table_of_settings_is_the_declared_one() {
    assert_none(&settings_table::problems(&tree::read()));
}

#[test]
fn every_duration_is_told() {
    assert_none(&durations::problems(&tree::read()));
}

#[test]
fn python_declares_the_c_interface_as_the_header_does() {
    assert_none(&python_declarations::problems(&tree::read()));
}

#[test]
fn every_test_is_run() {
    assert_none(&manifests::forgotten_tests(&tree::read()));
}

#[test]
fn nothing_is_there_that_nobody_uses() {
    let tree = tree::read();
    assert_none(&unused::dependencies(&tree));
    assert_none(&unused::items(&tree));
}

#[test]
fn every_source_file_belongs_to_a_module() {
    assert_none(&modules::forgotten_files(&tree::read()));
}

#[test]
fn modules_use_only_those_below_them() {
    assert_none(&modules::directions(&tree::read()));
}

#[test]
fn lines_fit_the_screen() {
    assert_none(&columns::problems(&tree::read()));
}

#[test]
fn sources_keep_the_rules() {
    assert_none(&sources::problems(&tree::read()));
}

#[test]
fn lists_for_unsafe_code_are_up_to_date() {
    assert_none(&sources::outdated_lists(&tree::read()));
}

#[test]
fn documents_keep_the_rules() {
    let root = tree::root();
    assert_none(&documents::problems(&tree::read(), |path| root.join(path).exists()));
}

/// Sentences have subjects, and words are those of the field.
#[test]
fn words_become_better() {
    assert_none(&words::problems(&tree::read()));
}

/// Writes the counts anew, and prints where each stands.
#[test]
#[ignore = "a tool: cargo test -p pccl-tests --test tidy print_words -- --ignored --nocapture"]
fn print_words() {
    let found = words::found(&tree::read());
    let counts: String = found.iter().map(|(name, places)| format!("{name} {}\n", places.len())).collect();
    std::fs::write(tree::root().join(words::COUNTS), counts).expect("the repository can be written");
    for (name, places) in found {
        places.iter().for_each(|place| println!("{place}: {name}"));
    }
}

/// Prints the lines of code of each crate of the library, and their sum.
#[test]
#[ignore = "a tool: cargo test -p pccl-tests --test tidy print_code_lines -- --ignored --nocapture"]
fn print_code_lines() {
    let counted = code_lines::by_crate(&tree::read());
    counted.iter().for_each(|(name, lines)| println!("{lines:6} {name}"));
    println!("{:6} in all", counted.values().sum::<usize>());
}

#[test]
fn guides_are_the_documents() {
    assert_none(&guides::problems(&tree::read()));
}

#[test]
fn the_examples_of_the_documents_are_those_that_are_tested() {
    let tree = tree::read();
    let block = documents::rust_block(&tree["README.md"]);
    assert_eq!(block, tree["tests/tidy/readme_example.rs"], "README.md has another text");
    let block = documents::rust_block(&tree["docs/training.md"]);
    assert_eq!(block, tree["tests/tidy/training_example.rs"], "docs/training.md has another text");
    let library = &tree["pccl/src/lib.rs"];
    let front: Vec<&str> = library.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let front: Vec<&str> = front.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let front = front.join("\n");
    let (_, code) = front.split_once("```no_run\n").expect("an example");
    let (code, _) = code.split_once("```").expect("its end");
    assert_eq!(block, code, "the front page of the crate has another text");
}

#[test]
fn the_example_of_the_readme_trains() {
    let master = launch("127.0.0.1:0");
    let address = &master.local_addr().to_string();
    std::thread::scope(|scope| {
        let peers: Vec<_> =
            (0..2).map(|_| scope.spawn(|| readme_example::train(address, vec![0.0; 1000], 20))).collect();
        for peer in peers {
            let weights = peer.join().expect("no panic").expect("training");
            assert!(weights.len() == 1000 && weights.iter().all(|weight| (weight - 0.878_42).abs() < 1e-4));
        }
    });
}

#[test]
fn the_example_of_a_training_trains() {
    let master =
        pccl::Master::launch(pccl::MasterConfig { listen: "127.0.0.1:0".into(), ..Default::default() })
            .expect("a master on any port");
    let address = master.local_addr().to_string();
    check_training(std::thread::scope(|scope| {
        let peers: Vec<_> = (0..3).map(|_| scope.spawn(|| example_peer(&address, 3))).collect();
        peers.into_iter().map(|peer| peer.join().expect("no panic")).collect()
    }));
}

/// A peer that runs the example once there are `world` of them.
fn example_peer(master: &str, world: usize) -> training_example::Training {
    let comm = peer(master);
    if world > 1 {
        comm.make_good(pccl::Remedy::Reconnect, world).expect("world complete");
    }
    let mut training = untrained();
    training_example::train(&comm, &mut training).expect("training");
    training
}

fn peer(master: &str) -> pccl::Communicator {
    pccl::Communicator::builder(master).first_ports(0, 0).build().expect("valid settings")
}

fn untrained() -> training_example::Training {
    training_example::Training::default()
}

fn launch(listen: &str) -> pccl::Master {
    pccl::Master::launch(pccl::MasterConfig { listen: listen.into(), ..Default::default() })
        .expect("a master")
}

/// Waits until the master says of a peer that it is in this call.
fn await_call(master: &str, call: &str) {
    loop {
        let status =
            pccl_master::query_status(master, None, std::time::Duration::from_secs(20)).expect("a status");
        if status.waits.iter().any(|wait| wait.text.as_str().contains(call)) {
            return;
        }
        std::thread::yield_now();
    }
}

fn check_training(results: Vec<training_example::Training>) {
    let first = &results[0].weights;
    assert!(first.iter().all(|weight| *weight > 0.5), "nothing was learned: {}", first[0]);
    assert!(results.iter().all(|result| result.weights == *first && result.step == results[0].step));
}

/// A peer waits for others when the master goes. It tries until there is a new one on the same address.
#[test]
fn the_example_of_a_training_outlives_its_master() {
    let master = launch("127.0.0.1:0");
    let address = &master.local_addr().to_string();
    check_training(std::thread::scope(|scope| {
        let first = scope.spawn(move || example_peer(address, 1));
        await_call(address, "wait_for_world");
        drop(master);
        let _master = after_a_stranger(address);
        let others: Vec<_> = (0..2).map(|_| scope.spawn(move || example_peer(address, 3))).collect();
        std::iter::once(first).chain(others).map(|peer| peer.join().expect("no panic")).collect()
    }));
}

/// Starts a master at an address at which peers already look for one: somebody else has answered them there before.
fn after_a_stranger(address: &str) -> pccl::Master {
    let stranger = std::net::TcpListener::bind(address).expect("the port is free");
    drop(stranger.accept().expect("a peer tries"));
    drop(stranger);
    launch(address)
}

#[test]
fn the_example_of_the_readme_may_be_started_before_its_master() {
    let address = &format!("127.0.0.1:{}", pccl_testkit::ports::free_port());
    check_training(std::thread::scope(|scope| {
        let peers: Vec<_> = (0..2).map(|_| scope.spawn(move || example_peer(address, 1))).collect();
        let _master = after_a_stranger(address);
        peers.into_iter().map(|peer| peer.join().expect("no panic")).collect()
    }));
}

/// The master goes while a peer is in a call of a step, and the other one is not.
#[test]
fn the_example_of_the_readme_goes_on_with_its_step_at_another_master() {
    for call in ["shared-state sync", "all-reduce"] {
        let master = launch("127.0.0.1:0");
        let address = &master.local_addr().to_string();
        check_training(std::thread::scope(|scope| {
            let first = scope.spawn(move || example_peer(address, 1));
            let second = peer(address);
            let mut training = untrained();
            second.make_good(pccl::Remedy::Reconnect, 2).expect("world complete");
            if call == "all-reduce" {
                let mut state = pccl::SharedState::new(training.revision);
                state.tensor("weights", &mut training.weights).expect("a tensor");
                state.tensor("step", &mut training.step).expect("a tensor");
                second.sync_shared_state(&mut state, pccl::SyncStrategy::EnforcePopular).expect("a sync");
                training.revision = state.revision() + 1;
                assert!(!second.are_peers_pending().expect("an answer"), "nobody else");
            }
            await_call(address, call);
            drop(master);
            let _master = launch(address);
            training_example::train(&second, &mut training).expect("training");
            vec![first.join().expect("no panic"), training]
        }));
    }
}

/// As the documents have it for loops of one's own.
#[test]
fn a_loop_of_ones_own_outlives_its_master() {
    fn own_loop(comm: &pccl::Communicator, steps: &mut u32) -> Result<(), pccl::Error> {
        let step = || comm.all_reduce(&mut [1.0_f32; 4], pccl::ReduceOp::Sum);
        let mut failure = Some(pccl::Error::NotConnected);
        while *steps < 3 {
            if let Some(error) = failure.take() {
                comm.recover(&error, 2)?;
            }
            match step() {
                Ok(_) => *steps += 1,
                Err(error) => failure = Some(error),
            }
        }
        Ok(())
    }
    let master = launch("127.0.0.1:0");
    let address = &master.local_addr().to_string();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || own_loop(&peer(address), &mut 0));
        let second = peer(address);
        second.make_good(pccl::Remedy::Reconnect, 2).expect("world complete");
        await_call(address, "all-reduce");
        drop(master);
        let _master = launch(address);
        own_loop(&second, &mut 0).expect("it goes on");
        first.join().expect("no panic").expect("it goes on");
    });
}
