//! The files that `install.sh` installs, as other projects find and use it.

use crate::{
    build::{Language, compiler, library, root},
    symbols::declared,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

/// A program in C that tells its library's version, if it is that of the header.
const VERSION: &str = r#"
#include <pccl.h>
#include <stdio.h>
#include <string.h>
#if PCCL_VERSION != PCCL_VERSION_MAJOR * 1000000 + PCCL_VERSION_MINOR * 1000 + PCCL_VERSION_PATCH
#error "the version is no number"
#endif
int main(void) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", PCCL_VERSION_MAJOR, PCCL_VERSION_MINOR, PCCL_VERSION_PATCH);
    puts(pcclGetVersion());
    return strcmp(text, pcclGetVersion()) || strcmp(text, PCCL_VERSION_STRING) || pcclInit() != pcclSuccess;
}
"#;

/// An empty directory for this test.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("install-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a directory");
    path
}

fn install(prefix: &str, destination: Option<&Path>) -> String {
    let mut command = Command::new("sh");
    command.arg(root().join("install.sh")).args(["--prefix", prefix, "--built"]).arg(library());
    text(command.env_remove("DESTDIR").envs(destination.map(|path| ("DESTDIR", path))))
}

/// Installed once for all tests that only look.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let path = directory("prefix");
        let said = install(path.to_str().expect("a path in UTF-8"), None);
        assert!(said.contains("ldconfig") && said.contains("LD_LIBRARY_PATH"), "{said}");
        path
    })
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// The output of a command that ends well.
fn text(command: &mut Command) -> String {
    let output = run(command);
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}:\n{errors}\n{out}");
    out.into_owned()
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn c_compiler() -> String {
    compiler(Language::C99).expect("a C compiler links Rust programs")
}

fn write_source(directory: &Path) -> PathBuf {
    let source = directory.join("version.c");
    fs::write(&source, VERSION).expect("written");
    source
}

#[test]
fn the_library_has_its_version_in_its_names_and_nothing_for_debuggers() {
    let lib = installed().join("lib");
    let version = env!("CARGO_PKG_VERSION");
    let target = |name: &str| fs::read_link(lib.join(name)).expect(name).display().to_string();
    assert_eq!(target("libpccl.so"), "libpccl.so.0");
    assert_eq!(target("libpccl.so.0"), format!("libpccl.so.{version}"));
    // Of each object in an archive.
    let sections =
        |path: &Path| text(Command::new("readelf").arg("--section-headers").arg("--wide").arg(path));
    if is_there("strip") && is_there("readelf") {
        for file in ["libpccl.so", "libpccl.a"] {
            assert!(sections(&library().join(file)).contains(".debug_info"), "{file} had nothing to strip");
            assert!(!sections(&lib.join(file)).contains(".debug_info"), "{file} is not stripped");
        }
    }
    let master = installed().join("bin/pccl-master");
    assert_eq!(fs::metadata(&master).expect("a file").permissions().mode() & 0o777, 0o755);
    assert!(text(Command::new(master).arg("--version")).contains(version));
    // For a user that copies the headers only: they do not need each other's place.
    for header in fs::read_dir(root().join("include")).expect("headers") {
        let name = header.expect("a header").file_name();
        assert!(installed().join("include").join(&name).exists(), "{name:?}");
    }
}

#[test]
fn a_package_is_made_below_destdir_for_where_it_will_be() {
    let stage = directory("stage");
    let said = install("/opt/pccl", Some(&stage));
    assert!(!said.contains("ldconfig"), "{said}");
    let pc = fs::read_to_string(stage.join("opt/pccl/lib/pkgconfig/pccl.pc")).expect("for pkg-config");
    assert!(pc.contains("prefix=/opt/pccl\n") && !pc.contains(stage.to_str().expect("UTF-8")), "{pc}");
    assert!(stage.join("opt/pccl/lib/libpccl.so").exists());
}

