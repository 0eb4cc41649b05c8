//! The examples in C and C++, and the peer of a bench.

use crate::{
    build::{Language, compile},
    programs::{Program, master},
};
use std::path::Path;

#[test]
fn the_example_in_c_ends_with_one_model_on_all_peers() {
    let path = compile(Language::C99, "examples/c/train_linear.c", "train-linear").expect("a C compiler");
    let line = train(&path);
    assert!(line.starts_with("y = 3.0") || line.starts_with("y = 2.9"), "{line}");
}

#[test]
fn the_example_in_cpp_ends_with_one_model_on_all_peers() {
    if let Some(path) = compile(Language::Cpp17, "examples/cpp/train_curve.cpp", "train-curve") {
        // It ends well only if it has found the curve.
        assert!(train(&path).contains("x^3"));
    }
}

#[test]
fn the_peer_of_the_bench_reduces_by_every_schedule() {
    let source = "pccl/benches/all_reduce/peer.c";
    let path = compile(Language::C99, source, "bench-peer").expect("a C compiler");
    let (_master, port) = master();
    let arguments = |pool: usize| {
        let words = format!("--child --master 127.0.0.1:{port} --peers 3 --pool {pool}");
        words.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let mut peers: Vec<Program> = (0..3).map(|pool| Program::start(&path, &arguments(pool))).collect();
    for peer in &mut peers {
        assert_eq!(peer.line(), "0");
        peer.tell("127.0.0.1:1");
    }
    peers.iter_mut().for_each(|peer| assert_eq!(peer.line(), "ready"));
    for schedule in 0..4 {
        peers.iter_mut().for_each(|peer| peer.tell(&format!("scheduled {schedule} 400000 2")));
        for peer in &mut peers {
            let line = peer.line();
            let numbers: Vec<f64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            assert!(numbers.len() == 2 && numbers[0] > 0.0, "{line}");
        }
    }
    peers.iter_mut().for_each(Program::finish);
}

/// Runs three peers; returns what they all say at the end.
fn train(path: &Path) -> String {
    let (_master, port) = master();
    let mut peers: Vec<Program> =
        (0..3).map(|_| Program::start(path, &[port.clone(), "3".to_owned()])).collect();
    let lines: Vec<String> = peers.iter_mut().map(last_line).collect();
    assert!(lines.iter().all(|line| !line.is_empty() && *line == lines[0]), "{lines:?}");
    for peer in &mut peers {
        peer.finish();
    }
    lines.into_iter().next().unwrap_or_default()
}

/// The line with the result, before which it has said how it goes.
fn last_line(peer: &mut Program) -> String {
    let mut told = 0;
    assert!(peer.line().starts_with("waiting for the master at 127.0.0.1:"));
    loop {
        let line = peer.line();
        if !line.starts_with("step ") {
            assert!(told > 0, "it never said how it goes");
            return line;
        }
        let parts: Vec<&str> = line.split([':', ',']).collect();
        assert!(parts.len() == 4 && parts[1].starts_with(" loss 0.") && parts[2] == " 3 peers", "{line}");
        assert!(parts[3].ends_with(" steps/s"), "{line}");
        told += 1;
    }
}
