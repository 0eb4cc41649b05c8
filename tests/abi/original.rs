//! Programs that were written for the original: they know its header and nothing else, and are run with this library.

use crate::{
    build::{Language, compile, compile_with},
    programs::Program,
};
use pccl_testkit::ports;
use std::path::{Path, PathBuf};

const SOURCE: &str = "tests/abi/original/training.c";

/// The program, compiled with the declarations of the original.
fn training(language: Language, name: &str) -> Option<PathBuf> {
    compile_with(language, "tests/abi/original", SOURCE, &format!("original-{name}"))
}

/// The original has no way to ask for the port that a master has got.
fn free_port() -> String {
    ports::free_port().to_string()
}

fn start(program: &Path, arguments: &[&str]) -> Program {
    let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
    Program::start(program, &arguments)
}

/// The usual loop: peers come one after the other, before the master; one is killed, another one comes; all end alike.
fn train(program: &Path) {
    let port = free_port();
    let peer = || start(program, &["peer", &port, "40", "3"]);
    let mut peers = vec![peer(), peer()];
    let mut master = start(program, &["master", &port]);
    master.expect("listening");
    peers[0].expect("step 3 ");
    peers.push(peer());
    let mut victim = peers.remove(1);
    loop {
        let line = victim.expect("step");
        if line.ends_with("world 3") {
            break;
        }
    }
    victim.kill();
    peers[0].expect("step 20 ");
    peers.push(peer());
    let ends: Vec<String> = peers.iter_mut().map(|peer| peer.expect("end")).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    for peer in &mut peers {
        peer.finish();
    }
    // Its handler interrupts the master.
    master.terminate();
    master.finish();
}

#[test]
fn the_usual_loop_runs_with_a_kill_and_a_newcomer() {
    train(&training(Language::C99, "c").expect("a C compiler links Rust programs"));
}

#[test]
fn the_usual_loop_in_cpp() {
    if let Some(program) = training(Language::Cpp17, "cpp") {
        train(&program);
    }
}

#[test]
fn a_master_and_two_peers_in_one_process() {
    let program = training(Language::C99, "threads").expect("a C compiler");
    let mut process = start(&program, &["threads", &free_port()]);
    process.expect("end");
    process.finish();
}

#[test]
fn its_sources_compile_with_the_header_of_this_library() {
    compile(Language::C99, SOURCE, "original-source").expect("a C compiler");
    compile(Language::Cpp17, SOURCE, "original-source-cpp");
}