#[test]
fn wrong_arguments_install_nothing() {
    for arguments in [&["--prefix"][..], &["--built"], &["/usr/local"], &["--perfix=/x"]] {
        let output = run(Command::new("sh").arg(root().join("install.sh")).args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage"), "{arguments:?}");
    }
}

#[test]
fn a_program_of_the_original_finds_this_library() {
    // It was linked with a library whose name had no version.
    let directory = directory("original");
    let stub = directory.join("stub.c");
    let functions: String = declared().iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
    fs::write(&stub, functions).expect("written");
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libpccl.so", "-o", "libpccl.so", "stub.c"];
    text(Command::new(c_compiler()).args(shared).current_dir(&directory));
    let source = write_source(&directory);
    let include = installed().join("include");
    let mut compile = Command::new(c_compiler());
    compile.arg(source).arg("-I").arg(include).args(["-L.", "-lpccl", "-o", "version"]);
    text(compile.current_dir(&directory));
    let mut program = Command::new(directory.join("version"));
    let said = text(program.env("LD_LIBRARY_PATH", installed().join("lib")));
    assert_eq!(said.trim(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn pkg_config_tells_how_to_link_both_libraries() {
    if !is_there("pkg-config") {
        eprintln!("skipped: there is no pkg-config");
        return;
    }
    let directory = directory("pkg-config");
    let source = write_source(&directory);
    let path = installed().join("lib/pkgconfig");
    for (name, more) in [("shared", &[][..]), ("static", &["--static"])] {
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", "pccl >= 0.1"]).args(more).env("PKG_CONFIG_PATH", &path);
        let flags = text(&mut ask);
        let program = directory.join(name);
        let mut compile = Command::new(c_compiler());
        compile.arg(&source).arg("-o").arg(&program);
        for flag in flags.split_whitespace() {
            // There is no shared library where only the static one is wanted.
            compile.arg(if flag == "-lpccl" && name == "static" { "-l:libpccl.a" } else { flag });
        }
        text(&mut compile);
        let mut run = Command::new(program);
        if name == "shared" {
            run.env("LD_LIBRARY_PATH", installed().join("lib"));
        }
        assert_eq!(text(&mut run).trim(), env!("CARGO_PKG_VERSION"), "{name}");
    }
}

/// A project that wants this version, and builds one program with each library.
fn cmake(name: &str, wanted: &str) -> Option<(PathBuf, Output)> {
    if !is_there("cmake") {
        eprintln!("skipped: there is no cmake");
        return None;
    }
    let directory = directory(name);
    write_source(&directory);
    let project = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(outside C)\nfind_package(pccl {wanted} REQUIRED)\n\
         add_executable(shared version.c)\ntarget_link_libraries(shared pccl::pccl)\n\
         add_executable(static version.c)\ntarget_link_libraries(static pccl::static)\n"
    );
    fs::write(directory.join("CMakeLists.txt"), project).expect("written");
    let mut configure = Command::new("cmake");
    configure.args(["-S", ".", "-B", "build"]).current_dir(&directory);
    let output = run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", installed().display())));
    Some((directory, output))
}

#[test]
fn a_project_with_cmake_finds_builds_and_runs() {
    let Some((directory, configured)) = cmake("cmake", "0.1") else { return };
    assert!(configured.status.success(), "{}", String::from_utf8_lossy(&configured.stderr));
    text(Command::new("cmake").args(["--build", "build"]).current_dir(&directory));
    for name in ["shared", "static"] {
        let mut program = Command::new(directory.join("build").join(name));
        assert_eq!(text(&mut program).trim(), env!("CARGO_PKG_VERSION"), "{name}");
    }
}

#[test]
fn cmake_refuses_versions_that_do_not_fit() {
    for (wanted, fits) in [
        ("", true),
        ("0", true),
        ("0.1.0 EXACT", true),
        ("0.1...<0.2", true),
        ("0.0.9", false),
        ("0.1.99", false),
        ("0.2", false),
        ("1.0", false),
        ("0.2...1", false),
    ] {
        let Some((_, configured)) = cmake("cmake-version", wanted) else { return };
        let errors = String::from_utf8_lossy(&configured.stderr);
        assert_eq!(configured.status.success(), fits, "{wanted}: {errors}");
        assert!(fits || errors.contains(env!("CARGO_PKG_VERSION")), "{wanted}: {errors}");
    }
}
