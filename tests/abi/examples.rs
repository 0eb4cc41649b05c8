//! The examples in C and C++.

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

/// Runs three peers; returns what they all say at the end.
fn train(path: &Path) -> String {
    let (_master, port) = master();
    let mut peers: Vec<Program> =
        (0..3).map(|_| Program::start(path, &[port.clone(), "3".to_owned()])).collect();
    let lines: Vec<String> = peers.iter_mut().map(Program::line).collect();
    assert!(lines.iter().all(|line| !line.is_empty() && *line == lines[0]), "{lines:?}");
    for peer in &mut peers {
        peer.finish();
    }
    lines.into_iter().next().unwrap_or_default()
}
