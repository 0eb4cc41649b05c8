//! Rules about the repository itself: who may use whom, what sources may contain, that documents lead somewhere.
//!
//! Each rule is a function from the files to a list of problems. The tests below apply the rules to the repository; the
//! tests beside the rules plant violations and demand that they are found.

mod documents;
mod manifests;
mod planted;
#[allow(dead_code, unreachable_pub, missing_docs, reason = "it is a program of its own in the README")]
mod readme_example;
mod rust_source;
mod sources;
mod tree;

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

#[test]
fn the_example_of_the_readme_is_the_one_that_is_tested() {
    let tree = tree::read();
    let block = documents::rust_block(&tree["README.md"]);
    assert_eq!(block, tree["tests/tidy/readme_example.rs"], "README.md has another text");
}

#[test]
fn the_example_of_the_readme_trains() {
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
fn example_peer(master: &str, world: usize) -> readme_example::Training {
    let comm = pccl::Communicator::builder(master).first_ports(0, 0).build().expect("valid settings");
    comm.connect().expect("connect");
    comm.wait_for_world(world, None).expect("world complete");
    let mut training = readme_example::Training { weights: vec![0.0; 1000], step: [0], revision: 0 };
    readme_example::train(&comm, &mut training).expect("training");
    training
}

fn check_training(results: Vec<readme_example::Training>) {
    let first = &results[0].weights;
    assert!(first.iter().all(|weight| *weight > 0.5), "nothing was learned: {}", first[0]);
    assert!(results.iter().all(|result| result.weights == *first && result.step == results[0].step));
}

/// A peer waits for others when the master goes. It tries until there is a new one on the same address.
#[test]
fn the_example_of_the_readme_outlives_its_master() {
    let launch = |listen: &str| {
        pccl::Master::launch(pccl::MasterConfig { listen: listen.into(), ..Default::default() })
            .expect("a master")
    };
    let master = launch("127.0.0.1:0");
    let address = &master.local_addr().to_string();
    check_training(std::thread::scope(|scope| {
        let first = scope.spawn(move || example_peer(address, 1));
        let waits = || {
            let status = pccl_master::query_status(address, std::time::Duration::from_secs(20));
            status.is_ok_and(|status| format!("{status}").contains("wait_for_world"))
        };
        while !waits() {
            assert!(!first.is_finished(), "it gave up");
            std::thread::yield_now();
        }
        drop(master);
        // Whoever listens there now is no master; the peer finds that out.
        let stranger = std::net::TcpListener::bind(address).expect("the port is free");
        drop(stranger.accept().expect("the peer tries"));
        drop(stranger);
        let _master = launch(address);
        let others: Vec<_> = (0..2).map(|_| scope.spawn(move || example_peer(address, 3))).collect();
        std::iter::once(first).chain(others).map(|peer| peer.join().expect("no panic")).collect()
    }));
}
