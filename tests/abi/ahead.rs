//! Newcomers in C and C++ that fetch the state before they are let in.

use crate::{
    build::{Language, compile},
    programs::{Program, master},
};
use std::process::Command;

fn joins_without_a_stop(language: Language) {
    let name = format!("ahead-{language:?}");
    let Some(program) = compile(language, "tests/abi/c/ahead.c", &name) else { return };
    let (_master, port) = master();
    let start = |index: usize| {
        Program::start(&program, &[port.clone(), "ahead".into(), "2".into(), index.to_string()])
    };
    let mut peers: Vec<Program> = (0..2).map(start).collect();
    // A newcomer that finds nobody who lends is let in as ever; so each comes when all of them do.
    for newcomer in 2..4 {
        for peer in &mut peers {
            peer.expect("lent");
        }
        let mut fetching = start(newcomer);
        fetching.expect("fetched");
        for peer in &mut peers {
            peer.go();
        }
        peers.push(fetching);
    }
    for peer in &mut peers {
        peer.expect("done");
    }
    for peer in &mut peers {
        peer.go();
    }
    for peer in &mut peers {
        peer.finish();
    }
}

#[test]
fn newcomers_in_c_join_without_a_stop() {
    joins_without_a_stop(Language::C99);
}

#[test]
fn the_same_source_as_cpp() {
    joins_without_a_stop(Language::Cpp17);
}

#[test]
fn loans_and_newcomers_of_the_header_for_cpp() {
    let Some(program) = compile(Language::Cpp17, "tests/abi/c/ahead.cpp", "ahead-objects") else { return };
    let output = Command::new(program).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
