//! The headers by themselves.

use crate::build::{Language, compile, compiler, root};
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
    for level in [None, Some("DEBUG")] {
        let mut command = Command::new(&program);
        command.env_remove("PCCL_LOG_LEVEL").env_remove("RUST_LOG");
        let output = command.envs(level.map(|level| ("PCCL_LOG_LEVEL", level))).output().expect("it runs");
        let (text, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{log}");
        assert!(text.is_empty(), "the library prints: {text}");
        assert_eq!(log.contains("DEBUG"), level.is_some(), "{log}");
    }
}

#[test]
fn members_of_a_global_iteration_in_c() {
    let program = compile(Language::C99, "tests/abi/c/iteration.c", "iteration").expect("a C compiler");
    let output = Command::new(program).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn members_of_a_diloco_run_in_c() {
    let program = compile(Language::C99, "tests/abi/c/diloco.c", "diloco").expect("a C compiler");
    let output = Command::new(program).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_member_of_a_diloco_run_in_cpp() {
    runs_in_cpp("diloco");
}

#[test]
fn samples_that_are_counted_once_in_c_and_cpp() {
    let program = compile(Language::C99, "tests/abi/c/samples.c", "samples").expect("a C compiler");
    let output = Command::new(program).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    runs_in_cpp("samples");
}

#[test]
fn an_older_cpp_is_told_what_is_needed_in_one_sentence() {
    let Some(compiler) = compiler(Language::Cpp17) else { return };
    let output = Command::new(compiler)
        .args(["-std=c++14", "-fsyntax-only", "-include", "pccl.hpp", "-xc++", "/dev/null", "-I"])
        .arg(root().join("include"))
        .output()
        .expect("the compiler runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("error:")).collect();
    assert!(!output.status.success() && said.contains("compile with -std=c++17"), "{said}");
    assert!(errors.iter().all(|line| line.contains("#error") || line.contains("needs C++17")), "{said}");
}

fn runs_in_cpp(source: &str) {
    let Some(program) = compile(Language::Cpp17, &format!("tests/abi/c/{source}.cpp"), source) else {
        return;
    };
    let output = Command::new(program).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_objects_of_cpp_release_recover_and_throw() {
    runs_in_cpp("objects");
}

#[test]
fn the_collectives_of_cpp_give_the_right_numbers_and_throw() {
    runs_in_cpp("collectives");
}
