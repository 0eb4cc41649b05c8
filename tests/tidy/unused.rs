//! Parts that nobody uses: dependencies that no source of their crate names, and public items that no source names at
//! all.
//!
//! The compiler sees neither: the former need a pass over all targets of a crate at once, and what is `pub` may be for
//! somebody whom it does not know. Here everybody is known.

use crate::{
    manifests::Manifest,
    rust_source::{code, is_word},
    tree::Tree,
};
use std::collections::BTreeMap;

/// In front of the name of an item.
const KINDS: &[&str] = &["fn", "struct", "enum", "const", "static", "type", "trait", "union"];

/// Dependencies of a manifest that it could do without.
pub(crate) fn dependencies(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    let crates: Vec<&str> = tree.keys().filter_map(|path| path.strip_suffix("Cargo.toml")).collect();
    for crate_ in crates.iter().filter(|crate_| !crate_.is_empty()) {
        let inner: Vec<&&str> =
            crates.iter().filter(|other| other.starts_with(crate_) && **other != *crate_).collect();
        let is_own =
            |path: &str| path.starts_with(crate_) && !inner.iter().any(|inner| path.starts_with(**inner));
        let sources: Vec<&String> = tree
            .iter()
            .filter(|(path, _)| path.ends_with(".rs") && is_own(path))
            .map(|(_, text)| text)
            .collect();
        for package in &Manifest::read(&tree[&format!("{crate_}Cargo.toml")]).uses {
            let name = package.replace('-', "_");
            if !sources.iter().any(|text| text.split(|c| !is_word(c)).any(|word| word == name)) {
                problems.push(format!("{crate_}Cargo.toml: no source uses {package}"));
            }
        }
    }
    let manifests: Vec<Manifest> =
        crates.iter().map(|path| Manifest::read(&tree[&format!("{path}Cargo.toml")])).collect();
    let root = tree.get("Cargo.toml").map(|text| Manifest::read(text).uses).unwrap_or_default();
    let is_used = |package: &String| {
        manifests.iter().filter(|one| one.name.is_some()).any(|one| one.uses.contains(package))
    };
    problems.extend(
        root.iter().filter(|one| !is_used(one)).map(|one| format!("Cargo.toml: no crate uses {one}")),
    );
    problems
}

/// Public items whose name stands nowhere but where they are defined. An item that is only exported again counts as
/// unused.
pub(crate) fn items(tree: &Tree) -> Vec<String> {
    let sources: Vec<(&String, String)> = tree
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .map(|(path, text)| (path, code(text)))
        .collect();
    let mut mentions: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, code) in &sources {
        // An item that is only exported again is not used by that.
        let mut pieces = code.split("pub use ");
        let rest = |piece: &str| piece.find(';').unwrap_or(piece.len());
        let first = pieces.next().into_iter();
        for text in first.chain(pieces.map(|piece| &piece[rest(piece)..])) {
            let words = text.split(|c| !is_word(c)).filter(|word| !word.is_empty());
            words.for_each(|word| *mentions.entry(word).or_default() += 1);
        }
    }
    let mut problems = Vec::new();
    for (path, code) in sources.iter().filter(|(path, _)| path.contains("src/")) {
        for (index, line) in code.lines().enumerate() {
            if let Some(name) = public_name(line).filter(|name| mentions.get(name) == Some(&1)) {
                problems.push(format!("{path}:{}: nobody uses {name}", index + 1));
            }
        }
    }
    problems
}

/// The name of the public item that a line defines.
fn public_name(line: &str) -> Option<&str> {
    let item = line.trim_start().strip_prefix("pub ")?;
    let mut words = item.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    let mut before = words.find(|word| KINDS.contains(word))?;
    loop {
        let word = words.next()?;
        // "const fn" is a function.
        if !KINDS.contains(&word) {
            return (before != "type" || word != "Error").then_some(word);
        }
        before = word;
    }
}

#[test]
fn a_dependency_that_no_source_names_is_found() {
    let found = dependencies(&crate::tree::planted(&[
        ("Cargo.toml", "[workspace.dependencies]\nlog = \"0.4\"\nmio = \"1\"\nhalf = \"2\"\n"),
        (
            "x/Cargo.toml",
            "[package]\nname = \"x\"\n[dependencies]\nlog.workspace = true\ncrc-fast.workspace = true\n",
        ),
        ("x/src/lib.rs", "use log::info;"),
        ("x/y/Cargo.toml", "[package]\nname = \"y\"\n[dependencies]\nhalf = \"2\"\n"),
        ("x/y/src/lib.rs", "use half::f16; use crc_fast;"),
    ]));
    assert_eq!(found, ["x/Cargo.toml: no source uses crc-fast", "Cargo.toml: no crate uses mio"]);
}

#[test]
fn a_public_item_that_nobody_names_is_found() {
    let found = items(&crate::tree::planted(&[
        ("x/src/lib.rs", "pub use a::{Dead, Used};\nmod a;\n"),
        (
            "x/src/a.rs",
            "pub struct Dead;\npub struct Used;\n    pub const fn gone() {}\npub(crate) fn inner() {}\n",
        ),
        ("y/src/lib.rs", "use x::Used; // gone Dead\n"),
    ]));
    assert_eq!(found, ["x/src/a.rs:1: nobody uses Dead", "x/src/a.rs:3: nobody uses gone"]);
}
