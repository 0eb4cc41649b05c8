//! The example in C.

use crate::{
    build::{Language, compile},
    programs::{Program, master},
};

#[test]
fn the_example_in_c_ends_with_one_model_on_all_peers() {
    let path = compile(Language::C99, "examples/c/train_linear.c", "train-linear").expect("a C compiler");
    let (_master, port) = master();
    let mut peers: Vec<Program> =
        (0..3).map(|_| Program::start(&path, &[port.clone(), "3".to_owned()])).collect();
    let lines: Vec<String> = peers.iter_mut().map(Program::line).collect();
    assert!(lines[0].starts_with("y = 3.0") || lines[0].starts_with("y = 2.9"), "{lines:?}");
    assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    for peer in &mut peers {
        peer.finish();
    }
}
