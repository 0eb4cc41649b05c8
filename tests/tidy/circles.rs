//! Circles of modules: no two modules of one folder use each other, directly or by others beside them.

use crate::{
    modules::{Module, heads},
    rust_source::{code, is_word, without_tests},
    tree::Tree,
};
use std::collections::{BTreeMap, BTreeSet};

/// Circles that are there today, by the folder. They may only go.
const KNOWN: &[(&str, &[&str])] = &[
    // The facts of a group and of a peer have parts of each of these rooms, whose rules read both.
    ("master/src/state", &["groups", "membership", "operations", "optimise", "shared_state"]),
    ("pccl/src/collective", &["op", "operations", "table"]),
    ("pccl/src/state", &["ahead", "fetch", "lane", "loan", "server", "sync", "syncs"]),
];

/// The uses between the modules of one folder: of which module, and which others.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Circles that are not known, and known ones that have gone.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (head, files) in heads(tree) {
        let source = head.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (parent, uses) in uses_by_folder(tree, &files) {
            let folder: Vec<&str> =
                std::iter::once(source).chain(parent.iter().map(String::as_str)).collect();
            found.extend(circles(&uses).into_iter().map(|circle| (folder.join("/"), circle)));
        }
    }
    let is_known = |folder: &str, circle: &[String]| KNOWN.contains(&(folder, &as_strs(circle)[..]));
    let new = found.iter().filter(|(folder, circle)| !is_known(folder, circle));
    let mut problems: Vec<String> =
        new.map(|(folder, circle)| format!("{folder}: a circle of {}", circle.join(", "))).collect();
    let stands =
        |folder: &str, known: &[&str]| found.iter().any(|(at, it)| at == folder && as_strs(it) == known);
    let is_here = |folder: &str| tree.keys().any(|path| path.starts_with(&format!("{folder}/")));
    let gone = KNOWN.iter().filter(|(folder, known)| is_here(folder) && !stands(folder, known));
    problems.extend(gone.map(|(folder, _)| format!("{folder}: the known circle has changed")));
    problems
}

fn as_strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// For each folder of modules of a crate, by its path, the uses between them.
fn uses_by_folder(tree: &Tree, files: &BTreeMap<&str, Module>) -> BTreeMap<Vec<String>, Uses> {
    let modules: BTreeSet<&[String]> =
        files.values().filter(|module| !module.is_test).map(|module| &module.path[..]).collect();
    let mut by_folder: BTreeMap<Vec<String>, Uses> = BTreeMap::new();
    for (file, module) in files.iter().filter(|(_, module)| !module.is_test) {
        let own = &module.path;
        for used in paths(&without_tests(&code(&tree[*file])).0, own) {
            let shared = own.iter().zip(&used).take_while(|(one, other)| one == other).count();
            // Inside of the same module, or the folder itself.
            if shared == own.len() || shared == used.len() || !modules.contains(&used[..=shared]) {
                continue;
            }
            let uses = by_folder.entry(own[..shared].to_vec()).or_default();
            uses.entry(own[shared].clone()).or_default().insert(used[shared].clone());
        }
    }
    by_folder
}

/// The paths from the root of the crate that a module names, whether by `crate` or by `super`.
fn paths(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].ends_with(is_word) || code[..at].ends_with("::") {
                continue;
            }
            branches(&code[at..], &mut Vec::new(), &mut |path| {
                let above = path.iter().take_while(|name| *name == "super").count();
                if above > module.len() {
                    return;
                }
                let root = if path[0] == "crate" { &[][..] } else { &module[..module.len() - above] };
                let rest = path.iter().skip(if path[0] == "crate" { 1 } else { above });
                found.push(root.iter().chain(rest).cloned().collect());
            });
        }
    }
    found
}

/// Calls `leaf` with each path of a tree such as `a::{b, c::d}`, and returns the number of bytes that it takes.
fn branches(tree: &str, path: &mut Vec<String>, leaf: &mut dyn FnMut(&[String])) -> usize {
    let depth = path.len();
    let mut at = 0;
    loop {
        if tree[at..].starts_with('{') {
            at += 1;
            while !tree[at..].is_empty() && !tree[at..].starts_with('}') {
                let blank = tree[at..].len() - tree[at..].trim_start_matches([' ', '\n', ',']).len();
                let taken = branches(&tree[at + blank..], path, leaf);
                at += blank + taken.max(usize::from(blank == 0));
            }
            at = tree.len().min(at + 1);
            break;
        }
        let length = tree[at..].find(|c| !is_word(c)).unwrap_or(tree.len() - at);
        if length > 0 {
            path.push(tree[at..at + length].to_owned());
        }
        at += length;
        if length == 0 || !tree[at..].starts_with("::") {
            leaf(path);
            break;
        }
        at += 2;
    }
    path.truncate(depth);
    at
}

/// Sets of modules each of which uses all others of its set, if by others.
fn circles(uses: &Uses) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            open.extend(uses.get(next).into_iter().flatten().filter(|name| seen.insert((*name).clone())));
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> = uses.keys().map(|name| (name, reached(name))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (name, reached) in all.iter().filter(|(name, reached)| reached.contains(**name)) {
        let back = |other: &&String| all.get(other).is_some_and(|it| it.contains(*name));
        let circle: Vec<String> = reached.iter().filter(back).cloned().collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

#[test]
fn circles_are_found_however_a_use_is_written() {
    let tree = |a: &str, b: &str| {
        crate::tree::planted(&[
            ("x/Cargo.toml", "[package]\nname = \"x\"\n"),
            ("x/src/lib.rs", "mod room;"),
            ("x/src/room/mod.rs", "mod a;\nmod b;\nmod c;\nuse self::a::X;"),
            ("x/src/room/a.rs", a),
            ("x/src/room/b/mod.rs", "mod deep;"),
            ("x/src/room/b/deep.rs", b),
            ("x/src/room/c.rs", "use super::a::X;"),
        ])
    };
    for a in [
        "use super::b::Y;",
        "use crate::room::b::Y;",
        "use crate::{\n    other,\n    room::{b::{Y, Z}, X},\n};",
        "fn f() { super::b::g() }",
    ] {
        for b in ["use super::super::a::X;", "use crate::room::{a, d};"] {
            assert_eq!(problems(&tree(a, b)), ["x/src/room: a circle of a, b"], "{a} {b}");
        }
        assert_eq!(problems(&tree(a, "use super::Y;")), Vec::<String>::new(), "{a}");
    }
    let a = "use super::{c::Z, b::Y};";
    assert_eq!(problems(&tree(a, "use crate::room::a;")), ["x/src/room: a circle of a, b, c"]);
    assert_eq!(problems(&tree("#[cfg(test)]\nmod tests { use super::super::c; }", "")), Vec::<String>::new());
}
