//! The table of known defects names tests that are there.

use std::{collections::BTreeSet, fs, path::Path};

const TABLE: &str = include_str!("../../docs/defects-of-the-original.md");
/// Sources of this test program, whose tests the table has to name.
const OWN: &[(&str, &str)] = &[
    ("tests/defects/addresses.rs", include_str!("addresses.rs")),
    ("tests/defects/calls.rs", include_str!("calls.rs")),
    ("tests/defects/membership.rs", include_str!("membership.rs")),
    ("tests/defects/process.rs", include_str!("process.rs")),
    ("tests/defects/state.rs", include_str!("state.rs")),
    ("tests/defects/strangers.rs", include_str!("strangers.rs")),
];
/// The text of a row without a test.
const REASONS: &[&str] = &["not yet: ", "by nature: "];

/// One row: its number, as `BUG-3`, and the last of its cells.
struct Row<'a> {
    number: &'a str,
    shown_by: &'a str,
}

impl<'a> Row<'a> {
    /// Paths and names of the tests.
    fn tests(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let code = self.shown_by.split('`').skip(1).step_by(2);
        code.filter_map(|code| code.split_once("::"))
    }
}

fn rows(table: &str) -> Result<Vec<Row<'_>>, String> {
    let lines = table.lines().filter(|line| line.starts_with("| BUG-") || line.starts_with("| GAP-"));
    lines
        .map(|line| match line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            ["", number, defect, here, shown_by, ""] if !defect.is_empty() && !here.is_empty() => {
                Ok(Row { number, shown_by })
            }
            _ => Err(format!("not four cells with something in them: {line}")),
        })
        .collect()
}

/// Problems of the table. `read` gives the text of a file of the repository.
fn problems(table: &str, own: &[(&str, &str)], read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let rows = match rows(table) {
        Ok(rows) => rows,
        Err(problem) => return vec![problem],
    };
    let mut problems = Vec::new();
    let numbers: Vec<String> = rows.iter().map(|row| row.number.to_owned()).collect();
    let wanted: Vec<String> =
        (1..=28).map(|n| format!("BUG-{n}")).chain((1..=18).map(|n| format!("GAP-{n}"))).collect();
    if numbers != wanted {
        problems.push(format!("the rows are {numbers:?}"));
    }
    for row in &rows {
        if row.tests().next().is_none() && !REASONS.iter().any(|reason| row.shown_by.contains(reason)) {
            problems.push(format!("{}: neither a test nor a reason why there is none", row.number));
        }
        for (path, name) in row.tests() {
            if !read(path).is_some_and(|source| source.contains(&format!("fn {name}("))) {
                problems.push(format!("{}: there is no test {name} in {path}", row.number));
            }
        }
    }
    let named: BTreeSet<(&str, &str, &str)> =
        rows.iter().flat_map(|row| row.tests().map(|(path, name)| (row.number, path, name))).collect();
    for (path, source) in own {
        for name in source.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split('(').next()) {
            if !named.contains(&(number_of(name).as_str(), *path, name)) {
                problems.push(format!("{path}: {name} does not stand in the row that its name says"));
            }
        }
    }
    problems
}

/// `BUG-3` for `bug_03_...`.
fn number_of(name: &str) -> String {
    let mut words = name.split('_');
    let kind = words.next().unwrap_or_default().to_uppercase();
    format!("{kind}-{}", words.next().unwrap_or_default().trim_start_matches('0'))
}

#[test]
fn every_test_that_the_table_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let found = problems(TABLE, OWN, |path| fs::read_to_string(root.join(path)).ok());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_file_of_this_program_is_looked_at() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("defects");
    let names = fs::read_dir(dir).expect("this directory").map(|entry| entry.expect("an entry").file_name());
    for name in names.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".rs")) {
        let listed = OWN.iter().any(|(path, _)| path.ends_with(&format!("/{name}")));
        assert!(listed || ["main.rs", "support.rs", "table.rs"].contains(&name.as_str()), "{name}");
    }
}

/// A table with one row altered.
fn altered(number: &str, shown_by: &str) -> Vec<String> {
    let row = |n: String| {
        let cell = if n == number { shown_by } else { "by nature: planted" };
        format!("| {n} | defect | here | {cell} |\n")
    };
    let table: String =
        (1..=28).map(|n| row(format!("BUG-{n}"))).chain((1..=18).map(|n| row(format!("GAP-{n}")))).collect();
    let own = [("tests/defects/x.rs", "#[test]\nfn gap_02_is_told() {}\n")];
    problems(&table, &own, |path| (path == "tests/defects/x.rs").then(|| own[0].1.to_owned()))
}

#[test]
fn mistakes_in_the_table_are_found() {
    let good = "`tests/defects/x.rs::gap_02_is_told`";
    assert_eq!(altered("GAP-2", good), Vec::<String>::new());
    assert_eq!(altered("GAP-3", good).len(), 1, "in the wrong row");
    assert_eq!(altered("GAP-2", "").len(), 2, "no reason, and an own test without a row");
    assert_eq!(altered("GAP-2", &format!("{good}, `tests/defects/x.rs::gap_02_is`")).len(), 1, "half a name");
    assert_eq!(altered("GAP-2", &format!("{good}, `tests/nowhere.rs::gap_02_is_told`")).len(), 1, "no file");
    assert_eq!(problems("| BUG-1 | a | b |", &[], |_| None).len(), 1, "three cells");
    assert_eq!(problems("", &[], |_| None).len(), 1, "no rows");
}
