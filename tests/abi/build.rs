//! Builds the library and the programs.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is one level down")
}

/// Languages and their strictest settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Language {
    C99,
    C11,
    Cpp17,
}

/// Directory with `libpccl.so`, `libpccl.a` and `pccl-master`, built once for all tests here. The output of cargo is
/// shown meanwhile, although a test is under way.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // Not by eprintln, which the harness of tests keeps to itself.
        let told = writeln!(std::io::stderr(), "building what these tests link and start:");
        told.expect("stderr is there");
        pccl_testkit::library::build(root()).expect("the library")
    })
}

/// The compiler of a language, if there is one.
pub(crate) fn compiler(language: Language) -> Option<String> {
    let (variable, names) = match language {
        Language::Cpp17 => ("CXX", ["c++", "g++", "clang++"]),
        _ => ("CC", ["cc", "gcc", "clang"]),
    };
    let given = std::env::var(variable).ok().into_iter();
    let mut candidates = given.chain(names.map(str::to_owned));
    candidates.find(|name| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success()))
}

/// Compiles a program and links it with the library; `None`, with a reason on stderr, without a compiler.
pub(crate) fn compile(language: Language, source: &str, name: &str) -> Option<PathBuf> {
    compile_with(language, "include", source, name)
}

/// The same with the headers of another directory.
pub(crate) fn compile_with(language: Language, headers: &str, source: &str, name: &str) -> Option<PathBuf> {
    let Some(compiler) = compiler(language) else {
        eprintln!("skipped: no compiler for {language:?}");
        return None;
    };
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("abi-{name}"));
    let standard = match language {
        Language::C99 => ["-std=c99", "-xc"],
        Language::C11 => ["-std=c11", "-xc"],
        Language::Cpp17 => ["-std=c++17", "-xc++"],
    };
    let library = library();
    let output = Command::new(compiler)
        .args(standard)
        .args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-g", "-O1"])
        .arg("-I")
        .arg(root().join(headers))
        .arg(root().join(source))
        .args(["-xnone", "-o"])
        .arg(&program)
        .arg("-L")
        .arg(library)
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .args(["-lpccl", "-lm", "-pthread"])
        .output()
        .expect("the compiler runs");
    assert!(output.status.success(), "{source}:\n{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}
