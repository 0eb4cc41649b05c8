//! Leftovers of many lives of a communicator, and valgrind's word about one.

use crate::{
    build::Language,
    programs::{Program, master, peer_program, start_peers},
};
use std::{path::Path, process::Command};

/// Lets peers live, leave and come again `times` times, together.
fn repeat(peers: &mut [Program], times: usize) {
    for _ in 0..times {
        for peer in &mut *peers {
            peer.expect("left");
        }
        for peer in &mut *peers {
            peer.go();
        }
    }
}

fn times(usually: usize, full: usize) -> usize {
    if std::env::var_os("PCCL_TEST_FULL").is_some() { full } else { usually }
}

#[test]
fn a_thousand_lives_of_a_communicator_leave_nothing_behind() {
    let times = times(60, 1000);
    let program = peer_program(Language::C99).expect("a C compiler");
    let (_master, port) = master();
    let mut peers = start_peers(&program, &port, &format!("cycle={times}"), 2);
    repeat(&mut peers, times);
    for peer in &mut peers {
        let grown = peer.expect("grew");
        println!("{grown}");
        peer.finish();
    }
}

/// Under valgrind, which ends a program with an error that has read or written what is not its own, used what was never
/// written, or lost memory.
fn watched(program: &Path, arguments: &[&str]) -> Program {
    let options =
        ["--quiet", "--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    let all = options.iter().chain(&["--error-exitcode=9"]).map(|it| (*it).to_owned());
    let program = std::iter::once(program.display().to_string());
    let arguments = arguments.iter().map(|it| (*it).to_owned());
    Program::start(Path::new("valgrind"), &all.chain(program).chain(arguments).collect::<Vec<_>>())
}

fn has_valgrind() -> bool {
    let found = Command::new("valgrind").arg("--version").output().is_ok_and(|it| it.status.success());
    if !found {
        eprintln!("skipped: no valgrind");
    }
    found
}

#[test]
fn valgrind_finds_nothing_in_several_lives() {
    if !has_valgrind() {
        return;
    }
    let times = times(5, 50);
    let program = peer_program(Language::C99).expect("a C compiler");
    let (_master, port) = master();
    let scenario = format!("repeat={times}");
    let mut peers: Vec<Program> =
        ["0", "1"].map(|index| watched(&program, &[&port, &scenario, "2", index])).into();
    repeat(&mut peers, times);
    for peer in &mut peers {
        peer.finish();
    }
}

#[test]
fn valgrind_finds_nothing_in_any_kind_of_operation() {
    if !has_valgrind() {
        return;
    }
    let program = peer_program(Language::C99).expect("a C compiler");
    let (_master, port) = master();
    // Enough for pairwise exchange.
    let mut peers: Vec<Program> =
        ["0", "1", "2"].map(|index| watched(&program, &[&port, "all", "3", index])).into();
    for peer in &mut peers {
        peer.expect("joined");
    }
    for peer in &mut peers {
        peer.go();
    }
    for peer in &mut peers {
        peer.finish();
    }
}
