//! Rules for the content of Rust sources.

use crate::{
    rust_source::{code, lines_with, without_tests},
    tree::Tree,
};
use std::collections::BTreeSet;

/// Longest file, in lines.
const MAX_LINES: usize = 700;

/// Files with `unsafe`, and what for. Everything else is safe Rust.
const UNSAFE: &[(&str, &str)] = &[
    ("cuda/src/driver.rs", "calls the driver"),
    ("cuda/src/hash.rs", "launches kernels"),
    ("cuda/src/lane.rs", "copies between pinned memory and a device, and what belongs to that"),
    ("cuda/src/memory.rs", "memory of a device that a program lends"),
    ("cuda/src/quantise.rs", "launches kernels"),
    ("hash/src/kernels.rs", "calls a kernel after the processor was asked for it"),
    ("hash/src/kernels/avx2.rs", "intrinsics"),
    ("hash/src/kernels/avx512.rs", "intrinsics"),
    ("hash/src/kernels/sse42.rs", "intrinsics"),
    (
        "log/src/system.rs",
        "handlers of exit and fork, the signals of a thread, a value that children do not have",
    ),
    ("master/src/process.rs", "signals and resource limits of the pccl-master program"),
    ("pccl/capi/src/ahead.rs", "the functions of the C interface"),
    ("pccl/capi/src/calls.rs", "the functions of the C interface"),
    ("pccl/capi/src/diloco.rs", "the functions of the C interface"),
    ("pccl/capi/src/samples.rs", "the functions of the C interface"),
    ("pccl/capi/src/files.rs", "the functions of the C interface"),
    ("pccl/capi/src/clip.rs", "the functions of the C interface"),
    ("pccl/capi/src/moves.rs", "the functions of the C interface"),
    ("pccl/capi/src/collectives.rs", "the functions of the C interface"),
    ("pccl/capi/src/device.rs", "the functions of the C interface"),
    ("pccl/capi/src/diagnosis.rs", "the functions of the C interface"),
    ("pccl/capi/src/diff.rs", "the functions of the C interface"),
    ("pccl/capi/src/fork.rs", "handlers of fork"),
    ("pccl/capi/src/groups.rs", "the functions of the C interface"),
    ("pccl/capi/src/iteration.rs", "the functions of the C interface"),
    ("pccl/capi/src/logging.rs", "calls the function of a C program"),
    ("pccl/capi/src/master.rs", "the functions of the C interface"),
    ("pccl/capi/src/masters.rs", "what a signal handler reads"),
    ("pccl/capi/src/raw.rs", "what the pointers of a C program point to"),
    ("pccl/capi/src/reduce.rs", "the functions of the C interface"),
    ("pccl/capi/src/settings.rs", "the functions of the C interface"),
    ("pccl/capi/src/types.rs", "names the type of a function of a C program"),
    ("pccl/capi/src/world.rs", "the functions of the C interface"),
    ("pccl/src/memory.rs", "the caller's memory"),
    ("pccl/src/memory/backup.rs", "memory of the library that is lent as the caller's is"),
    ("pccl/src/memory/span.rs", "what only the operation's own thread reads and writes"),
    ("pccl/src/memory/staged.rs", "words as elements"),
    ("pccl/src/notice/signals.rs", "handlers of signals, for programs that ask for them"),
    ("quant/src/copy.rs", "stores that go by the caches"),
    ("quant/src/kernels/mod.rs", "calls a kernel after the processor was asked for it; bytes as elements"),
    ("quant/src/quantise/levels.rs", "calls a kernel after the processor was asked for it"),
    ("threadpark/src/futex/linux.rs", "the futex system call"),
    ("tinysockets/src/link/memory.rs", "the caller's memory in the hands of link threads"),
    ("tinysockets/src/shm/region.rs", "memory that two processes have mapped"),
    ("tinysockets/src/shm/ring.rs", "what only one end of a ring touches"),
    ("tinysockets/src/sys.rs", "system calls"),
];

/// The same for tests, benches, examples, and programs that test.
const UNSAFE_IN_TESTS: &[(&str, &str)] = &[
    ("cuda/tests/common/mod.rs", "lends device memory"),
    ("cuda/tests/order.rs", "names memory of the host as that of a device"),
    ("log/tests/writing.rs", "a fork, and a signal as programs in C have it"),
    ("pccl/protocol/tests/allocation.rs", "an allocator that counts"),
    ("stress/src/os.rs", "signals and clocks"),
    ("tests/cuda/collectives.rs", "lends device memory"),
    ("tests/cuda/kinds.rs", "lends memory of device and host for any kind of call"),
    ("tests/cuda/main.rs", "lends device memory"),
    ("pccl/src/memory/pipeline_tests.rs", "lends device memory"),
    ("tests/kit/src/process.rs", "signals"),
    ("tests/kit/src/standin.rs", "loads the stand-in driver and calls it"),
    ("tests/src/bin/pccl-test-peer/buffer.rs", "memory that no slice stands for"),
    ("tests/src/bin/pccl-test-peer/trap.rs", "kills its own process"),
    ("threadpark/tests/loom.rs", "loom's cells"),
    ("tinysockets/benches/link.rs", "lends memory"),
    ("tinysockets/tests/link_loom.rs", "loom's cells"),
    ("tinysockets/tests/link_ring.rs", "lends memory"),
    ("tinysockets/tests/link_support/mod.rs", "lends memory"),
    ("tinysockets/tests/no_descriptors.rs", "resource limits"),
];

