//! The modules of each crate: every source file is named by one, and a module uses only those below it.
//!
//! The head of a crate with several modules says their order in one paragraph of its comments, which begins with
//! [`MARK`] and names all of them in backquotes. An item that the root of a crate exports again belongs to
//! the module that defines it.

use crate::{
    rust_source::{code, is_word, without_tests},
    tree::Tree,
};
use std::collections::{BTreeMap, BTreeSet};

/// How the paragraph begins that has the order of modules.
const MARK: &str = "Modules from top to bottom, each of which uses only those below it: ";

/// A crate: where its sources are.
struct Crate<'a> {
    root: &'a str,
    tree: &'a Tree,
    /// The crates in directories below this one.
    inner: Vec<&'a str>,
}

fn crates(tree: &Tree) -> Vec<Crate<'_>> {
    let is_package = |text: &String| text.lines().any(|line| line.trim() == "[package]");
    let manifests = tree.iter().filter(|(_, text)| is_package(text));
    let roots: Vec<&str> = manifests.filter_map(|(path, _)| path.strip_suffix("Cargo.toml")).collect();
    let inner = |root: &str| -> Vec<&str> {
        roots.iter().copied().filter(|other| *other != root && other.starts_with(root)).collect()
    };
    roots.iter().map(|root| Crate { root, tree, inner: inner(root) }).collect()
}

impl<'a> Crate<'a> {
    fn files(&self) -> impl Iterator<Item = &'a str> {
        let own = |path: &&str| {
            path.starts_with(self.root)
                && path.ends_with(".rs")
                && !self.inner.iter().any(|inner| path.starts_with(inner))
        };
        self.tree.keys().map(String::as_str).filter(own)
    }

    /// Files that cargo compiles by themselves.
    fn targets(&self) -> Vec<&'a str> {
        let manifest = &self.tree[&format!("{}Cargo.toml", self.root)];
        let named: BTreeSet<&str> = manifest
            .lines()
            .filter_map(|line| line.trim().strip_prefix("path = \"")?.strip_suffix('"'))
            .collect();
        let is_target = |path: &&str| {
            let inside = &path[self.root.len()..];
            let alone = |directory: &str| {
                inside.strip_prefix(directory).is_some_and(|rest| {
                    !rest.contains('/') || (rest.ends_with("/main.rs") && rest.matches('/').count() == 1)
                })
            };
            ["src/lib.rs", "src/main.rs", "build.rs"].contains(&inside)
                || ["src/bin/", "tests/", "benches/", "examples/"].iter().any(|directory| alone(directory))
                || named.contains(inside)
        };
        self.files().filter(is_target).collect()
    }

    /// The library, or the program if there is none.
    fn head(&self) -> Option<&'a str> {
        let head = |name: &str| self.files().find(|path| *path == format!("{}src/{name}", self.root));
        head("lib.rs").or_else(|| head("main.rs"))
    }
}

/// A module: the names that lead to it, and whether it is there for tests only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) path: Vec<String>,
    pub(crate) is_test: bool,
}

/// The files that a target is made of.
fn modules_of<'a>(tree: &'a Tree, target: &'a str) -> BTreeMap<&'a str, Module> {
    let mut found = BTreeMap::new();
    let mut open = vec![(target, Module { path: Vec::new(), is_test: false })];
    while let Some((file, module)) = open.pop() {
        let text = &tree[file];
        let tests = without_tests(&code(text)).1;
        for (name, given) in declared(text) {
            let inner = module.path.is_empty() || file.ends_with("/mod.rs");
            let directory =
                if inner { parent(file).to_owned() } else { format!("{}/", &file[..file.len() - 3]) };
            let paths = match given {
                Some(given) => vec![joined(parent(file), given)],
                None => vec![format!("{directory}{name}.rs"), format!("{directory}{name}/mod.rs")],
            };
            let Some((file, _)) = paths.iter().find_map(|path| tree.get_key_value(path)) else { continue };
            let mut path = module.path.clone();
            path.push(name.to_owned());
            let is_test = module.is_test || tests.contains(name);
            open.push((file, Module { path, is_test }));
        }
        for given in included(text) {
            if let Some((file, _)) = tree.get_key_value(&joined(parent(file), given)) {
                found.insert(file.as_str(), module.clone());
            }
        }
        found.insert(file, module);
    }
    found
}

fn parent(file: &str) -> &str {
    &file[..file.rfind('/').map_or(0, |at| at + 1)]
}

