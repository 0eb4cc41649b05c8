//! The headers by themselves.

use crate::build::{Language, compile};
use std::process::Command;

#[test]
fn sizes_offsets_and_values_are_those_of_the_original() {
    // Its assertions are made by the compiler.
    let program =
        compile(Language::C11, "tests/abi/c/layout.c", "layout").expect("a C compiler links Rust programs");
    assert!(Command::new(program).status().expect("it runs").success());
}

#[test]
fn every_function_refuses_what_has_no_meaning() {
    let program = compile(Language::C99, "tests/abi/c/arguments.c", "arguments")
        .expect("a C compiler links Rust programs");
    let output = Command::new(program).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty(), "the library prints: {}", String::from_utf8_lossy(&output.stdout));
}
