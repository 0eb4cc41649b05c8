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

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn dependencies_point_one_way() {
    assert_none(&manifests::problems(&tree::read()));
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
    use readme_example::{Training, train};
    let master =
        pccl::Master::launch(pccl::MasterConfig { listen: "127.0.0.1:0".into(), ..Default::default() })
            .expect("a master on any port");
    let peer = || {
        let comm = pccl::Communicator::builder(&master.local_addr().to_string())
            .first_ports(0, 0)
            .build()
            .expect("valid settings");
        comm.connect().expect("connect");
        comm.wait_for_world(3, None).expect("world complete");
        let mut training = Training { weights: vec![0.0; 1000], step: [0], revision: 0 };
        train(&comm, &mut training).expect("training");
        training
    };
    let results: Vec<Training> = std::thread::scope(|scope| {
        let peers: Vec<_> = (0..3).map(|_| scope.spawn(peer)).collect();
        peers.into_iter().map(|peer| peer.join().expect("no panic")).collect()
    });
    let first = &results[0].weights;
    assert!(first.iter().all(|weight| *weight > 0.5), "nothing was learned: {}", first[0]);
    assert!(results.iter().all(|result| result.weights == *first && result.step == results[0].step));
}
