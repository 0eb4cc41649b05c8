//! Which crate may use which: read from the manifests.

use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Crates of this workspace with those that they may use. A crate that is not listed here has no place yet.
const MAY_USE: &[(&str, &[&str])] = &[
    ("pccl-testkit", &[]),
    ("threadpark", &[]),
    ("pccl-log", &["pccl-testkit"]),
    ("pccl-hash", &["pccl-testkit"]),
    ("pccl-cuda", &["pccl-log", "pccl-hash", "pccl-quant", "pccl-quant-reference", "pccl-testkit"]),
    ("pccl-quant", &["pccl-quant-reference", "pccl-testkit"]),
    ("pccl-quant-reference", &["pccl-quant", "pccl-testkit"]),
    ("tinysockets", &["threadpark", "pccl-log", "pccl-hash", "pccl-testkit"]),
    ("pccl-protocol", &["tinysockets", "pccl-hash", "pccl-quant"]),
    ("pccl-flight", &["pccl-log", "pccl-protocol", "tinysockets", "pccl-hash", "pccl-quant"]),
    ("pccl-settings", &["tinysockets"]),
    ("pccl-schedule", &["pccl-protocol", "pccl-quant"]),
    ("pccl-iteration", &["tinysockets", "pccl-log", "pccl-hash"]),
    ("pccl-planner", &["pccl-schedule", "pccl-protocol", "pccl-quant", "pccl-testkit"]),
    (
        "pccl-master",
        &[
            "pccl-planner",
            "pccl-iteration",
            "pccl-flight",
            "pccl-settings",
            "pccl-protocol",
            "tinysockets",
            "pccl-log",
            "pccl-hash",
            "pccl-quant",
            "pccl-testkit",
        ],
    ),
    ("pccl", EVERYTHING_BELOW),
    ("pccl-samples", &[]),
    ("pccl-diloco", &["pccl", "pccl-hash", "pccl-log", "pccl-quant", "pccl-samples", "pccl-settings"]),
    (
        "pccl-capi",
        &["pccl", "pccl-diloco", "pccl-iteration", "pccl-master", "pccl-log", "pccl-samples", "tinysockets"],
    ),
    ("pccl-stress", LIBRARIES),
    ("pccl-tests", LIBRARIES),
    ("pccl-fuzz", LIBRARIES),
];

/// Every library.
const LIBRARIES: &[&str] = &[
    "pccl",
    "pccl-iteration",
    "pccl-master",
    "pccl-planner",
    "pccl-flight",
    "pccl-schedule",
    "pccl-settings",
    "pccl-protocol",
    "tinysockets",
    "threadpark",
    "pccl-log",
    "pccl-hash",
    "pccl-cuda",
    "pccl-quant",
    "pccl-quant-reference",
    "pccl-testkit",
];

/// Every library but the client's.
const EVERYTHING_BELOW: &[&str] = LIBRARIES.split_first().expect("libraries").1;

/// Crates for tests, benches and examples, with those that are for nothing else themselves.
const DEVELOPMENT_ONLY: &[&str] =
    &["pccl-quant-reference", "pccl-stress", "pccl-testkit", "pccl-tests", "pccl-fuzz"];

/// Packages from outside that may be used.
const PACKAGES: &[&str] = &[
    "aws-lc-rs",
    "blake3",
    "byteorder",
    "clap",
    "crossbeam-channel",
    "crossbeam-queue",
    "cudarc",
    "crc-fast",
    "env_logger",
    "flate2",
    "half",
    "libc",
    "libfuzzer-sys",
    "log",
    "loom",
    "mio",
    "parking_lot",
    "postcard",
    "proptest",
    "ring",
    "rayon",
    "serde",
    "serde_json",
    "snow",
    "socket2",
    "thiserror",
    "twox-hash",
];

/// Problems of all manifests.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let manifests = tree.iter().filter(|(path, _)| *path == "Cargo.toml" || path.ends_with("/Cargo.toml"));
    manifests.flat_map(|(path, text)| problems_of(path, &Manifest::read(text))).collect()
}

fn problems_of(path: &str, manifest: &Manifest) -> Vec<String> {
    let mut problems = Vec::new();
    let internal: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let allowed = manifest.name.as_deref().map(|name| internal.get(name));
    if let (Some(None), Some(name)) = (allowed, &manifest.name) {
        problems.push(format!("{path}: crate {name} is not in the table of who may use whom"));
    }
    let is_library = manifest.name.as_deref().is_some_and(|name| !DEVELOPMENT_ONLY.contains(&name));
    for package in
        manifest.ships.iter().filter(|package| is_library && DEVELOPMENT_ONLY.contains(&package.as_str()))
    {
        problems.push(format!("{path}: {package} is for development only"));
    }
    for package in &manifest.uses {
        if internal.contains_key(package.as_str()) {
            if let Some(Some(allowed)) = allowed
                && !allowed.contains(&package.as_str())
            {
                let name = manifest.name.as_deref().unwrap_or_default();
                problems.push(format!("{path}: {name} must not use {package}"));
            }
        } else if !PACKAGES.contains(&package.as_str()) {
            problems.push(format!("{path}: {package} is not among the packages that this project uses"));
        }
    }
    if manifest.renames {
        problems.push(format!("{path}: a dependency is renamed, which hides what it is"));
    }
    problems
}