fn joined(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The modules that a file declares as files of their own, with the path that it gives.
fn declared(text: &str) -> Vec<(&str, Option<&str>)> {
    let code = code(text);
    let (mut found, mut given) = (Vec::new(), None);
    for (line, code) in text.lines().zip(code.lines()) {
        if let Some(path) = line.trim().strip_prefix("#[path = \"") {
            given = path.split('"').next();
        }
        let mut item = code.trim();
        if let Some(rest) = item.strip_prefix("pub") {
            item = rest.trim_start();
            item = item.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(item, |it| it.1);
        }
        let Some(name) = item.trim_start().strip_prefix("mod ").and_then(|it| it.strip_suffix(';')) else {
            continue;
        };
        // The same characters of the text that lives longer.
        let at = line.find(name).unwrap_or(0);
        found.push((&line[at..at + name.len()], given.take()));
    }
    found
}

fn included(text: &str) -> Vec<&str> {
    text.split("include!(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The library or program of each crate, with the files that it is made of.
pub(crate) fn heads(tree: &Tree) -> Vec<(&str, BTreeMap<&str, Module>)> {
    let heads =
        crates(tree).into_iter().filter_map(|crate_| crate_.head().map(str::to_owned)).collect::<Vec<_>>();
    let known = heads.iter().filter_map(|head| tree.get_key_value(head));
    known.map(|(head, _)| (head.as_str(), modules_of(tree, head))).collect()
}

/// Source files that no module names.
pub(crate) fn forgotten_files(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for crate_ in crates(tree) {
        let known: BTreeSet<&str> =
            crate_.targets().into_iter().flat_map(|target| modules_of(tree, target).into_keys()).collect();
        let forgotten = crate_.files().filter(|file| !known.contains(file));
        problems.extend(forgotten.map(|file| format!("{file}: no module names it")));
    }
    // A module may lie in the directory of another crate.
    let all: BTreeSet<&str> = crates(tree)
        .iter()
        .flat_map(|crate_| crate_.targets())
        .flat_map(|target| modules_of(tree, target).into_keys())
        .collect();
    problems.retain(|problem| problem.split(':').next().is_none_or(|file| !all.contains(file)));
    problems
}

/// Uses of modules against the order of their crate.
pub(crate) fn directions(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for crate_ in crates(tree) {
        let Some(head) = crate_.head() else { continue };
        let files = modules_of(tree, head);
        let declared: BTreeSet<&str> = files
            .values()
            .filter(|module| module.path.len() == 1 && !module.is_test)
            .map(|module| module.path[0].as_str())
            .collect();
        let order = order_of(&tree[head]);
        if declared.len() < 2 && order.is_empty() {
            continue;
        }
        let listed: BTreeSet<&str> = order.iter().map(String::as_str).collect();
        if listed != declared || listed.len() != order.len() {
            let names = declared.symmetric_difference(&listed).copied().collect::<Vec<_>>().join(", ");
            problems.push(format!("{head}: the order of modules has to name each once: {names}"));
            continue;
        }
        let homes = homes(tree, head, &files);
        for (file, module) in files.iter().filter(|(_, module)| !module.is_test && !module.path.is_empty()) {
            for (line, used) in uses(&tree[*file], module.path.len(), &declared, &homes) {
                let place = |name: &str| order.iter().position(|other| other == name);
                if used != module.path[0] && place(&used) < place(&module.path[0]) {
                    let text = tree[*file].lines().nth(line - 1).unwrap_or_default().trim();
                    problems.push(format!("{file}:{line}: uses {used}, which is above it: {text}"));
                }
            }
        }
    }
    problems
}

/// The order of modules that the head of a crate says.
fn order_of(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("//"));
    let head = lines.map(|line| line.trim_start_matches('!').trim()).collect::<Vec<_>>().join(" ");
    let Some((_, list)) = head.split_once(MARK) else { return Vec::new() };
    let list = list.split('.').next().unwrap_or_default();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Which module defines the names that the root of a crate imports or exports again.
fn homes(tree: &Tree, head: &str, files: &BTreeMap<&str, Module>) -> BTreeMap<String, String> {
    let mut homes = BTreeMap::new();
    let (root, _) = without_tests(&code(&tree[head]));
    for use_ in root.split("use ").skip(1) {
        let use_ = use_.split(';').next().unwrap_or_default();
        let use_ = use_.trim_start_matches("crate::").trim_start_matches("self::");
        let module: String = use_.chars().take_while(|c| is_word(*c)).collect();
        if !files.values().any(|other| other.path == [module.clone()]) {
            continue;
        }
        if use_.ends_with("::*") {
            for (file, _) in files.iter().filter(|(_, other)| other.path.first() == Some(&module)) {
                homes.extend(defined(&tree[*file]).map(|name| (name, module.clone())));
            }
        }
        let names = use_.split(|c| !is_word(c)).filter(|name| !name.is_empty());
        homes.extend(names.skip(1).map(|name| (name.to_owned(), module.clone())));
    }
    homes
}

/// The items that a file defines for others.
fn defined(text: &str) -> impl Iterator<Item = String> {
    const KINDS: [&str; 8] = [
        "pub struct ",
        "pub enum ",
        "pub fn ",
        "pub const fn ",
        "pub const ",
        "pub type ",
        "pub trait ",
        "pub union ",
    ];
    let names = text.lines().filter_map(|line| {
        let item = KINDS.iter().find_map(|kind| line.trim_start().strip_prefix(kind))?;
        Some(item.chars().take_while(|c| is_word(*c)).collect::<String>())
    });
    names.collect::<Vec<_>>().into_iter()
}

/// Modules that a file in `depth` modules names by paths from the root of its crate, with the lines.
fn uses(
    text: &str,
    depth: usize,
    modules: &BTreeSet<&str>,
    homes: &BTreeMap<String, String>,
) -> Vec<(usize, String)> {
    let (code, _) = without_tests(&code(text));
    let above = "super::".repeat(depth);
    let mut found = Vec::new();
    for start in ["crate::", &above] {
        for (at, _) in code.match_indices(start) {
            let before = &code[..at];
            let is_path = before.ends_with("::") || before.ends_with(is_word);
            if is_path && !before.ends_with("$") {
                continue;
            }
            let rest = &code[at + start.len()..];
            if rest.starts_with("super::") {
                continue;
            }
            for (offset, name) in first_names(rest) {
                let module =
                    if modules.contains(name) { Some(name.to_owned()) } else { homes.get(name).cloned() };
                let line = code[..at + start.len() + offset].matches('\n').count() + 1;
                found.extend(module.map(|module| (line, module)));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The first name of a path, or those of all paths in braces, with where they stand.
fn first_names(rest: &str) -> Vec<(usize, &str)> {
    let name_at = |at: usize| {
        let length = rest[at..].find(|c| !is_word(c)).unwrap_or(rest.len() - at);
        (at, &rest[at..at + length])
    };
    if !rest.starts_with('{') {
        return vec![name_at(0)];
    }
    let (mut names, mut depth, mut is_first) = (Vec::new(), 0, false);
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match c {
            '{' | ',' if depth == 1 => is_first = true,
            c if is_first && is_word(c) => {
                names.push(name_at(at));
                is_first = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::planted;

    const MANIFEST: &str = "[package]\nname = \"x\"\n";

    #[test]
    fn files_that_no_module_names_are_found() {
        let found = forgotten_files(&planted(&[
            ("x/Cargo.toml", "[package]\nname = \"x\"\n[[test]]\npath = \"odd/place.rs\"\n"),
            ("x/src/lib.rs", "mod a;\npub(crate) mod b;\n// mod gone;\n#[path = \"else.rs\"]\nmod c;"),
            ("x/src/a.rs", "pub mod d;"),
            ("x/src/a/d.rs", "include!(\"text.rs\");"),
            ("x/src/a/text.rs", ""),
            ("x/src/a/lost.rs", ""),
            ("x/src/b/mod.rs", "mod e;"),
            ("x/src/b/e.rs", ""),
            ("x/src/gone.rs", ""),
            ("x/src/else.rs", ""),
            ("x/odd/place.rs", ""),
            ("x/tests/all/main.rs", "mod one;"),
            ("x/tests/all/one.rs", ""),
            ("x/tests/all/two.rs", ""),
            ("x/y/Cargo.toml", MANIFEST),
            ("x/y/src/main.rs", ""),
        ]));
        let names = ["x/src/a/lost.rs", "x/src/gone.rs", "x/tests/all/two.rs"];
        assert_eq!(found, names.map(|name| format!("{name}: no module names it")));
    }

    fn crate_of(order: &str, b: &str) -> Tree {
        let head = format!(
            "//! A crate.\n//!\n//! {MARK}{order}\nmod a;\nmod b;\npub use a::{{Name, deep::Other}};"
        );
        planted(&[
            ("x/Cargo.toml", MANIFEST),
            ("x/src/lib.rs", &head),
            ("x/src/a.rs", "use crate::b::B;"),
            ("x/src/b/mod.rs", b),
        ])
    }

    #[test]
    fn a_use_of_a_module_above_is_found_however_it_is_written() {
        let in_order = "`a`, then\n//! `b`. Anything.";
        assert_eq!(directions(&crate_of(in_order, "fn f() {}")), Vec::<String>::new());
        for b in [
            "use crate::a::X;",
            "use crate::{\n    c,\n    a::X,\n};",
            "fn f() { super::a::g() }",
            "fn f() { crate::Name::g() }",
            "use crate::Other;",
        ] {
            let found = directions(&crate_of(in_order, b));
            assert_eq!(found.len(), 1, "{b}: {found:?}");
            assert!(found[0].starts_with("x/src/b/mod.rs:") && found[0].contains("uses a"), "{found:?}");
        }
        for b in [
            "// crate::a",
            "use crate::b::a;",
            "#[cfg(test)]\nmod tests { use crate::a; }",
            "use x::crate_::a;",
        ] {
            assert_eq!(directions(&crate_of(in_order, b)), Vec::<String>::new(), "{b}");
        }
    }

    #[test]
    fn the_order_names_every_module_once() {
        for order in ["`b`.", "`a`, `b`, `c`.", "`a`, `b`, `a`.", ""] {
            assert_eq!(directions(&crate_of(order, "")).len(), 1, "{order}");
        }
    }
}
