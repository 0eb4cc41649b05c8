//! How many lines of code the libraries have: neither tests, benches, examples, the stress program and test kits, nor
//! comments and blank lines.

use crate::{sources::all, tree::Tree};
use std::collections::BTreeMap;

/// Programs and crates that exist for tests.
const FOR_TESTS: &[&str] = &["stress/", "tests/", "cuda/standin/", "quant/reference/"];

/// Lines of code by crate, named by its directory.
pub(crate) fn by_crate(tree: &Tree) -> BTreeMap<String, usize> {
    let (sources, test_modules) = all(tree);
    let mut counted = BTreeMap::new();
    for source in sources {
        let is_for_tests = FOR_TESTS.iter().any(|dir| source.path.starts_with(dir));
        if !is_for_tests && !source.is_test(&test_modules) {
            let lines = source.production.lines().filter(|line| !line.trim().is_empty()).count();
            *counted.entry(crate_of(tree, source.path)).or_default() += lines;
        }
    }
    counted
}

/// The directory with the manifest of the crate that a file belongs to.
fn crate_of(tree: &Tree, path: &str) -> String {
    let mut above = path.rmatch_indices('/').map(|(at, _)| &path[..at]);
    let is_crate = |dir: &&str| tree.contains_key(&format!("{dir}/Cargo.toml"));
    above.find(is_crate).unwrap_or_default().to_owned()
}

#[test]
fn tests_comments_and_kits_do_not_count() {
    let tree = crate::tree::planted(&[
        ("a/Cargo.toml", "[package]"),
        ("a/b/Cargo.toml", "[package]"),
        (
            "a/src/lib.rs",
            "//! Words.\n\nmod c;\n#[cfg(test)]\nmod d;\nfn f() {\n    // Why.\n    g(\"//\");\n}\n",
        ),
        ("a/src/c.rs", "fn g(_: &str) {}\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n"),
        ("a/src/d.rs", "fn t() {}\n"),
        ("a/b/src/lib.rs", "/* One\ntwo */ const X: u8 = 1;\n"),
        ("a/tests/e.rs", "fn t() {}\n"),
        ("a/benches/f.rs", "fn main() {}\n"),
        ("stress/src/lib.rs", "fn f() {}\n"),
    ]);
    assert_eq!(by_crate(&tree), [("a".to_owned(), 5), ("a/b".to_owned(), 1)].into());
}