/// Files of tests that no program has: where cargo does not look for them by itself, each has to be named.
pub(crate) fn forgotten_tests(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    let manifests = tree.iter().filter(|(_, text)| text.contains("autotests = false"));
    for (manifest, text) in manifests {
        let Some(tests) = manifest.strip_suffix("Cargo.toml").map(|crate_| format!("{crate_}tests/")) else {
            continue;
        };
        let main = tree.get(&format!("{tests}main.rs")).map_or("", String::as_str);
        for path in tree.keys() {
            let Some(file) = path.strip_prefix(&tests) else { continue };
            let name = file.strip_suffix("/mod.rs").or_else(|| file.strip_suffix(".rs"));
            let Some(name) = name.filter(|name| !name.contains('/') && *name != "main") else { continue };
            let is_module = main.lines().any(|line| line == format!("mod {name};"));
            let is_target = text.lines().any(|line| line == format!("name = \"{name}\""));
            if !is_module && !is_target {
                problems.push(format!("{path}: it is neither a module of {tests}main.rs nor a target"));
            }
        }
    }
    problems
}

#[derive(Debug, Default)]
pub(crate) struct Manifest {
    pub(crate) name: Option<String>,
    pub(crate) uses: BTreeSet<String>,
    /// Those among them that are not for development only.
    ships: BTreeSet<String>,
    renames: bool,
}

impl Manifest {
    /// Reads as much of TOML as manifests here are written in: sections, and one key per line.
    pub(crate) fn read(text: &str) -> Self {
        let mut manifest = Self::default();
        let mut section = String::new();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_matches(['[', ']']).to_owned();
                if let Some((kind, package)) = section.rsplit_once("dependencies.") {
                    manifest.uses_of(kind, package);
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let key = key.trim();
            if section == "package" && key == "name" {
                manifest.name = Some(value.trim().trim_matches('"').to_owned());
            }
            if section.contains("dependencies") {
                manifest.renames |=
                    value.contains("package =") || value.contains("package=") || key == "package";
            }
            if let Some(kind) = section.strip_suffix("dependencies") {
                manifest.uses_of(kind, key.split('.').next().unwrap_or(key).trim_matches('"'));
            }
        }
        manifest
    }

    fn uses_of(&mut self, kind: &str, package: &str) {
        self.uses.insert(package.to_owned());
        if !["workspace.", "dev-"].iter().any(|other| kind.ends_with(other)) {
            self.ships.insert(package.to_owned());
        }
    }
}

#[cfg(test)]
fn planted(text: &str) -> Vec<String> {
    problems(&crate::tree::planted(&[("x/Cargo.toml", text)]))
}

#[test]
fn a_leaf_that_uses_another_crate_is_found() {
    let found =
        planted("[package]\nname = \"threadpark\"\n[dev-dependencies]\ntinysockets.workspace = true\n");
    assert_eq!(found, ["x/Cargo.toml: threadpark must not use tinysockets"]);
}

#[test]
fn a_test_that_is_never_run_is_found() {
    let files = [
        ("x/Cargo.toml", "[package]\nautotests = false\n[[test]]\nname = \"alone\"\n"),
        ("x/tests/main.rs", "mod joined;\nmod common;\n"),
        ("x/tests/joined.rs", ""),
        ("x/tests/common/mod.rs", ""),
        ("x/tests/common/data.rs", ""),
        ("x/tests/alone.rs", ""),
        ("x/tests/lost.rs", ""),
        ("y/Cargo.toml", "[package]\n"),
        ("y/tests/found_by_cargo.rs", ""),
    ];
    let found = forgotten_tests(&crate::tree::planted(&files));
    assert_eq!(found, ["x/tests/lost.rs: it is neither a module of x/tests/main.rs nor a target"]);
}

#[test]
fn nothing_uses_the_client_library_from_below() {
    let found = planted(
        "[package]\nname = \"pccl-master\"\n[target.'cfg(unix)'.dependencies]\npccl = { path = \"../pccl\" }\n",
    );
    assert_eq!(found, ["x/Cargo.toml: pccl-master must not use pccl"]);
}

#[test]
fn foreign_packages_are_found_however_they_are_written() {
    for section in [
        "[dependencies]\ntokio = \"1\"",
        "[dependencies.tokio]\nversion = \"1\"",
        "[workspace.dependencies]\ntokio.version = \"1\"",
    ] {
        let found = planted(&format!("[package]\nname = \"pccl\"\n{section}\n"));
        assert_eq!(
            found,
            ["x/Cargo.toml: tokio is not among the packages that this project uses"],
            "{section}"
        );
    }
    assert_eq!(
        planted(
            "[package]\nname = \"pccl\"\n[dependencies]\nlog = { package = \"tokio\", version = \"1\" }\n"
        )
        .len(),
        1
    );
}

#[test]
fn a_crate_without_a_place_is_found() {
    assert_eq!(planted("[package]\nname = \"pccl-new\"\n").len(), 1);
}

#[test]
fn what_is_for_development_only_is_found_in_a_library() {
    let package = "[package]\nname = \"pccl\"\n";
    let with =
        |section: &str| planted(&format!("{package}[{section}]\npccl-quant-reference.workspace = true\n"));
    assert_eq!(with("dependencies"), ["x/Cargo.toml: pccl-quant-reference is for development only"]);
    assert_eq!(with("dev-dependencies"), Vec::<String>::new());
}

#[test]
fn good_manifests_pass() {
    let text = "[package]\nname = \"tinysockets\"\n[dependencies]\nthreadpark.workspace = true\nlog = \"0.4\"\n\
                [target.'cfg(loom)'.dependencies]\nloom.workspace = true\n";
    assert_eq!(planted(text), Vec::<String>::new());
}