/// Where the master decides: no sockets, threads, clocks, chance, or order by chance.
const PURE: &[&str] = &["master/src/state/", "master/planner/src/rings/", "master/planner/src/schedules/"];
const IMPURE: &[&str] = &[
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "std::net",
    "std::thread",
    "thread",
    "mio",
    "socket2",
    "libc",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "Mutex",
    "RwLock",
    "std::fs",
    "std::env",
    "std::io",
    "std::process",
    "random",
];

/// The crate that says who sends what to whom, and what the client library would need to say it again.
const SCHEDULE: &str = "pccl/schedule/";
const SCHEDULING: &[&str] = &["% ranks", "% self.ranks", "% plan.ranks", "Hop::new", "Step::new"];

/// Programs and tests, whose business it is to print.
const PROGRAMS: &[&str] = &["stress/", "tests/", "pccl/capi/build.rs"];
const PRINTING: &[&str] = &["println!", "print!", "eprintln!", "eprint!"];

/// Problems of all Rust sources.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let (sources, test_modules) = all(tree);
    let mut problems = Vec::new();
    for source in &sources {
        let mut complain = |line: usize, what: &str| problems.push(format!("{}:{line}: {what}", source.path));
        if source.lines > MAX_LINES {
            complain(source.lines, &format!("more than {MAX_LINES} lines"));
        }
        // Put together, so that this file does not contain it.
        for line in lines_with(source.text, concat!("FIX", "ME")) {
            complain(line, "a note to repair something");
        }
        let is_test = source.is_test(&test_modules);
        let is_program = PROGRAMS.iter().any(|program| source.path.starts_with(program));
        let allowed: Vec<&str> = UNSAFE
            .iter()
            .chain(UNSAFE_IN_TESTS.iter().filter(|_| is_test || is_program))
            .map(|(path, _)| *path)
            .collect();
        if !allowed.contains(&source.path) {
            for line in lines_with(&source.code, "unsafe") {
                complain(line, "unsafe code in a file that is not on the list for it");
            }
        }
        if is_test {
            continue;
        }
        for line in lines_with(&source.production, ".unwrap()") {
            complain(line, "unwrap: return an error, or say with expect why it cannot fail");
        }
        if !is_program {
            for line in PRINTING.iter().flat_map(|needle| lines_with(&source.production, needle)) {
                complain(line, "a library prints; it has the log for that");
            }
        }
        if !source.path.starts_with(SCHEDULE) && source.path.starts_with("pccl/") {
            for needle in SCHEDULING {
                for line in lines_with(&source.production, needle) {
                    complain(line, &format!("{needle}: who sends what to whom is said in {SCHEDULE}"));
                }
            }
        }
        if PURE.iter().any(|pure| source.path.starts_with(pure)) {
            for needle in IMPURE {
                for line in lines_with(&source.production, needle) {
                    complain(line, &format!("{needle} in the pure part of the master"));
                }
            }
        }
    }
    problems
}

/// Files of the libraries on the list for unsafe code that are not there, or have none any more.
pub(crate) fn outdated_lists(tree: &Tree) -> Vec<String> {
    let listed = UNSAFE.iter().map(|(path, _)| *path);
    let has_unsafe =
        |path: &str| tree.get(path).is_some_and(|text| !lines_with(&code(text), "unsafe").is_empty());
    listed
        .filter(|path| !has_unsafe(path))
        .map(|path| format!("{path}: on the list for unsafe code without need"))
        .collect()
}

/// All Rust sources, and the paths, without ending, of all test modules.
pub(crate) fn all(tree: &Tree) -> (Vec<Source<'_>>, BTreeSet<String>) {
    let paths = tree.iter().filter(|(path, _)| path.ends_with(".rs"));
    let sources: Vec<Source<'_>> = paths.map(|(path, text)| Source::read(path, text)).collect();
    let test_modules = sources.iter().flat_map(|source| source.test_modules.clone()).collect();
    (sources, test_modules)
}

/// A Rust file.
pub(crate) struct Source<'a> {
    pub(crate) path: &'a str,
    text: &'a str,
    lines: usize,
    /// Without comments and literals.
    code: String,
    /// Without test items as well.
    pub(crate) production: String,
    /// Paths, without ending, of test modules that this file declares.
    test_modules: Vec<String>,
}

impl<'a> Source<'a> {
    fn read(path: &'a str, text: &'a str) -> Self {
        let code = code(text);
        let (production, names) = without_tests(&code);
        let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = file.trim_end_matches(".rs");
        let children =
            if ["mod", "lib", "main"].contains(&stem) { dir.to_owned() } else { format!("{dir}/{stem}") };
        let named = names.into_iter().map(|name| format!("{children}/{name}"));
        let test_modules = named.chain(test_paths(text).map(|file| format!("{dir}/{file}"))).collect();
        Self { path, text, lines: text.lines().count(), code, production, test_modules }
    }

    /// Whether the whole file is a test, a bench or an example.
    pub(crate) fn is_test(&self, test_modules: &BTreeSet<String>) -> bool {
        let stem = self.path.trim_end_matches(".rs");
        let inside = |module: &String| stem == module || stem.starts_with(&format!("{module}/"));
        let dirs = ["/tests/", "/benches/", "/examples/"];
        let in_src = self.path.contains("/src/");
        self.path.starts_with("tests/")
            || test_modules.iter().any(inside)
            || (!in_src && dirs.iter().any(|dir| self.path.contains(dir)))
    }
}

/// Names, without ending, of the files of test modules that have a path of their own.
fn test_paths(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.split("#[cfg(test)]\n#[path = \"").skip(1);
    behind.filter_map(|rest| rest.split_once(".rs\"]")).map(|(file, _)| file)
}

#[cfg(test)]
fn planted(files: &[(&str, &str)]) -> Vec<String> {
    problems(&crate::tree::planted(files))
}

#[test]
fn unwrap_is_found_in_production_code_only() {
    let text = "//! x.unwrap()\nfn a() { x.unwrap(); }\n#[cfg(test)]\nmod tests { fn b() { x.unwrap(); } }\n\
                #[cfg(test)]\nmod more;\n#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod others;\n";
    let found = planted(&[
        ("pccl/src/a.rs", text),
        ("pccl/src/a_tests.rs", "fn f() { x.unwrap(); }"),
        ("pccl/src/a/more.rs", "fn c() { x.unwrap(); }"),
        ("pccl/src/a/less.rs", "fn d() { x.unwrap_or(1); \".unwrap()\"; }"),
        ("pccl/examples/e.rs", "fn e() { x.unwrap(); }"),
    ]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("pccl/src/a.rs:2: "), "{found:?}");
}

#[test]
fn unsafe_needs_a_place_on_the_list() {
    let found = planted(&[
        ("pccl/src/a.rs", "// unsafe\nfn a() { unsafe { b() } }"),
        ("pccl/capi/src/calls.rs", "the functions of the C interface"),
        ("pccl/capi/src/fork.rs", "handlers of fork"),
        ("pccl/capi/src/master.rs", "the functions of the C interface"),
        ("pccl/capi/src/masters.rs", "what a signal handler reads"),
        ("pccl/capi/src/raw.rs", "what the pointers of a C program point to"),
        ("pccl/src/memory.rs", "unsafe fn b() {}"),
        ("tinysockets/tests/c.rs", "unsafe impl Send for X {}"),
    ]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("pccl/src/a.rs:2: ") && found[1].starts_with("tinysockets/tests/c.rs:1: "));
}

#[test]
fn an_outdated_list_is_found() {
    let found = outdated_lists(&crate::tree::planted(&[("pccl/src/memory.rs", "// unsafe no more")]));
    assert!(found.iter().any(|problem| problem.starts_with("pccl/src/memory.rs")), "{found:?}");
}

#[test]
fn impurity_is_found() {
    for bad in [
        "std::net::TcpStream",
        "std::thread::spawn",
        "Instant::now()",
        "SystemTime::now()",
        "HashMap<u8, u8>",
        "mio::Poll",
    ] {
        let found = planted(&[("master/src/state/a.rs", &format!("fn a() {{ {bad}; }}"))]);
        assert!(!found.is_empty(), "{bad}");
    }
    let fine = "use core::net::IpAddr; use std::time::Duration; struct S { m: BTreeMap<u8, u8> }";
    assert_eq!(
        planted(&[("master/src/state/a.rs", fine), ("master/src/random.rs", "use std::io;")]),
        Vec::<String>::new()
    );
}

#[test]
fn a_second_schedule_is_found() {
    for bad in ["let next = (rank + 1) % ranks", "let hop = Hop::new(1, 2)", "Step::new(inputs, sends, true)"]
    {
        let text = format!("fn a() {{ {bad}; }}");
        assert_eq!(
            planted(&[("pccl/src/collective/a.rs", &text), ("pccl/schedule/src/a.rs", &text)]).len(),
            1
        );
    }
}

#[test]
fn printing_is_found_in_libraries_only() {
    let text = "fn a() { eprintln!(\"a\"); }";
    let found = planted(&[("hash/src/a.rs", text), ("stress/src/a.rs", text), ("hash/benches/a.rs", text)]);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn notes_to_repair_something_are_found_everywhere() {
    let note = concat!("// FIX", "ME later");
    assert_eq!(planted(&[("tests/sim/a.rs", note), ("pccl/src/a.rs", note)]).len(), 2);
}

#[test]
fn long_files_are_found() {
    assert_eq!(planted(&[("pccl/src/a.rs", &"\n".repeat(MAX_LINES + 1))]).len(), 1);
    assert_eq!(planted(&[("pccl/src/a.rs", &"\n".repeat(MAX_LINES))]).len(), 0);
}
